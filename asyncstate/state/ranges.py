"""Reading many ranges of the store as one ordered stream.

Owns: paging through ranges and merging them; timers and buffered rows are read this way. Removing what pages have.
Invariant: one page a range is held. Entries may be written and deleted meanwhile; those written behind the
position that a range has reached are not found.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final

from asyncstate.requests import Page, StateSink

_AFTER: Final = b"\x00"

REMOVED_PAGE: Final = 256
"""Entries that are read at a time only to be removed: a chunk of rows may be large."""
_REMOVED_KEYS: Final = 1 << 16
"""Keys that are held to be removed together."""

Entry = tuple[bytes, bytes]


def merged_entries(
    sink: StateSink, ranges: Iterable[tuple[bytes, bytes]], page_size: int, order: Callable[[Entry], Any]
) -> Iterator[Entry]:
    """The entries of all ``ranges`` (start, end) by ``order``, by which each range must be sorted already."""
    scans = [range_entries(sink, start, end, page_size) for start, end in ranges]
    return heapq.merge(*scans, key=order)


def range_entries(sink: StateSink, start: bytes, end: bytes, page_size: int) -> Iterator[Entry]:
    """The entries with start <= key < end, ascending, read page by page."""
    for page in range_pages(sink, start, end, page_size):
        yield from page


def range_pages(sink: StateSink, start: bytes, end: bytes, page_size: int) -> Iterator[Page]:
    """The same in lists of ``page_size`` entries, the last one shorter; none is empty."""
    while True:
        page = sink.scan(start, end, page_size)
        if page:
            yield page
        if len(page) < page_size:
            return
        start = page[-1][0] + _AFTER


def pages_of(entries: Iterator[Entry], page_size: int) -> Iterator[Page]:
    """``entries`` in lists of ``page_size``, the last one shorter."""
    while page := list(islice(entries, page_size)):
        yield page


def remove_pages(remove: Callable[[list[bytes]], object], pages: Iterable[Page]) -> None:
    """Give the store keys of all ``pages`` to ``remove``.

    Many at a time, because a walk that follows a deletion has to sort what was written.
    """
    removed: list[bytes] = []
    for page in pages:
        removed += [key for key, _ in page]
        if len(removed) >= _REMOVED_KEYS:
            remove(removed)
            removed = []
    remove(removed)
