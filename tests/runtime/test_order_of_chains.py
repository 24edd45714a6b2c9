"""Rows that a record emits from several chains stand, in async mode, where they stand in sync mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateFuture,
    ValueStateDescriptor,
    combine_all,
)
from asyncstate.futures import as_completed
from asyncstate.operator import InputSpec, OperatorContext, RecordOperator
from asyncstate.testing import OperatorHarness, Tuning

ROWS = pa.schema([("k", pa.int64()), ("program", pa.int64())])
OUT = pa.schema([("k", pa.int64()), ("place", pa.int64())])
WAITING: dict[str, Any] = {"tuning": Tuning(batch_hot_reads=True)}
MODES: dict[str, dict[str, Any]] = {
    "at once": {},
    "gathered": WAITING,
    "tiny": {
        **WAITING,
        "options": {
            "async-state.in-flight-limit": "5",
            "async-state.buffer-size": "2",
            "async-state.iterate-response-batch-size": "2",
        },
    },
}
STATES = 4

# An action: ("emit",), ("read", state, actions), ("then", state, actions, actions), ("both", state, state, actions),
# ("pages", actions), ("list", actions), ("add", actions) and ("append", actions) for states whose writes read,
# ("own", actions) for a future of the operator's own, and ("complete",) for the oldest of these.
Action = tuple[Any, ...]


class Chains(RecordOperator):
    """Runs the actions of the program that a row names; ``awaits``: reads of the outermost ones are awaited."""

    def __init__(self, programs: Sequence[Sequence[Action]], awaits: bool) -> None:
        self.programs, self.awaits = programs, awaits

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return OUT

    def open(self, context: OperatorContext) -> None:
        # Names: the order in which reads of one record are answered, run against the order in which they begin.
        self.values = [
            context.get_state(ValueStateDescriptor(f"value_{STATES - number}", pa.int64()))
            for number in range(STATES)
        ]
        self.map = context.get_state(MapStateDescriptor("map", pa.int64(), pa.int64()))
        self.sum = context.get_state(ReducingStateDescriptor("sum", int.__add__, pa.int64()))
        self.list = context.get_state(ListStateDescriptor("list", pa.int64()))
        self.log = context.get_state(ListStateDescriptor("log", pa.int64()))

    def process(self, row: Any, ctx: Any) -> Any:
        if row.program < 0:
            for state in self.values:
                state.update(1)
            self.map.put_all({number: number for number in range(5)})
            self.sum.add(1)
            self.list.add_all(range(5))
            return None
        run = _Run(self, row.k, ctx)
        actions = self.programs[row.program]
        return run.awaiting(actions) if self.awaits else run.all(actions)


class _Run:
    def __init__(self, operator: Chains, key: int, ctx: Any) -> None:
        self.operator, self.key, self.ctx = operator, key, ctx
        self.own: list[StateFuture[int]] = []
        self.made = 0

    async def awaiting(self, actions: Sequence[Action]) -> None:
        for number, action in enumerate(actions):
            if action[0] == "read":
                await self.operator.values[action[1]].async_value()
                self.all(action[2], (number,))
            else:
                self.all([action], (number,))

    def all(self, actions: Sequence[Action], path: tuple[int, ...] = ()) -> StateFuture[Any]:
        return combine_all([self.one(action, (*path, number)) for number, action in enumerate(actions)])

    def one(self, action: Action, path: tuple[int, ...]) -> StateFuture[Any]:
        values = self.operator.values
        kind, *given = action

        def inside(actions: Sequence[Action], more: int = 0) -> Any:
            return lambda *_: self.all(actions, (*path, more))

        if kind == "emit":
            self.ctx.emit(self.key, sum(10**at * (number + 1) for at, number in enumerate(path)))
        elif kind == "read":
            return values[given[0]].async_value().then_compose(inside(given[1]))
        elif kind == "then":
            first = values[given[0]].async_value().then_compose(inside(given[1]))
            return first.then_compose(inside(given[2], 1))
        elif kind == "both":
            both = values[given[0]].async_value().then_combine(values[given[1]].async_value(), max)
            return both.then_compose(inside(given[2]))
        elif kind == "pages":
            entries = self.operator.map.async_keys()
            return entries.then_compose(lambda found: found.on_next(inside(given[0])))
        elif kind == "add":
            return self.operator.sum.async_add(1).then_compose(inside(given[0]))
        elif kind == "append":
            return self.operator.log.async_add(1).then_compose(inside(given[0]))
        elif kind == "list":
            entries = self.operator.list.async_get()
            return entries.then_compose(lambda found: found.on_next(inside(given[0])))
        elif kind == "own":
            future: StateFuture[int] = StateFuture()
            self.own.append(future)
            future.then_apply(lambda _: None).then_compose(inside(given[0]))
        elif self.own:
            self.own.pop(0).complete(1)
        return combine_all([])


def _programs(depth: int) -> st.SearchStrategy[list[Action]]:
    state = st.integers(0, STATES - 1)
    leaves: st.SearchStrategy[Action] = st.just(("emit",))
    if not depth:
        return st.lists(leaves, max_size=2)
    inner = _programs(depth - 1)
    return st.lists(
        leaves
        | st.tuples(st.just("read"), state, inner)
        | st.tuples(st.just("then"), state, inner, inner)
        | st.tuples(st.just("both"), state, state, inner)
        | st.tuples(st.sampled_from(["pages", "list"]), st.lists(leaves, max_size=2))
        | st.tuples(st.sampled_from(["add", "append"]), inner),
        max_size=4,
    )


def _outermost() -> st.SearchStrategy[list[Action]]:
    """With futures of the operator's own among the outermost actions."""
    own = st.tuples(st.just("own"), st.lists(st.just(("emit",)), max_size=2))
    return st.lists(
        _programs(2).map(tuple) | own.map(lambda one: (one,)) | st.just((("complete",),)), max_size=4
    ).map(lambda parts: [action for part in parts for action in part])


def _rows(programs: Any, awaits: bool, rows: Any, async_enabled: bool, settings: dict[str, Any]) -> list[Any]:
    operator = Chains(programs, awaits)
    with OperatorHarness(operator, ROWS, ["k"], async_enabled=async_enabled, **settings) as harness:
        harness.push([(key, -1) for key in range(4)])
        harness.end_batch()
        harness.push(rows)
        return harness.end_batch()


@pytest.mark.parametrize("mode", MODES)
@settings(deadline=None)
@given(
    programs=st.lists(_outermost(), min_size=1, max_size=3),
    keys=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    awaits=st.booleans(),
)
def test_rows_stand_as_in_sync_mode(mode: str, programs: Any, keys: Any, awaits: bool) -> None:
    rows = [(key, number % len(programs)) for number, key in enumerate(keys)]
    expected = _rows(programs, awaits, rows, False, {})
    assert _rows(programs, awaits, rows, True, MODES[mode]) == expected


def test_rows_of_independent_chains_stand_in_the_order_of_the_chains() -> None:
    """Of reads that are answered the other way round, with a row of the record's own code between them."""
    program = [
        ("read", 0, [("emit",)]),
        ("emit",),
        ("read", 3, [("emit",), ("read", 1, [("emit",)]), ("emit",)]),
    ]
    rows = [(key, 0) for key in (2, 0, 3, 2, 1)]
    emitted = [place for _, _, place in _rows([program], False, rows, True, MODES["gathered"])]
    assert emitted == [111, 2, 113, 11213, 313] * 5


class OwnFutures(Chains):
    """``code(operator, emit)`` for each row; ``emit(place)`` emits a row."""

    def __init__(self, code: Any) -> None:
        super().__init__([], False)
        self.code = code

    def process(self, row: Any, ctx: Any) -> Any:
        return self.code(self, lambda place: ctx.emit(row.k, place))


def completed_in_a_callback(operator: Any, emit: Any) -> Any:
    mine: StateFuture[int] = StateFuture()

    def complete(_: Any) -> None:
        mine.complete(1)
        emit(1)

    async def awaiting() -> None:
        operator.values[0].async_value().then_accept(complete)
        await mine
        emit(2)

    return awaiting()


def completed_before_it_is_used(operator: Any, emit: Any) -> Any:
    mine: StateFuture[int] = StateFuture()
    operator.values[0].async_value().then_accept(lambda _: mine.complete(1))
    emit(1)
    return mine.then_accept(lambda _: emit(2))


def completed_in_the_middle(operator: Any, emit: Any) -> Any:
    mine: StateFuture[int] = StateFuture()
    mine.then_accept(lambda _: emit(2))

    def complete(_: Any) -> None:
        emit(1)
        mine.complete(1)
        emit(3)

    operator.values[0].async_value().then_accept(complete)
    emit(4)


def returned_to_then_compose(operator: Any, emit: Any) -> Any:
    mine: StateFuture[int] = StateFuture()
    operator.values[0].async_value().then_compose(lambda _: mine).then_accept(lambda _: emit(2))
    emit(1)
    return operator.values[1].async_value().then_accept(lambda _: mine.complete(1))


def first_to_complete(operator: Any, emit: Any) -> Any:
    mine: StateFuture[int] = StateFuture()
    as_completed([mine])[0].then_accept(lambda _: emit(2))
    emit(1)
    return operator.values[1].async_value().then_accept(lambda _: mine.complete(1))


@pytest.mark.parametrize(
    ("code", "places"),
    [
        (completed_in_a_callback, [1, 2]),
        (completed_before_it_is_used, [1, 2]),
        (completed_in_the_middle, [1, 2, 3, 4]),
        (returned_to_then_compose, [1, 2]),
        (first_to_complete, [1, 2]),
    ],
)
def test_rows_of_own_futures_stand_where_they_are_used_or_completed(
    code: Any, places: list[int], async_enabled: bool
) -> None:
    """Whichever of the two is later in the operator's code."""
    rows = [(key, 0) for key in (2, 0, 2)]
    with OperatorHarness(OwnFutures(code), ROWS, ["k"], async_enabled=async_enabled, **WAITING) as harness:
        harness.push(rows)
        assert [place for _, _, place in harness.end_batch()] == places * 3


def sums(operator: Any) -> Any:
    return operator.sum


def lists(operator: Any) -> Any:
    return operator.log


@pytest.mark.parametrize("state", [sums, lists])
def test_rows_of_states_whose_writes_read_stand_in_the_order_of_the_chains(
    state: Any, async_enabled: bool
) -> None:
    def code(operator: Any, emit: Any) -> Any:
        state(operator).async_add(1).then_accept(lambda _: emit(1))
        emit(2)
        state(operator).async_get().then_accept(lambda _: emit(3))
        emit(4)
        return state(operator).async_add(2).then_accept(lambda _: emit(5))

    with OperatorHarness(OwnFutures(code), ROWS, ["k"], async_enabled=async_enabled, **WAITING) as harness:
        for _ in range(2):
            harness.push([(key, 0) for key in (2, 0, 2)])
            assert [place for _, _, place in harness.end_batch()] == [1, 2, 3, 4, 5] * 3


@pytest.mark.parametrize("length", [3_000])
def test_a_chain_of_any_length_needs_no_stack(length: int, async_enabled: bool) -> None:
    class Long(Chains):
        def process(self, row: Any, ctx: Any) -> Any:
            def step(left: int) -> StateFuture[Any]:
                ctx.emit(row.k, left)
                if not left:
                    return combine_all([])
                return self.values[left % STATES].async_value().then_compose(lambda _: step(left - 1))

            return step(length)

    with OperatorHarness(Long([], False), ROWS, ["k"], async_enabled=async_enabled, **WAITING) as harness:
        harness.push([(1, 0)])
        assert [place for _, _, place in harness.end_batch()] == list(range(length, -1, -1))
