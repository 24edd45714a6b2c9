"""The comparison must see every kind of wrong result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.testing import net
from bench.nexmark.comparison import ComparisonResult, compare

EXPECTED = "SELECT * FROM (VALUES (1::BIGINT, 'a'), (2, 'b'), (2, 'b'), (3, NULL)) AS t(k, v)"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("row_kind", pa.string())])
RIGHT = [("+I", 1, "a"), ("+I", 2, "b"), ("+I", 2, "b"), ("+I", 3, None)]


@pytest.fixture(scope="module")
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def write(folder: Path, rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> Path:
    """A changelog of two micro-batches; each row has its kind first."""
    for number, part in enumerate((rows[:2], rows[2:])):
        columns = list(zip(*((*values, kind) for kind, *values in part), strict=True)) or [()] * len(schema)
        batch = folder / f"batch={number}"
        batch.mkdir(parents=True, exist_ok=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), batch / "part-0.parquet")
    return folder


def check(db: duckdb.DuckDBPyConnection, folder: Path, rows: list[tuple[Any, ...]]) -> ComparisonResult:
    return compare(db, EXPECTED, write(folder, rows))


def test_equal_tables_pass(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = check(db, tmp_path, RIGHT)
    assert found.ok
    assert (found.expected_rows, found.changelog_rows, found.examples) == (4, 4, ())


def test_a_changelog_is_netted_across_batches(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    steps = [("+I", 1, "z"), ("-U", 1, "z"), ("+U", 1, "a"), ("+I", 9, None), ("-D", 9, None), *RIGHT[1:]]
    found = check(db, tmp_path, steps)
    assert found.ok
    assert (found.expected_rows, found.changelog_rows) == (4, 8)


def test_a_missing_row_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = check(db, tmp_path, RIGHT[:-1])
    assert found.problems == ("1 expected rows are missing",)
    assert found.examples == ("expected 1 times, found 0 times: k=3, v=None",)


def test_a_duplicated_row_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = check(db, tmp_path, [*RIGHT, RIGHT[1]])
    assert found.problems == ("1 rows are not expected",)
    assert found.examples == ("expected 2 times, found 3 times: k=2, v=b",)


def test_a_changed_row_is_missing_and_unexpected(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = check(db, tmp_path, [("+I", 1, "A"), *RIGHT[1:]])
    assert (found.missing_rows, found.unexpected_rows, found.overdrawn_rows) == (1, 1, 0)
    assert len(found.examples) == 2


def test_retracting_what_was_not_emitted_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = check(db, tmp_path, [*RIGHT, ("-D", 8, "x")])
    assert (found.missing_rows, found.unexpected_rows, found.overdrawn_rows) == (0, 0, 1)
    assert found.problems == ("1 rows were retracted more often than emitted",)


def test_a_forgotten_retraction_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = check(db, tmp_path, [("+I", 1, "z"), ("+U", 1, "a"), *RIGHT[1:]])
    assert (found.missing_rows, found.unexpected_rows) == (0, 1)


def test_an_unknown_row_kind_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    assert "'+X'" in check(db, tmp_path, [*RIGHT[:-1], ("+X", 3, None)]).problems[0]


def test_no_output_at_all_is_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    found = compare(db, EXPECTED, tmp_path)
    assert not found.ok
    assert str(tmp_path) in found.problems[0]


def test_other_columns_and_types_are_found(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    renamed = pa.schema([("k", pa.int64()), ("w", pa.string()), ("row_kind", pa.string())])
    retyped = pa.schema([("k", pa.int32()), ("v", pa.string()), ("row_kind", pa.string())])
    assert "k, w" in compare(db, EXPECTED, write(tmp_path / "a", RIGHT, renamed)).problems[0]
    assert (
        "'k' is of type INTEGER" in compare(db, EXPECTED, write(tmp_path / "b", RIGHT, retyped)).problems[0]
    )


def test_a_table_without_row_kinds_is_all_inserts(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2, 2, 3], "v": ["a", "b", "b", None]}), tmp_path / "part.parquet")
    assert compare(db, EXPECTED, tmp_path).ok


def test_instants_compare_as_times_in_utc(db: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    noon = datetime(2015, 7, 15, 12, tzinfo=UTC)
    pq.write_table(pa.table({"t": pa.array([noon], pa.timestamp("us", "UTC"))}), tmp_path / "part.parquet")
    assert compare(db, "SELECT TIMESTAMP '2015-07-15 12:00:00' AS t", tmp_path).ok
    assert not compare(db, "SELECT TIMESTAMP '2015-07-15 12:00:00.000001' AS t", tmp_path).ok


FLOATS = "SELECT * FROM (VALUES (1::BIGINT, 0.1::DOUBLE), (1, 0.2), (2, 1e12), (3, NULL)) AS t(k, x)"


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ([0.1, 0.2, 1e12, None], 0),
        ([0.2 * (1 + 1e-12), 0.1 * (1 - 1e-12), 1e12 + 1, None], 0),
        ([0.1 * (1 + 1e-8), 0.2, 1e12, None], 1),
        ([0.1, 0.1, 1e12, None], 1),
        ([0.1, 0.2, 1e12, 0.0], 1),
    ],
)
def test_doubles_may_differ_by_rounding_only(
    db: duckdb.DuckDBPyConnection, tmp_path: Path, values: list[float | None], missing: int
) -> None:
    table = pa.table({"k": [1, 1, 2, 3], "x": pa.array(values, pa.float64())})
    pq.write_table(table, tmp_path / "part.parquet")
    found = compare(db, FLOATS, tmp_path)
    assert (found.missing_rows, found.unexpected_rows) == (missing, missing)


def test_equal_doubles_in_several_rows_are_paired_once_each(
    db: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": [0.1 * (1 + 1e-12)] * 3}), tmp_path / "part.parquet")
    assert compare(db, "SELECT 0.1::DOUBLE AS x FROM range(3)", tmp_path).ok
    found = compare(db, "SELECT 0.1::DOUBLE AS x FROM range(2)", tmp_path)
    assert (found.missing_rows, found.unexpected_rows) == (0, 1)


rows = st.tuples(st.sampled_from(["+I", "+U", "-U", "-D"]), st.integers(0, 2), st.sampled_from(["a", None]))


@given(changelog=st.lists(rows, min_size=1, max_size=8), table=st.lists(rows, max_size=5))
def test_counts_agree_with_counting_in_python(
    db: duckdb.DuckDBPyConnection,
    tmp_path_factory: pytest.TempPathFactory,
    changelog: list[tuple[str, int, str | None]],
    table: list[tuple[str, int, str | None]],
) -> None:
    expected = Counter((k, v) for _, k, v in table)
    found = net(changelog)
    db.execute("CREATE OR REPLACE TEMP TABLE wanted (k BIGINT, v VARCHAR)")
    for _, k, v in table:
        db.execute("INSERT INTO wanted VALUES (?, ?)", [k, v])
    result = compare(db, "SELECT * FROM wanted", write(tmp_path_factory.mktemp("sink"), changelog))
    keys = expected.keys() | found.keys()
    assert result.missing_rows == sum(max(expected[key] - max(found[key], 0), 0) for key in keys)
    assert result.unexpected_rows == sum(max(found[key] - expected[key], 0) for key in keys)
    assert result.overdrawn_rows == sum(found[key] < 0 for key in keys)
    assert result.ok == all(expected[key] == found[key] for key in keys)
