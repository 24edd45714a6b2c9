"""Aligned reading of several ordered scans, in parts with common boundaries.

Owns: ``align_scans``.
Invariant: all entries of one place, from all scans, are in one part; no scan is read further ahead of the others than
the size of a part.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from asyncstate.state.columnar.results import Entries

Place = Callable[[bytes], bytes]
"""The place of a store key: entries that must stay in one part have one place, and places ascend as the keys of a scan
do."""

_BEHIND_ALL: Final = b"\xff\xff\xff"  # places begin with key groups, which are lower


E = TypeVar("E", bound=Entries)
RowsMax = Callable[[E], int]


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
