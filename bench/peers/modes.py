"""Every built-in operator on state in memory: what async mode costs or gains where nothing waits.

Owns: ``Case`` and ``CASES``.
Invariant: a case's micro-batches are a function of their number; both modes get the same ones.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.functions import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
)
from asyncstate.operator import InputSpec, Operator, OperatorContext
from asyncstate.state import ValueStateDescriptor
from operators import (
    CoProcess,
    Deduplicate,
    GroupAggregate,
    IntervalJoin,
    Join,
    KeyedMap,
    KeyedProcess,
    KeyedReduce,
    Rank,
    WindowAggregate,
    WindowProcess,
    count,
    cumulate,
    hop,
    max_,
    session,
    sum_,
    tumble,
)

_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
_OUT = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_SPAN_US = 20_000_000
_BASE_US = 1_600_000_000_000_000


@dataclass(frozen=True)
class Case:
    """One operator. ``inputs`` get the same rows each; ``share`` of them, for those that are dear.

    The state has as small a share of its keys, unless ``keys_share`` says otherwise.
    """

    make: Callable[[], Operator]
    inputs: int = 1
    event_time: bool = False
    share: float = 1.0
    keys_share: float | None = None

    @property
    def specs(self) -> list[InputSpec]:
        """What the operator is told of its inputs."""
        return [InputSpec(_SCHEMA, ("key",), "time" if self.event_time else None)] * self.inputs


def rows(keys: np.ndarray, number: int) -> pa.RecordBatch:
    """Micro-batch ``number``: a row a key, values of its own, times in its span."""
    random = np.random.default_rng(number)
    times = np.sort(random.integers(0, _SPAN_US, len(keys))) + _BASE_US + number * _SPAN_US
    columns = [
        pa.array(keys),
        pa.array(random.integers(0, 1_000_000, len(keys))),
        pa.array(times).cast(_SCHEMA.field("time").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def watermark(number: int) -> int:
    """Of micro-batch ``number``: the end of the one before."""
    return _BASE_US + number * _SPAN_US - 1


class _Total(MapFunction):
    def open(self, context: OperatorContext) -> None:
        self._total: Any = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    def map(self, row: Any) -> Any:
        total = self._total

        def add(before: int) -> Any:
            return total.async_update(before + row[1]).then_apply(lambda _: (row[0], before + row[1]))

        return total.async_value().then_compose(add)


class _Process(KeyedProcessFunction):
    def open(self, context: OperatorContext) -> None:
        self._total: Any = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    async def process(self, row: Any, ctx: Any) -> None:
        total = await self._total.async_value() + row[1]
        await self._total.async_update(total)
        ctx.emit(row[0], total)


class _BothSides(KeyedCoProcessFunction):
    def open(self, context: OperatorContext) -> None:
        self._last: Any = context.get_state(ValueStateDescriptor("last", pa.int64(), default=0))

    async def process1(self, row: Any, ctx: Any) -> None:
        await self._last.async_update(row[1])

    async def process2(self, row: Any, ctx: Any) -> None:
        ctx.emit(row[0], await self._last.async_value())


class _Rows(ProcessWindowFunction):
    def process(self, key: Any, ctx: Any, rows: Any) -> Any:
        return [(key[0], len(rows))]


def _window(window: Callable[[], Any]) -> Case:
    return Case(
        lambda: WindowAggregate(window(), [count().alias("n"), sum_("value").alias("total")]), event_time=True
    )


CASES: Mapping[str, Case] = {
    "GroupAggregate": Case(
        lambda: GroupAggregate([count().alias("n"), sum_("value").alias("total"), max_("value").alias("top")])
    ),
    "GroupAggregate, DISTINCT": Case(GroupAggregate),
    "Deduplicate, first": Case(lambda: Deduplicate(keep="first", time="processing")),
    "Deduplicate, last": Case(lambda: Deduplicate(keep="last", time="event"), event_time=True),
    "WindowAggregate, tumble": _window(lambda: tumble("10 seconds")),
    "WindowAggregate, hop": _window(lambda: hop("10 seconds", "2 seconds")),
    "WindowAggregate, cumulate": _window(lambda: cumulate("10 seconds", "2 seconds")),
    "WindowAggregate, session": _window(lambda: session("5 seconds")),
    "Join": Case(lambda: Join("inner", suffixes=("", "_right")), inputs=2, share=0.2),
    "IntervalJoin": Case(
        lambda: IntervalJoin(lower="0 seconds", upper="5 seconds", suffixes=("", "_right")),
        inputs=2,
        event_time=True,
        share=0.5,
    ),
    "Rank": Case(lambda: Rank("value", 3, rank_column="place"), share=0.5),
    "KeyedMap": Case(lambda: KeyedMap(_Total(), _OUT), share=0.2),
    "KeyedMap, beyond the read cache": Case(lambda: KeyedMap(_Total(), _OUT), share=0.2, keys_share=1.0),
    "KeyedReduce": Case(lambda: KeyedReduce(lambda a, b: (a[0], a[1] + b[1], b[2])), share=0.2),
    "KeyedProcess": Case(lambda: KeyedProcess(_Process(), _OUT), share=0.2),
    "CoProcess": Case(lambda: CoProcess(_BothSides(), _OUT), inputs=2, share=0.1),
    "WindowProcess": Case(
        lambda: WindowProcess(_Rows(), tumble("10 seconds"), _OUT), event_time=True, share=0.1
    ),
}
"""By name. Operators whose work is all user code (flat map, filter, connected map, broadcast, apply) are left out: they
run on the same engine as the functions shown."""
