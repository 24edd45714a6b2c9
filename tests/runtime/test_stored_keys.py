"""Which keys of a partition have state: each once, in the store's order, with few reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import BROADCAST_GROUP, KeyCodec
from asyncstate.runtime.partition.broadcast_inputs import stored_keys
from tests.state.fakes import FakeSink

TYPES: list[pa.DataType] = [pa.string(), pa.int64()]
CODEC = KeyCodec(TYPES, ["name", "number"], 8)
GROUPS = range(1, 6)


def put(sink: FakeSink, group: int, state_id: int, key: tuple[Any, ...], rest: bytes = b"") -> None:
    sink.put(group.to_bytes(2, "big") + bytes([state_id]) + CODEC.encode_one(key) + rest, b"x")


def found(sink: FakeSink, state_ids: list[int], page_size: int = 4) -> list[tuple[int, tuple[Any, ...]]]:
    keys = list(stored_keys(sink, state_ids, GROUPS, CODEC, page_size))
    assert all(CODEC.encode_one(key.values) == key.encoded_key for key in keys)
    return [(int.from_bytes(key.group, "big"), key.values) for key in keys]


KEYS = st.tuples(st.sampled_from(["", "a", "a\0", "b", "\xff"]), st.integers(-2, 2))
ENTRIES = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([1, 8, 9, 10]), KEYS, st.binary(max_size=3), st.booleans()),
    max_size=60,
)


@given(entries=ENTRIES, page_size=st.integers(1, 9), split=st.integers(0, 60))
def test_each_key_with_state_comes_once_in_order(
    entries: list[tuple[int, int, tuple[str, int], bytes, bool]], page_size: int, split: int
) -> None:
    sink = FakeSink()
    for number, (group, state_id, key, rest, _) in enumerate(entries):
        if number == split:
            sink.commit()
        put(sink, group, state_id, key, rest)
    for group, state_id, key, rest, deleted in entries:
        if deleted:
            sink.delete(group.to_bytes(2, "big") + bytes([state_id]) + CODEC.encode_one(key) + rest)
    sink.put(BROADCAST_GROUP + b"\x08rule", b"x")

    left = {key for key in sink.contents() if key[2] in (8, 10) and int.from_bytes(key[:2], "big") in GROUPS}
    expected = {(int.from_bytes(key[:2], "big"), CODEC.decode_one(key, 3)[0]) for key in left}
    order = sorted(expected, key=lambda found: (found[0], CODEC.encode_one(found[1])))
    assert found(sink, [10, 8], page_size) == order


def test_without_key_columns_there_is_one_key() -> None:
    sink = FakeSink()
    codec = KeyCodec([], [], 8)
    assert list(stored_keys(sink, [8], range(8), codec, 10)) == []
    sink.put(b"\0\0\x08" + b"user key", b"x")
    sink.put(b"\0\0\x08" + b"user key 2", b"x")
    (key,) = stored_keys(sink, [8], range(8), codec, 10)
    assert (key.group, key.encoded_key, key.values) == (b"\0\0", b"", ())


def test_a_key_written_on_its_visit_is_not_visited_again() -> None:
    sink = FakeSink()
    for number in range(50):
        put(sink, 2, 8, ("a", number))
    seen = []
    for key in stored_keys(sink, [8, 9], GROUPS, CODEC, 7):
        seen.append(key.values[1])
        for state_id in (8, 9):
            sink.put(key.group + bytes([state_id]) + key.encoded_key + b"more", b"x")
        if len(seen) % 3 == 0:
            sink.delete(key.group + b"\x08" + key.encoded_key)
    assert seen == list(range(50))


@pytest.mark.parametrize(("keys", "entries"), [(2, 3000), (3000, 1)])
def test_reads_follow_the_keys_and_not_the_entries(keys: int, entries: int) -> None:
    sink = CountingSink()
    for number in range(keys):
        for entry in range(entries):
            put(sink, 3, 8, ("k", number), entry.to_bytes(4, "big"))
    assert len(found(sink, [8], page_size=1000)) == keys
    assert sink.entries_read <= 100 + 2 * keys
    assert sink.scans <= 25


class CountingSink(FakeSink):
    entries_read = 0

    def contents(self) -> dict[bytes, bytes]:
        if not hasattr(self, "_sorted") or len(self._sorted) != len(self.written):
            self._sorted = super().contents()
        return self._sorted

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        page = super().scan(start, end, limit)
        self.entries_read += len(page)
        return page
