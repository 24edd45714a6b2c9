"""What is due for many keys at once, read in parts of bounded size: rows of ordered inputs, and windows.

Owns: ``align_scans``, which reads several scans in parts with common boundaries; ``DueReader``, which reads windows in
order of time from one or several time-first states.
Invariant: all entries of one place, from all scans, are in one part; no scan is read further ahead of the others than
the size of a part. The parts of a ``DueReader`` are in order of window ends; each has every entry of its windows, or,
for one window that is too large for a part, of whole key groups.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import numpy as np

from asyncstate.codec import GROUP_BYTES
from asyncstate.operator import MIN_WATERMARK
from asyncstate.state.columnar.results import Entries, TimeRange

PART_ROWS = 1 << 19
"""The maximum number of entries in memory at a time."""
PART_BYTES = 1 << 26
"""The maximum number of bytes of their values: wide entries are fewer."""

_NOTHING = TimeRange([], np.empty(0, np.int64), [], [])
_SAFETY = 0.75  # a split aims at this share of a part, which leaves room for errors of the estimate
_BEHIND_ALL: Final = b"\xff\xff\xff"  # places begin with key groups, which are lower

Place = Callable[[bytes], bytes]
"""The place of a store key: entries that must stay in one part have one place, and places ascend as the keys of a scan
do."""

E = TypeVar("E", bound=Entries)
RowsMax = Callable[[E], int]


def rows_fitting(row_bytes: float, rows_max: int = PART_ROWS) -> int:
    """How many rows of ``row_bytes`` bytes fit in memory at a time, ``rows_max`` at most."""
    return min(rows_max, max(int(PART_BYTES / max(row_bytes, 1.0)), 1))


def align_scans(
    scans: Sequence[Iterator[E]], place: Place, nothing: E, rows_max: RowsMax[E]
) -> Iterator[tuple[E, ...]]:
    """Yield parts of all ``scans``, given as pages: one piece per scan, all of the same places.

    A part ends where one of the scans has ``rows_max`` rows (judged by a page); it has more only if one place has more.
    ``nothing``: the piece of a scan without entries. Entries of yielded parts may be removed from the store.
    """
    runs = [_Run(pages, place, nothing, rows_max) for pages in scans]
    boundary = b""
    while boundary != _BEHIND_ALL:
        # Read on only in the scan that limits the others, so that none runs ahead.
        boundary = min(run.boundary for run in runs)
        for run in runs:
            if run.boundary == boundary:
                run.read_on()
        boundary = min(run.boundary for run in runs)
        pieces = tuple(run.take_before(boundary) for run in runs)
        if any(piece.store_keys for piece in pieces):
            yield pieces


class _Run(Generic[E]):
    """The entries of one scan that are read and not taken yet.

    ``boundary``: all entries of the places before it are read.
    """

    def __init__(self, pages: Iterator[E], place: Place, nothing: E, rows_max: RowsMax[E]) -> None:
        self.boundary = b""
        self._pages = pages
        self._place = place
        self._nothing = nothing
        self._rows_max = rows_max
        self._least = 0  # for one place that exceeds a part, twice the rows read
        self._held: list[E] = []
        self._rows = 0

    def read_on(self) -> None:
        """Read until there are more rows than a part may have, or the scan ends."""
        for page in self._pages:
            self._held.append(page)
            self._rows += page.num_rows
            if self._rows > max(self._rows_max(page), self._least):
                self.boundary = self._place(page.store_keys[-1])
                return
        self.boundary = _BEHIND_ALL

    def take_before(self, boundary: bytes) -> E:
        """Remove and return the entries of the places before ``boundary``."""
        held = joined(self._held, self._nothing)
        cut = bisect_left(held.store_keys, boundary, key=self._place)
        self._held = [held.piece(cut, len(held.store_keys))]
        self._rows = self._held[0].num_rows
        self._least = 2 * self._rows
        return held.piece(0, cut)


def joined(parts: Sequence[E], nothing: E) -> E:
    """Consecutive entries as one; ``nothing`` if there are none."""
    return parts[0].followed_by(parts[1:]) if parts else nothing


@dataclass(frozen=True)
class DuePart:
    """The entries of the windows with first <= end <= last, a range for each state that is read."""

    first: int
    last: int
    ranges: tuple[TimeRange, ...]

    @property
    def entries(self) -> TimeRange:
        """The entries (m) of the first state."""
        return self.ranges[0]


class Ends(Protocol):
    """The methods of a window that the reader needs."""

    def next_end(self, time: int) -> int:
        """The first window end that is not before ``time``."""

    def previous_end(self, time: int) -> int:
        """The last window end that is not after ``time``."""

    def first_slice(self, ends: int) -> int:
        """The earliest namespace of the window with this end; the last one is the end itself."""


class TimeFirst(Protocol):
    """A state that is read by ranges of namespaces: ``ColumnState``, ``ListColumnState``."""

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[TimeRange]:
        """All entries with start <= namespace <= ``until``, by key group, namespace and key, page by page."""


class DueReader:
    """Reads a time-first state whose namespaces are window ends or slice ends, or several states at once, which are
    split at the same places.

    ``part_rows``: the rows of a part per state, fewer where they are wide; a single window and key group may have more.
    ``row_bytes``: the width of an entry's data that is stored elsewhere. The entries of a part may be removed before
    the next part is requested.
    """

    def __init__(
        self,
        states: TimeFirst | tuple[TimeFirst, ...],
        window: Ends,
        key_groups: range,
        part_rows: int = PART_ROWS,
        row_bytes: int = 0,
    ) -> None:
        self._states = states if isinstance(states, tuple) else (states,)
        self._window = window
        self._groups = key_groups
        self._rows_max = part_rows
        self._row_bytes = row_bytes

    def parts(self, before: int, until: int) -> Iterator[DuePart]:
        """The windows with before < end <= ``until``."""
        waiting = [(before + 1, self._window.previous_end(until))]  # earliest on top
        while waiting:
            first, last = waiting.pop()
            first = self._window.next_end(first)
            if first == last:
                yield from self._by_group(first)
            elif first < last:
                held, too_many = self._hold(first, last)
                if too_many is not None:
                    waiting += reversed(self._cut(first, last, too_many))
                elif any(entries.num_rows for entries in held):
                    yield DuePart(first, last, tuple(held))

    def _scan(self, state: TimeFirst, first: int, last: int) -> Iterator[TimeRange]:
        return state.up_to(last, max(self._window.first_slice(first), MIN_WATERMARK))

    def _hold(self, first: int, last: int) -> tuple[list[TimeRange], TimeRange | None]:
        """The entries of each state; where one has too many for a part, its first entries."""
        held: list[TimeRange] = []
        for state in self._states:
            pages: list[TimeRange] = []
            rows = 0
            for page in self._scan(state, first, last):
                pages.append(page)
                rows += page.num_rows
                if rows > self._fitting(page):
                    return held, joined(pages, _NOTHING)
            held.append(joined(pages, _NOTHING))
        return held, None

    def _fitting(self, entries: TimeRange) -> int:
        """The number of rows of a part, estimated from some of them."""
        return rows_fitting(max(entries.row_bytes, self._row_bytes), self._rows_max)

    def _cut(self, first: int, last: int, held: TimeRange) -> list[tuple[int, int]]:
        """Ranges of window ends to read one by one; ``held`` has the first entries."""
        ends = np.sort(np.maximum(held.row_namespaces, first))  # the first due window of each row
        lowest, highest = int(ends[0]), int(ends[-1])
        if lowest == highest:
            return [(first, lowest - 1), (lowest, lowest), (lowest + 1, last)]
        group = int.from_bytes(held.store_keys[-1][:GROUP_BYTES], "big")
        seen = (group - self._groups.start + 1) / len(self._groups)
        middle = int(ends[min(int(_SAFETY * self._fitting(held) * seen), len(ends) - 1)])
        middle = min(middle, int(ends[np.searchsorted(ends, highest) - 1]))
        return [(first, middle), (middle + 1, last)]

    def _by_group(self, end: int) -> Iterator[DuePart]:
        """One window, a run of whole key groups at a time: entries of a key are never in two parts."""
        scans = [self._scan(state, end, end) for state in self._states]
        for pieces in align_scans(scans, _group_of, _NOTHING, self._fitting):
            yield DuePart(end, end, pieces)


def _group_of(store_key: bytes) -> bytes:
    return store_key[:GROUP_BYTES]
