"""Reading many ranges of the store as one ordered stream.

Owns: paging through ranges; reading everything up to a time (``up_to_time``), which is how due timers, buffered rows
and time-first states are read, either by key group or merged by time; removing the entries of pages; the store keys of
time-first states, ``[group][state id][namespace][key]``: the offset of the key, and reading namespaces from them.
Invariant: one page per range is in memory. Entries may be written and deleted meanwhile; those written before the
position that a range has reached are not found.
Must not import storage, execution or operators.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import GROUP_BYTES, STATE_PREFIX_BYTES, encode_namespace, prefix_end
from asyncstate.codec.key_fields import payload_storage
from asyncstate.codec.value_columns import Int64Array, binary_parts, gather_bytes
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.state_backend import Page, StateBackend

_AFTER: Final = b"\x00"

REMOVED_PAGE: Final = 256
"""Page size for entries that are read only to be removed: a chunk of rows may be large."""
_REMOVED_KEYS: Final = 1 << 16
"""Keys that are collected to be removed together."""

NAMESPACE_BYTES: Final = 8
TIME_FIRST_PREFIX_BYTES: Final = STATE_PREFIX_BYTES + NAMESPACE_BYTES
"""Length of the prefix before the key in a store key of a time-first state."""

Entry = tuple[bytes, bytes]


Range = tuple[bytes, bytes]
"""The store keys with start <= key < end."""


def up_to_time(prefix: bytes, groups: Iterable[int], until: int, start: int = MIN_WATERMARK) -> list[Range]:
    """For each key group, the entries ``[group][prefix][time: 8]...`` with start <= time <= ``until``.

    Time is any int64, such as a namespace, encoded as in ``encode_namespace``.
    """
    begin = prefix + encode_namespace(start)
    # No time is above the highest one; its entries are followed by those of the next prefix.
    end = prefix_end(prefix) if until >= MAX_WATERMARK else prefix + encode_namespace(until + 1)
    encoded = (group.to_bytes(GROUP_BYTES, "big") for group in groups)
    return [(group + begin, group + end) for group in encoded]


def ranges_with_entries(
    sink: StateBackend, ranges: Sequence[Range], page_size: int
) -> Iterator[Iterator[Page]]:
    """The pages of each of the ``ranges`` (ascending) that has entries.

    In a small store most key groups have none. So after an empty range the next key of the store, of whatever state,
    says how many further ones are empty; where that has skipped none, it is not asked again.
    """
    ends, number, skips = [end for _, end in ranges], 0, True
    assert ends == sorted(ends)
    while number < len(ranges):
        start, end = ranges[number]
        first = sink.scan(start, end, page_size)
        number += 1
        if first:
            yield _pages_from(sink, first, end, page_size)
        elif skips and number < len(ranges):
            following = sink.scan(end, ends[-1], 1)
            if not following:
                return
            other = bisect.bisect_right(ends, following[0][0], number)
            number, skips = other, other > number


def _pages_from(sink: StateBackend, first: Page, end: bytes, page_size: int) -> Iterator[Page]:
    yield first
    if len(first) >= page_size:
        yield from range_pages(sink, first[-1][0] + _AFTER, end, page_size)


def pages_by_group(sink: StateBackend, ranges: Sequence[Range], page_size: int) -> Iterator[Page]:
    """The entries of ``ranges`` (ascending), one range after the other, in lists of ``page_size`` entries or
    slightly more."""
    held: Page = []
    for pages in ranges_with_entries(sink, ranges, page_size):
        for page in pages:
            held += page
            if len(held) >= page_size:
                yield held
                held = []
    if held:
        yield held


def pages_by_time(
    sink: StateBackend,
    ranges: Sequence[Range],
    page_size: int,
    order: Callable[[Entry], Any],
    range_page_size: int,
) -> Iterator[Page]:
    """The entries of ``ranges`` (ascending) merged by ``order``, in lists of ``page_size``; each range must already
    be in this order, and has ``range_page_size`` entries in memory."""
    scans = map(chain.from_iterable, ranges_with_entries(sink, ranges, range_page_size))
    return pages_of(heapq.merge(*scans, key=order), page_size)


def range_entries(sink: StateBackend, start: bytes, end: bytes, page_size: int) -> Iterator[Entry]:
    """The entries with start <= key < end, ascending, read page by page."""
    for page in range_pages(sink, start, end, page_size):
        yield from page


def range_pages(sink: StateBackend, start: bytes, end: bytes, page_size: int) -> Iterator[Page]:
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

    Many at a time, because a scan after a deletion has to sort the written entries.
    """
    removed: list[bytes] = []
    for page in pages:
        removed += [key for key, _ in page]
        if len(removed) >= _REMOVED_KEYS:
            remove(removed)
            removed = []
    remove(removed)


def namespaces_of(store_keys: pa.LargeBinaryArray) -> Int64Array:
    """The namespaces of time-first store keys (m)."""
    offsets, data = binary_parts(store_keys)
    matrix = gather_bytes(data, offsets[:-1] + STATE_PREFIX_BYTES, NAMESPACE_BYTES)
    return payload_storage(matrix, np.dtype(np.int64))


def of_state(store_keys: Sequence[bytes], state_id: int) -> list[bytes]:
    """The corresponding store keys of another state, ``state_id``, that has the same keys."""
    state = bytes([state_id])
    return [key[:GROUP_BYTES] + state + key[STATE_PREFIX_BYTES:] for key in store_keys]
