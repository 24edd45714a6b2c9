"""Expressions of a pipeline in a harness that are not computed row by row: generators, and functions of DataFrames."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from asyncstate.dataflow import Stream, Transform
from asyncstate.errors import JobError, SchemaError
from asyncstate.testing import PipelineHarness, PipelineSource
from asyncstate.testing.expressions import transformed
from operators import GroupAggregate, max_

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = PipelineSource(
    pa.schema([("id", pa.int64()), ("us", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
)


def utc(second: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, 0, 0, second, tzinfo=dt.UTC)


def test_functions_inside_of_explode_are_those_of_spark() -> None:
    def exploded(events: Stream) -> None:
        events.select("id", "explode(array(timestamp_micros(us))) AS made").to(print, name="out")

    with PipelineHarness(exploded, {"events": EVENTS}) as harness:
        harness.push("events", [(1, 5_000_000, None)])
        assert harness.end_batch()["out"] == [("+I", 1, 5_000_000)]


NOON = dt.datetime(2026, 1, 1, 12, 0, 0, 123_400, tzinfo=dt.UTC)
TYPED = pa.RecordBatch.from_pydict(
    {
        "i": [7],
        "m": [decimal.Decimal("-2.55")],
        "d": [dt.date(2024, 1, 31)],
        "s": ["abc"],
        "f": [-2.5],
        "at": [NOON],
    },
    pa.schema(
        [
            ("i", pa.int32()),
            ("m", pa.decimal128(9, 2)),
            ("d", pa.date32()),
            ("s", pa.string()),
            ("f", pa.float64()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    ),
)


def _selected(text: str) -> pa.Array:
    return transformed(
        Transform(name="s", place="here", kind="select", expressions=(f"{text} AS v",)), TYPED
    ).column(0)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("dayofweek(d)", pa.int32(), 4),  # a Wednesday
        ("weekday(d)", pa.int32(), 2),
        ("date_add(d, 1)", pa.date32(), dt.date(2024, 2, 1)),
        ("d - INTERVAL 1 DAY", pa.date32(), dt.date(2024, 1, 30)),
        ("add_months(d, 1)", pa.date32(), dt.date(2024, 2, 29)),
        ("trunc(d, 'MM')", pa.date32(), dt.date(2024, 1, 1)),
        ("length(s) + month(d)", pa.int32(), 4),
        ("floor(f)", pa.int64(), -3),
        ("floor(m)", pa.decimal128(8, 0), -3),
        ("round(m, 1)", pa.decimal128(9, 1), decimal.Decimal("-2.6")),
        ("CAST(f AS INT)", pa.int32(), -2),
        ("CAST(f * 1e30 AS INT)", pa.int32(), None),  # it does not fit
        ("m * i", pa.decimal128(20, 2), decimal.Decimal("-17.85")),
        ("m + 1", pa.decimal128(10, 2), decimal.Decimal("-1.55")),
        ("m * (3)", pa.decimal128(11, 2), decimal.Decimal("-7.65")),
        ("abs(m) * (3)", pa.decimal128(11, 2), decimal.Decimal("7.65")),
        ("CAST(m AS DECIMAL)", pa.decimal128(10, 0), decimal.Decimal("-3")),
        ("CAST(f AS DECIMAL)", pa.decimal128(10, 0), decimal.Decimal("-3")),
        ("CAST(s AS DECIMAL)", pa.decimal128(10, 0), None),
        ("abs(m) * 5BD", pa.decimal128(11, 2), decimal.Decimal("12.75")),
        ("m / 3", pa.decimal128(13, 6), decimal.Decimal("-0.850000")),
        ("i * 1.0 / 3", pa.decimal128(18, 6), decimal.Decimal("2.333333")),
        ("m % 2", pa.decimal128(3, 2), decimal.Decimal("-0.55")),
        (
            "array_sort(array(3, 1, i), (left, right) -> (IF((left < right), -1, (IF((left > right), 1, 0)))))",
            pa.list_(pa.int32()),
            [1, 3, 7],
        ),
        ("sequence(i, 5)", pa.list_(pa.int32()), [7, 6, 5]),
        ("sign(m)", pa.float64(), -1.0),
    ],
)
def test_values_and_types_are_those_of_spark(text: str, kind: pa.DataType, value: object) -> None:
    found = _selected(text)
    assert found.type == kind
    assert found.to_pylist() == [value]


OFTEN_USED: dict[str, object] = {
    "CAST(at AS STRING)": "2026-01-01 12:00:00.1234",
    "at || ' ' || f": "2026-01-01 12:00:00.1234 -2.5",
    "concat_ws(',', s, NULL, at)": "abc,2026-01-01 12:00:00.1234",
    "concat(s, i)": "abc7",
    "CAST(f * 1000 AS STRING)": "-2500.0",
    "CAST(at AS BIGINT)": 1767268800,
    "CAST(i AS TIMESTAMP)": utc(7),
    "CAST('2.5' AS INT)": 2,
    "CAST(' +7 ' AS BIGINT)": 7,
    "CAST('1e3' AS INT)": None,
    "CAST('0x1F' AS INT)": None,
    "substring(s, 0, 2)": "ab",
    "substr(s, i - 7, 1)": "a",
    "substring(s, -2, 1)": "b",
    "left(s, -1)": "",
    "right(s, i - 8)": "",
    "round(CAST('1.005' AS DOUBLE), 2)": 1.01,
    "round(f * 0.942, 3)": -2.355,
    "round(CAST('-2.675' AS DOUBLE), 2)": -2.68,
    "round(f * 1e20, 2)": -2.5e20,
    "round(f * -4.1e15, 1)": 1.025e16,
    "round(f * 440000000000000.2, 2)": -1.1000000000000005e15,
    "round(CAST('NaN' AS DOUBLE), 2) > 1": True,
    "ln(i - 7)": None,
    "log10(f)": None,
    "log2(8)": 3.0,
    "timestampdiff(HOUR, at, at + INTERVAL 119 MINUTES)": 1,
    "datediff(MINUTE, at, at + INTERVAL 61 SECONDS)": 1,
    "datediff(d, DATE '2024-01-01')": 30,
    "date_format(at, 'yyyy-MM-dd HH:mm:ss.SSS')": "2026-01-01 12:00:00.123",
    "date_format(at, \"yyyy-MM-dd'T'HH:mm\")": "2026-01-01T12:00",
    "to_timestamp('1970-01-01 00:00:07.000', 'yyyy-MM-dd HH:mm:ss.SSS')": utc(7),
    "regexp_replace(s, '[a-b]', 'x')": "xxc",
    "at - TIMESTAMP '2026-01-01 00:00:00' > INTERVAL 12 HOURS": True,
}
"""Spark's values, in its own casts without ANSI errors."""


@pytest.mark.parametrize("text", OFTEN_USED)
def test_values_of_what_is_often_used_are_those_of_spark(text: str) -> None:
    assert _selected(text).to_pylist() == [OFTEN_USED[text]]


@pytest.mark.spark
@pytest.mark.since_spark("4.0", "DataFrames of Arrow tables")
def test_what_is_often_used_has_these_values_in_spark(spark: SparkSession) -> None:
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "false"}
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        rows = spark.createDataFrame(pa.Table.from_batches([TYPED]))
        found = rows.selectExpr(*(f"{text} AS v{n}" for n, text in enumerate(OFTEN_USED))).toArrow()
        values = [column[0].as_py() for column in found.columns]
        assert dict(zip(OFTEN_USED, values, strict=True)) == OFTEN_USED
    finally:
        for name, old in before.items():
            spark.conf.set(name, old)


@pytest.mark.parametrize(
    "text",
    [
        "hash(s)",
        "m * 2L",  # of one digit, which CAST(2 AS BIGINT) is not
        "array_sort(array(i), (l, r) -> 0)",
        "rand(7)",
        "months_between(d, d)",
        "version()",
        "date_part('second', d)",
        "CAST(array(i) AS STRING)",
        "CAST(f AS TIMESTAMP)",
        "d - DATE '2024-01-01'",
        "at - TIMESTAMP '2024-01-01 00:00:00'",
        "timestampdiff(MONTH, at, at)",
        "date_format(at, 'Q')",
        "date_format(at, \"yyyy''MM\")",
        "regexp_replace(s, '(b)', '[$1]')",
        "regexp_replace(s, 'b', s)",
    ],
)
def test_what_duckdb_computes_otherwise_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="gives other values to"):
        _selected(text)


def test_a_number_of_which_duckdb_has_another_text_is_refused() -> None:
    with pytest.raises(SchemaError, match="another text of a number"):
        _selected("CAST(f * 1e10 AS STRING)")


@pytest.mark.spark
@pytest.mark.since_spark("4.0", "DataFrames of Arrow tables")
def test_times_of_a_function_of_dataframes_are_in_utc(spark: SparkSession) -> None:
    def newest(events: Stream) -> None:
        kept = events.transform(lambda rows: rows.select("id", "at"))
        kept.apply(GroupAggregate([max_("at").alias("at")]), key="id", uid="newest").to(print, name="out")

    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with PipelineHarness(newest, {"events": EVENTS}, spark=spark) as harness:
            assert "newest" in harness.explain()
            harness.push("events", [(1, 0, utc(7))])
            assert harness.end_batch()["out"] == [("+I", 1, 7_000_000)]
            assert harness.operator("newest").output_schema.field("at").type == pa.timestamp("us", "UTC")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_session_that_is_too_old_for_functions_of_dataframes_is_refused() -> None:
    class Old:
        version = "3.5.8"

    def flow(events: Stream) -> None:
        events.transform(lambda rows: rows).to(print, name="out")

    session: Any = Old()
    with pytest.raises(
        JobError, match="on Spark 4.0 or newer, and this session is of Spark 3.5.8; use SQL text"
    ):
        PipelineHarness(flow, {"events": EVENTS}, spark=session)


def test_a_function_of_columns_has_the_type_that_it_has_of_no_rows() -> None:
    """Spark has to know the type before there are rows, so a job fails, too."""

    def flow(events: Stream) -> None:
        halved = events.select(
            "id", half=lambda batch: batch["us"].cast(pa.float64() if batch.num_rows else pa.int64())
        )
        halved.to(print, name="out")

    with PipelineHarness(flow, {"events": EVENTS}) as harness:
        harness.push("events", [(1, 5, None)])
        with pytest.raises(SchemaError, match="'half' returned double, but int64 was expected"):
            harness.end_batch()
