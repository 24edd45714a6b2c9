"""``net``: what changelog rows come to, whatever their order and their values."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import pytest

from asyncstate.errors import SchemaError
from asyncstate.testing import net

CHANGES: list[tuple[Any, ...]] = [
    ("+I", 1, "a"),
    ("+I", 2, "b"),
    ("-U", 1, "a"),
    ("+U", 1, "c"),
    ("-D", 2, "b"),
]


def test_rows_that_cancel_are_left_out_in_any_order() -> None:
    assert net(CHANGES) == net(CHANGES[::-1]) == {(1, "c"): 1}
    assert net([("+I", 7)] * 3 + [("-D", 7)]) == {(7,): 2}
    assert net([]) == {}


def test_a_row_that_is_taken_back_too_often_is_below_zero() -> None:
    assert net([("-D", 1), ("+I", 2)]) == {(1,): -1, (2,): 1}
    table = net([("+I", 1)])
    table.update(net([("-U", 1), ("+U", 2)]))
    assert table == Counter({(2,): 1})


def test_in_order_no_row_goes_before_it_is_there() -> None:
    assert net(CHANGES, in_order=True) == {(1, "c"): 1}
    with pytest.raises(
        AssertionError, match=re.escape("net: row 0 is ('-D', 2, 'b'), but no earlier row added")
    ):
        net(CHANGES[::-1], in_order=True)


def test_values_that_have_no_hash_and_nan_are_compared_by_content() -> None:
    rows = [
        ("+I", [1, {"a": [2]}], float("nan"), bytearray(b"x")),
        ("-D", [1, {"a": [2]}], float("nan"), b"x"),
    ]
    assert net(rows) == {}
    assert net(rows[:1]) == {((1, (("a", (2,)),)), math.nan, b"x"): 1}


class Collected(tuple[Any, ...]):
    """A row as Spark collects it: values with their names."""

    __slots__ = ()
    __fields__ = ("k", "row_kind", "v")


class Inserted(tuple[Any, ...]):
    """A row of a stream without row kinds."""

    __slots__ = ()
    __fields__ = ("k", "v")


def test_rows_of_spark_have_their_kind_in_a_column_or_are_inserted() -> None:
    assert net([Collected((1, "+I", "a")), Collected((1, "-D", "a")), Collected((2, "+U", "b"))]) == {
        (2, "b"): 1
    }
    assert net([Inserted((1, "a")), Inserted((1, "a"))]) == {(1, "a"): 2}


@pytest.mark.parametrize("row", [(), (1, "+I"), ("insert", 1), (["+I"], 1)])
def test_a_row_without_a_kind_is_refused(row: tuple[Any, ...]) -> None:
    with pytest.raises(
        SchemaError, match=re.escape(f"net: row 1 is {row!r}; give (row kind, *values), with one of +I")
    ):
        net([("+I", 1), row])


@pytest.mark.parametrize("rows", [7, None, [7], [{"a": 1}]])
def test_what_is_no_row_is_refused(rows: Any) -> None:
    with pytest.raises(SchemaError, match="^net: "):
        net(rows)
