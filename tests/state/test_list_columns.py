"""ListColumnState against a dict of lists."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.codec import KeyBatch, KeyCodec, RowCodec
from asyncstate.errors import CodecError, StateAccessError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.state.columnar.list_blocks import CHUNK_ROWS, TAIL_BYTES, TAIL_ROWS
from asyncstate.state.columnar.list_blocks import VARIABLE as VARIABLE_WIDTH
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from tests.examples import at_most

KEYS = KeyCodec([pa.int64()], ["k"], 128)
FIXED = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.decimal128(10, 2))])
VARIABLE = pa.schema([("a", pa.int64()), ("s", pa.string()), ("l", pa.list_(pa.int32()))])


@dataclass
class DictSink:
    """The bundle calls of a StateBackend over a dict."""

    data: dict[bytes, bytes] = field(default_factory=dict)
    reads: list[list[bytes]] = field(default_factory=list)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        assert keys == sorted(set(keys))
        self.reads.append(keys)
        return [self.data.get(key) for key in keys]

    def async_get_many(self, keys: list[bytes]) -> StateFuture[list[bytes | None]]:
        return completed_future(self.get_many(keys))

    def put_many(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self.data.update(zip(keys, values, strict=True))

    def delete_many(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self.data.pop(key, None)

    def prefetch(self, keys: list[bytes]) -> None:
        pass


CONTEXT: Any = SimpleNamespace(uid="join", key_groups=range(4), key_codec=KEYS, page_size=100)


def open_state(sink: DictSink, schema: pa.Schema) -> ListColumnState:
    return ListColumnStateDescriptor("bids", schema).bind(sink, 8, CONTEXT, None)  # type: ignore[arg-type]


def batch_of(keys: Sequence[int]) -> KeyBatch:
    return KEYS.group([pa.array(sorted(set(keys)), pa.int64())])


def key_values(keys: KeyBatch) -> list[int]:
    values: list[int] = keys.columns[0].to_pylist()
    return values


def flat(keys: KeyBatch, lists: dict[int, list[tuple[Any, ...]]], schema: pa.Schema) -> tuple[Any, Any]:
    """Columns and key_index of the lists of ``keys``."""
    rows = [(index, row) for index, key in enumerate(key_values(keys)) for row in lists.get(key, [])]
    columns = [pa.array([row[i] for _, row in rows], item.type) for i, item in enumerate(schema)]
    return columns, np.array([index for index, _ in rows], np.int32)


def as_lists(keys: KeyBatch, found: ListColumns) -> dict[int, list[tuple[Any, ...]]]:
    rows = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    lists: dict[int, list[tuple[Any, ...]]] = {key: [] for key in key_values(keys)}
    for index, row in zip(found.key_index.tolist(), rows, strict=True):
        lists[key_values(keys)[index]].append(row)
    assert [len(rows) for rows in lists.values()] == found.counts.tolist()
    assert found.starts.tolist() == [0, *np.cumsum(found.counts)][: len(keys)]
    return lists


def make_row(schema: pa.Schema, number: int) -> tuple[Any, ...]:
    if schema is FIXED:
        return (number, None if number % 3 == 0 else number / 2, None)
    return (number, None if number % 5 == 0 else "x" * (number % 7), [number % 4] * (number % 3))


class StoredByHand:
    """The bytes of lists, made a row at a time: what the columns must come to."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._codec = RowCodec(schema)
        self._sealed: dict[int, list[list[bytes]]] = {}
        self._tails: dict[int, list[bytes]] = {}

    def append(self, lists: dict[int, list[tuple[Any, ...]]]) -> None:
        for key, rows in lists.items():
            if not rows:
                continue
            tail = self._tails.get(key, []) + [self._codec.encode_one(row) for row in rows]
            if len(tail) > TAIL_ROWS or sum(map(len, tail)) > TAIL_BYTES:
                chunks = [tail[first : first + CHUNK_ROWS] for first in range(0, len(tail), CHUNK_ROWS)]
                self._sealed.setdefault(key, []).extend(chunks)
                tail = []
            self._tails[key] = tail

    def remove(self, keys: Iterable[int]) -> None:
        for key in keys:
            self._sealed.pop(key, None)
            self._tails.pop(key, None)

    def contents(self) -> dict[bytes, bytes]:
        data: dict[bytes, bytes] = {}
        for key, tail in self._tails.items():
            (store_key,) = batch_of([key]).store_keys(8)
            sealed = self._sealed.get(key, [])
            data[store_key] = self._block(len(sealed), sum(map(len, sealed)), tail)
            for number, rows in enumerate(sealed):
                data[store_key + number.to_bytes(4, "big")] = self._block(0, 0, rows)
        return data

    def _block(self, chunks: int, sealed_rows: int, rows: list[bytes]) -> bytes:
        width = 0 if not rows else len(rows[0]) if self._schema is FIXED else VARIABLE_WIDTH
        lengths = [len(row) for row in rows] if width == VARIABLE_WIDTH else []
        numbers = (chunks, sealed_rows, len(rows), width, *lengths)
        return struct.pack(f"<{len(numbers)}I", *numbers) + b"".join(rows)


steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "put", "remove"]),
        st.dictionaries(st.integers(0, 5), st.sampled_from([0, 1, 2, 40, 70, 150, 1100]), max_size=6),
        st.booleans(),
    ),
    max_size=8,
)


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
@settings(max_examples=at_most(40), deadline=None)
@given(steps=steps)
def test_agrees_with_a_dict_of_lists(
    schema: pa.Schema, steps: list[tuple[str, dict[int, int], bool]]
) -> None:
    sink = DictSink()
    state = open_state(sink, schema)
    model: dict[int, list[tuple[Any, ...]]] = {}
    stored = StoredByHand(schema)
    number = 0
    for action, sizes, known in steps:
        keys = batch_of(list(sizes))
        lists = {}
        for key, size in sizes.items():
            lists[key] = [make_row(schema, number + i) for i in range(size)]
            number += size
        columns, key_index = flat(keys, lists, schema)
        heads = state.heads(keys) if known else None
        if action == "append":
            state.append(keys, columns, key_index, heads)
            model = {**model, **{key: model.get(key, []) + rows for key, rows in lists.items()}}
            stored.append(lists)
        elif action == "put":
            state.put(keys, columns, key_index, heads)
            model.update(lists)
            stored.remove(lists)
            stored.append(lists)
        else:
            state.remove(keys, heads)
            model.update({key: [] for key in lists})
            stored.remove(lists)
        assert sink.data == stored.contents()
        everything = batch_of(range(7))
        expected = {key: model.get(key, []) for key in range(7)}
        heads = state.heads(everything)
        assert heads.counts.tolist() == [len(expected[key]) for key in key_values(everything)]
        assert as_lists(everything, state.get(everything)) == expected
        assert as_lists(everything, state.async_get(everything).get()) == expected
    state.remove(batch_of(range(7)))
    assert sink.data == {}


def test_bytes_of_a_list_do_not_depend_on_the_other_keys_of_the_bundle() -> None:
    together, alone = DictSink(), DictSink()
    for start in range(0, 200, 25):
        lists = {key: [make_row(VARIABLE, start + key + i) for i in range(25)] for key in range(3)}
        keys = batch_of(range(3))
        open_state(together, VARIABLE).append(keys, *flat(keys, lists, VARIABLE))
        for key in range(3):
            one = batch_of([key])
            open_state(alone, VARIABLE).append(one, *flat(one, lists, VARIABLE))
    assert together.data == alone.data


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_a_block_is_its_header_its_table_and_its_rows(schema: pa.Schema) -> None:
    sink = DictSink()
    keys = batch_of(range(3))
    lists = {key: [make_row(schema, key + i) for i in range(key + 1)] for key in range(3)}
    state = open_state(sink, schema)
    state.append(keys, *flat(keys, lists, schema))
    state.append(keys, *flat(keys, lists, schema))
    encode = RowCodec(schema, []).encode
    expected = []
    for key in key_values(keys):
        one = batch_of([key])
        rows = 2 * encode(flat(one, {key: lists[key]}, schema)[0])
        width = len(rows[0]) if schema is FIXED else VARIABLE_WIDTH
        table = [] if schema is FIXED else map(len, rows)
        expected.append(
            struct.pack(f"<4I{len(rows) if schema is VARIABLE else 0}I", 0, 0, len(rows), width, *table)
            + b"".join(rows)
        )
    assert sorted(sink.data.values()) == sorted(expected)


def test_a_short_list_is_one_value_and_one_read() -> None:
    sink = DictSink()
    state = open_state(sink, FIXED)
    keys = batch_of(range(20))
    state.append(keys, *flat(keys, {key: [make_row(FIXED, key)] * TAIL_ROWS for key in range(20)}, FIXED))
    assert len(sink.data) == 20
    sink.reads.clear()
    assert state.async_get(keys).get().num_rows == 20 * TAIL_ROWS
    assert [len(read) for read in sink.reads] == [20]


def test_appending_to_a_long_list_does_not_rewrite_it() -> None:
    sink = DictSink()
    state = open_state(sink, FIXED)
    keys = batch_of([1])
    state.append(keys, *flat(keys, {1: [make_row(FIXED, i) for i in range(3 * CHUNK_ROWS)]}, FIXED))
    before = dict(sink.data)
    sink.reads.clear()
    state.append(keys, *flat(keys, {1: [make_row(FIXED, 7)]}, FIXED))
    changed = [key for key, value in sink.data.items() if before.get(key) != value]
    assert changed == keys.store_keys(8)
    assert sink.reads == [keys.store_keys(8)]
    assert state.get(keys).counts.tolist() == [3 * CHUNK_ROWS + 1]


def test_rows_of_an_older_schema_are_read_and_appended_to() -> None:
    sink = DictSink()
    older = pa.schema([("a", pa.int64())])
    keys = batch_of([1, 2])
    open_state(sink, older).append(keys, *flat(keys, {1: [(1,), (2,)]}, older))
    newer = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    codec = RowCodec(newer, [older], owner="state 'bids'")
    state = ListColumnState(sink, 8, codec, CONTEXT)  # type: ignore[arg-type]
    state.append(keys, *flat(keys, {1: [(3, 4)], 2: [(5, 6)]}, newer))
    assert as_lists(keys, state.get(keys)) == {1: [(1, None), (2, None), (3, 4)], 2: [(5, 6)]}


def test_unsorted_rows_are_refused() -> None:
    state = open_state(DictSink(), FIXED)
    keys = batch_of([1, 2])
    columns, _ = flat(keys, {1: [make_row(FIXED, 1)], 2: [make_row(FIXED, 2)]}, FIXED)
    with pytest.raises(StateAccessError, match="state 'bids' of operator 'join': key_index must ascend"):
        state.append(keys, columns, np.array([1, 0]))


def test_damaged_values_are_named() -> None:
    sink = DictSink()
    state = open_state(sink, VARIABLE)
    keys = batch_of([1])
    state.append(keys, *flat(keys, {1: [make_row(VARIABLE, i) for i in range(100)]}, VARIABLE))
    (head,) = keys.store_keys(8)
    (chunk,) = set(sink.data) - {head}
    whole = sink.data[chunk]
    for damaged in (b"", whole[:10], whole[:100], whole[:-1], whole + b"\0", b"\xff" * len(whole)):
        sink.data[chunk] = damaged
        with pytest.raises(CodecError, match="state 'bids' of operator 'join'"):
            state.get(keys)
    del sink.data[chunk]
    with pytest.raises(CodecError, match="a chunk of a list is missing"):
        state.get(keys)
    sink.data[head] = sink.data[head][:9]
    with pytest.raises(CodecError, match="state 'bids' of operator 'join'"):
        state.get(keys)
