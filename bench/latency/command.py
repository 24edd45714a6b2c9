"""What a micro-batch of few rows costs, and how long an event takes to its output while events come at a steady rate:
``python -m bench latency``.

Invariant: one query runs at a time; the engines of a work take turns, and the first turn of each, in which the JVM
compiles what it runs, does not count, nor do the first micro-batches of a turn, which open state. Events come from a
process of their own, so that nobody's work delays them: line ``i`` is the number i. The time of an event begins when it
is handed to the source's socket and ends when the sink has the rows of its micro-batch; what came out is checked to be
right, for every event. The plans are those of ``bench.peers``, whose results are compared with DuckDB's there; what
differs between the engines of a work is who runs it, never the rows or the source.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from asyncstate.spark import StreamingJob
from asyncstate.spark.compatibility import arrow_table
from bench.frame import Cores, Report, Row, benchmark, chosen, columns, in_turns, medians, numbers, serving
from bench.peers.ours import graph
from bench.peers.ours import micro_batches as ours
from bench.peers.spark_plans import NATIVE, PYTHON, spark_conf
from bench.peers.works import PEERS, WORKS
from bench.processor_time import Spent, TreeClocks, spent_seconds, tree_times
from bench.session import session

Numbers = npt.NDArray[np.int64]
Number = Callable[[Any], Any]  # the number of each row, of the columns of a DataFrame or of arrays, by name


class Sink:
    """Receives the output: as a DataFrame from a function of micro-batches, as Arrow from a graph. It drops the rows,
    or gives ``seen`` the ``number`` of each as soon as it has them."""

    def __init__(self, number: Number | None = None, seen: Callable[[Numbers], None] | None = None) -> None:
        self._number, self._seen = number, seen

    def __call__(self, rows: DataFrame, _batch_id: int) -> None:
        if self._number is None or self._seen is None:
            rows.write.format("noop").mode("overwrite").save()
        else:
            found = arrow_table(rows.select(self._number(rows).alias("number"))).column(0)
            self._seen(found.to_numpy().astype(np.int64))

    def write_arrow_micro_batch(self, rows: pa.Table, *_: Any) -> None:
        if self._number is not None and self._seen is not None:
            columns = {name: rows.column(name).to_numpy() for name in rows.column_names}
            self._seen(self._number(columns).astype(np.int64))


class Engine(NamedTuple):
    """One who does the work. ``peer`` is its name in ``bench.peers``; ``direct`` writes to Spark's sink ``noop`` itself
    instead of through ``foreachBatch``. ``graph``: a job of asyncstate's that is a graph; the sink gets Arrow.
    ``work``: the work of ``bench.peers.ours``, if it is another."""

    name: str
    title: str
    peer: str
    direct: bool = False
    graph: bool = False
    work: str = ""


_OURS = (
    *(Engine(name, PEERS[name].title, name, graph=True) for name in ("ours-sync", "ours-async")),
    Engine("ours-function", "asyncstate, sync, a function", "ours-sync"),
)
_THREE = Engine("ours-three", "asyncstate, sync, three operators", "ours-sync", graph=True, work="a-three")
_APIS = ("tws-row", "tws-pandas", "apply-pandas")
_PYTHON = [Engine(name, PEERS[name].title, name, direct=True) for name in _APIS]
_SPARK = (
    Engine("spark-heap", "Spark, heap", "spark-heap", direct=True),
    Engine("spark", "Spark, RocksDB", "spark-changelog", direct=True),
    Engine("spark-foreach", "the same, foreachBatch", "spark-changelog"),
)
ENGINES: Mapping[str, tuple[Engine, ...]] = {
    "a": (*_OURS, _THREE, *_SPARK),
    "b": (*_OURS, *_SPARK),
    "d": (*_OURS, *_PYTHON),
}
"""By work, asyncstate first."""


class Keyed(NamedTuple):
    """How the numbers that a source counts up become the rows of a work, and come out again. ``fixed`` is the key of
    number ``value`` where the state has ``{keys}`` keys; ``steady`` the key where each number has to be known by what
    comes out for it, and ``number``, for so many keys, that number by the columns that come out. ``each``: a row comes
    out for each number; otherwise one for the last of a key in a micro-batch."""

    fixed: str
    steady: str
    number: Callable[[int], Number]
    each: bool


_SPREAD = "pmod(value * 7919, {keys})"  # prime: neighbouring numbers are not neighbouring keys
_HALF_NEW = f"IF(value % 2 = 0, {_SPREAD}, {{keys}} + value)"  # half of the numbers have keys that were there


def _counted(keys: int) -> Number:
    return lambda rows: (rows["n"] - 1) * keys + rows["key"]


KEYED: Mapping[str, Keyed] = {
    "a": Keyed(_SPREAD, "pmod(value, {keys})", _counted, each=False),
    "b": Keyed(_HALF_NEW, "value", lambda _: itemgetter("key"), each=True),
    "d": Keyed(_SPREAD, "pmod(value, {keys})", _counted, each=True),
}


class Started(NamedTuple):
    """A query that has been started, and the job it runs, if it is asyncstate's."""

    query: StreamingQuery
    job: StreamingJob | None

    def stop(self) -> None:
        if self.job is not None:
            self.job.stop(self.query)
            return
        self.query.stop()
        with suppress(Exception):  # Python workers that were at work say so
            self.query.awaitTermination(10)


def able(work: str, names: Sequence[str]) -> list[Engine]:
    """The engines of a work that are among ``names`` and can run here."""
    return [each for each in ENGINES[work] if each.name in names and not PEERS[each.peer].missing]


def start(spark: SparkSession, who: Engine, work: str, rows: DataFrame, folder: Path, sink: Sink) -> Started:
    """Start the work over ``rows``, a stream of key and value, with the default trigger; go on where it was in
    ``folder``. ``sink`` receives the output, except that of a direct engine."""
    peer, place = PEERS[who.peer], str(folder / "query")
    if who.graph:
        job = graph(spark, peer, who.work or work, folder, rows, sink)
        return Started(job.start(query_checkpoint=place), job)
    if peer.ours:
        job, on_batch = ours(spark, peer, work, folder, sink)
        stream = rows.writeStream.foreachBatch(on_batch).option("checkpointLocation", place)
        return Started(stream.start(), job)
    for key, value in spark_conf(peer.store).items():
        if key != "spark.driver.memory":  # of the session; there is little state here
            spark.conf.set(key, value)
    plan, mode = PYTHON.get((work, who.peer)) or NATIVE[work]
    stream = plan({"rows": rows}).writeStream.outputMode(mode)
    stream = stream.format("noop") if who.direct else stream.foreachBatch(sink)
    return Started(stream.option("checkpointLocation", place).start(), None)


_STEP_SECONDS = 0.01
_POLL_SECONDS = 0.1  # asking costs processor time, too
_TURN_SECONDS_MAX, _OUTPUT_SECONDS_MAX = 300.0, 120.0
_KNOWN_SECONDS_MIN = 1.0
_WARM_UP_SECONDS = 8.0
_KEY_SECONDS = 5  # after so many each key comes again, at a steady rate
_CONF = {"spark.log.level": "OFF"}
"""Ending a query of Spark's interrupts its micro-batch, of which the log would be full; failures are raised."""


def serve(line: Connection, rate: int, count: int) -> None:
    """Say the port, send numbers from 0 on to the first who connects, ``rate`` a second and ``count`` in all, in steps
    of some milliseconds; say when each was sent, in seconds since the epoch."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line.send(server.getsockname()[1])
        connection, _ = server.accept()
        with connection, suppress(EOFError):
            times = np.zeros(count)
            sent, started = 0, time.time()
            while sent < count:
                due = min(count, int((time.time() - started) * rate) + 1)
                if due > sent:
                    times[sent:due] = time.time()
                    connection.sendall("".join(f"{number}\n" for number in range(sent, due)).encode())
                    sent = due
                time.sleep(_STEP_SECONDS)
            line.send(times)
            line.recv()  # the connection stays: a source whose end has gone fails


class Plan(NamedTuple):
    """How much, by the engines of these names. Micro-batches of each of ``sizes`` rows, ``batches`` a turn after
    ``opening`` ones, ``turns`` that count, on ``keys`` keys. ``rate`` events a second for ``warm_up`` seconds that do
    not count and ``seconds`` that do, on ``steady_keys``."""

    folder: Path
    engines: Sequence[str]
    keys: int
    steady_keys: int
    sizes: Sequence[int] = ()
    batches: int = 1
    turns: int = 1
    opening: int = 1
    rate: int = 0
    seconds: float = 0.0
    warm_up: float = 0.0

    @property
    def first(self) -> int:
        return int(self.rate * self.warm_up)

    @property
    def events(self) -> int:
        return self.first + int(self.rate * self.seconds)


def _wait(running: Started, seconds: float, what: str, until: Callable[[], bool]) -> None:
    """Raises what the query fails with, and TimeoutError with ``what`` it is."""
    end = time.perf_counter() + seconds
    while not until():
        if (failure := running.query.exception()) is not None:
            raise failure
        if time.perf_counter() > end:
            raise TimeoutError(f"{what} within {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def fixed_costs(spark: SparkSession, work: str, plan: Plan, report: Report) -> None:
    """A row an engine of a work, with facts for each size. Who fails is out; what was measured of it stays."""
    engines = {engine.name: engine for engine in able(work, plan.engines)}
    group = f"{work}: {WORKS[work].title}"
    rows = {name: Row(name=engine.title, group=group) for name, engine in engines.items()}
    spent: dict[tuple[str, int], list[Spent]] = defaultdict(list)

    def fill(name: str, _: int) -> None:
        report.tell(f"{work}: filling the state: {rows[name].name}")
        _turn(spark, work, engines[name], plan, plan.keys, 0, 1)

    def turn(size: int, name: str, number: int) -> None:
        report.tell(f"{work}: {size:,} rows, turn {number}/{plan.turns}: {rows[name].name}")
        found = _turn(spark, work, engines[name], plan, size, plan.batches, plan.opening)
        spent[name, size] += found if number else []

    failed = in_turns(list(engines), 1, fill)
    for size in plan.sizes:
        left = [name for name in engines if name not in failed]
        failed |= in_turns(left, plan.turns + 1, partial(turn, size))
    for name, row in rows.items():
        row.failed = failed.get(name, "")
        row.facts = {"engine": name}
        for size in plan.sizes:
            found, seconds = spent[name, size], [each.seconds for each in spent[name, size]]
            row.facts[f"seconds_{size}"] = seconds
            if found:
                row.facts[f"ms_{size}"], row.facts[f"cpu_ms_{size}"] = medians(found, scale=1e3)
                row.facts |= {f"low_{size}": 1e3 * min(seconds), f"high_{size}": 1e3 * max(seconds)}
    report.add(*rows.values())


def _turn(
    spark: SparkSession, work: str, engine: Engine, plan: Plan, size: int, batches: int, opening: int
) -> list[Spent]:
    """Run the query from where it was until ``batches`` micro-batches after the ``opening`` ones have been counted:
    each, with the processor's seconds of one on the mean, if known."""
    # A source that has ``size`` numbers for each micro-batch, at once, and costs nearly nothing.
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size).load()
    key = KEYED[work].fixed.format(keys=plan.keys)
    rows = numbers.selectExpr(f"{key} AS key", "value % 1000003 AS value")
    running = start(spark, engine, work, rows, plan.folder / work / engine.name, Sink())
    seconds: list[float] = []
    cpu: dict[int, float] | None = None

    def enough(wanted: int) -> bool:
        nonlocal seconds, cpu
        cpu = tree_times(os.getpid())
        updates = [update for update in running.query.recentProgress if update["numInputRows"] == size]
        seconds = [update["durationMs"]["triggerExecution"] / 1e3 for update in updates]
        return len(seconds) >= wanted

    def up_to(wanted: int) -> int:
        _wait(running, _TURN_SECONDS_MAX, f"no {wanted} micro-batches", lambda: enough(wanted))
        return len(seconds)

    try:
        first = up_to(opening)
        before = cpu
        last = up_to(first + batches)
    finally:
        running.stop()
    busy = spent_seconds(before, cpu)
    mean = None if busy is None else busy / max(1, last - first)
    return [Spent(each, mean) for each in seconds[first:]]


def latencies(spark: SparkSession, work: str, plan: Plan, report: Report) -> None:
    """One row per engine of a work, one after the other. All use the sink that records the output."""
    group = f"{work}: {WORKS[work].title}"
    found = [engine for engine in able(work, plan.engines) if not engine.work]
    # Of those that differ in "direct" alone one is left.
    for engine in {(each.peer, each.graph): each for each in found}.values():
        peer = PEERS[engine.peer]
        engine = engine._replace(title=engine.title if peer.ours else peer.title, direct=False)
        report.case(engine.title, _latency, spark, work, engine, plan, group, group=group)


def _latency(spark: SparkSession, work: str, engine: Engine, plan: Plan, group: str) -> Iterator[Row]:
    came: list[tuple[float, Numbers]] = []  # when events came to the sink, and which, a micro-batch each
    number = KEYED[work].number(plan.steady_keys)

    def seen(found: Numbers) -> None:
        moment = time.time()
        if len(found):
            came.append((moment, found))

    folder = plan.folder / "steady" / work / engine.name
    with serving(serve, plan.rate, plan.events) as line:
        source = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", line.recv())
        key = KEYED[work].steady.format(keys=plan.steady_keys)
        rows = source.load().selectExpr("CAST(value AS BIGINT) AS value").selectExpr(f"{key} AS key", "value")
        running = start(spark, engine, work, rows, folder, Sink(number, seen))
        late = _OUTPUT_SECONDS_MAX, "no more output (give a lower --rate)"
        try:
            _wait(running, *late, lambda: bool(came))
            clocks = TreeClocks()
            times = line.recv()
            spent = clocks.spent()
            _wait(running, *late, lambda: any(plan.events - 1 in each for _, each in came[-2:]))
        finally:
            running.stop()
    counted = [1e3 * (moment - times[each[each >= plan.first]]) for moment, each in came]
    waits = np.concatenate(counted)
    facts: dict[str, object] = {"engine": engine.name, "rate": plan.rate, "events": len(waits)}
    for name, share in (("p50_ms", 50), ("p95_ms", 95), ("max_ms", 100)):
        facts[name] = float(np.percentile(waits, share))
    facts["batch_events"] = len(waits) / sum(bool(len(each)) for each in counted)
    if spent.cpu_seconds and spent.seconds > _KNOWN_SECONDS_MIN:
        facts["cpu_share"] = spent.cpu_seconds / spent.seconds
    wrong = problems_of([each for _, each in came], plan, KEYED[work].each)
    yield Row(name=engine.title, group=group, facts=facts, wrong=wrong)


def problems_of(numbers: Sequence[Numbers], plan: Plan, each: bool) -> list[str]:
    """What is wrong with the numbers that came out, a micro-batch each. All are to come out once; unless ``each``, the
    last of every key, and the others at most once."""
    found, times = np.unique(np.concatenate(numbers), return_counts=True)
    wanted = np.arange(0 if each else max(0, plan.events - plan.steady_keys), plan.events)
    problems = (
        (len(np.setdiff1d(wanted, found)), "events are missing in the output"),
        (int((times > 1).sum()), "events are in the output more than once"),
        (len(np.setdiff1d(found, np.arange(plan.events))), "rows belong to no event"),
    )
    return [f"{count:,} {what}" for count, what in problems if count]


_FIXED = """ROWS ms: ms_SIZE as whole drawn low_SIZE high_SIZE
    ROWS spread: low_SIZE high_SIZE as whole; CPU ms: cpu_ms_SIZE as whole"""
_STEADY = columns("""
    events /s: rate; p50 ms: p50_ms as whole drawn p50_ms p95_ms; p95 ms: p95_ms as whole
    max ms: max_ms as whole; events a batch: batch_events as whole; cores busy: cpu_share
""")


@benchmark(work="a", rows="10", engines="ours-sync,spark", batches=1, turns=1, keys=99, rate=100, seconds=0.5)
def latency(
    report: Report,
    work: Annotated[str, typer.Option(help="a aggregates, b first rows, d a counter.")] = "all",
    rows: Annotated[str, typer.Option(help="Rows a micro-batch; or ''.")] = "10,1000,10000",
    engines: Annotated[str, typer.Option(help="Such as ours-sync,spark; or 'all'.")] = "all",
    batches: Annotated[int, typer.Option(min=1, help="Measured micro-batches per turn.")] = 8,
    turns: Annotated[int, typer.Option(min=1, help="Counted turns of each engine.")] = 2,
    keys: Annotated[int, typer.Option(min=1, help="Keys in the state.")] = 100_000,
    rate: Annotated[int, typer.Option(min=0, help="Events a second; or 0.")] = 1_000,
    seconds: Annotated[float, typer.Option(min=0.5, help="Measured seconds at that rate.")] = 15.0,
    cores: Cores = 2,
) -> None:
    """Measure small micro-batches and the latency of events, compared with Spark's own stateful operators."""
    works = chosen(work, ENGINES, "--work")
    sizes = numbers(rows, "--rows") if rows else ()
    known = dict.fromkeys(engine.name for each in ENGINES.values() for engine in each)
    names = chosen(engines, known, "--engines")
    much = 1 if report.tiny else 2, rate, seconds, 0.5 if report.tiny else _WARM_UP_SECONDS
    steady_keys = min(keys, _KEY_SECONDS * rate)
    plan = Plan(report.folder, names, keys, steady_keys, sizes, batches, turns, *much)
    for each in works:
        for engine in ENGINES[each]:
            if (missing := PEERS[engine.peer].missing) and engine.name in names:
                report.say(f"{each}: left out: {engine.title}: {missing}")
    report.tell("starting Spark")
    with session("latency", report.folder, cores, _CONF) as spark:
        shown = (_FIXED.replace("SIZE", str(size)).replace("ROWS", f"{size:,}") for size in plan.sizes)
        heads = columns("\n".join(shown))
        report.section("A micro-batch of few rows, ms from trigger to commit; medians", heads)
        for each in works if plan.sizes else ():
            fixed_costs(spark, each, plan, report)
        report.section("From event to output, default trigger, at a steady rate", _STEADY)
        for each in works if plan.rate else ():
            latencies(spark, each, plan, report)
