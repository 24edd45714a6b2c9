"""Keys in namespaces: the same batch as grouping the rows and namespaces anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyBatch, KeyCodec
from tests.codec.strategies import columns, key_rows

STATE_ID = 9


def assert_same(found: KeyBatch, expected: KeyBatch) -> None:
    assert found.store_keys(STATE_ID) == expected.store_keys(STATE_ID)
    assert found.keys() == expected.keys()
    assert found.num_rows == expected.num_rows
    assert found.inverse.dtype == np.int32
    assert np.array_equal(found.inverse, expected.inverse)
    assert found.namespaces is not None
    assert found.namespaces.dtype == np.int64
    assert np.array_equal(found.namespaces, expected.namespaces)
    assert [column.type for column in found.columns] == [column.type for column in expected.columns]


@given(key_rows(max_rows=25), st.data())
def test_keys_in_namespaces_are_grouped_like_rows_with_namespaces(
    case: tuple[list[pa.DataType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    types, rows = case
    codec = KeyCodec(types, [f"k{i}" for i in range(len(types))], 4)
    spread = data.draw(st.sampled_from([0, 2, 10**12]))
    ticks = st.integers(-spread, spread)
    namespaces = np.array(data.draw(st.lists(ticks, min_size=len(rows), max_size=len(rows))), np.int64)
    keys = codec.group(columns(rows, types), num_rows=len(rows))
    if data.draw(st.booleans()):
        keys.keys()  # encoded before or after must not matter
    assert_same(keys.in_namespaces(namespaces), codec.group(columns(rows, types), namespaces))
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=30)) if rows else []
    times = np.array(data.draw(st.lists(ticks, min_size=len(chosen), max_size=len(chosen))), np.int64)
    picked = keys.in_namespaces(times, keys.inverse[np.array(chosen, np.int64)])
    assert_same(picked, codec.group(columns([rows[row] for row in chosen], types), times))


@pytest.mark.parametrize("ticks", [5, 30_000])
def test_many_rows_with_few_or_many_namespaces(ticks: int) -> None:
    random = np.random.default_rng(1)
    codec = KeyCodec([pa.int64()], ["k"], 128)
    column = pa.array(random.integers(0, 5_000, 40_000))
    namespaces = random.integers(0, ticks, 40_000)
    assert_same(codec.group([column]).in_namespaces(namespaces), codec.group([column], namespaces))
