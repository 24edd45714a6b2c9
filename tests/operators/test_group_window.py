"""GroupWindowAggregate: early and late rows of windows of time, and windows of rows; beside a loop over all rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.functions import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegmentApplied,
    KeySegments,
)
from asyncstate.testing import OperatorHarness, net
from operators import (
    GroupWindowAggregate,
    WindowAggregate,
    count,
    count_hop,
    count_tumble,
    cumulate,
    hop,
    last_value,
    max_,
    session,
    sum_,
    tumble,
    udaf,
)
from tests.examples import at_most

MS = 1_000
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
AGGREGATES = (count().alias("n"), sum_("v").alias("sum"))


@pytest.fixture(autouse=True)
def parts_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a bundle get their windows in many parts."""
    monkeypatch.setattr("operators.window.counts.ASSIGNED_ROWS", 3)


def harness_of(operator: Any, async_enabled: bool, **more: Any) -> OperatorHarness:
    settings_ = {"event_time": "at", "watermark_delay": 0, "changelog": False, **more}
    return OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **settings_)


def restarted(harness: OperatorHarness, **changes: Any) -> OperatorHarness:
    """The same operator over what it has committed."""
    saved = harness.snapshot()
    harness.close()
    return harness.restore(saved, **changes)


def short(rows: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Kind, key, start and end in ms, aggregates."""
    return [(row[0], row[1], row[2] // MS, row[3] // MS, *row[5:]) for row in rows]


def step(harness: OperatorHarness, rows: Any, watermark: int | None = None) -> list[tuple[Any, ...]]:
    """A micro-batch of rows (key, value, ms); the watermark in ms at its end."""
    harness.push([(k, v, at * MS) for k, v, at in rows])
    if watermark is not None:
        harness.advance_watermark(watermark * MS)
    return short(harness.end_batch())


def test_a_window_is_shown_early_and_taken_back(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(tumble("10 milliseconds"), AGGREGATES, early="1 second")
    with harness_of(operator, async_enabled) as harness:
        assert step(harness, [("a", 1, 1), ("b", 5, 2)]) == []
        harness.advance_processing_time(999_999)
        assert step(harness, [("a", 2, 3)]) == []
        harness.advance_processing_time(1)
        # The change of the first row has waited for a second; it shows all rows of its micro-batch.
        assert step(harness, [("a", 4, 4)]) == [("+I", "a", 0, 10, 3, 7), ("+I", "b", 0, 10, 1, 5)]
        harness.advance_processing_time(5_000_000)
        assert step(harness, []) == []
        assert step(harness, [("a", 8, 5)]) == []
        assert step(harness, [], watermark=20) == [("-U", "a", 0, 10, 3, 7), ("+U", "a", 0, 10, 4, 15)]
        assert harness.state_entries() == {}
        harness.advance_processing_time(5_000_000)
        assert step(harness, []) == []


def test_early_at_once_and_without_updates_before(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(
        hop("10 milliseconds", "5 milliseconds"), AGGREGATES, early=0, emit_update_before=False
    )
    with harness_of(operator, async_enabled) as harness:
        assert step(harness, [("a", 1, 1)]) == [("+I", "a", -5, 5, 1, 1), ("+I", "a", 0, 10, 1, 1)]
        assert step(harness, [("a", 1, 6), ("a", 1, 7)]) == [
            ("+U", "a", 0, 10, 3, 3),
            ("+I", "a", 5, 15, 2, 2),
        ]
        assert step(harness, [], watermark=100) == []
        assert harness.state_entries() == {}


def test_late_rows_within_the_allowed_lateness(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(tumble("10 milliseconds"), AGGREGATES, allowed_lateness="10 milliseconds")
    with harness_of(operator, async_enabled) as harness:
        assert step(harness, [("a", 1, 1)], watermark=12) == [("+I", "a", 0, 10, 1, 1)]
        # A late row is shown with its micro-batch; so is one whose window had no rows.
        assert step(harness, [("a", 2, 2), ("b", 3, 3)]) == [
            ("-U", "a", 0, 10, 1, 1),
            ("+U", "a", 0, 10, 2, 3),
            ("+I", "b", 0, 10, 1, 3),
        ]
        assert step(harness, [("a", 4, 4)], watermark=20) == [
            ("-U", "a", 0, 10, 2, 3),
            ("+U", "a", 0, 10, 3, 7),
        ]
        assert harness.state_entries() == {}
        assert step(harness, [("a", 8, 5)]) == []
        assert harness.statistics()["counter.late_rows"] == 1


@pytest.mark.parametrize("window", [tumble("10 milliseconds"), hop("10 milliseconds", "5 milliseconds")])
def test_rows_of_windows_that_have_expired_go_to_their_output(window: Any, async_enabled: bool) -> None:
    lateness = {"allowed_lateness": "10 milliseconds", "late_output": "late"}
    with harness_of(GroupWindowAggregate(window, AGGREGATES, **lateness), async_enabled) as harness:
        step(harness, [("a", 1, 1)], watermark=40)
        step(harness, [("a", 2, 2), ("b", 3, 50)])
        assert harness.side_output("late") == [("+I", "a", 2, 2 * MS)]
        assert harness.statistics()["counter.late_rows"] == 1
    late = GroupWindowAggregate(count_tumble(1), AGGREGATES, late_output="late")
    with harness_of(late, async_enabled) as harness:
        step(harness, [("a", 1, 5)], watermark=6)
        assert step(harness, [("a", 2, 2)], watermark=9) == []
        assert harness.side_output("late") == [("+I", "a", 2, 2 * MS)]


def test_late_rows_wait_for_their_delay_and_are_not_lost(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(
        tumble("10 milliseconds"), AGGREGATES, allowed_lateness="10 milliseconds", late="1 second"
    )
    with harness_of(operator, async_enabled) as harness:
        assert step(harness, [("a", 1, 1)], watermark=12) == [("+I", "a", 0, 10, 1, 1)]
        assert step(harness, [("a", 2, 2)]) == []
        harness.advance_processing_time(1_000_000)
        assert step(harness, []) == [("-U", "a", 0, 10, 1, 1), ("+U", "a", 0, 10, 2, 3)]
        assert step(harness, [("a", 4, 2)]) == []
        # The window expires before the delay has passed.
        assert step(harness, [], watermark=40) == [("-U", "a", 0, 10, 2, 3), ("+U", "a", 0, 10, 3, 7)]
        assert harness.state_entries() == {}


def test_a_session_that_grows_is_another_row(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(session("5 milliseconds"), AGGREGATES, early=0)
    with harness_of(operator, async_enabled) as harness:
        assert step(harness, [("a", 1, 10), ("a", 2, 20)]) == [
            ("+I", "a", 10, 15, 1, 1),
            ("+I", "a", 20, 25, 1, 2),
        ]
        found = step(harness, [("a", 4, 15)])
        assert sorted(found) == [
            ("+I", "a", 10, 25, 3, 7),
            ("-D", "a", 10, 15, 1, 1),
            ("-D", "a", 20, 25, 1, 2),
        ]
        # Only its start moves.
        assert step(harness, [("a", 8, 8)]) == [("-D", "a", 10, 25, 3, 7), ("+I", "a", 8, 25, 4, 15)]
        assert step(harness, [], watermark=100) == []
        assert harness.state_entries() == {}


def test_a_session_that_was_shown_and_grows_does_not_wait(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(session("5 milliseconds"), AGGREGATES, early="1 second")
    with harness_of(operator, async_enabled) as harness:
        assert step(harness, [("a", 1, 10)]) == []
        harness.advance_processing_time(1_000_000)
        assert step(harness, []) == [("+I", "a", 10, 15, 1, 1)]
        assert sorted(step(harness, [("a", 1, 12)])) == [("+I", "a", 10, 17, 2, 2), ("-D", "a", 10, 15, 1, 1)]
        assert step(harness, [("a", 1, 13)], watermark=100) == [
            ("-D", "a", 10, 17, 2, 2),
            ("+I", "a", 10, 18, 3, 3),
        ]
        assert harness.state_entries() == {}


def test_a_change_does_not_wait_longer_because_its_session_grows(async_enabled: bool) -> None:
    early = GroupWindowAggregate(session("5 milliseconds"), AGGREGATES, early="1 second")
    with harness_of(early, async_enabled) as harness:
        assert step(harness, [("a", 1, 10)]) == []
        harness.advance_processing_time(600_000)
        assert step(harness, [("a", 2, 12)]) == []
        harness.advance_processing_time(400_000)
        assert step(harness, [("a", 4, 15)]) == [("+I", "a", 10, 20, 3, 7)]
    late = GroupWindowAggregate(
        session("5 milliseconds"), AGGREGATES, allowed_lateness="1 second", late="1 second"
    )
    with harness_of(late, async_enabled) as harness:
        assert step(harness, [], watermark=88) == []
        assert step(harness, [("a", 1, 10), ("a", 1, 80)]) == []
        harness.advance_processing_time(1_000_000)
        found = step(harness, [("a", 2, 12), ("a", 2, 85)])
        assert found == [("+I", "a", 10, 17, 2, 3)]  # the other one is not over any more
        assert step(harness, [], watermark=91) == [("+I", "a", 80, 90, 2, 3)]


@pytest.mark.parametrize("window", [tumble("10 milliseconds"), session("10 milliseconds")])
def test_a_window_that_loses_its_rows_is_taken_back(window: Any, async_enabled: bool) -> None:
    operator = GroupWindowAggregate(window, AGGREGATES, early=0)
    with harness_of(operator, async_enabled, changelog=True) as harness:
        harness.push([("a", 1, 1 * MS)])
        assert [row[0] for row in harness.end_batch()] == ["+I"]
        harness.push([("a", 1, 1 * MS)], kind="-D")
        assert [(row[0], row[5], row[6]) for row in harness.end_batch()] == [("-D", 1, 1)]
        harness.push([("a", 2, 2 * MS)])
        assert [(row[0], row[5], row[6]) for row in harness.end_batch()] == [("+I", 1, 2)]
        harness.push([("a", 2, 2 * MS)], kind="-D")
        harness.advance_watermark(100 * MS)
        assert [(row[0], row[5], row[6]) for row in harness.end_batch()] == [("-D", 1, 2)]
        assert harness.state_entries() == {}


def test_processing_time(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(tumble("10 seconds"), AGGREGATES, time="processing", early="2 seconds")
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        harness.advance_processing_time(-harness.clock.now_us() % 10_000_000)
        harness.push([("a", 1, 0)])
        assert harness.end_batch() == []
        harness.advance_processing_time(2_000_000)
        assert [(row[0], *row[5:]) for row in harness.end_batch()] == [("+I", 1, 1)]
        harness.push([("a", 2, 0)])
        assert harness.end_batch() == []
        harness.advance_processing_time(9_000_000)
        assert [(row[0], *row[5:]) for row in harness.end_batch()] == [("-U", 1, 1), ("+U", 2, 3)]
        assert harness.state_entries() == {}


def test_without_updates_it_is_window_aggregate(async_enabled: bool) -> None:
    rows = [("a", 1, 1), ("b", 2, 3), ("a", 3, 12)]
    found = []
    for kind in (GroupWindowAggregate, WindowAggregate):
        with harness_of(kind(hop("10 milliseconds", "5 milliseconds"), AGGREGATES), async_enabled) as harness:
            first = step(harness, rows, watermark=5)
            found.append((first, harness.state_entries(), step(harness, [], watermark=100)))
    assert found[0] == found[1]
    assert found[0][2]


# -- windows of rows -----------------------------------------------------------------------------------


def test_windows_of_rows_as_they_come(async_enabled: bool) -> None:
    aggregates = [sum_("v").alias("sum"), max_("v").alias("max"), last_value("v").alias("last")]
    operator = GroupWindowAggregate(count_tumble(2), aggregates, time="processing")
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        harness.push([("a", 1, 9), ("b", 9, 1), ("a", 2, 8), ("a", 4, 7)])
        assert harness.end_batch() == [("+I", "a", 3, 2, 2)]
        harness.push([("b", 1, 0), ("a", 1, 0), ("a", 1, 0)])
        assert harness.end_batch() == [("+I", "b", 10, 9, 1), ("+I", "a", 5, 4, 1)]


def test_windows_of_rows_in_order_of_time(async_enabled: bool) -> None:
    operator = GroupWindowAggregate(count_hop(3, 1), [sum_("v").alias("sum")])
    with harness_of(operator, async_enabled) as harness:
        harness.push([("a", 1, 3), ("a", 2, 1), ("a", 4, 2), ("a", 8, 9)])
        harness.advance_watermark(5)
        assert harness.end_batch() == [("+I", "a", 7)]
        harness.push([("a", 16, 8)])
        harness.advance_watermark(20)
        assert harness.end_batch() == [("+I", "a", 21), ("+I", "a", 25)]


@pytest.mark.parametrize(("size", "slide"), [(3, 3), (4, 1), (3, 2), (2, 3)])
@settings(max_examples=at_most(15))
@given(
    rows=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), max_size=30),
    cuts=st.sets(st.integers(0, 30), max_size=8),
    bundle=st.sampled_from(["1", "3", "1000"]),
    async_enabled=st.booleans(),
)
def test_windows_of_rows_however_they_are_cut(
    size: int, slide: int, rows: Any, cuts: set[int], bundle: str, async_enabled: bool
) -> None:
    values: dict[str, list[int]] = defaultdict(list)
    expected: list[tuple[Any, ...]] = []
    for key, value in rows:
        values[key].append(value)
        begins = len(values[key]) - size
        if begins >= 0 and begins % slide == 0:
            window = values[key][begins:]
            expected.append(("+I", key, sum(window), len(set(window))))
    operator = GroupWindowAggregate(
        count_hop(size, slide), [sum_("v").alias("sum"), count("v").distinct().alias("n")], time="processing"
    )
    options = {"async-state.bundle-size": bundle}
    found = []
    harness = OperatorHarness(
        operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, options=options
    )
    for at, (key, value) in enumerate(rows):
        harness.push([(key, value, 0)])
        if at in cuts:
            found += harness.end_batch()
            harness = restarted(harness, parallelism=1 + at % 2)
    found += harness.end_batch()
    harness.close()
    if not cuts and bundle == "1000":
        assert found == expected
    for key in values:  # partitions put out their rows one after the other
        assert [row for row in found if row[1] == key] == [row for row in expected if row[1] == key]


# -- however the input is cut ----------------------------------------------------------------------------


ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-3, 3), st.integers(0, 30)), min_size=1, max_size=14
)
WINDOWS = [
    tumble("6 milliseconds"),
    hop("6 milliseconds", "2 milliseconds"),
    cumulate("6 milliseconds", "3 milliseconds"),
    session("3 milliseconds"),
]


def windows_of(window: Any, rows: Any) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    """The rows (key, value, ms) of each key and window (key, start, end in ms)."""
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    if window.text.startswith("session"):
        for key in {row[0] for row in rows}:
            mine = sorted((row for row in rows if row[0] == key), key=lambda row: row[2])
            groups = [[mine[0]]]
            for row in mine[1:]:
                if row[2] - groups[-1][-1][2] <= 3:
                    groups[-1].append(row)
                else:
                    groups.append([row])
            for group in groups:
                found[key, group[0][2], group[-1][2] + 3] = group
        return found
    for row in rows:
        for start in range(-6, 36):
            for end in range(start + 1, start + 7):
                is_window = {
                    "tumble": start % 6 == 0 and end == start + 6,
                    "hop": start % 2 == 0 and end == start + 6,
                    "cumulate": start % 6 == 0 and end in (start + 3, start + 6),
                }[window.kind]
                if is_window and start <= row[2] < end:
                    found[row[0], start, end].append(row)
    return found


@pytest.mark.long
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text.split("(")[0])
@settings(max_examples=at_most(12))
@given(
    batches=st.lists(ROWS, min_size=1, max_size=4),
    early=st.sampled_from([None, 0, 1_000_000]),
    late=st.sampled_from([None, 0, 1_000_000]),
    bundle=st.sampled_from(["1", "3", "1000"]),
    async_enabled=st.booleans(),
)
def test_the_netted_rows_are_the_windows(
    window: Any, batches: Any, early: Any, late: Any, bundle: str, async_enabled: bool
) -> None:
    """No row is later than the lateness that is allowed, so that all rows count."""
    operator = GroupWindowAggregate(
        window, AGGREGATES, early=early, late=late, allowed_lateness="100 milliseconds"
    )
    shown: list[Any] = []
    harness = harness_of(operator, async_enabled, options={"async-state.bundle-size": bundle})
    for number, rows in enumerate(batches):
        shown += step(harness, rows, watermark=number * 8)
        harness.advance_processing_time(700_000)
        harness = restarted(harness, parallelism=1 + number % 2)
        if early == 0 and late != 1_000_000:
            so_far = [row for batch in batches[: number + 1] for row in batch]
            assert net(shown, in_order=True) == expected_of(window, so_far)
    shown += step(harness, [], watermark=1_000)
    assert harness.state_entries() == {}
    assert harness.statistics().get("counter.late_rows", 0) == 0
    harness.close()
    assert net(shown, in_order=True) == expected_of(window, [row for batch in batches for row in batch])


def expected_of(window: Any, rows: Any) -> Counter[tuple[Any, ...]]:
    found = windows_of(window, rows)
    return Counter((*bounds, len(mine), sum(row[1] for row in mine)) for bounds, mine in found.items())


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"late": "1 second"}, "give allowed_lateness too"),
        ({"allowed_lateness": 1, "time": "processing"}, "no row is late"),
        ({"early": -1}, "early is -1"),
        ({"window": count_tumble(3), "early": 0}, "not for count windows"),
        ({"window": "hour"}, "is not a window"),
    ],
)
def test_what_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"GroupWindowAggregate: .*{message}"):
        GroupWindowAggregate(**{"window": tumble("1 second"), "aggregates": AGGREGATES, **arguments})


class Total(AggregateFunction):
    """Merges and takes rows back."""

    def create_accumulator(self) -> Any:
        return [0, 0]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator[0] += value
        accumulator[1] += 1

    def retract(self, accumulator: Any, value: Any) -> None:
        accumulator[0] -= value
        accumulator[1] -= 1

    def merge(self, accumulator: Any, accumulators: Any) -> None:
        for other in accumulators:
            accumulator[0] += other[0]
            accumulator[1] += other[1]

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0] if accumulator[1] else None


class BundledTotal(BundledAggregateFunction):
    def supports_merging(self) -> bool:
        return True

    def supports_retracting(self) -> bool:
        return True

    def bundled_accumulate_retract(self, segments: KeySegments) -> Any:
        applied = []
        for segment in segments:
            total, number = (sum(part) for part in zip((0, 0), *segment.accumulators, strict=True))
            before = total if number else None
            for row in segment.rows:
                total += row[0] if row.is_accumulate else -row[0]
                number += 1 if row.is_accumulate else -1
            applied.append(KeySegmentApplied([total, number], before, total if number else None))
        return applied


class CalledTotal(BundledTotal):
    async def bundled_accumulate_retract(self, segments: KeySegments) -> Any:
        return super().bundled_accumulate_retract(segments)


TYPES: Any = {
    "result_type": pa.int64(),
    "accumulator_type": pa.schema([("total", pa.int64()), ("number", pa.int64())]),
}


@settings(deadline=None)
@given(
    batches=st.lists(ROWS, max_size=4),
    taken=st.lists(st.integers(0, 99), max_size=6),
    emission=st.sampled_from([{"early": 0}, {"early": "1 second"}, {"allowed_lateness": "10 milliseconds"}]),
    changelog=st.booleans(),
    async_enabled=st.booleans(),
)
def test_functions_that_merge_follow_their_sessions(
    batches: Any, taken: Any, emission: Any, changelog: bool, async_enabled: bool
) -> None:
    """They show what the sum shows, in every row."""
    functions = [udaf(one, **TYPES)("v").alias(one.__name__) for one in (Total, BundledTotal, CalledTotal)]
    operator = GroupWindowAggregate(
        session("3 milliseconds"), [sum_("v").alias("sum"), *functions], **emission
    )
    with harness_of(operator, async_enabled, changelog=changelog) as harness:
        there: list[Any] = []
        for number, batch in enumerate(batches):
            rows = [(key, value, at * MS) for key, value, at in batch]
            there += rows
            gone = [there.pop(taken.pop() % len(there)) for _ in range(2) if changelog and taken and there]
            harness.push([*rows, *gone], kinds=["+I"] * len(rows) + ["-D"] * len(gone))
            harness.advance_watermark(8 * MS * number)
            harness.advance_processing_time(600_000)
            harness.end_batch()
        harness.finish()
        assert harness.state_entries() == {}
        net(harness.output, in_order=True)
        assert all(len(set(row[-4:])) == 1 for row in harness.output)


def test_what_is_refused_of_an_input() -> None:
    with (
        pytest.raises(SchemaError, match="is a changelog, but .* does not accept retractions"),
        harness_of(GroupWindowAggregate(count_tumble(2), AGGREGATES), False, changelog=True),
    ):
        pass
    with pytest.raises(SchemaError, match="count_hop: slide is 0"):
        count_hop(2, 0)


FORMS: dict[str, Any] = {
    "slices": lambda: WindowAggregate(tumble("10 milliseconds"), [count()]),
    "sessions": lambda: WindowAggregate(session("10 milliseconds"), [count()]),
    "sessions with rows": lambda: WindowAggregate(session("10 milliseconds"), [count()], late_output="late"),
    "early sessions with rows": lambda: GroupWindowAggregate(
        session("10 milliseconds"), [count()], early="1 second", late_output="late"
    ),
    "early sessions": lambda: GroupWindowAggregate(session("10 milliseconds"), [count()], early="1 second"),
    "rows": lambda: GroupWindowAggregate(count_tumble(2), [count()], time="processing"),
}


@pytest.mark.parametrize("before", FORMS)
def test_windows_of_another_form_do_not_begin_anew_without_a_word(before: str, async_enabled: bool) -> None:
    """Each form has states of its own, so rows of windows that are open would not count for the other."""
    with harness_of(FORMS[before](), async_enabled) as harness:
        harness.push([("a", 1, 1 * MS)])
        harness.end_batch()
        snapshot = harness.snapshot()
        for after, operator in FORMS.items():
            if after == before:
                with harness.restore(snapshot, operator=operator()) as going_on:
                    going_on.push([("a", 2, 2 * MS)])
                    assert [*going_on.end_batch(), *going_on.finish()][-1][-1] == 2
            else:
                refused = "another program wrote its state|window is .* but the checkpoint has"
                with pytest.raises(StateDeclarationError, match=refused):
                    harness.restore(snapshot, operator=operator())
