"""``python -m bench tpch``: queries kept up to date by ``job.sql``, compared with Spark's batch engine over all rows.

Invariant: both sides are Spark on the same cores in one session; the net of what was emitted equals the batch engine's
answer over the rows after the last micro-batch.
"""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import duckdb
import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.spark import Progress, StreamingJob
from bench.frame import Cores, Report, Row, WrongResult, benchmark, chosen, columns, medians, times, turns
from bench.nexmark.comparison import compare
from bench.processor_time import Spent, TreeClocks
from bench.session import batch_seconds, changelog_writer, files_stream, run_to_end, session
from bench.tpch.data import KEYS, ChangeFiles, queries, write_changes

Rows = Iterator[Row]
Facts = dict[str, Any]
_MODE = "--async-state.enabled/--no-async-state.enabled"
_WARM_UP = 1  # micro-batches of changes that are not measured, and runs of the batch engine
_COLUMNS = columns("""
    first s: first_s; kept ms: kept_s as ms; CPU ms: kept_cpu_s as ms; floor ms: floor_s as ms
    again ms: again_s as ms; CPU ms: again_cpu_s as ms; times quicker: quicker as times drawn
    by CPU: quicker_cpu as times; at most: quicker_at_most as times
    changed rows: changed_rows as short; result rows: result_rows as short; state MiB: state_bytes as mib
""")
_NOTE = """first: the micro-batch with all rows; kept: a later one, with the changes, from trigger to commit; floor: one
that only brings the columns of the query to the driver, and writes a row; again: the same query by Spark's batch engine
over all rows, written to files, too; at most: again by floor; changed: rows emitted in a later micro-batch; medians"""


@benchmark(scale=0.001, batches=1, names="q1,q4,q22")
def tpch(
    report: Report,
    names: Annotated[str, typer.Option("--queries", help="q1 to q22, with commas, or 'all'.")] = "all",
    scale: Annotated[float, typer.Option(min=0.0001, help="Scale factor: 1 has 8.7 million rows.")] = 1.0,
    batches: Annotated[int, typer.Option(min=1, help="Measured micro-batches, after two others.")] = 3,
    share: Annotated[float, typer.Option(min=1e-5, max=0.2, help="Of rows, what each changes.")] = 0.01,
    cores: Cores = 2,
    async_enabled: Annotated[bool, typer.Option(_MODE, help="Async state, or sync.")] = True,
) -> None:
    """Keep the queries of TPC-H up to date, and compare with computing each of them again by Spark."""
    texts = queries({"q11": {"share": f"{0.0001 / scale:.10f}"}})
    asked = chosen(names, texts, "--queries")
    report.tell("writing the tables and their changes")
    files = write_changes(report.folder / "tables", scale, batches + _WARM_UP, share, cores)
    title = f"TPC-H, {files.rows:,} rows, {files.changed:,} changes a micro-batch, {cores} cores"
    with session("asyncstate-tpch", report.folder, cores) as spark:
        report.section(title, _COLUMNS, _NOTE)
        for name in asked:
            report.case(name, measure, spark, report.folder / name, name, texts[name], files, async_enabled)
    found = [row.facts["quicker"] for row in report.rows if "quicker" in row.facts]
    if len(found) > 1:
        lost = [row.name for row in report.rows if row.facts.get("quicker", 1) < 1]
        said = f"geometric mean of {len(found)} queries: {times(statistics.geometric_mean(found))} quicker"
        report.say(f"{said}; slower than computing again: {', '.join(lost) or 'none'}")


def measure(spark: SparkSession, folder: Path, name: str, sql: str, files: ChangeFiles, mode: bool) -> Rows:
    """The row of one query."""
    facts = _kept(spark, folder, name, sql, files, mode)
    for table in KEYS:
        spark.read.parquet(str(files.last / f"{table}.parquet")).createOrReplaceTempView(table)
    facts["floor_s"] = _floor(spark, folder / "floor", sql, files)
    write = changelog_writer(folder / "again")
    sides = {"again": lambda _: write(spark.sql(sql), 0)}
    spent = turns(sides, files.micro_batches - 1 - _WARM_UP, warm_up=_WARM_UP, clocks=TreeClocks)
    spark.sql(sql).write.parquet(str(folder / "expected"))
    facts["again_s"], facts["again_cpu_s"] = medians(spent["again"], scale=1)
    facts["quicker"] = facts["again_s"] / facts["kept_s"]
    facts["quicker_at_most"] = facts["again_s"] / facts["floor_s"]
    if facts["kept_cpu_s"] and facts["again_cpu_s"]:
        facts["quicker_cpu"] = facts["again_cpu_s"] / facts["kept_cpu_s"]
    with duckdb.connect() as connection:
        expected = f"SELECT * FROM read_parquet('{folder}/expected/*.parquet')"
        found = compare(connection, expected, folder / "sink")
    if not found.ok:
        raise WrongResult("; ".join(found.wrong))
    facts["result_rows"] = found.expected_rows
    yield Row(name=name, facts=facts)


def _floor(spark: SparkSession, folder: Path, sql: str, files: ChangeFiles) -> float:
    """Seconds of a micro-batch of the least that any function of ``foreachBatch`` does for the query."""
    words = set(re.findall(r"\w+", sql))
    tables = [files_stream(spark, files.changes / table, 1) for table in KEYS if table in words]
    columns = [[name for name in table.columns if name in words or name == "row_kind"] for table in tables]
    both = enumerate(zip(tables, columns, strict=True))
    parts = [table.select(F.struct(*names).alias(f"of_{at}")) for at, (table, names) in both]
    rows = functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    row, write = spark.range(1), changelog_writer(folder / "sink")

    def read(changes: DataFrame, number: int) -> None:
        if number:  # all rows of the first one are too many for the driver
            changes.toArrow()
        write(row, number)

    query = rows.writeStream.foreachBatch(read).option("checkpointLocation", str(folder / "checkpoint"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return statistics.median(batch_seconds(running)[1 + _WARM_UP :])


def _kept(spark: SparkSession, folder: Path, name: str, sql: str, files: ChangeFiles, mode: bool) -> Facts:
    """Run the statement as a streaming query over all micro-batches, async with ``mode``."""
    own = {"async-state.enabled": mode, "async-state.local-dir": str(folder / "local")}
    state: list[Progress] = []
    clocks, spent = [TreeClocks()], []

    def keep(progress: Progress) -> None:
        spent.append(clocks[-1].spent())
        state.append(progress)
        clocks.append(TreeClocks())

    job = StreamingJob(spark, str(folder / "state"), own, f"tpch-{name}", on_progress=keep)
    for table, keys in KEYS.items():
        stream = files_stream(spark, files.changes / table, 1)
        job.source(table, stream, changelog=True, primary_key=keys)
    job.sql(sql, name=name).to(changelog_writer(folder / "sink"), name="result")
    by_batch = batch_seconds(run_to_end(job, folder / "checkpoint"))
    measured = [Spent(each, used.cpu_seconds) for each, used in zip(by_batch, spent, strict=True)]
    facts: Facts = {"first_s": by_batch[0]}
    facts["kept_s"], facts["kept_cpu_s"] = medians(measured[1 + _WARM_UP :], scale=1)
    facts["state_bytes"] = sum(int(one["state_bytes"] or 0) for one in state[-1]["operators"].values())
    newest = folder / "sink" / f"batch={len(spent) - 1:06d}"
    facts["changed_rows"] = spark.read.parquet(str(newest)).count()
    return facts
