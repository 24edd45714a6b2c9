"""Do Spark's own connectors read what the sinks write into tables of Delta and Iceberg, and can a job read theirs?

    VENV/bin/python .ci/check_lakes.py    with a pyspark for which `CONNECTORS` has the jars

Owns: the versions of the connectors. Spark downloads their jars as it does for a user, by `spark.jars.packages`.

* Sinks: the tables are written by deltalake and pyiceberg in this process: upserts over several micro-batches, and
  appends into a partitioned table.
* Sources: `lake_sources` and `changed_logs` of `tests/connect/programs.py`, classic and over Spark Connect, in both
  modes.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from asyncstate.spark.sinks import DeltaTarget, IcebergTarget
from tests.connect.programs import PROGRAMS
from tests.connect.server import ConnectServer
from tests.sinks.places import Place, changes

CONNECTORS = {
    "4.0": ("io.delta:delta-spark_2.13:4.0.0", "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1")
}
"""By the line of Spark. No release of both runs on Spark 4.3."""
SQLITE = "org.xerial:sqlite-jdbc:3.46.1.3"
EVENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
DAY, MOMENT = dt.date(2026, 3, 1), dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
FIRST = pa.table([[1, 2], [DAY, None], [MOMENT, None], [["a"], None]], schema=EVENTS)
SECOND = pa.table([[3], [DAY], [MOMENT], [[]]], schema=EVENTS)
TOTALS = [(2, "zwei", Decimal("-0.01")), (3, "three", None)]
LOGGED = [(1, DAY, MOMENT, ["a"]), (2, None, None, None), (3, DAY, MOMENT, [])]
SUMS = (
    {"delta": {"0": 18.5, "1": 12.5, "2": 15.5}, "iceberg": {"0": 20.0, "1": 25.0}},
    {"delta": {"1": 11.0, "2": 17.0}, "iceberg": {"0": 20.0, "1": 24.0, "5": 5.0}},
)
"""Of `lake_sources`, after each of its runs: ids 1 to 9 by their remainders of 3 and of 2."""
LOGS = {
    "deleted": ["delete", [0, 20], [1, 25]],
    "updated": ["overwrite", [0, 20], [1, 25]],
    "compacted": [None, [0, 20], [1, 125]],
}
"""Of `changed_logs`."""


def write(folder: Path) -> None:
    """Tables of totals, which are upserted, and of events, which are appended, of both formats."""
    for kind in ("delta", "iceberg"):
        (folder / kind).mkdir()
        place = Place(kind, str(folder / kind))
        place.create()
        target = place.target()
        target.write("w", 0, changes([(1, "one", Decimal("1.50")), (2, "two", None)]))
        target.write("w", 1, changes(TOTALS, [1]))
    for events in (_delta_events(folder), _iceberg_events(folder)):
        events.check_append(EVENTS)
        assert events.append("w", 0, FIRST)
        assert not events.append("w", 0, FIRST)
        assert events.append("w", 1, SECOND)


def _delta_events(folder: Path) -> DeltaTarget:
    from deltalake import write_deltalake

    place = str(folder / "delta" / "events")
    write_deltalake(place, EVENTS.empty_table(), partition_by=["day"])
    return DeltaTarget(place)


def _iceberg_events(folder: Path) -> IcebergTarget:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.transforms import DayTransform

    place = folder / "iceberg"
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{place}/catalog.db",
        "warehouse": f"file://{place}",
    }
    with load_catalog("tests", **catalog).create_table("shop.events", EVENTS).update_spec() as spec:
        spec.add_field("at", DayTransform(), "at_day")
    return IcebergTarget("shop.events", "tests", catalog)


def settings(folder: Path, jars: tuple[str, ...]) -> dict[str, str]:
    """Of a Spark with the connectors: the catalog of pyiceberg in ``folder`` is `tests`, one of Spark's own `lake`."""
    tests, lake = "spark.sql.catalog.tests", "spark.sql.catalog.lake"
    return {
        "spark.jars.packages": ",".join((*jars, SQLITE)),
        "spark.jars.excludes": "com.google.code.findbugs:jsr305",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        tests: "org.apache.iceberg.spark.SparkCatalog",
        f"{tests}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        f"{tests}.uri": f"jdbc:sqlite:{folder}/iceberg/catalog.db",
        f"{tests}.warehouse": f"file://{folder}/iceberg",
        lake: "org.apache.iceberg.spark.SparkCatalog",
        f"{lake}.type": "hadoop",
        f"{lake}.warehouse": f"file://{folder}/lake",
    }


def session(conf: dict[str, str]) -> SparkSession:
    """A classic session."""
    builder = SparkSession.builder.master("local[1]")
    for name, value in conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    """The rows in order of their ids, with times in UTC."""
    found = df.orderBy("id").collect()
    return [
        tuple(value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value for value in row)
        for row in found
    ]


def check_sinks(folder: Path, spark: SparkSession) -> int:
    """How many reads of what the sinks have written are wrong."""
    with sqlite3.connect(folder / "iceberg" / "catalog.db") as catalog:
        assert catalog.execute("SELECT count(*) FROM iceberg_tables").fetchone() == (2,)
    catalog.close()
    read = {
        "Delta, upserts": (spark.read.format("delta").load(f"{folder}/delta/totals"), TOTALS),
        "Delta, appends": (spark.read.format("delta").load(f"{folder}/delta/events"), LOGGED),
        "Iceberg, upserts": (spark.table("tests.shop.totals"), TOTALS),
        "Iceberg, appends": (spark.table("tests.shop.events"), LOGGED),
        "Delta, one partition": (
            spark.read.format("delta").load(f"{folder}/delta/events").where("day is null"),
            LOGGED[1:2],
        ),
        "Iceberg, one partition": (spark.table("tests.shop.events").where("at is null"), LOGGED[1:2]),
    }
    return sum(not said(what, rows(df), expected) for what, (df, expected) in read.items())


def check_sources(what: str, folder: Path, run: Callable[[str, Path, str], Any]) -> int:
    """How many runs of jobs that read the connectors' tables wrote something wrong. ``run`` gets a program, a folder in
    ``folder`` and the mode."""
    tables = folder / "tables"
    for kind in ("delta", "iceberg"):
        (tables / kind).mkdir(parents=True)
        Place(kind, str(tables / kind)).create()
    wrong = 0
    for mode, sums in zip(("sync", "async"), SUMS, strict=True):
        wrong += not said(f"{what}, {mode}", run("lake sources", tables, mode), sums)
        wrong += not said(f"{what}, changed logs, {mode}", run("changed logs", folder / mode, mode), LOGS)
    return wrong


def said(what: str, found: object, expected: object) -> bool:
    """Whether ``found`` is right, which is printed."""
    print(f"lakes: {what}: {'right' if found == expected else f'WRONG: {found}, not {expected}'}", flush=True)
    return found == expected


def classic(spark: SparkSession, program: str, folder: Path, mode: str) -> Any:
    """What ``program`` returns in a classic session."""
    spark.conf.set("spark.async-state.enabled", str(mode == "async").lower())
    return PROGRAMS[program](spark, folder)


def remote(url: str, program: str, folder: Path, mode: str) -> Any:
    """What ``program`` returns in a client of Spark Connect, or the client's error."""
    code = f"from tests.connect.programs import main; main({program!r}, {url!r}, {str(folder)!r}, {mode!r})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else ran.stderr


def main() -> int:
    """0 if Spark reads what was written, and a job what Spark wrote."""
    line = ".".join(pyspark.__version__.split(".")[:2])
    if line not in CONNECTORS:
        print(f"lakes: no connectors are known for Spark {line}, only for {', '.join(CONNECTORS)}")
        return 1
    with tempfile.TemporaryDirectory() as made:
        folder, remote_folder = Path(made) / "classic", Path(made) / "connect"
        folder.mkdir()
        write(folder)
        spark = session(settings(folder, CONNECTORS[line]))
        wrong = check_sinks(folder, spark)
        wrong += check_sources("sources", folder / "sources", functools.partial(classic, spark))
        spark.stop()
        remote_folder.mkdir()
        server = ConnectServer(remote_folder, settings(remote_folder, CONNECTORS[line]))
        try:
            run = functools.partial(remote, server.url)
            wrong += check_sources("sources over Spark Connect", remote_folder / "sources", run)
        finally:
            server.kill()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
