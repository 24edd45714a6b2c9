"""Windows over distinct values and over functions of the user's own: what a loop over each window's rows gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import MapView
from asyncstate.functions import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegmentApplied,
    KeySegments,
    map_view,
)
from asyncstate.testing import OperatorHarness
from operators import (
    WindowAggregate,
    count,
    cumulate,
    hop,
    last_value,
    max_,
    min_,
    session,
    sum_,
    tumble,
    udaf,
)

MS = 1_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("flag", pa.bool_()), ("at", pa.timestamp("us"))])
LONG = pa.int64()


class CountDistinct(AggregateFunction):
    """With a view, so it cannot be merged here."""

    def create_accumulator(self) -> Any:
        return [0, MapView()]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if value is not None and value not in accumulator[1]:
            accumulator[0] += 1
            accumulator[1][value] = 1

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class Summed(AggregateFunction):
    """Without views; ``merges`` decides whether it has a method merge."""

    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator[0] += value or 0

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class Merged(Summed):
    def merge(self, accumulator: Any, accumulators: Any) -> None:
        for other in accumulators:
            accumulator[0] += other[0]


class Bundled(BundledAggregateFunction):
    def supports_merging(self) -> bool:
        return True

    def bundled_accumulate_retract(self, segments: KeySegments) -> Any:
        applied = []
        for segment in segments:
            total = sum(accumulator[0] for accumulator in segment.accumulators)
            after = total + sum(row[0] or 0 for row in segment.rows)
            applied.append(KeySegmentApplied([after], total, after))
        return applied


PLAIN: Any = {"result_type": LONG, "accumulator_type": pa.schema([("total", LONG)])}
VIEW: Any = {
    "result_type": LONG,
    "accumulator_type": pa.schema([pa.field("n", LONG), map_view("seen", LONG, LONG)]),
}
AGGREGATES = {
    "distinct": [
        count("v").distinct().alias("a"),
        count("v").distinct().where("flag").alias("b"),
        sum_("v").distinct().alias("c"),
        count().alias("n"),
    ],
    "view": [udaf(CountDistinct, **VIEW)("v").alias("a"), count().alias("n")],
    "no merge": [udaf(Summed, **PLAIN)("v").alias("a"), udaf(Bundled, **PLAIN)("v").alias("b")],
    "merge": [udaf(Merged, **PLAIN)("v").alias("a"), udaf(Bundled, **PLAIN)("v").where("flag").alias("b")],
    "kept": [last_value("v").alias("a"), count("v").distinct().alias("b")],
}


def expected(name: str, rows: Sequence[Any]) -> tuple[Any, ...]:
    values = [row[1] for row in rows if row[1] is not None]
    flagged = [row[1] for row in rows if row[1] is not None and row[2]]
    if name == "distinct":
        return len(set(values)), len(set(flagged)), sum(set(values)) if values else None, len(rows)
    if name == "view":
        return len(set(values)), len(rows)
    if name == "no merge":
        return sum(values), sum(values)
    if name == "merge":
        return sum(values), sum(flagged)
    return values[-1] if values else None, len(set(values))


WINDOWS = {
    "tumble": tumble(4 * MS),
    "hop": hop(6 * MS, 2 * MS),
    "cumulate": cumulate(6 * MS, 2 * MS),
    "session": session(2 * MS),
}


def windows_of(name: str, rows: Sequence[Any]) -> list[tuple[int, int, list[Any]]]:
    """(start, end, rows) of one key, times in microseconds."""
    if name == "session":
        found: list[tuple[int, int, list[Any]]] = []
        for row in sorted(rows, key=lambda row: row[3]):
            if found and row[3] <= found[-1][1]:
                start, _, held = found[-1]
                found[-1] = (start, row[3] + 2 * MS, [*held, row])
            else:
                found.append((row[3], row[3] + 2 * MS, [row]))
        return found
    ends: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        for bounds in _bounds(name, row[3]):
            ends.setdefault(bounds, []).append(row)
    return [(*bounds, held) for bounds, held in sorted(ends.items())]


def _bounds(name: str, time: int) -> list[tuple[int, int]]:
    if name == "tumble":
        start = time // (4 * MS) * 4 * MS
        return [(start, start + 4 * MS)]
    if name == "hop":
        first = time // (2 * MS) * 2 * MS
        return [(first - back * 2 * MS, first - back * 2 * MS + 6 * MS) for back in range(3)]
    start = time // (6 * MS) * 6 * MS
    return [(start, end) for end in range(start + 2 * MS, start + 6 * MS + 1, 2 * MS) if end > time]


ROW = st.tuples(
    st.sampled_from("ab"),
    st.none() | st.integers(0, 3),
    st.none() | st.booleans(),
    st.integers(0, 15).map(lambda ms: ms * MS),
)


@settings(deadline=None)
@given(
    rows=st.lists(ROW, max_size=14),
    marks=st.lists(st.integers(0, 16), max_size=3).map(sorted),
    window=st.sampled_from(list(WINDOWS)),
    name=st.sampled_from(list(AGGREGATES)),
    bundle=st.sampled_from(["1", "100"]),
    async_enabled=st.booleans(),
)
def test_windows_are_those_of_a_loop(
    rows: Any, marks: Any, window: str, name: str, bundle: str, async_enabled: bool
) -> None:
    """No row is late: those that a watermark passes have come before it."""
    operator = WindowAggregate(WINDOWS[window], AGGREGATES[name])
    found: list[Any] = []
    rows = sorted(rows, key=lambda row: row[3])
    options = {"async-state.bundle-size": bundle}
    with OperatorHarness(
        operator,
        SCHEMA,
        ["k"],
        event_time="at",
        watermark_delay=10**9,
        changelog=False,
        async_enabled=async_enabled,
        options=options,
    ) as harness:
        left = list(rows)
        for mark in marks:
            due = [row for row in left if row[3] <= mark * MS]
            left = left[len(due) :]
            harness.push(due)
            harness.advance_watermark(mark * MS)
            found += harness.end_batch()
        harness.push(left)
        found += harness.finish()
        assert harness.state_entries() == {}
    wanted = [
        ("+I", key, start, end, end - MS, *expected(name, held))
        for key in "ab"
        for start, end, held in windows_of(window, [row for row in rows if row[0] == key])
    ]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_distinct_values_of_a_changelog(async_enabled: bool) -> None:
    operator = WindowAggregate(hop(4 * MS, 2 * MS), [count("v").distinct().alias("n")])
    with OperatorHarness(
        operator, SCHEMA, ["k"], event_time="at", watermark_delay=0, async_enabled=async_enabled
    ) as harness:
        harness.push([("a", 1, True, 0), ("a", 1, True, 3 * MS), ("a", 2, True, 3 * MS)])
        assert harness.end_batch() == []
        harness.push([("a", 1, True, 3 * MS)], kinds=["-D"])
        found = [row[2:4] + row[5:] for row in harness.finish()]
        assert found == [(-2 * MS, 2 * MS, 1), (0, 4 * MS, 2), (2 * MS, 6 * MS, 1)]
        assert harness.state_entries() == {}


OVER_CHANGELOGS = [
    count("v").distinct().alias("different"),
    sum_("v").where("flag").distinct().alias("flagged"),
    min_("v"),
    max_("v"),
    udaf(Summed, **PLAIN)("v").alias("plain"),
    udaf(CountDistinct, **VIEW)("v").alias("view"),
    count().alias("n"),
]


@settings(deadline=None)
@given(
    rows=st.lists(ROW, max_size=12),
    cuts=st.lists(st.integers(0, 5), max_size=3),
    taken=st.lists(st.integers(0, 99), max_size=8),
    async_enabled=st.booleans(),
)
def test_sessions_over_a_changelog_have_what_is_left(
    rows: Any, cuts: Any, taken: Any, async_enabled: bool
) -> None:
    """A row that has gone still holds its session together; a session without rows gives none."""
    operator = WindowAggregate(session(2 * MS), OVER_CHANGELOGS)
    there, found, left = [], [], list(rows)
    with OperatorHarness(
        operator, SCHEMA, ["k"], event_time="at", changelog=True, async_enabled=async_enabled
    ) as harness:
        for number, size in enumerate([*cuts, len(rows)]):
            part, left = left[:size], left[size:]
            there += part
            gone = [there.pop(taken.pop() % len(there)) for _ in range(2) if taken and there]
            harness.push([*part, *gone], kinds=["+I"] * len(part) + ["-D"] * len(gone))
            assert harness.end_batch() == []
            if number == 1:
                harness = harness.restore(harness.snapshot(), parallelism=2)
        found = [row[1:4] + row[5:] for row in harness.finish()]
        harness.close()
    wanted = []
    for key in {row[0] for row in rows}:
        for start, end, _ in windows_of("session", [row for row in rows if row[0] == key]):
            mine = [row for row in there if row[0] == key and start <= row[3] < end]
            values = [row[1] for row in mine if row[1] is not None]
            flagged = [row[1] for row in mine if row[1] is not None and row[2]]
            if mine:
                shown = (
                    len(set(values)),
                    sum(set(flagged)) if flagged else None,
                    min(values, default=None),
                    max(values, default=None),
                    sum(values),
                    len(set(values)),
                    len(mine),
                )
                wanted.append((key, start, end, *shown))
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_processing_time(async_enabled: bool) -> None:
    operator = WindowAggregate(hop(4 * MS, 2 * MS), [count("v").distinct().alias("n")], time="processing")
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        begin = harness.clock.now_us()
        harness.push([("a", 1, True, 0), ("a", 1, True, 0), ("a", 2, True, 0)])
        found = harness.end_batch()
        harness.advance_processing_time(2 * MS)
        harness.push([("a", 2, True, 0), ("a", 3, True, 0)])
        found += harness.end_batch()
        harness.advance_processing_time(20 * MS)
        found += harness.end_batch()
        assert [row[5] for row in found] == [2, 3, 2]
        assert all(row[2] <= begin + 2 * MS < row[3] + 4 * MS for row in found)
        assert harness.state_entries() == {}
