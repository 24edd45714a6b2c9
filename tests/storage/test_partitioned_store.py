"""PartitionedStore and split_changes: several partitions read and written as one, each with its own key groups."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.storage import PartitionedStore, RocksDBStore, SortedChanges, WriteBound, split_changes
from asyncstate.storage.keyed_store import Change, ChangeColumns, EmptyStore, KeyedStore
from asyncstate.storage.spill import SpilledChanges, SpilledWrites

STARTS = [b"\x00\x00", b"\x00\x02", b"\x00\x05"]
GROUPS = st.sampled_from([b"\x00\x00", b"\x00\x01", b"\x00\x02", b"\x00\x04", b"\x00\x05", b"\x00\x09"])
KEYS = st.builds(bytes.__add__, GROUPS, st.binary(max_size=2))
SHARED = st.binary(max_size=2).map(lambda rest: BROADCAST_GROUP + rest)
TABLES = st.dictionaries(KEYS | SHARED, st.binary(max_size=2))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RocksDBStore]]:
    folder = tmp_path_factory.mktemp("partitions")
    opened = [RocksDBStore(folder / str(number)) for number in range(len(STARTS))]
    yield opened
    for store in opened:
        store.close()


def _owner(key: bytes) -> int:
    return bisect_right(STARTS, key) - 1


def _fill(stores: Sequence[RocksDBStore], table: dict[bytes, bytes]) -> PartitionedStore:
    """The stores with exactly ``table``; what is broadcast is in each."""
    for number, store in enumerate(stores):
        own = {key: value for key, value in table.items() if key >= BROADCAST_GROUP or _owner(key) == number}
        gone = {key: None for key, _ in store.iterate() if key not in own}
        store.apply(sorted({**gone, **own}.items()), 0)
    return PartitionedStore(stores, STARTS)


@given(
    table=TABLES,
    asked=st.lists(KEYS | SHARED),
    start=KEYS,
    end=st.none() | KEYS | SHARED,
    limit=st.integers(1, 9),
)
def test_it_reads_as_one_store(
    stores: list[RocksDBStore],
    table: dict[bytes, bytes],
    asked: list[bytes],
    start: bytes,
    end: bytes | None,
    limit: int,
) -> None:
    store = _fill(stores, table)
    assert store.get_many(asked) == [table.get(key) for key in asked]
    assert store.get_many(sorted(asked), 2) == [table.get(key) for key in sorted(asked)]
    assert [store.get(key) for key in asked] == [table.get(key) for key in asked]
    within = sorted(
        (key, value) for key, value in table.items() if key >= start and (end is None or key < end)
    )
    assert store.scan(start, end, limit) == within[:limit]
    assert list(store.iterate(start, end, limit)) == within


@given(changes=st.dictionaries(KEYS | SHARED, st.none() | st.binary(max_size=2)))
@pytest.mark.parametrize("form", ["list", "columns", "spilled"])
def test_each_partition_gets_its_changes_and_all_get_those_of_broadcast_state(
    form: str, changes: dict[bytes, bytes | None]
) -> None:
    given = _in_form(form, changes)
    parts = list(split_changes(given, STARTS))
    assert len(parts) == len(STARTS)
    for number, part in enumerate(parts):
        own = [
            (key, value) for key, value in changes.items() if key >= BROADCAST_GROUP or _owner(key) == number
        ]
        assert list(part) == sorted(own, key=lambda change: change[0])
        assert len(part) == len(own)


def _in_form(form: str, changes: dict[bytes, bytes | None]) -> SortedChanges:
    listed: list[Change] = sorted(changes.items(), key=lambda change: change[0])
    if form == "list":
        return listed
    if form == "columns":
        return ChangeColumns([key for key, _ in listed], [value for _, value in listed])
    spilled = SpilledWrites(EmptyStore(), WriteBound(0, _Scratch, "nowhere"))
    spilled.add(listed[::2])
    return SpilledChanges(spilled, dict(listed[1::2]), [key for key, _ in listed[1::2]])


class _Scratch(EmptyStore):
    """A store in memory for what is spilled."""

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}

    def apply(self, changes: SortedChanges, version: int) -> None:
        self._entries.update((key, value) for key, value in changes if value is not None)

    def scan(self, start: bytes, end: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self._entries.items() if key >= start)[:limit]


def test_positions_are_loaded_in_the_stores_that_have_them() -> None:
    first, second = _Noting(3), _Noting(5)
    store: KeyedStore = PartitionedStore([first, second], [b"\x00\x00", b"\x00\x02"])
    positions = [b"\x00\x01a", b"\x00\x02b", b"\x00\x03c"]
    assert store.cold(positions) == positions
    store.warm(positions)
    assert (first.warmed, second.warmed) == (positions[:1], positions[1:])
    assert store.warm_positions_max == 3


class _Noting(EmptyStore):
    def __init__(self, positions_max: int) -> None:
        self.positions_max = positions_max
        self.warmed: list[bytes] = []

    def cold(self, positions: list[bytes]) -> list[bytes]:
        return positions

    def warm(self, positions: list[bytes]) -> None:
        self.warmed += positions

    @property
    def warm_positions_max(self) -> int:
        return self.positions_max
