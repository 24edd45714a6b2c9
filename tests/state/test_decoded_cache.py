"""States that keep decoded values show and store what plain ones do, however little they keep, whenever they rest."""

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
from asyncstate.execution import BatchFrame, Record, SyncExecutionController
from asyncstate.execution.record import BroadcastRecord
from asyncstate.futures import DONE, StateFuture
from asyncstate.operator import InputSpec
from asyncstate.state import AdmissionPolicies, AdmissionPolicy, with_known_values
from asyncstate.state.keyed import admission, decoded_cache
from asyncstate.storage import MemTable
from tests.memory_store import MemoryStore
from tests.state.fakes import FakeContext, FakeSink, record, run_records
from tests.state.programs import HypothesisDraw, MicroBatch, Model, ProgramRunner, generate, some_states

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us"))])
PLENTY = 4 << 20
LIMITS = st.sampled_from([1, 700, 2_000, PLENTY])  # none, one or two entries a generation, all
JUDGED = st.sampled_from([1, 4, 1_000])  # misses after which it may rest: at once, soon, never


class KnownContext(FakeContext):
    """Binds states that keep ``limit_bytes`` of decoded values and may rest after ``judged`` misses."""

    limit_bytes = PLENTY
    judged = admission.JUDGED_MISSES

    def get_state(self, descriptor: Any) -> Any:
        return with_known_values(
            super().get_state(descriptor), self.limit_bytes, AdmissionPolicy(self.judged)
        )


def known_context(
    sink: Any, limit_bytes: int = PLENTY, judged: int = admission.JUDGED_MISSES, **more: Any
) -> KnownContext:
    context = KnownContext(sink, **more)
    context.limit_bytes, context.judged = limit_bytes, judged
    return context


# -- programs --------------------------------------------------------------------------------------


@st.composite
def small_programs(draw: Any) -> list[MicroBatch]:
    return generate(HypothesisDraw(draw), keys=3, records=6, steps=10, batches=2, states=draw(some_states()))


def run_fake(
    batches: list[MicroBatch], limit_bytes: int | None, judged: int, deferred: bool, seed: int = 0
) -> tuple[list[list[Any]], dict[bytes, bytes]]:
    """Results of all records and what is stored at the end; plain states without a limit."""
    sink = FakeSink(deferred, seed)
    results: list[list[Any]] = []
    for batch in batches:
        more: dict[str, Any] = {
            "page_size": 2,
            "inputs": [InputSpec(SCHEMA, ("key",), "time")],
            "watermark": batch.watermark,
            "processing_time": batch.processing_time,
        }
        plain = limit_bytes is None
        context = (
            FakeContext(sink, **more) if plain else known_context(sink, limit_bytes or 0, judged, **more)
        )
        runner = ProgramRunner(context)
        records = []
        for row in batch.records:
            results.append([])
            work = partial(runner.run, row.program, False, results[-1])
            records.append(record(row.key, work, row.time))
        run_records(sink, records)
        sink.commit()
    return results, sink.base


@given(small_programs(), LIMITS, JUDGED, st.booleans(), st.integers(0, 2**16))
def test_any_program_does_what_it_does_without(
    batches: list[MicroBatch], limit_bytes: int, judged: int, deferred: bool, seed: int
) -> None:
    results, stored = run_fake(batches, limit_bytes, judged, deferred, seed)
    assert results == Model().run(batches)
    assert stored == run_fake(batches, None, 0, deferred=False)[1]


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


def both(descriptor: Any, limit_bytes: int, judged: int) -> list[tuple[FakeSink, Any]]:
    plain, keeping = FakeSink(), FakeSink()
    return [
        (plain, FakeContext(plain).get_state(descriptor)),
        (keeping, known_context(keeping, limit_bytes, judged).get_state(descriptor)),
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


@given(typed_steps(VALUE_METHODS), LIMITS, JUDGED, st.booleans(), st.booleans())
def test_a_value_state_of_any_type(
    steps: tuple[pa.DataType, list[tuple[str, int, Any]]],
    limit_bytes: int,
    judged: int,
    has_default: bool,
    namespaced: bool,
) -> None:
    arrow_type, program = steps
    given_default = {pa.int64(): 3, pa.string(): "none"}.get(arrow_type) if has_default else None
    descriptor: Any = ValueStateDescriptor("v", arrow_type, given_default, namespaced=namespaced)
    outcomes: list[list[Any]] = []
    contents = []
    for sink, state in both(descriptor, limit_bytes, judged):
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
    for sink, state in both(ValueStateDescriptor("v", arrow_type, default), PLENTY, 1_000):
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
    JUDGED,
)
def test_a_map_state_of_any_type_and_keys_that_are_equal(
    steps: tuple[pa.DataType, list[tuple[str, int, Any]]], data: st.DataObject, limit_bytes: int, judged: int
) -> None:
    arrow_type, program = steps
    keys = [data.draw(KEYS) for _ in program]
    outcomes: list[list[Any]] = []
    contents = []
    for sink, state in both(MapStateDescriptor("m", pa.int64(), arrow_type), limit_bytes, judged):
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


@given(st.lists(st.tuples(FOLD_METHODS, st.integers(0, 2), FOLDED), max_size=20), LIMITS, JUDGED)
def test_a_reduction_fails_as_it_does_without(
    program: list[tuple[str, int, Any]], limit_bytes: int, judged: int
) -> None:
    outcomes: list[list[Any]] = []
    contents = []
    for sink, state in both(ReducingStateDescriptor("r", _sum, pa.int64()), limit_bytes, judged):
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
    assert sink.level_ones == []


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
        (level,) = sink.level_ones
        assert isinstance(level, decoded_cache.DecodedCache)
        entries = len(level.values) + len(level.old)
        assert entries * (decoded_cache.ENTRY_BYTES + len(str(value))) <= 20_000 + len(str(value))


# -- held writes -----------------------------------------------------------------------------------


@pytest.fixture
def controller() -> SyncExecutionController:
    return SyncExecutionController(MemTable(MemoryStore()), "op", {})


def test_scans_and_the_end_of_the_micro_batch_see_held_writes(controller: SyncExecutionController) -> None:
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
    state = FakeContext(sink).get_state(ValueStateDescriptor("v", int))
    state = with_known_values(state, PLENTY, AdmissionPolicy())
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
    (level,) = sink.level_ones
    level._turn(b"", 0)  # type: ignore[attr-defined]  # twice: the write is known to the sink alone
    level._turn(b"", 0)  # type: ignore[attr-defined]
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


# -- access that is refused ------------------------------------------------------------------------


def test_no_key_is_no_key_even_where_the_key_is_empty(controller: SyncExecutionController) -> None:
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


# -- disabled --------------------------------------------------------------------------------------


def test_it_rests_when_keys_do_not_come_again() -> None:
    sink = FakeSink()
    context = known_context(sink, judged=10)
    state = context.get_state(ValueStateDescriptor("v", int))
    windowed = context.get_state(ValueStateDescriptor("w", int, namespaced=True))
    twin, update, value = windowed.at(1), state.update, state.value
    for key in range(10):
        sink.current = record(key)
        state.update(key)
        windowed.at(1).update(key)
    # objects and methods that somebody has kept, too
    assert twin.value() == 9
    assert [reads(sink, each, 9) for each in (state, twin, windowed.at(1))] == [1, 1, 1]
    update(11)
    assert (state.value(), value()) == (11, 11)
    assert [reads(sink, each, 9) for each in (state, twin)] == [1, 1]
    twin.update(12)
    assert windowed.at(1).value() == 12
    for level in sink.level_ones:
        assert isinstance(level, decoded_cache.DecodedCache)
        assert (level.disabled, level.values, level.old, level.held) == (True, {}, {}, {})


def test_nothing_is_known_when_it_rests_among_the_entries_of_a_put_all() -> None:
    sink = FakeSink()
    windowed = known_context(sink, judged=10).get_state(MapStateDescriptor("m", int, int, namespaced=True))
    sink.current = record(1)
    state, twin = windowed.at(1), windowed.at(1)
    state.put_all({number: 0 for number in range(15)})
    state.put(14, 7)
    assert twin.get(14) == 7
    twin.put(14, 8)
    assert state.get(14) == 8


def test_it_does_not_rest_while_keys_come_again() -> None:
    sink = FakeSink()
    state = known_context(sink, judged=10).get_state(ValueStateDescriptor("v", int))
    for turn in range(400):
        assert reads(sink, state, turn // 4) == (turn % 4 == 0)


def test_a_trial_that_fails_rests_for_longer_and_longer() -> None:
    policy = AdmissionPolicy()
    rests = []
    for _ in range(7):
        assert policy.begin()
        assert not policy.add(0, admission.JUDGED_MISSES)
        rests.append(0)
        while not policy.begin():
            rests[-1] += 1
    assert rests == [16, 32, 64, 128, 256, 256, 256]
    assert policy.add(2 * admission.JUDGED_MISSES, admission.JUDGED_MISSES)
    assert not policy.add(2 * admission.JUDGED_MISSES - 1, admission.JUDGED_MISSES)
    assert sum(not policy.begin() for _ in range(17)) == 16


def test_a_trial_takes_small_micro_batches_together() -> None:
    policy = AdmissionPolicy()
    few = admission.JUDGED_MISSES // 4
    assert [policy.add(1, few) for _ in range(4)] == [True, True, True, False]
    assert not policy.begin()


def test_trials_are_kept_by_name_and_the_oldest_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_TRIALS_MAX", 2)
    kept = AdmissionPolicies()
    one, two = kept.of(1), kept.of(2)
    assert kept.of(1) is one
    kept.of(3)
    assert kept.of(1) is one
    assert kept.of(2) is not two


def test_a_float_that_equals_nothing_is_kept() -> None:
    sink = FakeSink()
    sink.current = record(1)
    state = known_context(sink).get_state(ValueStateDescriptor("v", float))
    state.update(math.nan)
    assert math.isnan(state.value())
