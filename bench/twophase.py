"""One-phase against two-phase aggregation on Spark: what partial aggregation saves, and what it costs with many keys.

Owns: ``CASES``, how the keys are spread and which operator aggregates them, and ``bench two-phase``.
Invariant: the input follows from case, rows and seed alone; the modes of a case read the same files, take turns at each
micro-batch, and emit the same net rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from asyncstate.operator import BundleOperator
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.testing import net
from bench.frame import Column, Report, Row, WrongResult, medians, ratio, turns
from bench.frame.report import Cores, Output, Rounds, Seed, Tiny, chosen, ms, percent, short, times
from bench.processor_time import Spent, TreeClocks
from bench.session import session
from operators import GroupAggregate, WindowAggregate, avg, count, max_, sum_, tumble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_SECONDS = 10
Setting = Literal["auto", "always", "never"]
MODES: dict[str, Setting] = {"one": "never", "two": "always", "auto": "auto"}
"""What a mode is called here, and the operator's ``local_aggregation`` in it."""
WARM_UP = 2
"""Micro-batches that are not counted; ``auto`` has nothing to go by in the first."""
_MINUTE = 60
_COLUMNS = (
    Column("moved rows", "rows_exchanged", short),
    Column("left rows", "rows_operator", short),
    Column("one ms", "one_s", ms),
    Column("CPU ms", "one_cpu_s", ms),
    Column("two ms", "two_s", ms),
    Column("CPU ms", "two_cpu_s", ms),
    Column("two time", "two_ratio", times),
    Column("two CPU", "two_cpu", times),
    Column("auto time", "auto_ratio", times),
    Column("auto CPU", "auto_cpu", times),
    Column("auto on", "auto_local", percent),
)
_NOTE = (
    "rows of a micro-batch after the partial aggregation (which the exchange carries) and at the operator; then what "
    "one phase takes by what the others do; on: how often auto took two"
)


@dataclass(frozen=True)
class Case:
    """``keys`` of rows as SQL over ``id`` and ``seed``; ``windows``: aggregated a window of event time too. ``values``:
    of so many users, and as many items, the distinct ones are counted."""

    name: str
    title: str
    keys: str
    windows: bool = False
    values: int = 0

    def operator(self) -> BundleOperator:
        """A new operator; its results are exact, so that both ways can be compared."""
        aggregates = [
            count().alias("rows"),
            sum_("price"),
            avg("price"),
            max_("price").where("large").alias("most"),
        ]
        if self.values:
            aggregates += [
                count("user").distinct().alias("users"),
                count("user").distinct().where("large").alias("large_users"),
                count("item").distinct().alias("items"),
            ]
        if self.windows:
            return WindowAggregate(tumble(f"{SLICE_SECONDS} seconds"), aggregates)
        return GroupAggregate(aggregates)


def _uniform(keys: int) -> str:
    return f"pmod(xxhash64(id, {{seed}}), {keys})"


_HOT = (
    f"if(pmod(xxhash64(id, {{seed}}, 1), 10) < 8, pmod(xxhash64(id, {{seed}}), 1000), {_uniform(1_000_000)})"
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case("few", "1,000 keys", _uniform(1_000)),
        Case("hot", "80% of rows on 1,000 keys, others on 1 million", _HOT),
        Case("many", "100,000 keys", _uniform(100_000)),
        Case("unique", "1 million keys", _uniform(1_000_000)),
        Case("values", "10 keys, 2,000 users and items", _uniform(10), values=2_000),
        Case("one-key", "one key, 20,000 users and items", "1", values=20_000),
        Case("spread-values", "1,000 keys, 500 users and items each", _uniform(1_000), values=500),
        Case("windows", f"1,000 keys, windows of {SLICE_SECONDS} s", _uniform(1_000), windows=True),
    )
}


def _micro_batch(
    spark: SparkSession, case: Case, folder: Path, rows: int, batch: int, seed: int
) -> DataFrame:
    """The rows of a micro-batch, read from a file; a minute of event time each."""
    path = str(folder / "input" / str(batch))
    spark.range(batch * rows, (batch + 1) * rows).selectExpr(
        f"{case.keys.format(seed=seed)} as k",
        "pmod(xxhash64(id, 7), 1000000) as price",
        "pmod(id, 3) = 0 as large",
        f"pmod(xxhash64(id, 11), {max(case.values, 1)}) as user",
        f"pmod(xxhash64(id, 12), {max(case.values, 1)}) as item",
        f"timestamp_micros(cast(id * {_MINUTE * 1_000_000} / {rows} as bigint)) as time",
    ).write.parquet(path)
    return spark.read.parquet(path)


class _Mode:
    """A job in one mode; ``output`` of its warm-up, and whether each micro-batch had a local phase."""

    def __init__(self, spark: SparkSession, case: Case, folder: Path, value: Setting, cores: int) -> None:
        options = {
            "async-state.local-dir": str(folder / "local"),
            "async-state.parallelism": cores,
        }
        self._job = StreamingJob(spark, str(folder / "checkpoint"), options)
        self._case = case
        self._mode = value
        self.output: list[Any] = []
        self.local: list[bool] = []
        self._run = self._job.micro_batch(self._aggregate)

    def _aggregate(self, df: DataFrame, batch: MicroBatch) -> None:
        times: Any = {"event_time": "time", "watermark_delay": "5 seconds"}
        operator = self._case.operator()
        operator.local_aggregation = self._mode
        out = batch.apply(operator, df, key="k", uid="totals", **times)
        if batch.batch_id < WARM_UP:
            self.output.extend(out.collect())

    def side(self, df: DataFrame) -> None:
        """A micro-batch."""
        self._run(df, len(self.local))
        self.local.append(self.metrics["local_rows_in"] is not None)

    @property
    def metrics(self) -> Any:
        """Of the operator in the last micro-batch."""
        return self._job.history[-1]["operators"]["totals"]


def measure(
    spark: SparkSession, case: Case, folder: Path, rows: int, rounds: int, cores: int, seed: int
) -> Iterator[Row]:
    """The three modes of a case in turns. Ratios are above 1 where two phases (``auto``) are quicker than one; those of
    processor time, over the JVM and its workers, say more than times on a machine with other work."""
    modes = {name: _Mode(spark, case, folder / name, value, cores) for name, value in MODES.items()}
    drawn = (_micro_batch(spark, case, folder, rows, batch, seed) for batch in range(WARM_UP + rounds))
    sides = {name: mode.side for name, mode in modes.items()}
    spent = turns(sides, rounds, drawn, warm_up=WARM_UP, clocks=TreeClocks)
    for name, mode in modes.items():
        # Netted: with several bundles a micro-batch, one phase also emits intermediate results.
        if net(mode.output) != net(modes["one"].output):
            raise WrongResult(f"{name} emits other rows than one phase")
    exchanged = _exchanged(spark.read.parquet(str(folder / "input" / str(WARM_UP + rounds - 1))), case)
    facts: dict[str, Any] = {"rows": rows, "rows_exchanged": exchanged}
    facts |= {"rows_operator": int(modes["two"].metrics["rows_in"])}
    facts |= {"auto_local": statistics.mean(modes["auto"].local[WARM_UP:])}
    for name, found in spent.items():
        facts[f"{name}_s"], facts[f"{name}_cpu_s"] = medians(found, scale=1)
        facts |= {
            f"{name}_ratio": _value(spent["one"], found, False),
            f"{name}_cpu": _value(spent["one"], found, True),
        }
    yield Row(name=case.name, facts=facts)


def _value(mine: list[Spent], others: list[Spent], cpu: bool) -> float | None:
    found = ratio(mine, others, cpu)
    return found and found.value


def _exchanged(df: DataFrame, case: Case) -> int:
    """The rows after a partial aggregation, which are not in the job's own metrics."""
    if case.values:
        columns = (df.selectExpr("spark_partition_id()", "k", name) for name in ("user", "item"))
        return sum(one.distinct().count() for one in columns)
    part = f"unix_seconds(time) div {SLICE_SECONDS}" if case.windows else "0"
    return df.selectExpr("spark_partition_id()", "k", part).distinct().count()


def two_phase(
    cases: Annotated[str, typer.Option(help=f"{', '.join(CASES)}; separated by commas, or 'all'.")] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows a micro-batch.")] = 500_000,
    rounds: Rounds = 7,
    cores: Cores = 2,
    tiny: Tiny = False,
    seed: Seed = 1,
    output: Output = None,
) -> None:
    """Compare one-phase with two-phase aggregation on Spark, and what `auto` makes of it."""
    if tiny:
        cases, rows, rounds = "few,windows", 2_000, 1
    names = chosen(cases, CASES, "--cases")
    with (
        Report("two-phase", output, rows=rows, rounds=rounds, cores=cores, seed=seed) as report,
        session("asyncstate-two-phase", report.folder, cores) as spark,
    ):
        report.section(f"{rows:,} rows a micro-batch, {cores} cores, medians of {rounds}", _COLUMNS, _NOTE)
        size = rows, rounds, cores, seed
        for case in (CASES[name] for name in names):
            report.case(case.name, lambda: measure(spark, case, report.folder / case.name, *size))  # noqa: B023
