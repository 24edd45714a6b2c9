"""Ranges of namespaces in time-first states, whose store keys are ``[group][state id][namespace][key]``.

Owns: where the key begins in them, how a range of namespaces is walked, and how namespaces are read from store keys.
Invariant: a walk goes by key group, then namespace, then key; entries may be written or removed between its pages.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import encode_namespace
from asyncstate.codec.columns import Int64Array, binary_parts, gather_bytes
from asyncstate.codec.key_fields import payload_storage
from asyncstate.operator import MAX_WATERMARK
from asyncstate.requests import Page, StateSink
from asyncstate.state.ranges import range_pages

_GROUP_BYTES: Final = 2
_PREFIX_BYTES: Final = _GROUP_BYTES + 1  # group and state id
_NAMESPACE_BYTES: Final = 8
TIME_FIRST_PREFIX_BYTES: Final = _PREFIX_BYTES + _NAMESPACE_BYTES
"""What stands before the key in a store key of a time-first state."""


def namespace_pages(
    sink: StateSink, state_id: int, groups: Iterable[int], start: int, until: int, page_size: int
) -> Iterator[Page]:
    """All entries with start <= namespace <= ``until``, in lists of ``page_size`` entries or somewhat more."""
    held: Page = []
    for group in groups:
        group_bytes = group.to_bytes(_GROUP_BYTES, "big")
        prefix = group_bytes + bytes([state_id])
        # No namespace is above the highest; what follows its keys is the next state.
        end = group_bytes + bytes([state_id + 1])
        if until < MAX_WATERMARK:
            end = prefix + encode_namespace(until + 1)
        for page in range_pages(sink, prefix + encode_namespace(start), end, page_size):
            held += page
            if len(held) >= page_size:
                yield held
                held = []
    if held:
        yield held


def namespaces_of(store_keys: pa.LargeBinaryArray) -> Int64Array:
    """The namespaces of time-first store keys (m)."""
    offsets, data = binary_parts(store_keys)
    matrix = gather_bytes(data, offsets[:-1] + _PREFIX_BYTES, _NAMESPACE_BYTES)
    return payload_storage(matrix, np.dtype(np.int64))


def of_state(store_keys: Sequence[bytes], state_id: int) -> list[bytes]:
    """The store keys of another state, ``state_id``, that has the same keys."""
    state = bytes([state_id])
    return [key[:_GROUP_BYTES] + state + key[_PREFIX_BYTES:] for key in store_keys]
