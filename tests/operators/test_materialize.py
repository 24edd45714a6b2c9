"""UpsertMaterialize against a list of the rows of each key, the newest last."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import StateTtl
from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import UpsertMaterialize

ROWS = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", pa.string()), ("seq", pa.int64())])
Row = tuple[Any, ...]


class Model:
    """The rows of each key in the order in which they came."""

    def __init__(self, unique: bool) -> None:
        self.unique = unique
        self.rows: dict[int, list[Row]] = {}

    def add(self, row: Row) -> None:
        rows = self.rows.setdefault(row[0], [])
        if self.unique:
            rows[:] = [other for other in rows if other[1] != row[1]]
        rows.append(row)

    def remove(self, row: Row) -> None:
        self.rows[row[0]].remove(row)
        if not self.rows[row[0]]:
            del self.rows[row[0]]

    def newest(self) -> Counter[Row]:
        return Counter(rows[-1] for rows in self.rows.values())


histories = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.sampled_from("xy")), max_size=7
    ),
    max_size=5,
)


@given(
    batches=histories,
    unique=st.booleans(),
    enabled=st.booleans(),
    size=st.sampled_from(["500000", "1", "3"]),
    ordered=st.booleans(),
    restart=st.integers(0, 5),
    updates_before=st.booleans(),
)
def test_the_newest_row_of_each_key(
    batches: Any, unique: bool, enabled: bool, size: str, ordered: bool, restart: int, updates_before: bool
) -> None:
    model, shown, number = Model(unique), {}, 0
    harness = OperatorHarness(
        UpsertMaterialize(["id"] if unique else None, emit_update_before=updates_before),
        ROWS,
        ["k"],
        async_enabled=enabled,
        sequence="seq",
        max_parallelism=4,
        parallelism=2,
        options={"async-state.bundle-size": size},
    )
    for at, batch in enumerate(batches):
        if at == restart:
            again = harness.restore(harness.snapshot(), parallelism=3)
            harness.close()
            harness = again
        given_rows: list[tuple[str, Row]] = []
        for what, key, id, value in batch:
            number += 1
            there = [row for row in model.rows.get(key, ()) if row[1] == id]
            if what == 0 and there:
                model.remove(there[0])
                given_rows.append(("-D", (*there[0][:3], number)))
            elif there and unique:
                model.add((key, id, value, number))
                given_rows += [("-U", (*there[0][:3], number)), ("+U", (key, id, value, number))]
            else:
                model.add((key, id, value, number))
                given_rows.append(("+I", (key, id, value, number)))
        if not ordered:
            given_rows.reverse()  # the sequence puts them right
        harness.push([row for _, row in given_rows], kinds=[kind for kind, _ in given_rows])
        rows = harness.end_batch()
        apply(shown, rows, updates_before)
        if unique:
            assert Counter(shown.values()) == model.newest()
        else:  # of rows that are equal but for their number another one may be taken back
            assert sorted(shown) == sorted(model.rows)
    leave = [row for rows in model.rows.values() for row in rows]
    harness.push(leave, kinds=["-D"] * len(leave))
    apply(shown, harness.end_batch(), updates_before)
    assert shown == {}
    assert harness.state_entries() == {}
    harness.close()


@given(
    changes=st.lists(st.tuples(st.integers(0, 4), st.sampled_from("xy")), max_size=16),
    unique=st.booleans(),
    cut=st.integers(0, 16),
    enabled=st.booleans(),
    size=st.sampled_from(["1", "3", "500000"]),
)
def test_without_a_sequence_the_order_of_arrival_decides(
    changes: Any, unique: bool, cut: int, enabled: bool, size: str
) -> None:
    """Also of a key with more rows than a bundle may have."""
    model = Model(unique)
    shown: dict[int, Row] = {}
    history: list[tuple[str, Row]] = []
    for id, value in changes:
        row = (1, id, value, 0)
        there = [other for other in model.rows.get(1, ()) if other[1] == id and (unique or other == row)]
        if there:
            model.remove(there[0])
            history.append(("-U" if unique and there[0] != row else "-D", there[0]))
        if not there or history[-1][0] == "-U":
            model.add(row)
            history.append(("+U" if there else "+I", row))
    with OperatorHarness(
        UpsertMaterialize(["id"] if unique else None),
        ROWS,
        ["k"],
        async_enabled=enabled,
        options={"async-state.bundle-size": size},
    ) as harness:
        for part in (history[:cut], history[cut:]):
            harness.push([row for _, row in part], kinds=[kind for kind, _ in part])
            apply(shown, harness.end_batch(), True)
        assert Counter(shown.values()) == model.newest()


def apply(shown: dict[int, Row], rows: list[tuple[Any, ...]], updates_before: bool) -> None:
    """Write the rows into a table by key, as a consumer would."""
    for kind, *values in rows:
        row = tuple(values)
        if kind in ("-U", "-D"):
            assert updates_before or kind == "-D"
            assert shown.pop(row[0]) == row
        else:
            assert updates_before <= (row[0] not in shown)
            shown[row[0]] = row


def test_rows_known_by_their_content(async_enabled: bool) -> None:
    with OperatorHarness(UpsertMaterialize(), ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 1, "a", 0), (1, 2, "b", 0), (1, 1, "a", 0)])
        assert harness.end_batch() == [("+I", 1, 1, "a", 0)]
        harness.push([(1, 1, "a", 0)], kinds=["-D"])  # the oldest one: the newest stays
        assert harness.end_batch() == []
        harness.push([(1, 1, "a", 0), (1, 3, "c", 0)], kinds=["-D", "-D"])
        assert harness.end_batch() == [("-U", 1, 1, "a", 0), ("+U", 1, 2, "b", 0)]
        assert harness.statistics()["counter.retractions_without_state"] == 1
        harness.push([(1, 2, "b", 0)], kinds=["-U"])
        assert harness.end_batch() == [("-D", 1, 2, "b", 0)]
        assert harness.state_entries() == {}


def test_rows_expire_one_by_one(async_enabled: bool) -> None:
    operator = UpsertMaterialize(["id"], ttl=StateTtl("10 seconds"))
    with OperatorHarness(operator, ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 1, "a", 0)])
        assert harness.end_batch() == [("+I", 1, 1, "a", 0)]
        harness.advance_processing_time(6_000_000)
        harness.push([(1, 2, "b", 0)])
        assert harness.end_batch() == [("-U", 1, 1, "a", 0), ("+U", 1, 2, "b", 0)]
        harness.advance_processing_time(6_000_000)
        harness.push([(1, 2, "b", 0)], kinds=["-D"])  # the row of 1 has expired by now
        assert harness.end_batch() == [("-D", 1, 2, "b", 0)]


def test_what_is_refused() -> None:
    with pytest.raises(SchemaError, match="UpsertMaterialize: upsert_key is 'id'; give a list"):
        UpsertMaterialize("id")
    with pytest.raises(SchemaError, match="UpsertMaterialize: input 0 has no key"):
        OperatorHarness(UpsertMaterialize(), ROWS, None)
    with pytest.raises(SchemaError, match="no column 'nobody'"):
        OperatorHarness(UpsertMaterialize(["nobody"]), ROWS, ["k"])
