"""Statements of a job on Spark: views, several statements, sinks, restarts, against Spark's own batch engine."""

from __future__ import annotations

import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import SqlError
from asyncstate.spark import StreamingJob
from asyncstate.sql import SqlContext
from asyncstate.testing import net
from tests.sql.tables import NEEDS_COMPILER

# Several jobs, each of which plans a dozen stages: minutes where Spark shares two cores with other programs.
pytestmark = [pytest.mark.spark, NEEDS_COMPILER, pytest.mark.long, pytest.mark.timeout(600)]

ORDERS = "id long, customer long, amount decimal(10, 2), row_kind string"
CUSTOMERS = "id long, country string, row_kind string"
BATCHES: list[dict[str, list[tuple[Any, ...]]]] = [
    {
        "orders": [(1, 10, 5, "+I"), (2, 10, 7, "+I"), (3, 11, 1, "+I"), (4, 12, 200, "+I")],
        "customers": [(10, "AT", "+I"), (11, "BE", "+I")],
    },
    {
        "orders": [(2, 10, 7, "-U"), (2, 11, 8, "+U"), (4, 12, 200, "-D")],
        "customers": [(11, "BE", "-U"), (11, "AT", "+U"), (12, "CH", "+I")],
    },
    {"orders": [(5, 12, 3, "+I")], "customers": [(10, "AT", "-D")]},
]
TYPES = {
    "orders": pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.decimal128(10, 2))]),
    "customers": pa.schema([("id", pa.int64()), ("country", pa.string())]),
}
TOTALS = """
SELECT country, sum(amount) AS total, count(DISTINCT o.customer) AS customers
FROM small o JOIN customers c ON o.customer = c.id
GROUP BY country"""
ABOVE = "SELECT country, total FROM totals WHERE total >= (SELECT avg(total) FROM totals)"


def arrow(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """The rows as Arrow has them."""
    values = [[row[at] for row in rows] for at in range(len(schema))]
    columns = [
        pa.array([Decimal(one) for one in column] if pa.types.is_decimal(field.type) else column, field.type)
        for column, field in zip(values, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def write(folder: Path, number: int) -> None:
    """The files of one micro-batch."""
    for name, rows in BATCHES[number].items():
        table = arrow(rows, TYPES[name].append(pa.field("row_kind", pa.string())))
        (folder / name).mkdir(exist_ok=True)
        path = folder / name / f"{number}.parquet"
        pq.write_table(table, path)  # type: ignore[no-untyped-call]
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


def contents(upto: int, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table after some micro-batches."""
    rows = net((kind, *row) for batch in BATCHES[:upto] for *row, kind in batch[name])
    return list(rows.elements())


def declared(spark: SparkSession, folder: Path, got: dict[str, Counter[Any]]) -> StreamingJob:
    """The job, whose sinks net what they get."""
    job = StreamingJob(spark, str(folder / "checkpoint"), {"async-state.parallelism": "2"})
    for name, schema in (("orders", ORDERS), ("customers", CUSTOMERS)):
        read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        job.source(name, read, changelog=True, primary_key="id")

    def sink(name: str) -> Any:
        def write(rows: DataFrame, batch_id: int) -> None:
            got[name].update(net(rows.collect()))

        return write

    for name in got:
        job.sink(name, sink(name))
    job.sql("CREATE VIEW small AS SELECT * FROM orders WHERE amount < 100")
    totals = job.sql(TOTALS, name="totals")
    job.sql("INSERT INTO everything SELECT * FROM totals")
    job.sql(f"INSERT INTO above {ABOVE}")
    job.view("doubled", totals.select("country", "total * 2 AS twice"))
    job.sql("INSERT INTO highest SELECT max(twice) AS twice FROM doubled")
    return job


def test_statements_of_a_job_are_what_spark_answers_in_batch(spark: SparkSession, tmp_path: Path) -> None:
    got: dict[str, Counter[Any]] = {"everything": Counter(), "above": Counter(), "highest": Counter()}
    for number in range(len(BATCHES)):
        write(tmp_path, number)
        with declared(spark, tmp_path, got) as job:  # each micro-batch in a job that is started again
            assert "totals.group-1" in job.explain()
            job.await_termination(job.start(trigger="availableNow"))
        for name in ("orders", "customers"):
            rows = arrow(contents(number + 1, name), TYPES[name])
            spark.createDataFrame(rows).createOrReplaceTempView(f"batch_{name}")
        names = {"customers": "batch_customers", "small": "(SELECT * FROM batch_orders WHERE amount < 100)"}
        totals = TOTALS
        for name, batch in names.items():
            totals = totals.replace(f"{name} ", f"{batch} ", 1)
        expected = spark.sql(totals)
        expected.createOrReplaceTempView("batch_totals")
        assert +got["everything"] == Counter(map(tuple, expected.collect()))
        above = spark.sql(ABOVE.replace("FROM totals", "FROM batch_totals"))
        assert +got["above"] == Counter(map(tuple, above.collect()))
        highest = spark.sql("SELECT max(total * 2) FROM batch_totals")
        assert +got["highest"] == Counter(map(tuple, highest.collect()))
        assert all(count >= 0 for one in got.values() for count in one.values())


def test_a_job_that_is_started_again_runs_by_its_stored_plans(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 0)
    got: dict[str, Counter[Any]] = {"everything": Counter(), "above": Counter(), "highest": Counter()}
    with declared(spark, tmp_path, got) as job:
        job.await_termination(job.start(trigger="availableNow"))
    names = sorted(path.name for path in (tmp_path / "checkpoint" / "sql").iterdir())
    assert names == ["above.json", "everything.json", "highest.json", "totals.json"]

    def compiled(*_: object) -> None:
        raise AssertionError("the statement is compiled again")

    monkeypatch.setattr(SqlContext, "compile", compiled)
    again = declared(spark, tmp_path, got)
    again.check()
    with pytest.raises(AssertionError, match="compiled again"):
        again.sql("SELECT * FROM totals WHERE total > 1", name="others")


def test_a_refused_statement_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, 0)
    job = declared(spark, tmp_path, {"everything": Counter(), "above": Counter(), "highest": Counter()})
    before = job.explain()
    with pytest.raises(SqlError, match="line 2.*rand"):
        job.sql("SELECT id,\n  rand() AS x FROM orders", name="random")
    with pytest.raises(SqlError, match="there is no sink 'nowhere'; there are: everything, above, highest"):
        job.sql("INSERT INTO nowhere SELECT * FROM totals")
    with pytest.raises(SqlError, match="there is 'totals' already"):
        job.sql("SELECT 1 AS one FROM orders", name="totals")
    assert "Aggregate" in job.sql("EXPLAIN SELECT country, count(*) FROM customers GROUP BY country")
    assert job.explain() == before
