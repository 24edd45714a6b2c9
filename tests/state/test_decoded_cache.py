"""States that keep decoded values show and store what plain ones do, however little they keep and for how long."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction,
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtl,
    ValueStateDescriptor,
)
from asyncstate.errors import CodecError, OperatorError, StateAccessError
from asyncstate.execution import BatchFrame, ExecutionController, Record
from asyncstate.execution.record import BroadcastRecord
from asyncstate.futures import DONE, StateFuture
from asyncstate.operator import InputSpec
from asyncstate.runtime.partition.worker_memory import CachedValues
from asyncstate.state import with_decoded_cache
from asyncstate.state.keyed import decoded_cache
from asyncstate.storage import MemTable
from tests.memory_store import MemoryStore
from tests.state.fakes import FakeContext, FakeSink, record, run_records
from tests.state.programs import HypothesisDraw, MicroBatch, Model, ProgramRunner, generate, some_states

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us"))])
PLENTY = 4 << 20
LIMITS = st.sampled_from([1, 700, 2_000, PLENTY])  # none, one or two entries a generation, all


class KnownContext(FakeContext):
    """Binds states that keep ``limit_bytes`` of decoded values in ``caches``."""

    limit_bytes = PLENTY
    caches: CachedValues

    def get_state(self, descriptor: Any) -> Any:
        state = with_decoded_cache(super().get_state(descriptor), self.caches.open, str(descriptor))
        for cache in self.caches.decoded:
            cache.bound(self.limit_bytes)
        return state


def known_context(
    sink: Any, limit_bytes: int = PLENTY, caches: CachedValues | None = None, **more: Any
) -> KnownContext:
    context = KnownContext(sink, **more)
    context.limit_bytes, context.caches = limit_bytes, caches or CachedValues()
    context.caches.begin()
    return context


# -- programs --------------------------------------------------------------------------------------


@st.composite
def small_programs(draw: Any) -> list[MicroBatch]:
    return generate(HypothesisDraw(draw), keys=3, records=6, steps=10, batches=2, states=draw(some_states()))


def run_fake(
    batches: list[MicroBatch], limit_bytes: int | None, carried: bool, deferred: bool, seed: int = 0
) -> tuple[list[list[Any]], dict[bytes, bytes]]:
    """Results of all records and what is stored at the end; plain states without a limit. ``carried``: what is cached
    stays from micro-batch to micro-batch."""
    sink = FakeSink(deferred, seed)
    caches = CachedValues()
    results: list[list[Any]] = []
    for batch in batches:
        more: dict[str, Any] = {
            "page_size": 2,
            "inputs": [InputSpec(SCHEMA, ("key",), "time")],
            "watermark": batch.watermark,
            "processing_time": batch.processing_time,
        }
        plain = limit_bytes is None
        caches = caches if carried else CachedValues()
        context = (
            FakeContext(sink, **more) if plain else known_context(sink, limit_bytes or 0, caches, **more)
        )
        runner = ProgramRunner(context)
        records = []
        for row in batch.records:
            results.append([])
            work = partial(runner.run, row.program, False, results[-1])
            records.append(record(row.key, work, row.time))
        run_records(sink, records)
        sink.commit()
        if limit_bytes is not None:
            caches.shrink(limit_bytes)
            assert caches.size_bytes <= limit_bytes
    return results, sink.base


@given(small_programs(), LIMITS, st.booleans(), st.booleans(), st.integers(0, 2**16))
def test_any_program_does_what_it_does_without(
    batches: list[MicroBatch], limit_bytes: int, carried: bool, deferred: bool, seed: int
) -> None:
    results, stored = run_fake(batches, limit_bytes, carried, deferred, seed)
    assert results == Model().run(batches)
    assert stored == run_fake(batches, None, carried, deferred=False)[1]


# -- values of all types ---------------------------------------------------------------------------

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-130, 130),
    pa.int64(): st.integers(-(2**63) - 1, 2**63) | st.sampled_from([np.int64(3), True, 2.0]),
    pa.timestamp("us"): st.integers(-5, 5),
    pa.float64(): st.floats() | st.sampled_from([0.0, -0.0, 3, np.float64(0.1)]),
    pa.float32(): st.floats() | st.sampled_from([0.1, 3]),
    pa.string(): st.text(max_size=40) | st.just("\ud800"),
    pa.binary(): st.binary(max_size=40) | st.just(bytearray(b"abc")),
    pa.date32(): st.dates() | st.just(datetime.datetime(2024, 1, 1)),
    pa.decimal128(6, 2): st.decimals(-1000, 1000, places=1) | st.just(decimal.Decimal("1.234")),
}


def seen(value: Any) -> Any:
    """What tells values apart that are equal: type, sign of zero, digits of a decimal."""
    return type(value).__name__, repr(value)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        result = call()
        return seen(result.get() if type(result) is StateFuture else result)
    except (CodecError, StateAccessError, OperatorError) as error:
        return type(error).__name__, str(error)


@st.composite
def typed_steps(draw: Any, methods: Sequence[str]) -> tuple[pa.DataType, list[tuple[str, int, Any]]]:
    arrow_type = draw(st.sampled_from(list(TYPES)))
    step = st.tuples(st.sampled_from(methods), st.integers(0, 2), TYPES[arrow_type])
    return arrow_type, draw(st.lists(step, max_size=20))


def both(descriptor: Any, limit_bytes: int) -> list[tuple[FakeSink, Any]]:
    plain, keeping = FakeSink(), FakeSink()
    return [
        (plain, FakeContext(plain).get_state(descriptor)),
        (keeping, known_context(keeping, limit_bytes).get_state(descriptor)),
    ]


VALUE_METHODS = [
    "value",
    "async_value",
    "update",
    "async_update",
    "clear",
    "async_clear",
    "is_empty",
    "async_is_empty",
]


@given(typed_steps(VALUE_METHODS), LIMITS, st.booleans(), st.booleans())
def test_a_value_state_of_any_type(
    steps: tuple[pa.DataType, list[tuple[str, int, Any]]],
    limit_bytes: int,
    has_default: bool,
    namespaced: bool,
) -> None:
    arrow_type, program = steps
    given_default = {pa.int64(): 3, pa.string(): "none"}.get(arrow_type) if has_default else None
    descriptor: Any = ValueStateDescriptor("v", arrow_type, given_default, namespaced=namespaced)
    outcomes: list[list[Any]] = []
    contents = []
    for sink, state in both(descriptor, limit_bytes):
        twins = {key: state.at(key) if namespaced else state for key in range(3)}
        outcomes.append([])
        for method, key, value in program:
            sink.current = record(0 if namespaced else key)
            call = getattr(twins[key], method)
            outcomes[-1].append(outcome(partial(call, value) if "update" in method else call))
        sink.commit()
        contents.append(sink.contents())
    assert outcomes[0] == outcomes[1]
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("arrow_type", "default"), [(pa.string(), "none"), (pa.int64(), 1 << 40), (pa.float64(), float("nan"))]
)
def test_a_read_that_showed_the_default_does_not_make_the_state_look_full(
    arrow_type: pa.DataType, default: Any
) -> None:
    for sink, state in both(ValueStateDescriptor("v", arrow_type, default), PLENTY):
        sink.current = record(0)
        assert repr(state.async_value().get()) == repr(default)
        assert state.is_empty() is True
        assert state.async_is_empty().get() is True
        state.update(default)
        assert state.is_empty() is False


def _listed(call: Callable[[], Any]) -> list[Any]:
    return list(call())


KEYS = st.sampled_from([1, 2, np.int64(1), np.int8(2), True, 1.0, "1", 2**63])


@given(
    typed_steps(["get", "put", "remove", "contains", "put_all", "clear", "entries"]),
    st.data(),
    LIMITS,
)
def test_a_map_state_of_any_type_and_keys_that_are_equal(
    steps: tuple[pa.DataType, list[tuple[str, int, Any]]], data: st.DataObject, limit_bytes: int
) -> None:
    arrow_type, program = steps
    keys = [data.draw(KEYS) for _ in program]
    outcomes: list[list[Any]] = []
    contents = []
    for sink, state in both(MapStateDescriptor("m", pa.int64(), arrow_type), limit_bytes):
        outcomes.append([])
        for (method, owner, value), key in zip(program, keys, strict=True):
            sink.current = record(owner)
            arguments = {
                "put": (key, value),
                "put_all": ([(3, value), (key, value)],),
                "clear": (),
                "entries": (),
            }
            call = partial(getattr(state, method), *arguments.get(method, (key,)))
            outcomes[-1].append(outcome(partial(_listed, call) if method == "entries" else call))
        sink.commit()
        contents.append(sink.contents())
    assert outcomes[0] == outcomes[1]
    assert contents[0] == contents[1]


def _sum(a: Any, b: Any) -> Any:
    return None if b == 13 else a + b


FOLD_METHODS = st.sampled_from(["get", "add", "async_add", "async_get", "clear"])
FOLDED = st.sampled_from([1, 2, 13, 2**62, 1.5])


@given(st.lists(st.tuples(FOLD_METHODS, st.integers(0, 2), FOLDED), max_size=20), LIMITS)
def test_a_reduction_fails_as_it_does_without(program: list[tuple[str, int, Any]], limit_bytes: int) -> None:
    outcomes: list[list[Any]] = []
    contents = []
    for sink, state in both(ReducingStateDescriptor("r", _sum, pa.int64()), limit_bytes):
        outcomes.append([])
        for method, key, value in program:
            sink.current = record(key)
            call = getattr(state, method)
            outcomes[-1].append(outcome(partial(call, value) if "add" in method else call))
        sink.commit()
        contents.append(sink.contents())
    assert outcomes[0] == outcomes[1]
    assert contents[0] == contents[1]


# -- what is never kept ----------------------------------------------------------------------------


class Longest(AggregateFunction[int, list[int], int]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> int:
        return len(accumulator)

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return a + b


NUMBERS = pa.list_(pa.int64())
TTL = StateTtl("10 minutes")


@pytest.mark.parametrize(
    "descriptor",
    [
        ValueStateDescriptor("s", NUMBERS),
        ValueStateDescriptor("s", pa.struct([("a", pa.int64())])),
        ValueStateDescriptor("s", pickled=True),
        ValueStateDescriptor("s", int, ttl=TTL),
        MapStateDescriptor("s", int, NUMBERS),
        MapStateDescriptor("s", int, pickled=True),
        MapStateDescriptor("s", pa.float64(), int),
        MapStateDescriptor("s", pa.decimal128(6, 2), int),
        MapStateDescriptor("s", int, int, ttl=TTL),
        AggregatingStateDescriptor("s", Longest(), NUMBERS),
        ReducingStateDescriptor("s", max, int, ttl=TTL),
    ],
)
def test_values_that_can_be_changed_or_expire_are_not_kept(descriptor: Any) -> None:
    sink = FakeSink()
    known_context(sink).get_state(descriptor)
    assert sink.caches == []


def test_what_a_read_of_a_list_gave_may_be_changed() -> None:
    sink = FakeSink()
    sink.current = record(1)
    state = known_context(sink).get_state(ValueStateDescriptor("s", NUMBERS, [7]))
    state.value().append(8)
    assert state.value() == [7]
    state.update([1])
    state.value().append(2)
    assert state.value() == [1]


# -- what it saves ---------------------------------------------------------------------------------


def reads(sink: FakeSink, state: Any, key: int) -> int:
    before = sink.reads
    sink.current = record(key)
    state.value()
    return sink.reads - before


def test_a_value_that_was_read_or_written_is_not_asked_for_again() -> None:
    sink = FakeSink()
    state = known_context(sink).get_state(ValueStateDescriptor("v", int))
    assert [reads(sink, state, 1), reads(sink, state, 1)] == [1, 0]
    sink.current = record(2)
    state.update(5)
    assert reads(sink, state, 2) == 0
    assert state.async_value()._state == DONE
    assert sink.written == {}
    sink.commit()
    assert len(sink.base) == 1


def test_the_least_recently_used_go_first() -> None:
    sink = FakeSink()
    state = known_context(sink, 20_000).get_state(ValueStateDescriptor("v", int))
    for key in range(2, 1_000):
        assert reads(sink, state, 1) == (key == 2), "used all the time"
        assert reads(sink, state, key) == 1
    assert reads(sink, state, 2) == 1
    assert reads(sink, state, 998) == 0


@pytest.mark.parametrize("value", [7, "text", "x" * 3_000, "x" * 50_000])
def test_memory_is_bounded(value: Any) -> None:
    sink = FakeSink()
    arrow_type = pa.int64() if value == 7 else pa.string()
    state = known_context(sink, 20_000).get_state(ValueStateDescriptor("v", arrow_type))
    for key in range(300):
        sink.current = record(key)
        state.update("") if value != 7 else None
        state.update(value)
        (cache,) = sink.caches
        assert isinstance(cache, decoded_cache.DecodedCache)
        entries = len(cache.values) + len(cache.old)
        assert entries * (decoded_cache.ENTRY_BYTES + len(str(value))) <= 20_000 + len(str(value))


# -- held writes -----------------------------------------------------------------------------------


@pytest.fixture
def controller() -> ExecutionController:
    return ExecutionController(MemTable(MemoryStore()), "op", {})


def test_scans_and_the_end_of_the_micro_batch_see_held_writes(controller: ExecutionController) -> None:
    context = known_context(controller)
    value = context.get_state(ValueStateDescriptor("v", int))
    context.get_state(ValueStateDescriptor("w", int))
    controller.current = record(1)  # type: ignore[assignment]
    value.update(1)
    assert controller.statistics().state.writes.changes == 0
    assert len(controller.scan(b"", b"\xff" * 8, 10)) == 1
    value.update(2)
    value.update(3)
    controller.finish_states()
    ((_, raw),) = controller.overlay.changes()
    assert raw is not None
    assert raw.endswith((3).to_bytes(8, "little"))


def test_a_removal_is_held_and_reaches_the_store() -> None:
    sink = FakeSink()
    context = known_context(sink)
    sink.current = record(1)
    state = context.get_state(ValueStateDescriptor("v", int))
    state.update(1)
    sink.commit()
    state = known_context(sink).get_state(ValueStateDescriptor("v", int))
    state.clear()
    assert state.is_empty()
    assert len(sink.contents()) == 1
    sink.commit()
    assert sink.contents() == {}


@pytest.mark.parametrize("answered_late", [False, True])
def test_an_answer_that_comes_after_a_write_is_not_kept(answered_late: bool) -> None:
    sink = FakeSink(deferred=answered_late)
    sink.current = record(1)
    FakeContext(sink).get_state(ValueStateDescriptor("v", int)).update(1)
    sink.commit()
    state = known_context(sink).get_state(ValueStateDescriptor("v", int))
    given_before = state.async_value()
    state.update(2)
    (cache,) = sink.caches
    cache._rotate(b"", 0)  # type: ignore[attr-defined]  # twice: the write is known to the sink alone
    cache._rotate(b"", 0)  # type: ignore[attr-defined]
    while sink.waiting:
        sink.answer_one()
    assert given_before.get() == 1
    assert state.value() == 2


def test_a_plain_call_that_overtakes_a_pending_one_leaves_what_it_wrote() -> None:
    sink = FakeSink(deferred=True)
    sink.current = record(1)
    state = known_context(sink).get_state(ReducingStateDescriptor("r", _sum, int))
    given_before = state.async_get()
    state.add(-3)
    assert state.get() == -3
    state.add(1)
    while sink.waiting:
        sink.answer_one()
    assert given_before.get() is None
    sink.commit()
    assert state.get() == -2


@pytest.mark.parametrize("seed", range(4))
def test_what_is_added_while_a_merge_waits_for_one_of_its_values_comes_after_it(seed: int) -> None:
    sink = FakeSink(deferred=True, seed=seed)
    sink.current = record(1)
    descriptor: Any = ReducingStateDescriptor("r", _sum, int, namespaced=True)
    state = FakeContext(sink).get_state(descriptor)
    for namespace, value in ((1, 10), (2, 20)):
        state.at(namespace).add(value)
    sink.commit()
    state = known_context(sink).get_state(descriptor)
    merged = state.async_merge_namespaces(1, [2])
    sink.answer_one()
    added = [state.at(namespace).async_add(5) for namespace in (1, 2)]
    seen = [state.at(namespace).async_get() for namespace in (1, 2)]
    while sink.waiting:
        sink.answer_one()
    assert all(future.done for future in (merged, *added))
    assert [future.get() for future in seen] == [35, 5]
    assert [state.at(namespace).get() for namespace in (1, 2)] == [35, 5]


# -- access that is refused ------------------------------------------------------------------------


def test_no_key_is_no_key_even_where_the_key_is_empty(controller: ExecutionController) -> None:
    frame: Any = BatchFrame(0, 0, None, pa.schema([]))  # type: ignore[arg-type]
    context = known_context(controller)
    value: Any = context.get_state(ValueStateDescriptor("v", int))
    entries: Any = context.get_state(MapStateDescriptor("m", int, int))
    windowed: Any = context.get_state(ValueStateDescriptor("w", int, namespaced=True))
    controller.current = Record(
        frame, b"\0\0", b"", (), lambda *_: None, None
    )  # the key of an input without key columns
    value.update(1)
    entries.put(1, 1)
    for call in (windowed.value, partial(windowed.update, 1), windowed.async_value, windowed.is_empty):
        with pytest.raises(StateAccessError, match=r"use at\(namespace\) first"):
            call()
    calls = (
        value.value,
        value.async_value,
        partial(value.update, 2),
        value.clear,
        value.is_empty,
        partial(entries.get, 1),
        partial(entries.async_get, 1),
        partial(entries.put, 1, 2),
        partial(entries.contains, 1),
        partial(entries.remove, 1),
    )
    controller.current = BroadcastRecord(frame, lambda *_: None, None, 0, None, None)  # type: ignore[arg-type]
    for call in calls:
        with pytest.raises(StateAccessError, match="broadcast input, which has no key"):
            call()
    controller.current = None
    for call in calls:
        with pytest.raises(StateAccessError, match="without a current key"):
            call()


# -- from one micro-batch to the next ----------------------------------------------------------------


def _following(sink: FakeSink, caches: CachedValues, descriptor: Any, limit_bytes: int = PLENTY) -> Any:
    """The state in the next micro-batch."""
    sink.commit()
    state = known_context(sink, limit_bytes, caches).get_state(descriptor)
    return state


def test_what_was_read_written_and_removed_is_known_in_the_next_micro_batch() -> None:
    sink, caches = FakeSink(), CachedValues()
    descriptor: Any = ValueStateDescriptor("v", int, 9)
    state = _following(sink, caches, descriptor)
    for key, value in ((1, None), (2, 5)):
        sink.current = record(key)
        state.update(value)
    assert reads(sink, state, 3) == 1
    before = sink.reads
    for key in (1, 2, 3):
        state = _following(sink, caches, descriptor)
        sink.current = record(key)
        assert state.value() == (5 if key == 2 else 9)
        assert state.is_empty() == (key != 2)
    assert sink.reads == before
    sink.current = record(2)
    state.update(6)
    sink.commit()
    ((_, raw),) = sink.base.items()
    assert raw.endswith((6).to_bytes(8, "little"))


def test_what_is_cached_need_not_be_prefetched() -> None:
    sink = FakeSink()
    sink.current = one = record(1)
    context = known_context(sink)
    context.get_state(ValueStateDescriptor("v", int)).update(5)
    context.get_state(ReducingStateDescriptor("r", max, int)).add(5)
    context.get_state(ValueStateDescriptor("w", int))
    keys = [
        [other.group + bytes([8 + at]) + other.encoded_key for at in range(3)] for other in (one, record(2))
    ]
    known = [[[cache.knows(key) for key in row] for row in keys] for cache in context.caches.decoded]
    nothing = [False, False, False]
    assert known == [
        [[True, False, False], nothing],
        [[False, True, False], nothing],
        [nothing, nothing],
    ]


def test_of_a_state_that_was_not_open_or_had_another_type_nothing_is_known() -> None:
    sink, caches = FakeSink(), CachedValues()
    sink.current = record(1)
    number, text = ValueStateDescriptor("v", int), ValueStateDescriptor("v", str)
    for descriptor in (number, text, number):
        assert _following(sink, caches, descriptor).value() is None
    assert sink.reads == 3
    sink.commit()
    known_context(sink, caches=caches)
    assert caches.decoded == []
    assert _following(sink, caches, number).value() is None
    assert sink.reads == 4


def test_a_smaller_bound_drops_what_does_not_fit() -> None:
    sink, caches = FakeSink(), CachedValues()
    descriptor = ValueStateDescriptor("v", int)
    state = _following(sink, caches, descriptor)
    for key in range(100):
        sink.current = record(key)
        state.update(key)
    sink.commit()
    assert caches.size_bytes > 20_000
    state = _following(sink, caches, descriptor, 20_000)
    assert caches.size_bytes <= 20_000
    for key in range(100):
        sink.current = record(key)
        assert state.value() == key
    assert caches.size_bytes <= 20_000
    sink.commit()
    assert caches.shrink(0) > 0
    assert caches.size_bytes == 0


def test_a_float_that_equals_nothing_is_kept() -> None:
    sink = FakeSink()
    sink.current = record(1)
    state = known_context(sink).get_state(ValueStateDescriptor("v", float))
    state.update(math.nan)
    assert math.isnan(state.value())
