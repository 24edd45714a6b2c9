"""Revenue by country, kept up to date from two tables that Debezium captures.

Run it with ``python docs/examples/debezium_orders.py``: it writes the events of a small shop into files, reads them as
a stream of three micro-batches, and prints the table after each. With Kafka, only the stream is different: see
docs/sources.md.

The events of orders have the row before each change (REPLICA IDENTITY FULL). Those of customers do not, and some of
them arrive twice: ``ChangelogNormalize`` keeps the row before a change and drops duplicates.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from asyncstate import Changelog
from asyncstate.operators import ChangelogNormalize, GroupAggregate, Join, count, sum_
from asyncstate.spark import MicroBatch, StreamingJob, build_session, last_changes
from asyncstate.spark.sources import POSITIONS, debezium_json

ORDERS = "id bigint not null, customer int, amount decimal(10, 2), placed timestamp"
CUSTOMERS = "id int not null, country string"
PLACE = list(POSITIONS["postgresql"])


def event(table: str, op: str, lsn: int, before: Any = None, after: Any = None) -> str:
    """An event as Debezium's connector for PostgreSQL writes it, with decimal.handling.mode=string."""
    return json.dumps({"op": op, "before": before, "after": after, "source": {"table": table, "lsn": lsn}})


def order(number: int, customer: int, amount: str) -> dict[str, Any]:
    """An order as it is in an event: its time in microseconds."""
    return {"id": number, "customer": customer, "amount": amount, "placed": 1_709_208_000_000_000}


def write_events(folder: Path) -> None:
    """A snapshot of both tables, then the changes of two days: a file each."""
    norway, sweden = {"id": 1, "country": "NO"}, {"id": 2, "country": "SE"}
    files = [
        [
            event("customers", "r", 100, None, norway),
            event("customers", "r", 100, None, sweden),
            event("orders", "r", 100, None, order(1, 1, "10.00")),
            event("orders", "r", 100, None, order(2, 2, "20.50")),
        ],
        [
            event("orders", "u", 110, order(1, 1, "10.00"), order(1, 1, "12.00")),
            event("orders", "c", 120, None, order(3, 2, "5.00")),
            event("customers", "u", 130, None, {"id": 1, "country": "DK"}),
            event("customers", "u", 130, None, {"id": 1, "country": "DK"}),
        ],
        [
            event("customers", "u", 130, None, {"id": 1, "country": "DK"}),
            event("orders", "d", 140, order(3, 2, "5.00")),
            event("customers", "d", 150, {"id": 2, "country": None}),
        ],
    ]
    for number, lines in enumerate(files):
        path = folder / f"{number}.json"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_000 + number, 1_000 + number))


def of_table(log: DataFrame, table: str) -> DataFrame:
    """The events of one table. Kafka has a topic for each."""
    return log.where(f"get_json_object(value, '$.source.table') = '{table}'")


def revenue(log: DataFrame, batch: MicroBatch) -> DataFrame:
    """The changelog of orders and amount by country."""
    orders = debezium_json(of_table(log, "orders"), ORDERS, decimals="text", timestamps="us")
    upserts = debezium_json(
        of_table(log, "customers"), CUSTOMERS, upsert_key="id", connector="postgresql"
    ).withColumnRenamed("id", "buyer")
    customers = batch.apply(
        ChangelogNormalize(),
        upserts,
        key="buyer",
        sequence=PLACE,
        drop_stale=True,
        changes=Changelog.upsert("buyer"),  # Spark has renamed the key
        uid="customers",
    )
    sold = batch.apply(
        Join("inner"), orders, customers.drop(*PLACE), key=("customer", "buyer"), uid="sold"
    ).select("country", "amount", "row_kind")
    aggregates = [count().alias("orders"), sum_("amount").alias("amount")]
    return batch.apply(GroupAggregate(aggregates), sold, key="country", uid="revenue")


def main() -> None:
    """Write the events, run the job over them, print the table after each micro-batch."""
    folder = Path(tempfile.mkdtemp())
    (folder / "events").mkdir()
    write_events(folder / "events")
    spark = build_session("shop", "local[2]", {"spark.log.level": "ERROR"})
    job = StreamingJob(spark, str(folder / "state"), {"async-state.local-dir": str(folder / "local")})
    table: dict[str, tuple[int, str]] = {}

    @job.micro_batch
    def run(log: DataFrame, batch: MicroBatch) -> None:
        for row in last_changes(revenue(log, batch), "country").collect():
            table.pop(row.country, None)
            if row.row_kind == "+U":
                table[row.country] = row.orders, str(row.amount)
        print(dict(sorted(table.items())))

    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "events"))
    query = stream.writeStream.foreachBatch(run).trigger(availableNow=True)
    job.await_termination(query.option("checkpointLocation", str(folder / "query")).start())
    spark.stop()


if __name__ == "__main__":
    main()

# Prints:
# {'NO': (1, '10.00'), 'SE': (1, '20.50')}
# {'DK': (1, '12.00'), 'SE': (2, '25.50')}
# {'DK': (1, '12.00')}
