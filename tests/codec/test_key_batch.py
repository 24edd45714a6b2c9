"""KeyBatch against a plain-dict model of unique keys in store order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyBatch, KeyCodec, encode_namespace
from asyncstate.errors import CodecError
from tests.codec.strategies import columns, key_rows, record_values, same

Keys = tuple[list[pa.DataType], list[tuple[Any, ...]]]

STATE_ID = 9


def codec_of(types: list[pa.DataType], max_parallelism: int = 4) -> KeyCodec:
    return KeyCodec(types, [f"k{i}" for i in range(len(types))], max_parallelism)


def model(codec: KeyCodec, rows: list[tuple[Any, ...]], ticks: list[int] | None) -> dict[bytes, list[int]]:
    """Store key -> its row numbers, in store order, one row at a time."""
    found: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        middle = b"" if ticks is None else encode_namespace(ticks[number])
        key = codec.group_prefix_one(row) + bytes([STATE_ID]) + middle + codec.encode_one(row)
        found.setdefault(key, []).append(number)
    return dict(sorted(found.items()))


@st.composite
def batches(draw: st.DrawFn) -> tuple[KeyCodec, list[tuple[Any, ...]], list[int] | None, KeyBatch]:
    types, rows = draw(key_rows(max_rows=25))
    ticks = draw(st.none() | st.lists(st.integers(-2, 2), min_size=len(rows), max_size=len(rows)))
    codec = codec_of(types)
    namespace = None if ticks is None else np.array(ticks, np.int64)
    return codec, rows, ticks, codec.group(columns(rows, types), namespace)


Batch = tuple[KeyCodec, list[tuple[Any, ...]], list[int] | None, KeyBatch]


@given(batches())
def test_unique_keys_and_row_mapping_are_those_of_the_model(case: Batch) -> None:
    codec, rows, ticks, batch = case
    expected = model(codec, rows, ticks)
    assert batch.store_keys(STATE_ID) == list(expected)
    assert (len(batch), batch.num_rows) == (len(expected), len(rows))
    number_of_row = {row: number for number, members in enumerate(expected.values()) for row in members}
    assert batch.inverse.dtype == np.int32
    assert batch.inverse.tolist() == [number_of_row[row] for row in range(len(rows))]
    assert batch.first_rows().tolist() == [members[0] for members in expected.values()]
    assert batch.last_rows().tolist() == [members[-1] for members in expected.values()]


@given(batches())
def test_columns_groups_and_namespaces_belong_to_the_unique_keys(case: Batch) -> None:
    codec, rows, ticks, batch = case
    members = model(codec, rows, ticks).values()
    decoded = list(zip(*map(record_values, batch.columns), strict=True))
    assert same(decoded, [rows[first] for first, *_ in members])
    assert [one.type for one in batch.columns] == list(codec.types)
    assert batch.groups.dtype == np.uint16
    keys = [codec.group_prefix_one(rows[first]) + codec.encode_one(rows[first]) for first, *_ in members]
    assert batch.keys() == [key[2:] for key in keys]
    assert batch.groups.tolist() == [int.from_bytes(key[:2], "big") for key in keys]
    if ticks is None:
        assert batch.namespaces is None
    else:
        assert batch.namespaces is not None
        assert batch.namespaces.tolist() == [ticks[first] for first, *_ in members]


@given(batches())
def test_rows_sorted_lists_the_rows_of_each_key_in_arrival_order(case: Batch) -> None:
    codec, rows, ticks, batch = case
    order, starts = batch.rows_sorted()
    parts = np.split(order, starts[1:]) if len(batch) else []
    assert [part.tolist() for part in parts] == list(model(codec, rows, ticks).values())


@given(batches(), st.data(), st.booleans())
def test_a_selection_is_the_batch_of_the_chosen_keys(
    case: Batch, data: st.DataObject, encoded_before: bool
) -> None:
    _, _, _, batch = case
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))), np.bool_)
    all_keys = batch.store_keys(STATE_ID)
    batch = (
        batch if encoded_before else case[0].group(columns(case[1], list(case[0].types)), _namespace(case[2]))
    )
    for chosen in (batch.select(mask), batch.select(np.flatnonzero(mask))):
        assert chosen.store_keys(STATE_ID) == [key for key, keep in zip(all_keys, mask, strict=True) if keep]
        assert [len(one) for one in chosen.columns] == [len(chosen)] * len(chosen.columns)
        with pytest.raises(CodecError, match="has no rows"):
            chosen.first_rows()


def _namespace(ticks: list[int] | None) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    return None if ticks is None else np.array(ticks, np.int64)


def test_a_selection_out_of_order_is_refused() -> None:
    batch = codec_of([pa.int64()]).group([pa.array([1, 2, 3])])
    with pytest.raises(CodecError, match="ascend"):
        batch.select(np.array([1, 0]))


def test_without_key_columns_all_rows_have_one_key() -> None:
    codec = codec_of([])
    batch = codec.group([], num_rows=3)
    assert (len(batch), batch.inverse.tolist(), batch.store_keys(7)) == (1, [0, 0, 0], [b"\x00\x00\x07"])
    assert batch.select(np.array([True])).keys() == [b""]
    windows = codec.group([], np.array([5, 4, 5]))
    assert windows.namespaces is not None
    assert (windows.namespaces.tolist(), windows.inverse.tolist()) == ([4, 5], [1, 0, 1])
    assert len(codec.group([], num_rows=0)) == 0


def test_many_uniques_of_many_columns_do_not_overflow_the_combined_code() -> None:
    rng = np.random.default_rng(3)
    arrays = [pa.array(rng.permutation(2_000)) for _ in range(7)]  # 2000 ** 7 > 2 ** 76
    codec = codec_of([pa.int64()] * 7)
    batch = codec.group(arrays)
    assert len(batch) == 2_000
    assert batch.store_keys(1) == sorted(batch.store_keys(1))
    assert [one.take(pa.array(batch.inverse)) for one in batch.columns] == arrays


def test_rows_under_null_do_not_matter() -> None:
    left = pa.array(np.array([7, 8, 9]), mask=np.array([True, True, False]))
    batch = codec_of([pa.int64()]).group([left])
    assert sorted(record_values(batch.columns[0]), key=str) == [9, None]


def test_a_row_a_key_needs_no_sorting() -> None:
    values = np.random.default_rng(1).permutation(1000)
    batch = KeyCodec([pa.int64()], ["id"], 128).group([pa.array(values)])
    order, starts = batch.rows_sorted()
    assert order.tolist() == np.argsort(batch.inverse, kind="stable").tolist()
    assert starts.tolist() == list(range(1000))


def test_store_keys_are_made_once_a_state() -> None:
    batch = KeyCodec([pa.int64()], ["id"], 128).group([pa.array([3, 1, 2])])
    first = batch.store_keys(1)
    assert batch.store_keys(1) is first
    assert batch.store_keys(2) == [key[:2] + b"\x02" + key[3:] for key in first]
    assert batch.store_keys(1) == first


def test_bad_namespaces_and_state_ids_are_refused() -> None:
    codec = codec_of([pa.int64()])
    for namespace in (np.array([1.0]), np.array([1, 2])):
        with pytest.raises(CodecError, match="give int64 of shape"):
            codec.group([pa.array([1])], namespace)
    with pytest.raises(CodecError, match="state id 256"):
        codec.group([pa.array([1])]).store_keys(256)


def test_chunked_columns_are_taken() -> None:
    codec = codec_of([pa.string()])
    chunked = pa.chunked_array([["a", "b"], ["a"]])
    assert codec.group([chunked]).store_keys(1) == codec.group([pa.array(["a", "b", "a"])]).store_keys(1)
