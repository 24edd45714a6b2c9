"""The custom operators of the micro-benchmarks and their rows. They emit nothing, as the code by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.codec import UserKeyBatch
from asyncstate.futures import combine_all
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, Operator, OperatorContext
from asyncstate.runtime import InputBatch
from asyncstate.state import ColumnMapStateDescriptor, Columns, ColumnStateDescriptor, ValueStateDescriptor
from bench.frame import Side
from bench.job import INPUT, batches, sliced
from bench.micro.sides import Place, Size, packed
from bench.processor_time import Clocks, Spent
from operators import Match, last

_COUNT = pa.schema([("count", pa.int64())])
VALUES_A_KEY = 4


class _Counts:
    """What they would emit."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return _COUNT


class CountPerKey(_Counts, RecordOperator):
    """A read-modify-write chain of one ValueState, as in the documentation."""

    def open(self, context: OperatorContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.count.async_value().then_apply(_increment).then_compose(self.count.async_update)


def _increment(total: int | None) -> int:
    return (total or 0) + 1


class CountPerPair(_Counts, BundleOperator):
    """Count and sum per (key, value), the table of a distinct aggregate, in a ColumnMapState."""

    def open(self, context: OperatorContext) -> None:
        value = pa.schema([context.inputs[0].column("value")])
        row = pa.schema([("count", pa.int64()), ("sum", pa.int64())])
        self.counts = context.get_state(ColumnMapStateDescriptor("counts", value, row))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        pairs = bundle.keys.with_user_keys([bundle.batch.column("value")])
        return self.counts.async_get(pairs).then_accept(lambda found: self._add(pairs, found))

    def _add(self, pairs: UserKeyBatch, found: Columns) -> None:
        rows = np.bincount(pairs.inverse, minlength=len(pairs))
        counts, sums = (found.numpy(field).astype(np.int64) for field in range(2))
        self.counts.put(pairs, [pa.array(counts + rows), pa.array(sums + 7 * rows)])


def pair_rows(pairs: np.ndarray) -> list[pa.RecordBatch]:
    return sliced(INPUT.schema, *np.divmod(pairs, VALUES_A_KEY), rows=len(pairs))


def pair_keys(pairs: np.ndarray) -> list[bytes]:
    return packed(*np.divmod(pairs, VALUES_A_KEY))


async def _answer(key: int) -> int:
    return key


class CallARecord(_Counts, RecordOperator):
    """A call a record, which is answered at once: the whole time is that of making calls and taking answers in."""

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return ctx.call(_answer, row.key)


class CallAKey(_Counts, BundleOperator):
    """A call for each key of a bundle, all under way together."""

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        return combine_all([ctx.call(_answer, key) for key in bundle.keys.columns[0].to_pylist()])


def calls_by_hand(keys: np.ndarray, at_once: int) -> Spent:
    """The same calls on an event loop, ``at_once`` of them under way, as a user would write it."""

    async def gathered() -> None:
        slots = asyncio.Semaphore(at_once)

        async def one(key: int) -> int:
            async with slots:
                return await asyncio.wait_for(_answer(key), 60)

        await asyncio.gather(*map(one, keys.tolist()))

    clocks = Clocks()
    asyncio.run(gathered())
    return clocks.spent()


class CountBoth(_Counts, BundleOperator):
    """The number of rows of each key over two inputs; ``first``: which one comes first."""

    num_inputs = 2

    def __init__(self, first: int | None) -> None:
        self.first_input = first

    def open(self, context: OperatorContext) -> None:
        self.counts = context.get_state(ColumnStateDescriptor("counts", _COUNT))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        rows = np.bincount(bundle.keys.inverse, minlength=len(bundle.keys))

        def add(before: Columns) -> None:
            self.counts.put(bundle.keys, [pa.array(before.numpy(0).astype(np.int64) + rows)])

        return self.counts.async_get(bundle.keys).then_accept(add)


def both_inputs(keys: np.ndarray) -> list[InputBatch]:
    return [InputBatch(batch, input_index=at % 2) for at, batch in enumerate(batches(keys, 1_000))]


_TIMED = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
TIMED = InputSpec(_TIMED, ("key",), event_time="at")
_SECOND, _VALUES = 1_000_000, 1_000


def _match(begin: int) -> Match:
    """``begin`` of a thousand rows can be the first one."""
    value = pc.field("value")
    rows = {"A": value < begin, "B": value < _VALUES // 2, "C": value >= _VALUES // 2}
    measures = {"first": last("value", "A"), "last": last("value", "C")}
    return Match("A B+ C", rows, measures, within="10 seconds")


MATCHES: dict[str, Callable[[], Operator]] = {
    "Match, rows that start nothing": lambda: _match(0),
    "Match, one row of ten starts": lambda: _match(_VALUES // 10),
}


def in_order(make: Callable[[], Operator], place: Place, size: Size) -> Side:
    """A side over rows of given keys; each micro-batch is a second of event time, at whose end all its rows are due."""
    job, random = place.job(make(), TIMED), np.random.default_rng(size.seed)

    def run(keys: np.ndarray) -> Spent:
        start = job.batch_id * _SECOND
        at = np.sort(random.integers(start, start + _SECOND, len(keys)))
        rows = sliced(_TIMED, keys, random.integers(0, _VALUES, len(keys)), at)
        job.watermark = start + _SECOND - 1
        return job.timed(rows)

    return run
