"""Deduplicate on the harness: which row of a key it keeps, what it emits, that modes and stores agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import RETRACT
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import InputSpec
from asyncstate.testing import OperatorHarness
from operators import Deduplicate
from operators.core.segments import Groups
from operators.upsert.deduplicate import extreme_rows

SCHEMA = pa.schema([("v", pa.string()), ("k", pa.string()), ("ts", pa.timestamp("us"))])
Row = tuple[Any, ...]


@pytest.fixture
def open_harness(async_enabled: bool) -> Iterator[Any]:
    opened: list[OperatorHarness] = []

    def open_one(operator: Deduplicate, schema: pa.Schema = SCHEMA, **options: Any) -> OperatorHarness:
        settings_of_test = {"key": ["k"], "event_time": "ts", **options}
        harness = OperatorHarness(operator, schema, async_enabled=async_enabled, **settings_of_test)
        opened.append(harness)
        return harness

    yield open_one
    for harness in opened:
        harness.close()


def test_first_by_event_time(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="first", time="event"))
    harness.push([("v1", "b", 20), ("v2", "a", 10), ("v3", "b", 15), ("v4", "b", 15)])
    assert harness.end_batch() == [("+I", "v3", "b", 15), ("+I", "v2", "a", 10)]
    harness.push([("v5", "b", 15), ("v6", "a", 11)])
    assert harness.end_batch() == []
    harness.push([("v7", "c", 1), ("v8", "b", 14)])
    assert harness.end_batch() == [("+I", "v7", "c", 1), ("-U", "v3", "b", 15), ("+U", "v8", "b", 14)]


def test_last_by_event_time(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="last", time="event"))
    harness.push([("v1", "b", 20), ("v2", "a", 10), ("v3", "b", 15), ("v4", "b", 20)])
    assert harness.end_batch() == [("+I", "v4", "b", 20), ("+I", "v2", "a", 10)]
    harness.push([("v5", "b", 19), ("v6", "a", 10)])
    assert harness.end_batch() == [("-U", "v2", "a", 10), ("+U", "v6", "a", 10)]
    harness.push([("v6", "a", 10)])
    assert harness.end_batch() == []


def test_first_by_arrival_keeps_a_mark_only(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="first", time="processing"))
    harness.push([("v1" * 500, "b", 20), ("v2", "a", 10), ("v3", "b", 5)])
    assert harness.end_batch() == [("+I", "v1" * 500, "b", 20), ("+I", "v2", "a", 10)]
    harness.push([("v4", "b", 1), ("v5", None, 3), ("v6", None, 3)])
    assert harness.end_batch() == [("+I", "v5", None, 3)]
    stored = harness.state_entries()
    assert len(stored) == 3
    assert max(map(len, stored.values())) <= 8
    harness.push([("v4", "b", 1)])
    assert harness.end_batch() == []
    assert harness.statistics()["delta_bytes"] == 0


def test_last_by_arrival(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="last", time="processing"), event_time=None)
    harness.push([("v1", "b", 20), ("v2", "a", 10), ("v3", "b", 15)])
    assert harness.end_batch() == [("+I", "v3", "b", 15), ("+I", "v2", "a", 10)]
    harness.push([("v4", "b", 1), ("v2", "a", 10)])
    assert harness.end_batch() == [("-U", "v3", "b", 15), ("+U", "v4", "b", 1)]


def test_without_update_before(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="last", emit_update_before=False))
    harness.push([("v1", "b", 20)])
    assert harness.end_batch() == [("+I", "v1", "b", 20)]
    harness.push([("v2", "b", 21)])
    assert harness.end_batch() == [("+U", "v2", "b", 21)]


def test_rows_without_an_event_time_are_dropped_and_counted(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="last"))
    harness.push([("v1", "b", None), ("v2", "b", 3), ("v3", "a", None)])
    assert harness.end_batch() == [("+I", "v2", "b", 3)]
    assert harness.statistics()["counter.null_event_times"] == 2


def test_rows_that_are_all_key(open_harness: Any) -> None:
    harness = open_harness(Deduplicate(keep="last"), key=["k", "v", "ts"])
    harness.push([("v", "b", 1), ("v", "b", 1), ("w", "b", 1)])
    assert harness.end_batch() == [("+I", "v", "b", 1), ("+I", "w", "b", 1)]
    harness.push([("v", "b", 1), ("v", "b", 2)])
    assert harness.end_batch() == [("+I", "v", "b", 2)]


@pytest.mark.parametrize(("keep", "kept"), [("first", "v1"), ("last", "v3")])
def test_event_time_as_part_of_the_key(open_harness: Any, keep: Literal["first", "last"], kept: str) -> None:
    harness = open_harness(Deduplicate(keep=keep), key=["ts", "k"])
    harness.push([("v1", "b", 1)])
    harness.end_batch()
    harness.push([("v2", "b", 1), ("v3", "b", 1)])
    output = harness.end_batch()
    assert output == ([] if keep == "first" else [("-U", "v1", "b", 1), ("+U", kept, "b", 1)])


def test_nested_columns_and_other_time_units(open_harness: Any) -> None:
    schema = pa.schema(
        [("k", pa.int64()), ("ts", pa.timestamp("ms", "UTC")), ("items", pa.list_(pa.int64()))]
    )
    harness = open_harness(Deduplicate(keep="last"), schema)
    harness.push([(1, 5, [1, 2])])
    assert harness.end_batch() == [("+I", 1, 5, [1, 2])]
    harness.push([(1, 5, [1, 2])])
    assert harness.end_batch() == []
    harness.push([(1, 5, [1])])
    assert harness.end_batch() == [("-U", 1, 5, [1, 2]), ("+U", 1, 5, [1])]
    harness.push([(1, 4, None)])
    assert harness.end_batch() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), min_size=1, max_size=30), st.booleans())
def test_extreme_rows(rows: list[tuple[int, int]], last: bool) -> None:
    ids = sorted({group for group, _ in rows})
    groups = Groups.of_ids(np.array([ids.index(group) for group, _ in rows]), len(ids))
    expected = []
    for group in ids:
        mine = [(time, row) for row, (other, time) in enumerate(rows) if other == group]
        expected.append(max(mine)[1] if last else min(mine)[1])
    times = np.array([time for _, time in rows], np.int64)
    assert extreme_rows(times, groups, last).tolist() == expected


def kept_rows(rows: list[Row], keep: str, time: str) -> dict[Any, Row]:
    """One row at a time, by Flink's comparisons: last replaces on prev <= new, first on new < prev."""
    table: dict[Any, Row] = {}
    for row in rows:
        before = table.get(row[1])
        if before is None:
            table[row[1]] = row
        elif time == "processing":
            table[row[1]] = row if keep == "last" else before
        elif (before[2] <= row[2]) if keep == "last" else (row[2] < before[2]):
            table[row[1]] = row
    return table


BATCHES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["x", "y", None]), st.sampled_from(["a", "b", None]), st.integers(0, 4)),
        min_size=5,
        max_size=40,
    ),
    min_size=3,
    max_size=3,
)


@settings(max_examples=4)  # an example is six micro-batches, each opens and commits a store
@given(
    keep=st.sampled_from(["first", "last"]), time=st.sampled_from(["event", "processing"]), batches=BATCHES
)
def test_netted_output_is_the_row_kept(
    keep: Literal["first", "last"], time: Literal["event", "processing"], batches: list[list[Row]]
) -> None:
    """Both modes emit the same and store the same bytes; the state goes on at other parallelisms."""
    harnesses = [
        OperatorHarness(Deduplicate(keep, time), SCHEMA, ["k"], event_time="ts", async_enabled=enabled)
        for enabled in (False, True)
    ]
    rows: list[Row] = []
    table: dict[Any, Row] = {}
    for index, batch in enumerate(batches):
        if index == 2:
            harnesses[1] = harnesses[1].restore(harnesses[1].snapshot(), parallelism=3)
        rows += batch
        for harness in harnesses:
            harness.push(batch)
        outputs = [harness.end_batch() for harness in harnesses]
        assert sorted(map(repr, outputs[0])) == sorted(map(repr, outputs[1]))
        if index < 2:
            assert outputs[0] == outputs[1]
        for kind, *values in outputs[0]:
            if kind == "-U":
                assert table.pop(values[1]) == tuple(values)
            else:
                assert values[1] not in table
                table[values[1]] = tuple(values)
        assert table == kept_rows(rows, keep, time)
        assert harnesses[0].state_entries() == harnesses[1].state_entries()
    for harness in harnesses:
        harness.close()


@pytest.mark.parametrize("keep", ["first", "last"])
def test_modes_agree_byte_by_byte(keep: Literal["first", "last"]) -> None:
    results = []
    for enabled in (False, True):
        with OperatorHarness(
            Deduplicate(keep), SCHEMA, ["k"], event_time="ts", async_enabled=enabled
        ) as harness:
            for batch in range(2):
                harness.push([(f"v{n}", str(n % 11), n * (7919, 6007)[batch] % 997 + 1) for n in range(300)])
                harness.end_batch()
            results.append((harness.output, harness.state_entries()))
    assert len(results[0][0]) > 11
    assert all(result == results[0] for result in results)


def test_wrong_declarations() -> None:
    with pytest.raises(SchemaError, match="keep is 'newest'; choose 'first' or 'last'"):
        Deduplicate(keep="newest")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="time is 'row'; choose"):
        Deduplicate(time="row")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="needs an event time but input declares none"):
        Deduplicate().bind([InputSpec(SCHEMA, ("k",))])
    with pytest.raises(SchemaError, match="is a changelog, but .* does not accept retractions"):
        Deduplicate().bind([InputSpec(SCHEMA, ("k",), "ts", changes=RETRACT)])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Deduplicate("first"), Deduplicate("last")),
        (Deduplicate("last"), Deduplicate("first")),
        (Deduplicate("last", "processing"), Deduplicate("last")),
    ],
)
def test_another_choice_is_refused(
    before: Deduplicate, after: Deduplicate, open_harness: Any, tmp_path: Any
) -> None:
    """The stored row is not the one that the other choice would have kept of those that have gone by."""
    harness = open_harness(before, folder=tmp_path)
    harness.push([("v1", "b", 20), ("v2", "b", 30), ("v3", "b", 10)])
    harness.end_batch()
    with pytest.raises(
        StateDeclarationError, match="another program wrote its state: (keep|time) was .* and is "
    ):
        open_harness(after, folder=tmp_path)
