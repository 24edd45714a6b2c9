"""Work f: the Nexmark queries on asyncstate and on Flink SQL, over the same events; and PyFlink for works d and g.
They take turns, a run each.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.frame import CaseError, Report, Row, in_turns
from bench.nexmark.command import NexmarkRunner, RunSettings, started
from bench.nexmark.oracle import QUERIES, QuerySpec
from bench.peers.flink.run import FLINK_QUERIES, Flink, Sizes, find_flink
from bench.peers.results import FLINK_GOOD, Throughput, compared
from bench.peers.works import Scale
from bench.processor_time import Spent

Tell = Callable[[str], None]

_CHECK_ROWS = 2_000
_PYFLINK_ROWS = 60_000  # a minute of it; as many fewer keys, as for the other slow engines
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


class NexmarkPlan(NamedTuple):
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
    batch = -(-plan.events // _MICRO_BATCHES)
    settings = RunSettings(plan.folder / "nexmark", plan.events, batch, plan.cores, plan.seed)
    engines = [name for name in (*_OURS, *FLINK_PEERS) if name in names]
    with started(settings) as runner:
        for query in plan.queries:
            report.add(*compared(_of_query(QUERIES[query], engines, runner, python, plan, report.tell)))


def _of_query(
    spec: QuerySpec, names: Sequence[str], runner: NexmarkRunner, python: Path, plan: NexmarkPlan, tell: Tell
) -> list[Throughput]:
    """One query on all engines: all results are checked, which warms ours up, then they take turns. An engine that
    fails or is wrong is out, with the reason."""
    flink, events = Flink(python, plan.folder / f"flink-{spec.name}", plan.cores), runner.prepare().path
    checked = min(plan.checked_events, plan.events)
    sizes = Sizes(checked, max(1, plan.events // _SHORT_SHARE), plan.events)
    results = {name: _blank(f"f {spec.name}", spec.description, name) for name in names}

    def check(name: str, _: int) -> None:
        tell(f"f: {spec.name}, checking: {name}")
        result = results[name]
        if name in _OURS:
            run = runner.run(spec.name, _OURS[name][1])
            result.expected_rows, result.wrong = run.facts["expected_rows"], run.wrong[1:]
        elif (backend := FLINK_PEERS[name][1]) is not None:  # else there is no result
            outcome = flink.check_query(spec, events, sizes.check, backend)
            result.expected_rows, result.wrong = outcome.expected_rows, outcome.wrong

    def measure(name: str, number: int) -> None:
        tell(f"f: {spec.name}, run {number + 1}/{plan.repeat}: {name}")
        result = results[name]
        if name in _OURS:
            batch_ms, cpu_seconds = runner.dropped(spec.name, _OURS[name][1])
            result.rows = runner.prepare().micro_batch_events
            result.seconds.append(statistics.median(batch_ms) / 1e3)
            result.cpu_seconds += [] if cpu_seconds is None else [cpu_seconds / len(batch_ms)]
        else:
            _add(result, sizes, *flink.query_seconds(spec, events, sizes, FLINK_PEERS[name][1]))

    failed = in_turns(names, 1, check)
    able = [name for name in names if name not in failed and not results[name].wrong]
    failed |= in_turns(able, plan.repeat, measure)
    for name, why in failed.items():
        results[name].failed, results[name].seconds = why, []
    return list(results.values())


def keyed(work: str, label: str, title: str, scale: Scale, plan: NexmarkPlan, tell: Tell) -> Throughput:
    """PyFlink at work d or g, on rows drawn from the keys of ``scale``, of which it gets no more than it can do."""
    rows = min(scale.rows, _PYFLINK_ROWS)
    scale = replace(scale, rows=rows, keys=max(1, scale.keys * rows // scale.rows))
    kind, called = PYFLINK[work]
    result = Throughput(name=called, group=f"{label}: {title}", work=label, peer="pyflink", keys=scale.keys)
    python = find_flink(plan.python)
    if isinstance(python, str):
        result.skipped = python
        return result
    flink = Flink(python, plan.folder / "pyflink", plan.cores)
    random = np.random.default_rng(plan.seed)
    sizes = Sizes(min(_CHECK_ROWS, scale.rows), max(1, scale.rows // _SHORT_SHARE), scale.rows)
    check, short, long = (random.integers(0, scale.keys, count).tolist() for count in sizes)
    try:
        tell(f"{label}: checking pyflink")
        outcome = flink.check_keyed(kind, [key % 500 for key in check])
        result.expected_rows, result.wrong = outcome.expected_rows, outcome.wrong
        for number in range(0 if result.wrong else plan.repeat):
            tell(f"{label}: pyflink, run {number + 1}/{plan.repeat}")
            _add(result, sizes, *flink.keyed_seconds(kind, short, long))
    except CaseError as error:
        result.failed, result.seconds = str(error), []
    return result


def share_of_good(rows: Sequence[Row]) -> list[Row]:
    """In which part of the queries ours is clearly ahead of Flink SQL, by the better of the two modes."""
    mine = [
        row.facts for row in rows if isinstance(row, Throughput) and row.peer == "flink-sql" and row.facts
    ]
    best = [max(facts.get("sync", 0.0), facts.get("async", 0.0)) for facts in mine]
    if not best:
        return []
    share = sum(times >= FLINK_GOOD for times in best) / len(best)
    name = f"{share:.0%} of {len(best)} queries at {FLINK_GOOD:g}x of Flink SQL or above; the aim is 50%"
    return [Row(name=name, facts={"share": share})]


def _add(result: Throughput, sizes: Sizes, short: Spent, long: Spent) -> None:
    """The time of the additional rows of the long input; its whole time if that is too small (tiny inputs)."""
    rows = sizes.long - sizes.short
    if long.seconds <= short.seconds:
        rows, short = sizes.long, Spent(0.0, 0.0)
    result.rows = result.rows or rows
    scale = result.rows / rows
    result.seconds.append((long.seconds - short.seconds) * scale)
    if long.cpu_seconds is not None and short.cpu_seconds is not None:
        result.cpu_seconds.append((long.cpu_seconds - short.cpu_seconds) * scale)


def _blank(work: str, title: str, peer: str, skipped: str = "") -> Throughput:
    name = _OURS[peer][0] if peer in _OURS else FLINK_PEERS[peer][0]
    return Throughput(name=name, group=f"{work}: {title}", work=work, peer=peer, skipped=skipped)
