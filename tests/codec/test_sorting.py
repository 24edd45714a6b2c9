"""Orders of rows against Python's own sorting, of arrays that fit into one number together and of others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec.sorting import rows_by, stable_order


@st.composite
def integers(draw: st.DrawFn, num_rows: int) -> npt.NDArray[np.generic]:
    """Few different numbers, so that rows are equal; the whole range, so that they do not fit into one number."""
    dtype = np.dtype(draw(st.sampled_from(["?", "u1", "i1", "i4", "u8", "i8"])))
    low, high = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    numbers = draw(st.sampled_from([[low, high], [high - 1, high], [low, low + 1], [low, (low + high) // 2]]))
    return np.array(draw(st.lists(st.sampled_from(numbers), min_size=num_rows, max_size=num_rows)), dtype)


@given(st.integers(0, 40).flatmap(lambda num_rows: st.lists(integers(num_rows), min_size=1, max_size=4)))
def test_rows_by_is_stable_and_goes_by_the_first_array_first(arrays: list[npt.NDArray[np.generic]]) -> None:
    values = list(zip(*(array.tolist() for array in arrays), strict=True))
    assert rows_by(*arrays).tolist() == sorted(range(len(values)), key=values.__getitem__)


@given(st.lists(st.integers(0, 200_000), max_size=50), st.sampled_from([200_001, 2**31]))
def test_stable_order_is_a_stable_argsort(codes: list[int], bound: int) -> None:
    array = np.array(codes, np.int32)
    assert stable_order(array, bound).tolist() == sorted(range(len(codes)), key=codes.__getitem__)
