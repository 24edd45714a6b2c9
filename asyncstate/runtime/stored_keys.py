"""The keys of a partition that have state.

Owns: ``StoredKey`` and ``stored_keys``.
Invariant: each key comes once, in the order of the store, this batch's writes among them; what is written to a
key that has come does not bring it back.
Must not import Spark, storage or execution.

Reading every entry would cost as much as the state is large, and a key may have a map of a million entries. So
pages are short where a key has many entries, and a page that ends inside a key's entries is followed by a jump
behind them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from asyncstate.codec import BROADCAST_GROUP, KeyCodec, prefix_end
from asyncstate.requests import StateSink

_GROUP_BYTES: Final = 2
_FIRST_PAGE: Final = 16


class StoredKey(NamedTuple):
    """A key with state: its group and bytes as in a KeyContext, and the values of its columns."""

    group: bytes
    encoded_key: bytes
    values: tuple[Any, ...]


def stored_keys(
    sink: StateSink, state_ids: Sequence[int], groups: range, codec: KeyCodec, page_size: int
) -> Iterator[StoredKey]:
    """The keys in ``groups`` that have an entry of one of the states, each once.

    The keys' own state may be written and deleted meanwhile. ``page_size`` bounds the entries read at a time.
    """
    for group in _groups_with_entries(sink, groups):
        of_states = [
            _keys_below(sink, group + bytes([state_id]), codec, page_size) for state_id in sorted(state_ids)
        ]
        last: bytes | None = None
        for key, values in heapq.merge(*of_states, key=_encoded):
            if key != last:
                last = key
                yield StoredKey(group, key, values)


def _groups_with_entries(sink: StateSink, groups: Iterable[int]) -> Iterator[bytes]:
    """The groups that hold anything at all; a run of empty ones costs one scan."""
    reached = b""
    for number in groups:
        group = number.to_bytes(_GROUP_BYTES, "big")
        if group < reached:
            continue
        if group > reached:
            page = sink.scan(group, BROADCAST_GROUP, 1)
            if not page:
                return
            reached = page[0][0][:_GROUP_BYTES]
        if group == reached:
            yield group


def _keys_below(
    sink: StateSink, prefix: bytes, codec: KeyCodec, page_size: int
) -> Iterator[tuple[bytes, tuple[Any, ...]]]:
    """The keys of one state in one group, ascending."""
    start, end, skip = prefix, prefix_end(prefix), len(prefix)
    limit = min(_FIRST_PAGE, page_size)
    while True:
        page = sink.scan(start, end, limit)
        found = 0
        last = b""
        for entry, _ in page:
            if last and entry.startswith(last):
                continue
            values, key_end = codec.decode_one(entry, skip)
            last = entry[:key_end]
            found += 1
            yield last[skip:], values
        if len(page) < limit:
            return
        start = prefix_end(last)
        limit = min(2 * limit, page_size) if found == limit else found


def _encoded(key: tuple[bytes, tuple[Any, ...]]) -> bytes:
    return key[0]
