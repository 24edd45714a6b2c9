"""Is a streaming result the right one?

Owns: netting a changelog to the table it describes, and the difference of that table from the expected one. Invariant:
a result is right only if names, types and every row with its multiplicity agree; doubles may differ by one part in
10**9. Nothing is sampled. Must not import Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from duckdb import DuckDBPyConnection as Connection

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, RowKind

RELATIVE_TOLERANCE = 1e-9
_EXAMPLES = 5
_FLOATS = ("DOUBLE", "FLOAT")
_MISSING = 'greatest("#expected" - greatest("#found", 0), 0)'
_UNEXPECTED = 'greatest("#found" - "#expected", 0)'
_OVERDRAWN = '("#found" < 0)::BIGINT'
_INSTANT = "TIMESTAMP WITH TIME ZONE"


class ComparisonResult(NamedTuple):
    """What the comparison found. It holds if ``problems`` (a sentence each) is empty; ``examples`` are the first few
    differing rows, as text. ``overdrawn_rows``: distinct ones that were retracted more often than they were emitted."""

    expected_rows: int
    changelog_rows: int = 0
    problems: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    missing_rows: int = 0
    unexpected_rows: int = 0
    overdrawn_rows: int = 0

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def wrong(self) -> list[str]:
        return [*self.problems, *self.examples]


def compare(connection: Connection, expected_sql: str, actual: Path | str) -> ComparisonResult:
    """Compare the changelog in the Parquet files under ``actual`` with the rows of ``expected_sql``. The changelog is
    netted: ``+I`` and ``+U`` count a row up, ``-U`` and ``-D`` count an equal row down. Without a ``row_kind`` column
    every row is ``+I``."""

    def number(sql: str) -> int:
        ((found,),) = connection.execute(sql).fetchall()
        return int(found or 0)

    def types(view: str) -> dict[str, str]:
        return {name: str(kind) for name, kind, *_ in connection.execute(f"DESCRIBE {view}").fetchall()}

    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE OR REPLACE TEMP VIEW expected_rows AS {expected_sql}")
    expected, expected_rows = types("expected_rows"), number("SELECT count(*) FROM expected_rows")
    files = [str(file) for file in sorted(Path(actual).rglob("*.parquet"))]
    if not files:
        why = f"no Parquet file under {actual}: the query wrote nothing"
        return ComparisonResult(expected_rows, problems=(why,))
    connection.read_parquet(files, hive_partitioning=False).create_view("changelog_rows", replace=True)
    found = types("changelog_rows")
    has_kind = found.pop(ROW_KIND_COLUMN, None) is not None
    changelog_rows = number("SELECT count(*) FROM changelog_rows")
    if problems := _schema_problems(connection, expected, found, has_kind):
        return ComparisonResult(expected_rows, changelog_rows, ("; ".join(problems),))
    _collect_differences(connection, expected, has_kind)
    measures = _MISSING, _UNEXPECTED, _OVERDRAWN
    counts = [number(f"SELECT sum({each}) FROM differing_rows") for each in measures]
    what = "expected rows are missing", "rows are not expected", "rows were retracted more often than emitted"
    said = tuple(f"{count} {text}" for count, text in zip(counts, what, strict=True) if count)
    # In the order of their columns, so that near misses stand together.
    names = ", ".join(map(_quoted, expected))
    shown = f'SELECT "#expected", "#found", {names} FROM differing_rows ORDER BY {names} LIMIT {_EXAMPLES}'
    rows = connection.execute(shown).fetchall()
    examples = tuple(
        f"expected {wanted} times, found {times} times: "
        + ", ".join(f"{name}={value!s:.60}" for name, value in zip(expected, values, strict=True))
        for wanted, times, *values in rows
    )
    return ComparisonResult(expected_rows, changelog_rows, said, examples, *counts)


def _schema_problems(
    connection: Connection, expected: dict[str, str], found: dict[str, str], has_kind: bool
) -> list[str]:
    if list(expected) != list(found):
        return [f"the columns are {', '.join(found)}, expected {', '.join(expected)}"]
    plain = {name: "TIMESTAMP" if kind == _INSTANT else kind for name, kind in found.items()}
    differ = [(name, kind) for name, kind in expected.items() if plain[name] != kind]
    problems = [f"column '{name}' is of type {plain[name]}, expected {kind}" for name, kind in differ]
    if has_kind:
        texts = ", ".join(f"'{text}'" for text in ROW_KIND_TEXTS)
        strange = f"coalesce({ROW_KIND_COLUMN} NOT IN ({texts}), true)"
        kinds = connection.execute(f"SELECT DISTINCT {ROW_KIND_COLUMN} FROM changelog_rows WHERE {strange}")
        problems += [f"'{kind}' in column '{ROW_KIND_COLUMN}' is no row kind" for (kind,) in kinds.fetchall()]
    return problems


def _collect_differences(connection: Connection, columns: dict[str, str], has_kind: bool) -> None:
    """Table ``differing_rows``: the columns, how often a row is ``expected`` and how often ``found``."""
    sign = "1"
    if has_kind:
        added = ", ".join(f"'{kind.text}'" for kind in RowKind if kind.is_accumulate)
        sign = f"CASE WHEN {ROW_KIND_COLUMN} IN ({added}) THEN 1 ELSE -1 END"
    names = ", ".join(map(_quoted, columns))
    casts = ", ".join(f"CAST({_quoted(name)} AS {kind}) AS {_quoted(name)}" for name, kind in columns.items())
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE differing_rows AS
        SELECT {names}, sum(expected)::BIGINT AS "#expected", sum(found)::BIGINT AS "#found" FROM (
            SELECT {names}, 1 AS expected, 0 AS found FROM expected_rows
            UNION ALL
            SELECT {casts}, 0, {sign} FROM changelog_rows
        )
        GROUP BY {names} HAVING "#expected" <> "#found"
    """)
    if floats := [name for name, kind in columns.items() if kind in _FLOATS]:
        _forgive_rounding(connection, columns, floats)


def _forgive_rounding(connection: Connection, columns: dict[str, str], floats: list[str]) -> None:
    """Drop pairs, one missing and one unexpected, that differ in floats by rounding only. Rows that agree in the other
    columns are paired in the order of their floats."""
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
    missing, unexpected = (side.format(times=times) for times in (_MISSING, _UNEXPECTED))
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE forgiven_rows AS
        SELECT M."#row" AS missing, U."#row" AS unexpected FROM ({missing}) AS M JOIN ({unexpected}) AS U
        ON {" AND ".join([*same, 'M."#number" = U."#number"', *close])}
    """)
    times = "(SELECT count(*) FROM forgiven_rows WHERE {} = differing_rows.rowid)"
    change = f"{times.format('missing')} - {times.format('unexpected')}"
    connection.execute(f'UPDATE differing_rows SET "#found" = "#found" + {change}')
    connection.execute('DELETE FROM differing_rows WHERE "#expected" = "#found"')


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
