"""The best-selling products of each category, in a database: from captured changes to upserts, with a crash in between.

Run it with ``python docs/examples/shop_leaders.py``. Orders arrive as Debezium's events in three files, one per
micro-batch. A lookup adds the category of the product, the sales of each product are summed and ranked, and the best
ten of each category are in an SQLite table. The first process is killed in its second micro-batch, after the table was
written and before the commit. The second process repeats that micro-batch and continues: nothing is lost, and nothing
is counted twice.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from asyncstate.operators import GroupAggregate, LookupJoin, Rank, desc, sum_
from asyncstate.spark import StreamingJob, build_session
from asyncstate.spark.sinks import SqliteTarget, UpsertSink
from asyncstate.spark.sources import debezium_json

ORDERS = "id bigint not null, product string, amount bigint"
CATEGORIES = {"lamp": "light", "candle": "light", "chair": "seat", "sofa": "seat"}


async def category_of(keys: Sequence[tuple[str]]) -> list[list[tuple[str]]]:
    """In place of a call of a service, which many keys would wait for at the same time."""
    return [[(CATEGORIES[product],)] if product in CATEGORIES else [] for (product,) in keys]


def write_events(folder: Path) -> None:
    """Orders that are read, made, changed and deleted, in three files."""
    rows = [(1, "lamp", 30), (2, "chair", 50), (3, "candle", 5), (4, "sofa", 400), (5, "lamp", 30)]
    orders = [{"id": number, "product": product, "amount": amount} for number, product, amount in rows]
    dearer = orders[2] | {"amount": 90}
    files: list[list[tuple[str, Any, Any]]] = [
        [("r", None, order) for order in orders[:4]],
        [("c", None, orders[4]), ("u", orders[2], dearer)],
        [("d", orders[3], None), ("c", None, {"id": 6, "product": "kite", "amount": 7})],
    ]
    for number, changes in enumerate(files):
        lines = [json.dumps({"op": op, "before": old, "after": new}) for op, old, new in changes]
        path = folder / f"{number}.json"
        path.write_text("".join(f"{line}\n" for line in lines))
        os.utime(path, (1_000 + number, 1_000 + number))


def run(folder: Path, killed_in: int | None) -> None:
    """The job, to the end of the files, or until it kills itself."""
    spark = build_session("shop", "local[2]", {"spark.log.level": "ERROR"})
    job = StreamingJob(spark, str(folder / "state"), {"async-state.local-dir": str(folder / "local")})
    log = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "events"))
    orders = job.source("orders", debezium_json(log, ORDERS), changelog=True)
    known = orders.apply(
        LookupJoin(category_of, pa.schema([("category", pa.string())]), how="inner"),
        key="product",
        uid="category",
    )
    sold = known.apply(
        GroupAggregate([sum_("amount").alias("revenue")]), key=("product", "category"), uid="revenue"
    )
    leaders = sold.apply(Rank(desc("revenue"), 10, unique=["product"]), key="category", uid="leaders")
    leaders.to(UpsertSink("product", SqliteTarget(folder / "shop.db", "leaders"), writer="leaders"))

    def kill(_: DataFrame, batch_id: int) -> None:
        if batch_id == killed_in:
            os.kill(os.getpid(), signal.SIGKILL)

    leaders.to(kill, name="kill")
    job.await_termination(job.start(trigger={"availableNow": True}))
    spark.stop()


def show(folder: Path) -> None:
    """Print the table, best first."""
    with sqlite3.connect(folder / "shop.db") as database:
        query = "SELECT category, product, revenue FROM leaders ORDER BY category, revenue DESC"
        for category, product, revenue in database.execute(query):
            print(f"{category}: {product} {revenue}")


def main() -> None:
    """Run the job in two processes; the first one dies."""
    folder = Path(tempfile.mkdtemp())
    (folder / "events").mkdir()
    write_events(folder / "events")
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE leaders (product text PRIMARY KEY, category text, revenue bigint)")
    for killed_in in ("1", ""):
        done = subprocess.run([sys.executable, __file__, str(folder), killed_in], check=False)
        print("killed" if done.returncode == -signal.SIGKILL else f"ended with {done.returncode}", flush=True)
        show(folder)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        run(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2] else None)

# Prints:
# killed
# light: candle 90
# light: lamp 60
# seat: sofa 400
# seat: chair 50
# ended with 0
# light: candle 90
# light: lamp 60
# seat: chair 50
