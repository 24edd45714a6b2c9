"""A pattern as an automaton: which place of the pattern can follow which, the preferred one first.

Owns: ``Automaton``, the compiler of patterns; ``check_end``.
Invariant: of two paths through the pattern the preferred one comes first in ``start`` and ``follow``: an earlier
alternative, one more round of a greedy quantifier, one less of a reluctant one. There are no empty steps left, and
every round of an unbounded quantifier takes a row.
Must not know of rows, conditions or state.

Source: Thompson's construction, with the preferences of backtracking regular expressions and of SQL's row patterns,
reduced to the places of Glushkov's automaton.
"""

from __future__ import annotations

from typing import Final

from asyncstate.errors import SchemaError

from .pattern import Alternation, Concatenation, Pattern, Quantified, Variable

ACCEPT: Final = -1
"""Instead of a place: the match ends."""
VARIABLES_MAX: Final = 62
"""Each has a bit in the mask of a row."""
PLACES_MAX: Final = 1_000


class Automaton:
    """``pattern`` as places (p), each of a variable.

    ``variables``: their names (v), in the order of the pattern. ``variable_of`` (p): the index of each place's
    variable. ``start`` and ``follow`` (p): the places that can take the first row, or the next one, the preferred
    first; ``ACCEPT`` is last, if the match may end there, since no place after it would ever be chosen.

    Raises SchemaError naming ``owner`` for patterns that are too large or match no row.
    """

    def __init__(self, pattern: Pattern, owner: str) -> None:
        self.pattern = pattern
        self.variables = tuple(dict.fromkeys(pattern.variables()))
        if len(self.variables) > VARIABLES_MAX:
            raise SchemaError(
                f"{owner}: pattern '{pattern}' has {len(self.variables)} variables, but at most {VARIABLES_MAX} are "
                "allowed; use one variable for rows that you do not need to distinguish"
            )
        self.variable_of: list[int] = []
        self._edges: list[list[int]] = []  # of each node, the preferred first
        self._place: dict[int, int] = {}  # of the nodes that take a row
        self._round: dict[int, int] = {}  # of the nodes where a round of an unbounded quantifier may begin
        self._owner = owner
        self._end = self._node()
        entry = self._build(pattern, self._end)
        self.start = self._closure(entry)
        after = [self._edges[node][0] for node in self._place]
        self.follow = [self._closure(node) for node in after]
        if self.start[0] == ACCEPT:
            raise SchemaError(
                f"{owner}: pattern '{pattern}' prefers to match no row at all, and empty matches emit nothing; use a "
                "greedy quantifier, or one that takes at least one row"
            )
        self.start = tuple(place for place in self.start if place != ACCEPT)
        self._by_variable: dict[str, set[int]] = {name: set() for name in self.variables}
        for place, variable in enumerate(self.variable_of):
            self._by_variable[self.variables[variable]].add(place)

    def places_of(self, variable: str) -> set[int]:
        """The places of ``variable``."""
        return self._by_variable[variable]

    def reach(self, places: set[int] | tuple[int, ...]) -> set[int]:
        """``places`` and all that can follow them."""
        found: set[int] = set()
        waiting = [place for place in places if place != ACCEPT]
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += [more for more in self.follow[place] if more != ACCEPT]
        return found

    @property
    def endless(self) -> set[str]:
        """Variables at whose rows a match could end, but prefers to go on forever: those of a greedy end."""
        return {
            self.variables[self.variable_of[place]]
            for place, follow in enumerate(self.follow)
            if follow[-1] == ACCEPT and place in self.reach(follow)
        }

    # -- construction -------------------------------------------------------------------------------------------

    def _node(self, *edges: int) -> int:
        self._edges.append(list(edges))
        return len(self._edges) - 1

    def _build(self, pattern: Pattern, after: int) -> int:
        """The node at which ``pattern`` begins; ``after`` is the node that follows it."""
        if isinstance(pattern, Variable):
            return self._take(pattern, after)
        if isinstance(pattern, Concatenation):
            for part in reversed(pattern.parts):
                after = self._build(part, after)
            return after
        if isinstance(pattern, Alternation):
            return self._node(*[self._build(part, after) for part in pattern.parts])
        assert isinstance(pattern, Quantified)
        return self._repeat(pattern, after)

    def _take(self, pattern: Variable, after: int) -> int:
        if len(self.variable_of) == PLACES_MAX:
            raise SchemaError(
                f"{self._owner}: pattern '{self.pattern}' has more than {PLACES_MAX} places, as each round of a "
                "counted quantifier has its own; use smaller numbers, or an unbounded quantifier and a condition"
            )
        node = self._node(after)
        self._place[node] = len(self.variable_of)
        self.variable_of.append(self.variables.index(pattern.name))
        return node

    def _repeat(self, pattern: Quantified, after: int) -> int:
        part, most = pattern.part, pattern.most
        if most is None:
            entry = self._node()
            self._round[entry] = self._build(part, entry)
            self._edges[entry] = self._either(self._round[entry], after, pattern.reluctant)
        else:
            entry = after
            for _ in range(most - pattern.least):
                entry = self._node(*self._either(self._build(part, entry), after, pattern.reluctant))
        for _ in range(pattern.least):
            entry = self._build(part, entry)
        return entry

    def _either(self, again: int, after: int, reluctant: bool) -> list[int]:
        return [after, again] if reluctant else [again, after]

    def _closure(self, node: int) -> tuple[int, ...]:
        """The places that can take the next row at ``node``; the first path to a place is the preferred one.

        A node is visited once for each set of rounds around it that have taken no row yet: these must not end.
        """
        found: dict[int, None] = {}
        seen: set[tuple[int, frozenset[int]]] = set()
        waiting = [(node, frozenset[int]())]
        while waiting:
            node, empty = waiting.pop()
            if node in empty or (node, empty) in seen:
                continue
            seen.add((node, empty))
            if node == self._end:
                return (*found, ACCEPT)
            if node in self._place:
                found[self._place[node]] = None
            else:
                begun = self._round.get(node)
                waiting += [
                    (more, empty | {node} if more == begun else empty) for more in reversed(self._edges[node])
                ]
        return tuple(found)


def check_end(automaton: Automaton, within: int | None, owner: str) -> None:
    """Raise SchemaError for a ``within`` (microseconds) of 0 or less, or for none where matches could go on forever."""
    if within is not None and within <= 0:
        raise SchemaError(
            f"{owner}: within is {within} microseconds; give a duration above 0, such as '1 hour'"
        )
    if within is None and automaton.endless:
        names = ", ".join(f"'{name}'" for name in sorted(automaton.endless))
        raise SchemaError(
            f"{owner}: pattern '{automaton.pattern}' ends with a greedy quantifier without bound ({names}), so a "
            "match could always go on; give within=..., a bound such as {1,10}, a reluctant quantifier (+?), or "
            "end with a variable that the next row must match"
        )
