"""What an aggregate function of the user's own costs: ``python -m bench aggregates``.

Owns: the functions that are compared, and the command. One operator on one partition, without Spark.
Each round runs all ways of writing a function, one after the other, each over rows of its own job; medians over rounds,
the ratio is that of the same round.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from asyncstate import MapView
from asyncstate.config import Config, resolve
from asyncstate.functions import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegmentApplied,
    KeySegments,
    MutableRow,
    SegmentsApplied,
    map_view,
)
from asyncstate.operator import InputSpec, Operator, RecordContext, RecordOperator, Row
from asyncstate.state import ValueState, ValueStateDescriptor
from bench.job import Job
from bench.processor_time import Spent
from bench.report import write_json
from operators import GroupAggregate, avg, count, udaf

INPUT = InputSpec(pa.schema([("key", pa.int64()), ("value", pa.int64()), ("weight", pa.int64())]), ("key",))
_SUMS = pa.schema([("total", pa.int64()), ("count", pa.int64())])


class WeightedMean(AggregateFunction):
    """The document's example: a value, a weight, and a list for an accumulator."""

    def create_accumulator(self) -> Any:
        """See ``AggregateFunction``."""
        return [0, 0]

    def accumulate(self, accumulator: Any, value: Any, weight: Any) -> None:
        """See ``AggregateFunction``."""
        accumulator[0] += value * weight
        accumulator[1] += weight

    def get_value(self, accumulator: Any) -> Any:
        """See ``AggregateFunction``."""
        return accumulator[0] / accumulator[1] if accumulator[1] else None


class WeightedMeanByName(WeightedMean):
    """The same with a row that has names."""

    def create_accumulator(self) -> Any:
        """See ``AggregateFunction``."""
        return MutableRow(total=0, count=0)

    def accumulate(self, accumulator: Any, value: Any, weight: Any) -> None:
        """See ``AggregateFunction``."""
        accumulator["total"] += value * weight
        accumulator["count"] += weight


class SegmentMean(BundledAggregateFunction):
    """A mean, segment by segment."""

    def bundled_accumulate_retract(self, segments: KeySegments) -> Sequence[KeySegmentApplied]:
        """See ``BundledAggregateFunction``."""
        applied = []
        for segment in segments:
            total, number = segment.accumulators[0] if segment.accumulators else (0, 0)
            before = total / number if number else None
            total, number = total + sum(row[0] for row in segment.rows), number + len(segment.rows)
            applied.append(KeySegmentApplied([total, number], before, total / number))
        return applied


class NumpyMean(BundledAggregateFunction):
    """A mean with numpy."""

    def bundled_accumulate_retract(self, segments: KeySegments) -> SegmentsApplied:
        """See ``BundledAggregateFunction``."""
        stored = [field.fill_null(0).to_numpy() for field in segments.accumulators.flatten()]
        sums = np.add.reduceat(segments.columns[0].to_numpy(), segments.starts[:-1]) if len(segments) else 0
        total, number = stored[0] + sums, stored[1] + np.diff(segments.starts)
        accumulators = pa.StructArray.from_arrays([pa.array(total), pa.array(number)], fields=list(_SUMS))
        return SegmentsApplied(accumulators, _means(*stored), _means(total, number))


def _means(total: Any, number: Any) -> pa.Array:
    return pa.array(total / np.maximum(number, 1), mask=number == 0)


class ChainedMean(RecordOperator):
    """The mean as a chain of futures, a row at a time."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """See ``Operator``."""
        return pa.schema([("key", pa.int64()), ("mean", pa.float64())])

    def open(self, context: Any) -> None:
        """See ``Operator``."""
        sums = pa.struct(list(_SUMS))
        self.sums: ValueState[Any] = context.get_state(ValueStateDescriptor("sums", sums))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""

        def add(sums: Any) -> Any:
            total, number = (sums["total"], sums["count"]) if sums else (0, 0)
            total, number = total + row.value * row.weight, number + row.weight
            ctx.emit(row.key, total / number)
            return self.sums.async_update({"total": total, "count": number})

        return self.sums.async_value().then_compose(add)


class CountDistinct(AggregateFunction):
    """The document's count of distinct values in a view."""

    def create_accumulator(self) -> Any:
        """See ``AggregateFunction``."""
        return [0, MapView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        """See ``AggregateFunction``."""
        seen = accumulator[1]
        if value not in seen:
            accumulator[0] += 1
            seen[value] = 1

    def get_value(self, accumulator: Any) -> Any:
        """See ``AggregateFunction``."""
        return accumulator[0]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of microseconds a row, of wall and of processor time, and of the ratio to the first line's wall time."""

    name: str
    rows: int
    wall_us: float
    cpu_us: float
    ratio: float


def _types(function: Any, result: pa.DataType, accumulator: pa.Schema) -> Any:
    return udaf(function, result_type=result, accumulator_type=accumulator)


def _ways() -> dict[str, Callable[[], Operator]]:
    double = pa.float64()
    return {
        "avg, built in": lambda: GroupAggregate([avg("value").alias("mean")]),
        "numpy, bundled": lambda: GroupAggregate([_types(NumpyMean, double, _SUMS)("value")]),
        "segments, bundled": lambda: GroupAggregate([_types(SegmentMean, double, _SUMS)("value")]),
        "udaf, list": lambda: GroupAggregate([_types(WeightedMean, double, _SUMS)("value", "weight")]),
        "udaf, row": lambda: GroupAggregate([_types(WeightedMeanByName, double, _SUMS)("value", "weight")]),
        "chain of futures": ChainedMean,
    }


def _config(enabled: bool) -> Config:
    options = {"async-state.enabled": enabled, "async-state.snapshot-interval": 1000}
    return resolve({**options, "async-state.bundled-agg.size": 1_000_000}, {})


def _batch(keys: np.ndarray, values: np.ndarray) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(keys), pa.array(values), pa.array(values % 7 + 1)], schema=INPUT.schema
    )


def costs_of_ways(keys: int, rows_a_key: int, rounds: int, enabled: bool, seed: int) -> Iterator[Cost]:
    """Each way of writing a mean, over the same rows."""
    ways, times = _ways(), []
    rows = keys * rows_a_key
    with tempfile.TemporaryDirectory(prefix="asyncstate-aggregates-") as folder:
        jobs = {
            name: Job(Path(folder) / str(number), make(), _config(enabled), INPUT)
            for number, (name, make) in enumerate(ways.items())
        }
        random = np.random.default_rng(seed)
        for _ in range(rounds + 1):
            drawn = _batch(
                random.permutation(np.repeat(np.arange(keys), rows_a_key)), random.integers(0, 1000, rows)
            )
            times.append({name: job.timed([drawn]) for name, job in jobs.items()})
    first = next(iter(ways))
    for name in ways:
        yield _cost(name, rows, [one[name] for one in times[1:]], [one[first][0] for one in times[1:]])


def costs_of_distinct(sizes: Sequence[int], added: int, rounds: int, enabled: bool) -> Iterator[Cost]:
    """New values of one key that has ``sizes`` of them, by a view and built in."""
    ways: dict[str, Callable[[], Operator]] = {
        "MapView": lambda: GroupAggregate(
            [
                _types(
                    CountDistinct,
                    pa.int64(),
                    pa.schema([pa.field("n", pa.int64()), map_view("seen", pa.int64(), pa.int64())]),
                )("value")
            ]
        ),
        "distinct()": lambda: GroupAggregate([count("value").distinct().alias("n")]),
    }
    for name, make in ways.items():
        base: list[float] = []
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="asyncstate-aggregates-") as folder:
                job = Job(Path(folder), make(), _config(enabled), INPUT)
                random = np.random.default_rng(1)
                job.run([_batch(np.zeros(size, np.int64), random.permutation(size))])
                times = []
                for number in range(rounds + 1):
                    start = size + number * added
                    fresh = random.permutation(np.arange(start, start + added))
                    times.append(job.timed([_batch(np.zeros(added, np.int64), fresh)]))
            base = base or [wall for wall, _ in times[1:]]
            yield _cost(f"{name}, {size:,} values", added, times[1:], base)


def _cost(name: str, rows: int, times: Sequence[Spent], base: Sequence[float]) -> Cost:
    return Cost(
        name=name,
        rows=rows,
        wall_us=statistics.median(wall for wall, _ in times) / rows * 1e6,
        cpu_us=statistics.median(cpu for _, cpu in times) / rows * 1e6,
        ratio=statistics.median(wall / first for (wall, _), first in zip(times, base, strict=True)),
    )


def _table(title: str, costs: Sequence[Cost]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("way")
    for heading in ("us a row", "processor us", "ratio"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(cost.name, f"{cost.wall_us:.2f}", f"{cost.cpu_us:.2f}", f"{cost.ratio:.2f}")
    return table


def aggregates(
    keys: Annotated[int, typer.Option(min=1, help="Keys of a micro-batch.")] = 100_000,
    rows_a_key: Annotated[int, typer.Option(min=1, help="Rows of each.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds.")] = 5,
    tiny: Annotated[bool, typer.Option("--tiny", help="Small and quick: shows that it runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the rows drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for aggregates.json.")] = None,
) -> None:
    """Compare the ways of writing an aggregate function, and counts of distinct values, a row."""
    console, added = Console(), 20_000
    sizes: tuple[int, ...] = (1_000, 100_000, 1_000_000)
    if tiny:
        keys, rows_a_key, rounds, sizes, added = 200, 5, 1, (100, 1_000), 100
    found: list[Cost] = []
    for enabled in (False, True):
        mode = "async" if enabled else "sync"
        ways = list(costs_of_ways(keys, rows_a_key, rounds, enabled, seed))
        console.print(_table(f"{mode}: {keys:,} keys of {rows_a_key} rows, medians of {rounds}", ways))
        distinct = list(costs_of_distinct(sizes, added, rounds, enabled))
        console.print(_table(f"{mode}: {added:,} new values of one key", distinct))
        found += [msgspec.structs.replace(cost, name=f"{cost.name}, {mode}") for cost in (*ways, *distinct)]
    if output is not None:
        write_json(found, output / "aggregates.json", keys=keys, rows_a_key=rows_a_key)
