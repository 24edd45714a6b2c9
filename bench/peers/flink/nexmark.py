"""Work f: the Nexmark queries on asyncstate and on Flink SQL, over the same events; and PyFlink for works d and g.

Owns: ``nexmark``, ``keyed`` and the order in which they take turns: a run each.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from bench.frame import CaseError, Report, Row
from bench.frame.report import reason
from bench.nexmark.comparison import ComparisonResult
from bench.nexmark.oracle import QUERIES, QuerySpec
from bench.nexmark.runner import NexmarkRunner, RunSettings, start_session
from bench.peers.flink.queries import FLINK_QUERIES
from bench.peers.flink.run import Flink, Sizes, find_flink
from bench.peers.results import FLINK_GOOD, Throughput, compared
from bench.peers.works import Scale
from bench.processor_time import Spent

Tell = Callable[[str], None]

_CHECK_ROWS = 2_000
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
    checked_events: int = sys.maxsize


def nexmark(names: Sequence[str], plan: NexmarkPlan, report: Report) -> None:
    """The rows of one query after the other; only why, if there is no Flink."""
    python = find_flink(plan.python)
    if isinstance(python, str):
        report.add(*(_blank("f", "Nexmark", name, skipped=python) for name in names if name in FLINK_PEERS))
        return
    report.tell("f: starting Spark and generating events")
    settings = RunSettings(
        plan.folder / "nexmark", plan.events, -(-plan.events // _MICRO_BATCHES), plan.cores, plan.seed
    )
    spark = start_session(settings)
    runner = NexmarkRunner(spark, settings)
    try:
        events = runner.prepare().path
        for query in plan.queries:
            engines = _Engines(QUERIES[query], runner, python, events, plan, report.tell)
            report.add(*compared(engines.run([name for name in (*_OURS, *FLINK_PEERS) if name in names])))
    finally:
        runner.close()
        spark.stop()


class _Engines:
    """One query on all engines. An engine that fails is out, with the reason."""

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
        self._sizes = Sizes(
            min(plan.checked_events, plan.events), max(1, plan.events // _SHORT_SHARE), plan.events
        )

    def run(self, names: Sequence[str]) -> list[Throughput]:
        """Check all results, which warms ours up, then take turns."""
        results = {name: _blank(f"f {self._spec.name}", self._spec.description, name) for name in names}
        for name in names:
            results[name] = self._tried("checking", results[name], self._checked)
        for number in range(self._plan.repeat):
            for name in names[:: -1 if number % 2 else 1]:
                results[name] = self._tried(
                    f"run {number + 1}/{self._plan.repeat}", results[name], self._timed
                )
        return list(results.values())

    def _tried(self, doing: str, before: Throughput, work: Callable[[Throughput], Throughput]) -> Throughput:
        if before.wrong or before.failed:
            return before
        self._tell(f"f: {self._spec.name}, {doing}: {before.peer}")
        try:
            return work(before)
        except Exception as error:  # the other queries and engines have results nevertheless
            return msgspec.structs.replace(before, failed=reason(error), seconds=[])

    def _checked(self, result: Throughput) -> Throughput:
        if result.peer in _OURS:
            run = self._runner.run(self._spec.name, _OURS[result.peer][1])
            return msgspec.structs.replace(result, expected_rows=run.expected_rows, wrong=list(run.problems))
        backend = FLINK_PEERS[result.peer][1]
        if backend is None:  # no result
            return result
        return _judged(result, self._flink.check_query(self._spec, self._events, self._sizes.check, backend))

    def _timed(self, before: Throughput) -> Throughput:
        if before.peer not in _OURS:
            backend = FLINK_PEERS[before.peer][1]
            spent = self._flink.query_seconds(self._spec, self._events, self._sizes, backend)
            return _with_difference(before, spent, self._sizes)
        batch_ms, cpu_seconds = self._runner.dropped(self._spec.name, _OURS[before.peer][1])
        seconds = [*before.seconds, statistics.median(batch_ms) / 1e3]
        cpu = [] if cpu_seconds is None else [*before.cpu_seconds, cpu_seconds / len(batch_ms)]
        rows = self._runner.prepare().micro_batch_events
        return msgspec.structs.replace(before, rows=rows, seconds=seconds, cpu_seconds=cpu)


def keyed(work: str, label: str, title: str, scale: Scale, plan: NexmarkPlan, tell: Tell) -> Throughput:
    """PyFlink at work d or g, on rows drawn from the keys of ``scale``."""
    kind, called = PYFLINK[work]
    result = Throughput(name=called, group=f"{label}: {title}", work=label, peer="pyflink", keys=scale.keys)
    python = find_flink(plan.python)
    if isinstance(python, str):
        return msgspec.structs.replace(result, skipped=python)
    folder = plan.folder / "pyflink"
    folder.mkdir(parents=True, exist_ok=True)
    flink = Flink(python, folder, plan.cores)
    random = np.random.default_rng(plan.seed)
    sizes = Sizes(min(_CHECK_ROWS, scale.rows), max(1, scale.rows // _SHORT_SHARE), scale.rows)
    check, short, long = (
        random.integers(0, scale.keys, count).tolist() for count in (sizes.check, sizes.short, sizes.long)
    )
    try:
        tell(f"{label}: checking pyflink")
        result = _judged(result, flink.check_keyed(kind, [key % 500 for key in check]))
        for number in range(0 if result.wrong else plan.repeat):
            tell(f"{label}: pyflink, run {number + 1}/{plan.repeat}")
            result = _with_difference(result, flink.keyed_seconds(kind, short, long), sizes)
    except CaseError as error:
        return msgspec.structs.replace(result, failed=str(error), seconds=[])
    return result


def share_of_good(rows: Sequence[Row]) -> list[Row]:
    """In which part of the queries ours is clearly ahead of Flink SQL, by the better of the two modes."""
    best = [
        max(row.facts.get(mode, 0.0) for mode in ("sync", "async"))
        for row in rows
        if isinstance(row, Throughput) and row.peer == "flink-sql" and row.facts
    ]
    if not best:
        return []
    share = sum(times >= FLINK_GOOD for times in best) / len(best)
    name = f"{share:.0%} of {len(best)} queries at {FLINK_GOOD:g}x of Flink SQL or above; the aim is 50%"
    return [Row(name=name, facts={"share": share})]


def _with_difference(result: Throughput, spent: tuple[Spent, Spent], sizes: Sizes) -> Throughput:
    """The time of the additional rows of the long input; its whole time if that is too small (tiny inputs)."""
    before, long = spent
    rows = sizes.long - sizes.short
    if long.seconds <= before.seconds:
        rows, before = sizes.long, Spent(0.0, 0.0)
    scale = (result.rows or rows) / rows
    cpu = result.cpu_seconds
    if long.cpu_seconds is not None and before.cpu_seconds is not None:
        cpu = [*cpu, (long.cpu_seconds - before.cpu_seconds) * scale]
    seconds = [*result.seconds, (long.seconds - before.seconds) * scale]
    return msgspec.structs.replace(result, rows=result.rows or rows, seconds=seconds, cpu_seconds=cpu)


def _judged(result: Throughput, outcome: ComparisonResult) -> Throughput:
    wrong = [*outcome.problems, *outcome.examples]
    return msgspec.structs.replace(result, expected_rows=outcome.expected_rows, wrong=wrong)


def _blank(work: str, title: str, peer: str, skipped: str = "") -> Throughput:
    name = _OURS[peer][0] if peer in _OURS else FLINK_PEERS[peer][0]
    return Throughput(name=name, group=f"{work}: {title}", work=work, peer=peer, skipped=skipped)
