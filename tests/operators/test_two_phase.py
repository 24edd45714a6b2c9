"""Two phases of aggregation: the same rows, the same stored bytes and the same counts as in one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.clock import ManualClock
from asyncstate.errors import AsyncStateError
from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import CONDITIONS_MAX, LocalFunction, PartialStep
from asyncstate.state import StateTtl
from asyncstate.testing import OperatorHarness, net
from operators import (
    Aggregate,
    GroupAggregate,
    WindowAggregate,
    avg,
    count,
    cumulate,
    hop,
    max_,
    min_,
    session,
    sum_,
    tumble,
    var_pop,
)
from operators.window.windows import SlicedWindow
from tests.examples import at_most
from tests.local_aggregation import in_phases
from tests.operators.window_model import MAX, MIN, MS, Batch, WindowModel, schedules

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int64()),
        ("small", pa.int16()),
        ("x", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("s", pa.string()),
        ("b", pa.binary()),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
SUMS: list[Aggregate] = [
    count().alias("c"),
    count("s").where("flag").alias("texts"),
    count().where("flag").alias("flags"),
    sum_("n"),
    sum_("n").where("flag").alias("flagged"),
    sum_("small"),
    sum_("x"),
    sum_("d"),
    avg("n"),
    avg("x").where("flag").alias("mean"),
    avg("d"),
]
EXTREMES: list[Aggregate] = [
    *(function(column) for function in (min_, max_) for column in SCHEMA.names if column != "k"),
    min_("n").where("flag").alias("least"),
    max_("x").where("flag").alias("most"),
    max_("s").where("flag").alias("last"),
]
DISTINCTS: list[Aggregate] = [
    *(count(column).distinct().alias(f"{column}_values") for column in SCHEMA.names if column != "k"),
    count("s").distinct().where("flag").alias("flagged_texts"),
    count("k").distinct().alias("keys"),
    count("flag").distinct().where("flag").alias("trues"),
    sum_("small").distinct(),
    avg("small").distinct().where("flag").alias("mean_of_values"),
    max_("n").distinct(),
    var_pop("small").distinct(),
]
Row = tuple[Any, ...]
BIG = 2**63 - 1

ROWS = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.none() | st.integers(-(2**58), 2**58),
    st.none() | st.integers(-(2**15), 2**15 - 1),
    st.none() | st.integers(-9, 9).map(float),
    st.none() | st.integers(-(10**11), 10**11).map(lambda cents: Decimal(cents) / 100),
    st.none() | st.text("abé", max_size=2),
    st.none() | st.binary(max_size=2),
    st.none() | st.booleans(),
    st.none() | st.dates(),
    st.none() | st.integers(0, 10**12),
)
STEPS = st.lists(st.lists(st.one_of(ROWS, st.integers(0, 10**6)), max_size=25), min_size=2, max_size=4)
"""Micro-batches of steps: a row to insert, or a number that picks a row to take back."""


def make(
    operator: GroupAggregate | WindowAggregate, two: bool, schema: pa.Schema = SCHEMA, **settings: Any
) -> OperatorHarness:
    """A harness that runs in one phase or in two."""
    settings = {"key": ["k"], "changelog": False, **settings}
    return OperatorHarness(in_phases(operator, two), schema, **settings)


@pytest.fixture
def ways(async_enabled: bool) -> dict[str, Any]:
    """A mode."""
    return {"async_enabled": async_enabled}


def pushes(batch: Sequence[Any], live: list[Row], retract: bool) -> Iterator[tuple[list[Row], list[str]]]:
    """The steps as pushes of three rows, each with its kinds: what tasks of a job have together."""
    rows: list[Row] = []
    kinds: list[str] = []
    for step in batch:
        if isinstance(step, tuple):
            live.append(step)
            rows.append(step)
            kinds.append("+U" if retract and len(live) % 3 == 0 else "+I")
        elif live and retract:
            rows.append(live.pop(step % len(live)))
            kinds.append("-U" if step % 2 else "-D")
    for start in range(0, len(rows), 3):
        yield rows[start : start + 3], kinds[start : start + 3]


def run_batch(harness: OperatorHarness, steps: Sequence[tuple[list[Row], list[str]]]) -> list[Row]:
    for rows, kinds in steps:
        harness.push(rows, kinds=kinds)
    return harness.end_batch()


def same(left: Sequence[Row], right: Sequence[Row]) -> bool:
    """Equal in order; NaN equals NaN."""
    return repr(list(left)) == repr(list(right))


# -- GroupAggregate -----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("aggregates", "retract"),
    [(SUMS + EXTREMES, False), (SUMS, True), (SUMS + EXTREMES + DISTINCTS, False), (DISTINCTS[5:6], False)],
    ids=["inserts", "changelog", "distinct", "one-distinct"],
)
@settings(max_examples=8)
@given(steps=STEPS, async_enabled=st.booleans(), turns=st.lists(st.booleans(), min_size=4, max_size=4))
def test_rows_and_bytes_are_those_of_one_phase(
    aggregates: list[Aggregate],
    retract: bool,
    steps: list[list[Any]],
    async_enabled: bool,
    turns: list[bool],
) -> None:
    """Also where each micro-batch runs in one phase or in two as it likes."""
    operator = GroupAggregate(aggregates)
    settings = {"changelog": retract, "async_enabled": async_enabled}
    one, two = make(operator, False, **settings), make(operator, True, **settings)
    changing = make(operator, False, **settings)
    live: list[Row] = []
    try:
        for batch, turn in zip(steps, turns, strict=False):
            given_steps = list(pushes(batch, live, retract))
            expected = run_batch(one, given_steps)
            assert same(run_batch(two, given_steps), expected)
            changing = changing.restore(changing.snapshot(), operator=in_phases(operator, turn))
            assert same(run_batch(changing, given_steps), expected)
            assert one.state_entries() == two.state_entries() == changing.state_entries()
    finally:
        for harness in (one, two, changing):
            harness.close()


@pytest.mark.long
def test_modes_and_stores_agree_byte_by_byte() -> None:
    rows = [
        (key, n, n % 100, n / 4, Decimal(n), str(n % 7), bytes([n % 5]), n % 3 > 0, None, n)
        for n in range(200)
        for key in ("a", "b", None)
    ]
    results = []
    for two, async_enabled in product((False, True), (False, True)):
        operator = GroupAggregate(SUMS + EXTREMES)
        with make(operator, two, async_enabled=async_enabled) as harness:
            for start in range(0, len(rows), 100):
                harness.push(rows[start : start + 100])
                if start % 200:
                    harness.end_batch()
            results.append((harness.output, harness.state_entries()))
    assert len(results[0][0]) == 3 + 2 * 2 * 3  # a +I a key, then a -U and a +U in each of the others
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("keys", [300, 5_000])
def test_many_keys_at_once(ways: dict[str, Any], keys: int) -> None:
    """So many that their hashes collide in Arrow's grouping."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("odd", pa.bool_())])
    rows = [(n * 7_919 % keys, n, n % 3 == 0) for n in range(2 * keys)]
    aggregates = [count().where("odd").alias("odds"), sum_("n"), max_("n"), count("n").distinct()]
    with make(GroupAggregate(aggregates), True, schema, **ways) as harness:
        harness.push(rows)
        expected: dict[int, tuple[int, ...]] = {}
        for key, n, odd in rows:
            odds, total, _, values = expected.get(key, (0, 0, 0, 0))
            expected[key] = (odds + odd, total + n, n, values + 1)
        assert {row[1]: row[2:] for row in harness.end_batch()} == expected


def test_fewer_rows_reach_the_operator_and_all_are_counted(ways: dict[str, Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    with make(GroupAggregate([count().alias("c"), sum_("n")]), True, schema, **ways) as harness:
        harness.push([("a", 1), ("b", 2), ("a", 3), ("a", 4)])
        harness.push([("b", 5), ("b", 6)])
        assert harness.end_batch() == [("+I", "a", 3, 8), ("+I", "b", 3, 13)]
        figures = harness.statistics()
        assert (figures["local_rows_in"], figures["rows_in"], figures["keys"]) == (6, 3, 2)
        harness.push([("a", 1)])
        assert harness.end_batch() == [("-U", "a", 3, 8), ("+U", "a", 4, 9)]
        assert harness.statistics()["local_rows_in"] == 1


def test_keys_of_every_kind(ways: dict[str, Any]) -> None:
    """Null, zeros of both signs and every NaN: the same keys as in one phase."""
    schema = pa.schema([("k", pa.float64()), ("t", pa.timestamp("ms")), ("n", pa.int32())])
    nan = float("nan")
    rows = [(key, time, 1) for key in (0.0, nan, None, -0.0, -nan, math.inf) for time in (5, None, 5)]
    outputs = []
    for two in (False, True):
        operator = GroupAggregate([sum_("n"), count().alias("c")])
        with make(operator, two, schema, key=["k", "t"], **ways) as harness:
            harness.push(rows)
            outputs.append((repr(harness.end_batch()), harness.state_entries()))
    assert outputs[0] == outputs[1]
    assert len(outputs[0][1]) == 8


def test_nan_is_the_largest_number(ways: dict[str, Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.float32())])
    nan = float("nan")
    rows = [("a", nan), ("a", 1.0), ("b", nan), ("b", None), ("c", None), ("d", -math.inf), ("d", math.inf)]
    with make(GroupAggregate([min_("x"), max_("x")]), True, schema, **ways) as harness:
        harness.push(rows)
        assert same(
            harness.end_batch(),
            [
                ("+I", "a", 1.0, nan),
                ("+I", "b", nan, nan),
                ("+I", "c", None, None),
                ("+I", "d", -math.inf, math.inf),
            ],
        )


def test_one_row_without_key_columns_and_none_without_rows(ways: dict[str, Any]) -> None:
    schema = pa.schema([("n", pa.int64())])
    with make(GroupAggregate([count().alias("c"), max_("n")]), True, schema, key=[], **ways) as harness:
        assert harness.end_batch() == []
        harness.push([(1,), (3,)])
        harness.push([(2,)])
        assert harness.end_batch() == [("+I", 3, 3)]
        assert harness.statistics()["rows_in"] == 2


@pytest.mark.parametrize("changelog", [False, True])
def test_distinct(ways: dict[str, Any], changelog: bool) -> None:
    schema = pa.schema([("k", pa.string())])
    with make(GroupAggregate(), True, schema, changelog=changelog, **ways) as harness:
        harness.push([("b",), ("a",), ("b",)])
        assert harness.end_batch() == [("+I", "b"), ("+I", "a")]
        harness.push([("a",), ("c",), ("c",)])
        assert harness.end_batch() == [("+I", "c")]
        assert harness.statistics()["local_rows_in"] == 3
        if changelog:
            harness.push([("b",), ("b",), ("c",)], kind="-D")
            assert harness.end_batch() == [("-D", "b")]


def test_rows_taken_back_beyond_those_there_are_dropped_and_counted(ways: dict[str, Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    operator = GroupAggregate([count().alias("c"), sum_("n")])
    with make(operator, True, schema, changelog=True, **ways) as harness:
        harness.push([("a", 1), ("a", 2), ("b", 7), ("b", 7)], kinds=["+I", "+I", "-D", "-U"])
        assert harness.end_batch() == [("+I", "a", 2, 3)]
        assert harness.statistics()["counter.retractions_without_state"] == 2
        harness.push([("a", 1), ("a", 2), ("a", 2)], kind="-D")
        assert harness.end_batch() == [("-D", "a", 2, 3)]
        assert harness.statistics()["counter.retractions_without_state"] == 1
        assert harness.state_entries() == {}


def test_null_event_times_are_dropped_and_counted_by_row(ways: dict[str, Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us"))])
    operator = GroupAggregate([count().alias("c"), max_("at").alias("newest")])
    with make(operator, True, schema, event_time="at", watermark_delay=10, **ways) as harness:
        harness.push([("a", None), ("a", 5), ("a", None), ("b", None), ("a", 90), ("a", 70)])
        assert harness.end_batch() == [("+I", "a", 3, 90)]
        figures = harness.statistics()
        assert figures["counter.null_event_times"] == 3
        assert (figures["local_rows_in"], figures["rows_in"]) == (6, 3)
        assert harness.watermark == 80


def test_an_event_time_that_is_part_of_the_key(ways: dict[str, Any]) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us"))])
    operator = GroupAggregate([count().alias("c")])
    with make(operator, True, schema, key=["at", "k"], event_time="at", watermark_delay=0, **ways) as harness:
        harness.push([("a", 5), ("a", 6), ("a", 5), ("a", None)])
        assert harness.end_batch() == [("+I", 5, "a", 2), ("+I", 6, "a", 1)]
        assert harness.watermark == 6


# -- distinct values ----------------------------------------------------------------------------------------

VALUES = pa.schema([("k", pa.string()), ("u", pa.int64()), ("v", pa.int64()), ("odd", pa.bool_())])
VALUES_ALL = [
    count().alias("rows"),
    sum_("v").alias("total"),
    count("u").distinct().alias("us"),
    count("v").distinct().alias("vs"),
    count("v").distinct().where("odd").alias("odds"),
]


def expected_of(rows: Sequence[Row]) -> dict[str, Row]:
    """What ``VALUES_ALL`` are, by key."""
    found = {}
    for key in {row[0] for row in rows}:
        own = [row for row in rows if row[0] == key]
        us, vs = {row[1] for row in own} - {None}, {row[2] for row in own} - {None}
        odds = {row[2] for row in own if row[3]} - {None}
        found[key] = (len(own), sum(row[2] or 0 for row in own), len(us), len(vs), len(odds))
    return found


def test_only_values_reach_the_operator(ways: dict[str, Any]) -> None:
    rows = [("a", n % 3, n % 2, n % 2 == 1) for n in range(60)] + [("b", 1, None, None)]
    with make(GroupAggregate(VALUES_ALL), True, VALUES, **ways) as harness:
        harness.push(rows)
        assert harness.end_batch() == [("+I", "a", 60, 30, 3, 2, 1), ("+I", "b", 1, None, 1, 0, 0)]
        figures = harness.statistics()
        assert (figures["local_rows_in"], figures["rows_in"], figures["keys"]) == (61, (3 + 2) + (1 + 1), 2)


class LastRowsFirst(GroupAggregate):
    """Its local rows come in the opposite order."""

    def partial_step(self, given: InputSpec) -> PartialStep:
        step = super().partial_step(given)

        def reversed_rows(batch: pa.RecordBatch, kinds: Any) -> pa.RecordBatch:
            made = step(batch, kinds)
            return made.take(pa.array(range(made.num_rows))[::-1])

        return reversed_rows


@pytest.mark.parametrize("ttl", [None, "1 hour"])
def test_values_that_come_in_another_bundle_than_the_rest_of_their_key(
    ways: dict[str, Any], ttl: str | None
) -> None:
    """Behind an exchange rows come in any order: here the values of the second set first, with nothing else."""
    options = {"async-state.bundle-size": "1000"}
    operator = LastRowsFirst(VALUES_ALL, ttl=None if ttl is None else StateTtl(ttl))
    rows: list[Row] = []
    with make(operator, True, VALUES, options=options, **ways) as harness:
        for batch in range(3):
            more = [("ab"[n % 2], n % 7, n * (batch + 1), n % 3 == 0) for n in range(3_000)]
            rows += more
            harness.push(more)
            changes = harness.end_batch()
            assert harness.statistics()["rows_in"] > 3_000
            last = {row[1]: row[2:] for row in changes if row[0] in ("+I", "+U")}
            assert last == expected_of(rows)
            assert net(changes).total() == (2 if batch == 0 else 0)
            assert [row[0] for row in changes].count("+I") == (2 if batch == 0 else 0)


def test_values_of_a_key_that_has_expired_are_new(ways: dict[str, Any]) -> None:
    clock = ManualClock()
    operator = GroupAggregate(VALUES_ALL, ttl=StateTtl("1 minute"))
    with make(operator, True, VALUES, clock=clock, **ways) as harness:
        harness.push([("a", 1, 1, True), ("a", 2, 1, False)])
        assert harness.end_batch() == [("+I", "a", 2, 2, 2, 1, 1)]
        clock.advance(ms=61_000)
        harness.push([("a", 2, 1, False)])
        assert harness.end_batch() == [("+I", "a", 1, 1, 1, 1, 0)]


def test_more_conditions_than_travel_together() -> None:
    names = [f"c{number}" for number in range(CONDITIONS_MAX + 1)]
    schema = pa.schema([("k", pa.string()), *((name, pa.bool_()) for name in names)])
    for used, possible in ((names[:-1], True), (names, False)):
        operator = GroupAggregate([count("k").distinct().where(name).alias(name) for name in used])
        assert (operator.partial_aggregation([InputSpec(schema, ("k",))]) is not None) == possible
    with make(GroupAggregate([count("k").distinct().where(names[-2])]), True, schema) as harness:
        harness.push([("a", *(number == CONDITIONS_MAX - 1 for number in range(len(names))))])
        assert harness.end_batch() == [("+I", "a", 1)]


# -- sums ---------------------------------------------------------------------------------------------------

NUMBERS = pa.schema([("k", pa.int64()), ("n", pa.int64())])


@settings(max_examples=at_most(30))
@given(
    numbers=st.lists(st.integers(-BIG - 1, BIG) | st.sampled_from([BIG, -BIG - 1, 2**32 - 1]), max_size=12),
    cut=st.integers(1, 5),
)
def test_integer_sums_are_exact_or_refused(numbers: list[int], cut: int) -> None:
    """Whatever the sums on the way would be: only the total of the bundle counts, as in one phase."""
    with make(GroupAggregate([sum_("n")]), True, NUMBERS) as harness:
        for start in range(0, len(numbers), cut):
            harness.push([(1, number) for number in numbers[start : start + cut]])
        total = sum(numbers)
        if -BIG - 1 <= total <= BIG:
            assert harness.end_batch() == ([("+I", 1, total)] if numbers else [])
        else:
            with pytest.raises(
                AsyncStateError, match=r"GroupAggregate, key \(.*\): the sum of column 'n' does not fit int64"
            ):
                harness.end_batch()


def test_a_stored_sum_that_overflows_is_refused(ways: dict[str, Any]) -> None:
    with make(GroupAggregate([sum_("n")]), True, NUMBERS, **ways) as harness:
        harness.push([(1, BIG), (1, -5)])
        harness.end_batch()
        harness.push([(1, 6)])
        with pytest.raises(AsyncStateError, match="column 'n' does not fit int64"):
            harness.end_batch()


# -- WindowAggregate ----------------------------------------------------------------------------------------

WINDOW_SCHEMA = pa.schema(
    [("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("v", pa.int64()), ("odd", pa.bool_())]
)
WINDOW_SUMS = [count(), sum_("v"), avg("v"), count().where("odd").alias("odd")]
WINDOW_ALL = [*WINDOW_SUMS, min_("v"), max_("v")]
WINDOWS = [
    tumble("10 milliseconds", "3 milliseconds"),
    hop("20 milliseconds", "5 milliseconds"),
    hop("9 milliseconds", "3 milliseconds", "-1 millisecond"),
    cumulate("12 milliseconds", "3 milliseconds", "2 milliseconds"),
    cumulate("20 milliseconds", "5 milliseconds", "7 milliseconds"),
]


def run_windows(harness: OperatorHarness, batch: Batch) -> list[Row]:
    rows = [(k, time * MS, v, None if v is None else v % 2 == 1) for _, (k, time, v) in batch.ops]
    kinds = [kind for kind, _ in batch.ops]
    for start in range(0, len(rows), 4):
        harness.push(rows[start : start + 4], kinds=kinds[start : start + 4])
    if batch.watermark > MIN:
        harness.advance_watermark(min(batch.watermark, MAX))
    return [row[1:] for row in (harness.finish() if batch.watermark == MAX else harness.end_batch())]


def well_formed(batches: list[Batch]) -> list[Batch]:
    """Without the rows that are taken back though they never came: only their net would be seen."""
    return [Batch([op for op in batch.ops if op[1][0] != 77], batch.watermark) for batch in batches]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@settings(max_examples=4)
@given(data=st.data(), async_enabled=st.booleans())
def test_windows_of_distinct_values_are_those_of_one_phase(
    window: SlicedWindow, data: st.DataObject, async_enabled: bool
) -> None:
    """Windows that share slices are kept whole, each with the values of all of its slices."""
    operator = WindowAggregate(
        window, [*WINDOW_ALL, count("v").distinct(), sum_("v").distinct().where("odd")]
    )
    settings = {"changelog": False, "event_time": "ts", "async_enabled": async_enabled}
    two = make(operator, True, WINDOW_SCHEMA, **settings)
    other = make(operator, False, WINDOW_SCHEMA, **settings)
    try:
        for batch in data.draw(schedules(False)):
            other = other.restore(other.snapshot(), operator=in_phases(operator, data.draw(st.booleans())))
            found = run_windows(two, batch)
            assert run_windows(other, batch) == found
            assert two.state_entries() == other.state_entries()
            late = "counter.late_rows"
            assert two.statistics()[late] == other.statistics()[late]
        assert two.state_entries() == {}
    finally:
        two.close()
        other.close()


@pytest.mark.parametrize("retract", [False, True], ids=["inserts", "changelog"])
@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@settings(max_examples=4)
@given(data=st.data(), async_enabled=st.booleans())
def test_windows_give_what_a_loop_gives(
    window: SlicedWindow, retract: bool, data: st.DataObject, async_enabled: bool
) -> None:
    """Late rows are counted one by one; the phases may change at every micro-batch; nothing is left at the end."""
    batches = well_formed(data.draw(schedules(retract)))
    model = WindowModel(window, extremes=not retract)
    operator = WindowAggregate(window, WINDOW_SUMS if retract else WINDOW_ALL)
    settings = {"changelog": retract, "event_time": "ts", "async_enabled": async_enabled}
    two = make(operator, True, WINDOW_SCHEMA, **settings)
    other = make(operator, False, WINDOW_SCHEMA, **settings)
    try:
        for batch in batches:
            late = model.late
            expected = model.run(batch)
            other = other.restore(other.snapshot(), operator=in_phases(operator, data.draw(st.booleans())))
            found = run_windows(two, batch)
            assert sorted(found, key=repr) == sorted(expected, key=repr)
            assert run_windows(other, batch) == found
            assert two.state_entries() == other.state_entries()
            for harness in (two, other):
                assert harness.statistics()["counter.late_rows"] == model.late - late
        assert two.state_entries() == {}
    finally:
        two.close()
        other.close()


def test_late_rows_and_rows_without_a_time_are_counted_as_rows(ways: dict[str, Any]) -> None:
    window = tumble("10 milliseconds")
    settings = {"event_time": "ts", "watermark_delay": 0, **ways}
    with make(WindowAggregate(window, WINDOW_SUMS), True, WINDOW_SCHEMA, **settings) as harness:
        harness.push([(1, 5 * MS, 1, True), (1, 25 * MS, 3, True), (1, None, 9, True), (1, 9 * MS, 4, False)])
        harness.end_batch()
        assert harness.watermark == 25 * MS
        first = (1, 0, 10 * MS, 9 * MS, 2, 5, 2.5, 1)
        assert harness.end_batch() == [("+I", *first)]
        harness.push([(1, 5 * MS, 1, True)] * 3 + [(1, 26 * MS, 1, True)] * 2 + [(2, None, 1, True)] * 4)
        harness.end_batch()
        figures = harness.statistics()
        assert (figures["counter.late_rows"], figures["counter.null_event_times"]) == (3, 4)
        assert (figures["local_rows_in"], figures["rows_in"]) == (9, 3)
        assert harness.finish() == [("+I", 1, 20 * MS, 30 * MS, 29 * MS, 3, 5, 5 / 3, 3)]


# -- what has no local phase --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "changelog"),
    [
        (GroupAggregate([count(), min_("n")]), True),
        (GroupAggregate([count("n").distinct()]), True),
        (GroupAggregate([sum_("wide")]), False),
        (GroupAggregate([avg("wide").where("flag")]), False),
        (WindowAggregate(session("1 second"), [count()]), False),
        (WindowAggregate(tumble("1 second"), [max_("n")]), True),
    ],
)
def test_what_needs_every_row_stays_in_one_phase(
    operator: GroupAggregate | WindowAggregate, changelog: bool
) -> None:
    schema = SCHEMA.append(pa.field("wide", pa.decimal128(29, 2)))
    assert (
        operator.partial_aggregation([InputSpec(schema, ("k",), "at", RETRACT if changelog else INSERT_ONLY)])
        is None
    )
    with make(operator, True, schema, changelog=changelog, event_time="at") as harness:
        row = ("a", 1, 1, 1.0, Decimal(1), "x", b"x", True, None, 1, Decimal("1.25"))
        harness.push([row, row])
        harness.end_batch()
        assert harness.statistics()["rows_in"] == 2
        assert "local_rows_in" not in harness.statistics()


def test_the_number_of_rows_of_an_insert_only_input_travels_once() -> None:
    """Every local row has it anyway."""
    operator = GroupAggregate([count().alias("c"), count("s").alias("v"), avg("small")])
    inserts = operator.partial_aggregation([InputSpec(SCHEMA, ("k",))])
    changelog = operator.partial_aggregation([InputSpec(SCHEMA, ("k",), changes=RETRACT)])
    assert inserts is not None
    assert changelog is not None
    counts = [column.column for column in inserts.columns if column.function is LocalFunction.COUNT]
    assert counts == ["s", "small"]
    assert len(changelog.columns) == len(inserts.columns) + 1
