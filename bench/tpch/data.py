"""The queries of TPC-H (``queries.sql``), and its tables as changelogs in Parquet files, and as they are after the last
change.

Invariant: the files follow from scale and share alone. Of each table that changes, micro-batch 0 brings the rows, and
each later one changes the given share of its keys: of orders with their items a third is new, a third goes and a third
changes; of the other tables all change. Must not import Spark.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
from duckdb import DuckDBPyConnection as Connection

from bench.frame.measure import CaseError, output_of, stamp
from bench.nexmark.oracle import read_queries

KEYS = {
    "region": ["r_regionkey"],
    "nation": ["n_nationkey"],
    "supplier": ["s_suppkey"],
    "customer": ["c_custkey"],
    "part": ["p_partkey"],
    "partsupp": ["ps_partkey", "ps_suppkey"],
    "orders": ["o_orderkey"],
    "lineitem": ["l_orderkey", "l_linenumber"],
}
_CHANGED = {
    "supplier": {"s_acctbal": "s_acctbal + 1"},
    "customer": {"c_acctbal": "c_acctbal + 1"},
    "part": {"p_retailprice": "p_retailprice + 1"},
    "partsupp": {"ps_availqty": "ps_availqty % 9999 + 1", "ps_supplycost": "ps_supplycost + 1"},
    "orders": {"o_totalprice": "o_totalprice + 1"},
    "lineitem": {"l_quantity": "l_quantity % 50 + 1", "l_extendedprice": "l_extendedprice + 1"},
}
"""By table the columns that an update changes, and to what; the other tables do not change."""
_GROWING = {"orders": "o_orderkey", "lineitem": "l_orderkey"}


def queries(parameters: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The statements by name, q1 to q22; ``parameters`` of a query take the place of those that the specification
    validates results with."""
    found = {}
    for (name, *known), text in read_queries(Path(__file__).with_name("queries.sql")):
        values = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in known)}
        found[name] = text.format_map(values | dict(parameters.get(name, {})))
    return found


@dataclass
class ChangeFiles:
    """``changes / table``: a Parquet file a micro-batch, with ``row_kind``. ``last / table``: one file, the rows after
    the last micro-batch. ``rows`` and ``changed``: of all tables, in the first micro-batch and in each later one."""

    changes: Path
    last: Path
    micro_batches: int
    rows: int = 0
    changed: int = 0


def write_changes(folder: Path, scale: float, batches: int, share: float, threads: int) -> ChangeFiles:
    """All tables, in ``batches`` micro-batches after the first, each of which changes ``share`` of the keys. Raises
    CaseError if there is no tpchgen-cli, which makes the rows, or it fails."""
    rows = folder / "rows"
    _generate(rows.resolve(), scale)
    found = ChangeFiles(folder / "changes", folder / "last", batches + 1)
    with duckdb.connect(config={"threads": threads, "temp_directory": str(folder / "duckdb")}) as connection:
        for table in KEYS:
            first, *later = _write_table(connection, rows / f"{table}.parquet", table, found, share)
            found.rows, found.changed = found.rows + first, found.changed + sum(later)
    found.changed //= batches
    shutil.rmtree(rows)
    return found


def _generate(folder: Path, scale: float) -> None:
    program = Path(sys.executable).with_name("tpchgen-cli")
    if not program.exists():
        raise CaseError("there is no tpchgen-cli, which makes the rows of TPC-H: pip install tpchgen-cli")
    output_of("tpchgen-cli", str(program), "parquet", "-s", f"{scale:g}", "--output-dir", str(folder))


def _write_table(database: Connection, rows: Path, table: str, files: ChangeFiles, share: float) -> list[int]:
    """Write a table's files; returns the changes of each micro-batch."""
    folder, counts = files.changes / table, []
    folder.mkdir(parents=True)
    files.last.mkdir(exist_ok=True)
    # A number from 0 to 1 by key: the micro-batch in which it changes, and what happens then.
    place = f"(hash({_GROWING.get(table) or ', '.join(KEYS[table])}) % 1000003 / 1000003)"
    # Of few suppliers the generator gives a part one of them twice.
    source = f"(SELECT DISTINCT ON ({', '.join(KEYS[table])}) * FROM '{rows}' ORDER BY ALL)"
    database.execute(
        f"CREATE OR REPLACE TEMP VIEW placed AS SELECT *, floor({place} / {share}) + 1 AS batch, "
        f"floor({place} % {share} / {share} * 3) AS what FROM {source if table == 'partsupp' else repr(str(rows))}"
    )
    old, changed = "* EXCLUDE (batch, what)", _CHANGED.get(table, {})
    kinds = {name: kind for name, kind, *_ in database.execute("DESCRIBE placed").fetchall()}
    replaced = ", ".join(f"CAST({value} AS {kinds[name]}) AS {name}" for name, value in changed.items())
    new = f"{old} REPLACE ({replaced})" if changed else old
    last = files.micro_batches - 1 if changed else 0  # a table that does not change has one micro-batch
    is_new, goes = ("what = 0", "what = 1") if table in _GROWING else ("false", "false")
    stays = f"NOT ({is_new} OR {goes})"
    kinds_of_change = (("+I", old, is_new), ("-D", old, goes), ("-U", old, stays), ("+U", new, stays))
    for batch in range(last + 1):
        parts = [f"SELECT '+I' AS row_kind, {old} FROM placed WHERE NOT (batch <= {last} AND {is_new})"]
        if batch:
            parts = [
                f"SELECT '{kind}' AS row_kind, {columns} FROM placed WHERE batch = {batch} AND {which}"
                for kind, columns, which in kinds_of_change
            ]
        counts.append(_copy(database, " UNION ALL ".join(parts), folder / f"{batch:06d}.parquet", batch))
    parts = [f"SELECT {old} FROM placed WHERE batch > {last} OR ({is_new})"]
    parts += [f"SELECT {new} FROM placed WHERE batch <= {last} AND {stays}"]
    _copy(database, " UNION ALL ".join(parts), files.last / f"{table}.parquet", 0)
    return counts


def _copy(connection: Connection, sql: str, path: Path, number: int) -> int:
    ((count,),) = connection.execute(f"COPY ({sql}) TO '{path}' (FORMAT parquet)").fetchall()
    stamp(path, number)
    return int(count)
