"""Blocks of ranges that are loaded by list gets: which are in memory, and scans that stay right whatever files do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncstate.errors import StoreError
from asyncstate.storage import KeyedStore, MemTable, RocksDBOptions, RocksDBStore, WriteBound
from asyncstate.storage import rocksdb as module
from asyncstate.storage.spill import SpilledWrites
from tests.memory_store import MemoryStore

KEYS = [b"%05d" % number for number in range(2_000)]
STARTS = [b"%04d" % number for number in range(20, 200, 20)]  # prefixes: no keys
OPTIONS = RocksDBOptions(
    block_bytes=1_024,
    compression="none",
    sorted_runs=2,
    sorted_runs_light=2,
    sorted_runs_max=3,
    block_cache_bytes=(16 << 20) + 7,  # a cache of this size is nobody else's: it is empty
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksDBStore]:
    """Each key in the first of two runs, every second one in the other, too."""
    made = RocksDBStore(tmp_path / "db", OPTIONS)
    made.apply([(key, b"old" * 20) for key in KEYS], 0)
    made.apply([(key, b"new" * 20) for key in KEYS[::2]], 1)
    yield made
    made.close()


def expected(start: bytes, limit: int = 100) -> list[tuple[bytes, bytes]]:
    found = [(key, (b"new" if number % 2 == 0 else b"old") * 20) for number, key in enumerate(KEYS)]
    return [entry for entry in found if entry[0] >= start][:limit]


def test_what_was_warmed_is_in_memory_in_every_run(store: RocksDBStore) -> None:
    assert store.cold(STARTS) == STARTS
    blocks = store.statistics().block_cache_bytes
    store.warm(STARTS[:3])
    assert store.cold(STARTS) == STARTS[3:]
    assert store.statistics().block_cache_bytes - blocks >= 2 * 3 * OPTIONS.block_bytes
    assert store.scan(STARTS[0], None, 100) == expected(STARTS[0])


def test_a_scan_warms_what_it_has_read(store: RocksDBStore) -> None:
    store.scan(STARTS[5], STARTS[6], 5)
    assert STARTS[5] not in store.cold(STARTS)


def test_a_changed_store_shows_its_changes(store: RocksDBStore) -> None:
    store.cold(STARTS)
    store.apply([(b"0000", b"first"), (KEYS[0], None)], 2)
    store.cold(STARTS)
    assert store.scan(b"", None, 2) == [(b"0000", b"first"), *expected(KEYS[1], 1)]


def test_scans_while_a_compaction_replaces_the_files(store: RocksDBStore) -> None:
    for version in range(2, 6):
        store.apply([(key, b"new" * 20) for key in KEYS[::2]], version)
    assert store.cold(STARTS) == STARTS
    store.warm(STARTS)
    store.db.compact_range(None, None)
    assert store.sorted_runs() == 1
    assert store.cold(STARTS) == []
    blocks = store.statistics().block_cache_bytes
    for start in STARTS:
        assert store.scan(start, None, 2) == expected(start, 2)
    loaded = store.statistics().block_cache_bytes - blocks
    assert loaded < len(STARTS) // 2 * OPTIONS.block_bytes, "what was warmed is scanned, but for neighbours"
    for start in STARTS:
        assert store.scan(start, None, 100) == expected(start)


def test_files_that_cannot_be_opened_twice_are_scanned_as_ever(
    store: RocksDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(module, "open_range_blocks", refuse)
    assert store.cold(STARTS) == []
    store.warm(STARTS)
    assert store.scan(STARTS[0], None, 100) == expected(STARTS[0])


def test_a_closed_store_has_closed_both(store: RocksDBStore, tmp_path: Path) -> None:
    store.cold(STARTS)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.scan(b"", None, 1)
    again = RocksDBStore(tmp_path / "db", OPTIONS)
    assert again.scan(STARTS[0], None, 100) == expected(STARTS[0])
    again.close()


def test_spilled_writes_are_warmed_too(store: RocksDBStore, tmp_path: Path) -> None:
    scratch = RocksDBStore(tmp_path / "scratch", OPTIONS)

    def spilled_to(_: object = None) -> KeyedStore:
        return scratch

    overlay = MemTable(store, 0, None, WriteBound(1, spilled_to, "here"))
    for key in KEYS[:400]:
        overlay.put(key, b"spilled")
    overlay.spill()
    assert isinstance(overlay.store, SpilledWrites)
    scratch.settle()
    assert overlay.store.cold(STARTS) == STARTS
    overlay.warm_store(STARTS)
    assert overlay.store.cold(STARTS) == scratch.cold(STARTS) == store.cold(STARTS) == []
    assert 0 < overlay.store.warm_positions_max < store.warm_positions_max
    assert overlay.scan(STARTS[0], KEYS[400], 1_000) == [(key, b"spilled") for key in KEYS[200:400]]
    scratch.close()


def test_memory_is_never_waited_for() -> None:
    store = MemoryStore([(key, b"") for key in KEYS])
    assert store.cold(STARTS) == []
    store.warm(STARTS)
