"""The measurement: the two ways of a case in turn, the order turned round each time.

Owns: ``Plan``, ``SparingResult`` and ``run``.
Invariant: both ways give the same rows; the first round does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.processor_time import TreeClocks, TreeSpent, median_cpu
from bench.sparing.workloads import CASES, Case, Way

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KEYS, _SECONDS = 10_000, 60


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    rows: int
    rounds: int
    cores: int
    seed: int


class SparingResult(msgspec.Struct, frozen=True, kw_only=True):
    """One case: seconds of the whole work, medians; ``ratio`` is the median over pairs of runs, above 1 where sparing
    is quicker. ``cpu`` are seconds of processors, of the JVM and its workers too; None where the system does not tell.
    """

    case: str
    title: str
    usual_seconds: float
    sparing_seconds: float
    usual_cpu_seconds: float | None
    sparing_cpu_seconds: float | None
    ratio: float


class WrongResultError(Exception):
    """The two ways have put out different rows."""


def run(
    spark: SparkSession, cases: Sequence[str], plan: Plan, folder: Path, say: Callable[[str], object]
) -> Iterator[SparingResult]:
    """Measure ``cases``. Raises WrongResultError if the ways disagree."""
    say("writing the input")
    df = _input(spark, plan, folder / "input")
    for name in cases:
        yield _measured(name, CASES[name], df, plan, folder / name, say)


def _input(spark: SparkSession, plan: Plan, folder: Path) -> DataFrame:
    spark.range(plan.rows).selectExpr(
        f"pmod(xxhash64(id, {plan.seed}), {_KEYS}) as k",
        "pmod(xxhash64(id, 7), 1000000) as price",
        f"timestamp_micros(cast(id * {_SECONDS * 1_000_000} / {plan.rows} as bigint)) as time",
    ).write.parquet(str(folder))
    return spark.read.parquet(str(folder))


def _measured(
    name: str, case: Case, df: DataFrame, plan: Plan, folder: Path, say: Callable[[str], object]
) -> SparingResult:
    ways = [case.usual, case.sparing]
    spent: list[list[TreeSpent]] = [[], []]
    for number in range(1 + plan.rounds):
        say(f"{case.title}: round {number + 1} of {1 + plan.rounds}")
        digests = set()
        for which in (0, 1) if number % 2 else (1, 0):
            digest, taken = _timed(ways[which], df, folder / f"{number}-{which}", plan.cores)
            digests.add(digest)
            spent[which].append(taken)
        if len(digests) > 1:
            raise WrongResultError(f"{case.title}: the two ways put out different rows")
    usual, sparing = (taken[1:] for taken in spent)
    return SparingResult(
        case=name,
        title=case.title,
        usual_seconds=statistics.median(one.seconds for one in usual),
        sparing_seconds=statistics.median(one.seconds for one in sparing),
        usual_cpu_seconds=median_cpu(usual),
        sparing_cpu_seconds=median_cpu(sparing),
        ratio=statistics.median(
            one.seconds / other.seconds for one, other in zip(usual, sparing, strict=True)
        ),
    )


def _timed(way: Way, df: DataFrame, folder: Path, cores: int) -> tuple[int, TreeSpent]:
    clocks = TreeClocks()
    digest = way(df, folder, cores, _digest)
    return digest, clocks.spent()


def _digest(rows: DataFrame) -> int:
    """A number for the rows that are left, whatever their order; small enough to be added up."""
    columns = ", ".join(name for name in rows.columns if name != "row_kind")
    value = f"shiftright(xxhash64({columns}), 32)"
    (found,) = rows.selectExpr(f"coalesce(sum(if(row_kind in ('+I', '+U'), 1, -1) * {value}), 0)").collect()
    return int(found[0])
