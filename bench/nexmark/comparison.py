"""Is a streaming result the right one?

Owns: netting a changelog to the table it describes, and the difference of that table from the expected one.
Invariant: a result is right only if names, types and every row with its multiplicity agree; doubles may
differ by one part in 10**9. Nothing is sampled.
Must not import Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, RowKind

RELATIVE_TOLERANCE = 1e-9
_EXAMPLES = 5
_FLOATS = ("DOUBLE", "FLOAT")
_INSTANT = "TIMESTAMP WITH TIME ZONE"


@dataclass(frozen=True)
class ComparisonResult:
    """What the comparison found. It holds if ``problems`` is empty.

    Attributes:
        expected_rows: Rows of the expected table.
        changelog_rows: Rows of the changelog, of any kind.
        missing_rows: Expected rows that the netted changelog does not have.
        unexpected_rows: Rows it has and should not have.
        overdrawn_rows: Distinct rows that were retracted more often than they were emitted.
        problems: One sentence each.
        examples: The first few differing rows, as text.
    """

    expected_rows: int
    changelog_rows: int
    missing_rows: int
    unexpected_rows: int
    overdrawn_rows: int
    problems: tuple[str, ...]
    examples: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if the result is right."""
        return not self.problems


def compare(connection: duckdb.DuckDBPyConnection, expected_sql: str, actual: Path | str) -> ComparisonResult:
    """Compare the changelog in the Parquet files under ``actual`` with the rows of ``expected_sql``.

    The changelog is netted: ``+I`` and ``+U`` count a row up, ``-U`` and ``-D`` count an equal row down.
    Without a ``row_kind`` column every row is ``+I``.
    """
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW expected_rows AS {expected_sql}")
    expected = _types(connection, "expected_rows")
    files = sorted(Path(actual).rglob("*.parquet"))
    if not files:
        return _failed(connection, f"no Parquet file under {actual}: the query wrote nothing", 0)
    connection.read_parquet([str(file) for file in files], hive_partitioning=False).create_view(
        "changelog_rows", replace=True
    )
    found = _types(connection, "changelog_rows")
    has_kind = found.pop(ROW_KIND_COLUMN, None) is not None
    changelog_rows = _number(connection, "SELECT count(*) FROM changelog_rows")
    if problems := _schema_problems(expected, found) + _kind_problems(connection, has_kind):
        return _failed(connection, "; ".join(problems), changelog_rows)
    _collect_differences(connection, expected, has_kind)
    return _result(connection, expected, changelog_rows)


def _types(connection: duckdb.DuckDBPyConnection, view: str) -> dict[str, str]:
    return {name: str(kind) for name, kind, *_ in connection.execute(f"DESCRIBE {view}").fetchall()}


def _number(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    row = connection.execute(sql).fetchone()
    assert row is not None, "an aggregate has a row"
    return int(row[0] or 0)


def _schema_problems(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    if list(expected) != list(found):
        return [f"the columns are {', '.join(found)}, expected {', '.join(expected)}"]
    plain = {name: "TIMESTAMP" if kind == _INSTANT else kind for name, kind in found.items()}
    return [
        f"column '{name}' is of type {plain[name]}, expected {kind}"
        for name, kind in expected.items()
        if plain[name] != kind
    ]


def _kind_problems(connection: duckdb.DuckDBPyConnection, has_kind: bool) -> list[str]:
    if not has_kind:
        return []
    texts = ", ".join(f"'{text}'" for text in ROW_KIND_TEXTS)
    strange = connection.execute(
        f"SELECT DISTINCT {ROW_KIND_COLUMN} FROM changelog_rows "
        f"WHERE {ROW_KIND_COLUMN} IS NULL OR {ROW_KIND_COLUMN} NOT IN ({texts})"
    ).fetchall()
    return [f"'{kind}' in column '{ROW_KIND_COLUMN}' is not a row kind" for (kind,) in strange]


def _collect_differences(
    connection: duckdb.DuckDBPyConnection, columns: dict[str, str], has_kind: bool
) -> None:
    """Table ``differing_rows``: the columns, how often a row is ``expected`` and how often ``found``."""
    sign = "1"
    if has_kind:
        added = ", ".join(f"'{kind.text}'" for kind in RowKind if kind.is_accumulate)
        sign = f"CASE WHEN {ROW_KIND_COLUMN} IN ({added}) THEN 1 ELSE -1 END"
    names = ", ".join(map(_quoted, columns))
    casts = ", ".join(f"CAST({_quoted(name)} AS {kind}) AS {_quoted(name)}" for name, kind in columns.items())
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE differing_rows AS
        SELECT {names}, sum(expected)::BIGINT AS "#expected", sum(found)::BIGINT AS "#found" FROM (
            SELECT {names}, 1 AS expected, 0 AS found FROM expected_rows
            UNION ALL
            SELECT {casts}, 0, {sign} FROM changelog_rows
        )
        GROUP BY {names} HAVING "#expected" <> "#found"
        """
    )
    floats = [name for name, kind in columns.items() if kind in _FLOATS]
    if floats:
        _forgive_rounding(connection, columns, floats)


def _forgive_rounding(
    connection: duckdb.DuckDBPyConnection, columns: dict[str, str], floats: list[str]
) -> None:
    """Drop pairs, one missing and one unexpected, that differ in floats by rounding only.

    Rows that agree in the other columns are paired in the order of their floats.
    """
    exact = [_quoted(name) for name in columns if name not in floats]
    order = ", ".join(map(_quoted, floats))
    partition = f"PARTITION BY {', '.join(exact)}" if exact else ""
    same = [f"M.{name} IS NOT DISTINCT FROM U.{name}" for name in exact]
    close = [
        f"(M.{name} IS NOT DISTINCT FROM U.{name} OR abs(M.{name} - U.{name}) <= {RELATIVE_TOLERANCE} * "
        f"greatest(abs(M.{name}), abs(U.{name})))"
        for name in map(_quoted, floats)
    ]
    side = f"""
        SELECT *, row_number() OVER ({partition} ORDER BY {order}) AS "#number" FROM (
            SELECT * EXCLUDE ("#expected", "#found", "#times"), unnest(range("#times")) AS "#copy",
                "#row" FROM (SELECT *, rowid AS "#row", {{times}} AS "#times" FROM differing_rows)
        )"""
    missing = side.format(times='greatest("#expected" - greatest("#found", 0), 0)')
    unexpected = side.format(times='greatest("#found" - "#expected", 0)')
    connection.execute(
        f"""
        CREATE OR REPLACE TEMP TABLE forgiven_rows AS
        SELECT M."#row" AS missing, U."#row" AS unexpected FROM ({missing}) AS M JOIN ({unexpected}) AS U
        ON {" AND ".join([*same, 'M."#number" = U."#number"', *close])}
        """
    )
    for side_name, change in (("missing", '"#found" + times'), ("unexpected", '"#found" - times')):
        connection.execute(
            f"""
            UPDATE differing_rows SET "#found" = {change}
            FROM (SELECT {side_name} AS id, count(*) AS times FROM forgiven_rows GROUP BY ALL) AS F
            WHERE differing_rows.rowid = F.id
            """
        )
    connection.execute('DELETE FROM differing_rows WHERE "#expected" = "#found"')


def _result(
    connection: duckdb.DuckDBPyConnection, columns: dict[str, str], changelog_rows: int
) -> ComparisonResult:
    missing = _number(
        connection, 'SELECT sum(greatest("#expected" - greatest("#found", 0), 0)) FROM differing_rows'
    )
    unexpected = _number(connection, 'SELECT sum(greatest("#found" - "#expected", 0)) FROM differing_rows')
    overdrawn = _number(connection, 'SELECT count(*) FROM differing_rows WHERE "#found" < 0')
    problems = [
        f"{count} {what}"
        for count, what in (
            (missing, "expected rows are missing"),
            (unexpected, "rows are not expected"),
            (overdrawn, "rows were retracted more often than emitted"),
        )
        if count
    ]
    return ComparisonResult(
        expected_rows=_number(connection, "SELECT count(*) FROM expected_rows"),
        changelog_rows=changelog_rows,
        missing_rows=missing,
        unexpected_rows=unexpected,
        overdrawn_rows=overdrawn,
        problems=tuple(problems),
        examples=_examples(connection, columns),
    )


def _examples(connection: duckdb.DuckDBPyConnection, columns: dict[str, str]) -> tuple[str, ...]:
    """The first differing rows, in the order of their columns, so that near misses stand together."""
    rows = connection.execute(
        f'SELECT "#expected", "#found", {", ".join(map(_quoted, columns))} FROM differing_rows '
        f"ORDER BY {', '.join(map(_quoted, columns))} LIMIT {_EXAMPLES}"
    ).fetchall()
    return tuple(
        f"expected {expected} times, found {found} times: "
        + ", ".join(f"{name}={value!s:.60}" for name, value in zip(columns, values, strict=True))
        for expected, found, *values in rows
    )


def _failed(connection: duckdb.DuckDBPyConnection, problem: str, changelog_rows: int) -> ComparisonResult:
    expected_rows = _number(connection, "SELECT count(*) FROM expected_rows")
    return ComparisonResult(expected_rows, changelog_rows, 0, 0, 0, (problem,), ())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
