"""The measurement: micro-batch after micro-batch, each in every mode, the order turned round each time.

Owns: ``Plan``, ``TwoPhaseResult`` and ``run``.
Invariant: the modes of a case read the same files and put out the same net rows; the first micro-batches do not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.testing import net
from bench.processor_time import TreeClocks, TreeSpent, median_cpu
from bench.twophase.workloads import CASES, Case, write_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MODES = {"one": "false", "two": "true", "auto": "auto"}
"""What a mode is called here and what ``async-state.local-aggregation`` then is."""
WARM_UP = 2
"""Micro-batches that are not counted; ``auto`` has nothing to go by in the first."""


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rows: int
    rounds: int
    cores: int
    seed: int


class TwoPhaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case. Rows are those of one micro-batch: of the input, behind the partial aggregation (what Spark's own
    exchange carries), and at the operator. Times are seconds of a micro-batch, medians. Ratios are medians over pairs
    of micro-batches, above 1 where two phases (``auto``) are quicker than one. ``cpu`` are ratios of processor time,
    over the JVM and its workers; they say more than times on a machine with other work, None where /proc is not there.
    ``auto_local`` is the share of micro-batches in which ``auto`` took two phases.
    """

    case: str
    title: str
    rows: int
    rows_exchanged: int
    rows_operator: int
    one_seconds: float
    two_seconds: float
    auto_seconds: float
    one_cpu_seconds: float | None
    two_cpu_seconds: float | None
    auto_cpu_seconds: float | None
    two_ratio: float
    auto_ratio: float
    two_cpu: float | None
    auto_cpu: float | None
    auto_local: float


class WrongResultError(Exception):
    """Two modes have put out different rows."""


@dataclass
class _Mode:
    job: StreamingJob
    on_batch: Callable[[DataFrame, int], None]
    output: list[Any]
    spent: list[TreeSpent]
    local: list[bool]


def run(
    spark: SparkSession, cases: Sequence[str], plan: Plan, folder: Path, say: Callable[[str], object]
) -> Iterator[TwoPhaseResult]:
    """Measure ``cases``. Raises WrongResultError if the phases disagree."""
    for name in cases:
        case = CASES[name]
        say(f"{case.title}: writing the input")
        place = folder / name
        files = write_input(spark, case, place / "input", plan.rows, WARM_UP + plan.rounds, plan.seed)
        yield _measured(spark, case, plan, place, files, say)


def _measured(
    spark: SparkSession,
    case: Case,
    plan: Plan,
    folder: Path,
    files: Callable[[int], str],
    say: Callable[[str], object],
) -> TwoPhaseResult:
    modes = {mode: _mode(spark, case, plan, folder / mode, value) for mode, value in MODES.items()}
    exchanged = 0
    for batch in range(WARM_UP + plan.rounds):
        say(f"{case.title}: micro-batch {batch + 1} of {WARM_UP + plan.rounds}")
        df = spark.read.parquet(files(batch))
        exchanged = _exchanged(df, case)
        for name in list(MODES)[:: 1 if batch % 2 else -1]:
            _step(modes[name], df, batch)
        if batch < WARM_UP:
            _check(case, modes)
    return _result(case, plan, exchanged, modes)


def _mode(spark: SparkSession, case: Case, plan: Plan, folder: Path, value: str) -> _Mode:
    options = {
        "async-state.local-dir": str(folder / "local"),
        "async-state.local-aggregation": value,
        "async-state.parallelism": plan.cores,
    }
    job = StreamingJob(spark, str(folder / "checkpoint"), options)
    output: list[Any] = []

    @job.micro_batch
    def on_batch(df: DataFrame, batch: MicroBatch) -> None:
        out = batch.apply(
            case.operator(), df, key="k", event_time="time", watermark_delay="5 seconds", uid="totals"
        )
        if batch.batch_id < WARM_UP:
            output.extend(out.collect())

    return _Mode(job, on_batch, output, [], [])


def _step(mode: _Mode, df: DataFrame, batch: int) -> None:
    clocks = TreeClocks()
    mode.on_batch(df, batch)
    mode.spent.append(clocks.spent())
    mode.local.append("local_rows_in" in _sums(mode))


def _sums(mode: _Mode) -> dict[str, float]:
    assert mode.job.statistics is not None
    return mode.job.statistics.operators["totals"].sums


def _exchanged(df: DataFrame, case: Case) -> int:
    """The rows behind a partial aggregation, which are not in the job's own figures."""
    if case.values:
        columns = (df.selectExpr("spark_partition_id()", "k", name) for name in ("user", "item"))
        return sum(one.distinct().count() for one in columns)
    part = "unix_seconds(time) div 10" if case.windows else "0"
    return df.selectExpr("spark_partition_id()", "k", part).distinct().count()


def _check(case: Case, modes: dict[str, _Mode]) -> None:
    for name, mode in modes.items():
        # Netted: with several bundles a micro-batch, one phase also puts out what was for a moment.
        if net(mode.output) != net(modes["one"].output):
            raise WrongResultError(f"{case.title}: {name} puts out other rows than one phase")


def _result(case: Case, plan: Plan, exchanged: int, modes: dict[str, _Mode]) -> TwoPhaseResult:
    counted = {name: mode.spent[WARM_UP:] for name, mode in modes.items()}
    seconds = {name: statistics.median(each.seconds for each in spent) for name, spent in counted.items()}
    wall = {name: [each.seconds for each in spent] for name, spent in counted.items()}
    cpu = {name: [each.cpu_seconds for each in spent] for name, spent in counted.items()}
    return TwoPhaseResult(
        case=case.name,
        title=case.title,
        rows=plan.rows,
        rows_exchanged=exchanged,
        rows_operator=int(_sums(modes["two"])["rows_in"]),
        one_seconds=seconds["one"],
        two_seconds=seconds["two"],
        auto_seconds=seconds["auto"],
        one_cpu_seconds=median_cpu(counted["one"]),
        two_cpu_seconds=median_cpu(counted["two"]),
        auto_cpu_seconds=median_cpu(counted["auto"]),
        two_ratio=_ratio(wall["one"], wall["two"]) or 0.0,
        auto_ratio=_ratio(wall["one"], wall["auto"]) or 0.0,
        two_cpu=_ratio(cpu["one"], cpu["two"]),
        auto_cpu=_ratio(cpu["one"], cpu["auto"]),
        auto_local=statistics.mean(modes["auto"].local[WARM_UP:]),
    )


def _ratio(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
    ratios = [one / other for one, other in zip(first, second, strict=True) if one is not None and other]
    return statistics.median(ratios) if ratios else None
