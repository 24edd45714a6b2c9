"""The three record-grain states: their edges, their store layout, what they refuse."""

from __future__ import annotations

import gc
import re
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.codec import encode_namespace
from asyncstate.errors import (
    CodecError,
    FutureStateError,
    SchemaError,
    StateAccessError,
    StateDeclarationError,
)
from asyncstate.futures import completed_future, to_iterable
from asyncstate.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.state.fakes import FakeContext, FakeSink, record

ONE = record(1)
STORE_KEY = ONE.group + b"\x08" + ONE.encoded_key


@pytest.fixture
def sink() -> FakeSink:
    sink = FakeSink()
    sink.current = ONE
    return sink


def bound(sink: FakeSink, descriptor: Any, page_size: int = 3) -> Any:
    return FakeContext(sink, page_size).get_state(descriptor)


# -- ValueState --------------------------------------------------------------------------------------


def test_a_value_is_there_until_cleared(sink: FakeSink) -> None:
    state = bound(sink, ValueStateDescriptor("v", pa.int64()))
    assert state.value() is None
    state.update(7)
    assert state.value() == state.async_value().get() == 7
    assert list(sink.contents()) == [STORE_KEY]
    state.update(None)
    assert state.value() is None
    assert sink.contents() == {}
    state.async_update(8)
    assert state.value() == 8
    state.async_clear()
    assert state.async_value().get() is None


def test_values_are_kept_per_key(sink: FakeSink) -> None:
    state = bound(sink, ValueStateDescriptor("v", str))
    state.update("one")
    sink.current = record(2)
    assert state.value() is None
    state.update("two")
    sink.current = ONE
    assert state.value() == "one"


def test_a_default_stands_in_for_a_missing_value_and_is_never_shared(sink: FakeSink) -> None:
    state = bound(sink, ValueStateDescriptor("v", pa.list_(pa.int64()), default=[1]))
    state.value().append(2)
    assert state.value() == state.async_value().get() == [1]
    assert sink.contents() == {}
    state.update([])
    assert state.value() == []


def test_a_read_asked_for_before_a_write_does_not_see_it() -> None:
    sink = FakeSink(deferred=True)
    sink.current = ONE
    state = bound(sink, ValueStateDescriptor("v", int))
    before = state.async_value()
    state.async_update(5)
    after = state.async_value()
    assert not before.done
    sink.answer_one()
    assert (before.get(), after.get()) == (None, 5)


def test_a_value_of_another_type_is_refused_and_changes_nothing(sink: FakeSink) -> None:
    state = bound(sink, ValueStateDescriptor("total", int))
    state.update(1)
    with pytest.raises(CodecError, match="operator 'op', state 'total'"):
        state.update("2")
    assert state.value() == 1


# -- ListState -----------------------------------------------------------------------------------------


def test_a_list_keeps_the_order_of_its_elements(sink: FakeSink) -> None:
    state = bound(sink, ListStateDescriptor("l", str))
    assert list(state.get()) == []
    state.add("a")
    state.add_all(["b", "a"])
    state.async_add("c")
    state.async_add_all(x for x in "de")
    assert list(state.get()) == to_iterable(state.async_get()).get() == list("bacde".replace("b", "ab", 1))


@pytest.mark.parametrize("empty", [[], None, ()])
def test_updating_with_nothing_clears_a_list(sink: FakeSink, empty: Any) -> None:
    state = bound(sink, ListStateDescriptor("l", int))
    for update in (state.update, state.async_update):
        state.add_all([1, 2])
        update(empty)
        assert list(state.get()) == []
        assert sink.contents() == {}


def test_adding_nothing_changes_nothing_and_reads_nothing(sink: FakeSink) -> None:
    state = bound(sink, ListStateDescriptor("l", int))
    state.add_all([])
    assert state.async_add_all([]).get() is None
    assert (sink.written, sink.reads) == ({}, 0)


@pytest.mark.parametrize("method", ["add", "async_add"])
def test_a_list_refuses_none(sink: FakeSink, method: str) -> None:
    state = bound(sink, ListStateDescriptor("orders", int))
    with pytest.raises(
        StateAccessError, match="state 'orders' of operator 'op': a list element cannot be None"
    ):
        getattr(state, method)(None)


@pytest.mark.parametrize("method", ["add_all", "async_add_all", "update", "async_update"])
def test_a_list_takes_all_elements_or_none(sink: FakeSink, method: str) -> None:
    state = bound(sink, ListStateDescriptor("l", int))
    state.add(1)
    with pytest.raises(StateAccessError):
        getattr(state, method)([2, None])
    with pytest.raises(CodecError):
        getattr(state, method)([2, "3"])
    assert list(state.get()) == [1]


def test_a_small_list_is_one_entry_and_a_read_of_it_one_read(sink: FakeSink) -> None:
    state = bound(sink, ListStateDescriptor("l", int))
    state.add_all(range(100))
    assert list(sink.contents()) == [STORE_KEY]
    sink.commit()
    sink.reads = 0
    assert list(state.get()) == list(range(100))
    assert (sink.reads, sink.scans) == (1, 0)


def test_appending_to_a_long_list_writes_its_tail_only(sink: FakeSink) -> None:
    state = bound(sink, ListStateDescriptor("l", int), page_size=1000)
    state.update(range(100_000))
    sink.commit()
    sink.reads = 0
    for i in range(10):
        state.add(i)
    assert sink.reads == 10
    assert len(sink.written) <= 2
    assert sum(len(value or b"") for value in sink.written.values()) < 10_000
    assert list(state.get()) == [*range(100_000), *range(10)]
    state.clear()
    assert sink.contents() == {}


def test_elements_longer_than_a_chunk_are_kept_whole(sink: FakeSink) -> None:
    state = bound(sink, ListStateDescriptor("l", bytes))
    sizes = [0, 1, 254, 255, 256, 5_000, 100_000, 3]
    state.add_all(bytes([size % 251]) * size for size in sizes)
    assert list(state.get()) == [bytes([size % 251]) * size for size in sizes]


def test_a_lost_or_damaged_list_is_named(sink: FakeSink) -> None:
    state = bound(sink, ListStateDescriptor("orders", bytes))
    state.add_all([b"x" * 3_000] * 5)
    sink.commit()
    head, _, second = sink.base
    sink.delete(second)
    with pytest.raises(
        CodecError, match="state 'orders' of operator 'op': a part of a stored list is missing"
    ):
        list(state.get())
    assert to_iterable(state.async_get()).failed
    sink.written.clear()
    sink.put(head, sink.base[head][:-1])
    with pytest.raises(CodecError, match="ends inside an element"):
        list(state.get())


# -- MapState ------------------------------------------------------------------------------------------


def test_a_map_by_key(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", str, int))
    assert state.is_empty()
    assert state.async_is_empty().get()
    assert state.get("a") is None
    assert not state.contains("a")
    state.put("a", 1)
    state.put_all({"b": 2, "c": 3})
    state.async_put_all([("d", 4)])
    assert (state.get("b"), state.async_get("d").get(), state.async_contains("x").get()) == (2, 4, False)
    state.remove("c")
    state.remove("nothing")
    assert list(state.entries()) == [("a", 1), ("b", 2), ("d", 4)]
    assert (list(state.keys()), list(state.values())) == (["a", "b", "d"], [1, 2, 4])
    assert to_iterable(state.async_keys()).get() == ["a", "b", "d"]
    assert to_iterable(state.async_values()).get() == [1, 2, 4]
    assert not state.is_empty()
    state.async_clear()
    assert (sink.contents(), list(state.entries())) == ({}, [])


def test_entries_come_in_the_order_of_their_keys(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", int, str))
    for key in (3, -1, 0, 2**40, -(2**40)):
        state.put(key, str(key))
    assert list(state.keys()) == [-(2**40), -1, 0, 3, 2**40]


def test_a_map_refuses_none_values(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("seen", str, int))
    expected = re.escape(
        "state 'seen' of operator 'op': a map value cannot be None (user key 'b'); use remove()"
    )
    with pytest.raises(StateAccessError, match=expected):
        state.put("b", None)
    with pytest.raises(StateAccessError, match=expected):
        state.async_put_all({"a": 1, "b": None})
    assert sink.contents() == {}


def test_none_is_a_key(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", str, int))
    state.put("", 1)
    state.put(None, 2)
    assert list(state.entries()) == [(None, 2), ("", 1)]


def test_maps_load_page_by_page(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", int, int), page_size=3)
    state.put_all({i: i for i in range(7)})
    entries = state.entries()
    assert sink.scans == 1
    assert [next(entries) for _ in range(4)] == [(i, i) for i in range(4)]
    assert sink.scans == 2
    assert list(entries) == [(4, 4), (5, 5), (6, 6)]
    assert sink.scans == 3


def maps(sink: FakeSink, entries: int) -> Any:
    state = bound(sink, MapStateDescriptor("m", int, int), page_size=3)
    state.put_all({i: i for i in range(entries)})
    return state.async_keys


def lists(sink: FakeSink, entries: int) -> Any:
    state = bound(sink, ListStateDescriptor("l", str), page_size=3)
    state.add_all([str(i) * 1_000 for i in range(entries)])
    return state.async_get


READS: dict[str, Any] = {
    "to_list": lambda entries: entries.to_list().get(),
    "on_next": lambda entries: entries.on_next(lambda _: completed_future(1)).get(),
    "for": list,
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("made", [maps, lists])
def test_an_iterator_of_several_pages_is_read_once(sink: FakeSink, made: Any, read: str) -> None:
    """Its first page is there a second time, but the others are not: nobody may take it for the whole."""
    ask = made(sink, 50)
    entries = ask().get()
    assert len(READS[read](entries)) == 50
    with pytest.raises(FutureStateError, match="read a second time.*request a new one, or keep the list"):
        READS[read](entries)
    assert len(READS[read](ask().get())) == 50


@pytest.mark.parametrize("made", [maps, lists])
def test_an_iterator_of_one_page_is_read_again(sink: FakeSink, made: Any) -> None:
    entries = made(sink, 2)().get()
    assert [len(READS[read](entries)) for read in READS] == [2, 2, 2]


def test_an_iteration_shows_the_map_as_it_was(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", int, int), page_size=2)
    state.put_all({i: i for i in range(0, 20, 2)})
    entries = state.entries()
    seen = []
    for key, value in entries:
        seen.append((key, value))
        state.put(key, -1)
        state.put(key + 3, -2)
        state.remove(key + 4)
    assert seen == [(i, i) for i in range(0, 20, 2)]
    later = state.values()
    state.clear()
    assert len(list(later)) > 2
    assert state.is_empty()


def test_an_abandoned_iteration_costs_later_writes_nothing(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", int, int), page_size=2)
    state.put_all({i: i for i in range(10)})
    entries = state.entries()
    next(entries)
    sink.reads = 0
    state.put(9, 0)
    assert sink.reads == 1  # kept for the iteration
    del entries
    gc.collect()
    state.put(8, 0)
    assert sink.reads == 1


# -- namespaces, keys, declarations -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("descriptor", "write", "read"),
    [
        (ValueStateDescriptor("s", int, namespaced=True), lambda s: s.update(1), lambda s: s.value()),
        (ListStateDescriptor("s", int, namespaced=True), lambda s: s.add(1), lambda s: list(s.get())),
        (
            MapStateDescriptor("s", int, int, namespaced=True),
            lambda s: s.put(1, 1),
            lambda s: list(s.entries()),
        ),
    ],
)
def test_namespaces_are_apart_and_need_at(sink: FakeSink, descriptor: Any, write: Any, read: Any) -> None:
    state = bound(sink, descriptor)
    write(state.at(-5))
    assert read(state.at(-5))
    assert not read(state.at(5))
    assert next(iter(sink.contents())).startswith(STORE_KEY + encode_namespace(-5))
    for use in (write, read):
        with pytest.raises(
            StateAccessError, match=r"state 's' of operator 'op' .* use at\(namespace\) first"
        ):
            use(state)
    state.at(-5).clear()
    assert sink.contents() == {}


def test_at_needs_a_namespaced_declaration(sink: FakeSink) -> None:
    with pytest.raises(StateAccessError, match="state 's' of operator 'op' has no namespaces"):
        bound(sink, ValueStateDescriptor("s", int)).at(1)


@pytest.mark.parametrize(
    ("descriptor", "calls"),
    [
        (
            ValueStateDescriptor("s", int),
            [("value",), ("async_value",), ("update", 1), ("async_update", 1), ("clear",)],
        ),
        (
            ListStateDescriptor("s", int),
            [("get",), ("async_get",), ("add", 1), ("async_add", 1), ("async_clear",)],
        ),
        (
            MapStateDescriptor("s", int, int),
            [("get", 1), ("async_put", 1, 1), ("entries",), ("async_keys",), ("clear",)],
        ),
    ],
)
def test_state_without_a_current_key_is_an_error(descriptor: Any, calls: list[tuple[Any, ...]]) -> None:
    state = bound(FakeSink(), descriptor)
    for method, *arguments in calls:
        with pytest.raises(
            StateAccessError, match="state 's' of operator 'op' was used without a current key"
        ):
            getattr(state, method)(*arguments)


def test_pickled_values(sink: FakeSink) -> None:
    state = bound(sink, MapStateDescriptor("m", str, pickled=True))
    state.put("a", {1, 2})
    assert state.get("a") == {1, 2}
    assert MapStateDescriptor("m", str, pickled=True).type_texts()["value"] == "pickled"


def test_type_texts_spell_shorthands_out() -> None:
    assert MapStateDescriptor("m", str, float).type_texts() == {
        "key": "string",
        "value": "float64",
        "namespaced": "no",
    }
    assert (
        ValueStateDescriptor("v", int).type_texts() == ValueStateDescriptor("v", pa.int64(), 3).type_texts()
    )


@pytest.mark.parametrize("name", ["", "1a", "a b", "ä", "a/b"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(StateDeclarationError, match="is not allowed"):
        ValueStateDescriptor(name, int)


def test_types_are_checked() -> None:
    with pytest.raises(SchemaError, match=r"state 'v': type=\[\] is not a type"):
        ValueStateDescriptor("v", [])
    with pytest.raises(SchemaError, match=r"v\.type"):
        ValueStateDescriptor("v", pa.duration("s"))
    with pytest.raises(SchemaError, match=r"m\.key_type"):
        MapStateDescriptor("m", pa.list_(pa.int64()), int)
    with pytest.raises(StateDeclarationError, match="give a type, or declare it with pickled=True"):
        ListStateDescriptor("l")
    with pytest.raises(StateDeclarationError, match="leave the type out"):
        ListStateDescriptor("l", int, pickled=True)


def test_a_declaration_that_disagrees_with_the_checkpoint_is_refused(sink: FakeSink) -> None:
    stored = MapStateDescriptor("m", str, int).type_texts()
    others: list[Any] = [
        MapStateDescriptor("m", int, int),
        MapStateDescriptor("m", str, int, namespaced=True),
        MapStateDescriptor("m", str, pickled=True),
    ]
    for other in others:
        with pytest.raises(
            StateDeclarationError, match="operator 'op', state 'm': .* but the checkpoint has"
        ):
            other.bind(sink, 8, FakeContext(sink), stored)
    with pytest.raises(StateDeclarationError, match="'value' changed from int64 to string"):
        MapStateDescriptor("m", str, str).bind(sink, 8, FakeContext(sink), stored)


def test_a_widened_type_reads_what_was_stored(sink: FakeSink) -> None:
    narrow: Any = ValueStateDescriptor("v", pa.int32())
    bound(sink, narrow).update(7)
    wide: Any = ValueStateDescriptor("v", pa.int64()).bind(sink, 8, FakeContext(sink), narrow.type_texts())
    assert wide.value() == 7
    wide.update(2**40)
    assert wide.value() == 2**40
