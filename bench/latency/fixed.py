"""What a micro-batch of few rows costs.

Owns: ``FixedCost`` and ``fixed_costs``.
Invariant: one query runs at a time; the engines of a work take turns, and the first turn of each, in which the JVM
compiles what it runs, does not count, nor do the first micro-batches of a turn, which open state.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.latency.engines import KEYED, Engine, Running, chosen, dropped, start, title_of
from bench.processor_time import spent_seconds, tree_times

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_POLL_SECONDS = 0.1
_TURN_SECONDS_MAX = 300.0


class FixedCost(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's micro-batches of ``rows`` rows: ``seconds`` of each from trigger to commit, and ``cpu_seconds`` of
    processors, all processes, the mean of each turn (empty where the system does not tell)."""

    work: str
    title: str
    engine: str
    engine_title: str
    rows: int
    seconds: list[float]
    cpu_seconds: list[float]

    @property
    def ms(self) -> float:
        """Median milliseconds."""
        return statistics.median(self.seconds) * 1e3

    @property
    def cpu_ms(self) -> float | None:
        """Median milliseconds of processors."""
        return statistics.median(self.cpu_seconds) * 1e3 if self.cpu_seconds else None


@dataclass(frozen=True)
class FixedPlan:
    """How much: micro-batches of each of ``sizes`` rows, ``batches`` a turn behind ``opening`` ones, ``turns`` that
    count, on ``keys`` keys, by the engines of these names."""

    folder: Path
    sizes: Sequence[int]
    batches: int
    turns: int
    keys: int
    engines: Sequence[str]
    opening: int = 2


def fixed_costs(
    spark: SparkSession, work: str, plan: FixedPlan, tell: Callable[[str], None]
) -> Iterator[FixedCost]:
    """A result for each size and engine of a work."""
    engines = chosen(work, plan.engines)
    for engine in engines:
        tell(f"{work}: filling the state of {engine.title}")
        _turn(spark, work, engine, plan, plan.keys, batches=0, opening=1)
    for size in plan.sizes:
        found: dict[str, list[_Turn]] = {engine.name: [] for engine in engines}
        for number in range(plan.turns + 1):
            for engine in engines if number % 2 == 0 else engines[::-1]:
                tell(f"{work}: {size:,} rows, turn {number}/{plan.turns}: {engine.title}")
                turn = _turn(spark, work, engine, plan, size, plan.batches, plan.opening)
                if number:
                    found[engine.name].append(turn)
        for engine in engines:
            turns = found[engine.name]
            yield FixedCost(
                work=work,
                title=title_of(work),
                engine=engine.name,
                engine_title=engine.title,
                rows=size,
                seconds=[each for turn in turns for each in turn.seconds],
                cpu_seconds=[turn.cpu for turn in turns if turn.cpu is not None],
            )


@dataclass(frozen=True)
class _Turn:
    """Seconds of each counted micro-batch, and the processor's of one on the mean."""

    seconds: list[float]
    cpu: float | None


def _turn(
    spark: SparkSession,
    work: str,
    engine: Engine,
    plan: FixedPlan,
    size: int,
    batches: int,
    opening: int,
) -> _Turn:
    """Run the query from where it was until ``batches`` micro-batches behind the ``opening`` ones have been counted."""
    rows = _numbers(spark, size).selectExpr(
        f"{KEYED[work].fixed.format(keys=plan.keys)} AS key", "value % 1000003 AS value"
    )
    running = start(spark, engine, work, rows, plan.folder / work / engine.name, dropped)
    try:
        before = _after(running, size, opening)
        after = _after(running, size, len(before.seconds) + batches)
    finally:
        running.stop()
    first, last = len(before.seconds), len(after.seconds)
    spent = spent_seconds(before.cpu, after.cpu)
    return _Turn(after.seconds[first:], spent / (last - first) if spent and first < last else None)


def _numbers(spark: SparkSession, size: int) -> DataFrame:
    """A source that has ``size`` numbers for each micro-batch, at once, and costs nearly nothing."""
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size).load()


@dataclass(frozen=True)
class _SoFar:
    """Seconds of the micro-batches so far, and of processors by process."""

    seconds: list[float]
    cpu: dict[int, float] | None


def _after(running: Running, size: int, batches: int) -> _SoFar:
    """As soon as there are so many micro-batches of ``size`` rows. Raises what the query fails with.

    Asked for now and then: asking costs processor time, too.
    """
    until = time.perf_counter() + _TURN_SECONDS_MAX
    while True:
        cpu = tree_times(os.getpid())
        seconds = [
            update.durationMs["triggerExecution"] / 1e3
            for update in running.query.recentProgress
            if update.numInputRows == size
        ]
        if len(seconds) >= batches:
            return _SoFar(seconds, cpu)
        if (failure := running.query.exception()) is not None:
            raise failure
        if time.perf_counter() > until:
            raise TimeoutError(f"{len(seconds)} of {batches} micro-batches in {_TURN_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
