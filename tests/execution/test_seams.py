"""Where mechanisms of execution meet: what a read shows, what a callback may return, who may use state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pyarrow as pa
import pytest

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.codec import KeyBatch
from asyncstate.errors import FutureStateError, OperatorError, StoreError
from asyncstate.execution import Pacer
from asyncstate.functions import KeyedProcessFunction
from asyncstate.futures import StateIterator, combine_all, completed_future
from asyncstate.operator import Bundle, BundleContext, BundleOperator
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.state.columnar.list_columns import ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor
from asyncstate.testing import FaultyStore, OperatorHarness, Tuning
from operators import KeyedProcess
from tests.pacers import AlwaysQuick, AlwaysSlow

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
VALUE = pa.schema([("value", pa.int64())])


@pytest.fixture(params=["sync", "async", "slow"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    if request.param == "slow":
        monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    return {"async_enabled": request.param != "sync"}


# -- what a read of a bundle shows ---------------------------------------------------------------------------


class AskThenWrite(BundleOperator):
    """Asks, writes, and then looks at the answer."""

    def __init__(self, lists: bool) -> None:
        self.lists = lists

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("found", pa.int64())])

    def open(self, context: Any) -> None:
        kind = ListColumnStateDescriptor if self.lists else ColumnStateDescriptor
        self.state: Any = context.get_state(kind("s", VALUE))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        keys = bundle.keys
        before = self.state.async_get(keys)
        if self.lists:
            rows = 3_000
            values = pa.array(range(rows * len(keys)), pa.int64())
            self.state.put(keys, [values], np.repeat(np.arange(len(keys)), rows))
            return before.then_accept(lambda found: self._emit(keys, found.counts, ctx))
        self.state.put(keys, [bundle.batch.column("v").take(pa.array(keys.first_rows()))])
        return before.then_accept(lambda found: ctx.emit([keys.columns[0], found.columns[0]]))

    def _emit(self, keys: KeyBatch, counts: Any, ctx: BundleContext) -> None:
        ctx.emit([keys.columns[0], pa.array(counts, pa.int64())])


@pytest.mark.parametrize("lists", [False, True], ids=["values", "lists"])
def test_a_read_shows_the_state_as_of_when_it_was_asked_for(mode: dict[str, Any], lists: bool) -> None:
    options = {"async-state.cache-size": "0b", "async-state.bundle-size": "2"}
    with OperatorHarness(AskThenWrite(lists), SCHEMA, ["k"], options=options, **mode) as harness:
        harness.push([(1, 10), (2, 20), (1, 11), (2, 21)])
        first = [row[1:] for row in harness.end_batch()]
        harness.push([(1, 12)])
        second = [row[1:] for row in harness.end_batch()]
    if lists:
        assert sorted(first) == [(1, 0), (1, 3_000), (2, 0), (2, 3_000)]
        assert second == [(1, 3_000)]
    else:
        assert sorted(first[:2], key=repr) == [(1, None), (2, None)]
        assert sorted(first[2:]) == [(1, 10), (2, 20)]
        assert second == [(1, 11)]


# -- what callbacks may return -------------------------------------------------------------------------------


class Chain(RecordOperator):
    """Runs ``work(state, ctx)``."""

    def __init__(self, work: Callable[[Any, Any], Any]) -> None:
        self.work = work

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("out", pa.string())])

    def open(self, context: Any) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", pa.int64()))

    def process(self, row: Any, ctx: Any) -> Any:
        return self.work(self.value, ctx)


async def never_run(*_: Any) -> None:
    raise AssertionError("nothing runs it")


def boom(*_: Any) -> None:
    raise ValueError("boom")


def run(work: Callable[[Any, Any], Any], mode: dict[str, Any]) -> list[Any]:
    with OperatorHarness(Chain(work), SCHEMA, ["k"], **mode) as harness:
        harness.push([(1, 1)])
        return [row[1] for row in harness.end_batch()]


COROUTINES: dict[str, Callable[[Any, Any], Any]] = {
    "then_accept": lambda state, ctx: state.async_value().then_accept(never_run),
    "then_apply": lambda state, ctx: state.async_value().then_apply(never_run),
    "recover": lambda state, ctx: state.async_value().then_apply(boom).recover(never_run),
    "finally_": lambda state, ctx: state.async_value().finally_(never_run),
    "on_next": lambda state, ctx: state.async_value().then_compose(
        lambda _: StateIterator([1, 2]).on_next(never_run)
    ),
    "then_conditionally_accept": lambda state, ctx: state.async_value().then_conditionally_accept(
        lambda _: True, never_run
    ),
    "then_conditionally_apply": lambda state, ctx: state.async_value().then_conditionally_apply(
        lambda _: False, boom, never_run
    ),
}


@pytest.mark.parametrize("name", COROUTINES)
def test_a_coroutine_function_as_a_callback_is_refused(mode: dict[str, Any], name: str) -> None:
    with pytest.raises(OperatorError, match=f"{name} got the coroutine function never_run.*async def"):
        run(COROUTINES[name], mode)


def yielding(*_: Any) -> Iterator[Any]:
    raise AssertionError("nothing runs it")
    yield


GENERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "then_accept": lambda state, ctx: state.async_value().then_accept(yielding),
    "finally_": lambda state, ctx: state.async_value().finally_(yielding),
    "on_next": lambda state, ctx: state.async_value().then_compose(
        lambda _: StateIterator([1, 2]).on_next(yielding)
    ),
    "then_conditionally_accept": lambda state, ctx: state.async_value().then_conditionally_accept(
        lambda _: False, boom, yielding
    ),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_whose_rows_would_be_ignored_is_refused(mode: dict[str, Any], name: str) -> None:
    with pytest.raises(OperatorError, match=f"{name} got the generator function yielding.*instead of yield"):
        run(GENERATORS[name], mode)


def test_a_failure_that_is_handled_behind_then_combine_fails_nothing(mode: dict[str, Any]) -> None:
    def combined(state: Any, ctx: Any) -> Any:
        first, second = ctx.call(boom, 1), ctx.call(boom, 2)
        both = first.then_combine(second, lambda one, two: "fine")
        return both.recover(lambda error: f"recovered from {error}").then_accept(ctx.emit)

    def listed(state: Any, ctx: Any) -> Any:
        both = combine_all([ctx.call(boom, 1), ctx.call(boom, 2)])
        return both.then_apply(str).recover(lambda error: f"recovered from {error}").then_accept(ctx.emit)

    assert run(combined, mode) == run(listed, mode) == ["recovered from boom"]
    with pytest.raises(OperatorError, match="ValueError: boom"):
        run(lambda state, ctx: ctx.call(boom).then_combine(ctx.call(boom), lambda one, two: None), mode)


def test_an_iteration_over_nothing_gives_an_empty_list() -> None:
    assert StateIterator([]).on_next(completed_future).get() == []
    assert StateIterator([1]).on_next(completed_future).get() == [1]
    assert StateIterator([1]).on_next(lambda _: None).get() is None


def test_a_future_with_a_value_from_the_start_has_no_failure() -> None:
    assert completed_future(1).failure_observed is False
    assert completed_future(1).then_apply(str).failure_observed is False


ANSWERS: dict[str, Callable[[Any, Any], Any]] = {
    "number": lambda state, ctx: 5,
    "row": lambda state, ctx: (1, 2),
    "list of futures": lambda state, ctx: [state.async_value()],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_process_returns_in_vain_is_refused(mode: dict[str, Any], name: str) -> None:
    with pytest.raises(
        FutureStateError, match=r"key \(1,\): the operator returned .*which is ignored.*ctx.emit"
    ):
        run(ANSWERS[name], mode)

    async def later(state: Any, ctx: Any) -> Any:
        await state.async_value()
        return ANSWERS[name](state, ctx)

    with pytest.raises((FutureStateError, OperatorError), match="which is ignored"):
        run(later, mode)


class Returns(KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> Any:
        return row.k, row.v


def test_a_row_that_a_process_function_returns_is_refused(mode: dict[str, Any]) -> None:
    with OperatorHarness(KeyedProcess(Returns(), SCHEMA), SCHEMA, ["k"], **mode) as harness:
        harness.push([(1, 2)])
        with pytest.raises(FutureStateError, match=r"returned \(1, 2\), which is ignored"):
            harness.end_batch()


# -- who may use state ---------------------------------------------------------------------------------------


class Elsewhere(RecordOperator):
    """Uses state where it must not."""

    def __init__(self, how: str) -> None:
        self.how = how

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("out", pa.int64())])

    def open(self, context: Any) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", pa.int64()))

    async def write_later(self, key: int) -> None:
        await anyio.sleep(0.001 * (5 - key))
        self.value.update(key)

    def write(self, key: int) -> None:
        self.value.update(key)

    def read(self, key: int) -> Any:
        return self.value.async_value()

    def process(self, row: Any, ctx: Any) -> Any:
        return ctx.call(getattr(self, self.how), row.k)


@pytest.mark.parametrize("how", ["write", "write_later", "read"])
def test_state_in_a_function_of_a_call_is_refused(mode: dict[str, Any], how: str) -> None:
    with OperatorHarness(Elsewhere(how), SCHEMA, ["k"], **mode) as harness:
        harness.push([(key, 0) for key in range(1, 5)])
        with pytest.raises(
            OperatorError, match=rf"state was used inside Elsewhere.{how}, a function of ctx.call"
        ):
            harness.end_batch()
        assert harness.state_entries() == {}


def test_a_call_that_cannot_start_leaves_nothing_waiting(mode: dict[str, Any]) -> None:
    class Unopened(Chain):
        async def open_calls(self) -> None:
            raise ValueError("no network")

    def work(state: Any, ctx: Any) -> None:
        try:
            ctx.call(boom)
        except OperatorError as error:
            ctx.emit(f"caught: {'no network' in str(error)}")

    with OperatorHarness(Unopened(work), SCHEMA, ["k"], **mode) as harness:
        harness.push([(1, 1), (2, 1)])
        assert [row[1] for row in harness.end_batch()] == ["caught: True"] * 2


# -- figures -------------------------------------------------------------------------------------------------


def test_keys_that_were_read_ahead_are_no_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    options = {"async-state.cache-size": "0b", "async-state.read-cache-size": "0b"}

    def work(state: Any, ctx: Any) -> Any:
        return state.async_value().then_compose(lambda value: state.async_update((value or 0) + 1))

    with OperatorHarness(Chain(work), SCHEMA, ["k"], async_enabled=True, options=options) as harness:
        for _ in range(3):
            harness.push([(key, 0) for key in range(3_000)])
            harness.end_batch()
        figures = harness.statistics()
    assert figures["read_ahead_keys"] > 0
    assert figures["store_reads"] >= 3_000
    assert figures["cache_hits"] + figures["cache_misses"] == figures["reads"]
    assert figures["cache_misses"] == figures["store_reads"]


def test_a_store_that_turns_slow_is_noticed_within_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some list gets on the task's own thread the rest of the bundle is read on others."""
    asked: list[tuple[bool, int]] = []
    mine = threading.get_ident()

    class TurnsSlow(Pacer):
        slow = False

        @property
        def waits_for_device(self) -> bool:
            return self.slow

    pacer = TurnsSlow()
    monkeypatch.setattr(worker_memory(), "pacer", pacer)
    from asyncstate.storage import RocksDBStore

    plain = RocksDBStore.get_many

    def get_many(self: Any, keys: list[bytes], *arguments: Any) -> Any:
        here = threading.get_ident() == mine
        asked.append((here, len(keys)))
        pacer.slow = pacer.slow or bool(asked and here)
        return plain(self, keys, *arguments)

    with OperatorHarness(
        AskThenWrite(False),
        SCHEMA,
        ["k"],
        async_enabled=True,
        options={"async-state.cache-size": "0b"},
        tuning=Tuning(columns_bytes=0),
    ) as harness:
        harness.push([(key, key) for key in range(4_000)])
        harness.end_batch()
        pacer.slow = False
        monkeypatch.setattr(RocksDBStore, "get_many", get_many)
        harness.push([(key, key) for key in range(4_000)])
        harness.end_batch()
    assert sum(count for here, count in asked if here) <= 512
    assert sum(count for _, count in asked) >= 4_000


def test_a_store_that_turns_slow_in_the_middle_is_read_by_threads() -> None:
    """Through the harness, with a store that takes its time: the second micro-batch reads on many threads."""
    made: list[FaultyStore] = []

    def through(store: Any) -> FaultyStore:
        made.append(FaultyStore(store))
        made[-1].delay(0.0, 0.0002 if len(made) > 1 else 0.0)
        return made[-1]

    with OperatorHarness(
        AskThenWrite(False),
        SCHEMA,
        ["k"],
        async_enabled=True,
        options={"async-state.cache-size": "0b"},
        tuning=Tuning(columns_bytes=0),
        wrap_store=through,
    ) as harness:
        for _ in range(2):
            harness.push([(key, key) for key in range(4_000)])
            harness.end_batch()
        assert harness.statistics()["io_threads_peak"] > 1
        assert made[-1].reads > 2


def test_a_damaged_read_under_an_operator_is_named(mode: dict[str, Any]) -> None:
    def through(store: Any) -> FaultyStore:
        faulty = FaultyStore(store)
        faulty.fail_read(1)
        return faulty

    with OperatorHarness(
        Chain(lambda state, ctx: state.async_value()), SCHEMA, ["k"], wrap_store=through, **mode
    ) as harness:
        harness.push([(1, 1)])
        with pytest.raises(StoreError, match=r"operator 'operator', state 'value'.*the disk is gone"):
            harness.end_batch()


def test_limits_are_read_back_in_both_modes(async_enabled: bool) -> None:
    options = {"async-state.in-flight-limit": "17"}
    with OperatorHarness(
        Chain(lambda state, ctx: None),
        SCHEMA,
        ["k"],
        async_enabled=async_enabled,
        options=options,
        tuning=Tuning(io_threads=3),
    ) as harness:
        harness.end_batch()
        figures = harness.statistics()
    expected = (17, 1_000, 1_000, 3) if async_enabled else (1, 1, 0, 1)
    names = ("in_flight_limit", "request_buffer_limit", "buffer_timeout_ms_limit", "io_parallelism_limit")
    assert tuple(figures[name] for name in names) == expected


@pytest.mark.parametrize(("timeout", "least", "most"), [("1ms", 8, 100), ("1h", 1, 2)])
def test_a_buffer_that_does_not_fill_goes_after_its_timeout(
    timeout: str, least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that take a while each: without a timeout all reads would wait for the last record."""
    options = {
        "async-state.buffer-size": "100000",
        "async-state.in-flight-limit": "100000",
        "async-state.buffer-timeout": timeout,
    }

    def work(state: Any, ctx: Any) -> Any:
        end = time.perf_counter() + 0.00005
        while time.perf_counter() < end:
            pass
        return state.async_value()

    monkeypatch.setattr(worker_memory(), "pacer", AlwaysQuick())
    waiting = Tuning(batch_hot_reads=True)
    with OperatorHarness(
        Chain(work), SCHEMA, ["k"], async_enabled=True, options=options, tuning=waiting
    ) as harness:
        harness.push([(key, 0) for key in range(64 * 10)])
        harness.end_batch()
        assert least <= harness.statistics()["read_batches"] <= most


@pytest.mark.parametrize("links", [400, 20_000])
def test_a_chain_of_reads_may_have_any_length(mode: dict[str, Any], links: int) -> None:
    def work(state: Any, ctx: Any) -> Any:
        def step(number: int) -> Any:
            if number == links:
                ctx.emit(f"{number} links")
                return completed_future(number)
            return state.async_value().then_compose(lambda _: step(number + 1))

        return step(0).then_accept(lambda number: ctx.emit(f"after {number}"))

    assert run(work, mode) == [f"{links} links", f"after {links}"]


def test_a_failure_deep_in_a_chain_fails_it(mode: dict[str, Any]) -> None:
    def work(state: Any, ctx: Any) -> Any:
        def step(number: int) -> Any:
            if number == 500:
                raise ValueError("deep")
            return state.async_value().then_compose(lambda _: step(number + 1))

        return step(0).recover(lambda error: f"recovered from {error}").then_accept(ctx.emit)

    assert run(work, mode) == ["recovered from deep"]
    with pytest.raises(OperatorError, match="ValueError: boom"):
        run(lambda state, ctx: _deep(state, 200), mode)


def _deep(state: Any, left: int) -> Any:
    return state.async_value().then_compose(lambda _: _deep(state, left - 1) if left else boom())
