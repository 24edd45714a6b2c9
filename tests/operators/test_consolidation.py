"""The net change of a set of changelog rows: against plain Python, and in any order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.changelog import ROW_KIND_TEXTS, accumulates
from operators.core.arrays import row_ids
from operators.core.consolidation import ConsolidatedRows, Identified, net_by_content, net_by_unique_key
from tests.operators.set_model import Event, Row, net_of_set

KINDS = ["+I", "-U", "+U", "-D"]
rows = st.tuples(st.integers(0, 2), st.integers(0, 2))
events = st.lists(st.tuples(st.sampled_from(KINDS), rows), max_size=12)


def codes(changes: list[Event]) -> Any:
    return np.array([ROW_KIND_TEXTS.index(kind) for kind, _ in changes], np.int8)


def ids(stored: list[Row], changes: list[Event], columns: int) -> Any:
    both = [*stored, *(row for _, row in changes)]
    arrays = [pa.array([row[at] for row in both], pa.int64()) for at in range(columns)]
    return row_ids(arrays, np.zeros(len(both), np.int64))


def by_content(stored: list[Row], changes: list[Event], refresh: bool) -> ConsolidatedRows:
    content = ids(stored, changes, 2)
    size = len(stored)
    return net_by_content(content[:size], content[size:], accumulates(codes(changes)), refresh)


def by_unique_key(stored: list[Row], changes: list[Event], refresh: bool) -> ConsolidatedRows:
    both = Identified(ids(stored, changes, 1), ids(stored, changes, 2))
    size = len(stored)
    return net_by_unique_key(both.slice(0, size), both.slice(size, len(both.ids)), codes(changes), refresh)


def check(net: ConsolidatedRows, stored: list[Row], changes: list[Event], unique: Any, refresh: bool) -> None:
    expected = net_of_set(stored, changes, unique, refresh)
    assert np.flatnonzero(~net.removed).tolist() == expected.stays
    assert net.added.tolist() == expected.comes
    assert Counter(changes[at][1] for at in net.missing) == Counter(expected.missing)
    assert len(net.cause) == int(net.removed.sum())
    assert sorted(net.missing.tolist()) == net.missing.tolist()


@given(stored=st.lists(rows, max_size=5), changes=events, refresh=st.booleans())
def test_by_content(stored: list[Row], changes: list[Event], refresh: bool) -> None:
    net = by_content(stored, changes, refresh)
    check(net, stored, changes, None, refresh)
    for row, cause in zip(np.flatnonzero(net.removed), net.cause, strict=True):
        assert changes[cause][0] in ("-U", "-D")
        assert changes[cause][1] == stored[row]


@given(
    stored=st.dictionaries(st.integers(0, 2), st.integers(0, 2)).map(lambda one: list(one.items())),
    changes=events,
    refresh=st.booleans(),
)
def test_by_unique_key(stored: list[Row], changes: list[Event], refresh: bool) -> None:
    net = by_unique_key(stored, changes, refresh)
    check(net, stored, changes, lambda row: row[0], refresh)
    for row, cause in zip(np.flatnonzero(net.removed), net.cause, strict=True):
        assert changes[cause][1][0] == stored[row][0]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[Event], list[Row]]:
    """Stored rows with a unique key, a full changelog that fits them, and what is there after it."""
    there = draw(st.dictionaries(st.integers(0, 2), st.integers(0, 3)))
    stored, changes = list(there.items()), []
    for key, value in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=10)):
        old = there.pop(key, None)
        if old is not None:
            changes.append(("-D" if value == 4 else "-U", (key, old)))
        if value < 4:
            changes.append(("+I" if old is None else "+U", (key, value)))
            there[key] = value
    return stored, changes, list(there.items())


@pytest.mark.parametrize("net_of", [by_content, by_unique_key])
@given(history=histories(), data=st.data())
def test_a_full_changelog_gives_the_same_in_any_order(net_of: Any, history: Any, data: st.DataObject) -> None:
    stored, changes, after = history
    shuffled = data.draw(st.permutations(changes))
    net = net_of(stored, shuffled, False)
    left = [row for row, gone in zip(stored, net.removed, strict=True) if not gone]
    assert sorted(left + [shuffled[at][1] for at in net.added]) == sorted(after)
    assert len(net.missing) == 0


def test_rows_are_equal_with_nulls_and_nested_values() -> None:
    columns = [pa.array([1, None, 1, None]), pa.array([[1], None, [1], None], pa.list_(pa.int64()))]
    found = row_ids(columns, np.array([0, 0, 0, 1]))
    assert found[0] == found[2]
    assert len(set(found.tolist())) == 3
