"""The cache of column states against dicts: its table by itself, and the state over a sink that answers late."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyBatch, KeyCodec, RowCodec
from asyncstate.errors import CodecError
from asyncstate.futures import StateFuture
from asyncstate.state import ColumnCache, Columns, ColumnState
from asyncstate.state.column_cache.keyed_columns import KeyedColumns, RowNumbers
from asyncstate.storage.store_pool import read_cached, write_cached
from tests.state.fakes import FakeSink

Key = tuple[Any, ...]
Row = tuple[Any, ...]
Held = dict[Key, Row]

STATE_ID = 9
KEY_TYPES = {
    "int": [pa.int64()],
    "text": [pa.string()],
    "float": [pa.float64()],
    "both": [pa.int32(), pa.large_binary()],
    "decimal": [pa.decimal128(20, 2)],
    "none": [],
}
SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("share", pa.float64(), nullable=False),
        pa.field("list", pa.list_(pa.int32())),
    ]
)
KEYS: dict[str, list[Key]] = {
    "int": [(None,), (0,), (-1,), (7,), (1 << 62,)],
    "text": [(None,), ("",), ("a",), ("aa",), ("\0",)],
    "float": [(None,), (0.0,), (1.5,), (float("inf"),), (-2.0,)],
    "both": [(None, None), (None, b""), (1, None), (1, b""), (1, b"x")],
    "decimal": [
        (None,),
        *((value,) for value in pa.array(["0", "1.25", "-3"]).cast(pa.decimal128(20, 2)).to_pylist()),
    ],
    "none": [()],
}

numbers = st.integers(0, 4)
rows = st.tuples(
    st.one_of(st.none(), st.integers(-3, 3)),
    st.one_of(st.none(), st.sampled_from(["", "a", "bb", "x" * 40])),
    st.one_of(st.none(), st.booleans()),
    st.sampled_from([0.0, 0.5]),
    st.one_of(st.none(), st.lists(st.integers(0, 3), max_size=2)),
)
batches = st.dictionaries(numbers, rows, min_size=1)


def _good(keys: KeyBatch) -> Any:
    return keys.hashes


def _one(keys: KeyBatch) -> Any:
    return np.zeros(len(keys), np.uint64)


def _one_home(keys: KeyBatch) -> Any:
    return keys.hashes & np.uint64((1 << 32) - 1)


def _one_tag(keys: KeyBatch) -> Any:
    return keys.hashes & ~np.uint64((1 << 32) - 1)


WEAK = {"good": _good, "one": _one, "one home": _one_home, "one tag": _one_tag}


def _columns(types: Sequence[pa.DataType], values: Sequence[Sequence[Any]]) -> list[pa.Array]:
    return [pa.array([row[at] for row in values], kind) for at, kind in enumerate(types)]


def _batch(codec: KeyCodec, keys: Sequence[Key]) -> KeyBatch:
    return codec.group(_columns(codec.types, keys), num_rows=len(keys))


def _keys_of(keys: KeyBatch) -> list[Key]:
    if not keys.columns:
        return [()] * len(keys)
    return list(zip(*(column.to_pylist() for column in keys.columns), strict=True))


def _in_order(keys: KeyBatch, held: Held) -> list[pa.Array]:
    return _columns(SCHEMA.types, [held[key] for key in _keys_of(keys)])


def _found(keys: KeyBatch, read: Columns) -> Held:
    values = list(zip(*(column.to_pylist() for column in read.columns), strict=True))
    for value, present in zip(values, read.present, strict=True):
        assert present or not any(part is not None for part in value), "null where there is no row"
    return {
        key: value for key, value, there in zip(_keys_of(keys), values, read.present, strict=True) if there
    }


def _picked(kind: str, batch: dict[int, Row]) -> Held:
    known = KEYS[kind]
    return {known[number % len(known)]: row for number, row in batch.items()}


def _store(stored: Held, gone: RowNumbers) -> None:
    values = list(zip(*(column.to_pylist() for column in gone.columns), strict=True))
    for key, value, there in zip(_keys_of(gone.keys), values, gone.present, strict=True):
        if there:
            stored[key] = value
        else:
            stored.pop(key, None)


steps = st.one_of(
    st.tuples(st.just("write"), batches),
    st.tuples(st.just("remove"), batches),
    st.tuples(st.just("read"), batches),
    st.tuples(st.just("shrink"), st.integers(0, 4)),
    st.tuples(st.just("clean"), st.none()),
    st.tuples(st.just("hand over"), st.none()),
)


@pytest.mark.parametrize("kind", list(KEY_TYPES))
@given(
    story=st.lists(steps, max_size=25), weak=st.sampled_from(list(WEAK)), whole=st.booleans(), first=batches
)
def test_a_table_is_a_dict_over_what_is_stored(
    kind: str, story: list[tuple[str, Any]], weak: str, whole: bool, first: dict[int, Row]
) -> None:
    codec = KeyCodec(KEY_TYPES[kind], [f"k{at}" for at in range(len(KEY_TYPES[kind]))], 8)
    table = KeyedColumns(KEY_TYPES[kind], SCHEMA, whole, WEAK[weak])
    stored: Held = {} if whole else _picked(kind, first)
    truth = dict(stored)
    for what, argument in story:
        if what == "shrink":
            gone = table.shrink(argument)
            if gone is not None:
                _store(stored, gone)
            assert len(table) <= argument or table.whole
            continue
        if what in ("clean", "hand over"):
            for dirty in table.dirty():
                _store(stored, dirty)
            table.clean()
            assert not table.dirty()
        if what == "hand over":
            with tempfile.TemporaryDirectory() as folder:
                write_cached(Path(folder, "cached"), "L", table)
                assert read_cached(Path(folder, "cached"), "M") is None
                table = read_cached(Path(folder, "cached"), "L")
        if argument is None:
            continue
        held = _picked(kind, argument)
        keys = _batch(codec, list(held))
        found = table.find(keys)
        known = [key for key, row in zip(_keys_of(keys), found, strict=True) if row >= 0]
        shown = _found(keys, table.take(found))
        assert shown == {key: truth[key] for key in known if key in truth}
        if table.whole:
            assert not set(_keys_of(keys)) - set(known) & set(truth)
        unknown = {key: stored[key] for key in held if key not in known and key in stored}
        if what == "write":
            table.write(keys, _in_order(keys, held))
            truth |= held
        elif what == "remove":
            table.write(keys, None)
            truth = {key: row for key, row in truth.items() if key not in held}
        elif unknown:
            learned = _batch(codec, list(unknown))
            table.learn(learned, _in_order(learned, unknown))
    for dirty in table.dirty():
        _store(stored, dirty)
    assert stored == truth


def test_what_is_dirty_ascends_piece_by_piece_and_each_key_once() -> None:
    codec = KeyCodec([pa.int64()], ["k"], 128)
    table = KeyedColumns([pa.int64()], pa.schema([("n", pa.int64())]), whole=True)
    random = np.random.default_rng(1)
    for number in range(5):
        keys = _batch(codec, [(int(key),) for key in random.integers(0, 3_000, 2_000)])
        table.write(keys, [pa.array([number] * len(keys))])
    pieces = [rows.keys.store_keys(1) for rows in table.dirty()]
    assert all(piece == sorted(piece) for piece in pieces)
    together = [key for piece in pieces for key in piece]
    assert len(together) == len(set(together)) == len(table)


def test_overwritten_texts_do_not_pile_up() -> None:
    codec = KeyCodec([pa.int64()], ["k"], 128)
    table = KeyedColumns([pa.int64()], pa.schema([("text", pa.string())]), whole=True)
    keys = _batch(codec, [(key,) for key in range(1_000)])
    sizes = []
    for number in range(40):
        table.write(keys, [pa.array([f"{number:04d}" * 25] * 1_000)])
        table.clean()
        sizes.append(table.nbytes)
    assert max(sizes) < 5 * sizes[0]


def test_a_slice_does_not_keep_the_array_that_it_is_of() -> None:
    codec = KeyCodec([pa.int64()], ["k"], 128)
    table = KeyedColumns([pa.int64()], pa.schema([("text", pa.string())]), whole=True)
    before = pa.total_allocated_bytes()
    large = pa.array(["x" * 1_000] * 10_000)
    table.write(_batch(codec, [(1,)]), [large.slice(5_000, 1)])
    del large
    assert pa.total_allocated_bytes() - before < 1_000_000


# -- the state over a sink -------------------------------------------------------------------------------


class LateSink(FakeSink):
    """Bundle reads show what there is when they are asked for, and are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[StateFuture[Any], list[bytes | None]]] = []
        self.asked: list[list[bytes]] = []
        self.prefetched: list[list[bytes]] = []

    def async_get_many(self, keys: list[bytes]) -> StateFuture[Any]:
        future: StateFuture[Any] = StateFuture()
        self.asked.append(keys)
        self.late.append((future, self.get_many(keys)))
        return future

    def prefetch(self, keys: list[bytes]) -> None:
        self.prefetched.append(keys)

    def answer(self, at: int) -> None:
        future, values = self.late.pop(at % len(self.late))
        future.complete(values)


@dataclass
class Context:
    """What a column state needs of an OperatorContext."""

    key_codec: KeyCodec
    key_groups: range = range(8)
    page_size: int = 10
    uid: str = "op"


@dataclass
class Rig:
    """One state in micro-batches; ``limit_bytes`` bounds its cache."""

    kind: str
    limit_bytes: int
    sink: LateSink = field(default_factory=LateSink)
    cache: ColumnCache = field(default_factory=ColumnCache)
    is_new: bool = True

    def __post_init__(self) -> None:
        types = KEY_TYPES[self.kind]
        self.codec = KeyCodec(types, [f"k{at}" for at in range(len(types))], 8)
        self.begin()

    def begin(self) -> None:
        context: Any = Context(self.codec)
        self.cache.begin(self.limit_bytes)
        self.state = ColumnState(self.sink, STATE_ID, RowCodec(SCHEMA, owner="rows"), context)
        self.state.use_cache(self.cache, self.is_new)
        assert self.cache.opened() == {STATE_ID}
        self.is_new = False

    def commit(self) -> None:
        self.sink.commit()
        self.begin()

    def keys(self, held: Sequence[Key]) -> KeyBatch:
        return _batch(self.codec, list(held))

    def stored(self) -> Held:
        entries = self.sink.contents()
        columns, _ = RowCodec(SCHEMA).decode(list(entries.values()))
        keys = self.codec.decode(list(entries), 3)
        names = (
            list(zip(*(column.to_pylist() for column in keys), strict=True)) if keys else [()] * len(entries)
        )
        return dict(zip(names, zip(*(column.to_pylist() for column in columns), strict=True), strict=True))


calls = st.one_of(
    st.tuples(
        st.sampled_from(["write", "remove", "remove with", "put", "get", "ask", "ask", "prefetch"]), batches
    ),
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["commit", "lose", "entries"]), st.just({})),
)


@pytest.mark.parametrize("kind", ["int", "text", "both", "none"])
@given(story=st.lists(calls, max_size=30), limit_bytes=st.sampled_from([1, 1_500, 8_000, 1 << 20]))
def test_reads_show_what_was_written_before_they_were_asked_for(
    kind: str, story: list[tuple[str, Any]], limit_bytes: int
) -> None:
    rig, truth = Rig(kind, limit_bytes), {}
    asked: list[tuple[KeyBatch, StateFuture[Columns], Held]] = []
    for what, argument in story:
        if what == "answer":
            if rig.sink.late:
                rig.sink.answer(argument)
            continue
        if what in ("commit", "lose"):
            while rig.sink.late:
                rig.sink.answer(0)
            rig.commit()
            assert rig.stored() == truth
            if what == "lose":  # another process goes on: nothing is in memory
                rig.cache = ColumnCache()
                rig.begin()
            assert rig.cache.size_bytes <= limit_bytes
            continue
        if what == "entries":
            known = rig.keys(KEYS[kind])
            rig.state.remove_entries(known.store_keys(STATE_ID)[:1])
            truth.pop(_keys_of(known)[0], None)
            continue
        held = _picked(kind, argument)
        keys = rig.keys(list(held))
        shown = {key: row for key, row in truth.items() if key in held}
        if what == "put":
            rig.state.put(keys, _in_order(keys, held))
            truth |= held
        elif what in ("remove", "remove with"):
            if what == "remove":
                rig.state.remove(keys)
            else:
                rig.state.remove_with(keys.store_keys(STATE_ID + 1))
            truth = {key: row for key, row in truth.items() if key not in held}
        elif what == "write":
            keep = np.arange(len(keys)) % 2 == 0
            rig.state.write(keys, _in_order(keys, held), keep)
            for key, there in zip(_keys_of(keys), keep, strict=True):
                truth.pop(key, None)
                if there:
                    truth[key] = held[key]
        elif what == "get":
            assert _found(keys, rig.state.get(keys)) == shown
        elif what == "prefetch":
            rig.state.prefetch(keys)
        else:
            asked.append((keys, rig.state.async_get(keys), shown))
    while rig.sink.late:
        rig.sink.answer(0)
    for keys, future, expected in asked:
        assert _found(keys, future.get()) == expected
    rig.commit()
    assert rig.stored() == truth


def test_of_a_new_state_nothing_is_read_and_of_a_known_one_only_what_is_unknown() -> None:
    rig = Rig("int", 1 << 20)
    row = (1, "a", True, 0.5, None)
    keys = rig.keys([(1,), (7,)])
    assert not rig.state.get(keys).present.any()
    rig.state.put(keys, _columns(SCHEMA.types, [row, row]))
    rig.commit()
    assert rig.state.get(rig.keys([(1,), (7,), (0,)])).present.sum() == 2
    assert rig.sink.reads == 0
    rig.cache = ColumnCache()
    rig.begin()
    rig.state.get(rig.keys([(1,)]))
    rig.state.get(rig.keys([(1,), (7,)]))
    assert rig.sink.reads == 2


def test_what_was_read_ahead_is_asked_for_as_it_was() -> None:
    rig = Rig("int", 1 << 20, is_new=False)
    row = (1, "a", True, 0.5, None)
    bundle = rig.keys([(0,), (1,), (7,)])
    rig.state.prefetch(bundle)
    between = rig.keys([(1,)])
    rig.state.put(between, _columns(SCHEMA.types, [row]))  # by the bundle before
    future = rig.state.async_get(rig.keys([(0,), (1,), (7,)]))
    assert rig.sink.asked == rig.sink.prefetched
    rig.sink.answer(0)
    assert _found(bundle, future.get()) == {(1,): row}


def test_a_late_answer_is_not_kept_where_something_newer_has_been_dropped() -> None:
    rig = Rig("int", 8_000, is_new=False)
    old, new = (1, "a", True, 0.5, None), (2, "b", True, 0.5, None)
    one = rig.keys([(1,)])
    rig.state.put(one, _columns(SCHEMA.types, [old]))
    rig.commit()
    rig.cache = ColumnCache()
    rig.begin()
    before = rig.state.async_get(one)
    rig.state.put(rig.keys([(1,)]), _columns(SCHEMA.types, [new]))
    others = [(number,) for number in range(100, 200)]
    for start in range(0, 100, 20):  # until there is no room any more for what was used longest ago
        keys = rig.keys(others[start : start + 20])
        rig.state.put(keys, _columns(SCHEMA.types, [new] * 20))
    assert rig.cache.statistics().column_cache_evictions
    rig.sink.answer(0)
    assert _found(one, before.get()) == {(1,): old}
    assert _found(one, rig.state.get(rig.keys([(1,)]))) == {(1,): new}


def test_a_bad_column_is_refused_when_it_is_written() -> None:
    rig = Rig("int", 1 << 20)
    keys = rig.keys([(1,)])
    good = _columns(SCHEMA.types, [(1, "a", True, 0.5, None)])
    with pytest.raises(CodecError, match="'share' is not nullable"):
        rig.state.put(keys, [*good[:3], pa.nulls(1, pa.float64()), good[4]])
    with pytest.raises(CodecError, match="has type int32"):
        rig.state.put(keys, [good[0].cast(pa.int32()), *good[1:]])
    rig.commit()
    assert not rig.stored()


def test_other_key_types_and_another_schema_start_anew() -> None:
    rig = Rig("int", 1 << 20)
    rig.state.put(rig.keys([(1,)]), _columns(SCHEMA.types, [(1, "a", True, 0.5, None)]))
    texts = KeyCodec([pa.string()], ["k"], 8)
    assert not rig.state.get(_batch(texts, [("a",)])).present.any()
    assert rig.state.get(rig.keys([(1,)])).present.all()  # it was handed on
    rig.cache.begin(1 << 20)
    rig.cache.open(STATE_ID, SCHEMA.remove(0), False, lambda rows: None)
    rig.cache.opened()
    assert rig.cache.size_bytes == 0
