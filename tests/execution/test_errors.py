"""Failures: each fails the micro-batch once, names where it happened, and nothing of the operator runs after it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.codec import KeyBatch, KeyCodec
from asyncstate.errors import CodecError, FutureStateError, OperatorError, StoreError
from asyncstate.execution import AsyncLimits
from asyncstate.futures import StateFuture, to_iterable
from asyncstate.operator import InputSpec, RecordContext, RecordOperator, Row, Timer
from asyncstate.state import (
    ColumnStateDescriptor,
    ListColumnStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from asyncstate.testing import FaultyStore, OperatorHarness
from tests.execution.rig import ASYNC_MODES, MODES, Rig, threads_end
from tests.memory_store import MemoryStore

VALUE = ValueStateDescriptor("total", pa.int64())
LIST = ListStateDescriptor("seen", pa.int64())
MAP = MapStateDescriptor("prices", pa.string(), pa.int64())

COLUMNS = ColumnStateDescriptor("counts", pa.schema([("bids", pa.int64())]))
LIST_COLUMNS = ListColumnStateDescriptor("counts", pa.schema([("bid", pa.int64())]))

Read = Callable[[Any], Any]

READS: dict[str, tuple[Any, Read]] = {
    "value": (VALUE, lambda state: state.value()),
    "async_value": (VALUE, lambda state: state.async_value()),
    "list get": (LIST, lambda state: list(state.get())),
    "list async_get": (LIST, lambda state: to_iterable(state.async_get())),
    "map get": (MAP, lambda state: state.get("a")),
    "map async_get": (MAP, lambda state: state.async_get("a")),
    "map entries": (MAP, lambda state: list(state.entries())),
    "map async_entries": (MAP, lambda state: to_iterable(state.async_entries())),
    "map async_values": (MAP, lambda state: to_iterable(state.async_values())),
}


def _keys(count: int) -> KeyBatch:
    return KeyCodec([pa.int64()], ["k"], 4).group([pa.array(range(count))], num_rows=count)


def _stored(descriptor: Any) -> FaultyStore:
    """A store in which key 7 has a value, a list of one, or a map of one entry."""
    store = FaultyStore(MemoryStore())
    with Rig("sync", store=store) as rig:
        state = rig.state(descriptor)
        writes = {
            "total": lambda *_: state.update(1),
            "seen": lambda *_: state.add(1),
            "prices": lambda *_: state.put("a", 1),
        }
        rig.run([7], writes[descriptor.name])
        rig.commit()
    return store


def _corrupt_all(store: FaultyStore) -> None:
    for key, _ in store.scan(b"", None, 100):
        store.corrupt(key, b"\xfd")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("read", READS)
class TestEveryRead:
    def test_damaged_bytes_name_operator_state_and_key(self, mode: str, read: str) -> None:
        descriptor, use = READS[read]
        store = _stored(descriptor)
        _corrupt_all(store)
        with Rig(mode, store=store) as rig:
            state = rig.state(descriptor)
            with pytest.raises(
                OperatorError, match=rf"operator 'op', state '{descriptor.name}', key \(7,\): CodecError"
            ) as raised:
                rig.run([7], lambda item, ctx: use(state))
        assert isinstance(raised.value.__cause__, CodecError)
        assert raised.value.__cause__.__traceback__ is not None

    def test_a_failing_store_names_operator_state_and_key(self, mode: str, read: str) -> None:
        descriptor, use = READS[read]
        store = _stored(descriptor)
        with Rig(mode, store=store) as rig:
            state = rig.state(descriptor)
            store.fail_read(1)
            with pytest.raises(
                StoreError,
                match=rf"operator 'op', state '{descriptor.name}', key \(7,\): the disk is gone.*local-dir",
            ) as raised:
                rig.run([7], lambda item, ctx: use(state))
        assert isinstance(raised.value.__cause__, StoreError)
        assert str(raised.value.__cause__) == "the disk is gone"


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_store_is_not_for_the_operator_to_recover_from(mode: str) -> None:
    store = _stored(VALUE)

    async def process(item: int, ctx: Any) -> None:
        try:
            await state.async_value()
        except StoreError:
            ctx.emit(0, 0)

    with Rig(mode, store=store) as rig:
        state = rig.state(VALUE)
        store.fail_read(1)
        with pytest.raises(StoreError, match=r"operator 'op'.*the disk is gone"):
            rig.run([7], process)


@pytest.mark.parametrize("mode", MODES)
def test_damaged_bytes_can_be_recovered_from(mode: str) -> None:
    store = _stored(VALUE)
    _corrupt_all(store)
    with Rig(mode, store=store) as rig:
        state = rig.state(VALUE)
        rows = rig.run(
            [7],
            lambda item, ctx: state.async_value().recover(lambda _: -1).then_accept(lambda v: ctx.emit(7, v)),
        )
    assert rows == [(7, -1)]


@pytest.mark.parametrize("mode", MODES)
class TestTheEndOfABatch:
    def test_nothing_of_the_operator_runs_after_a_failure(self, mode: str) -> None:
        ran: list[int] = []

        def process(item: int, ctx: Any) -> Any:
            def callback(_: Any) -> None:
                ran.append(item)
                if item == 3:
                    raise ValueError("mine")

            return state.async_value().then_accept(callback)

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            place = r"operator 'op', state 'total', callback of then_accept, key \(3,\)"
            with pytest.raises(OperatorError, match=f"{place}: ValueError: mine"):
                rig.run(range(20), process)
        # Which of the list gets comes back first is for their threads to say.
        assert ran[-4:] == [0, 1, 2, 3]

    def test_the_traceback_of_the_user_is_the_cause(self, mode: str) -> None:
        def mine(_: Any) -> None:
            raise ValueError("mine")

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(OperatorError) as raised:
                rig.run([7], lambda item, ctx: state.async_value().then_accept(mine))
        cause = raised.value.__cause__
        assert isinstance(cause, ValueError)
        trace = cause.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        assert trace is not None
        assert trace.tb_frame.f_code is mine.__code__

    def test_a_failure_that_its_own_coroutine_handles_later_is_none(self, mode: str) -> None:
        """Other records end in between; they must not trip over it."""

        async def process(item: int, ctx: Any) -> None:
            if item % 2:
                await state.async_value()
                ctx.emit(item, "plain")
                return
            broken = state.async_value().then_apply(lambda _: 1 // 0)
            for _ in range(3):
                await state.async_value()
            try:
                await broken
            except ZeroDivisionError:
                ctx.emit(item, "handled")

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            rows = rig.run(range(20), process)
        assert rows == [(item, "plain" if item % 2 else "handled") for item in range(20)]

    def test_a_failure_in_one_record_is_not_blamed_on_another(self, mode: str) -> None:
        def process(item: int, ctx: Any) -> Any:
            failing = state.async_value().then_apply(lambda _: 1 // (item - 5))
            return failing.then_accept(lambda _: None) if item != 5 else state.async_value()

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(OperatorError, match=r"key \(5,\): ZeroDivisionError"):
                rig.run(range(20), process)

    def test_generators_are_refused(self, mode: str) -> None:
        def process(item: int, ctx: Any) -> Any:
            yield item

        with (
            pytest.raises(FutureStateError, match=r"key \(7,\).*generator; use await"),
            Rig(mode) as rig,
        ):
            rig.run([7], process)


@pytest.mark.parametrize("mode", ["batched", "threads"])
def test_coroutines_in_flight_are_closed(mode: str) -> None:
    """Their ``finally`` blocks run, even one that misbehaves, and Python has nothing to warn about."""
    closed: list[int] = []

    async def process(item: int, ctx: Any) -> None:
        if item == 5:
            raise ValueError("mine")
        try:
            await state.async_value()
        finally:
            closed.append(item)
            if item == 1:
                await state.async_value()

    with Rig(mode) as rig:
        state = rig.state(VALUE)
        with pytest.raises(OperatorError, match="ValueError: mine"):
            rig.run(range(6), process)
    gc.collect()
    assert closed == [0, 1, 2, 3, 4]


class TestReturnedFutures:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("coroutine", [False, True])
    def test_a_future_that_nothing_completes_is_an_error(self, mode: str, coroutine: bool) -> None:
        def plain(item: int, ctx: Any) -> Any:
            return StateFuture() if item == 2 else state.async_value()

        async def awaiting(item: int, ctx: Any) -> Any:
            await state.async_value()
            return StateFuture() if item == 2 else None

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(
                FutureStateError, match=r"operator 'op', key \(2,\): returned a future that nothing"
            ):
                rig.run(range(5), awaiting if coroutine else plain)

    @pytest.mark.parametrize("mode", MODES)
    def test_so_it_is_from_a_bundle_and_from_on_watermark(self, mode: str) -> None:
        with Rig(mode) as rig:
            with pytest.raises(FutureStateError, match="operator 'op': returned a future that nothing"):
                rig.controller.run_bundle(StateFuture)
            with pytest.raises(FutureStateError, match="operator 'op': returned a future that nothing"):
                rig.without_key(lambda item, ctx: StateFuture())

    @pytest.mark.parametrize("mode", MODES)
    def test_a_future_of_the_operators_own_may_be_completed_by_its_record(self, mode: str) -> None:
        def process(item: int, ctx: Any) -> Any:
            promise: StateFuture[int] = StateFuture()
            state.async_value().then_accept(lambda _: promise.complete(item))
            return promise.then_accept(lambda value: ctx.emit(item, value))

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            assert rig.run(range(20), process) == [(item, item) for item in range(20)]


class TestMisuse:
    @pytest.mark.parametrize("mode", ["batched", "threads"])
    def test_a_future_kept_for_another_key_is_refused_with_both_keys(self, mode: str) -> None:
        kept: list[Any] = []

        def process(item: int, ctx: Any) -> Any:
            if not kept:
                kept.append(state.async_value())
                return kept[0]
            return kept[0].then_accept(lambda _: None)

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(
                OperatorError, match=r"key \(0,\)> was derived.*key \(1,\) is being processed"
            ) as raised:
                rig.run([0, 1], process)
        assert isinstance(raised.value.__cause__, FutureStateError)

    @pytest.mark.parametrize("mode", ["batched", "threads"])
    @pytest.mark.parametrize("use", ["await", "return", "compose"])
    def test_so_it_is_by_any_other_use(self, mode: str, use: str) -> None:
        kept: list[Any] = []

        async def awaits(item: int, ctx: Any) -> None:
            kept.append(state.async_value())
            await kept[0]

        def returns(item: int, ctx: Any) -> Any:
            kept.append(state.async_value())
            return kept[0]

        def composes(item: int, ctx: Any) -> Any:
            kept.append(state.async_value())
            return kept[-1].then_compose(lambda _: kept[1])

        work = {"await": awaits, "return": returns, "compose": composes}[use]
        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(OperatorError, match=r"FutureStateError.*Keep futures in local"):
                rig.run([0, 1], work)

    @pytest.mark.parametrize("mode", MODES)
    def test_a_future_completed_by_another_record_is_refused(self, mode: str) -> None:
        kept: list[StateFuture[int]] = []

        def process(item: int, ctx: Any) -> None:
            if item == 0:
                kept.append(StateFuture())
                kept[0].then_accept(lambda _: state.update(1))
            else:
                kept[0].complete(1)

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(OperatorError, match=r"key \(0,\)> was completed.*key \(1,\)"):
                rig.run([0, 1], process)

    @pytest.mark.parametrize("mode", ["batched", "threads"])
    def test_a_future_of_the_framework_cannot_be_completed(self, mode: str) -> None:
        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(
                OperatorError, match=r"was completed by the operator.*StateFuture\(\) that you created"
            ):
                rig.run([0], lambda item, ctx: state.async_value().complete(1))

    @pytest.mark.parametrize("mode", ["batched", "threads"])
    def test_a_future_kept_past_the_micro_batch_is_refused(self, mode: str) -> None:
        kept: list[StateFuture[Any]] = []

        def process(item: int, ctx: Any) -> None:
            kept.extend([StateFuture(), state.async_value()])
            raise ValueError("mine")

        with Rig(mode) as rig:
            state = rig.state(VALUE)
            with pytest.raises(OperatorError, match="mine"):
                rig.run([0], process)
        with pytest.raises(FutureStateError, match=r"key \(0,\)> was completed after its micro-batch ended"):
            kept[0].complete(1)
        with pytest.raises(FutureStateError, match=r"key \(0,\)> was derived .*after its micro-batch ended"):
            kept[1].then_apply(lambda _: 1)

    @pytest.mark.parametrize("mode", MODES)
    def test_awaiting_what_nothing_completes_shows_the_line(self, mode: str) -> None:
        async def process(item: int, ctx: Any) -> None:
            await StateFuture()  # this line

        with pytest.raises(FutureStateError, match="nothing completes") as raised, Rig(mode) as rig:
            rig.run([0], process)
        assert any(entry.frame.code.raw is process.__code__ for entry in raised.traceback)

    @pytest.mark.parametrize("mode", MODES)
    def test_waiting_on_an_event_loop_is_refused_with_the_way_out(self, mode: str) -> None:
        import asyncio

        import anyio

        async def sleeps(item: int, ctx: Any) -> None:
            await asyncio.sleep(1)

        async def sleeps_not(item: int, ctx: Any) -> None:
            await asyncio.sleep(0)

        async def sleeps_with_anyio(item: int, ctx: Any) -> None:
            await anyio.sleep(1)

        for process in (sleeps, sleeps_not, sleeps_with_anyio):
            with (
                pytest.raises((OperatorError, FutureStateError), match=r"await ctx\.call\(function"),
                Rig(mode) as rig,
            ):
                rig.run([0], process)


class TestWatchdog:
    def test_hanging_reads_are_named_and_not_waited_for(self) -> None:
        store = FaultyStore(MemoryStore())
        limits = AsyncLimits(watchdog_timeout_ms=50, io_parallelism=2, buffer_size=1)
        with threads_end():
            try:
                with Rig("threads", store=store, limits=limits, clock=lambda: 0.0) as rig:
                    state = rig.state(VALUE)
                    store.hang()
                    with pytest.raises(
                        StoreError,
                        match=r"operator 'op': 2 list gets have not answered; the oldest: state 'total', "
                        r"key \(1,\), for \d.*; state 'total', key \(2,\).*check the disk",
                    ):
                        rig.run([1, 2], lambda item, ctx: state.async_value())
            finally:
                store.release()

    def test_a_read_behind_a_failing_one_is_dropped(self) -> None:
        store = FaultyStore(MemoryStore())
        seen: list[int] = []
        with threads_end(), Rig("threads", store=store) as rig:
            state = rig.state(VALUE)
            store.fail_read(1)
            with pytest.raises(StoreError, match="the disk is gone"):
                rig.run(
                    range(30), lambda item, ctx: state.async_value().then_accept(lambda _: seen.append(item))
                )
        assert len(seen) < 30

    def test_a_hanging_list_get_of_a_bundle_is_named(self) -> None:
        store = FaultyStore(MemoryStore())
        limits = AsyncLimits(watchdog_timeout_ms=50, io_parallelism=2)
        with threads_end(), Rig("threads", store=store, limits=limits) as rig:
            state = rig.state(COLUMNS)
            keys = _keys(8)
            first = keys.store_keys(8)[0].hex()
            try:
                store.hang()
                with pytest.raises(StoreError, match=rf"operator 'op': .*state 'counts', store key {first}"):
                    rig.controller.run_bundle(lambda: state.async_get(keys))
            finally:
                store.release()


@pytest.mark.parametrize("mode", MODES)
class TestBundles:
    @pytest.mark.parametrize("descriptor", [COLUMNS, LIST_COLUMNS], ids=["columns", "list columns"])
    @pytest.mark.parametrize("method", ["get", "async_get"])
    def test_a_failing_store_names_the_state(self, mode: str, descriptor: Any, method: str) -> None:
        store = FaultyStore(MemoryStore())
        with Rig(mode, store=store) as rig:
            state = rig.state(descriptor)
            store.fail_read(1)
            with pytest.raises(StoreError, match="operator 'op', state 'counts': the disk is gone"):
                rig.controller.run_bundle(lambda: getattr(state, method)(_keys(50)))

    def test_damaged_bytes_name_the_state(self, mode: str) -> None:
        store = FaultyStore(MemoryStore())
        with Rig(mode, store=store) as rig:
            state = rig.state(COLUMNS)
            for key in _keys(50).store_keys(8):
                store.corrupt(key, b"\xfd")
            with pytest.raises(OperatorError, match="operator 'op'.*CodecError: .*state 'counts'"):
                rig.controller.run_bundle(lambda: state.async_get(_keys(50)))

    def test_a_store_that_fails_under_the_frameworks_own_reads_is_named(self, mode: str) -> None:
        store = FaultyStore(MemoryStore())
        store.fail_read(1)
        with (
            pytest.raises(StoreError, match=r"operator 'op', timers: the disk is gone.*local-dir"),
            Rig(mode, store=store) as rig,
        ):
            rig.controller.scan(b"\0\0\x01", b"\0\0\x02", 10)


class FailingTimer(RecordOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([])

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.timers.register_event_time(1)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        raise ValueError("mine")


def test_a_failing_timer_names_operator_and_key(async_enabled: bool) -> None:
    schema = pa.schema([("key", pa.int64())])
    with OperatorHarness(FailingTimer(), schema, ["key"], async_enabled=async_enabled) as harness:
        harness.push([(3,)])
        with pytest.raises(
            OperatorError, match=r"operator 'operator', key \(3,\), timer at 1: ValueError: mine"
        ):
            harness.finish()


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_limits_hold_when_all_records_return_their_futures(mode: str) -> None:
    limits = replace(AsyncLimits(), in_flight=3, buffer_size=2)
    with Rig(mode, limits=limits) as rig:
        state = rig.state(VALUE)
        rows = rig.run(
            [item % 7 for item in range(200)],
            lambda item, ctx: state.async_value().then_accept(lambda _: ctx.emit(item, 0)),
        )
        assert rows == [(item, 0) for item in range(200)]
        assert rig.controller.statistics().overlapped.in_flight_peak <= 3
