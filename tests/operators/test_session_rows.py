"""WindowTableFunction over sessions: each row with its session, once that is over, whatever the cut and the mode."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import (
    GroupAggregate,
    WindowDeduplicate,
    WindowJoin,
    WindowRank,
    WindowTableFunction,
    count,
    session,
)

MS = 1_000
GAP = 10 * MS
TIME = pa.timestamp("us")
ROWS = pa.schema([("k", pa.int64()), ("at", TIME), ("id", pa.int64())])


class Row(NamedTuple):
    k: int | None
    at: int


def harness(**settings: Any) -> OperatorHarness:
    return OperatorHarness(
        WindowTableFunction(session(GAP)),
        ROWS,
        ["k"],
        **{"event_time": "at", "max_parallelism": 4, "changelog": False, **settings},
    )


class Model:
    """Sessions as sets of rows; one is over when the watermark has reached its end - 1."""

    def __init__(self) -> None:
        self.open: dict[int | None, list[list[tuple[int, int]]]] = {}
        self.late = 0
        self._passed: int | None = None

    def batch(self, rows: list[tuple[int | None, int, int]], watermark: int) -> list[tuple[Any, ...]]:
        """What is over at the end of a micro-batch, in no order."""
        for key, at, number in rows:
            mine = [(at, number)]
            others = []
            for known in self.open.get(key, []):
                starts, ends = min(known)[0], max(known)[0] + GAP
                lowest, highest = min(mine)[0], max(mine)[0] + GAP
                if starts <= highest and lowest <= ends:
                    mine += known
                else:
                    others.append(known)
            self.open[key] = [*others, mine]
        out = []
        for key, known_sessions in self.open.items():
            kept = []
            for known in known_sessions:
                start, end = min(known)[0], max(known)[0] + GAP
                if end - 1 > watermark:
                    kept.append(known)
                elif self._passed is not None and end - 1 <= self._passed:
                    self.late += len(known)
                else:
                    out += [("+I", key, at, number, start, end, end - 1_000) for at, number in known]
            self.open[key] = kept
        self._passed = watermark
        return out


def times(last: int) -> st.SearchStrategy[int]:
    return st.integers(0, last).map(lambda ms: ms * MS)


CUTS = st.lists(
    st.tuples(
        st.lists(st.builds(Row, st.sampled_from([None, 0, 1, 2]), times(80)), max_size=8),
        times(30),
        st.sampled_from([1, 1, 2, 3]),
    ),
    min_size=1,
    max_size=5,
)


@given(CUTS, st.sampled_from(["1", "3", "500000"]))
@settings(max_examples=settings().max_examples // 2)
def test_rows_come_with_their_session_when_it_is_over(async_enabled: bool, cuts: Any, size: str) -> None:
    """Late sessions are those of the micro-batch as a whole, so they do not depend on bundles."""
    model, number, watermark, late = Model(), 0, 0, 0.0
    runner = harness(async_enabled=async_enabled, options={"async-state.bundle-size": size})
    for rows, step, parallelism in cuts:
        if parallelism != runner.parallelism:
            with runner as before:
                runner = before.restore(before.snapshot(), parallelism=parallelism)
        watermark += step
        pushed = [(row.k, row.at, number + place) for place, row in enumerate(rows)]
        number += len(rows)
        for row in pushed:
            runner.push([row])
        runner.advance_watermark(watermark)
        assert sorted(runner.end_batch(), key=repr) == sorted(model.batch(pushed, watermark), key=repr)
        late += runner.statistics().get("counter.late_rows", 0)
    with runner:
        assert sorted(runner.finish(), key=repr) == sorted(model.batch([], 2**62), key=repr)
        assert runner.state_entries() == {}
    assert late == model.late


def test_rows_of_a_key_come_by_session_and_time(async_enabled: bool) -> None:
    with harness(async_enabled=async_enabled) as runner:
        runner.push([(1, 40 * MS, 0), (1, 5 * MS, 1), (1, 0, 2), (1, 5 * MS, 3)])
        assert [row[1:6] for row in runner.finish()] == [
            (1, 0, 2, 0, 15 * MS),
            (1, 5 * MS, 1, 0, 15 * MS),
            (1, 5 * MS, 3, 0, 15 * MS),
            (1, 40 * MS, 0, 40 * MS, 50 * MS),
        ]


def test_in_processing_time_a_session_ends_with_the_gap(async_enabled: bool) -> None:
    with OperatorHarness(
        WindowTableFunction(session(GAP), time="processing"),
        ROWS,
        ["k"],
        changelog=False,
        async_enabled=async_enabled,
    ) as runner:
        runner.push([(1, 0, 0)])
        assert runner.end_batch() == []
        runner.advance_processing_time(9 * MS)
        runner.push([(1, 0, 1)])
        assert runner.end_batch() == []
        runner.advance_processing_time(10 * MS)
        assert [row[3:6] for row in runner.end_batch()] == [(0, 0, 19 * MS), (1, 0, 19 * MS)]
        assert runner.state_entries() == {}


def test_many_rows_are_read_some_keys_at_a_time(async_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operators.window.session_rows.PART_ROWS", 7)
    with harness(async_enabled=async_enabled) as runner:
        rows = [(key, at, key * 10 + at) for key in range(20) for at in range(3)]
        runner.push(rows)
        runner.push([(key, 100 * MS, 1_000) for key in range(0, 20, 3)])
        runner.advance_watermark(50 * MS)
        assert sorted(row[1:4] for row in runner.end_batch()) == rows
        assert sorted(row[1] for row in runner.finish()) == list(range(0, 20, 3))
        assert runner.state_entries() == {}


def test_an_aggregate_takes_the_rows(async_enabled: bool) -> None:
    with harness(async_enabled=async_enabled) as runner:
        runner.push([(1, 0, 0), (1, 5 * MS, 1), (1, 40 * MS, 2)])
        rows = [row[1:] for row in runner.finish()]
        schema = runner.output_schema
    with OperatorHarness(
        GroupAggregate([count().alias("n")]), schema, ["k", "window_start"], async_enabled=async_enabled
    ) as counts:
        counts.push(rows)
        assert sorted(counts.end_batch()) == [("+I", 1, 0, 2), ("+I", 1, 40 * MS, 1)]


def test_a_subclass_of_its_own_is_not_the_one_for_sessions() -> None:
    class Mine(WindowTableFunction):
        """A name of its own."""

    with pytest.raises(SchemaError, match=r"WindowTableFunction: window is session\('1 second'\)"):
        Mine(session("1 second"))


@pytest.mark.parametrize("operator", [WindowRank("id", 1), WindowDeduplicate("first")])
def test_window_operators_take_the_rows(async_enabled: bool, operator: Any) -> None:
    with harness(async_enabled=async_enabled) as runner:
        runner.push([(1, 0, 0), (1, 5 * MS, 1), (2, 40 * MS, 2), (1, 40 * MS, 3)])
        rows = [row[1:] for row in runner.finish()]
        schema = runner.output_schema
    with OperatorHarness(
        operator, schema, ["k"], event_time="at", changelog=False, async_enabled=async_enabled
    ) as first:
        first.push(rows)
        assert sorted(row[1:4] for row in first.finish()) == [(1, 0, 0), (1, 40 * MS, 3), (2, 40 * MS, 2)]


def test_a_window_join_takes_the_rows(async_enabled: bool) -> None:
    with harness(async_enabled=async_enabled) as runner:
        runner.push([(1, 0, 0), (1, 5 * MS, 1), (1, 40 * MS, 2)])
        rows = [row[1:] for row in runner.finish()]
        schema = runner.output_schema
    with OperatorHarness(
        WindowJoin(), [schema] * 2, [["k"]] * 2, event_time="at", changelog=False, async_enabled=async_enabled
    ) as joined:
        joined.push(rows, 0)
        joined.push(rows, 1)
        assert sorted((row[3], row[9]) for row in joined.finish()) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[bool, tuple[Any, ...]]]:
    """Rows that come (True) and some of them go again; equal ones are there several times."""
    rows = draw(st.lists(st.tuples(st.sampled_from([None, 0, 1]), times(60), st.integers(0, 1)), max_size=14))
    history = [(True, row) for row in rows]
    for row in draw(st.lists(st.sampled_from(rows), max_size=6, unique_by=id)) if rows else []:
        came = history.index((True, row))
        goes = sum(there == (False, row) for there in history)
        if goes < sum(there == (True, row) for there in history[: came + 1]):
            history.insert(draw(st.integers(came + 1, len(history))), (False, row))
    return history


@given(
    histories(), st.integers(1, 9), st.sampled_from(["1", "3", "500000"]), st.booleans(), st.integers(1, 3)
)
@settings(max_examples=settings().max_examples // 2)
def test_what_is_left_of_a_changelog_comes_with_its_session(
    history: Any, cut: int, size: str, enabled: bool, parallelism: int
) -> None:
    """A row that has gone still holds its session together."""
    came: dict[Any, list[int]] = {}
    for there, (key, at, _) in history:
        if there:
            came.setdefault(key, []).append(at)
    expected: Counter[tuple[Any, ...]] = Counter()
    for there, row in history:
        start = end = row[1]
        for at in sorted(came[row[0]], reverse=True):
            start = at if at <= start <= at + GAP else start
        for at in sorted(came[row[0]]):
            end = at if at - GAP <= end <= at else end
        expected["+I", *row, start, end + GAP, end + GAP - 1_000] += 1 if there else -1
    runner = harness(changelog=True, async_enabled=enabled, options={"async-state.bundle-size": size})
    for first in range(0, len(history), cut):
        if first == cut:
            with runner as before:
                runner = before.restore(before.snapshot(), parallelism=parallelism)
        for there, row in history[first : first + cut]:
            runner.push([row], kind="+I" if there else "-D")
        assert runner.end_batch() == []
        assert not runner.statistics().get("counter.retractions_without_state", 0)
    with runner:
        assert Counter(runner.finish()) == +expected
        assert runner.state_entries() == {}


def test_retractions_of_rows_that_are_not_there_are_counted(async_enabled: bool) -> None:
    with harness(changelog=True, async_enabled=async_enabled) as runner:
        runner.push([(1, 0, 0), (1, 5 * MS, 1)])
        runner.push([(1, 5 * MS, 2), (1, 50 * MS, 3), (2, 0, 0)], kind="-D")
        runner.end_batch()
        assert runner.statistics()["counter.retractions_without_state"] == 3
        assert [row[1:6] for row in runner.finish()] == [(1, 0, 0, 0, 15 * MS), (1, 5 * MS, 1, 0, 15 * MS)]


def test_in_processing_time_a_changelog_is_refused() -> None:
    function = WindowTableFunction(session(GAP), time="processing")
    with pytest.raises(
        SchemaError,
        match="WindowTableFunction: input 0 is a changelog, but WindowTableFunction does not accept",
    ):
        OperatorHarness(function, ROWS, ["k"], changelog=True)
