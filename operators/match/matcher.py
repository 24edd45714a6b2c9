"""The search for the matches of a key's rows.

Owns: ``Matcher`` and ``FoundMatch``.
Invariant: a match is returned once no preferred one can come any more, and the result does not depend on how many rows
arrive at a time. All starts share the memo of the search only where no condition looks back.
Pure: must not know of Arrow, state or the engine.

The search for a match is depth-first over (row, place of the pattern), the preferred place first. The first path that
reaches the end of the pattern is the match. The first path that reaches the end of the rows, while more could come,
leaves the start undecided: no later path would be preferred. So the same row decides a start, however rows are cut into
bundles.

Source: ISO/IEC 19075-5; WITHIN as in Flink's ``NFA``: last minus first time is less than it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from asyncstate.errors import OperatorError
from asyncstate.operator import MAX_WATERMARK, Row

from .automaton import ACCEPT, Automaton
from .partial_match import Looking, MatchSoFar
from .skips import Skip

NEVER: Final = MAX_WATERMARK
"""The deadline of rows that nothing bounds: the end of the input (microseconds)."""

_UNDECIDED: Final = object()
_NO_MORE: Final = -2
_ANY: Final = sys.maxsize
"""After all rows."""
_FAILS: Final = (_ANY, _ANY, -1)


class FoundMatch(NamedTuple):
    """A match: its first row, the variable (index) of each of its rows, and the time at which it was certain: that of
    the last row that the search read for it, or the end of ``within``."""

    first: int
    variables: list[int]
    decided: int


class KeyRows(NamedTuple):
    """Rows in order, those of a key contiguous: the bits of the variables whose conditions each row meets, as far as
    these read only the row; their times (microseconds); and the rows, where conditions look back."""

    masks: Sequence[int]
    times: Sequence[int]
    rows: Sequence[Row]


class Matcher:
    """Finds the matches of ``automaton``, whose first and last row are less than ``within`` microseconds apart.

    ``looking``: the conditions that look back, by the index of their variable; all those of a variable must be met.
    ``budget``: how often rows may be tried as variables in the search from one row, where failures cannot be
    remembered.
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
        self.dropped = 0
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
        """The time from which on no row can belong to a match that begins at ``time``."""
        return NEVER if self._within is None else min(time + self._within, NEVER)

    def run(self, given: KeyRows, start: int, stop: int, horizon: int, found: list[FoundMatch]) -> int:
        """Append the matches of the rows from ``start`` to ``stop``, which are of one key, to ``found``. Return the
        first row that is still needed, ``stop`` if none is. Further rows have times from ``horizon`` on.

        A match that has no row to skip to but its first one would be found forever: it is counted in ``dropped``, and
        the next one may begin with the row after its first."""
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
                skipped = self._skip.rows(variables, self._automaton)
                if skipped:
                    found.append(FoundMatch(start, variables, decided))
                else:
                    self.dropped += 1
                start += skipped or 1
        return start

    # -- lookups of a search -------------------------------------------------------------------------------------

    def first_places(self, mask: int) -> tuple[int, ...]:
        """The places that can take a first row with ``mask``, the preferred first."""
        return _of_mask(self._first, mask, self._automaton.start, self._bits)

    def next_places(self, place: int, mask: int) -> tuple[int, ...]:
        """The places that can take a row with ``mask`` after ``place``, and ``ACCEPT`` last."""
        return _of_mask(self._next[place], mask, self._automaton.follow[place], self._bits)


def _suffices(known: tuple[int, int, int] | None, limit: int) -> bool:
    return known is not None and (known[0] >= limit or known[1] != _ANY)


def _of_mask(
    known: dict[int, tuple[int, ...]], mask: int, places: tuple[int, ...], bits: list[int]
) -> tuple[int, ...]:
    chosen = known.get(mask)
    if chosen is None:
        chosen = tuple([place for place in places if place == ACCEPT or mask & bits[place]])
        known[mask] = chosen
    return chosen


class _Search:
    """Searches from the rows of a key, one after the other.

    ``_known`` is the memo of the paths that follow a state, which is a row taken at a place: ``(limit, end, reach)``.
    The first of these paths that ends does so at the row ``end``; with ``_ANY`` there is none whose rows are all before
    ``limit``. No path needs a row after ``reach``. States after which conditions look back are never in the memo.

    A search that fails leaves in the memo what it has tried; ``decided``, which the caller only raises, covers what it
    read. Where it failed because of ``within``, that is not enough for the next start, whose end is later: a state that
    is requested again is searched twice as far as needed. So it is searched again only for a start that has moved as
    far, and all starts together take a few steps per row and place.
    """

    def __init__(self, matcher: Matcher, given: KeyRows, stop: int, horizon: int) -> None:
        self._matcher = matcher
        self._given = given
        self._stop = stop
        self._horizon = horizon
        self._known: dict[int, tuple[int, int, int]] = {}
        self.decided = 0

    def run(self, start: int) -> Any:
        """The places of the preferred match that begins at ``start``, None if there is none, or ``_UNDECIDED``."""
        matcher = self._matcher
        masks, times = self._given.masks, self._given.times
        looking, forgets, places = matcher._looking, matcher._forgets, matcher._places
        known, stop = self._known, self._stop
        deadline = matcher.deadline(times[start])
        limit = stop if deadline == NEVER else bisect_left(times, deadline, start, stop)
        more = limit == stop and self._horizon < deadline  # rows of this match may still come
        path: list[int] = []
        so_far = MatchSoFar(matcher._automaton, matcher._owner, self._given.rows, start, path)
        tries = 0
        row = start  # the row that the paths on top of the stack take
        ways = [iter(matcher.first_places(masks[start]))]
        reach = start  # the last row that a path needed
        late = 0  # how many states on the path are followed by a path that needed a row from limit on
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
                    if len(path) < late:
                        late -= 1
                        if not forgets[place]:
                            known[row * places + place] = (limit, _ANY, limit)
                    elif not forgets[place]:
                        known[row * places + place] = _FAILS
                continue
            if forgets[place]:
                tries += 1
                if tries > matcher._budget:
                    raise self._over_budget(start)
                if looking[place] and not self._meets(place, row, so_far):
                    continue
            else:
                found = known.get(row * places + place)
                if found is _FAILS:
                    continue
                if found is not None:
                    if not _suffices(found, limit):
                        found = self._look_ahead(row * places + place, min(stop, limit + limit - start))
                    if found[1] >= limit and not (more and found[2] == stop):
                        reach = max(reach, min(found[2], limit))
                        late = len(path) if found[2] >= limit else late
                        continue
            path.append(place)
            row += 1
            if matcher._ends[place]:
                result = path
                break
            if row > reach:
                reach = row
            if row < limit:
                ways.append(iter(matcher.next_places(place, masks[row])))
            elif more:
                return _UNDECIDED
            elif matcher._accepts[place]:
                result = path
                break
            else:
                late = len(path)
                ways.append(iter(()))
        self._conclude(reach, limit, deadline)
        return result

    def _look_ahead(self, state: int, limit: int) -> tuple[int, int, int]:
        """The memo of ``state`` after following all paths from it, at most up to the row ``limit``."""
        matcher, masks, known = self._matcher, self._given.masks, self._known
        places = matcher._places
        first, place = divmod(state, places)
        unknown = [{place}]  # for each row from the first one on, the places whose paths to follow
        while unknown[-1] and first + len(unknown) < limit:
            row = first + len(unknown)
            mask = masks[row]
            after = {
                one
                for place in unknown[-1]
                if not matcher._accepts[place]
                for one in matcher.next_places(place, mask)
            }
            unknown.append({one for one in after if not _suffices(known.get(row * places + one), limit)})
        for row in range(first + len(unknown) - 1, first - 1, -1):
            for place in unknown[row - first]:
                known[row * places + place] = self._memo_of(row, place, limit)
        return known[state]

    def _memo_of(self, row: int, place: int, limit: int) -> tuple[int, int, int]:
        """The memo of a state, from the memos of all states that can follow it before ``limit``."""
        matcher = self._matcher
        if matcher._accepts[place]:
            return _ANY, row, row
        row += 1
        if row == limit:
            return limit, _ANY, limit
        end, reach = _ANY, row
        for one in matcher.next_places(place, self._given.masks[row]):
            _, its_end, its_reach = self._known[row * matcher._places + one]
            end, reach = min(end, its_end), max(reach, its_reach)
        if end < limit:
            return _ANY, end, reach
        return (_ANY if reach < limit else limit), _ANY, reach

    def _conclude(self, reach: int, limit: int, deadline: int) -> None:
        """Set ``decided``. ``reach``: the last row that a path needed; a row from ``limit`` on comes too late."""
        if reach >= limit and deadline < NEVER:
            self.decided = deadline
        else:
            self.decided = self._given.times[min(reach, limit - 1)]

    def _meets(self, place: int, row: int, so_far: MatchSoFar) -> bool:
        current = self._given.rows[row]
        return all(condition(current, so_far) for condition in self._matcher._looking[place])

    def _over_budget(self, start: int) -> OperatorError:
        matcher = self._matcher
        return OperatorError(
            f"{matcher._owner}: pattern '{matcher._automaton.pattern}' has tried rows as variables {matcher._budget} "
            f"times for the match that begins at row {self._given.rows[start]!r}; failed attempts cannot be cached "
            "where conditions look back. Let fewer variables match the same row, bound quantifiers, give within=..., "
            "move conditions on the row alone into an expression, or raise budget="
        )
