"""Finding the matches of a key's rows.

Owns: ``Matcher`` and ``Found``.
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

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from asyncstate.errors import OperatorError
from asyncstate.operator import MAX_WATERMARK, Row

from .automaton import ACCEPT, Automaton
from .skips import Skip
from .so_far import Looking, MatchSoFar

NEVER: Final = MAX_WATERMARK
"""The time at which rows that nothing bounds are out of time: the end of the input (microseconds)."""

_UNDECIDED: Final = object()
_NO_MORE: Final = -2


class Found(NamedTuple):
    """A match: its first row, the variable (index) of each of its rows, and the time at which it was certain: that of
    the last row that was looked at for it, or the end of ``within``."""

    first: int
    variables: list[int]
    decided: int


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

    @property
    def start_mask(self) -> int:
        """The bits of the variables that can take the first row."""
        return sum({self._bits[place] for place in self._automaton.start})

    def deadline(self, time: int) -> int:
        """When no row can belong any more to a match that begins at ``time``."""
        return NEVER if self._within is None else min(time + self._within, NEVER)

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
                start += self._skip.rows(variables, self._automaton, self._owner)
        return start

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
        so_far = MatchSoFar(matcher._automaton, matcher._owner, self._given.rows, start, path)
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
