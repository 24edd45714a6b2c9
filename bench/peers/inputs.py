"""The rows of a piece of work as Parquet files, written once for all peers, and DuckDB's view of them.

Owns: ``write_input`` and ``check``.
Invariant: files sort by name and by modification time in the order of their micro-batches, ``files`` of them each.
Must not import Spark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from asyncstate.changelog import ROW_KIND_COLUMN
from bench.nexmark.comparison import ComparisonResult, compare
from bench.peers.process import Input
from bench.peers.works import Result, Scale, Work

_FIRST_MTIME_S = 1_577_836_800


def write_input(work: Work, scale: Scale, folder: Path, files: int) -> Input:
    """Write all micro-batches of ``work`` into ``folder``."""
    counts: list[int] = []
    names: tuple[str, ...] = ()
    for batch in range(scale.micro_batches(work)):
        tables = work.tables(scale, batch)
        names = tuple(tables)
        counts.append(sum(table.num_rows for table in tables.values()))
        for name, table in tables.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            for number in range(files):
                start, end = (table.num_rows * step // files for step in (number, number + 1))
                path = folder / name / f"batch-{batch:06d}-{number:02d}.parquet"
                pq.write_table(table.slice(start, end - start), path, compression="snappy")
                # Steps of a second: a file stream orders by modification time, and some file systems keep no less.
                moment = _FIRST_MTIME_S + batch * files + number
                os.utime(path, (moment, moment))
    return Input(str(folder), names, files, tuple(counts))


def check(given: Input, result: Result, sink: Path, first: int, cores: int) -> ComparisonResult:
    """Compare what the micro-batches from ``first`` on left in ``sink`` with DuckDB's answer on the same files."""
    with duckdb.connect(config={"threads": cores}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for table in given.tables:
            connection.execute(
                f"""CREATE TEMP VIEW "{table}" AS SELECT * EXCLUDE (filename),
                CAST(regexp_extract(filename, 'batch-(\\d+)-', 1) AS BIGINT) AS batch
                FROM read_parquet('{_text(Path(given.folder) / table)}/*.parquet', filename = true)"""
            )
        if result.upsert:
            sink = _last_rows(connection, result.upsert, sink)
        return compare(connection, result.sql.format(first=first, last=len(given.rows) - 1), sink)


def _last_rows(connection: duckdb.DuckDBPyConnection, key: Sequence[str], sink: Path) -> Path:
    """The last emitted row of each key. Rows of a key are in one file per micro-batch, in order."""
    last = sink.with_name(f"{sink.name}-last")
    last.mkdir()
    files = f"'{_text(sink)}/*/*.parquet', hive_partitioning = false"
    names = [name for name, *_ in connection.execute(f"DESCRIBE FROM read_parquet({files})").fetchall()]
    columns = ", ".join(f'"{name}"' for name in names if name != ROW_KIND_COLUMN)
    connection.execute(
        f"""COPY (
            SELECT {columns} FROM read_parquet({files}, filename = true, file_row_number = true)
            QUALIFY row_number() OVER (
                PARTITION BY {", ".join(key)}
                ORDER BY regexp_extract(filename, 'batch=(\\d+)', 1) DESC, file_row_number DESC
            ) = 1
        ) TO '{_text(last / "rows.parquet")}' (FORMAT parquet)"""
    )
    return last


def _text(path: Path) -> str:
    return str(path).replace("'", "''")
