"""Spark SQL text as Arrow functions: the rows that DuckDB keeps, and None for what may not be the same."""

from __future__ import annotations

import pickle
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.dataflow.arrow_sql import arrow_condition, column_of, plain_columns

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
        "a + 1 > b",
        "a > 1.5",
        "a = small",  # of two types
        "text = 1",
        "text = 'b''c'",  # two texts to Spark
        "small > 3000000000",
        "lower(text) = 'a'",
        "since > '2020-01-01'",
        "missing > 1",
        "text LIKE 'a%'",
        "a <=> b",
        "a IN (SELECT 1)",
        "max(a) > 1",
        "1 = 1",
        "a",
        "((",
    ],
)
def test_what_is_left_to_spark(text: str) -> None:
    assert arrow_condition(text, SCHEMA) is None


def test_plain_columns() -> None:
    assert plain_columns(["a", "b AS c", "`text` as t"], SCHEMA) == (("a", "a"), ("b", "c"), ("text", "t"))
    for texts in (["a", "b AS a"], ["a + 1 AS d"], ["missing"], ["*"], [None], ["a +"]):
        assert plain_columns(texts, SCHEMA) is None


@pytest.mark.parametrize(
    ("text", "column"),
    [("`a``b`", "a`b"), ("a", "a"), ("`a` + `b`", None), ("null", None), ("`a``", None), ("a.b", None)],
)
def test_the_column_that_a_text_is(text: str, column: str | None) -> None:
    assert column_of(text) == column
