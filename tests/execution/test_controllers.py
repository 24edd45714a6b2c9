"""Both controllers over a real overlay: order per key, equal results, limits, failures, coroutines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import FutureStateError, OperatorError, SchemaError, StateAccessError, StoreError
from asyncstate.execution import (
    AsyncLimits,
    BatchFrame,
    ExecutionController,
    Pacer,
    Record,
)
from asyncstate.futures import StateFuture, combine_all
from asyncstate.operator import RecordContext
from asyncstate.storage import MemTable
from tests.examples import at_most
from tests.memory_store import MemoryStore

_NAMES = {8: "count"}
_FRAME = BatchFrame(0, 0, None, pa.schema({"key": pa.int64(), "count": pa.int64()}))  # type: ignore[arg-type]

Process = Callable[[Any, RecordContext], Any]


def _decode(raw: bytes | None) -> int:
    return 0 if raw is None else int.from_bytes(raw, "big")


def _store_key(key: bytes) -> bytes:
    return b"\0\0\x08" + key


class GatedStore(MemoryStore):
    """Answers list gets only while the gate is open; counts how many wait."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[int] = set()

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        self.threads.add(threading.get_ident())
        assert self.gate.wait(30)
        return super().get_many(keys, piece_keys)


def _slow_pacer() -> Pacer:
    pacer = Pacer()
    pacer.measured(1, 1.0)
    return pacer


def _controllers(overlay: MemTable) -> dict[str, ExecutionController]:
    limits = AsyncLimits(in_flight=7, buffer_size=3, io_parallelism=2, batch_hot_reads=True)
    return {
        "sync": ExecutionController(overlay, "op", _NAMES),
        "hot": ExecutionController(overlay, "op", _NAMES, AsyncLimits(), Pacer()),
        "batched": ExecutionController(overlay, "op", _NAMES, limits, Pacer()),
        "threads": ExecutionController(overlay, "op", _NAMES, limits, _slow_pacer()),
    }


MODES = ["sync", "hot", "batched", "threads"]


def _run(
    mode: str, process: Process, items: list[tuple[bytes, Any]], store: MemoryStore | None = None
) -> Any:
    overlay = MemTable(store or MemoryStore(), 1 << 20)
    with _controllers(overlay)[mode] as controller:
        _Process.controller = controller
        for key, item in items:
            controller.submit(Record(_FRAME, b"\0\0", key, (key,), process, item))
        controller.drain()
        return controller.take_outputs(), dict(overlay.changes()), controller.statistics()


class _Process:
    controller: ExecutionController


def _count(item: int, ctx: RecordContext) -> Any:
    sink, key = _Process.controller, _store_key(ctx.encoded_key)  # type: ignore[attr-defined]

    def write(total: int) -> None:
        sink.put(key, total.to_bytes(8, "big"))
        ctx.emit(ctx.encoded_key, total)  # type: ignore[attr-defined]

    return sink.async_get(key, _decode).then_apply(lambda total: total + item).then_accept(write)


async def _count_awaiting(item: int, ctx: RecordContext) -> None:
    sink, key = _Process.controller, _store_key(ctx.encoded_key)  # type: ignore[attr-defined]
    total = item + await sink.async_get(key, _decode)
    sink.put(key, total.to_bytes(8, "big"))
    again = await sink.async_get(key, _decode)
    ctx.emit(ctx.encoded_key, again)  # type: ignore[attr-defined]


def _expected(items: list[tuple[bytes, int]]) -> tuple[list[tuple[bytes, int]], dict[bytes, int]]:
    totals: dict[bytes, int] = {}
    rows = []
    for key, item in items:
        totals[key] = totals.get(key, 0) + item
        rows.append((key, totals[key]))
    return rows, totals


@pytest.mark.parametrize("process", [_count, _count_awaiting])
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=at_most(30))
@given(items=st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(0, 9)), max_size=60))
def test_rows_and_state_are_those_of_one_key_at_a_time(
    mode: str, process: Process, items: list[tuple[bytes, int]]
) -> None:
    rows, totals = _expected(items)
    outputs, changes, _ = _run(mode, process, items)
    assert [values for _, values, *_ in outputs] == rows
    assert {key: _decode(value) for key, value in changes.items()} == {
        _store_key(key): total for key, total in totals.items()
    }


class CountingStore(MemoryStore):
    """Keeps how many keys each read asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        self.reads.append(len(keys))
        return super().get_many(keys, piece_keys)


def test_a_read_has_no_more_keys_than_the_buffer_takes() -> None:
    store = CountingStore()
    items = [(bytes([letter]), 1) for letter in b"abcdefg"]
    _run("batched", _count, items, store)
    assert store.reads == [3, 3, 1]


def test_a_hot_key_needs_no_stack() -> None:
    items = [(b"hot", 1)] * 20_000
    for mode in MODES:
        outputs, _, _ = _run(mode, _count, items)
        assert outputs[-1][1] == (b"hot", 20_000)


def test_records_of_other_keys_overtake_a_waiting_one_but_rows_leave_in_order() -> None:
    store = GatedStore()
    overlay = MemTable(store, 1 << 20)
    limits = AsyncLimits(in_flight=10, buffer_size=1, io_parallelism=2)
    ran: list[bytes] = []

    def process(waits: bool, ctx: RecordContext) -> Any:
        key: bytes = ctx.encoded_key  # type: ignore[attr-defined]
        if not waits:
            ran.append(key)
            ctx.emit(key, 0)
            return None
        read = controller.async_get(_store_key(key), _decode)
        return read.then_accept(lambda _: (ran.append(key), ctx.emit(key, 0)))

    with ExecutionController(overlay, "op", _NAMES, limits, _slow_pacer()) as controller:
        store.gate.clear()
        for key, waits in [(b"slow", True), (b"quick", False)]:
            controller.submit(Record(_FRAME, b"\0\0", key, (key,), process, waits))
        assert ran == [b"quick"]
        assert controller.take_outputs() == []
        store.gate.set()
        controller.drain()
        assert ran == [b"quick", b"slow"]
        assert [values[0] for _, values, *_ in controller.take_outputs()] == [b"slow", b"quick"]
    assert threading.get_ident() not in store.threads


@pytest.mark.parametrize("mode", ["batched", "threads"])
def test_limits_bound_what_is_in_flight(mode: str) -> None:
    _, _, statistics = _run(mode, _count, [(bytes([i % 250, i // 250]), 1) for i in range(1_000)])
    assert 0 < statistics.overlapped.in_flight_peak <= 7
    assert statistics.state.read_batch_keys == 1_000
    assert statistics.state.read_batches < 1_000


def test_requests_beyond_the_in_flight_limit_are_taken() -> None:
    """A record may issue more reads than records may be in flight; it must not wait for itself."""

    def process(item: int, ctx: RecordContext) -> Any:
        sink = _Process.controller
        reads = [sink.async_get(_store_key(bytes([item, i])), _decode) for i in range(50)]
        return combine_all(reads).then_accept(lambda values: ctx.emit(item, sum(values)))

    for mode in MODES:
        outputs, _, _ = _run(mode, process, [(bytes([i]), i) for i in range(20)])
        assert [values for _, values, *_ in outputs] == [(i, 0) for i in range(20)]


@pytest.mark.parametrize("mode", MODES)
class TestFailures:
    def test_a_failing_callback_names_operator_and_key(self, mode: str) -> None:
        def process(item: int, ctx: RecordContext) -> Any:
            key = _store_key(ctx.encoded_key)  # type: ignore[attr-defined]
            return _Process.controller.async_get(key, _decode).then_apply(lambda _: 1 // item)

        with pytest.raises(
            OperatorError, match=r"operator 'op'.*key \(b'k0',\).*ZeroDivisionError"
        ) as raised:
            _run(mode, process, [(b"k1", 1), (b"k0", 0)])
        assert isinstance(raised.value.__cause__, ZeroDivisionError)

    def test_a_failure_that_nobody_returned_still_fails_the_batch(self, mode: str) -> None:
        def process(item: int, ctx: RecordContext) -> None:
            key = _store_key(ctx.encoded_key)  # type: ignore[attr-defined]
            _Process.controller.async_get(key, _decode).then_accept(lambda _: 1 // 0)

        with pytest.raises(OperatorError, match="ZeroDivisionError"):
            _run(mode, process, [(b"k", 0)])

    def test_a_recovered_failure_is_no_failure(self, mode: str) -> None:
        def process(item: int, ctx: RecordContext) -> Any:
            key = _store_key(ctx.encoded_key)  # type: ignore[attr-defined]
            read = _Process.controller.async_get(key, _decode)
            return (
                read.then_apply(lambda _: 1 // item)
                .recover(lambda _: -1)
                .then_accept(lambda n: ctx.emit(item, n))
            )

        outputs, _, _ = _run(mode, process, [(b"k", 0), (b"l", 1)])
        assert [values for _, values, *_ in outputs] == [(0, -1), (1, 1)]

    def test_a_failing_decoder_names_the_state(self, mode: str) -> None:
        def process(item: int, ctx: RecordContext) -> Any:
            key = _store_key(ctx.encoded_key)  # type: ignore[attr-defined]
            return _Process.controller.async_get(key, lambda raw: 1 // 0)

        with pytest.raises(OperatorError, match=r"state 'count'"):
            _run(mode, process, [(b"k", 0)])

    def test_an_exception_in_a_coroutine_keeps_its_traceback(self, mode: str) -> None:
        async def process(item: int, ctx: RecordContext) -> None:
            await _Process.controller.async_get(_store_key(ctx.encoded_key), _decode)  # type: ignore[attr-defined]
            raise KeyError("mine")

        with pytest.raises(OperatorError, match="KeyError: 'mine'") as raised:
            _run(mode, process, [(b"k", 0)])
        assert isinstance(raised.value.__cause__, KeyError)
        assert raised.value.__cause__.__traceback__ is not None

    def test_a_future_nobody_completes_is_reported_not_waited_for(self, mode: str) -> None:
        async def process(item: int, ctx: RecordContext) -> None:
            await StateFuture()

        with pytest.raises((FutureStateError, OperatorError), match="nothing completes"):
            _run(mode, process, [(b"k", 0)])

    def test_awaiting_something_else_is_refused(self, mode: str) -> None:
        class Other:
            def __await__(self) -> Any:
                yield "something"

        async def process(item: int, ctx: RecordContext) -> None:
            await Other()

        with pytest.raises(FutureStateError, match=r"only StateFutures.*await ctx\.call"):
            _run(mode, process, [(b"k", 0)])

    def test_rows_must_have_a_value_a_column(self, mode: str) -> None:
        with pytest.raises(OperatorError, match="2 columns: key, count") as raised:
            _run(mode, lambda item, ctx: ctx.emit(1), [(b"k", 0)])
        assert isinstance(raised.value.__cause__, SchemaError)

    def test_emitting_after_the_end_is_refused(self, mode: str) -> None:
        kept: list[RecordContext] = []
        _run(mode, lambda item, ctx: kept.append(ctx), [(b"k", 0)])
        with pytest.raises(StateAccessError, match="after it had ended"):
            kept[0].emit(1, 2)


class BrokenStore(MemoryStore):
    def get(self, key: bytes) -> bytes | None:
        raise StoreError("the disk is gone")

    def get_many(self, keys: list[bytes], piece_keys: int = 0) -> list[bytes | None]:
        raise StoreError("the disk is gone")


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_store_fails_the_batch(mode: str) -> None:
    with pytest.raises((OperatorError, StoreError), match="the disk is gone"):
        _run(mode, _count, [(b"k", 1)], BrokenStore())


def test_a_read_that_never_answers_is_reported_by_the_watchdog() -> None:
    store = GatedStore()
    store.gate.clear()
    limits = AsyncLimits(watchdog_timeout_ms=50, io_parallelism=1)
    overlay = MemTable(store, 1 << 20)
    controller = ExecutionController(overlay, "op", _NAMES, limits, _slow_pacer())
    try:
        with controller:
            _Process.controller = controller
            controller.submit(Record(_FRAME, b"\0\0", b"k", (b"k",), _count, 1))
            try:
                with pytest.raises(
                    StoreError, match=r"operator 'op': 1 list gets .*state 'count', key \(b'k',\)"
                ):
                    controller.drain()
            finally:
                store.gate.set()  # close() waits for the thread
    finally:
        store.gate.set()


@pytest.mark.parametrize("mode", MODES)
def test_bundle_reads_see_the_writes_of_this_batch(mode: str) -> None:
    store = MemoryStore({bytes([i]): b"old" for i in range(50)}.items())
    overlay = MemTable(store, 1 << 20)
    keys = [bytes([i]) for i in range(60)]
    with _controllers(overlay)[mode] as controller:
        controller.prefetch(keys)
        controller.put_many(keys[:10], [b"new"] * 10)
        controller.delete_many(keys[10:20])
        read: list[Any] = []
        controller.run_bundle(lambda: controller.async_get_many(keys).then_accept(read.extend))
    assert read == [b"new"] * 10 + [None] * 10 + [b"old"] * 30 + [None] * 10


@pytest.mark.parametrize("mode", MODES)
def test_a_failing_bundle_names_the_operator(mode: str) -> None:
    with _controllers(MemTable(MemoryStore(), 0))[mode] as controller:
        with pytest.raises(OperatorError, match="operator 'op': ZeroDivisionError"):
            controller.run_bundle(lambda: controller.async_get_many([b"k"]).then_accept(lambda _: 1 // 0))
        with pytest.raises(OperatorError, match="operator 'op': KeyError"):
            controller.run_bundle(lambda: {}["k"])
