"""A page decodes to what its entries decode to one by one: values, errors and all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyCodec, PickleCodec, ValueCodec
from asyncstate.errors import CodecError
from asyncstate.state.keyed.chunks import elements, elements_of_one_type, framed

_INTS = st.integers(-(2**15), 2**15 - 1)
_TEXTS = st.text(max_size=6) | st.sampled_from(["", "a", "\x00", "\x01", "a\x00\x01b", "\x00\x01\x01", "é"])
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): _INTS | st.integers(-(2**63), 2**63 - 1),
    pa.int16(): _INTS,
    pa.timestamp("us"): _INTS,
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.string(): _TEXTS,
    pa.binary(): st.binary(max_size=6),
    pa.list_(pa.int64()): st.lists(_INTS, max_size=3),
}
KEYS = {arrow_type: values for arrow_type, values in VALUES.items() if not pa.types.is_nested(arrow_type)}
_LONG_AND_SHORT = {"min_size": 0, "max_size": 60}


def _outcome(decode: Callable[[], list[Any]]) -> list[Any] | str:
    try:
        return decode()
    except CodecError as error:
        return str(error)


def _same(ours: list[Any] | str, expected: list[Any] | str) -> None:
    assert ours == expected
    if isinstance(ours, list):
        assert [type(one) for one in ours] == [type(one) for one in expected]


@given(data=st.data())
@pytest.mark.parametrize("arrow_type", VALUES, ids=str)
def test_a_page_of_values(arrow_type: pa.DataType, data: st.DataObject) -> None:
    codec = ValueCodec(arrow_type)
    raw = [codec.encode_one(value) for value in data.draw(st.lists(VALUES[arrow_type], **_LONG_AND_SHORT))]
    if raw and data.draw(st.booleans(), label="damage"):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.binary(max_size=12))
    _same(
        _outcome(lambda: codec.decode_page(raw)),
        _outcome(lambda: [codec.decode_one(value) for value in raw]),
    )


@given(data=st.data())
@pytest.mark.parametrize("arrow_type", KEYS, ids=str)
def test_a_page_of_keys(arrow_type: pa.DataType, data: st.DataObject) -> None:
    codec = KeyCodec([arrow_type], ["key"], 1)
    prefix = data.draw(st.binary(max_size=3))
    keys = data.draw(st.lists(st.none() | KEYS[arrow_type], **_LONG_AND_SHORT))
    raw = [prefix + codec.encode_one((key,)) for key in keys]
    if raw and data.draw(st.booleans(), label="damage"):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = prefix + data.draw(st.binary(max_size=12))
    skip = len(prefix)
    _same(
        _outcome(lambda: codec.decode_page(raw, skip)),
        _outcome(lambda: [codec.decode_one(key, skip)[0][0] for key in raw]),
    )


def test_a_page_of_older_and_newer_values() -> None:
    old, new = ValueCodec(pa.int32()), ValueCodec(pa.int64(), [pa.int32()])
    raw = [codec.encode_one(n) for n in range(50) for codec in (old, new)]
    assert new.decode_page(raw) == [n for n in range(50) for _ in (old, new)]
    assert new.decode_page(raw[::2]) == new.decode_page(raw[1::2]) == list(range(50))


def test_a_page_of_pickles() -> None:
    codec = PickleCodec()
    values = [{"n": n} for n in range(40)]
    assert codec.decode_page([codec.encode_one(value) for value in values]) == values


@given(data=st.data())
@pytest.mark.parametrize("arrow_type", [*VALUES, None], ids=str)
def test_the_elements_of_a_list(arrow_type: pa.DataType | None, data: st.DataObject) -> None:
    codec: ValueCodec | PickleCodec = PickleCodec() if arrow_type is None else ValueCodec(arrow_type)
    values = st.integers() | st.text(max_size=400) if arrow_type is None else VALUES[arrow_type]
    frames = [framed(codec.encode_one(value)) for value in data.draw(st.lists(values, **_LONG_AND_SHORT))]
    start = data.draw(st.sampled_from([0, 4]))
    stored = bytes(start) + b"".join(frames)
    if frames and data.draw(st.booleans(), label="cut"):
        stored = stored[: data.draw(st.integers(start, len(stored)))]
    _same(
        _outcome(lambda: elements_of_one_type(stored, start, codec.decode_page, codec.decode_packed, "list")),
        _outcome(lambda: elements(stored, start, codec.decode_one, "list")),
    )
