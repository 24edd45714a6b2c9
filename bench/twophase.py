"""One-phase against two-phase aggregation on Spark: what partial aggregation saves, and what it costs with many keys.

Invariant: the input follows from case, rows and seed alone; the modes of a case read the same files, take turns at each
micro-batch, and emit the same net rows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from pyspark.sql import DataFrame, SparkSession

from asyncstate.operator import BundleOperator
from asyncstate.spark import MicroBatch
from asyncstate.testing import net
from bench.frame import Report, Row, WrongResult, columns, medians, ratio, turns
from bench.frame.report import Cores, Rounds, Seed, benchmark, chosen
from bench.processor_time import TreeClocks
from bench.session import JobSide, session
from operators import GroupAggregate, WindowAggregate, avg, count, max_, sum_, tumble

Rows = Iterator[Row]
SLICE_SECONDS = 10
Setting = Literal["auto", "always", "never"]
MODES: dict[str, Setting] = {"one": "never", "two": "always", "auto": "auto"}
"""What a mode is called here, and the operator's ``local_aggregation`` in it."""
WARM_UP = 2  # micro-batches that are not counted; ``auto`` has nothing to go by in the first
TOTALS = "totals"
_COLUMNS = columns("""
    moved rows: rows_exchanged as short; left rows: rows_operator as short; one ms: one_s as ms
    CPU ms: one_cpu_s as ms; two ms: two_s as ms; CPU ms: two_cpu_s as ms
    two time: two_ratio as times drawn; two CPU: two_cpu as times; auto time: auto_ratio as times drawn
    auto CPU: auto_cpu as times; auto on: auto_local as percent
""")
_NOTE = """rows of a micro-batch after the partial aggregation (which the exchange carries) and at the operator;
then what one phase takes by what the others do; on: how often auto took two"""


class Case(NamedTuple):
    """``keys`` of rows as SQL over ``id`` and ``seed``; ``windows``: aggregated a window of event time too. ``values``:
    of so many users, and as many items, the distinct ones are counted."""

    keys: str
    windows: bool = False
    values: int = 0

    def operator(self) -> BundleOperator:
        """A new operator; its results are exact, so that both ways can be compared."""
        aggregates = [count().alias("rows"), sum_("price"), avg("price")]
        aggregates.append(max_("price").where("large").alias("most"))
        if self.values:
            users, items = count("user").distinct(), count("item").distinct()
            aggregates += [users.alias("users"), users.where("large").alias("large_users")]
            aggregates.append(items.alias("items"))
        if self.windows:
            return WindowAggregate(tumble(f"{SLICE_SECONDS} seconds"), aggregates)
        return GroupAggregate(aggregates)


def _uniform(keys: int) -> str:
    return f"pmod(xxhash64(id, {{seed}}), {keys})"


CASES = {
    "few": Case(_uniform(1_000)),
    "hot": Case(f"if(pmod(xxhash64(id, {{seed}}, 1), 10) < 8, {_uniform(1_000)}, {_uniform(1_000_000)})"),
    "many": Case(_uniform(100_000)),
    "unique": Case(_uniform(1_000_000)),
    "values": Case(_uniform(10), values=2_000),
    "one-key": Case("1", values=20_000),
    "spread-values": Case(_uniform(1_000), values=500),
    "windows": Case(_uniform(1_000), windows=True),
}


def _micro_batch(spark: SparkSession, case: Case, place: Path, rows: int, batch: int, seed: int) -> DataFrame:
    """The rows of a micro-batch, read from a file; a minute of event time each."""
    path = str(place / "input" / str(batch))
    spark.range(batch * rows, (batch + 1) * rows).selectExpr(
        f"{case.keys.format(seed=seed)} as k",
        "pmod(xxhash64(id, 7), 1000000) as price",
        "pmod(id, 3) = 0 as large",
        f"pmod(xxhash64(id, 11), {max(case.values, 1)}) as user",
        f"pmod(xxhash64(id, 12), {max(case.values, 1)}) as item",
        f"timestamp_micros(cast(id * 60000000 / {rows} as bigint)) as time",
    ).write.parquet(path)
    return spark.read.parquet(path)


def _job(spark: SparkSession, case: Case, place: Path, mode: Setting, cores: int, kept: list[Any]) -> JobSide:
    """The job in one mode; the output of its warm-up is kept."""

    def aggregate(df: DataFrame, batch: MicroBatch) -> None:
        operator = case.operator()
        operator.local_aggregation = mode
        out = batch.apply(operator, df, key="k", uid=TOTALS, event_time="time", watermark_delay="5 seconds")
        if batch.batch_id < WARM_UP:
            kept.extend(out.collect())

    return JobSide(spark, place, aggregate, options={"async-state.parallelism": cores})


def measure(spark: SparkSession, of: str, place: Path, rows: int, rounds: int, cores: int, seed: int) -> Rows:
    """The three modes of a case in turns. Ratios are above 1 where two phases (``auto``) are quicker than one; those of
    processor time, over the JVM and its workers, say more than times on a machine with other work."""
    case = CASES[of]
    kept: dict[str, list[Any]] = {name: [] for name in MODES}
    modes = {name: _job(spark, case, place / name, mode, cores, kept[name]) for name, mode in MODES.items()}
    drawn = (_micro_batch(spark, case, place, rows, batch, seed) for batch in range(WARM_UP + rounds))
    spent = turns(modes, rounds, drawn, warm_up=WARM_UP, clocks=TreeClocks)
    for name, output in kept.items():
        # Netted: with several bundles a micro-batch, one phase also emits intermediate results.
        if net(output) != net(kept["one"]):
            raise WrongResult(f"{name} emits other rows than one phase")
    # The rows after a partial aggregation are not in the job's own metrics.
    last = spark.read.parquet(str(place / "input" / str(WARM_UP + rounds - 1)))
    slices = f"unix_seconds(time) div {SLICE_SECONDS}" if case.windows else "0"
    parts = ("user", "item") if case.values else (slices,)
    keyed = [last.selectExpr("spark_partition_id()", "k", part).distinct().count() for part in parts]
    facts: dict[str, Any] = {"rows": rows, "rows_exchanged": sum(keyed)}
    facts["rows_operator"] = int(modes["two"].metrics(TOTALS)["rows_in"])
    auto = [each["operators"][TOTALS] for each in list(modes["auto"].job.history)[-rounds:]]
    facts["auto_local"] = statistics.mean(each["local_rows_in"] is not None for each in auto)
    for name, found in spent.items():
        facts[f"{name}_s"], facts[f"{name}_cpu_s"] = medians(found, scale=1)
        for fact, cpu in (("ratio", False), ("cpu", True)):
            by_one = ratio(spent["one"], found, cpu)
            facts[f"{name}_{fact}"] = by_one and by_one.value
    yield Row(name=of, facts=facts)


@benchmark(cases="few,windows", rows=2_000, rounds=1)
def two_phase(
    report: Report,
    cases: Annotated[str, typer.Option(help=f"{', '.join(CASES)}; separated by commas, or 'all'.")] = "all",
    rows: Annotated[int, typer.Option(min=100, help="Rows a micro-batch.")] = 500_000,
    rounds: Rounds = 7,
    cores: Cores = 2,
    seed: Seed = 1,
) -> None:
    """Compare one-phase with two-phase aggregation on Spark, and what `auto` makes of it."""
    names = chosen(cases, CASES, "--cases")
    with session("asyncstate-two-phase", report.folder, cores) as spark:
        report.section(f"{rows:,} rows a micro-batch, {cores} cores, medians of {rounds}", _COLUMNS, _NOTE)
        for name in names:
            report.case(name, measure, spark, name, report.folder / name, rows, rounds, cores, seed)
