"""What a micro-batch of few rows costs.

Owns: ``FixedPlan`` and ``fixed_costs``.
Invariant: one query runs at a time; the engines of a work take turns, and the first turn of each, in which the JVM
compiles what it runs, does not count, nor do the first micro-batches of a turn, which open state.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.frame import Report, Row
from bench.frame.report import reason
from bench.latency.engines import KEYED, Engine, Running, chosen, dropped, start
from bench.peers.works import WORKS
from bench.processor_time import spent_seconds, tree_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS = 0.1
_TURN_SECONDS_MAX = 300.0


@dataclass(frozen=True)
class FixedPlan:
    """How much to measure: micro-batches of each of ``sizes`` rows, ``batches`` per turn after ``opening`` ones,
    ``turns`` that count, on ``keys`` keys, by the engines of these names."""

    folder: Path
    sizes: Sequence[int]
    batches: int
    turns: int
    keys: int
    engines: Sequence[str]
    opening: int = 2


@dataclass
class _Found:
    """Of an engine and size: seconds of each counted micro-batch, and the processor's of one on the mean, of each
    turn."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def fixed_costs(spark: SparkSession, work: str, plan: FixedPlan, report: Report) -> None:
    """A row an engine of a work, with facts for each size. Who fails is out; what was measured of it stays."""
    engines = chosen(work, plan.engines)
    rows = {engine.name: Row(name=engine.title, group=f"{work}: {WORKS[work].title}") for engine in engines}
    found = {(engine.name, size): _Found() for engine in engines for size in plan.sizes}

    def turn(engine: Engine, doing: str, *how: int) -> _Found:
        if not rows[engine.name].failed:
            report.tell(f"{work}: {doing}: {engine.title}")
            try:
                return _turn(spark, work, engine, plan, *how)
            except Exception as error:
                rows[engine.name].failed = reason(error)
        return _Found()

    for engine in engines:
        turn(engine, "filling the state", plan.keys, 0, 1)
    for size in plan.sizes:
        for number in range(plan.turns + 1):
            for engine in engines if number % 2 == 0 else engines[::-1]:
                doing = f"{size:,} rows, turn {number}/{plan.turns}"
                once = turn(engine, doing, size, plan.batches, plan.opening)
                if number:
                    found[engine.name, size].seconds += once.seconds
                    found[engine.name, size].cpu += once.cpu
    for (name, size), each in found.items():
        facts: dict[str, object] = {"engine": name, f"seconds_{size}": each.seconds}
        if each.seconds:
            ms = [1e3 * seconds for seconds in each.seconds]
            facts |= {f"ms_{size}": statistics.median(ms), f"low_{size}": min(ms), f"high_{size}": max(ms)}
        if each.cpu:
            facts[f"cpu_ms_{size}"] = 1e3 * statistics.median(each.cpu)
        rows[name].facts |= facts
    report.add(*rows.values())


def _turn(
    spark: SparkSession, work: str, engine: Engine, plan: FixedPlan, size: int, batches: int, opening: int
) -> _Found:
    """Continue the query until ``batches`` micro-batches after the ``opening`` ones have been measured."""
    rows = _numbers(spark, size).selectExpr(
        f"{KEYED[work].fixed.format(keys=plan.keys)} AS key", "value % 1000003 AS value"
    )
    running = start(spark, engine, work, rows, plan.folder / work / engine.name, dropped)
    try:
        before = _after(running, size, opening)
        after = _after(running, size, len(before[0]) + batches)
    finally:
        running.stop()
    first, last = len(before[0]), len(after[0])
    spent = spent_seconds(before[1], after[1])
    return _Found(after[0][first:], [spent / (last - first)] if spent and first < last else [])


def _numbers(spark: SparkSession, size: int) -> DataFrame:
    """A source that has ``size`` numbers for each micro-batch, at once, and costs nearly nothing."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size).load()


def _after(running: Running, size: int, batches: int) -> tuple[list[float], dict[int, float] | None]:
    """Seconds of the micro-batches of ``size`` rows so far, and of processors by process, as soon as there are so many.
    Raises what the query fails with.

    Asked for now and then: asking costs processor time, too.
    """
    until = time.perf_counter() + _TURN_SECONDS_MAX
    while True:
        cpu = tree_times(os.getpid())
        updates = [update for update in running.query.recentProgress if update.numInputRows == size]
        seconds = [update.durationMs["triggerExecution"] / 1e3 for update in updates]
        if len(seconds) >= batches:
            return seconds, cpu
        if (failure := running.query.exception()) is not None:
            raise failure
        if time.perf_counter() > until:
            raise TimeoutError(f"{len(seconds)} of {batches} micro-batches in {_TURN_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
