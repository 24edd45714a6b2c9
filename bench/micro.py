"""Micro-benchmarks: what the framework adds to raw rocksdict, at bundle grain and at record grain.

Each measurement alternates the floor (plain rocksdict code a user would write by hand) and ours on the same keys,
after a warm-up, and reports medians, by the clock and of processor time; the ratio, by the clock, is the figure. One
core: nothing runs beside the loop.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich import box
from rich.table import Table
from rocksdict import Rdict, SstFileWriter

from asyncstate.codec import UserKeyBatch
from asyncstate.config import Config, resolve
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    Operator,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.spark.task import settle_worker
from asyncstate.state import ColumnMapStateDescriptor, Columns, ValueState, ValueStateDescriptor
from asyncstate.storage import RocksDBOptions
from asyncstate.storage.rocksdb_options import rocksdb_options
from bench.calls import CallAKey, CallARecord, CountBoth, both_inputs, calls_by_hand
from bench.iteration import ENTRIES, OPERATORS, HandIterations, Iterations, MapEntries
from bench.job import Job
from bench.matching import MADE, InOrder, in_order
from bench.processor_time import Clocks, Spent
from bench.rows import INPUT, batches, draws
from bench.state_path import Stopwatch, cases, list_get, measured, timed_engine, with_timed_states
from operators import Deduplicate, GroupAggregate, count, sum_

_COUNT = struct.Struct("<Bq")
_VALUES_A_KEY = 4


class MicroResult(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison: medians in microseconds a unit (unique key or record), by the clock and of processors, and the
    median of paired ratios. Where processor time alone was measured both are that."""

    name: str
    unit: str
    floor: str
    units: int
    floor_us: float
    floor_cpu_us: float
    ours_us: float
    ours_cpu_us: float
    ratio: float
    ratio_min: float
    ratio_max: float
    target: float


class CountPerKey(RecordOperator):
    """A read-modify-write chain of one ValueState, as in the documentation."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """See ``Operator``."""
        return pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def open(self, context: Any) -> None:
        """See ``Operator``."""
        self.count: ValueState[int] = context.get_state(ValueStateDescriptor("count", pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Count the row; nothing is put out, as the floor puts nothing out."""
        return self.count.async_value().then_apply(_increment).then_compose(self.count.async_update)


class CountPerPair(BundleOperator):
    """Count and sum of each (key, value), the table behind a distinct aggregate, in a ColumnMapState."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """See ``Operator``."""
        return pa.schema([("key", pa.int64()), ("count", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        """See ``Operator``."""
        value = pa.schema([context.inputs[0].column("value")])
        row = pa.schema([("count", pa.int64()), ("sum", pa.int64())])
        self.counts = context.get_state(ColumnMapStateDescriptor("counts", value, row))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Count the rows; nothing is put out, as the floor puts nothing out."""
        pairs = bundle.keys.with_user_keys([bundle.batch.column("value")])
        return self.counts.async_get(pairs).then_accept(lambda found: self._add(pairs, found))

    def _add(self, pairs: UserKeyBatch, found: Columns) -> None:
        rows = np.bincount(pairs.inverse, minlength=len(pairs))
        counts, sums = (found.numpy(field).astype(np.int64) for field in range(2))
        self.counts.put(pairs, [pa.array(counts + rows), pa.array(sums + 7 * rows)])


class Floor:
    """The same work by hand: a RocksDB of the same options, 11-byte keys, 17-byte values. ``pack`` makes the store keys
    of ascending keys."""

    def __init__(self, folder: Path, pack: Callable[[np.ndarray], list[bytes]] | None = None) -> None:
        self._pack = _packed if pack is None else pack
        self._folder = folder
        self._options = rocksdb_options(RocksDBOptions())
        self._db = Rdict(str(folder / "floor"), self._options)
        self._round = 0

    def fill(self, keys: np.ndarray) -> None:
        """Store a row for each of ``keys``."""
        self._ingest(self._pack(np.sort(keys)), [bytes(17)] * len(keys))

    def bundle(self, keys: np.ndarray) -> Spent:
        """Sorted list get, add with numpy, sorted SST file: the least a bundle can cost."""
        packed = self._pack(np.sort(keys))
        clocks = Clocks()
        values = list_get(self._db, packed)
        rows = np.frombuffer(b"".join([value or bytes(17) for value in values]), _ROW).copy()
        rows["count"] += 1
        rows["sum"] += 7
        self._write(packed, rows.view("V17").tolist())
        spent = clocks.spent()
        self._ingest_written()
        return spent

    def records(self, keys: list[int]) -> Spent:
        """A get and a put for each record, as a user would write it."""
        db, pack, unpack = self._db, struct.Struct(">q").pack, _COUNT.unpack
        clocks = Clocks()
        for key in keys:
            encoded = pack(key)
            raw = db.get(encoded)
            total = 0 if raw is None else unpack(raw)[1]
            db[encoded] = _COUNT.pack(0, total + 1)
        return clocks.spent()

    def _ingest(self, keys: list[bytes], values: list[bytes]) -> None:
        self._write(keys, values)
        self._ingest_written()

    def _write(self, keys: list[bytes], values: list[bytes]) -> None:
        self._round += 1
        writer = SstFileWriter(self._options)
        writer.open(self._path)
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
        writer.finish()

    def _ingest_written(self) -> None:
        self._db.ingest_external_file([self._path])

    @property
    def _path(self) -> str:
        return str(self._folder / f"floor-{self._round}.sst")


_ROW = np.dtype([("head", "u1"), ("count", "<i8"), ("sum", "<i8")])


def _increment(total: int | None) -> int:
    return (total or 0) + 1


def _packed(keys: np.ndarray) -> list[bytes]:
    matrix = np.zeros(len(keys), np.dtype([("group", ">u2"), ("state", "u1"), ("key", ">i8")]))
    matrix["key"] = keys
    packed: list[bytes] = matrix.view("V11").tolist()
    return packed


def _packed_pairs(pairs: np.ndarray) -> list[bytes]:
    columns = [("group", ">u2"), ("state", "u1"), ("key", ">i8"), ("value", ">i8")]
    matrix = np.zeros(len(pairs), np.dtype(columns))
    matrix["key"], matrix["value"] = np.divmod(pairs, _VALUES_A_KEY)
    packed: list[bytes] = matrix.view("V19").tolist()
    return packed


def _pair_rows(pairs: np.ndarray) -> list[pa.RecordBatch]:
    columns = [pa.array(column) for column in np.divmod(pairs, _VALUES_A_KEY)]
    return [pa.RecordBatch.from_arrays(columns, schema=INPUT.schema)]


def _config(enabled: bool) -> Config:
    return resolve({"async-state.enabled": enabled, "async-state.snapshot-interval": 1000}, {})


@contextmanager
def _job(operator: Operator, config: Config) -> Iterator[tuple[Path, Job]]:
    """A folder and a job in it whose store is closed at the end: what is kept of it took the next one's room."""
    with tempfile.TemporaryDirectory(prefix="asyncstate-micro-") as folder:
        job = Job(Path(folder), operator, config, INPUT)
        try:
            yield Path(folder), job
        finally:
            job.close()


def _paired(
    floor: Callable[[np.ndarray], Spent],
    ours: Callable[[np.ndarray], Spent],
    drawn: Iterator[np.ndarray],
    rounds: int,
) -> tuple[list[Spent], list[Spent]]:
    """What is spent in ``rounds`` alternating runs on the same keys, after one that does not count."""
    floors: list[Spent] = []
    our: list[Spent] = []
    for number in range(rounds + 1):
        keys = next(drawn)
        gc.collect()
        pair = floor(keys), ours(keys)
        if number:
            floors.append(pair[0])
            our.append(pair[1])
    return floors, our


def _result(
    name: str, unit: str, floor: str, units: int, times: tuple[list[Spent], list[Spent]], target: float
) -> MicroResult:
    floors, ours = times
    ratios = [our.seconds / by_hand.seconds for by_hand, our in zip(floors, ours, strict=True)]
    floor_us, floor_cpu_us = _medians_us(floors, units)
    ours_us, ours_cpu_us = _medians_us(ours, units)
    return MicroResult(
        name=name,
        unit=unit,
        floor=floor,
        units=units,
        floor_us=floor_us,
        floor_cpu_us=floor_cpu_us,
        ours_us=ours_us,
        ours_cpu_us=ours_cpu_us,
        ratio=statistics.median(ratios),
        ratio_min=min(ratios),
        ratio_max=max(ratios),
        target=target,
    )


def _medians_us(spent: Sequence[Spent], units: int) -> tuple[float, float]:
    """Microseconds a unit, by the clock and of processors."""
    wall, cpu = (statistics.median(each) / units * 1e6 for each in zip(*spent, strict=True))
    return wall, cpu


def bundle_grain(state_keys: int, unique: int, rounds: int, seed: int) -> list[MicroResult]:
    """Count and sum a key, and deduplication, at bundle grain; everything from Arrow batch to delta file counts, and of
    that the state path alone, in processor time."""
    operators: dict[str, Callable[[], Operator]] = {
        "GroupAggregate": lambda: GroupAggregate([count().alias("n"), sum_("value").alias("total")]),
        "Deduplicate": lambda: Deduplicate(keep="last", time="processing"),
    }
    results = []
    floor_does = "list get, numpy, SST"
    for name, make in operators.items():
        for enabled in (False, True):
            watch, in_states = Stopwatch(), list[Spent]()
            operator = with_timed_states(make(), watch)

            def ours(
                job: Job, keys: np.ndarray, watch: Stopwatch = watch, to: list[Spent] = in_states
            ) -> Spent:
                watch.seconds = 0.0
                spent = job.timed(batches(keys, 100_000))
                to.append(_cpu_alone(watch.seconds))
                return spent

            with _job(operator, _config(enabled)) as (folder, job), timed_engine(watch):
                floor = Floor(folder)
                everything = np.arange(state_keys, dtype=np.int64)
                floor.fill(everything)
                job.run(batches(everything, 100_000))
                times = _paired(
                    floor.bundle,
                    partial(ours, job),
                    draws(state_keys, unique, seed),
                    rounds,
                )
            mode = "async" if enabled else "sync"
            results.append(_result(f"{name}, {mode}", "key", floor_does, unique, times, 2.0))
            if not enabled:  # in async mode reads go on beside the calls that ask for them
                floors = [_cpu_alone(each.cpu_seconds) for each in times[0]]
                path = floors, in_states[1:]
                results.append(_result(f"{name}, state path", "key", floor_does, unique, path, 0.4))
    return results


def distinct(state_pairs: int, unique: int, rounds: int, seed: int) -> list[MicroResult]:
    """Count and sum a (key, value), four values a key, against the same list gets and writes by hand."""
    results = []
    for enabled in (False, True):
        with _job(CountPerPair(), _config(enabled)) as (folder, job):
            floor = Floor(folder, _packed_pairs)
            everything = np.arange(state_pairs, dtype=np.int64)
            floor.fill(everything)
            job.run(_pair_rows(everything))
            times = _paired(
                floor.bundle,
                lambda pairs, job=job: job.timed(_pair_rows(pairs)),  # type: ignore[misc]
                draws(state_pairs, unique, seed),
                rounds,
            )
        mode = "async" if enabled else "sync"
        results.append(_result(f"ColumnMapState, {mode}", "pair", "list get, numpy, SST", unique, times, 2.0))
    return results


def record_grain(state_keys: int, records: int, rounds: int, seed: int) -> list[MicroResult]:
    """A ValueState read-modify-write chain against a get and a put a record, on hot state."""
    results = []
    for enabled in (False, True):
        with _job(CountPerKey(), _config(enabled)) as (folder, job):
            floor = Floor(folder)
            everything = np.arange(state_keys, dtype=np.int64)
            floor.records(everything.tolist())
            job.run(batches(everything, 100_000))
            times = _paired(
                lambda keys, floor=floor: floor.records(keys.tolist()),  # type: ignore[misc]
                lambda keys, job=job: job.timed(batches(keys, 100_000)),  # type: ignore[misc]
                draws(state_keys, records, seed),
                rounds,
            )
        mode = "async" if enabled else "sync"
        results.append(_result(f"ValueState chain, {mode}", "record", "get and put", records, times, 1.3))
    return results


def _cpu_alone(seconds: float) -> Spent:
    """Where nothing else was measured."""
    return Spent(seconds, seconds)


def state_paths(rows: int, rounds: int, seed: int) -> list[MicroResult]:
    """A micro-batch of the other built-in operators against their reads and writes by hand; state paths in processor
    time."""
    results = []
    floor = "the same reads and writes"
    for case in cases():
        for enabled in (False, True):
            timing = measured(case, _config(enabled), rows, rounds, seed)
            if not enabled:  # in async mode reads go on beside the calls that ask for them
                times = (
                    [_cpu_alone(each.cpu_seconds) for each in timing.floors],
                    [*map(_cpu_alone, timing.state_cpu)],
                )
                results.append(_result(f"{case.name}, state path", "row", floor, rows, times, 1.5))
            name = f"{case.name}, {'async' if enabled else 'sync'}"
            results.append(_result(name, "row", floor, rows, (timing.floors, timing.ours), 2.0))
    return results


def iteration(entries: int, rounds: int) -> list[MicroResult]:
    """Iterating maps and lists of 1,000 entries against rocksdict's own iteration, bare and with decoding."""
    keys = max(1, entries // ENTRIES)
    results = []
    for name, make in OPERATORS.items():
        for enabled in (False, True):
            with tempfile.TemporaryDirectory(prefix="asyncstate-micro-") as folder:
                hand = HandIterations(Path(folder), keys)
                ours = Iterations(Path(folder), make(enabled), _config(enabled), keys)
                decode = hand.decode_map if make is MapEntries else hand.decode_list
                times = [(hand.scan(), decode(), ours.run()) for _ in range(rounds + 1)][1:]
            scans, decodes, our = ([*map(_cpu_alone, column)] for column in zip(*times, strict=True))
            mode = "async" if enabled else "sync"
            for floor, floors in (("scan", scans), ("decode", decodes)):
                title = f"{name}, {mode}, {floor}"
                results.append(
                    _result(title, "entry", f"rocksdict {floor}", keys * ENTRIES, (floors, our), 2.0)
                )
    return results


def outside_calls(calls: int, rounds: int, seed: int) -> list[MicroResult]:
    """Calls that return at once, one a record and one for each key of a bundle, against an event loop by hand."""
    results = []
    operators: dict[str, Callable[[], Operator]] = {"record": CallARecord, "bundle": CallAKey}
    for grain, make in operators.items():
        for enabled in (False, True):
            config = _config(enabled)
            with _job(make(), config) as (_, job):
                times = _paired(
                    lambda keys, most=config.call_limit: calls_by_hand(keys, most),  # type: ignore[misc]
                    lambda keys, job=job: job.timed(batches(keys, 100_000)),  # type: ignore[misc]
                    draws(10 * calls, calls, seed),
                    rounds,
                )
            mode = "async" if enabled else "sync"
            results.append(_result(f"ctx.call, {grain}, {mode}", "call", "asyncio.gather", calls, times, 4.0))
    return results


def first_input(state_keys: int, rows: int, rounds: int, seed: int) -> list[MicroResult]:
    """Rows of two inputs that come in turn: those of one first, against both as they arrive."""
    results = []
    for enabled in (False, True):
        with (
            tempfile.TemporaryDirectory(prefix="asyncstate-micro-") as without,
            tempfile.TemporaryDirectory(prefix="asyncstate-micro-") as folder,
        ):
            as_they_come = Job(Path(without), CountBoth(None), _config(enabled), [INPUT, INPUT])
            job = Job(Path(folder), CountBoth(1), _config(enabled), [INPUT, INPUT])
            times = _paired(
                lambda keys, job=as_they_come: job.timed(both_inputs(keys)),  # type: ignore[misc]
                lambda keys, job=job: job.timed(both_inputs(keys)),  # type: ignore[misc]
                draws(state_keys, rows, seed),
                rounds,
            )
        mode = "async" if enabled else "sync"
        results.append(_result(f"first_input, {mode}", "row", "without it", rows, times, 1.5))
    return results


def matching(state_keys: int, rows: int, rounds: int, seed: int) -> list[MicroResult]:
    """Rows that Match finds nothing in, or little, against the same rows in their order and nothing else."""
    results = []
    for name, make in MADE.items():
        for enabled in (False, True):
            with (
                tempfile.TemporaryDirectory(prefix="asyncstate-micro-") as alone,
                tempfile.TemporaryDirectory(prefix="asyncstate-micro-") as folder,
            ):
                config = _config(enabled)
                floor, ours = in_order(Path(alone), config, seed), InOrder(Path(folder), make(), config, seed)
                times = _paired(floor.run, ours.run, draws(state_keys, rows, seed), rounds)
            mode = "async" if enabled else "sync"
            results.append(_result(f"{name}, {mode}", "row", "the rows in order", rows, times, 1.5))
    return results


def run(state_keys: int, unique: int, rounds: int, seed: int = 1, apart: bool = True) -> list[MicroResult]:
    """All micro-benchmarks, with the garbage collector set as in Spark's workers.

    ``apart``: each kind in a process of its own. What a benchmark before it has left in the heap makes small objects
    lie elsewhere, which was worth up to 10% of a chain of a ValueState.
    """
    kinds: list[tuple[Callable[..., list[MicroResult]], tuple[int, ...]]] = [
        (bundle_grain, (state_keys, unique, rounds, seed)),
        (distinct, (state_keys, unique, rounds, seed)),
        (state_paths, (unique, rounds, seed)),
        (record_grain, (state_keys, unique, rounds, seed)),
        (iteration, (unique, rounds)),
        (outside_calls, (max(unique // 10, 1), rounds, seed)),
        (first_input, (state_keys, unique, rounds, seed)),
        (matching, (state_keys, unique, rounds, seed)),
    ]
    if not apart:
        settle_worker()
        return [result for kind, arguments in kinds for result in kind(*arguments)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=settle_worker, max_tasks_per_child=1) as processes:
        done = [processes.submit(kind, *arguments) for kind, arguments in kinds]
        return [result for each in done for result in each.result()]


def micro_table(results: Sequence[MicroResult], title: str) -> Table:
    """The results as a table for people, within 80 characters; times in microseconds a unit."""
    table = Table(
        title=title,
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    table.add_column("\noperator and mode", overflow="fold")  # not the figures: they need their width
    table.add_column("\nunit", no_wrap=True)
    for heading in ("by hand\nus", "CPU\nus", "ours\nus", "CPU\nus", "\nratio", "\nspread", "\naim"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.name,
            result.unit,
            *map(_shown, (result.floor_us, result.floor_cpu_us, result.ours_us, result.ours_cpu_us)),
            f"{result.ratio:.2f}",
            f"{result.ratio_min:.2f}-{result.ratio_max:.2f}",
            f"{result.target:.1f}",
        )
    return table


def _shown(microseconds: float) -> str:
    return f"{microseconds:.2f}" if microseconds < 10 else f"{microseconds:,.1f}"
