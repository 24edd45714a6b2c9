"""Work f: the Nexmark queries on asyncstate and on Flink SQL, over the same events; and PyFlink for works d and g.

Owns: ``nexmark``, ``keyed`` and the order in which they take turns: a run each.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.nexmark.comparison import ComparisonResult
from bench.nexmark.oracle import QUERIES, QuerySpec
from bench.nexmark.runner import NexmarkRunner, RunSettings, start_session
from bench.peers.flink.queries import FLINK_QUERIES
from bench.peers.flink.run import Flink, RunSeconds, Sizes, find_flink
from bench.peers.results import FLINK_GOOD, Figure, Throughput, compare_all
from bench.peers.turns import PeerError

Tell = Callable[[str], None]

_CHECK_ROWS = 2_000
_SAID_MAX = 2_000
_SHORT_SHARE = 5  # of the long input
_MICRO_BATCHES = 10
_OURS = {"ours-sync": ("asyncstate, sync", False), "ours-async": ("asyncstate, async", True)}
FLINK_PEERS: Mapping[str, tuple[str, str | None]] = {
    "flink-sql": ("Flink SQL, RocksDB", "rocksdb"),
    "flink-sql-async": ("Flink SQL, ForSt, async state", "forst"),
    "flink-sql-heap": ("Flink SQL, heap", "hashmap"),
    "flink-read": ("Flink, reading the CSV alone", None),
}
"""By name: how it is called, and where Flink keeps its state; None: it does nothing but read."""
PYFLINK = {"d": ("counter", "PyFlink ValueState, process mode"), "g": ("mean", "PyFlink UDAF, process mode")}
"""By work: what PyFlink runs, and how it is called."""


@dataclass(frozen=True)
class NexmarkPlan:
    """How much: ``events`` in all, each query ``repeat`` times by turns."""

    folder: Path
    events: int
    cores: int
    repeat: int
    seed: int
    python: Path | None
    queries: tuple[str, ...] = tuple(FLINK_QUERIES)
    checked_events: int | None = None


def nexmark(names: Sequence[str], plan: NexmarkPlan, tell: Tell) -> Iterator[list[Throughput]]:
    """The results of one query after the other; only why, if there is no Flink."""
    python = find_flink(plan.python)
    if isinstance(python, str):
        chosen = [name for name in names if name in FLINK_PEERS]
        yield [_blank("f", "Nexmark", name, FLINK_PEERS[name][0], skipped=python) for name in chosen]
        return
    tell("f: starting Spark and generating events")
    settings = RunSettings(
        plan.folder / "nexmark", plan.events, -(-plan.events // _MICRO_BATCHES), plan.cores, plan.seed
    )
    spark = start_session(settings)
    runner = NexmarkRunner(spark, settings)
    try:
        events = runner.prepare().path
        for query in plan.queries:
            engines = _Engines(QUERIES[query], runner, python, events, plan, tell)
            yield engines.run([name for name in (*_OURS, *FLINK_PEERS) if name in names])
    finally:
        runner.close()
        spark.stop()


class _Engines:
    """One query on all engines."""

    def __init__(
        self,
        spec: QuerySpec,
        runner: NexmarkRunner,
        python: Path,
        events: Path,
        plan: NexmarkPlan,
        tell: Tell,
    ) -> None:
        self._spec = spec
        self._runner = runner
        self._events = events
        self._plan = plan
        self._tell = tell
        folder = plan.folder / f"flink-{spec.name}"
        folder.mkdir(parents=True)
        self._flink = Flink(python, folder, plan.cores)
        long = plan.events
        self._sizes = Sizes(min(plan.checked_events or long, long), max(1, long // _SHORT_SHARE), long)

    def run(self, names: Sequence[str]) -> list[Throughput]:
        """Check Flink's results, then take turns."""
        results = {name: self._checked(name) for name in names}
        for number in range(self._plan.repeat):
            for name in names if number % 2 == 0 else names[::-1]:
                if not (results[name].wrong or results[name].failed):
                    self._tell(f"f: {self._spec.name}, run {number + 1}/{self._plan.repeat}: {name}")
                    results[name] = self._timed(name, results[name])
        return list(results.values())

    def _result(self, name: str) -> Throughput:
        title = _OURS[name][0] if name in _OURS else FLINK_PEERS[name][0]
        return _blank(f"f {self._spec.name}", self._spec.description, name, title)

    def _checked(self, name: str) -> Throughput:
        result = self._result(name)
        self._tell(f"f: {self._spec.name}: checking {name}")
        if name in _OURS:  # on all events, which warms up too
            try:
                run = self._runner.run(self._spec.name, _OURS[name][1])
            except Exception as error:  # the other queries and engines have figures all the same
                return msgspec.structs.replace(result, failed=_said(error))
            return msgspec.structs.replace(
                result, expected_rows=run.expected_rows, checked=run.checked, problems=run.problems
            )
        backend = FLINK_PEERS[name][1]
        if backend is None:  # no result
            return msgspec.structs.replace(result, checked=True)
        try:
            outcome = self._flink.check_query(self._spec, self._events, self._sizes.check, backend)
        except PeerError as error:
            return msgspec.structs.replace(result, failed=str(error))
        return _judged(result, outcome)

    def _timed(self, name: str, before: Throughput) -> Throughput:
        if name in _OURS:
            try:
                timing = self._runner.dropped(self._spec.name, _OURS[name][1])
            except Exception as error:
                return msgspec.structs.replace(before, failed=_said(error), seconds=[])
            seconds = [*before.seconds, statistics.median(timing.batch_ms) / 1e3]
            cpu = before.cpu_seconds
            if timing.cpu_seconds is not None:
                cpu = [*cpu, timing.cpu_seconds / len(timing.batch_ms)]
            rows = self._runner.prepare().micro_batch_events
            return msgspec.structs.replace(before, rows=rows, seconds=seconds, cpu_seconds=cpu)
        try:
            times = self._flink.query_seconds(self._spec, self._events, self._sizes, FLINK_PEERS[name][1])
        except PeerError as error:
            return msgspec.structs.replace(before, failed=str(error), seconds=[])
        return _with_difference(before, times, self._sizes)


def keyed(
    work: str, label: str, title: str, keys: int, rows: int, plan: NexmarkPlan, tell: Tell
) -> Throughput:
    """PyFlink at work d or g, on rows drawn from ``keys`` keys."""
    kind, called = PYFLINK[work]
    result = _blank(label, title, "pyflink", called, keys)
    python = find_flink(plan.python)
    if isinstance(python, str):
        return msgspec.structs.replace(result, skipped=python)
    folder = plan.folder / "pyflink"
    folder.mkdir(parents=True, exist_ok=True)
    flink = Flink(python, folder, plan.cores)
    random = np.random.default_rng(plan.seed)
    sizes = Sizes(min(_CHECK_ROWS, rows), max(1, rows // _SHORT_SHARE), rows)
    check, short, long = (
        random.integers(0, keys, count).tolist() for count in (sizes.check, sizes.short, sizes.long)
    )
    try:
        tell(f"{label}: checking pyflink")
        result = _judged(result, flink.check_keyed(kind, [key % 500 for key in check]))
        for number in range(plan.repeat if result.checked else 0):
            tell(f"{label}: pyflink, run {number + 1}/{plan.repeat}")
            result = _with_difference(result, flink.keyed_seconds(kind, short, long), sizes)
    except PeerError as error:
        return msgspec.structs.replace(result, failed=str(error), checked=False)
    return result


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_SAID_MAX]


def share_of_good(results: Sequence[Throughput]) -> list[Figure]:
    """In which part of the queries ours is clearly ahead of Flink SQL, by the better of the two modes."""
    best: dict[str, float] = {}
    for each in compare_all(results):
        if each.work.startswith("f q") and each.peer == "flink-sql":
            best[each.work] = max(best.get(each.work, 0.0), each.ratio)
    if not best:
        return []
    share = sum(ratio >= FLINK_GOOD for ratio in best.values()) / len(best)
    name = f"share of {len(best)} Nexmark queries at {FLINK_GOOD:g}x of Flink SQL"
    return [Figure(group="nexmark", name=name, ratio=share, low=share, high=share, aim=0.5, at_most=False)]


def _with_difference(result: Throughput, times: tuple[RunSeconds, RunSeconds], sizes: Sizes) -> Throughput:
    """What the rows by which the long input is longer took; all of it when that is not to be told (tiny inputs)."""
    short, long = times
    rows, before = sizes.long - sizes.short, short
    if long.clock <= short.clock:
        rows, before = sizes.long, RunSeconds(0.0, 0.0)
    scale = (result.rows or rows) / rows
    cpu = result.cpu_seconds
    if long.cpu is not None and before.cpu is not None:
        cpu = [*cpu, (long.cpu - before.cpu) * scale]
    seconds = [*result.seconds, (long.clock - before.clock) * scale]
    return msgspec.structs.replace(result, rows=result.rows or rows, seconds=seconds, cpu_seconds=cpu)


def _judged(result: Throughput, outcome: ComparisonResult) -> Throughput:
    return msgspec.structs.replace(
        result,
        checked=outcome.ok,
        expected_rows=outcome.expected_rows,
        problems=(*outcome.problems, *outcome.examples),
    )


def _blank(work: str, title: str, peer: str, peer_title: str, keys: int = 0, skipped: str = "") -> Throughput:
    return Throughput(work=work, title=title, peer=peer, peer_title=peer_title, keys=keys, skipped=skipped)
