"""Removing expired entries from the store.

Owns: which key groups of a state with a ttl are swept in a micro-batch.
Invariant: between two sweeps of a key group less than half the ttl and one micro-batch pass, so an entry is gone that
long after it has expired. What is due follows from the times of this micro-batch and the one before alone: the same in
both modes, for every attempt and with any parallelism; nothing is stored for it.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from asyncstate.operator import MIN_WATERMARK
from asyncstate.runtime.context import TaskContext
from asyncstate.runtime.spec import TaskSpec
from asyncstate.state import StateTtl, TtlTime, time_of

_GROUP_BYTES: Final = 2
_PERIOD_MIN_US: Final = 1_000


def clean_up(spec: TaskSpec, context: TaskContext, removing: Callable[[int], None]) -> None:
    """Sweep what is due; the last thing before the commit, when no record is in flight any more.

    ``removing`` is told the number of entries that were removed, key group by key group.
    """
    if not context.expiring or spec.base is None:  # without a base nothing is older than this micro-batch
        return
    removed = context.counter("ttl_expired")
    for ttl, state in context.expiring:
        for group in _due_groups(spec, context, ttl):
            expired = state.sweep(group.to_bytes(_GROUP_BYTES, "big"))
            removed.add(expired)
            removing(expired)


def _due_groups(spec: TaskSpec, context: TaskContext, ttl: StateTtl) -> Iterator[int]:
    """The key groups whose turn has come since the micro-batch before: each has one in every half ttl."""
    now = time_of(ttl, context)
    event_time = ttl.time is TtlTime.EVENT
    before = spec.previous_watermark if event_time else spec.previous_processing_time
    if now == MIN_WATERMARK:
        return
    period = max(ttl.duration_us // 2, _PERIOD_MIN_US)
    for group in context.key_groups:
        turn = group * period // spec.max_parallelism  # spreads the groups over the period
        if before == MIN_WATERMARK or (now - turn) // period != (before - turn) // period:
            yield group
