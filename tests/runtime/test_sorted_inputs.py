"""Ordered inputs: rows come in the order asked for, over micro-batches, restarts and parallelism; late ones do not."""

from __future__ import annotations

import datetime
import math
from collections import Counter
from decimal import Decimal
from functools import cmp_to_key
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    BundleOperator,
    InputSpec,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.codec import encode_namespace, key_group
from asyncstate.errors import JobError, SchemaError, StateDeclarationError
from asyncstate.operator import MAX_WATERMARK, SortKey
from asyncstate.runtime import sort_keys_of_inputs
from asyncstate.testing import OperatorHarness
from operators import asc, desc
from tests.examples import share

Mode = dict[str, Any]
KEY_GROUPS = 5
TIME = pa.timestamp("us")
EVENTS = pa.schema(
    [("at", TIME), ("key", pa.int64()), ("score", pa.float64()), ("name", pa.string()), ("id", pa.int64())]
)


class Numbered(RecordOperator):
    """Puts out the id of each row, its input and kind, and how many rows of its key came before it."""

    def __init__(self, num_inputs: int = 1) -> None:
        self.num_inputs = num_inputs  # type: ignore[misc]

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([(name, pa.int64()) for name in ("id", "input", "kind", "before")])

    def open(self, context: Any) -> None:
        self.before = context.get_state(ValueStateDescriptor("before", pa.int64(), default=0))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        assert ctx.timestamp == row["at"]
        assert ctx.key == (row.key,)

        def number(before: int) -> None:
            ctx.emit(row.id, ctx.input_index, int(ctx.row_kind), before)
            self.before.async_update(before + 1)

        return self.before.async_value().then_accept(number)


class Event(NamedTuple):
    """A row of the schema, but for its id, and where it goes."""

    at: int
    key: int
    score: float | None
    name: str | None
    kind: int
    input: int


class Given(NamedTuple):
    """A micro-batch: rows, how far the watermark goes on, the parallelism it runs at (a restart, if another)."""

    events: list[Event]
    step: int
    parallelism: int


EVENT = st.builds(
    Event,
    st.integers(-3, 6),
    st.integers(0, 4),
    st.sampled_from([None, -1.5, 0.0, 2.0, math.inf, math.nan]),
    st.sampled_from([None, "", "a", "a\x00", "ab", "b"]),
    st.integers(0, 3),
    st.integers(0, 1),
)
BATCHES = st.lists(
    st.builds(Given, st.lists(EVENT, max_size=10), st.integers(0, 3), st.sampled_from([1, 2])),
    min_size=1,
    max_size=4,
)
ORDERS: list[list[SortKey]] = [
    [SortKey("at")],
    [SortKey("at"), SortKey("score", True), SortKey("name")],
    [SortKey("at"), SortKey("name", True), SortKey("score")],
    [SortKey("at"), SortKey("name", True, nulls_first=True), SortKey("score", nulls_first=False)],
]


def compare(left: Any, right: Any, sort: SortKey) -> int:
    """None before all values, NaN behind; the other way round if descending, None where ``nulls_first`` says."""
    if left is None or right is None:
        nulls_first = not sort.descending if sort.nulls_first is None else sort.nulls_first
        return ((right is None) - (left is None)) * (1 if nulls_first else -1)
    keys = [(x != x, 0 if x != x else x) for x in (left, right)]
    return ((keys[0] > keys[1]) - (keys[0] < keys[1])) * (-1 if sort.descending else 1)


def in_order(orders: list[list[SortKey]], left: dict[str, Any], right: dict[str, Any]) -> int:
    """By time, then input, then the other sort keys of the input, then arrival."""
    for column in ("at", "input"):
        if left[column] != right[column]:
            return int(left[column] > right[column]) * 2 - 1
    for sort in orders[left["input"]][1:]:
        found = compare(left[sort.column], right[sort.column], sort)
        if found:
            return found
    return int(left["arrival"] > right["arrival"]) * 2 - 1


class Model:
    """Rows wait in a list; what is due is sorted. The first micro-batch's watermark is 0, and none before it.

    Arrival is counted by each partition; what two have counted may meet in one of them after a restart.
    """

    def __init__(self, orders: list[list[SortKey]]) -> None:
        self.orders = orders
        self.waiting: list[dict[str, Any]] = []
        self.late = 0
        self._watermark: int | None = None
        self._counts: dict[int, int] = {}
        self._ids = 0
        self._batches = 0

    def batch(self, given: Given, watermark: int) -> list[tuple[Any, ...]]:
        """The output of a micro-batch, partition by partition."""
        direct = []
        arrived: Counter[tuple[int, int]] = Counter()
        self._batches += 1
        for event in given.events:
            group = group_of(event.key)
            place = group * given.parallelism // KEY_GROUPS, event.input
            row = {**event._asdict(), "id": self._ids, "arrival": (self._batches, arrived[place], group)}
            self._ids += 1
            if not self.orders[event.input]:
                direct.append(row)
            elif self._watermark is not None and event.at <= self._watermark:
                self.late += 1
            else:
                arrived[place] += 1
                self.waiting.append(row)
        due = [row for row in self.waiting if row["at"] <= watermark]
        due.sort(key=cmp_to_key(lambda left, right: in_order(self.orders, left, right)))
        self.waiting = [row for row in self.waiting if row["at"] > watermark]
        self._watermark = watermark
        rows = [*direct, *due]
        return [
            self._numbered(row)
            for partition in range(given.parallelism)
            for row in rows
            if group_of(row["key"]) * given.parallelism // KEY_GROUPS == partition
        ]

    def _numbered(self, row: dict[str, Any]) -> tuple[Any, ...]:
        before = self._counts.get(row["key"], 0)
        self._counts[row["key"]] = before + 1
        return "+I", row["id"], row["input"], row["kind"], before


def group_of(key: int) -> int:
    return key_group((key,), [pa.int64()], KEY_GROUPS)


def new_harness(orders: Any, **settings: Any) -> OperatorHarness:
    count = len(orders)
    return OperatorHarness(
        Numbered(count),
        [EVENTS] * count,
        [["key"]] * count,
        event_time=["at"] * count,
        order_by=orders if count > 1 else orders[0],
        max_parallelism=KEY_GROUPS,
        **settings,
    )


def push(harness: OperatorHarness, events: list[Event], first_id: int) -> None:
    """One row at a time, so that the rows of the inputs arrive mixed."""
    for number, (*values, kind, index) in enumerate(events, first_id):
        harness.push([(*values, number)], index, kind=("+I", "-U", "+U", "-D")[kind])


def run(
    orders: list[list[SortKey]], batches: list[Given], **settings: Any
) -> tuple[list[list[tuple[Any, ...]]], list[dict[bytes, bytes]], float]:
    """The output of each micro-batch and of the end, what was stored after each, and the late rows."""
    outputs, stored = [], []
    late: float = 0
    ids = watermark = 0
    harness = new_harness(orders, parallelism=batches[0].parallelism, **settings)
    for batch in batches:
        if batch.parallelism != harness.parallelism:
            with harness as before:
                harness = before.restore(before.snapshot(), parallelism=batch.parallelism, **settings)
        watermark += batch.step
        harness.advance_watermark(watermark)
        push(harness, batch.events, ids)
        ids += len(batch.events)
        outputs.append(harness.end_batch())
        stored.append(harness.state_entries())
        late += harness.statistics().get("counter.late_rows_dropped", 0)
    with harness:
        outputs.append(harness.finish())
        stored.append(harness.state_entries())
        return outputs, stored, late


def check(orders: list[list[SortKey]], batches: list[Given], mode: Mode) -> None:
    model, watermark, expected = Model(orders), 0, []
    for batch in batches:
        watermark += batch.step
        expected.append(model.batch(batch, watermark))
    late = model.late
    expected.append(model.batch(Given([], 0, batches[-1].parallelism), MAX_WATERMARK))
    outputs, stored, found_late = run(orders, batches, **mode)
    assert outputs == expected
    assert found_late == late
    assert (outputs, stored, found_late) == run(orders, batches, async_enabled=False)
    assert {key[2] for key in stored[-1]} <= {8}, "rows wait behind the end"


@given(st.sampled_from(ORDERS), BATCHES)
@settings(max_examples=share(5))
def test_one_input_comes_in_order(mode: Mode, order: list[SortKey], batches: list[Given]) -> None:
    one = [batch._replace(events=[e._replace(input=0) for e in batch.events]) for batch in batches]
    check([order], one, mode)


@given(
    st.sampled_from([(ORDERS[1], ORDERS[2]), (ORDERS[3], ORDERS[0]), ([], ORDERS[1]), (ORDERS[0], [])]),
    BATCHES,
)
@settings(max_examples=share(5))
def test_two_inputs_come_merged_by_time(
    mode: Mode, orders: tuple[list[SortKey], list[SortKey]], batches: list[Given]
) -> None:
    check(list(orders), batches, mode)


def test_at_one_time_the_first_input_comes_first(mode: Mode) -> None:
    """Whatever the other sort columns say, and whichever arrived first; several keys of several groups."""
    with new_harness(
        [[SortKey("at"), SortKey("id", True)], [SortKey("at"), SortKey("id")]], **mode
    ) as harness:
        rows = [(time, key, None, None, key + 10 * time) for time in (2, 1) for key in range(5)]
        for row in rows:
            harness.push([row], 1)
            harness.push([row], 0)
        harness.advance_watermark(2)
        order = [row[1:3] for row in harness.end_batch()]
        ascending = list(range(5))
        assert order == [
            *((10 + number, 0) for number in ascending[::-1]),
            *((10 + number, 1) for number in ascending),
            *((20 + number, 0) for number in ascending[::-1]),
            *((20 + number, 1) for number in ascending),
        ]


# -- the documents' example --------------------------------------------------------------------------

SCORES = [(13, "Bob", 12), (13, "Bob", 33), (14, "Bob", 50), (12, "Bob", 100)]
SCORE_SCHEMA = pa.schema([("ts", TIME), ("name", pa.string()), ("score", pa.int64())])


class Identity(RecordOperator):
    """Puts out its rows, and calls of timers that each row sets at its time and one after it."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("what", pa.string()), ("ts", pa.int64()), ("score", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> Any:
        assert ctx.timestamp is not None
        ctx.timers.register_event_time(ctx.timestamp)
        ctx.emit("row", row.ts, row.score)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        ctx.emit("timer", timer.time, None)


def rows_of(output: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row[2:] for row in output if row[1] == "row"]


def score_harness(**settings: Any) -> OperatorHarness:
    return OperatorHarness(Identity(), SCORE_SCHEMA, ["name"], event_time="ts", watermark_delay=0, **settings)


def test_without_order_by_nothing_is_dropped(mode: Mode) -> None:
    with score_harness(**mode) as harness:
        for time, name, score in SCORES:
            harness.push([(time, name, score)])
            assert rows_of(harness.end_batch()) == [(time, score)]
        harness.finish()
        assert "counter.late_rows_dropped" not in harness.statistics()


def test_with_order_by_rows_wait_and_late_ones_are_dropped(mode: Mode) -> None:
    with score_harness(order_by="ts", **mode) as harness:
        dropped, delivered = [], []
        for row in SCORES:
            harness.push([row])
            delivered.append(rows_of(harness.end_batch()))
            dropped.append(harness.statistics()["counter.late_rows_dropped"])
        # 12:00 comes in the micro-batch whose forerunner had the watermark 13:00
        assert delivered == [[], [(13, 12), (13, 33)], [], [(14, 50)]]
        assert dropped == [0, 0, 0, 1]
        assert harness.finish() == []


def test_a_row_that_can_still_come_in_order_is_not_late(mode: Mode) -> None:
    """Its time has been passed by this micro-batch's watermark, but not by that of the one before."""
    with score_harness(order_by="ts", **mode) as harness:
        harness.push([(10, "Bob", 1), (30, "Bob", 2)])
        harness.end_batch()
        harness.push([(20, "Bob", 3), (30, "Bob", 4)])
        assert rows_of(harness.end_batch()) == [(10, 1), (20, 3), (30, 2), (30, 4)]
        harness.push([(30, "Bob", 5)])
        assert rows_of(harness.end_batch()) == []
        assert harness.statistics()["counter.late_rows_dropped"] == 1


def test_timers_fire_behind_the_rows_that_the_watermark_has_passed(mode: Mode) -> None:
    with score_harness(order_by="ts", **mode) as harness:
        harness.push([(2, "Bob", 2), (1, "Ann", 1)])
        harness.end_batch()
        calls = [call for _, *call in harness.end_batch()]
        assert calls == [["row", 1, 1], ["row", 2, 2], ["timer", 1, None], ["timer", 2, None]]


# -- what rows keep while they wait ---------------------------------------------------------------------

ALL_TYPES = pa.schema(
    [
        ("at", pa.timestamp("ns", tz="UTC")),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
        ("raw", pa.binary()),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("pair", pa.struct([("when", TIME), ("n", pa.int8())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("never_null", pa.int32(), nullable=False),
    ]
)
WAITING = [
    (
        3_000,
        True,
        datetime.date(2024, 2, 29),
        Decimal("1.50"),
        b"\x00\xff",
        ["x", None],
        {"when": datetime.datetime(2024, 1, 1), "n": None},
        [("a", 1)],
        7,
    ),
    (2_999, None, None, None, None, None, None, None, 8),
    (2_001, False, None, Decimal("-1.00"), b"", [], {"when": None, "n": 3}, [], 9),
]


class Repr(RecordOperator):
    """Puts out what it gets, as text."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("row", pa.string())])

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.emit(repr((row, ctx.key, ctx.timestamp)))


def reprs(order_by: Any, mode: Mode) -> list[str]:
    with OperatorHarness(
        Repr(), ALL_TYPES, ["price", "flag"], event_time="at", order_by=order_by, **mode
    ) as harness:
        harness.push(WAITING)
        return [text for _, text in harness.end_batch() + harness.finish()]


def test_rows_come_as_they_would_have_come_at_once(mode: Mode) -> None:
    """Values, key and time are the same; nanoseconds, finer than the framework's time, are sorted too."""
    assert reprs("at", mode) == reprs(None, mode)[::-1]


def test_the_store_layout_is_the_documented_one(mode: Mode) -> None:
    schema = pa.schema([("at", TIME), ("n", pa.int64())])
    with OperatorHarness(
        Repr(), schema, [], event_time="at", order_by=["at", ("n", "desc")], changelog=True, **mode
    ) as harness:
        harness.push([(5, 1)])
        harness.end_batch()
        harness.push([(6, 1), (7, None)], kinds=["+I", "-D"])
        harness.end_batch()
        one = bytes(255 - byte for byte in b"\x01" + encode_namespace(1))
        batch = [number.to_bytes(8, "big") for number in range(2)]
        keys = [
            b"\0\0\x03" + encode_namespace(5) + one + batch[0] + b"\0\0\0\0",
            b"\0\0\x03" + encode_namespace(6) + one + batch[1] + b"\0\0\0\0",
            b"\0\0\x03" + encode_namespace(7) + b"\xff" + batch[1] + b"\0\0\0\x01",
        ]
        entries = harness.state_entries()
        assert list(entries) == keys
        assert [value[0] for value in entries.values()] == [0, 0, 3]
        (state,) = harness.states()
        assert (state.id, state.kind, state.types["order"]) == (
            3,
            "ordered",
            "at timestamp[us], n int64 descending",
        )


# -- changes between runs -------------------------------------------------------------------------------


def with_columns(*added: pa.Field) -> pa.Schema:
    return pa.schema([*SCORE_SCHEMA, *added])


@pytest.fixture
def waiting(tmp_path: Any, mode: Mode) -> Any:
    """Opens harnesses one after the other over a checkpoint in which rows wait; ``ts, score descending``."""

    def reopen(schema: pa.Schema = SCORE_SCHEMA, order_by: Any = ("ts", ("score", "desc"))) -> Any:
        return OperatorHarness(
            Repr(), schema, ["name"], event_time="ts", order_by=order_by, folder=tmp_path, **mode
        )

    harness = reopen()
    harness.push([(1, "Bob", 1), (2, "Bob", 2)])
    harness.end_batch()
    return reopen


def texts(output: list[tuple[Any, ...]]) -> list[str]:
    return [text.split("(", 2)[2].split(")")[0] for _, text in output]


def test_columns_may_be_added_while_rows_wait(waiting: Any) -> None:
    """Twice, so that three versions of a row wait together."""
    harness = waiting(with_columns(pa.field("city", pa.string())))
    harness.push([(1, "Bob", 3, "Ulm")])
    harness.end_batch()
    harness = waiting(with_columns(pa.field("zip", pa.int64()), pa.field("city", pa.string())))
    harness.push([(1, "Bob", 0, 89073, None)])
    assert texts(harness.finish()) == [
        "ts=1, name='Bob', score=3, zip=None, city='Ulm'",
        "ts=1, name='Bob', score=1, zip=None, city=None",
        "ts=1, name='Bob', score=0, zip=89073, city=None",
        "ts=2, name='Bob', score=2, zip=None, city=None",
    ]


def test_a_wider_sort_column_is_refused(mode: Mode, tmp_path: Any) -> None:
    """Rows could be read as before, but not sorted."""
    schema, wider = (pa.schema([("ts", TIME), ("n", kind)]) for kind in (pa.int32(), pa.int64()))
    settings = {"event_time": "ts", "order_by": ["ts", "n"], "folder": tmp_path, **mode}
    with OperatorHarness(Repr(), schema, [], **settings) as harness:
        harness.push([(1, 1)])
        harness.end_batch()
    with pytest.raises(StateDeclarationError, match=r"n int32 and is ordered by .*n int64"):
        OperatorHarness(Repr(), wider, [], **settings)


@pytest.mark.parametrize("order_by", [None, "ts", ["ts", "score"]])
def test_another_order_is_refused_for_rows_may_wait(waiting: Any, order_by: Any) -> None:
    with pytest.raises(
        StateDeclarationError,
        match=r"was ordered by ts timestamp.us., score int64 descending and is ordered by",
    ):
        waiting(order_by=order_by)


def test_a_column_of_another_type_is_refused(waiting: Any) -> None:
    changed = pa.schema([("ts", TIME), ("name", pa.int64()), ("score", pa.int64())])
    with pytest.raises(SchemaError, match=r"operator 'operator', buffered rows of input 0.*'name'"):
        waiting(changed)


def test_an_order_may_be_asked_for_later(mode: Mode) -> None:
    with score_harness(**mode) as harness:
        harness.push([(5, "Bob", 1)])
        harness.end_batch()
        with harness.restore(harness.snapshot(), order_by="ts") as restored:
            restored.push([(7, "Bob", 2), (6, "Bob", 3)])
            assert rows_of(restored.end_batch()) == []
            assert rows_of(restored.finish()) == [(6, 3), (7, 2)]


# -- what is refused ------------------------------------------------------------------------------------


class Bundles(BundleOperator):
    """Never runs."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("id", pa.int64())])

    def process_bundle(self, bundle: Any, ctx: Any) -> Any:
        raise AssertionError


@pytest.mark.parametrize(
    ("order_by", "message"),
    [
        (["ts", "town"], "input 0 has no column 'town'; its columns are: ts, name, score"),
        ("score", "begins with column 'score', but must begin with the event time column 'ts', ascending"),
        (
            [("ts", "desc"), "score"],
            "begins with column 'ts', descending, but rows can only be in ascending",
        ),
    ],
)
def test_an_order_that_does_not_begin_with_time_is_refused(order_by: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        score_harness(order_by=order_by)


def test_an_order_without_event_time_is_refused() -> None:
    with pytest.raises(SchemaError, match="declare event_time='ts' with a watermark_delay"):
        InputSpec(SCORE_SCHEMA, ("name",), order_by=(SortKey("ts"),))


def test_bundle_grain_cannot_be_ordered() -> None:
    with pytest.raises(
        SchemaError, match=r"operator 'operator': input 0 has order_by, but Bundles works on bund"
    ):
        OperatorHarness(Bundles(), SCORE_SCHEMA, ["name"], event_time="ts", order_by="ts")


def test_a_column_that_cannot_be_sorted_is_refused() -> None:
    schema = pa.schema([("ts", TIME), ("tags", pa.list_(pa.string()))])
    with pytest.raises(
        SchemaError, match=r"input 0 has order_by: column 'tags' of type list.*cannot be a key"
    ):
        OperatorHarness(Repr(), schema, [], event_time="ts", order_by=["ts", "tags"])


@pytest.mark.parametrize(
    ("given", "inputs", "message"),
    [
        (["ts", 3], 1, "order_by has 3, which is not a column"),
        ([("ts", "down")], 1, r"order_by has \('ts', 'down'\), which is not a column"),
        (["ts", ("ts", "desc")], 1, "names a column twice"),
        ("ts", 2, "has 2 inputs, so order_by needs one entry for each"),
        (["ts"], 2, "has 2 inputs, so order_by needs one entry for each"),
        (SortKey("ts"), 2, "has 2 inputs, so order_by needs one entry for each"),
    ],
)
def test_other_shapes_are_refused(given: Any, inputs: int, message: str) -> None:
    with pytest.raises(JobError, match=f"operator 'op'.*{message}"):
        sort_keys_of_inputs("op", given, inputs)


@pytest.mark.parametrize(
    ("given", "inputs", "keys"),
    [
        (None, 2, [(), ()]),
        ([], 1, [()]),
        ("ts", 1, [(SortKey("ts"),)]),
        (SortKey("ts"), 1, [(SortKey("ts"),)]),
        (["ts", ("n", "desc"), ("m", "asc")], 1, [(SortKey("ts"), SortKey("n", True), SortKey("m"))]),
        (("ts", SortKey("n", True)), 1, [(SortKey("ts"), SortKey("n", True))]),
        (["ts", None], 2, [(SortKey("ts"),), ()]),
        ((None, ["ts", ("n", "desc")]), 2, [(), (SortKey("ts"), SortKey("n", True))]),
    ],
)
def test_shapes_of_order_by(given: Any, inputs: int, keys: list[tuple[SortKey, ...]]) -> None:
    assert sort_keys_of_inputs("op", given, inputs) == keys


def test_orders_are_said_as_those_of_operators() -> None:
    """What is usual of nulls is not told: it is the order that a plain name has, also in a checkpoint."""
    given = [asc("at"), desc("score"), desc("name", nulls="first"), ("id", "desc")]
    keys = (
        SortKey("at"), SortKey("score", True), SortKey("name", True, True), SortKey("id", True)
    )  # fmt: skip
    assert sort_keys_of_inputs("op", given, 1) == [keys]
    assert sort_keys_of_inputs("op", asc("at"), 1) == [(SortKey("at"),)]
    assert sort_keys_of_inputs("op", [asc("at"), None], 2) == [(SortKey("at"),), ()]


def test_rows_come_by_asc_and_desc(mode: Mode) -> None:
    with score_harness(order_by=[asc("ts"), desc("score")], **mode) as harness:
        harness.push([(1, "Bob", 1), (2, "Bob", 5), (1, "Bob", 3), (1, "Bob", 2)])
        harness.end_batch()
        assert rows_of(harness.finish()) == [(1, 3), (1, 2), (1, 1), (2, 5)]
