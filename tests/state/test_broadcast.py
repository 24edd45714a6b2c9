"""BroadcastState alone, over a sink in memory: a map for all keys that broadcast records write."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyCodec
from asyncstate.errors import CodecError, SchemaError, StateAccessError, StateDeclarationError
from asyncstate.operator import InputSpec
from asyncstate.state import BroadcastState, BroadcastStateDescriptor, StateTtl
from tests.state.fakes import FakeContext, FakeRecord, FakeSink, record

RULES = pa.schema([("word", pa.string())])
INPUTS = (InputSpec(RULES, ("word",)), InputSpec(RULES, (), broadcast=True, name="the rules"))


@pytest.fixture
def sink() -> FakeSink:
    sink = FakeSink()
    sink.current = broadcast_record()
    return sink


def broadcast_record() -> FakeRecord:
    return FakeRecord(b"", b"", may_write_broadcast=True)


def made(sink: FakeSink, descriptor: BroadcastStateDescriptor[Any, Any]) -> BroadcastState[Any, Any]:
    """The state as a micro-batch opens it."""
    state: BroadcastState[Any, Any] = FakeContext(sink, inputs=INPUTS).get_state(descriptor)
    return state


def counts(sink: FakeSink) -> BroadcastState[str, int]:
    return made(sink, BroadcastStateDescriptor("counts", str, int))


# reading and writing


def test_entries_are_stored_apart_from_all_key_groups(sink: FakeSink) -> None:
    counts(sink).put("a", 1)
    (key,) = sink.contents()
    assert key[:2] == b"\xff\xff"
    assert key[2] == 8  # the first state of an operator


def test_a_later_micro_batch_finds_what_was_put(sink: FakeSink) -> None:
    counts(sink).put_all({word: len(word) for word in ("ccc", "a", "bb", "dddd", "eeeee", "ffffff", "g")})
    sink.commit()
    state = counts(sink)
    assert list(state.entries()) == [
        ("a", 1), ("bb", 2), ("ccc", 3), ("dddd", 4), ("eeeee", 5), ("ffffff", 6), ("g", 1),
    ]  # fmt: skip
    assert state.get("bb") == 2
    assert state.get("zz") is None


def test_the_map_is_loaded_once(sink: FakeSink) -> None:
    counts(sink).put("a", 1)
    sink.commit()
    state = counts(sink)
    assert sink.scans == 1  # of the first object
    for _ in range(5):
        assert state.get("a") == 1
        assert state.contains("b") is False
        assert list(state.keys()) == ["a"]
    assert sink.scans == 2
    assert sink.reads == 0


def test_every_key_reads_the_same_and_so_does_no_key(sink: FakeSink) -> None:
    state = counts(sink)
    state.put("a", 1)
    for context in (record(1), record(2), None):
        sink.current = context
        assert state.get("a") == 1
        assert dict(state.entries()) == {"a": 1}


def test_futures_are_done_at_once(sink: FakeSink) -> None:
    state = counts(sink)
    assert state.async_put("a", 1).done
    assert state.async_put_all([("b", 2), ("c", 3)]).done
    assert state.async_remove("c").done
    assert state.async_get("a").get() == 1
    assert state.async_contains("c").get() is False
    assert list(state.async_entries().get()) == [("a", 1), ("b", 2)]
    assert list(state.async_keys().get()) == ["a", "b"]
    assert list(state.async_values().get()) == [1, 2]
    assert state.async_is_empty().get() is False
    assert state.async_clear().done
    assert state.async_is_empty().get() is True


def test_it_is_a_dict(sink: FakeSink) -> None:
    state = counts(sink)
    state["b"] = 2
    state["a"] = 1
    assert (state["a"], len(state), list(state), "a" in state, "c" in state) == (
        1,
        2,
        ["a", "b"],
        True,
        False,
    )
    del state["a"]
    assert list(state) == ["b"]
    assert list(state.items()) == [("b", 2)]
    assert state["a"] is None  # as MapState has it: a missing key is no error
    del state["a"]


def test_an_iteration_shows_the_map_as_it_was(sink: FakeSink) -> None:
    state = counts(sink)
    state.put_all({"a": 1, "b": 2})
    entries = state.entries()
    state.clear()
    state.put("c", 3)
    assert list(entries) == [("a", 1), ("b", 2)]
    assert list(state.entries()) == [("c", 3)]


def test_what_was_put_reads_as_it_will_read_after_the_commit(sink: FakeSink) -> None:
    def read(state: BroadcastState[Any, Any]) -> list[tuple[str, str]]:
        return [(repr(key), repr(value)) for key, value in state.entries()]

    descriptor: BroadcastStateDescriptor[Any, Any] = BroadcastStateDescriptor("rates", float, float)
    state = made(sink, descriptor)
    state.put_all([(1, 2), (math.nan, 3.0), (0.5, 4)])
    written = read(state)
    sink.commit()
    assert written == read(made(sink, descriptor)) == [("0.5", "4.0"), ("1.0", "2.0"), ("nan", "3.0")]
    assert state.get(float("nan")) == 3.0


@pytest.mark.parametrize(
    "descriptor",
    [
        BroadcastStateDescriptor("lists", str, pa.list_(pa.int64())),
        BroadcastStateDescriptor("objects", str, pickled=True),
    ],
    ids=["list", "pickled"],
)
def test_changing_what_was_read_or_put_changes_no_state(
    sink: FakeSink, descriptor: BroadcastStateDescriptor[Any, Any]
) -> None:
    state = made(sink, descriptor)
    mine = [1]
    state.put("a", mine)
    mine.append(2)
    state.get("a").append(3)
    state["a"].append(4)
    next(state.values()).append(5)
    next(state.entries())[1].append(6)
    assert state.get("a") == [1]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(-3, 3), st.integers(0, 99)),
        st.tuples(st.just("remove"), st.integers(-3, 3), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
        st.tuples(st.just("commit"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(operations=OPERATIONS)
def test_it_follows_a_plain_dict(operations: list[tuple[str, int, int]]) -> None:
    sink = FakeSink()
    sink.current = broadcast_record()
    descriptor: BroadcastStateDescriptor[int, int] = BroadcastStateDescriptor("map", int, int)
    state = made(sink, descriptor)
    model: dict[int, int] = {}
    for what, key, value in operations:
        if what == "put":
            state.put(key, value)
            model[key] = value
        elif what == "remove":
            state.remove(key)
            model.pop(key, None)
        elif what == "clear":
            state.clear()
            model.clear()
        else:
            sink.commit()
            state = made(sink, descriptor)
        assert list(state.entries()) == sorted(model.items())
        assert (len(state), state.is_empty()) == (len(model), not model)
        assert [state.get(k) for k in range(-3, 4)] == [model.get(k) for k in range(-3, 4)]
    encode = KeyCodec([pa.int64()], ["k"], 1).encode_one
    assert [key[3:] for key in sink.contents()] == [encode((k,)) for k in sorted(model)]


# refusals

WRITES: list[Callable[[BroadcastState[str, int]], object]] = [
    lambda state: state.put("a", 1),
    lambda state: state.async_put("a", 1),
    lambda state: state.put_all({"a": 1}),
    lambda state: state.async_put_all({}),
    lambda state: state.remove("a"),
    lambda state: state.async_remove("a"),
    lambda state: state.clear(),
    lambda state: state.async_clear(),
    lambda state: state.__setitem__("a", 1),
    lambda state: state.__delitem__("a"),
]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("context", [record(1), None], ids=["keyed", "no-key"])
def test_only_a_broadcast_record_writes(
    sink: FakeSink, write: Callable[[BroadcastState[str, int]], object], context: FakeRecord | None
) -> None:
    state = counts(sink)
    state.put("a", 7)
    sink.current = context
    with pytest.raises(
        StateAccessError, match=r"state 'counts' of operator 'op' .* only in process_broadcast\(\)"
    ):
        write(state)
    assert list(state.entries()) == [("a", 7)]
    assert len(sink.contents()) == 1


def test_none_and_wrong_types_are_refused_before_anything_is_stored(sink: FakeSink) -> None:
    state = counts(sink)
    with pytest.raises(StateAccessError, match=r"cannot be None \(user key 'b'\); use remove\(\)"):
        state.put_all([("a", 1), ("b", None)])  # type: ignore[list-item]
    with pytest.raises(CodecError, match="'counts'"):
        state.put_all([("a", 1), ("b", "x")])  # type: ignore[list-item]
    with pytest.raises(CodecError, match=r"counts\.key"):
        state.get(5)  # type: ignore[arg-type]
    assert state.is_empty()
    assert sink.contents() == {}


def test_what_it_cannot_be_declared_with() -> None:
    with pytest.raises(StateDeclarationError, match="broadcast state does not support namespaced"):
        BroadcastStateDescriptor("b", str, int, namespaced=True)
    with pytest.raises(StateDeclarationError, match="broadcast state does not support ttl"):
        BroadcastStateDescriptor("b", str, int, ttl=StateTtl(timedelta(days=1)))
    with pytest.raises(SchemaError, match=r"b\.key_type"):
        BroadcastStateDescriptor("b", pa.list_(pa.int64()), int)
    with pytest.raises(StateDeclarationError, match="give a type"):
        BroadcastStateDescriptor("b", str)


def test_it_needs_a_broadcast_input(sink: FakeSink) -> None:
    context = FakeContext(sink, inputs=INPUTS[:1])
    with pytest.raises(StateDeclarationError, match="'b' is declared, but no input is broadcast"):
        context.get_state(BroadcastStateDescriptor("b", str, int))
