"""A snapshot and its changes as Debezium writes them, through joins and sums: equal to DuckDB over the final tables.

Each event stands in the log twice: whole, in its topic, and as a source without the row before a change sends it, in
another one, from which every event is delivered again later. Files keep no order among their events.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession

from asyncstate.errors import SchemaError
from asyncstate.spark import MicroBatch, StreamingJob
from asyncstate.spark.sources import POSITIONS, debezium_json
from asyncstate.testing import net
from operators import ChangelogNormalize, GroupAggregate, Join, count, sum_

pytestmark = pytest.mark.spark

MakeJob = Callable[..., StreamingJob]
Row = dict[str, Any]
Tables = dict[str, dict[int, Row]]

COLUMNS = {
    "orders": "id bigint not null, customer int, amount decimal(12, 2), changed timestamp",
    "customers": "id int not null, country string",
}
SNAPSHOT_ROWS = 20
CHANGES = 60
FILES = 4
PLACE = list(POSITIONS["postgresql"])


def new_row(random: Random, table: str, number: int, lsn: int) -> Row:
    if table == "customers":
        return {"id": number, "country": random.choice(["no", "se", None])}
    cents = random.randrange(-500, 90_000)
    amount = base64.b64encode(cents.to_bytes(8, "big", signed=True)).decode()
    return {"id": number, "customer": random.randrange(6), "amount": amount, "changed": lsn * 1000}


def history(random: Random, tables: Tables) -> Iterator[tuple[str, str, Row | None, Row | None, int]]:
    """Table, operation, row before and after, lsn; that of changes which began before the snapshot is lower."""
    for step in range(SNAPSHOT_ROWS + CHANGES):
        table = random.choice(["orders", "orders", "customers"])
        rows = tables[table]
        number = random.randrange(6) if table == "customers" else random.randrange(25)
        old, snapshot = rows.get(number), step < SNAPSHOT_ROWS
        if old is not None and snapshot:
            continue
        lsn = 900 if snapshot else 870 + step
        if old is not None and random.random() < 0.3:
            yield table, "d", rows.pop(number), None, lsn
            continue
        rows[number] = new_row(random, table, number, lsn)
        yield table, "r" if snapshot else "c" if old is None else "u", old, rows[number], lsn


def event(table: str, op: str, before: Row | None, after: Row | None, lsn: int) -> str:
    return json.dumps({"op": op, "before": before, "after": after, "source": {"table": table, "lsn": lsn}})


def without_images(table: str, op: str, before: Row | None, after: Row | None, lsn: int) -> str:
    known = {"id": before["id"]} if op == "d" and before is not None else None
    return event(f"{table} upserted", op, known, after, lsn)


def log(random: Random, tables: Tables) -> list[list[str]]:
    """The lines of each file. What a file has of the second form comes twice, and once more in the next file."""
    changes = list(history(random, tables))
    size = -(-len(changes) // FILES)
    files, again = [], list[str]()
    for start in range(0, len(changes), size):
        upserts = [without_images(*change) for change in changes[start : start + size]]
        lines = [event(*change) for change in changes[start : start + size]] + upserts * 2 + again
        random.shuffle(lines)
        files.append(lines)
        again = upserts
    return files


def write(folder: Path, lines: list[str]) -> None:
    """One more file, newer than those before."""
    number = len(list(folder.iterdir()))
    path = folder / f"{number}.json"
    path.write_text("".join(f"{line}\n" for line in lines))
    os.utime(path, (1_000 + number, 1_000 + number))


def in_duckdb(tables: Tables) -> Counter[Any]:
    """The number and the sum of the orders by country."""
    connection = duckdb.connect()
    connection.execute("create table orders (customer int, amount decimal(12, 2))")
    connection.execute("create table customers (id int, country varchar)")
    for order in tables["orders"].values():
        cents = int.from_bytes(base64.b64decode(order["amount"]), "big", signed=True)
        connection.execute("insert into orders values (?, ?)", [order["customer"], Decimal(cents) / 100])
    for customer in tables["customers"].values():
        connection.execute("insert into customers values (?, ?)", [customer["id"], customer["country"]])
    return Counter(
        connection.execute(
            "select country, count(*), sum(amount) from orders join customers on customer = id group by country"
        ).fetchall()
    )


def read(df: DataFrame, table: str, **settings: Any) -> DataFrame:
    name = f"{table} upserted" if settings else table
    lines = df.where(f"get_json_object(value, '$.source.table') = '{name}'")
    return debezium_json(
        lines, COLUMNS[table], connector="postgresql", decimals="base64", timestamps="us", **settings
    )


def by_country(batch: MicroBatch, name: str, orders: DataFrame, customers: DataFrame) -> DataFrame:
    joined = batch.apply(
        Join("inner"), orders.drop(*PLACE), customers.drop(*PLACE).withColumnRenamed("id", "buyer"),
        key=("customer", "buyer"), uid=f"{name}-joined",
    )  # fmt: skip
    figures = [count().alias("orders"), sum_("amount").alias("amount")]
    rows = joined.select("country", "amount", "row_kind")
    return batch.apply(GroupAggregate(figures), rows, key="country", uid=name)


def both_ways(df: DataFrame, batch: MicroBatch) -> dict[str, DataFrame]:
    def normalized(table: str) -> DataFrame:
        upserts = read(df, table, upsert_key="id")
        return batch.apply(
            ChangelogNormalize(),
            upserts,
            key="id",
            sequence=PLACE,
            drop_stale=True,
            uid=f"{table}-normalized",
        )

    return {
        "full": by_country(batch, "full", read(df, "orders"), read(df, "customers")),
        "upserts": by_country(batch, "upserts", normalized("orders"), normalized("customers")),
    }


@pytest.mark.timeout(600)
def test_a_snapshot_and_changes_as_duckdb_over_the_final_tables(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path, async_enabled: bool
) -> None:
    """In one micro-batch, or in several with a restart between them."""
    tables: Tables = {"orders": {}, "customers": {}}
    files = log(Random(7), tables)
    parts = [files[:1], files[1:]] if async_enabled else [files]
    found: dict[str, list[Any]] = defaultdict(list)
    stale = 0.0
    written = tmp_path / "log"
    written.mkdir()
    for part in parts:
        job = make_job(options={"async-state.enabled": async_enabled, "async-state.parallelism": 2})

        @job.micro_batch
        def run(df: DataFrame, batch: MicroBatch) -> None:
            for name, out in both_ways(df, batch).items():
                found[name] += out.select("country", "orders", "amount", "row_kind").collect()

        for lines in part:
            write(written, lines)
        stream = spark.readStream.option("maxFilesPerTrigger", 2 if async_enabled else FILES)
        query = stream.text(str(written)).writeStream.foreachBatch(run).trigger(availableNow=True)
        job.await_termination(query.option("checkpointLocation", str(tmp_path / "query")).start())
        for progress in job.history:
            counters = [one["counters"] for one in progress["operators"].values()]
            assert sum(one.get("retractions_without_state", 0) for one in counters) == 0
            stale += sum(one.get("stale_rows_dropped", 0) for one in counters)
    expected = in_duckdb(tables)
    assert len(expected) > 1
    for name in ("full", "upserts"):
        assert net(found[name]) == expected
    assert stale >= len([line for lines in files for line in lines if "upserted" in line]) / 3


def test_a_malformed_event_of_a_stream_ends_the_micro_batch(
    spark: SparkSession, make_job: MakeJob, tmp_path: Path
) -> None:
    (tmp_path / "events.json").write_text('{"op": "c", "after": {"id": "one"}}\n')
    job = make_job()

    @job.micro_batch
    def run(df: DataFrame, batch: MicroBatch) -> None:
        batch.apply(GroupAggregate([count()]), df, key="id", uid="counted")

    stream = debezium_json(spark.readStream.text(str(tmp_path / "*.json")), "id int")
    query = (
        stream.writeStream.foreachBatch(run)
        .option("checkpointLocation", str(tmp_path / "query"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(
        SchemaError, match='column \'id\': \'one\' is not of type int .*, in: {"op": "c", "after"'
    ):
        job.await_termination(query)
