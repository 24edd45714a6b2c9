"""Views over state and in memory: the same behaviour on both, nothing read or decoded that was not asked for."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastStateDescriptor,
    InputSpec,
    ListStateDescriptor,
    ListView,
    MapStateDescriptor,
    MapView,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    StateFuture,
    StateIterator,
    StateTtl,
    ValueStateDescriptor,
    ValueView,
    completed_future,
)
from asyncstate.errors import CodecError, StateAccessError
from asyncstate.state.keyed import chunks
from asyncstate.testing import OperatorHarness
from tests.state.fakes import FakeContext, FakeRecord, FakeSink, record, run_records

ONE = record(1)
DESCRIPTORS: dict[str, Any] = {
    "value": ValueStateDescriptor("value", str),
    "list": ListStateDescriptor("list", str),
    "map": MapStateDescriptor("map", float, str),
    "windowed": MapStateDescriptor("windowed", float, str, namespaced=True),
}
VIEWS: dict[str, Any] = {"value": ValueView, "list": ListView, "map": MapView, "windowed": MapView}


@pytest.fixture
def sink() -> FakeSink:
    sink = FakeSink()
    sink.current = ONE
    return sink


def view_on(context: Any, kind: str) -> Any:
    """A view on state of its own; of the windowed kind on one namespace."""
    state = context.get_state(DESCRIPTORS[kind])
    return VIEWS[kind](state.at(-3) if kind == "windowed" else state)


# -- the same on both backings -------------------------------------------------------------------------------

Call = tuple[str, tuple[Any, ...], bool]
NUMBERS = st.sampled_from([None, -math.inf, -1.5, 0.0, -0.0, 2.0, 1e300, math.inf, math.nan])
TEXTS = st.text("ab", max_size=3)
TEXTS_OR_NONE = st.none() | TEXTS
NOTHING: st.SearchStrategy[tuple[Any, ...]] = st.just(())
MAPS = {
    "get": st.tuples(NUMBERS),
    "contains": st.tuples(NUMBERS),
    "put": st.tuples(NUMBERS, TEXTS_OR_NONE),
    "put_all": st.tuples(st.lists(st.tuples(NUMBERS, TEXTS_OR_NONE), max_size=3)),
    "remove": st.tuples(NUMBERS),
    "items": NOTHING,
    "keys": NOTHING,
    "values": NOTHING,
    "is_empty": NOTHING,
    "clear": NOTHING,
}
METHODS: dict[str, dict[str, st.SearchStrategy[tuple[Any, ...]]]] = {
    "value": {"value": NOTHING, "update": st.tuples(TEXTS_OR_NONE), "is_empty": NOTHING, "clear": NOTHING},
    "list": {
        "get": NOTHING,
        "add": st.tuples(TEXTS_OR_NONE),
        "add_all": st.tuples(st.lists(TEXTS_OR_NONE, max_size=4)),
        "clear": NOTHING,
    },
    "map": {
        **MAPS,
        "__getitem__": st.tuples(NUMBERS),
        "__setitem__": st.tuples(NUMBERS, TEXTS_OR_NONE),
        "__delitem__": st.tuples(NUMBERS),
        "__contains__": st.tuples(NUMBERS),
        "__iter__": NOTHING,
    },
    "windowed": MAPS,
}


def calls(kind: str) -> st.SearchStrategy[list[Call]]:
    return st.lists(
        st.one_of(
            [
                st.tuples(st.just(method), arguments, st.booleans())
                for method, arguments in METHODS[kind].items()
            ]
        ),
        max_size=12,
    )


def observe(view: Any, call: Call, all_sync: bool, results: list[Any]) -> None:
    """Make the call and put what a caller sees of it, at once or later, into its place among the results."""
    method, arguments, sync = call
    name = method if sync or all_sync or method.startswith("__") else f"async_{method}"
    results.append("pending")
    put = partial(results.__setitem__, len(results) - 1)
    try:
        outcome = getattr(view, name)(*arguments)
    except StateAccessError:
        put("refused")
        return
    if isinstance(outcome, StateFuture):
        outcome.then_compose(_all).then_apply(_plain).then_accept(put)
    else:
        put(_plain(outcome))


def _all(value: Any) -> StateFuture[Any]:
    return value.to_list() if isinstance(value, StateIterator) else completed_future(value)


def _plain(value: Any) -> Any:
    """As text, so that a NaN equals itself; the two zeros are one key."""
    return repr(list(value) if isinstance(value, Iterator) else value).replace("-0.0", "0.0")


def over_state(kind: str, program: list[Call], deferred: bool, seed: int, all_sync: bool) -> list[Any]:
    """The results of the program on state, in two micro-batches."""
    sink = FakeSink(deferred, seed)
    results: list[Any] = []
    for half in (program[: len(program) // 2], program[len(program) // 2 :]):
        view = view_on(FakeContext(sink, page_size=2), kind)

        def work(view: Any = view, half: list[Call] = half) -> None:
            for call in half:
                observe(view, call, all_sync, results)

        run_records(sink, [record(1, work)])
        sink.commit()
    return results


@pytest.mark.parametrize("kind", DESCRIPTORS)
@given(st.data(), st.integers(0, 2**16))
@settings(max_examples=2 * settings().max_examples)
def test_a_view_behaves_the_same_over_state_and_in_memory(kind: str, data: st.DataObject, seed: int) -> None:
    program = data.draw(calls(kind))
    in_memory: list[Any] = []
    view = VIEWS[kind]()
    for call in program:
        observe(view, call, False, in_memory)
    assert over_state(kind, program, deferred=False, seed=0, all_sync=True) == in_memory
    assert over_state(kind, program, deferred=False, seed=0, all_sync=False) == in_memory
    assert over_state(kind, program, deferred=True, seed=seed, all_sync=False) == in_memory


BACKINGS: dict[str, Callable[[str], Any]] = {
    "memory": lambda kind: VIEWS[kind](),
    "state": lambda kind: view_on(FakeContext(_current_sink()), kind),
}


def _current_sink() -> FakeSink:
    sink = FakeSink()
    sink.current = ONE
    return sink


@pytest.fixture(params=BACKINGS)
def backing(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    return BACKINGS[request.param]


def test_a_map_view_is_used_like_a_dict(backing: Callable[[str], Any]) -> None:
    view = backing("map")
    view[2.0] = "b"
    view[1.0] = "a"
    view.put_all({3.0: "c"})
    del view[3.0]
    del view[4.0]
    assert (view[1.0], view[9.0], 1.0 in view, 9.0 in view) == ("a", None, True, False)
    assert (list(view), dict(view.items())) == ([1.0, 2.0], {1.0: "a", 2.0: "b"})
    other = backing("map")
    other.put_all(view)
    assert other == view


def test_writing_while_iterating_is_safe(backing: Callable[[str], Any]) -> None:
    words, numbers = backing("list"), backing("map")
    words.add_all("ab")
    numbers.put_all([(1.0, "a"), (2.0, "b"), (3.0, "c"), (4.0, "d")])
    for word in words:
        words.add(word)
    for key in numbers:
        numbers.remove(key)
        numbers[key + 10] = "later"
    assert list(words) == ["a", "b", "a", "b"]
    assert list(numbers.values()) == ["later"] * 4


@pytest.mark.parametrize("kind", ["value", "list", "map"])
def test_views_are_equal_by_what_they_hold(kind: str) -> None:
    fill: dict[str, tuple[str, list[Any]]] = {
        "value": ("update", ["a"]),
        "list": ("add", ["a"]),
        "map": ("put", [1.0, "a"]),
    }
    method, arguments = fill[kind]
    views = [BACKINGS[name](kind) for name in ("memory", "memory", "state", "state")]
    for view in views:
        getattr(view, method)(*arguments)
    assert all(view == views[0] and hash(view) == hash(views[0]) for view in views)
    views[0].clear()
    assert views[0] != views[2]
    assert views[0] != "a"


def test_a_list_view_has_neither_remove_nor_a_length(backing: Callable[[str], Any]) -> None:
    assert not hasattr(backing("list"), "remove")
    assert not hasattr(backing("list"), "__len__")
    assert not hasattr(backing("map"), "__len__")


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_none_is_refused_with_the_way_out(backing: Callable[[str], Any], prefix: str) -> None:
    with pytest.raises(StateAccessError, match="a list element cannot be None; leave it out"):
        getattr(backing("list"), prefix + "add")(None)
    with pytest.raises(StateAccessError, match=re.escape("cannot be None (user key 1.0); use remove()")):
        getattr(backing("map"), prefix + "put")(1.0, None)


# -- over state ----------------------------------------------------------------------------------------------


def test_a_value_view_decodes_only_what_is_asked_for(sink: FakeSink) -> None:
    state = FakeContext(sink).get_state(ValueStateDescriptor("v", int))
    view = ValueView(state)
    assert (sink.reads, sink.written) == (0, {})
    state.update(1)
    key = next(iter(sink.contents()))
    sink.put(key, b"no value")
    assert (view.is_empty(), view.async_is_empty().get()) == (False, False)
    with pytest.raises(CodecError):
        view.value()
    view.update(2)
    assert view.value() == 2
    view.async_clear()
    assert (view.is_empty(), view.async_is_empty().get(), sink.contents()) == (True, True, {})


def test_a_view_on_a_value_with_a_default_shows_it_and_is_empty(sink: FakeSink) -> None:
    view = ValueView(FakeContext(sink).get_state(ValueStateDescriptor("v", int, default=7)))
    assert (view.value(), view.is_empty()) == (7, True)


def test_an_expired_value_is_no_value(sink: FakeSink) -> None:
    descriptor: Any = ValueStateDescriptor("v", int, ttl=StateTtl(10))
    ValueView(FakeContext(sink, processing_time=100).get_state(descriptor)).update(1)
    for now, gone in [(109, False), (110, True)]:
        view: ValueView[int] = ValueView(FakeContext(sink, processing_time=now).get_state(descriptor))
        assert (view.is_empty(), view.async_is_empty().get()) == (gone, gone)
        assert view.value() == (None if gone else 1)


def test_a_map_view_is_also_over_broadcast_state(sink: FakeSink) -> None:
    sink.current = FakeRecord(b"", b"", may_write_broadcast=True)
    inputs = (InputSpec(pa.schema([]), ()), InputSpec(pa.schema([]), (), broadcast=True))
    descriptor: Any = BroadcastStateDescriptor("rules", str, int)
    view: MapView[str, int] = MapView(FakeContext(sink, inputs=inputs).get_state(descriptor))
    view["b"] = 2
    view.async_put("a", 1)
    assert (list(view.items()), view["c"], view.async_contains("a").get()) == (
        [("a", 1), ("b", 2)],
        None,
        True,
    )
    del view["c"]
    view.clear()
    assert view.is_empty()


@pytest.mark.parametrize("view", [ValueView, ListView, MapView])
def test_a_view_is_over_its_own_kind_of_state(sink: FakeSink, view: Any) -> None:
    wrong = [1, 2]
    with pytest.raises(StateAccessError, match=rf"a {view.__name__} wraps a .*State.*, not \[1, 2\]"):
        view(wrong)


def test_views_show_themselves_without_reading_state(sink: FakeSink) -> None:
    words: ListView[str] = ListView()
    words.add("a")
    counts: MapView[str, int] = MapView()
    counts["a"] = 1
    empty: ValueView[int] = ValueView()
    assert [repr(view) for view in (empty, words, counts)] == [
        "ValueView(None)",
        "ListView(['a'])",
        "MapView({'a': 1})",
    ]
    assert repr(view_on(FakeContext(sink), "list")) == "ListView(<ListState 'list' of 'op'>)"
    assert sink.reads == 0


# -- in memory -----------------------------------------------------------------------------------------------


def test_views_in_memory_are_pickled_with_what_they_hold() -> None:
    views: tuple[Any, ...] = (ValueView(), ListView(), MapView())
    views[0].update(1)
    views[1].add_all([1, 2])
    views[2].put_all({math.nan: 1, None: 2, 3.0: 4})
    copies = pickle.loads(pickle.dumps(views))
    assert repr(copies) == repr(views)
    copies[1].add(3)
    assert list(views[1]) == [1, 2]
    assert copies[2][math.nan] == 1


class Distinct(AggregateFunction[str, dict[str, Any], int]):
    """The number of different words, in an accumulator with a view."""

    def create_accumulator(self) -> dict[str, Any]:
        return {"words": MapView()}

    def add(self, value: str, accumulator: dict[str, Any]) -> dict[str, Any]:
        accumulator["words"][value] = (accumulator["words"][value] or 0) + 1
        return accumulator

    def get_result(self, accumulator: dict[str, Any]) -> int:
        return len(list(accumulator["words"]))

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        for word, count in b["words"].items():
            a["words"][word] = (a["words"][word] or 0) + count
        return a


def test_an_accumulator_may_hold_views(sink: FakeSink) -> None:
    descriptor: Any = AggregatingStateDescriptor("s", Distinct(), pickled=True, namespaced=True)
    state = FakeContext(sink).get_state(descriptor)
    for namespace, word in [(1, "a"), (1, "b"), (2, "b"), (1, "a"), (2, "c")]:
        state.at(namespace).async_add(word)
    assert state.at(1).get() == 2
    state.merge_namespaces(1, [2])
    assert state.at(1).get() == 3


# -- the states' own dict protocol -----------------------------------------------------------------------------


def test_a_map_state_is_used_like_a_dict_and_a_list_state_is_iterated(sink: FakeSink) -> None:
    context = FakeContext(sink)
    counts, words = (
        context.get_state(MapStateDescriptor("m", str, int)),
        context.get_state(DESCRIPTORS["list"]),
    )
    counts["b"] = 2
    counts["a"] = 1
    del counts["b"]
    del counts["none"]
    counts["c"] = (counts["c"] or 0) + 3
    assert ("a" in counts, "b" in counts, counts["a"], counts["b"]) == (True, False, 1, None)
    assert (list(counts), list(counts.items())) == (["a", "c"], [("a", 1), ("c", 3)])
    assert list(counts.async_items().get()) == [("a", 1), ("c", 3)]
    words.add_all("ab")
    assert list(words) == ["a", "b"]


# -- on the real controllers and stores ------------------------------------------------------------------------


class WordFunction:
    """Counts words in whatever views it is given: state in a stream, memory in a batch."""

    def __init__(self, last: ValueView[str], words: ListView[str], counts: MapView[str, int]) -> None:
        self.last = last
        self.words = words
        self.counts = counts

    async def add(self, word: str) -> tuple[str | None, list[str], list[tuple[str, int]]]:
        last = await self.last.async_value()
        self.counts.async_put(word, (await self.counts.async_get(word) or 0) + 1)
        self.words.async_add(word)
        self.last.async_update(word)
        words = await (await self.words.async_get()).to_list()
        return last, words, await (await self.counts.async_items()).to_list()


class Words(RecordOperator):
    """Puts out what ``WordFunction`` gives for each row."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("seen", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self.function = WordFunction(
            ValueView(context.get_state(ValueStateDescriptor[str]("last", str))),
            ListView(context.get_state(ListStateDescriptor[str]("words", str))),
            MapView(context.get_state(MapStateDescriptor[str, int]("counts", str, int))),
        )

    async def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(repr(await self.function.add(row.word)))


ROWS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), max_size=12)


@given(st.lists(ROWS, min_size=1, max_size=3))
@settings(max_examples=settings().max_examples // 2)
def test_a_function_gives_the_same_in_a_stream_and_in_a_batch(
    async_enabled: bool, device: str, batches: list[list[tuple[int, str]]]
) -> None:
    in_memory = {key: WordFunction(ValueView(), ListView(), MapView()) for key in range(3)}
    schema = pa.schema([("key", pa.int64()), ("word", pa.string())])
    with OperatorHarness(Words(), schema, ["key"], async_enabled=async_enabled) as harness:
        for batch in batches:
            harness.push(batch)
            harness.end_batch()
        seen = [text for _, text in harness.output]
    assert seen == [repr(_result(in_memory[key].add(word))) for batch in batches for key, word in batch]


def _result(coroutine: Any) -> Any:
    """What a coroutine returns that never has to wait."""
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    return stopped.value.value


def test_a_long_list_and_a_long_map_are_read_page_by_page(
    monkeypatch: pytest.MonkeyPatch, sink: FakeSink
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 20)
    context = FakeContext(sink)
    words, numbers = view_on(context, "list"), view_on(context, "map")
    words.add_all(str(i) for i in range(100))
    numbers.put_all((float(i), str(i)) for i in range(100))
    sink.reads = sink.scans = 0
    assert (next(words.get()), next(numbers.items())) == ("0", (0.0, "0"))
    assert (sink.reads, sink.scans) == (2, 1)
