"""What ``write_upserts`` costs beside the same COPY and merge by hand.

Owns: ``bench sinks``. Invariant: both write the same changes into tables that have the same rows, by turns, and the
tables are compared in the end.
"""

from __future__ import annotations

import io
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from pyarrow import csv
from rich import box
from rich.console import Console
from rich.table import Table

from asyncstate.spark.sinks import PostgresTarget, write_upserts
from bench.processor_time import TreeClocks, TreeSpent, median_cpu
from bench.report import write_json
from bench.session import local_session

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame

_COLUMNS = "id bigint PRIMARY KEY, customer text, amount bigint, total double precision"
_TURNS = 2


class SinkCost(msgspec.Struct, frozen=True):
    """``ratio``: the speed beside writing by hand, median of the pairs; above 1 is quicker. ``cpu_ms`` is of
    processors, Spark's processes among them and PostgreSQL's not; None where the system does not tell."""

    name: str
    changes: int
    wall_ms: float
    cpu_ms: float | None
    ratio: float


def changes_of(number: int, keys: int, seed: int) -> pa.Table:
    """A micro-batch: one change for each of ``keys`` keys, of which one in ten goes; half of them were there before."""
    random = np.random.default_rng([seed, number])
    ids = random.permutation(2 * keys)[:keys]
    return pa.table(
        {
            "id": ids,
            "customer": pc.binary_join_element_wise("customer ", pa.array(ids % 1000).cast(pa.string()), ""),
            "amount": random.integers(0, 10**6, keys),
            "total": random.random(keys),
            "row_kind": np.where(random.random(keys) < 0.1, "-D", "+U"),
        }
    )


def by_hand(database: psycopg.Connection, table: str, rows: pa.Table) -> None:
    """As one would write it for this table alone."""
    goes = pc.equal(rows["row_kind"], "-D")
    buffer = io.BytesIO()
    csv.write_csv(
        rows.append_column("gone", goes).drop_columns(["row_kind"]),
        buffer,
        csv.WriteOptions(include_header=False),
    )
    with database.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMPORARY TABLE staged ON COMMIT DROP AS SELECT *, true AS gone FROM {table} LIMIT 0"
        )
        with cursor.copy("COPY staged FROM STDIN (FORMAT csv)") as copy:
            copy.write(buffer.getbuffer())
        cursor.execute(f"DELETE FROM {table} USING staged WHERE {table}.id = staged.id AND staged.gone")
        cursor.execute(
            f"INSERT INTO {table} SELECT id, customer, amount, total FROM staged WHERE NOT gone ON CONFLICT (id) "
            "DO UPDATE SET customer = excluded.customer, amount = excluded.amount, total = excluded.total"
        )
    database.commit()


def measure(
    conninfo: str, keys: int, rounds: int, seed: int, of: Callable[[pa.Table], DataFrame]
) -> list[SinkCost]:
    """Rows as Spark has them, brought over and written, in turns; raises RuntimeError if the tables differ."""
    import psycopg

    ours: list[TreeSpent] = []
    hand: list[TreeSpent] = []
    with psycopg.connect(conninfo) as database:
        for table in ("by_us", "by_hand"):
            database.execute(f"DROP TABLE IF EXISTS {table}")
            database.execute(f"CREATE TABLE {table} ({_COLUMNS})")
        database.execute("DROP TABLE IF EXISTS asyncstate_batches")
        database.commit()
        target = PostgresTarget(conninfo, "by_us")
        for number in range(rounds + 1):
            rows = of(changes_of(number, keys, seed))
            for times in (ours, hand) if number % _TURNS else (hand, ours):
                clocks = TreeClocks()
                if times is ours:
                    write_upserts(number, rows, "id", target)
                else:
                    by_hand(database, "by_hand", rows.toArrow())
                times.append(clocks.spent())
        differing = database.execute(
            "(TABLE by_us EXCEPT TABLE by_hand) UNION (TABLE by_hand EXCEPT TABLE by_us)"
        )
        if differing.fetchone() is not None:
            raise RuntimeError("the two tables differ")
    pairs = list(zip(ours[1:], hand[1:], strict=True))
    ratio = statistics.median(theirs.seconds / own.seconds for own, theirs in pairs)
    return [
        _cost("write_upserts", keys, ours[1:], ratio),
        _cost("COPY and merge by hand", keys, hand[1:], 1.0),
    ]


def _cost(name: str, keys: int, spent: list[TreeSpent], ratio: float) -> SinkCost:
    cpu = median_cpu(spent)
    wall_ms = statistics.median(each.seconds for each in spent) * 1e3
    return SinkCost(name, keys, wall_ms, None if cpu is None else cpu * 1e3, ratio)


def sinks(
    conninfo: Annotated[
        str, typer.Option(help="A PostgreSQL database, such as 'host=/tmp user=me dbname=bench'.")
    ],
    keys: Annotated[int, typer.Option(min=1, help="Changed keys of a micro-batch.")] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted micro-batches.")] = 7,
    cores: Annotated[int, typer.Option(min=1, help="Spark's local cores.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the rows drawn.")] = 1,
    output: Annotated[Path | None, typer.Option(help="Folder for sinks.json.")] = None,
) -> None:
    """Upsert micro-batches into PostgreSQL, and do the same by hand. Makes the tables by_us and by_hand there."""
    with tempfile.TemporaryDirectory(prefix="asyncstate-sinks-") as folder:
        spark = local_session("bench sinks", Path(folder), cores)

        def of(rows: pa.Table) -> DataFrame:
            made = spark.createDataFrame(rows).cache()
            made.count()
            return made

        try:
            found = measure(conninfo, keys, rounds, seed, of)
        finally:
            spark.stop()
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{keys:,} changed keys a micro-batch, medians of {rounds}",
        title_justify="left",
    )
    table.add_column("way")
    for heading in ("ms", "processor ms", "speed"):
        table.add_column(heading, justify="right")
    for cost in found:
        cpu = "" if cost.cpu_ms is None else f"{cost.cpu_ms:.0f}"
        table.add_row(cost.name, f"{cost.wall_ms:.0f}", cpu, f"{cost.ratio:.2f}x")
    Console().print(table)
    if output is not None:
        write_json(found, output / "sinks.json", keys=keys)
