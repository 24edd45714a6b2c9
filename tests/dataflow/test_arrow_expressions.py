"""Spark SQL text as Arrow functions: the rows that DuckDB keeps, and None for what may not be the same."""

from __future__ import annotations

import pickle
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.dataflow.arrow_expressions import arrow_condition, arrow_value, projection
from asyncstate.dataflow.sql_text import column_of

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("small", pa.int32()),
        ("text", pa.string()),
        ("other", pa.string()),
        ("flag", pa.bool_()),
        ("since", pa.timestamp("us")),
        ("until", pa.timestamp("us")),
        ("ratio", pa.float64()),
    ]
)
INTS = st.one_of(st.none(), st.integers(-3, 3))
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "ä"]))
ROWS = st.lists(
    st.tuples(INTS, INTS, INTS, TEXTS, TEXTS, st.one_of(st.none(), st.booleans()), INTS, INTS, st.just(1.0)),
    min_size=1,
    max_size=12,
)


def comparisons() -> st.SearchStrategy[str]:
    signs = st.sampled_from(["=", "!=", "<>", "<", "<=", ">", ">="])
    number = st.integers(-4, 4).map(str)
    ints = st.builds("{} {} {}".format, st.sampled_from(["a", "b"]), signs, st.one_of(number, st.just("b")))
    small = st.builds("{} {} small".format, number, signs)
    texts = st.builds("text {} {}".format, signs, st.sampled_from(["'a'", "'ä'", "other", "''"]))
    times = st.builds("since {} until".format, signs)
    between = st.builds("a BETWEEN {} AND {}".format, number, st.one_of(number, st.just("b")))
    nulls = st.builds(
        "{} IS {}NULL".format, st.sampled_from(SCHEMA.names), st.sampled_from(["", "NOT "])
    ).filter(lambda text: not text.startswith("ratio"))
    return st.one_of(
        ints, small, texts, times, between, nulls, st.just("flag"), st.just("since BETWEEN since AND until")
    )


CONDITIONS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=5,
)


def batch_of(rows: list[Any]) -> pa.RecordBatch:
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@given(rows=ROWS, text=CONDITIONS)
def test_it_keeps_the_rows_that_duckdb_keeps(rows: list[Any], text: str) -> None:
    batch = batch_of(rows)
    condition = arrow_condition(text, SCHEMA)
    assert condition is not None
    kept = batch.filter(pickle.loads(pickle.dumps(condition))(batch))
    with duckdb.connect() as connection:
        connection.register("given", pa.Table.from_batches([batch]))
        expected = connection.sql(f"SELECT * FROM given WHERE {text}").fetchall()
    assert [tuple(row.values()) for row in kept.to_pylist()] == expected


@pytest.mark.parametrize(
    "text",
    [
        "ratio > 1",  # NaN
        "ratio IN (1.5)",
        "a + 1 > b",  # it can overflow
        "text = 1",
        "text = 'b''c'",  # two texts to Spark
        r"text = '\\n'",
        'text = "a"',  # a column, if a setting says so
        r"text LIKE '\\%'",
        "text LIKE other",
        "lower(text) = 'a'",
        "since > '2020-01-01'",
        "since > until + INTERVAL 1 DAY",
        "missing > 1",
        "a IN (SELECT 1)",
        "a IN (1, NULL)",
        "a IN (b)",
        "flag = a < b",  # to Spark it is (flag = a) < b
        "flag = text LIKE 'a%'",
        "flag != a BETWEEN 1 AND 2",
        "flag <=> a IN (1, 2)",
        "flag = a NOT IN (1, 2)",
        "max(a) > 1",
        "CASE a WHEN 1 THEN true END",
        "IF(a > 1, 1, 'a') = 1",
        "a",
        "((",
    ],
)
def test_what_is_left_to_spark(text: str) -> None:
    assert arrow_condition(text, SCHEMA) is None


@pytest.mark.parametrize(
    "text",
    [
        "-a",  # the lowest integer has no opposite
        "a * 2",
        "a * 1.5 * 1.5 * 1.5 * 1.5 * 1.5 * 1.5 * 1.5 * 1.5",  # over 38 digits
        "2 * 1.5",  # as a setting says, 2 has one digit or ten
        "(2) * 1.5",
        "2L * 1.5",
        "1.5 + 2L",
        "CAST('--1' AS DECIMAL(5, 2))",
        "ratio / 2",
        "CAST(ratio AS DECIMAL(10, 2))",
        "CAST(a AS INT)",
        "CAST(a AS DECIMAL(19, 0))",
        "CAST(text AS DATE)",
        "DATE '2020-1-1'",
        "DATE '2020-02-30'",
        "substring(text, -1, 2)",
        "substring(text, 2)",
        "year(since)",
        "coalesce(a, text)",
        "coalesce(ratio, a)",
        "NULL",
        "1e3",
        "current_date()",
    ],
)
def test_values_that_are_left_to_spark(text: str) -> None:
    assert arrow_value(text, SCHEMA) is None


def test_a_literal_has_a_value_for_each_row() -> None:
    rows = batch_of([(1, 1, 1, "a", "b", True, 1, 1, 1.0)] * 3)
    found = projection(["a AS b"], {"one": "1", "yes": "true", "price": "0.05"}, SCHEMA)
    assert found is not None
    assert {one.name: one.column(rows).to_pylist() for one in found} == {
        "b": [1, 1, 1],
        "one": [1, 1, 1],
        "yes": [True, True, True],
        "price": [Decimal("0.05")] * 3,
    }
    assert [one.type for one in found] == [pa.int64(), pa.int32(), pa.bool_(), pa.decimal128(2, 2)]
    condition = arrow_condition("1 = 1", SCHEMA)
    assert condition is not None
    assert rows.filter(condition(rows)).num_rows == 3


def test_plain_columns() -> None:
    found = projection(["a", "b AS c", "`text` as t"], {"d": "small"}, SCHEMA)
    assert found is not None
    assert [(one.source, one.name) for one in found] == [
        ("a", "a"),
        ("b", "c"),
        ("text", "t"),
        ("small", "d"),
    ]
    for texts in (["a", "b AS a"], ["a + 1 AS d"], ["ratio * ratio"], ["missing"], ["*"], [None], ["a +"]):
        assert projection(texts, {}, SCHEMA) is None
    assert projection(["a"], {"a": "b"}, SCHEMA) is None


@pytest.mark.parametrize(
    ("text", "column"),
    [("`a``b`", "a`b"), ("a", "a"), ("`a` + `b`", None), ("null", None), ("`a``", None), ("a.b", None)],
)
def test_the_column_that_a_text_is(text: str, column: str | None) -> None:
    assert column_of(text) == column
