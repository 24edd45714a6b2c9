"""Columns are attributes of a row, whatever they are called."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.operator import row_type
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("count", pa.int64()), ("index", pa.string())])


class Shown(RecordOperator):
    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("count", pa.int64()), ("index", pa.string()), ("repr", pa.string())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(row.count, row.index, repr(row))


def test_columns_called_as_methods_of_a_tuple_are_columns(async_enabled: bool) -> None:
    with OperatorHarness(Shown(), SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0, "a")])
        assert harness.end_batch() == [("+I", 0, "a", "Row(k=1, count=0, index='a')")]


def test_a_row_without_such_columns_has_the_methods() -> None:
    assert row_type(pa.schema([("k", pa.int64())]))((5,)).count(5) == 1


# -- datetimes --------------------------------------------------------------------------------------------


class Late(RecordOperator):
    """Rows whose times, of several units and zones, and day are as datetimes what was pushed."""

    def bind(self, inputs: Sequence[InputSpec]) -> str:
        return "given timestamp, local timestamp_ntz, nanos string, day string"

    def process(self, row: Row, ctx: RecordContext) -> None:
        local, nanos = row.datetime("local"), row.datetime("nanos")
        assert all(time is None or time.tzinfo is dt.UTC for time in (row.datetime("given"), local, nanos))
        shown = local and local.replace(tzinfo=None)
        ctx.emit(row.datetime("given"), shown, str(nanos), str(ctx.key.datetime("day")))


def test_timestamps_of_rows_and_keys_are_there_as_datetimes(mode: dict[str, Any]) -> None:
    schema = pa.schema(
        [
            ("day", pa.timestamp("s", "Asia/Kolkata")),
            ("given", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("ms")),
            ("nanos", pa.timestamp("ns")),
        ]
    )
    with OperatorHarness(Late(), schema, ["day"], **mode) as harness:
        given = dt.datetime(2026, 3, 4, 5, 6, 7, 8_009, dt.UTC)
        day = dt.datetime(2026, 3, 4, tzinfo=dt.UTC)
        local = dt.datetime(1969, 12, 31, 23, 59, 58)
        harness.push([(day, given, local, given.replace(tzinfo=None))])
        harness.push([(None, None, None, None)])
        assert sorted(harness.end_batch(), key=str) == [
            ("+I", 1_772_600_767_008_009, -2_000_000, str(given), str(day)),
            ("+I", None, None, "None", "None"),
        ]


def test_a_column_called_datetime_is_a_column() -> None:
    row = row_type(pa.schema([("datetime", pa.timestamp("us"))]))((1_000_000,))
    assert (row.datetime, row["datetime"]) == (1_000_000, 1_000_000)
    assert Row.datetime(row, "datetime") == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("n", 1, "the row's column 'n' is of type int64, not a timestamp; declare or cast it as one"),
        ("n", None, "the row's column 'n' is of type int64, not a timestamp"),
        ("tiem", 1, "the row has no column 'tiem'; its columns are: n, time"),
        (
            "time",
            2**63 - 1,
            "column 'time' is 9223372036854775807 microseconds from 1970, outside the years",
        ),
        (
            "time",
            -(2**63),
            "column 'time' is -9223372036854775808 microseconds from 1970, outside the years",
        ),
    ],
)
def test_what_is_no_datetime_is_an_error(column: str, value: Any, message: str) -> None:
    row = row_type(pa.schema([("n", pa.int64()), ("time", pa.timestamp("us"))]))((value, value))
    with pytest.raises(SchemaError, match=message):
        row.datetime(column)


# -- keys by name -----------------------------------------------------------------------------------------


class Keys(RecordOperator):
    """The key of rows and timers, in each of the ways to ask for its parts."""

    def bind(self, inputs: Sequence[InputSpec]) -> str:
        return "ways array<bigint>, shown string"

    def open(self, context: OperatorContext) -> None:
        self.kept = context.get_state(ValueStateDescriptor("kept", pickled=True))

    def process(self, row: Row, ctx: RecordContext) -> None:
        key = ctx.key
        assert key is ctx.key
        assert key == tuple(row[:2])
        assert hash(key) == hash(tuple(row[:2]))
        assert pickle.loads(pickle.dumps(key)) == key
        assert type(pickle.loads(pickle.dumps(key))) is tuple
        self.kept.update(key)
        self.say(ctx)
        ctx.timers.register_processing_time(0)

    def say(self, ctx: RecordContext) -> None:
        key = ctx.key
        ctx.emit([key[0], key.shop, key["shop"], key[1], key.count, key["count"]], repr(key))

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        assert self.kept.value() == ctx.key
        self.say(ctx)


def test_the_parts_of_a_key_are_there_by_name(mode: dict[str, Any]) -> None:
    with OperatorHarness(Keys(), "shop long, count long, n long", ["shop", "count"], **mode) as harness:
        harness.push([{"n": 1, "count": 8, "shop": 7}])
        assert harness.end_batch() == [("+I", [7, 7, 7, 8, 8, 8], "(7, 8)")] * 2


def test_a_name_that_no_part_of_the_key_has_is_an_error(mode: dict[str, Any]) -> None:
    class Wrong(Keys):
        def say(self, ctx: RecordContext) -> None:
            assert not hasattr(ctx.key, "shopp")
            ctx.key["shopp"]

    with OperatorHarness(Wrong(), "shop long, count long, n long", ["shop", "count"], **mode) as harness:
        harness.push([(7, 8, 1)])
        with pytest.raises(
            OperatorError, match="the key has no column 'shopp'; its columns are: shop, count"
        ):
            harness.end_batch()
