"""What an aggregate function of the user's own costs: ``python -m bench aggregates``.

Owns: the functions that are compared. One operator on one partition, without Spark; all ways of writing a function take
turns, each with a job of its own over the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from asyncstate import MapView, RecordContext, RecordOperator, ValueStateDescriptor
from asyncstate import functions as given
from asyncstate.operator import InputSpec, Operator
from asyncstate.operator import Row as InputRow
from bench.frame import Report, Rounds, Row, Seed, benchmark, costs, sides, turns
from bench.job import MODES, Job, config_of, sliced
from bench.processor_time import Spent
from operators import GroupAggregate, avg, count, udaf

INPUT = InputSpec(pa.schema([("key", pa.int64()), ("value", pa.int64()), ("weight", pa.int64())]), ("key",))
SUMS = pa.schema([("total", pa.int64()), ("count", pa.int64())])


class WeightedMean(given.AggregateFunction):
    """The document's example: a value, a weight, and a list for an accumulator."""

    def create_accumulator(self) -> Any:
        return [0, 0]

    def accumulate(self, accumulator: Any, value: Any, weight: Any) -> None:
        accumulator[0] += value * weight
        accumulator[1] += weight

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1] if accumulator[1] else None


class WeightedMeanByName(WeightedMean):
    """The same with a row that has names."""

    def create_accumulator(self) -> Any:
        return given.MutableRow(total=0, count=0)

    def accumulate(self, accumulator: Any, value: Any, weight: Any) -> None:
        accumulator["total"] += value * weight
        accumulator["count"] += weight


class SegmentMean(given.BundledAggregateFunction):
    def bundled_accumulate_retract(self, segments: given.KeySegments) -> Sequence[given.KeySegmentApplied]:
        applied = []
        for segment in segments:
            total, number = segment.accumulators[0] if segment.accumulators else (0, 0)
            before = total / number if number else None
            total, number = total + sum(row[0] for row in segment.rows), number + len(segment.rows)
            applied.append(given.KeySegmentApplied([total, number], before, total / number))
        return applied


class WeightedMeans(given.BundledAggregateFunction):
    """The weighted mean of all keys of a bundle at once, with numpy."""

    def bundled_accumulate_retract(self, segments: given.KeySegments) -> given.SegmentsApplied:
        before = [field.fill_null(0).to_numpy() for field in segments.accumulators.flatten()]
        values, weights = (column.to_numpy() for column in segments.columns)
        starts = segments.starts[:-1]
        total = before[0] + np.add.reduceat(values * weights, starts)
        weight = before[1] + np.add.reduceat(weights, starts)
        sums = pa.StructArray.from_arrays([pa.array(total), pa.array(weight)], fields=list(SUMS))
        return given.SegmentsApplied(sums, _means(*before), _means(total, weight))


def _means(total: Any, weight: Any) -> pa.Array:
    return pa.array(total / np.maximum(weight, 1), mask=weight == 0)


class ChainedMean(RecordOperator):
    """The mean as a chain of futures, a row at a time."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("mean", pa.float64())])

    def open(self, context: Any) -> None:
        self.sums = context.get_state(ValueStateDescriptor("sums", pa.struct(list(SUMS))))

    def process(self, row: InputRow, ctx: RecordContext) -> Any:
        def add(sums: Any) -> Any:
            total, number = (sums["total"], sums["count"]) if sums else (0, 0)
            total, number = total + row.value * row.weight, number + row.weight
            ctx.emit(row.key, total / number)
            return self.sums.async_update({"total": total, "count": number})

        return self.sums.async_value().then_compose(add)


class CountDistinct(given.AggregateFunction):
    """The document's count of distinct values in a view."""

    def create_accumulator(self) -> Any:
        return [0, MapView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        seen = accumulator[1]
        if value not in seen:
            accumulator[0] += 1
            seen[value] = 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


def _mean(function: Any, *columns: str) -> Callable[[], Operator]:
    mean = udaf(function, result_type=pa.float64(), accumulator_type=SUMS)
    return lambda: GroupAggregate([mean(*columns)])


_SEEN = pa.schema([pa.field("n", pa.int64()), given.map_view("seen", pa.int64(), pa.int64())])
_DISTINCT = udaf(CountDistinct, result_type=pa.int64(), accumulator_type=_SEEN)
WAYS: dict[str, Callable[[], Operator]] = {
    "avg, built in": lambda: GroupAggregate([avg("value").alias("mean")]),
    "numpy, bundled": _mean(WeightedMeans, "value", "weight"),
    "segments, bundled": _mean(SegmentMean, "value"),
    "udaf, list": _mean(WeightedMean, "value", "weight"),
    "udaf, row": _mean(WeightedMeanByName, "value", "weight"),
    "chain of futures": ChainedMean,
}
"""Ways of writing a mean."""
DISTINCT: dict[str, Callable[[], Operator]] = {
    "MapView": lambda: GroupAggregate([_DISTINCT("value")]),
    "distinct()": lambda: GroupAggregate([count("value").distinct().alias("n")]),
}
"""Ways of counting distinct values."""
_OWN = {"bundled-agg.size": 1_000_000}


def _batch(keys: np.ndarray, values: np.ndarray) -> list[pa.RecordBatch]:
    return sliced(INPUT.schema, keys, values, values % 7 + 1, rows=len(keys))


def means(folder: Path, mode: str, keys: int, rows_a_key: int, rounds: int, seed: int) -> list[Row]:
    jobs = {name: Job(folder / name, make(), config_of(mode, _OWN), INPUT) for name, make in WAYS.items()}
    random, each = np.random.default_rng(seed), np.repeat(np.arange(keys), rows_a_key)
    drawn = (_batch(random.permutation(each), random.integers(0, 1000, len(each))) for _ in repeat(None))
    spent = turns({name: job.timed for name, job in jobs.items()}, rounds, drawn)
    return sides(spent, len(each), next(iter(WAYS)), group=f"a mean, {mode}")


def new_values(place: Path, mode: str, name: str, sizes: Sequence[int], added: int, rounds: int) -> list[Row]:
    """New values of one key that has ``sizes`` of them."""
    random = np.random.default_rng(1)

    def side(size: int) -> Callable[[Any], Spent]:
        job = Job(place / f"{name}-{size}", DISTINCT[name](), config_of(mode, _OWN), INPUT)
        job.run(_batch(np.zeros(size, np.int64), random.permutation(size)))

        def add(_: Any) -> Spent:
            values = size + (job.batch_id - 1) * added + random.permutation(added)
            return job.timed(_batch(np.zeros(added, np.int64), values))

        return add

    spent = turns({f"to {size:,} values": side(size) for size in sizes}, rounds)
    return sides(spent, added, next(iter(spent)), group=f"{name}, a new value, {mode}")


@benchmark(keys=200, rows_a_key=5, rounds=1)
def aggregates(
    report: Report,
    keys: Annotated[int, typer.Option(min=1, help="Keys of a micro-batch.")] = 100_000,
    rows_a_key: Annotated[int, typer.Option(min=1, help="Rows of each.")] = 10,
    rounds: Rounds = 5,
    seed: Seed = 1,
) -> None:
    """Compare the ways of writing an aggregate function, and counts of distinct values, a row."""
    sizes, added = ([100, 1_000], 100) if report.tiny else ([1_000, 100_000, 1_000_000], 20_000)
    title = f"{keys:,} keys of {rows_a_key} rows, {added:,} new values of one key, medians of {rounds}"
    report.section(title, costs("us"))
    for mode in MODES:
        folder = report.folder / mode
        report.case("means", means, folder, mode, keys, rows_a_key, rounds, seed, group=mode)
        for name in DISTINCT:
            report.case(name, new_values, folder, mode, name, sizes, added, rounds, group=mode)
