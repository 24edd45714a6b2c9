"""Timestamps inside lists, structs and maps are int64 microseconds in rows, as top-level ones are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import RecordOperator
from asyncstate.codec.times import has_timestamps, in_microseconds, in_utc
from asyncstate.operator import InputSpec, RecordContext, Row
from asyncstate.runtime.rows.prepared_rows import python_values
from asyncstate.testing import OperatorHarness
from operators import KeyedReduce, WindowApply, tumble

UTC_US = pa.timestamp("us", tz="UTC")
DEEP = pa.struct(
    [
        ("seen", pa.list_(UTC_US)),
        ("by_name", pa.map_(pa.string(), pa.struct([("at", UTC_US)]))),
        ("day", pa.date32()),
    ]
)
SCHEMA = pa.schema([("k", pa.int64()), ("deep", DEEP), ("times", pa.list_(pa.list_(UTC_US))), ("at", UTC_US)])
MOMENT = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
MOMENT_US = 1_709_209_815_123_456


class Shown(RecordOperator):
    """Puts out what it gets, and what Python type the innermost times have."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return inputs[0].schema.append(pa.field("types", pa.string()))

    def process(self, row: Row, ctx: RecordContext) -> None:
        kinds = {type(time).__name__ for times in row.times for time in times}
        ctx.emit(row.k, row.deep, row.times, row["at"], ",".join(sorted(kinds)))


def deep(number: int) -> dict[str, Any]:
    return {
        "seen": [number, None],
        "by_name": [("a", {"at": number + 1}), ("b", None)],
        "day": datetime(2024, 1, 2).date(),
    }


def test_rows_carry_integers_and_columns_take_them_back() -> None:
    given_ = {"seen": [MOMENT], "by_name": [("a", {"at": MOMENT})], "day": None}
    seen = {"seen": [MOMENT_US], "by_name": [("a", {"at": MOMENT_US})], "day": None}
    with OperatorHarness(Shown(), SCHEMA, ["k"]) as harness:
        harness.push([(1, given_, [[MOMENT], [MOMENT, MOMENT]], MOMENT)])
        assert harness.end_batch() == [
            ("+I", 1, seen, [[MOMENT_US], [MOMENT_US, MOMENT_US]], MOMENT_US, "int")
        ]


def test_columns_take_datetimes_too() -> None:
    class Aware(Shown):
        def process(self, row: Row, ctx: RecordContext) -> None:
            ctx.emit(row.k, None, [[MOMENT]], MOMENT, "")

    with OperatorHarness(Aware(), SCHEMA, ["k"]) as harness:
        harness.push([(1, None, [], None)])
        assert harness.end_batch() == [("+I", 1, None, [[MOMENT_US]], MOMENT_US, "")]


def run(operator: Any, async_enabled: bool) -> tuple[list[Any], dict[bytes, bytes]]:
    """Two micro-batches of a key's rows: the rows of the second, and what is stored before the windows end."""
    with OperatorHarness(
        operator, SCHEMA, ["k"], event_time="at", watermark_delay=0, async_enabled=async_enabled
    ) as harness:
        harness.push([(1, deep(10), [[5]], 1)])
        harness.end_batch()
        harness.push([(1, deep(20), [[6], None], 2)])
        rows = harness.end_batch()
        entries = harness.state_entries()
        return [*rows, *harness.finish()], entries


def test_a_reduce_keeps_such_rows_in_state() -> None:
    operator = KeyedReduce(lambda old, new: (new.k, old.deep, old.times + new.times, new["at"]))
    rows, entries = run(operator, False)
    assert [(plain(row[2]), row[3], row[4]) for row in rows] == [(plain(deep(10)), [[5], [6], None], 2)]
    assert entries
    assert run(operator, True) == (rows, entries)


def test_windows_keep_such_rows_in_state() -> None:
    output = pa.schema([("k", pa.int64()), ("deep", pa.list_(DEEP)), ("last", UTC_US)])
    operator = WindowApply(
        lambda key, window, rows: [(*key, [row.deep for row in rows], rows[-1].times[0][0])],
        tumble("1 second"),
        output,
    )
    rows, entries = run(operator, False)
    assert [(row[1], list(map(plain, row[2])), row[3]) for row in rows] == [
        (1, [plain(deep(10)), plain(deep(20))], 6)
    ]
    assert entries
    assert run(operator, True) == (rows, entries)


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """Maps as dicts: an input column shows them as pairs, a state as dicts."""
    return {**value, "by_name": dict(value["by_name"])}


UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@pytest.mark.parametrize("unit", [*UNITS, "ns"])
def test_other_units_are_microseconds_in_rows(unit: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp(unit)), ("all", pa.list_(pa.timestamp(unit)))])

    class Seen(RecordOperator):
        def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
            return inputs[0].schema

        def process(self, row: Row, ctx: RecordContext) -> None:
            ctx.emit(*row)
            ctx.emit(row.k, int(row["at"]), [row["at"]])

    with OperatorHarness(Seen(), schema, ["k"]) as harness:
        raw = 7_000 if unit == "ns" else 7
        harness.push([(1, raw, [raw, None])])
        assert harness.end_batch() == [("+I", 1, raw, [raw, None]), ("+I", 1, raw, [raw])]
    array = pa.array([[raw]], pa.list_(pa.timestamp(unit)))
    assert python_values(array, "times") == [[7 * UNITS.get(unit, 1)]]


def nested(children: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        children.map(pa.list_),
        st.lists(children, min_size=1, max_size=3).map(
            lambda types: pa.struct([(f"f{number}", one) for number, one in enumerate(types)])
        ),
        children.map(lambda item: pa.map_(pa.string(), item)),
    )


LEAVES = st.sampled_from(
    [pa.int32(), pa.string(), pa.date32(), *(pa.timestamp(u) for u in ("s", "ms", "us"))]
)
TYPES = st.recursive(LEAVES, nested, max_leaves=5)


def value_of(arrow_type: pa.DataType, number: int) -> tuple[Any, Any]:
    """A value for Arrow, and what a row shows of it."""
    if pa.types.is_list(arrow_type):
        both = [value_of(arrow_type.value_type, number + i) for i in range(number % 3)]
        return [one for one, _ in both], [other for _, other in both]
    if pa.types.is_map(arrow_type):
        one, other = value_of(arrow_type.item_type, number)
        return [("key", one)], [("key", other)]
    if pa.types.is_struct(arrow_type):
        fields = {field.name: value_of(field.type, number) for field in arrow_type}
        return {n: v[0] for n, v in fields.items()}, {n: v[1] for n, v in fields.items()}
    if pa.types.is_timestamp(arrow_type):
        return number, number * UNITS[arrow_type.unit]
    if pa.types.is_string(arrow_type):
        return str(number), str(number)
    if pa.types.is_date32(arrow_type):
        return MOMENT.date(), MOMENT.date()
    return number, number


@given(TYPES, st.lists(st.integers(0, 10**6), max_size=4))
def test_any_type(arrow_type: pa.DataType, numbers: list[int]) -> None:
    both = [value_of(arrow_type, number) for number in numbers]
    column = pa.array([one for one, _ in both] + [None], arrow_type)
    assert python_values(column, "times") == [other for _, other in both] + [None]
    wanted = in_microseconds(arrow_type)
    assert in_microseconds(wanted) == wanted
    assert has_timestamps(arrow_type) == ("timestamp" in str(arrow_type))


@given(TYPES)
def test_any_type_in_utc(arrow_type: pa.DataType) -> None:
    wanted = in_utc(arrow_type)
    assert in_utc(wanted) == wanted
    assert str(wanted).count("timestamp") == str(arrow_type).count("timestamp")
    assert "tz=" not in str(wanted).replace("tz=UTC", "")


@pytest.mark.parametrize("of", [pa.list_, pa.large_list, lambda one: pa.list_(one, 2)])
def test_lists_of_any_layout_in_utc(of: Any) -> None:
    local, plain = pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("ms")
    assert in_utc(of(local)) == of(pa.timestamp("ms", "UTC"))
    assert in_utc(of(plain)) == of(plain)
