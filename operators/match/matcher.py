"""Finding the matches of a key's rows.

Owns: ``Matcher``, ``Found``, and ``MatchSoFar``, what conditions that look back see.
Invariant: a match is given once no preferred one can come any more, and what is given does not depend on how many rows
came at a time. Memory of what has failed is kept only where no condition looks back.
Pure: must not know of Arrow, state or the engine.

A match is sought by depth first search over (row, place of the pattern), the preferred place first. The first way that
reaches the end of the pattern is the match. The first way that reaches the end of the rows, while more could come,
leaves the start undecided: nothing behind it would be preferred. So a start is decided by the same row however rows
are cut.

Source: ISO/IEC 19075-5; WITHIN as in Flink's ``NFA``: last minus first time is less than it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from asyncstate.errors import OperatorError
from asyncstate.operator import MAX_WATERMARK, Row

from .automaton import ACCEPT, Automaton

NEVER: Final = MAX_WATERMARK
"""The time at which rows that nothing bounds are out of time: the end of the input (microseconds)."""

_UNDECIDED: Final = object()
_NO_MORE: Final = -2


@dataclass(frozen=True, repr=False)
class Skip:
    """Where the next match may begin, behind one that was found; ``variable`` of the two that name one."""

    to: Literal["past last row", "next row", "first", "last"]
    variable: str | None = None

    @property
    def text(self) -> str:
        """As SQL says it."""
        if self.variable is None:
            return f"skip {'past last row' if self.to == 'past last row' else 'to next row'}"
        return f"skip to {self.to} {self.variable}"

    def __repr__(self) -> str:
        if self.variable is None:
            return "skip_past_last()" if self.to == "past last row" else "skip_to_next()"
        return f"skip_to_{self.to}({self.variable!r})"


def skip_past_last() -> Skip:
    """Behind the last row of the match: no row is in two matches."""
    return Skip("past last row")


def skip_to_next() -> Skip:
    """At the row behind the first one of the match."""
    return Skip("next row")


def skip_to_first(variable: str) -> Skip:
    """At the first row of the match that was taken as ``variable``."""
    return Skip("first", variable)


def skip_to_last(variable: str) -> Skip:
    """At the last row of the match that was taken as ``variable``."""
    return Skip("last", variable)


class Found(NamedTuple):
    """A match: its first row, the variable (index) of each of its rows, and the time at which it was certain: that of
    the last row that was looked at for it, or the end of ``within``."""

    first: int
    variables: list[int]
    decided: int


class MatchSoFar(Sequence[Row]):
    """The rows that a match has so far, in their order, while a condition looks at the next one.

    A sequence of rows: ``match[-1]`` is the row before the one at hand, ``len(match)`` is 0 for the first. Good only
    during the call.
    """

    __slots__ = ("_first", "_path", "_rows", "_search")

    def __init__(self, search: Matcher, rows: Sequence[Row], first: int, path: list[int]) -> None:
        self._search = search
        self._rows = rows
        self._first = first
        self._path = path

    def __len__(self) -> int:
        return len(self._path)

    def __getitem__(self, index: Any) -> Any:
        number = range(self._first, self._first + len(self._path))[index]
        return [self._rows[one] for one in number] if isinstance(number, range) else self._rows[number]

    def rows(self, variable: str | None = None) -> list[Row]:
        """The rows that were taken as ``variable``; all of them without one."""
        if variable is None:
            return list(self)
        return [self._rows[index] for index in self._indices(variable)]

    def first(self, variable: str | None = None, offset: int = 0) -> Row | None:
        """The first row of ``variable`` (of all), or the one ``offset`` rows of it later; None if there is none."""
        return self._nth(self._indices(variable), offset)

    def last(self, variable: str | None = None, offset: int = 0) -> Row | None:
        """The last row of ``variable`` (of all), or the one ``offset`` rows of it earlier; None if there is none."""
        return self._nth(self._indices(variable, backwards=True), offset)

    def prev(self, offset: int = 1) -> Row | None:
        """The row ``offset`` rows before the one at hand; None if the match begins behind it."""
        return self.last(None, offset - 1)

    @property
    def variables(self) -> list[str]:
        """The variable that each row was taken as."""
        return [self._search.name_of(place) for place in self._path]

    def _indices(self, variable: str | None, backwards: bool = False) -> Iterator[int]:
        steps = range(len(self._path))
        places = None if variable is None else self._search.places_of(variable)
        for step in reversed(steps) if backwards else steps:
            if places is None or self._path[step] in places:
                yield self._first + step

    def _nth(self, indices: Iterator[int], offset: int) -> Row | None:
        for number, index in enumerate(indices):
            if number == offset:
                return self._rows[index]
        return None


Looking = Callable[[Row, MatchSoFar], Any]
"""A condition that looks back: of the row at hand and the match so far."""


class KeyRows(NamedTuple):
    """Rows in their order, those of a key one behind the other: the bits of the variables whose conditions each meets,
    as far as these look at nothing but the row; their times (microseconds); and the rows, where conditions look
    back."""

    masks: Sequence[int]
    times: Sequence[int]
    rows: Sequence[Row]


class Matcher:
    """Seeks the matches of ``automaton``, whose first and last row are less than ``within`` microseconds apart.

    ``looking``: the conditions that look back, by the index of their variable; all of one must be met. ``budget``: how
    often rows may be tried as variables in the search from one row, where nothing that failed can be remembered.
    """

    def __init__(
        self,
        automaton: Automaton,
        skip: Skip,
        within: int | None,
        looking: Mapping[int, Sequence[Looking]],
        budget: int,
        owner: str,
    ) -> None:
        self._automaton = automaton
        self._skip = skip
        self._within = within
        self._budget = budget
        self._owner = owner
        self._looking = [looking.get(variable, ()) for variable in automaton.variable_of]
        self._places = len(automaton.variable_of)
        self._accepts = [follow[-1] == ACCEPT for follow in automaton.follow]
        self._ends = [follow[0] == ACCEPT for follow in automaton.follow]
        self._bits = [1 << variable for variable in automaton.variable_of]
        self._first: dict[int, tuple[int, ...]] = {}
        self._next: list[dict[int, tuple[int, ...]]] = [{} for _ in automaton.follow]
        looks = {place for place, conditions in enumerate(self._looking) if conditions}
        self._forgets = [bool(looks & automaton.reach((place,))) for place in range(self._places)]
        self._target = None if skip.variable is None else automaton.variables.index(skip.variable)

    @property
    def start_mask(self) -> int:
        """The bits of the variables that can take the first row."""
        return sum({self._bits[place] for place in self._automaton.start})

    def deadline(self, time: int) -> int:
        """When no row can belong any more to a match that begins at ``time``."""
        return NEVER if self._within is None else min(time + self._within, NEVER)

    def name_of(self, place: int) -> str:
        """The variable of a place."""
        return self._automaton.variables[self._automaton.variable_of[place]]

    def places_of(self, variable: str) -> set[int]:
        """The places of a variable. OperatorError if the pattern has none."""
        if variable not in self._automaton.variables:
            raise OperatorError(
                f"{self._owner}: a condition asks for the rows of '{variable}', but pattern "
                f"'{self._automaton.pattern}' has no such variable; its variables are: "
                f"{', '.join(self._automaton.variables)}"
            )
        return self._automaton.places_of(variable)

    def run(self, given: KeyRows, start: int, stop: int, horizon: int, found: list[Found]) -> int:
        """Append the matches of the rows from ``start`` to ``stop``, which are of one key, to ``found``; the first row
        that is still needed is returned, ``stop`` if none is. Further rows have times from ``horizon`` on."""
        masks, times, begins = given.masks, given.times, self.start_mask
        search = _Search(self, given, stop, horizon)
        decided = -NEVER
        while start < stop:
            if not masks[start] & begins:
                decided = max(decided, times[start])
                start += 1
                continue
            path = search.run(start)
            if path is _UNDECIDED:
                break
            decided = max(decided, search.decided)
            if path is None:
                start += 1
            else:
                variables = [self._automaton.variable_of[place] for place in path]
                found.append(Found(start, variables, decided))
                start += self._skipped(variables)
        return start

    def _skipped(self, variables: list[int]) -> int:
        """How many rows behind its first one the next match may begin."""
        if self._skip.to == "past last row":
            return len(variables)
        if self._skip.to == "next row":
            return 1
        if self._target not in variables:
            raise OperatorError(
                f"{self._owner}: {self._skip.text}: a match of pattern '{self._automaton.pattern}' has no row of "
                f"'{self._skip.variable}'; skip to a variable that every match has, or with skip_to_next()"
            )
        skipped = variables.index(self._target)
        if self._skip.to == "last":
            skipped = len(variables) - 1 - variables[::-1].index(self._target)
        if skipped == 0:
            raise OperatorError(
                f"{self._owner}: {self._skip.text}: that is the first row of a match of pattern "
                f"'{self._automaton.pattern}', so the same match would be found for ever; use skip_to_next()"
            )
        return skipped

    # -- what a search asks for ----------------------------------------------------------------------------------

    def first_places(self, mask: int) -> tuple[int, ...]:
        """The places that can take a first row with ``mask``, the preferred first."""
        return _of_mask(self._first, mask, self._automaton.start, self._bits)

    def next_places(self, place: int, mask: int) -> tuple[int, ...]:
        """Those that can take a row with ``mask`` behind ``place``, and ``ACCEPT`` last."""
        return _of_mask(self._next[place], mask, self._automaton.follow[place], self._bits)


def _of_mask(
    known: dict[int, tuple[int, ...]], mask: int, places: tuple[int, ...], bits: list[int]
) -> tuple[int, ...]:
    chosen = known.get(mask)
    if chosen is None:
        chosen = tuple([place for place in places if place == ACCEPT or mask & bits[place]])
        known[mask] = chosen
    return chosen


class _Search:
    """Searches from one row after the other of a key; what failed is remembered from one to the next."""

    def __init__(self, matcher: Matcher, given: KeyRows, stop: int, horizon: int) -> None:
        self._matcher = matcher
        self._given = given
        self._stop = stop
        self._horizon = horizon
        self._failed: set[int] = set()
        self.decided = 0

    def run(self, start: int) -> Any:
        """The places of the preferred match that begins at ``start``, None if there is none, or ``_UNDECIDED``."""
        matcher = self._matcher
        masks, times = self._given.masks, self._given.times
        looking, forgets, places = matcher._looking, matcher._forgets, matcher._places
        failed, stop = self._failed, self._stop
        deadline = matcher.deadline(times[start])
        path: list[int] = []
        so_far = MatchSoFar(matcher, self._given.rows, start, path)
        furthest, cut, tries = start, False, 0
        row = start  # the one that the ways on top of the stack take
        ways = [iter(matcher.first_places(masks[start]))]
        result: Any = None
        while ways:
            place = next(ways[-1], _NO_MORE)
            if place == ACCEPT:
                result = path
                break
            if place == _NO_MORE:
                ways.pop()
                if path:
                    row -= 1
                    place = path.pop()
                    if not forgets[place]:
                        failed.add(row * places + place)
                continue
            if forgets[place]:
                tries += 1
                if tries > matcher._budget:
                    raise self._over_budget(start)
                if looking[place] and not self._meets(place, row, so_far):
                    continue
            elif row * places + place in failed:
                continue
            path.append(place)
            row += 1
            if matcher._ends[place]:
                result = path
                break
            if row < stop and times[row] < deadline:
                furthest = max(furthest, row)
                ways.append(iter(matcher.next_places(place, masks[row])))
            elif row == stop and self._horizon < deadline:
                return _UNDECIDED
            elif matcher._accepts[place]:
                cut, result = True, path
                break
            else:
                cut = True
                ways.append(iter(()))
        self._conclude(times[furthest], deadline if cut else None)
        return result

    def _conclude(self, furthest: int, deadline: int | None) -> None:
        """``deadline``: the end of ``within``, if something failed because of it: it may not for a later start."""
        self.decided = furthest
        if deadline is not None:
            self._failed.clear()
            if deadline < NEVER:
                self.decided = deadline

    def _meets(self, place: int, row: int, so_far: MatchSoFar) -> bool:
        current = self._given.rows[row]
        return all(condition(current, so_far) for condition in self._matcher._looking[place])

    def _over_budget(self, start: int) -> OperatorError:
        matcher = self._matcher
        return OperatorError(
            f"{matcher._owner}: pattern '{matcher._automaton.pattern}' has tried rows as variables {matcher._budget} "
            f"times for the match that begins at row {self._given.rows[start]!r}; what has failed cannot be "
            "remembered where conditions look back. Let fewer variables take the same row, bound quantifiers or "
            "give within=..., put what looks at the row alone into an expression, or raise budget="
        )
