"""How much of a state is stored: keys, entries, bytes.

Owns: ``StateSize`` and ``state_size``.
Invariant: counted from what is stored, no value is decoded.
Must not import storage, execution, operators or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from asyncstate.offline.inspect import TIMER_KIND, StateDecoder, StoredEntries
from asyncstate.state.ranges import pages_of
from asyncstate.state.timers import live_timers

_PAGE_ENTRIES = 4096


@dataclass(frozen=True)
class StateSize:
    """``keys`` that have an entry (None where the stored key does not tell: rows that wait in order, broadcast state);
    ``entries`` of the store, of which a list has several, or timers that are to fire; ``size_bytes`` of keys and
    values, before compression."""

    keys: int | None
    entries: int
    size_bytes: int


def state_size(
    decoder: StateDecoder, entries: StoredEntries, groups: range, broadcast: bool = True
) -> StateSize:
    """Count the state of ``decoder`` in the store of a partition that has these key groups."""
    count = size_bytes = 0
    keys: set[int] = set()  # hashes: a key may stand in many places of a state that is ordered by time
    for page in pages_of(decoder.stored(entries, groups, broadcast), _PAGE_ENTRIES):
        size_bytes += sum(len(key) + len(value) for key, value in page)
        if decoder.state.kind == TIMER_KIND:
            timers = live_timers(page, entries.get_many)
            count += len(timers)
            keys.update(xxhash.xxh3_64_intdigest(timer.key) for timer in timers)
        else:
            count += len(page)
            keys.update(map(xxhash.xxh3_64_intdigest, decoder.key_bytes([key for key, _ in page])))
    known = decoder.state.kind not in ("ordered", "broadcast")
    return StateSize(len(keys) if known else None, count, size_bytes)
