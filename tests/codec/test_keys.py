"""The key codec: order, prefix-freeness, round trips, one value against a column, damaged bytes."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyCodec, decode_namespace, encode_namespace, prefix_end
from asyncstate.codec.hashing import key_group
from asyncstate.errors import CodecError, ConfigurationError, SchemaError
from tests.codec.strategies import FLAT_TYPES, columns, key_rows, order_of, record_values, same

Keys = tuple[list[pa.DataType], list[tuple[Any, ...]]]


def codec_of(types: list[pa.DataType], max_parallelism: int = 128) -> KeyCodec:
    return KeyCodec(types, [f"k{i}" for i in range(len(types))], max_parallelism)


@given(key_rows(max_rows=8))
def test_bytes_compare_like_the_values(keys: Keys) -> None:
    types, rows = keys
    encode = codec_of(types).encode_one
    for left, right in itertools.product(rows, rows):
        left_key, right_key = encode(left), encode(right)
        assert (left_key < right_key) == (order_of(left) < order_of(right)), (left, right)
        assert (left_key == right_key) == (order_of(left) == order_of(right)), (left, right)


@given(key_rows(max_rows=8))
def test_no_key_is_a_prefix_of_another(keys: Keys) -> None:
    types, rows = keys
    encoded = sorted({codec_of(types).encode_one(row) for row in rows})
    assert not any(right.startswith(left) for left, right in itertools.pairwise(encoded))


@given(key_rows(), st.binary(max_size=4), st.binary(max_size=4))
def test_one_key_is_read_back_from_within_other_bytes(keys: Keys, before: bytes, after: bytes) -> None:
    types, rows = keys
    codec = codec_of(types)
    for row in rows:
        encoded = codec.encode_one(row)
        values, end = codec.decode_one(before + encoded + after, len(before))
        assert end == len(before) + len(encoded)
        assert same(values, row)


@given(key_rows(), st.integers(0, 3))
def test_columns_give_the_bytes_of_their_rows(keys: Keys, cut: int) -> None:
    types, rows = keys
    codec = codec_of(types)
    arrays = [one.slice(cut) for one in columns(rows, types)]
    rows = rows[cut:]
    assert codec.encode(arrays) == [codec.encode_one(row) for row in rows]
    groups = [int.from_bytes(codec.group_prefix_one(row), "big") for row in rows]
    assert groups == [key_group(row, types, 128) for row in rows] == codec.groups(arrays).tolist()


@given(key_rows(), st.integers(0, 11))
def test_columns_are_read_back_behind_any_prefix(keys: Keys, skip: int) -> None:
    types, rows = keys
    codec = codec_of(types)
    stored = [bytes([i % 256]) * skip + codec.encode_one(row) for i, row in enumerate(rows)]
    decoded = codec.decode(stored, skip)
    assert [one.type for one in decoded] == types
    assert same(list(zip(*map(record_values, decoded), strict=True)), rows)
    for one in decoded:
        one.validate(full=True)


@given(key_rows(max_columns=2), key_rows(max_columns=2))
def test_a_key_behind_a_key_is_found_by_its_offsets(first: Keys, second: Keys) -> None:
    rows = list(zip(first[1], second[1], strict=False))
    left, right = codec_of(first[0]), codec_of(second[0])
    stored = [b"GGS" + left.encode_one(a) + right.encode_one(b) for a, b in rows]
    left_columns, ends = left.decode_prefix(stored, 3)
    right_columns, lengths = right.decode_prefix(stored, ends)
    assert lengths.tolist() == [len(key) for key in stored]
    assert same(list(zip(*map(record_values, left_columns), strict=True)), [a for a, _ in rows])
    assert same(list(zip(*map(record_values, right_columns), strict=True)), [b for _, b in rows])


def test_the_bytes_are_pinned_because_stores_hold_them() -> None:
    types = [pa.int16(), pa.string(), pa.float64(), pa.bool_(), pa.date32(), pa.decimal128(5, 1)]
    row = (-2, "a\x00b", -1.0, True, datetime.date(1970, 1, 2), decimal.Decimal("-0.1"))
    assert codec_of(types).encode_one(row) == bytes.fromhex(
        "01 7ffe"  # sign bit flipped
        "01 61 00ff 62 0001"
        "01 400fffffffffffff"  # all bits of a negative float flipped
        "01 01"
        "01 80000001"
        "01 7fffffffffffffffffffffffffffffff"
    )
    assert codec_of(types).encode_one((None,) * 6) == bytes(6)


@pytest.mark.parametrize("arrow_type", FLAT_TYPES, ids=str)
def test_damaged_bytes_are_refused_by_column_name(arrow_type: pa.DataType) -> None:
    codec = codec_of([arrow_type])
    bad_payload = (
        b"\x01\x02" if arrow_type == pa.bool_() else b"\x01"
    )  # one that is no bool, else none at all
    for damaged in (b"", bad_payload, b"\x02" + bytes(20)):
        with pytest.raises(CodecError, match="'k0'"):
            codec.decode_one(damaged)
        with pytest.raises(CodecError, match="'k0'"):
            codec.decode([damaged])


@pytest.mark.parametrize("payload", [b"\x01\xff\xfe\x00\x01", b"\x01a\x00b\x00\x01", b"\x01\x00\x05"])
def test_text_that_is_not_utf8_or_not_escaped_is_refused(payload: bytes) -> None:
    codec = codec_of([pa.string()])
    with pytest.raises(CodecError, match="'k0'"):
        codec.decode_one(payload)
    with pytest.raises(CodecError, match="'k0'"):
        codec.decode([payload, b"\x01fine\x00\x01"])


def test_a_field_that_ends_in_the_next_row_is_refused() -> None:
    with pytest.raises(CodecError, match="'k0'"):
        codec_of([pa.string()]).decode([b"\x01abc", b"\x01d\x00\x01"])
    with pytest.raises(CodecError, match="'k0'"):
        codec_of([pa.int32()]).decode([b"\x01\x80\x00", b"\x01\x80\x00\x00\x00"])


def test_bytes_behind_the_key_are_refused_unless_asked_for() -> None:
    codec = codec_of([pa.int64()])
    key = codec.encode_one((5,)) + b"more"
    with pytest.raises(CodecError, match="after the key columns"):
        codec.decode([key])
    decoded, ends = codec.decode_prefix([key])
    assert (decoded[0].to_pylist(), ends.tolist()) == ([5], [9])


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (pa.int64(), "5"),
        (pa.int64(), True),
        (pa.int64(), 2**63),
        (pa.int8(), -129),
        (pa.int32(), 1.5),
        (pa.string(), b"raw"),
        (pa.string(), "\ud800"),
        (pa.binary(), "text"),
        (pa.float64(), "1.0"),
        (pa.float64(), 2**53 + 1),
        (pa.float32(), 1e300),
        (pa.bool_(), 1),
        (pa.date32(), datetime.datetime(2020, 1, 1, 12)),
        (pa.timestamp("s"), datetime.datetime(2020, 1, 1, microsecond=1)),
        (pa.decimal128(5, 2), decimal.Decimal("0.001")),
        (pa.decimal128(5, 2), decimal.Decimal("1000")),
        (pa.decimal128(5, 2), decimal.Decimal("1e999999")),
        (pa.decimal128(5, 2), decimal.Decimal("NaN")),
        (pa.decimal128(5, 2), 1.5),
    ],
)
def test_values_that_do_not_fit_are_refused_with_column_type_and_value(
    arrow_type: pa.DataType, value: Any
) -> None:
    codec = codec_of([pa.int64(), arrow_type])
    single = codec_of([arrow_type])
    for encode, values in [(codec.encode_one, (1, value)), (codec.group_prefix_one, (1, value))]:
        with pytest.raises(CodecError, match=re.escape(f"'k1' of type {arrow_type}")):
            encode(values)
    for encode in (single.encode_one, single.group_prefix_one):
        with pytest.raises(CodecError, match="'k0'.*convert the value"):
            encode((value,))


def test_other_ways_to_write_a_value_are_the_same_key() -> None:
    codec = codec_of([pa.int64(), pa.date32(), pa.timestamp("s"), pa.decimal128(5, 2)])
    plain = (3, datetime.date(1970, 1, 6), 60, decimal.Decimal("2.00"))
    other = (3.0, 5, datetime.datetime(1970, 1, 1, 0, 1), 2)
    for encode in (codec.encode_one, codec.group_prefix_one):
        assert encode(other) == encode(plain)


@pytest.mark.parametrize("made", [np.int64, np.int32, np.uint8, np.uint64])
def test_a_namespace_may_be_a_number_of_numpy(made: Any) -> None:
    assert encode_namespace(made(5)) == encode_namespace(5)
    with pytest.raises(CodecError, match="is not an int64"):
        encode_namespace(np.uint64(2**63))  # type: ignore[arg-type]


def test_numpy_scalars_are_taken_as_numbers() -> None:
    codec = codec_of([pa.int64(), pa.float64(), pa.bool_()])
    numbers = (np.int32(5), np.float32(0.5), np.bool_(True))
    assert codec.encode_one(numbers) == codec.encode_one((5, 0.5, True))
    assert codec.group_prefix_one(numbers) == codec.group_prefix_one((5, 0.5, True))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_wrong_number_of_values_or_columns_is_refused(count: int) -> None:
    codec = codec_of([pa.int64()] * count)
    for values in ((1,) * (count + 1), (1,) * (count - 1)):
        with pytest.raises(CodecError, match=f"{len(values)} values given"):
            codec.encode_one(values)
        with pytest.raises(CodecError, match=f"{len(values)} values given"):
            codec.group_prefix_one(values)
        with pytest.raises(CodecError, match="columns given"):
            codec.encode([pa.array([1])] * len(values))


def test_columns_of_another_type_or_length_are_refused() -> None:
    codec = codec_of([pa.int64(), pa.string()])
    with pytest.raises(CodecError, match="'k0' has type int32 but int64"):
        codec.encode([pa.array([1], pa.int32()), pa.array(["a"])])
    with pytest.raises(CodecError, match="different lengths"):
        codec.encode([pa.array([1]), pa.array(["a", "b"])])


def test_declarations_are_checked() -> None:
    with pytest.raises(SchemaError, match="'xs'"):
        KeyCodec([pa.list_(pa.int8())], ["xs"], 128)
    with pytest.raises(SchemaError, match="1 key types but 0 key names"):
        KeyCodec([pa.int8()], [], 128)
    with pytest.raises(ConfigurationError):
        KeyCodec([pa.int8()], ["k"], 0)


def test_without_columns_there_is_one_empty_key_of_group_zero() -> None:
    codec = codec_of([])
    assert codec.encode_one(()) == b""
    assert codec.decode_one(b"", 0) == ((), 0)
    assert codec.group_prefix_one(()) == b"\x00\x00"


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_namespaces_sort_like_their_numbers(numbers: list[int]) -> None:
    assert [decode_namespace(key) for key in sorted(map(encode_namespace, numbers))] == sorted(numbers)
    assert [decode_namespace(b"xy" + encode_namespace(one), 2) for one in numbers] == numbers


def test_bad_namespaces_are_refused() -> None:
    with pytest.raises(CodecError, match="not an int64"):
        encode_namespace(2**63)
    with pytest.raises(CodecError, match="too short"):
        decode_namespace(b"1234567")


@given(st.binary(max_size=5), st.binary(max_size=7))
def test_prefix_end_is_the_first_key_behind_the_prefix(prefix: bytes, other: bytes) -> None:
    if not prefix.strip(b"\xff"):
        with pytest.raises(CodecError, match="no key is above"):
            prefix_end(prefix)
        return
    end = prefix_end(prefix)
    assert (prefix <= other < end) == other.startswith(prefix)


def test_nan_is_the_last_key_and_negative_zero_equals_zero() -> None:
    encode = codec_of([pa.float64()]).encode_one
    order = [None, -math.inf, -1.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    assert [encode((one,)) for one in order] == sorted(encode((one,)) for one in order)
    assert encode((-0.0,)) == encode((0.0,))
    assert encode((-math.nan,)) == encode((math.nan,))
