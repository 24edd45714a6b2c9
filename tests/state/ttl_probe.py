"""An operator with a state of every kind, all with the same time to live, and a harness that keeps its time.

Owns: ``Probe`` and ``Bench``.
Invariant: ``Bench`` means the same by a time in both domains: the micro-batch's processing time, or its watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Self

import pyarrow as pa

from asyncstate import (
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    StateFuture,
    StateTtl,
    ValueStateDescriptor,
    combine_all,
    to_iterable,
)
from asyncstate.clock import ManualClock
from asyncstate.testing import OperatorHarness

INPUT = pa.schema([
    ("key", pa.int64()),
    ("time", pa.timestamp("us", tz="UTC")),
    ("op", pa.string()),
    ("number", pa.int64()),
])  # fmt: skip
MS = 1_000
NOTHING: tuple[Any, ...] = ("+I", None, [], [], None, [])


def add(a: int, b: int) -> int:
    return a + b


class Probe(RecordOperator):
    """``put`` a number into every state, ``read`` them all, or do ``nothing``."""

    def __init__(self, ttl: StateTtl | None) -> None:
        self.ttl = ttl

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        numbers = pa.list_(pa.int64())
        return pa.schema([
            ("value", pa.int64()),
            ("elements", numbers),
            ("keys", numbers),
            ("total", pa.int64()),
            ("windows", numbers),
        ])  # fmt: skip

    def open(self, context: OperatorContext) -> None:
        ttl = self.ttl
        value: ValueStateDescriptor[int] = ValueStateDescriptor("value", int, ttl=ttl)
        elements: ListStateDescriptor[int] = ListStateDescriptor("elements", int, ttl=ttl)
        entries: MapStateDescriptor[int, int] = MapStateDescriptor("entries", int, int, ttl=ttl)
        self.value = context.get_state(value)
        self.elements = context.get_state(elements)
        self.entries = context.get_state(entries)
        self.total = context.get_state(ReducingStateDescriptor("total", add, int, ttl=ttl))
        windows: Any = MapStateDescriptor("windows", int, pickled=True, namespaced=True, ttl=ttl)
        self.windows = context.get_state(windows)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if row.op == "put":
            return self.put(row.number)
        if row.op == "read":
            return self.read().then_accept(lambda found: ctx.emit(*found))
        return None

    def put(self, number: int) -> Any:
        self.value.async_update(number)
        self.entries.async_put(number, -number)
        self.windows.at(number % 2).async_put(number, {number})
        self.total.async_add(number)
        return self.elements.async_add(number)

    def read(self) -> StateFuture[list[Any]]:
        windows = [to_iterable(self.windows.at(namespace).async_keys()) for namespace in (0, 1)]
        return combine_all([
            self.value.async_value(),
            to_iterable(self.elements.async_get()),
            to_iterable(self.entries.async_keys()),
            self.total.async_get(),
            combine_all(windows).then_apply(lambda pages: sorted(chain(*pages))),
        ])  # fmt: skip


class Bench:
    """A harness whose micro-batches are ended at given times, in milliseconds, in the domain of the ttl."""

    def __init__(self, operator: RecordOperator, domain: str, **options: Any) -> None:
        given = {"event_time": "time", "options": {"async-state.iterate-response-batch-size": "2"}, **options}
        self.harness = OperatorHarness(operator, INPUT, ["key"], **given)
        self.domain = domain

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.harness.close()

    def batch(self, time: int, *ops: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Rows ``(op, number, key)``, of which the last two may be left out, in a micro-batch at ``time``."""
        self.go_to(time)
        rows = [(*op, *(0, 1)[len(op) - 1 :]) for op in ops]
        self.harness.push([(key, time * MS, op, number) for op, number, key in rows])
        return self.harness.end_batch()

    def restored(self, **changes: Any) -> Self:
        """The same over a copy of the checkpoint."""
        bench = type(self).__new__(type(self))
        bench.domain = self.domain
        clock = ManualClock(self.harness.clock.now_us())
        bench.harness = self.harness.restore(self.harness.snapshot(), **{"clock": clock, **changes})
        return bench

    @property
    def entries(self) -> dict[bytes, bytes]:
        return self.harness.state_entries()

    @property
    def expired(self) -> float:
        """Entries that the clean-up removed in the last micro-batch."""
        return self.harness.statistics().get("counter.ttl_expired", 0)

    def go_to(self, time: int) -> None:
        """The time of the running micro-batch."""
        if self.domain == "event":
            self.harness.advance_watermark(time * MS)
        else:
            self.harness.advance_processing_time(time * MS - self.harness.clock.now_us())
