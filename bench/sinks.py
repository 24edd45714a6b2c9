"""Cost of ``write_upserts``, compared with the same COPY and merge by hand.

Owns: ``bench sinks``. Invariant: both write the same changes into tables that have the same rows, by turns, and the
tables are compared in the end.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import typer
from pyarrow import csv
from pyspark.sql import DataFrame

from asyncstate.spark.sinks import PostgresTarget, write_upserts
from bench.frame import Cores, Report, Rounds, Row, Seed, Side, WrongResult, benchmark, costs, sides, turns
from bench.processor_time import TreeClocks
from bench.session import session

if TYPE_CHECKING:
    import psycopg

_COLUMNS = "id bigint PRIMARY KEY, customer text, amount bigint, total double precision"
Rows = list[Row]
Given = tuple[int, DataFrame]  # a micro-batch and its number
_BY_HAND = "COPY and merge by hand"


def changes_of(number: int, keys: int, seed: int) -> pa.Table:
    """A micro-batch: one change for each of ``keys`` keys, of which one in ten goes; half of them were there before."""
    random = np.random.default_rng([seed, number])
    ids = random.permutation(2 * keys)[:keys]
    columns = {
        "id": ids,
        "customer": pc.binary_join_element_wise("customer ", pa.array(ids % 1000).cast(pa.string()), ""),
        "amount": random.integers(0, 10**6, keys),
        "total": random.random(keys),
        "row_kind": np.where(random.random(keys) < 0.1, "-D", "+U"),
    }
    return pa.table(columns)


def by_hand(database: psycopg.Connection, table: str, given: Given) -> None:
    rows = given[1].toArrow()
    written = rows.append_column("gone", pc.equal(rows["row_kind"], "-D")).drop_columns(["row_kind"])
    buffer = io.BytesIO()
    csv.write_csv(written, buffer, csv.WriteOptions(include_header=False))
    with database.cursor() as cursor:
        staged = f"SELECT *, true AS gone FROM {table} LIMIT 0"
        cursor.execute(f"CREATE TEMPORARY TABLE staged ON COMMIT DROP AS {staged}")
        with cursor.copy("COPY staged FROM STDIN (FORMAT csv)") as copy:
            copy.write(buffer.getbuffer())
        cursor.execute(f"DELETE FROM {table} USING staged WHERE {table}.id = staged.id AND staged.gone")
        cursor.execute(
            f"INSERT INTO {table} SELECT id, customer, amount, total FROM staged WHERE NOT gone ON CONFLICT (id) "
            "DO UPDATE SET customer = excluded.customer, amount = excluded.amount, total = excluded.total"
        )
    database.commit()


def measure(conninfo: str, keys: int, rounds: int, seed: int, of: Callable[[pa.Table], DataFrame]) -> Rows:
    """Rows as Spark has them, brought over and written, in turns."""
    import psycopg

    drawn = ((number, of(changes_of(number, keys, seed))) for number in count())
    with psycopg.connect(conninfo) as database:
        database.execute("DROP TABLE IF EXISTS by_us, by_hand, asyncstate_batches")
        for table in ("by_us", "by_hand"):
            database.execute(f"CREATE TABLE {table} ({_COLUMNS})")
        database.commit()
        target = PostgresTarget(conninfo, "by_us")
        ways: dict[str, Side] = {"write_upserts": lambda given: write_upserts(*given, "id", target)}
        ways[_BY_HAND] = partial(by_hand, database, "by_hand")
        spent = turns(ways, rounds, drawn, clocks=TreeClocks)
        differing = "(TABLE by_us EXCEPT TABLE by_hand) UNION (TABLE by_hand EXCEPT TABLE by_us)"
        if database.execute(differing).fetchone() is not None:
            raise WrongResult("the two tables differ")
    return sides(spent, 1, _BY_HAND, speed=True, scale=1e3)


@benchmark(keys=500, rounds=1)
def sinks(
    report: Report,
    conninfo: Annotated[str, typer.Option(help="Of PostgreSQL: 'host=/tmp user=me dbname=bench'.")],
    keys: Annotated[int, typer.Option(min=1, help="Changed keys of a micro-batch.")] = 100_000,
    rounds: Rounds = 7,
    cores: Cores = 2,
    seed: Seed = 1,
) -> None:
    """Upsert micro-batches into PostgreSQL, and do the same by hand. Makes the tables by_us and by_hand there."""
    with session("bench sinks", report.folder, cores) as spark:

        def of(rows: pa.Table) -> DataFrame:
            kept = spark.createDataFrame(rows).cache()
            kept.count()
            return kept

        report.section(f"{keys:,} changed keys a micro-batch, medians of {rounds}", costs("ms", ""))
        report.case("sinks", measure, conninfo, keys, rounds, seed, of)
