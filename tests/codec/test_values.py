"""Row and value codecs: round trips, one row against columns, evolution, damaged bytes."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import PickleCodec, RowCodec, ValueCodec, check_evolution
from asyncstate.codec.nested import nested_from_binary
from asyncstate.errors import CodecError, SchemaError
from tests.codec.strategies import (
    FLAT_TYPES,
    column,
    flat_types,
    nested_types,
    nested_values,
    record_values,
    same,
)

Rows = tuple[pa.Schema, list[tuple[Any, ...]]]


def schema_of(*types: pa.DataType) -> pa.Schema:
    return pa.schema([(f"f{i}", one) for i, one in enumerate(types)])


@st.composite
def rows_of_types(draw: st.DrawFn, types: st.SearchStrategy[pa.DataType], max_fields: int = 10) -> Rows:
    chosen = draw(st.lists(types, min_size=1, max_size=max_fields))
    row = st.tuples(*(st.none() | nested_values(one) for one in chosen))
    return schema_of(*chosen), draw(st.lists(row, max_size=6))


flat_rows = rows_of_types(flat_types)
mixed_rows = rows_of_types(flat_types | nested_types(), max_fields=3)


def arrow_columns(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [any_column([row[i] for row in rows], one) for i, one in enumerate(schema.types)]


def any_column(values: list[Any], arrow_type: pa.DataType) -> pa.Array:
    """A column of record-grain values of any type, built without the codec: recursively from its children."""
    valid = [value is not None for value in values]
    mask = pa.array([not one for one in valid], pa.bool_())
    if pa.types.is_struct(arrow_type):
        fields = list(arrow_type)
        children = [any_column([None if v is None else v[f.name] for v in values], f.type) for f in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)
    if pa.types.is_list(arrow_type) or pa.types.is_map(arrow_type):
        offsets = [0]
        flat: list[Any] = []
        for value in values:
            flat.extend(value.items() if isinstance(value, dict) else value or [])
            offsets.append(len(flat))
        ends = pa.array(
            [o if i == len(values) or valid[i] else None for i, o in enumerate(offsets)], pa.int32()
        )
        if pa.types.is_list(arrow_type):
            return pa.ListArray.from_arrays(ends, any_column(flat, arrow_type.value_type), type=arrow_type)
        keys = any_column([key for key, _ in flat], arrow_type.key_type)
        items = any_column([item for _, item in flat], arrow_type.item_type)
        return pa.MapArray.from_arrays(ends, keys, items, type=arrow_type)
    return column(values, arrow_type)


def any_record(array: pa.Array) -> list[Any]:
    """The record-grain values of a column of any type: the inverse of ``any_column``."""
    arrow_type = array.type
    valid = array.is_valid().to_pylist()
    if pa.types.is_struct(arrow_type):
        children = [any_record(child) for child in array.flatten()]
        names = [field.name for field in arrow_type]
        return [
            dict(zip(names, [child[i] for child in children], strict=True)) if present else None
            for i, present in enumerate(valid)
        ]
    if pa.types.is_list(arrow_type) or pa.types.is_map(arrow_type):
        if pa.types.is_map(arrow_type):
            flat = list(zip(any_record(array.keys), any_record(array.items), strict=True))
        else:
            flat = any_record(array.values)
        bounds = array.offsets.to_pylist()
        parts = [flat[start:end] for start, end in itertools.pairwise(bounds)]
        kind = dict if pa.types.is_map(arrow_type) else list
        return [kind(part) if present else None for part, present in zip(parts, valid, strict=True)]
    return record_values(array)


@given(flat_rows | mixed_rows)
def test_one_row_is_read_back(case: Rows) -> None:
    schema, rows = case
    codec = RowCodec(schema)
    for row in rows:
        assert same(codec.decode_one(codec.encode_one(row)), row)


@given(flat_rows | mixed_rows, st.integers(0, 2))
def test_columns_give_the_bytes_of_their_rows_and_are_read_back(case: Rows, cut: int) -> None:
    schema, rows = case
    codec = RowCodec(schema)
    arrays = [one.slice(cut) for one in arrow_columns(schema, rows)]
    stored = [codec.encode_one(row) for row in rows[cut:]]
    assert codec.encode(arrays) == stored
    decoded, present = codec.decode(stored)
    assert present.all()
    assert [one.type for one in decoded] == schema.types
    for i, read in enumerate(decoded):
        read.validate(full=True)
        assert same(any_record(read), [row[i] for row in rows[cut:]])


@given(flat_rows, st.data())
def test_missing_rows_are_null_and_marked(case: Rows, data: st.DataObject) -> None:
    schema, rows = case
    codec = RowCodec(schema)
    stored = [None if data.draw(st.booleans()) else codec.encode_one(row) for row in rows]
    decoded, present = codec.decode(stored)
    assert present.tolist() == [one is not None for one in stored]
    for i, read in enumerate(decoded):
        assert same(any_record(read), [r[i] if p else None for r, p in zip(rows, present, strict=True)])


def test_the_bytes_are_pinned_because_stores_hold_them() -> None:
    codec = RowCodec(
        schema_of(pa.int16(), pa.string(), pa.float32(), pa.decimal128(5, 1), pa.binary(), pa.bool_())
    )
    row = (-2, "ab", 1.0, decimal.Decimal("0.5"), None, True)
    assert codec.encode_one(row) == bytes.fromhex(
        "00 10"  # version, bit 4 is null
        "feff 0000803f 05000000000000000000000000000000 01"
        "02000000 00000000"
        "6162"
    )
    assert ValueCodec(pa.int64(), [pa.int32()]).encode_one(1) == bytes.fromhex("01 00 0100000000000000")


def test_more_than_eight_fields_have_a_longer_bitmap() -> None:
    codec = RowCodec(schema_of(*[pa.int8()] * 9))
    row = (1, 2, 3, 4, 5, 6, 7, 8, None)
    assert codec.encode_one(row)[:3] == b"\x00\x00\x01"
    assert codec.decode_one(codec.encode_one(row)) == row
    assert codec.decode_one(codec.encode_one((1,) * 9)) == (1,) * 9


OLD = pa.schema([("a", pa.int32()), ("b", pa.float32()), ("c", pa.string())])
NEW = pa.schema(
    [
        ("new", pa.string()),
        ("a", pa.int64()),
        ("b", pa.float64()),
        ("c", pa.string()),
        ("d", pa.list_(pa.int8())),
    ]
)


def test_older_rows_are_read_as_the_current_schema() -> None:
    old, new = RowCodec(OLD), RowCodec(NEW, [OLD])
    stored = [
        old.encode_one((1, 0.5, "x")),
        new.encode_one(("n", 2**40, 0.1, None, [1, None])),
        None,
        old.encode_one((None, None, None)),
    ]
    rows = [(None, 1, 0.5, "x", None), ("n", 2**40, 0.1, None, [1, None]), None, (None,) * 5]
    assert [one and new.decode_one(one) for one in stored] == rows
    decoded, present = new.decode(stored)
    assert pa.schema(list(zip(NEW.names, [one.type for one in decoded], strict=True))) == NEW
    assert present.tolist() == [True, True, False, True]
    assert list(zip(*[one.to_pylist() for one in decoded], strict=True)) == [
        row or (None,) * 5 for row in rows
    ]
    assert (old.version, new.version) == (0, 1)


def test_three_versions_can_be_mixed() -> None:
    types = [pa.int8(), pa.int16(), pa.int64()]
    codecs = [ValueCodec(one, types[:i]) for i, one in enumerate(types)]
    stored = [codecs[i % 3].encode_one(i) for i in range(9)]
    decoded, _ = codecs[2].decode(stored)
    assert decoded == pa.array(range(9), pa.int64())
    assert [codecs[2].decode_one(one) for one in stored] == list(range(9))


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (pa.schema([("a", pa.int32()), ("b", pa.float32())]), "'c' was removed"),
        (OLD.set(0, pa.field("a", pa.int16())), "'a' changed from int32 to int16"),
        (OLD.set(0, pa.field("a", pa.float64())), "'a' changed from int32 to float64"),
        (OLD.set(2, pa.field("c", pa.large_string())), "'c' changed"),
        (OLD.set(2, pa.field("c", pa.string(), nullable=False)), "'c' is no longer nullable"),
        (OLD.append(pa.field("d", pa.int8(), nullable=False)), "'d' is not nullable"),
        (pa.schema([OLD.field(1), OLD.field(0), OLD.field(2)]), "'b' has moved"),
    ],
)
def test_other_changes_are_refused_by_field_name(new: pa.Schema, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        check_evolution(OLD, new, "totals")
    with pytest.raises(SchemaError, match="totals: .*" + message):
        RowCodec(new, [OLD], owner="totals")


@given(flat_rows, st.data())
def test_truncated_and_prolonged_rows_are_refused(case: Rows, data: st.DataObject) -> None:
    schema, rows = case
    codec = RowCodec(schema, owner="totals")
    for row in rows:
        stored = codec.encode_one(row)
        cut = data.draw(st.integers(0, len(stored) - 1))
        for damaged in (stored[:cut], stored + b"\x00"):
            with pytest.raises(CodecError, match="totals"):
                codec.decode_one(damaged)
            with pytest.raises(CodecError, match="totals"):
                codec.decode([stored, None, damaged])


@pytest.mark.parametrize("arrow_type", [*FLAT_TYPES, pa.list_(pa.int8())], ids=str)
def test_an_unknown_version_or_a_pickle_is_refused(arrow_type: pa.DataType) -> None:
    codec = ValueCodec(arrow_type, owner="totals")
    null = codec.encode_one(None)
    for damaged in (b"\x01" + null[1:], PickleCodec().encode_one(None), b""):
        with pytest.raises(CodecError, match="totals"):
            codec.decode_one(damaged)
        with pytest.raises(CodecError, match="totals"):
            codec.decode([null, damaged])


@pytest.mark.parametrize(
    ("arrow_type", "body"),
    [
        (pa.string(), b"\xff\xfe"),
        (pa.list_(pa.int8()), b"\xc1"),
        (pa.list_(pa.int8()), b"\x05"),
        (pa.list_(pa.int8()), b"\x91\xa1x"),
        (pa.struct([("a", pa.int8())]), b"\x92\x01\x01"),
        (pa.map_(pa.string(), pa.int8()), b"\x91\x01"),
    ],
)
def test_variable_bytes_that_do_not_fit_the_type_are_refused(arrow_type: pa.DataType, body: bytes) -> None:
    codec = ValueCodec(arrow_type, owner="totals")
    stored = struct.pack("<BBI", 0, 0, len(body)) + body
    with pytest.raises(CodecError, match="totals.*'value'"):
        codec.decode([stored])
    if body != b"\x91\xa1x":  # the record grain trusts the types inside of well-formed MessagePack
        with pytest.raises(CodecError, match="totals.*'value'"):
            codec.decode_one(stored)


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (pa.int64(), "5"),
        (pa.int64(), 2**63),
        (pa.int64(), True),
        (pa.int32(), -(2**31) - 1),
        (pa.float64(), "x"),
        (pa.float32(), 1e300),
        (pa.bool_(), 1),
        (pa.string(), 5),
        (pa.string(), "\ud800"),
        (pa.binary(), "x"),
        (pa.date32(), 5.5),
        (pa.timestamp("s"), datetime.datetime(2020, 1, 1, microsecond=1)),
        (pa.decimal128(4, 1), decimal.Decimal("0.15")),
        (pa.list_(pa.int8()), 5),
        (pa.list_(pa.int8()), [1, 300]),
        (pa.struct([("a", pa.int8())]), {"b": 1}),
        (pa.struct([("a", pa.int8()), ("b", pa.int8())]), {"a": 1}),
        (pa.struct([("a", pa.int8())]), [1]),
        (pa.map_(pa.string(), pa.int8()), {"a": "b"}),
        (pa.map_(pa.string(), pa.int8()), {None: 1}),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ("a", 2)]),
        (pa.list_(pa.field("item", pa.int8(), nullable=False)), [None]),
    ],
)
def test_values_that_do_not_fit_are_refused_with_state_type_and_value(
    arrow_type: pa.DataType, value: Any
) -> None:
    with pytest.raises(CodecError, match="totals: field 'value' of type .* cannot hold .*convert the value"):
        ValueCodec(arrow_type, owner="totals").encode_one(value)
    with pytest.raises(CodecError, match="totals: field 'f1' of type .* cannot hold"):
        RowCodec(schema_of(pa.int64(), arrow_type), owner="totals").encode_one((1, value))


def test_null_in_a_field_that_is_not_nullable_is_refused() -> None:
    codec = RowCodec(pa.schema([pa.field("a", pa.int8(), nullable=False)]), owner="totals")
    with pytest.raises(CodecError, match="totals: field 'a' is not nullable"):
        codec.encode_one((None,))
    with pytest.raises(CodecError, match="totals: field 'a' is not nullable"):
        codec.encode([pa.array([1, None], pa.int8())])


def test_a_wrong_number_of_values_and_unsupported_types_are_refused() -> None:
    codec = RowCodec(schema_of(pa.int8(), pa.string()))
    for values in ((1,), (1, "a", 2)):
        with pytest.raises(CodecError, match=f"{len(values)} values given"):
            codec.encode_one(values)
    with pytest.raises(CodecError, match="2 values given"):
        RowCodec(schema_of(pa.int8())).encode_one((1, 2))
    with pytest.raises(SchemaError, match="'f0'"):
        RowCodec(schema_of(pa.uint8()))
    with pytest.raises(CodecError, match="'f0' has type int16"):
        codec.encode([pa.array([1], pa.int16()), pa.array(["a"])])
    with pytest.raises(SchemaError, match="at most 250"):
        ValueCodec(pa.int8(), [pa.int8()] * 250)


@given(st.data(), flat_types | nested_types())
def test_single_values_are_read_back_and_equal_their_column(
    data: st.DataObject, arrow_type: pa.DataType
) -> None:
    values = data.draw(st.lists(st.none() | nested_values(arrow_type), max_size=5))
    codec = ValueCodec(arrow_type)
    stored = [codec.encode_one(value) for value in values]
    assert same([codec.decode_one(one) for one in stored], values)
    assert codec.encode(any_column(values, arrow_type)) == stored
    decoded, present = codec.decode([*stored, None])
    assert present.tolist() == [True] * len(values) + [False]
    assert same(any_record(decoded), [*values, None])


def test_values_keep_the_exact_bits_of_floats() -> None:
    codec = ValueCodec(pa.float64())
    assert math.copysign(1, codec.decode_one(codec.encode_one(-0.0))) == -1
    assert codec.decode([codec.encode_one(-0.0)])[0].to_pylist()[0].hex() == "-0x0.0p+0"


def test_maps_keep_their_order_and_take_pairs() -> None:
    codec = ValueCodec(pa.map_(pa.string(), pa.int64()))
    assert codec.encode_one([("b", 1), ("a", 2)]) == codec.encode_one({"b": 1, "a": 2})
    assert list(codec.decode_one(codec.encode_one({"b": 1, "a": None}))) == ["b", "a"]
    keyed_by_struct = ValueCodec(pa.map_(pa.struct([("x", pa.int8())]), pa.int8()))
    assert keyed_by_struct.decode_one(keyed_by_struct.encode_one([({"x": 1}, 2)])) == [({"x": 1}, 2)]


def test_empty_batches_have_typed_columns() -> None:
    codec = RowCodec(NEW)
    decoded, present = codec.decode([])
    assert [one.type for one in decoded] == NEW.types
    assert len(present) == 0
    decoded, present = codec.decode([None, None])
    assert [one.null_count for one in decoded] == [2] * len(NEW)
    assert codec.encode(arrow_columns(NEW, [])) == []


def test_nested_rows_of_another_shape_raise_value_or_type_errors() -> None:
    with pytest.raises((ValueError, TypeError)):
        nested_from_binary([b"\x91\xa1x"], pa.list_(pa.int8()))


def test_pickled_values_carry_a_mark_and_nothing_else_is_unpickled() -> None:
    codec = PickleCodec(owner="totals")
    stored = codec.encode([{"a": {1, 2}}, None])
    assert stored[0][0] == 0xFE
    values, present = codec.decode([*stored, None])
    assert values == [{"a": {1, 2}}, None, None]
    assert present.tolist() == [True, True, False]
    with pytest.raises(CodecError, match="totals: stored bytes are not a pickled value"):
        codec.decode_one(stored[0][1:])
    with pytest.raises(CodecError, match="totals: a pickled value cannot be loaded"):
        codec.decode_one(stored[0][:-3])
    with pytest.raises(CodecError, match="totals: a function cannot be pickled"):
        codec.encode_one(lambda: None)
