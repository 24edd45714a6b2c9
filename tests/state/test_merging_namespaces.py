"""Merging namespaces of lists and reductions: what is combined, in which order, and between which operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction,
    AggregatingStateDescriptor,
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    StateFuture,
    StateIterator,
    StateTtl,
    ValueStateDescriptor,
    completed_future,
    to_iterable,
)
from asyncstate.errors import CodecError, OperatorError, StateAccessError
from asyncstate.state.keyed import chunks
from asyncstate.testing import OperatorHarness
from tests.state.fakes import FakeContext, FakeSink, record, run_records

ONE = record(1)


def join(a: str, b: str) -> str:
    if b == "x":
        raise ValueError("cannot join x")
    return a + b


class Appended(AggregateFunction[str, list[str], str]):
    """Joins at the end what it has collected."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[str]) -> str:
        return "".join(accumulator)

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        if "x" in b:
            raise ValueError("cannot merge x")
        return a + b


DESCRIPTORS: dict[str, Any] = {
    "list": ListStateDescriptor("s", str, namespaced=True),
    "reducing": ReducingStateDescriptor("s", join, str, namespaced=True),
    "aggregating": AggregatingStateDescriptor("s", Appended(), pa.list_(pa.string()), namespaced=True),
}


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a few elements have several chunks."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 12)


@pytest.fixture(params=DESCRIPTORS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sink() -> FakeSink:
    sink = FakeSink()
    sink.current = ONE
    return sink


def bound(sink: FakeSink, descriptor: Any) -> Any:
    return FakeContext(sink).get_state(descriptor)


def content(state: Any, namespace: int) -> str:
    """What the namespace holds, as one text."""
    held = state.at(namespace).get()
    return "".join(() if held is None else held)


# -- what is combined --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_the_target_comes_first_then_the_sources_in_the_order_given(
    sink: FakeSink, kind: str, prefix: str
) -> None:
    state = bound(sink, DESCRIPTORS[kind])
    for namespace, text in [(3, "c"), (1, "a"), (2, "b"), (1, "A"), (9, "z")]:
        state.at(namespace).add(text)
    assert isinstance(getattr(state, prefix + "merge_namespaces")(2, [3, 7, 1]), StateFuture | None)
    assert [content(state, namespace) for namespace in (1, 2, 3, 7, 9)] == ["", "bcaA", "", "", "z"]
    state.at(2).clear()
    state.at(9).clear()
    assert sink.contents() == {}


def test_an_empty_target_takes_the_content_of_the_sources(sink: FakeSink, kind: str) -> None:
    state = bound(sink, DESCRIPTORS[kind])
    state.at(1).add("a")
    state.at(2).add("b")
    state.merge_namespaces(5, (namespace for namespace in (2, 1)))
    assert content(state, 5) == "ba"


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_merging_nothing_changes_nothing(sink: FakeSink, kind: str, prefix: str) -> None:
    state = bound(sink, DESCRIPTORS[kind])
    merge = getattr(state, prefix + "merge_namespaces")
    state.at(1).add("a")
    sink.commit()
    sink.reads = 0
    merge(1, [])
    assert (sink.reads, sink.written) == (0, {})
    merge(1, [2, 3])
    assert sink.written == {}


def test_keys_are_merged_apart(sink: FakeSink, kind: str) -> None:
    state = bound(sink, DESCRIPTORS[kind])
    for key in (1, 2):
        sink.current = record(key)
        state.at(1).add(f"a{key}")
        state.at(2).add(f"b{key}")
    state.merge_namespaces(1, [2])
    assert content(state, 1) == "a2b2"
    sink.current = ONE
    assert (content(state, 1), content(state, 2)) == ("a1", "b1")


@given(st.lists(st.lists(st.text("ab", max_size=4), max_size=8), min_size=1, max_size=4))
def test_a_merged_list_has_the_bytes_of_one_that_was_added_to(parts: list[list[str]]) -> None:
    merged, added = FakeSink(), FakeSink()
    merged.current = added.current = ONE
    state = bound(merged, DESCRIPTORS["list"])
    for namespace, part in enumerate(parts):
        state.at(namespace).update(part)
    state.merge_namespaces(0, range(1, len(parts)))
    bound(added, DESCRIPTORS["list"]).at(0).add_all([text for part in parts for text in part])
    assert merged.contents() == added.contents()


def test_an_iteration_shows_a_source_as_it_was(sink: FakeSink) -> None:
    state = bound(sink, DESCRIPTORS["list"])
    texts = [f"text {i}" for i in range(20)]
    state.at(1).add_all(texts)
    started = state.at(1).get()
    assert next(started) == texts[0]
    state.merge_namespaces(2, [1])
    assert list(started) == texts[1:]
    assert list(state.at(2).get()) == texts


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_expired_parts_are_left_out_and_merging_writes_what_it_folds(
    sink: FakeSink, kind: str, prefix: str
) -> None:
    descriptor = replace(DESCRIPTORS[kind], ttl=StateTtl(10))

    def at_time(now: int) -> Any:
        return FakeContext(sink, processing_time=now).get_state(descriptor)

    at_time(100).at(1).add("old")
    at_time(105).at(2).add("b")
    at_time(109).at(3).add("c")
    getattr(at_time(112), prefix + "merge_namespaces")(1, [2, 3])
    assert content(at_time(114), 1) == "bc"
    # an element keeps its own time, a folded value is written by the merge
    assert [content(at_time(now), 1) for now in (116, 121, 122)] == (
        ["c", "", ""] if kind == "list" else ["bc", "bc", ""]
    )


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "sources"), [(1, [2, 1]), (1, [2, 3, 2])])
@pytest.mark.parametrize("prefix", ["", "async_"])
def test_a_namespace_is_given_once(
    sink: FakeSink, kind: str, target: int, sources: list[int], prefix: str
) -> None:
    state = bound(sink, DESCRIPTORS[kind])
    state.at(2).add("b")
    before = sink.contents()
    expected = (
        f"state 's' of operator 'op': namespaces {sources} cannot be merged into 1; give each namespace once"
    )
    with pytest.raises(StateAccessError, match=re.escape(expected)):
        getattr(state, prefix + "merge_namespaces")(target, sources)
    assert sink.contents() == before


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_merging_needs_namespaces_and_a_key(sink: FakeSink, prefix: str) -> None:
    plain = bound(sink, ListStateDescriptor("s", str))
    with pytest.raises(StateAccessError, match="has no namespaces to merge; declare it with namespaced=True"):
        getattr(plain, prefix + "merge_namespaces")(1, [2])
    state = bound(sink, DESCRIPTORS["list"])
    sink.current = None
    with pytest.raises(StateAccessError, match="was used without a current key"):
        getattr(state, prefix + "merge_namespaces")(1, [2])


@pytest.mark.parametrize(
    "descriptor",
    [ValueStateDescriptor("s", int, namespaced=True), MapStateDescriptor("s", int, int, namespaced=True)],
)
def test_values_and_maps_cannot_be_merged(sink: FakeSink, descriptor: Any) -> None:
    state = bound(sink, descriptor)
    assert not hasattr(state, "merge_namespaces")
    assert not hasattr(state, "async_merge_namespaces")


@pytest.mark.parametrize("kind", ["reducing", "aggregating"], indirect=True)
@pytest.mark.parametrize("deferred", [False, True])
def test_a_merge_that_fails_changes_nothing(kind: str, deferred: bool) -> None:
    sink = FakeSink(deferred)
    sink.current = ONE
    state = bound(sink, DESCRIPTORS[kind])
    for namespace, text in enumerate("abx"):
        state.at(namespace).add(text)
    sink.commit()
    before = sink.contents()
    with pytest.raises(OperatorError, match="operator 'op', state 's': .* raised ValueError: cannot"):
        state.merge_namespaces(0, [1, 2])
    merge = state.async_merge_namespaces(0, [1, 2])
    later = state.at(1).async_get()
    while sink.waiting:
        sink.answer_one()
    assert isinstance(merge.exception(), OperatorError)
    assert later.get() == "b"
    assert sink.contents() == before


@pytest.mark.parametrize("deferred", [False, True])
def test_a_damaged_source_is_named_and_left_alone(deferred: bool) -> None:
    sink = FakeSink(deferred)
    sink.current = ONE
    state = bound(sink, DESCRIPTORS["list"])
    state.at(1).add("a")
    state.at(2).add_all(["abcdef"] * 6)
    sink.commit()
    del sink.base[sorted(sink.base)[-1]]
    before = sink.contents()
    with pytest.raises(CodecError, match="a part of a stored list is missing"):
        state.merge_namespaces(1, [2])
    merge = state.async_merge_namespaces(1, [2])
    while sink.waiting:
        sink.answer_one()
    assert isinstance(merge.exception(), CodecError)
    assert sink.contents() == before


# -- in order, whatever has to be waited for -----------------------------------------------------------------


class Step(NamedTuple):
    method: str
    namespace: int
    text: str
    sources: list[int]
    sync: bool
    waits: bool


NAMESPACES = st.integers(0, 3)
STEPS = st.builds(
    Step,
    st.sampled_from(["add", "add", "add", "get", "merge", "merge", "clear"]),
    NAMESPACES,
    st.text("ab", min_size=1, max_size=5),
    st.lists(NAMESPACES, max_size=3, unique=True),
    st.booleans(),
    st.booleans(),
)
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.lists(STEPS, max_size=12)), max_size=4), min_size=2, max_size=3
)
Batches = list[list[tuple[int, list[Step]]]]


def sources_of(step: Step) -> list[int]:
    return [namespace for namespace in step.sources if namespace != step.namespace]


def model(batches: Batches) -> list[list[str]]:
    kept: dict[tuple[int, int], str] = {}
    results: list[list[str]] = []
    for key, steps in [row for batch in batches for row in batch]:
        results.append([])
        for step in steps:
            place = key, step.namespace
            match step.method:
                case "get":
                    results[-1].append(kept.get(place, ""))
                case "add":
                    kept[place] = kept.get(place, "") + step.text
                case "clear":
                    kept.pop(place, None)
                case _:
                    parts = [kept.pop((key, source), "") for source in sources_of(step)]
                    kept[place] = kept.get(place, "") + "".join(parts)
    return results


def as_text(value: Any) -> StateFuture[str]:
    if isinstance(value, StateIterator):
        return value.to_list().then_apply("".join)
    return completed_future("".join(() if value is None else value))


def run_steps(state: Any, steps: list[Step], all_sync: bool, results: list[str]) -> StateFuture[Any]:
    """Ask for steps until one waits; the result of a get goes into its place."""
    for position, step in enumerate(steps):
        outcome = ask(state, step, all_sync)
        if step.method == "get":
            results.append("?")
            keep = partial(results.__setitem__, len(results) - 1)
            if not isinstance(outcome, StateFuture):
                outcome = completed_future(outcome)
            outcome = outcome.then_compose(as_text).then_accept(keep)
        if step.waits and isinstance(outcome, StateFuture):
            rest = steps[position + 1 :]
            return outcome.then_compose(partial(_run_rest, state, rest, all_sync, results))
    return completed_future(None)


def _run_rest(
    state: Any, steps: list[Step], all_sync: bool, results: list[str], _: object
) -> StateFuture[Any]:
    return run_steps(state, steps, all_sync, results)


def ask(state: Any, step: Step, all_sync: bool) -> Any:
    prefix = "" if step.sync or all_sync else "async_"
    if step.method == "merge":
        return getattr(state, prefix + "merge_namespaces")(step.namespace, sources_of(step))
    arguments = [step.text] if step.method == "add" else []
    return getattr(state.at(step.namespace), prefix + step.method)(*arguments)


def run_batches(
    descriptor: Any, batches: Batches, deferred: bool, seed: int, all_sync: bool
) -> tuple[list[list[str]], dict[bytes, bytes]]:
    sink = FakeSink(deferred, seed)
    results: list[list[str]] = []
    for batch in batches:
        state = bound(sink, descriptor)
        records = []
        for key, steps in batch:
            results.append([])
            records.append(record(key, partial(run_steps, state, steps, all_sync, results[-1])))
        run_records(sink, records)
        sink.commit()
    return results, sink.base


@given(BATCHES, st.integers(0, 2**16))
@settings(max_examples=2 * settings().max_examples)
def test_any_mix_of_plain_and_pending_calls_keeps_the_order(kind: str, batches: Batches, seed: int) -> None:
    plain, stored = run_batches(DESCRIPTORS[kind], batches, deferred=False, seed=0, all_sync=True)
    assert plain == model(batches)
    assert run_batches(DESCRIPTORS[kind], batches, deferred=True, seed=seed, all_sync=False) == (
        plain,
        stored,
    )
    assert run_batches(DESCRIPTORS[kind], batches, deferred=False, seed=0, all_sync=False) == (plain, stored)


def long_and_short(sink: FakeSink) -> Any:
    """Namespace 1 holds 'b', 2 and 3 long lists."""
    state = bound(sink, DESCRIPTORS["list"])
    state.at(1).add("b")
    state.at(2).add_all(["cdefgh"] * 5)
    state.at(3).add_all(["ijklmn"] * 5)
    sink.commit()
    return state


def test_a_merge_reads_its_namespaces_and_then_their_parts_together() -> None:
    sink = FakeSink(deferred=True)
    sink.current = ONE
    state = long_and_short(sink)
    sink.reads = 0
    merge = state.async_merge_namespaces(1, [2, 3])
    assert sink.reads == 3
    for _ in range(3):
        sink.answer_one()
    assert not merge.done
    assert sink.reads == 3 + sum(len(key) == len(ONE.encoded_key) + 3 + 8 + 8 for key in sink.base)
    while sink.waiting:
        sink.answer_one()
    assert merge.get() is None
    assert content(state, 1) == "b" + "cdefgh" * 5 + "ijklmn" * 5


@pytest.mark.parametrize("answered", range(8))
def test_a_plain_call_overtakes_a_merge_wherever_it_stands(answered: int) -> None:
    sink = FakeSink(deferred=True, seed=answered)
    sink.current = ONE
    state = long_and_short(sink)
    state.at(1).async_add("B")
    merge = state.async_merge_namespaces(1, [2, 3])
    later = state.at(3).async_add("o")
    for _ in range(answered):
        if sink.waiting:
            sink.answer_one()
    assert content(state, 1) == "bB" + "cdefgh" * 5 + "ijklmn" * 5
    state.at(1).add("p")
    assert content(state, 3) == "o"
    while sink.waiting:
        sink.answer_one()
    assert (merge.get(), later.get()) == (None, None)
    assert content(state, 1)[-1] == "p"


def test_merges_that_wait_for_each_other_take_effect_in_order() -> None:
    sink = FakeSink(deferred=True)
    sink.current = ONE
    state = long_and_short(sink)
    merges = [
        state.async_merge_namespaces(4, [2]),
        state.async_merge_namespaces(5, [3]),
        state.async_merge_namespaces(5, [4, 1]),
        state.async_merge_namespaces(2, [5]),
    ]
    while sink.waiting:
        sink.answer_one()
    assert [merge.get() for merge in merges] == [None] * 4
    assert [content(state, namespace) for namespace in (1, 2, 3, 4, 5)] == [
        "",
        "ijklmn" * 5 + "cdefgh" * 5 + "b",
        "",
        "",
        "",
    ]


# -- session windows on the real controllers and stores ------------------------------------------------------

GAP = 10
SCHEMA = pa.schema([("user", pa.int64()), ("time", pa.int64())])
Rows = list[tuple[int, int]]


class Sessions(RecordOperator):
    """After each row: the session it belongs to, with everything the session holds. Sessions grow together."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("session", pa.int64()), ("times", pa.list_(pa.int64())), ("highest", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        bounds = MapStateDescriptor[int, int]("sessions", pa.int64(), pa.int64())
        self.sessions = context.get_state(bounds)
        self.times = context.get_state(ListStateDescriptor[int]("times", pa.int64(), namespaced=True))
        self.highest = context.get_state(ReducingStateDescriptor[int]("highest", max, int, namespaced=True))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        known = await to_iterable(self.sessions.async_entries())
        near = [(start, end) for start, end in known if start <= row.time + GAP and row.time <= end + GAP]
        target = near[0][0] if near else row.time
        self.times.at(target).async_add(row.time)
        self.highest.at(target).async_add(row.time)
        sources = [start for start, _ in near[1:]]
        self.times.async_merge_namespaces(target, sources)
        self.highest.async_merge_namespaces(target, sources)
        for start, _ in near:
            self.sessions.async_remove(start)
        low = min([row.time, *(start for start, _ in near)])
        high = max([row.time, *(end for _, end in near)])
        if low != target:
            self.times.async_merge_namespaces(low, [target])
            self.highest.async_merge_namespaces(low, [target])
        self.sessions.async_put(low, high)
        times = await to_iterable(self.times.at(low).async_get())
        ctx.emit(low, times, await self.highest.at(low).async_get())


def run_sessions(batches: list[Rows], **how: Any) -> tuple[list[tuple[Any, ...]], dict[bytes, bytes]]:
    with OperatorHarness(Sessions(), SCHEMA, ["user"], **how) as harness:
        for batch in batches:
            harness.push(batch)
            harness.end_batch()
        return list(harness.output), harness.state_entries()


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100)), max_size=10)


@given(st.lists(ROWS, min_size=1, max_size=3))
@settings(max_examples=settings().max_examples // 2)
def test_sessions_merge_alike_in_both_modes(device: str, batches: list[Rows]) -> None:
    output, stored = run_sessions(batches)
    assert run_sessions(batches, async_enabled=True) == (output, stored)
    kept: dict[int, list[int]] = {}
    for (user, time), (_, session, times, highest) in zip(
        [row for batch in batches for row in batch], output, strict=True
    ):
        mine = kept.setdefault(user, [])
        mine.append(time)
        assert (session, highest, sorted(times)) == (min(times), max(times), session_of(mine, time))


def session_of(times: list[int], time: int) -> list[int]:
    """All times that can be reached from ``time`` in steps of at most the gap."""
    reached = [time]
    rest = sorted(times)
    rest.remove(time)
    while near := [other for other in rest if any(abs(other - one) <= GAP for one in reached)]:
        for other in near:
            rest.remove(other)
        reached += near
    return sorted(reached)


def test_merged_sessions_survive_restart_and_rescaling(async_enabled: bool, tmp_path: Any) -> None:
    users = range(12)
    how: dict[str, Any] = {"folder": tmp_path, "max_parallelism": 8}
    first = [(user, time) for user in users for time in (0, 15, 40)]
    with OperatorHarness(
        Sessions(), SCHEMA, ["user"], async_enabled=async_enabled, parallelism=2, **how
    ) as harness:
        harness.push(first)
        harness.end_batch()
    with OperatorHarness(
        Sessions(), SCHEMA, ["user"], async_enabled=not async_enabled, parallelism=3, **how
    ) as harness:
        harness.push([(user, 8) for user in users])
        rows = harness.end_batch()
    assert rows == [("+I", 0, [0, 8, 15], 15)] * len(users)
