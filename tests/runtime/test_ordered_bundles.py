"""Ordered inputs at bundle grain: parts cut at the same places, in the order that the operator asked for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncstate import BundleOperator, InputOrder, SortKey
from asyncstate.codec import key_group
from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.operator import MAX_WATERMARK
from asyncstate.testing import OperatorHarness, net
from operators import Sort, TemporalSort, asc, desc

KEY_GROUPS = 3
TIME = pa.timestamp("us")
ROWS = pa.schema([("at", TIME), ("key", pa.int64()), ("score", pa.int64()), ("id", pa.int64())])
SCORE = (SortKey("score", True),)


class Parts(BundleOperator):
    """Puts out what it gets, row by row: the number of the call, input, kind, id; unordered inputs have call -1."""

    def __init__(self, *orders: InputOrder | None) -> None:
        self.num_inputs = len(orders)  # type: ignore[misc]
        self.orders = orders

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([(name, pa.int64()) for name in ("call", "input", "row_kind_code", "id")])

    def open(self, context: Any) -> None:
        self.calls = 0

    def ordered_inputs(self, inputs: Any) -> Sequence[InputOrder | None]:
        return self.orders

    def process_bundle(self, bundle: Any, ctx: Any) -> None:
        self._emit(-1, bundle, ctx)

    def process_due(self, bundles: Any, ctx: Any) -> None:
        assert len(bundles) == self.num_inputs
        assert any(bundle is not None for bundle in bundles)
        for index, bundle in enumerate(bundles):
            if bundle is not None:
                assert bundle.input_index == index
                self._emit(self.calls, bundle, ctx)
        self.calls += 1

    def _emit(self, call: int, bundle: Any, ctx: Any) -> None:
        n = bundle.num_rows
        ids = bundle.batch.column("id")
        ctx.emit([np.full(n, call), np.full(n, bundle.input_index), bundle.kinds.astype(np.int64), ids])


class Row(NamedTuple):
    at: int
    key: int
    score: int | None
    kind: int
    input: int


class Cut(NamedTuple):
    """A micro-batch: its rows, how far the watermark goes on, the parallelism it runs at (a restart, if another)."""

    rows: list[Row]
    step: int
    parallelism: int


CUTS = st.lists(
    st.builds(
        Cut,
        st.lists(
            st.builds(
                Row,
                st.integers(-2, 5),
                st.integers(0, 3),
                st.sampled_from([None, 1, 2]),
                st.integers(0, 3),
                st.integers(0, 1),
            ),
            max_size=12,
        ),
        st.integers(0, 3),
        st.sampled_from([1, 2]),
    ),
    min_size=1,
    max_size=4,
)
ORDERS = [
    (InputOrder("event", SCORE), InputOrder("event")),
    (InputOrder("event", late="deliver"), InputOrder("event", SCORE)),
    (InputOrder("processing", SCORE), InputOrder("event")),
    (InputOrder("end", SCORE), InputOrder("end")),
    (None, InputOrder("event", SCORE, late="deliver")),
    (InputOrder("processing", SCORE), None),
]


def group_of(key: int) -> int:
    return key_group((key,), [pa.int64()], KEY_GROUPS)


def run(orders: Any, cuts: list[Cut], **mode: Any) -> tuple[Any, ...]:
    """The output of each micro-batch, what was stored after each, and how many rows were late."""
    outputs, stored = [], []
    late, watermark, number = 0.0, 0, 0
    harness = OperatorHarness(
        Parts(*orders),
        [ROWS, ROWS],
        [["key"], ["key"]],
        event_time="at",
        max_parallelism=KEY_GROUPS,
        parallelism=cuts[0].parallelism,
        options={"async-state.bundle-size": "3"},
        **mode,
    )
    for cut in cuts:
        if cut.parallelism != harness.parallelism:
            with harness as before:
                harness = before.restore(before.snapshot(), parallelism=cut.parallelism)
        watermark += cut.step
        harness.advance_watermark(watermark)
        for row in cut.rows:
            kind = ("+I", "-U", "+U", "-D")[row.kind]
            harness.push([(row.at, row.key, row.score, number)], row.input, kind=kind)
            number += 1
        outputs.append(harness.end_batch())
        stored.append(harness.state_entries())
        late += harness.statistics().get("counter.late_rows_dropped", 0)
    with harness:
        outputs.append(harness.finish())
        stored.append(harness.state_entries())
    return outputs, stored, late


def expected(orders: Any, cuts: list[Cut]) -> tuple[list[dict[int, list[tuple[int, int, int]]]], int]:
    """Of each micro-batch the (group, time, id) of each input's due rows in order, and the number of late rows."""
    waiting: list[tuple[int, Row, int]] = []
    due: list[dict[int, list[tuple[int, int, int]]]] = []
    late, number, watermark, before = 0, 0, 0, None
    for cut in [*cuts, Cut([], MAX_WATERMARK, 1)]:
        watermark = min(watermark + cut.step, MAX_WATERMARK)
        for row in cut.rows:
            order = orders[row.input]
            drops = order is not None and order.time == "event" and order.late == "drop"
            if drops and before is not None and row.at <= before:
                late += 1
            elif order is not None:
                waiting.append((number, row, row.input))
            number += 1
        now: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        kept = []
        for number_of, row, index in waiting:
            order = orders[index]
            ready = {
                "event": row.at <= watermark,
                "processing": True,
                "end": watermark == MAX_WATERMARK,
            }[order.time]
            if ready:
                time = row.at if order.time == "event" else 0
                now[index].append((group_of(row.key), time, number_of))
            else:
                kept.append((number_of, row, index))
        rows = dict(enumerate(row for cut in cuts for row in cut.rows))
        for index, entries in now.items():
            then = orders[index].then
            entries.sort(key=lambda e: (e[0], e[1], -(rows[e[2]].score or 0) if then else 0, e[2]))
        waiting, before = kept, watermark
        due.append(dict(now))
    return due, late


@given(st.sampled_from(ORDERS), CUTS)
@example(
    ORDERS[3], [Cut([Row(0, 0, score, 0, 0) for score in (1, 2, None, 1, 2)], 0, 1)]
)  # a place, five rows
@settings(max_examples=settings().max_examples // 4)
def test_parts_are_in_order_and_cut_at_the_same_places(
    async_enabled: bool, orders: Any, cuts: list[Cut]
) -> None:
    outputs, stored, late = run(orders, cuts, async_enabled=async_enabled)
    wanted, wanted_late = expected(orders, cuts)
    rows = dict(enumerate(row for cut in cuts for row in cut.rows))
    assert late == wanted_late
    for output, due in zip(outputs, wanted, strict=True):
        places: dict[tuple[int, int | None], set[tuple[int, int]]] = defaultdict(set)
        found: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        partition = 0
        last = (-1, -1)
        for _, call, index, kind, number in output:
            row = rows[number]
            assert kind == row.kind
            if call < 0:
                assert orders[index] is None
                continue
            if (call, index) < last:
                partition += call < last[0]
            last = (call, index)
            time = row.at if orders[index].time == "event" else 0
            place = group_of(row.key), time
            found[index].append((*place, number))
            if len([order for order in orders if order]) > 1:
                # Rows without an event time have a place of their own, which no event time is.
                places[place if orders[index].time == "event" else (place[0], None)].add((partition, call))
        assert dict(found) == due
        assert all(len(calls) == 1 for calls in places.values()), "a place was cut"
    assert stored[-1] == {}
    assert (outputs, stored, late) == run(orders, cuts, async_enabled=False)


def test_a_part_is_bounded_where_its_places_are_small(async_enabled: bool) -> None:
    with OperatorHarness(
        Parts(InputOrder("event")),
        ROWS,
        ["key"],
        event_time="at",
        async_enabled=async_enabled,
        options={"async-state.bundle-size": "10"},
    ) as harness:
        harness.push([(at, at % 7, 0, at) for at in range(100)])
        calls = [call for _, call, *_ in harness.finish()]
    assert len(set(calls)) >= 5
    assert max(map(calls.count, set(calls))) <= 20


def test_an_input_without_event_time_is_refused() -> None:
    with pytest.raises(SchemaError, match="input 0 has an order of event time, but no event time"):
        OperatorHarness(Parts(InputOrder("event")), ROWS, ["key"])


def test_an_order_for_each_input_is_asked_for() -> None:
    operator = Parts(None, None)
    operator.orders = (None,)
    with pytest.raises(SchemaError, match=r"ordered_inputs\(\) has 1 entries for 2 inputs"):
        OperatorHarness(operator, [ROWS, ROWS], [["key"], ["key"]])


def test_rows_may_wait_so_another_order_is_refused(async_enabled: bool) -> None:
    with OperatorHarness(
        Parts(InputOrder("end", SCORE)), ROWS, ["key"], async_enabled=async_enabled
    ) as harness:
        harness.push([(1, 1, 1, 1)])
        harness.end_batch()
        with pytest.raises(
            StateDeclarationError, match="was ordered by the end of the input, score int64 descending"
        ):
            harness.restore(harness.snapshot(), operator=Parts(None))


def test_without_process_due_the_operator_is_named(async_enabled: bool) -> None:
    class Silent(Parts):
        process_due = BundleOperator.process_due

    with OperatorHarness(
        Silent(InputOrder("processing")), ROWS, ["key"], async_enabled=async_enabled
    ) as harness:
        harness.push([(1, 1, 1, 1)])
        with pytest.raises(OperatorError, match="Silent has ordered inputs but no process_due method"):
            harness.end_batch()


# -- the operators that are nothing else -------------------------------------------------------------------


def run_sort(operator: Any, rows: list[tuple[Any, ...]], **mode: Any) -> list[tuple[Any, ...]]:
    event_time = "at" if getattr(operator, "time", None) == "event" else None
    with OperatorHarness(operator, ROWS, None, event_time=event_time, **mode) as harness:
        for row in rows:
            harness.push([row])
        harness.end_batch()
        harness.finish()
        assert harness.state_entries() == {}
        return [row[1:] for row in harness.output]


SORTED = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.sampled_from([None, 1, 2]), st.integers(0, 9)),
    max_size=12,
)


@given(SORTED, st.booleans(), st.sampled_from(["first", "last"]))
@settings(max_examples=settings().max_examples // 4)
def test_rows_come_out_sorted(async_enabled: bool, rows: Any, descending: bool, nulls: Any) -> None:
    score = (desc if descending else asc)("score", nulls)
    null = -10 if nulls == "first" else 10

    def level(row: tuple[Any, ...]) -> int:
        return null if row[2] is None else -row[2] if descending else row[2]

    mode = {"async_enabled": async_enabled, "options": {"async-state.bundle-size": "2"}}
    assert run_sort(Sort([score, "key"]), rows, **mode) == sorted(rows, key=lambda r: (level(r), r[1]))
    assert run_sort(TemporalSort(score), rows, **mode) == sorted(rows, key=lambda r: (r[0], level(r)))
    assert run_sort(TemporalSort(score, time="processing"), rows, **mode) == sorted(rows, key=level)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["+I", "-D", "+U", "-U"])), max_size=14))
@settings(max_examples=settings().max_examples // 4)
def test_sort_puts_out_what_was_not_taken_back(async_enabled: bool, changes: list[tuple[int, str]]) -> None:
    schema = pa.schema([("v", pa.int64())])
    options = {"async-state.bundle-size": "1"}
    with OperatorHarness(
        Sort(desc("v")), schema, None, async_enabled=async_enabled, options=options
    ) as harness:
        for value, kind in changes:
            harness.push([(value,)], kind=kind)
            harness.end_batch()
        rows = harness.finish()
        missing = harness.statistics().get("counter.retractions_without_state", 0)
        assert harness.state_entries() == {}
    counts = net((kind, value) for value, kind in changes)
    assert rows == [("+I", value) for value in (2, 1, 0) for _ in range(counts[value,])]
    assert missing == sum(-count for count in counts.values() if count < 0)


def test_sort_takes_a_row_back_by_a_deletion_of_another_position(async_enabled: bool) -> None:
    schema = pa.schema([("v", pa.int64()), ("lsn", pa.int64())])
    with OperatorHarness(Sort("v"), schema, None, sequence="lsn", async_enabled=async_enabled) as harness:
        harness.push([(1, 1), (2, 2), (3, 3)])
        harness.end_batch()
        harness.push([(1, 4), (2, 5), (2, 6)], kinds=["-D", "-U", "+U"])
        assert harness.finish() == [("+I", 2, 6), ("+I", 3, 3)]
        assert harness.statistics().get("counter.retractions_without_state", 0) == 0


def test_temporal_sort_drops_late_rows_and_says_so(async_enabled: bool) -> None:
    with OperatorHarness(TemporalSort(), ROWS, None, event_time="at", async_enabled=async_enabled) as harness:
        harness.advance_watermark(5)
        harness.push([(4, 0, 0, 0), (6, 0, 0, 1)])
        assert harness.end_batch() == [("+I", 4, 0, 0, 0)]
        harness.push([(5, 0, 0, 2), (7, 0, 0, 3)])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.late_rows_dropped"] == 1
        assert harness.finish() == [("+I", 6, 0, 0, 1), ("+I", 7, 0, 0, 3)]


@pytest.mark.parametrize(
    ("operator", "settings", "message"),
    [
        (TemporalSort, {}, "TemporalSort: time='event' needs an event time but input 0 declares none"),
        (
            lambda: TemporalSort("town"),
            {"event_time": "at"},
            "TemporalSort: order_by: input 0 has no column 'town'",
        ),
        (lambda: Sort("town"), {}, "Sort: order_by: input 0 has no column 'town'"),
        (
            lambda: TemporalSort(time="soon"),
            {},
            "TemporalSort: time is 'soon'; choose 'event' or 'processing'",
        ),
        (lambda: Sort([]), {}, "Sort: order_by is empty"),
    ],
)
def test_what_cannot_be_sorted_is_refused(operator: Any, settings: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        OperatorHarness(operator(), ROWS, None, **settings)


def test_temporal_sort_takes_no_rows_back() -> None:
    with pytest.raises(SchemaError, match=r"\(TemporalSort\) does not accept retractions"):
        OperatorHarness(TemporalSort(), ROWS, None, event_time="at", changelog=True)
