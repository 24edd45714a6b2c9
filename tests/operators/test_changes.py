"""The net change of a bundle, against a loop over keys."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.changelog import ROW_KIND_TEXTS
from operators.core.row_kinds import distinct, net_changes, take_changes


def as_array(values: list[bool]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.array(values, np.bool_)


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_net_changes(keys: list[tuple[bool, bool, bool]], update_before: bool, random: object) -> None:
    order = list(range(len(keys)))
    random.shuffle(order)  # type: ignore[attr-defined]
    expected: list[tuple[str, int, str]] = []
    for key in order:
        before, after, changed = keys[key]
        if before and after and changed:
            expected += [("-U", key, f"old{key}")] * update_before + [("+U", key, f"new{key}")]
        elif after and not before:
            expected.append(("+I", key, f"new{key}"))
        elif before and not after:
            expected.append(("-D", key, f"old{key}"))

    changes = net_changes(
        np.array(order, np.int64),
        as_array([key[0] for key in keys]),
        as_array([key[1] for key in keys]),
        as_array([key[2] for key in keys]),
        update_before,
    )
    old = pa.array([f"old{key}" for key in range(len(keys))], pa.string())
    new = pa.array([f"new{key}" for key in range(len(keys))], pa.string())
    columns = take_changes(changes, [pa.array(range(len(keys)), pa.int64())], [old], [new])
    kinds = [ROW_KIND_TEXTS[kind] for kind in changes.kinds]
    assert list(zip(kinds, *(column.to_pylist() for column in columns), strict=True)) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (pa.array([1, 2, None, None]), pa.array([1, 3, 3, None]), [False, True, True, False]),
        (
            pa.array([math.nan, math.nan, 0.0, None]),
            pa.array([math.nan, 1.0, -0.0, 1.0]),
            [False, True, False, True],
        ),
        (pa.array(["a", "b", None]), pa.array(["a", "c", "c"]), [False, True, True]),
        (pa.array([[1], [2], None, None]), pa.array([[1], [3], [3], None]), [False, True, True, False]),
    ],
)
def test_distinct_knows_null_and_nan(left: pa.Array, right: pa.Array, expected: list[bool]) -> None:
    assert distinct([left], [right], len(left)).tolist() == expected
    assert distinct([right], [left], len(left)).tolist() == expected


def test_rows_without_columns_are_equal() -> None:
    assert distinct([], [], 3).tolist() == [False, False, False]


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.int64())])
def test_values_of_values_differ_by_their_bits(kind: pa.DataType) -> None:
    """As rows and retractions do; a large list is a result that no state can have."""
    if kind.value_type == pa.float64():
        old = [[0.0], [math.nan], [1.0, None], None, []]
        new = [[-0.0], [math.nan], [1.0, None], None, None]
        expected = [True, False, False, False, True]
    else:
        old, new, expected = [[1], None, []], [[2], None, None], [True, False, True]
    found = distinct([pa.array(old, kind)], [pa.array(new, kind)], len(old))
    assert found.tolist() == expected
