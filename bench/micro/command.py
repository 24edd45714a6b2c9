"""The operators, the cases and the command line of ``python -m bench micro``. The operators emit nothing, as the code
by hand. Each case runs both sides in turns on the same keys, in its own process: objects of an earlier case in the heap
move small objects elsewhere, which changed a chain on a ValueState by up to 10%. One core: nothing runs in parallel to
the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer

from asyncstate import RecordContext, RecordOperator
from asyncstate import Row as InputRow
from asyncstate.codec import UserKeyBatch
from asyncstate.futures import combine_all
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, Operator, OperatorContext
from asyncstate.runtime import InputBatch
from asyncstate.state import ColumnMapStateDescriptor, Columns, ColumnStateDescriptor, ValueStateDescriptor
from bench.frame import Report, Rounds, Row, Seed, Side, benchmark
from bench.job import INPUT, batches, count_and_sum, last_row, sliced
from bench.micro import iteration, state_path
from bench.micro.sides import COLUMNS, Case, Floor, Place, Size, packed
from bench.processor_time import Clocks, Spent
from operators import Match, TemporalSort, last

Make = Callable[[], Operator]
_COUNT = pa.schema([("count", pa.int64())])
_VALUES_A_KEY = 4


class _Counts:
    """What they would emit."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return _COUNT


class CountPerKey(_Counts, RecordOperator):
    """A read-modify-write chain of one ValueState, as in the documentation."""

    def open(self, context: OperatorContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process(self, row: InputRow, ctx: RecordContext) -> Any:
        return self.count.async_value().then_apply(_increment).then_compose(self.count.async_update)


def _increment(total: int | None) -> int:
    return (total or 0) + 1


def _hot_state(place: Place, size: Size) -> Side:
    floor = Floor(place.folder)
    floor.records(np.arange(size.state))
    return floor.records


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


def _pair_rows(pairs: np.ndarray) -> list[pa.RecordBatch]:
    return sliced(INPUT.schema, *np.divmod(pairs, _VALUES_A_KEY), rows=len(pairs))


def _pair_keys(pairs: np.ndarray) -> list[bytes]:
    return packed(*np.divmod(pairs, _VALUES_A_KEY))


def _bundles(name: str, make: Make) -> Case:
    """Against list get, numpy and an SST file; everything from Arrow batch to delta file counts."""
    return Case(
        name,
        2.0,
        lambda place, size: Floor(place.folder).fill(size.state).bundle,
        lambda place, size: state_path.timed_side(place, make(), size.state),
        path_aim=0.4,
    )


async def _answer(key: int) -> int:
    return key


class CallARecord(_Counts, RecordOperator):
    """A call a record, which is answered at once: the whole time is that of making calls and taking answers in."""

    def process(self, row: InputRow, ctx: RecordContext) -> Any:
        return ctx.call(_answer, row.key)


class CallAKey(_Counts, BundleOperator):
    """A call for each key of a bundle, all under way together."""

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        return combine_all([ctx.call(_answer, key) for key in bundle.keys.columns[0].to_pylist()])


def _calls_by_hand(keys: np.ndarray) -> Spent:
    """The same calls on an event loop, as many under way, as a user would write it."""

    async def gathered() -> None:
        slots = asyncio.Semaphore(Operator.call_limit)

        async def one(key: int) -> int:
            async with slots:
                return await asyncio.wait_for(_answer(key), 60)

        await asyncio.gather(*map(one, keys.tolist()))

    clocks = Clocks()
    asyncio.run(gathered())
    return clocks.spent()


def _calls(grain: str, make: Make) -> Case:
    """Calls that return at once, one a record or for each key of a bundle, against ``asyncio.gather`` by hand."""

    def calls(size: Size) -> int:
        return max(size.unique // 10, 1)

    return Case(
        f"ctx.call, {grain}",
        4.0,
        lambda *_: _calls_by_hand,
        lambda place, _: place.filled(make()),
        given=lambda size: Size(10 * calls(size), calls(size), size.seed).drawn(),
        units=calls,
    )


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


def _both(first: int | None, place: Place, _: Size) -> Side:
    def rows(keys: np.ndarray) -> list[InputBatch]:
        return [InputBatch(batch, input_index=at % 2) for at, batch in enumerate(batches(keys, 1_000))]

    return place.filled(CountBoth(first), 0, rows, [INPUT, INPUT])


_TIMED = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
_SECOND, _VALUES = 1_000_000, 1_000


def _match(begin: int) -> Match:
    """``begin`` of a thousand rows can be the first one."""
    value = pc.field("value")
    rows = {"A": value < begin, "B": value < _VALUES // 2, "C": value >= _VALUES // 2}
    measures = {"first": last("value", "A"), "last": last("value", "C")}
    return Match("A B+ C", rows, measures, within="10 seconds")


def _in_order(make: Make, place: Place, size: Size) -> Side:
    """A side over rows of given keys; each micro-batch is a second of event time, at whose end all its rows are due."""
    job = place.job(make(), InputSpec(_TIMED, ("key",), event_time="at"))
    random = np.random.default_rng(size.seed)

    def run(keys: np.ndarray) -> Spent:
        start = job.batch_id * _SECOND
        at = np.sort(random.integers(start, start + _SECOND, len(keys)))
        rows = sliced(_TIMED, keys, random.integers(0, _VALUES, len(keys)), at)
        job.watermark = start + _SECOND - 1
        return job.timed(rows)

    return run


def _matches(name: str, begin: int) -> Case:
    """Rows that Match finds nothing in, or little, against the same rows in their order and nothing else."""
    ours = partial(_in_order, partial(_match, begin))
    return Case(f"Match, {name}", 1.5, partial(_in_order, TemporalSort), ours)


CASES: Mapping[str, Sequence[Case]] = {
    "bundle grain": [_bundles("GroupAggregate", count_and_sum), _bundles("Deduplicate", last_row)],
    # Count and sum a (key, value), four values a key, against the same list gets and writes by hand.
    "distinct values": [
        Case(
            "ColumnMapState",
            2.0,
            lambda place, size: Floor(place.folder, _pair_keys).fill(size.state).bundle,
            lambda place, size: place.filled(CountPerPair(), size.state, _pair_rows),
        )
    ],
    "other operators": state_path.CASES,
    # Against a get and a put a record, on hot state.
    "record grain": [
        Case("ValueState chain", 1.3, _hot_state, lambda place, size: place.filled(CountPerKey(), size.state))
    ],
    "iterations": iteration.CASES,
    "calls": [_calls("record", CallARecord), _calls("bundle", CallAKey)],
    # Rows of two inputs that come in turn: those of one first, against both as they arrive.
    "first input": [Case("first_input", 1.5, partial(_both, None), partial(_both, 1))],
    "matches": [_matches("rows that start nothing", 0), _matches("one row of ten starts", _VALUES // 10)],
}
"""By what runs in a process of its own."""


@benchmark(state_keys=2_000, unique_keys=500, rounds=1)
def micro(
    report: Report,
    state_keys: Annotated[int, typer.Option(min=100, help="Keys in the state.")] = 1_000_000,
    unique_keys: Annotated[int, typer.Option(min=10, help="Unique keys (records) a micro-batch.")] = 100_000,
    rounds: Rounds = 9,
    seed: Seed = 1,
) -> None:
    """Compare bundle and record grain with hand-written rocksdict code, on one core."""
    title = f"us a key or row, {unique_keys:,} of {state_keys:,} keys, medians of {rounds} pairs"
    report.section(title, COLUMNS)
    for name in CASES:
        report.case(name, measured, name, Size(state_keys, unique_keys, seed), rounds, alone=True)


def measured(name: str, size: Size, rounds: int) -> list[Row]:
    return [row for case in CASES[name] for row in case.rows(size, rounds)]
