"""What every KeyedStore must do, over memory and RocksDB, and what is RocksDB's own."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import StoreError
from asyncstate.storage import KeyedStore, RocksDBOptions, RocksDBStore, rocksdb
from asyncstate.storage.files import file_checksum
from asyncstate.storage.rocksdb import write_sst
from tests.examples import at_most
from tests.memory_store import MemoryStore
from tests.storage.minijob import SMALL, applied

keys = st.binary(max_size=3)
LONG_SECONDS = 60.0
"""For a compaction to begin: RocksDB's thread for them may be busy with the stores of other tests."""
batches = st.lists(
    st.dictionaries(keys, st.none() | st.binary(max_size=5), max_size=8), min_size=1, max_size=5
)


def test_empty_store_has_nothing(store: KeyedStore) -> None:
    assert store.version == -1
    assert store.get(b"a") is None
    assert store.get_many([b"a", b"b"]) == [None, None]
    assert store.get_many([]) == []
    assert store.scan(b"", None, 10) == []
    assert list(store.iterate()) == []


def test_apply_puts_overwrites_and_deletes(store: KeyedStore) -> None:
    store.apply([(b"a", b"1"), (b"b", b"2"), (b"c", b"")], 0)
    store.apply([(b"a", None), (b"b", b"3"), (b"x", None)], 4)
    assert store.version == 4
    assert store.get(b"a") is None
    assert store.get_many([b"c", b"b", b"a", b"b"]) == [b"", b"3", None, b"3"]
    assert list(store.iterate()) == [(b"b", b"3"), (b"c", b"")]


def test_apply_of_nothing_only_moves_the_version(store: KeyedStore) -> None:
    store.apply([(b"a", b"1")], 0)
    store.apply([], 1)
    assert (store.version, store.get(b"a")) == (1, b"1")


@pytest.mark.parametrize("piece_keys", [0, 1, 3, 100])
def test_list_get_keeps_order_in_pieces(store: KeyedStore, piece_keys: int) -> None:
    store.apply([(bytes([n]), bytes([n, n])) for n in range(10)], 0)
    wanted = [bytes([n]) for n in (9, 0, 50, 3, 3, 8, 51)]
    expected = [b"\x09\x09", b"\0\0", None, b"\3\3", b"\3\3", b"\x08\x08", None]
    assert store.get_many(wanted, piece_keys) == expected


def test_scan_bounds_and_limit(store: KeyedStore) -> None:
    store.apply([(bytes([n]), b"v") for n in range(0, 20, 2)], 0)
    found = [entry[0][0] for entry in store.scan(b"\x03", b"\x0a", 100)]
    assert found == [4, 6, 8]
    assert [entry[0][0] for entry in store.scan(b"\x04", None, 2)] == [4, 6]
    assert store.scan(b"\x09", b"\x03", 5) == []
    assert store.scan(b"", None, 0) == []


def test_iterate_pages_over_changing_page_bounds(store: KeyedStore) -> None:
    entries = [(n.to_bytes(2, "big"), b"v") for n in range(50)]
    store.apply(entries, 0)
    for page_entries in (1, 7, 25, 50, 51):
        assert list(store.iterate(page_entries=page_entries)) == entries


def test_closed_store_refuses_and_closes_twice(store: KeyedStore) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.get(b"a")
    with pytest.raises(StoreError, match="closed"):
        store.get_many([b"a"])
    with pytest.raises(StoreError, match="closed"):
        store.scan(b"", None, 1)


def test_statistics_count_entries(store: KeyedStore) -> None:
    store.apply([(bytes([n]), b"v") for n in range(9)], 0)
    assert store.statistics().entries_estimate == 9


def test_statistics_count_no_fewer_than_no_entries(store: KeyedStore) -> None:
    store.apply([(b"not there", None)], 0)
    assert store.statistics().entries_estimate == 0


@given(batches=batches, start=keys, end=st.none() | keys, limit=st.integers(0, 9))
def test_both_stores_equal_a_dict(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[dict[bytes, bytes | None]],
    start: bytes,
    end: bytes | None,
    limit: int,
) -> None:
    expected = applied({}, *batches)
    inside = sorted(k for k in expected if k >= start and (end is None or k < end))
    for made in (MemoryStore(), RocksDBStore(tmp_path_factory.mktemp("s") / "db", SMALL)):
        for number, writes in enumerate(batches):
            made.apply(sorted(writes.items()), number)
        assert dict(made.iterate(page_entries=3)) == expected
        assert made.scan(start, end, limit) == [(k, expected[k]) for k in inside][:limit]
        asked = [k for writes in batches for k in writes]
        assert made.get_many(asked) == [expected.get(k) for k in asked]
        made.close()


def test_reopened_folder_has_its_content(tmp_path: Path) -> None:
    first = RocksDBStore(tmp_path / "db", SMALL)
    first.apply([(b"a", b"1")], 0)
    page = iter(first.iterate())
    next(page)  # a half-read iteration must not keep the database open
    first.close()
    second = RocksDBStore(tmp_path / "db", SMALL, version=7)
    assert (second.version, second.get(b"a")) == (7, b"1")
    second.close()


def test_folder_in_use_is_refused_by_name(tmp_path: Path) -> None:
    first = RocksDBStore(tmp_path / "db", SMALL)
    with pytest.raises(StoreError, match=str(tmp_path / "db")):
        RocksDBStore(tmp_path / "db", SMALL)
    first.close()


def test_ingest_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    sst = tmp_path / "delta.sst"
    write_sst(sst, [(b"a", b"1"), (b"b", None)], SMALL)
    before = file_checksum(sst)
    made = RocksDBStore(tmp_path / "db", SMALL)
    made.apply([(b"a", b"0"), (b"b", b"0")], 0)
    made.ingest([sst], 1)
    assert file_checksum(sst) == before
    assert made.get_many([b"a", b"b"]) == [b"1", None]
    made.close()
    assert file_checksum(sst) == before


@pytest.mark.parametrize("links", [True, False])
@given(
    deltas=st.lists(
        st.dictionaries(st.binary(max_size=2), st.none() | st.binary(max_size=3), min_size=1), max_size=8
    ),
    below=st.dictionaries(st.binary(max_size=2), st.binary(max_size=3), min_size=1),
)
@settings(max_examples=at_most(25), deadline=None)
def test_the_last_of_several_ingested_files_counts(
    links: bool, deltas: list[dict[bytes, bytes | None]], below: dict[bytes, bytes]
) -> None:
    expected: dict[bytes, bytes | None] = dict(below)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if not links:
            patch.setattr(rocksdb.os, "link", _no_links)
        made = RocksDBStore(Path(folder, "db"), SMALL)
        made.apply(sorted(below.items()), 0)
        paths = [Path(folder, f"{number}.sst") for number in range(len(deltas))]
        for path, delta in zip(paths, deltas, strict=True):
            write_sst(path, sorted(delta.items()), SMALL)
            expected.update(delta)
        if paths:
            made.ingest(paths, len(paths))
        assert all(path.exists() for path in paths)
        assert dict(made.iterate()) == {k: v for k, v in expected.items() if v is not None}
        assert made.version == len(paths)
        made.close()
        assert {path.name for path in Path(folder).iterdir()} == {"db", *(path.name for path in paths)}


def _no_links(*_: object) -> None:
    raise OSError("no hard links here")


def test_of_several_files_one_that_is_damaged_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    made = RocksDBStore(tmp_path / "db", SMALL)
    made.apply([(b"a", b"0")], 0)
    good, bad = tmp_path / "good.sst", tmp_path / "bad.sst"
    write_sst(good, [(b"a", b"1")], SMALL)
    bad.write_bytes(good.read_bytes()[:-20])
    with pytest.raises(StoreError, match=f"{good}, {bad}"):
        made.ingest([good, bad], 1)
    assert (made.version, dict(made.iterate())) == (0, {b"a": b"0"})
    made.close()


@pytest.mark.parametrize("changes", [[], [(b"b", b"1"), (b"a", b"1")], [(b"a", b"1"), (b"a", b"2")]])
def test_unsorted_or_empty_file_is_an_error(tmp_path: Path, changes: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(StoreError, match=r"delta\.sst"):
        write_sst(tmp_path / "delta.sst", changes, SMALL)


def test_unknown_compression_is_named() -> None:
    with pytest.raises(StoreError, match="'brotli'.*none, lz4, zstd"):
        RocksDBStore("/nowhere", RocksDBOptions(compression="brotli"))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_direct_reads_and_compressions(tmp_path: Path, compression: str) -> None:
    options = RocksDBOptions(block_cache_bytes=1 << 20, direct_reads=True, compression=compression)
    made = RocksDBStore(tmp_path / "db", options)
    entries = [(n.to_bytes(4, "big"), b"value" * 5) for n in range(3000)]
    made.apply(entries, 0)
    assert made.get_many([k for k, _ in entries]) == [v for _, v in entries]
    made.close()


def test_damaged_block_is_an_error_in_every_read(tmp_path: Path) -> None:
    made = RocksDBStore(tmp_path / "db", RocksDBOptions(compression="none"))
    entries = [(n.to_bytes(4, "big"), b"value%d" % n) for n in range(20_000)]
    made.apply(entries, 0)
    made.close()
    (sst,) = (tmp_path / "db").glob("*.sst")
    content = bytearray(sst.read_bytes())
    content[len(content) // 2] ^= 1
    sst.write_bytes(content)

    def reopened() -> RocksDBStore:
        return RocksDBStore(tmp_path / "db", RocksDBOptions(compression="none", block_cache_bytes=3 << 20))

    for read in (
        lambda s: s.scan(b"", None, 100_000),
        lambda s: list(s.iterate()),
        lambda s: s.get_many([k for k, _ in entries]),
        lambda s: [s.get(k) for k, _ in entries],
    ):
        made = reopened()
        with pytest.raises(StoreError, match="rebuilds the folder"):
            read(made)
        assert made.damaged
        made.close()


def test_many_ingests_keep_runs_bounded(tmp_path: Path) -> None:
    options = RocksDBOptions(block_cache_bytes=4 << 20, sorted_runs=4, sorted_runs_max=6)
    made = RocksDBStore(tmp_path / "db", options)
    expected: dict[bytes, bytes] = {}
    for batch in range(40):
        writes = {n.to_bytes(3, "big"): b"%d-%d" % (batch, n) for n in range(batch, 600, 7)}
        expected.update(writes)
        made.apply(sorted(writes.items()), batch)
        assert made.settle(starts_within_seconds=LONG_SECONDS)
        assert made.sorted_runs() <= options.sorted_runs_max
    assert dict(made.iterate()) == expected
    made.close()


def test_a_compaction_that_cannot_be_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What RocksDB says of itself while its disk has no room: it tries again every second, for ever."""
    made = RocksDBStore(tmp_path / "db", RocksDBOptions(sorted_runs=4))
    for batch in range(5):
        made.apply([(b"key", b"%d" % batch)], batch)
    made._let_compact(False)  # RocksDB writes down what it has of its log
    asked: Counter[str] = Counter()

    def on_a_full_disk(name: str) -> int:
        asked[name] += 1
        return asked[name] // 4 if name == "background-errors" else 1

    with monkeypatch.context() as patch:
        patch.setattr(made, "_number", on_a_full_disk)
        patch.setattr(RocksDBStore, "_let_compact", _begun_in_name_only)
        made.compact()
        with (tmp_path / "db" / "LOG").open("a") as log:
            log.write("2026 [WARN] [db_impl.cc:4024] Compaction error: IO error: No space left on device\n")
        assert not made.settle(timeout_seconds=60)
        assert asked["num-running-compactions"] <= 4
        assert "cannot merge its 5 sorted runs" in caplog.text
        assert "reads become slower: IO error: No space left on device; the next" in caplog.text
        assert made.settle()  # nothing was started since
    for batch in range(5, 8):
        made.apply([(b"key", b"%d" % batch)], batch)
    made.compact_if_due()
    assert made.settle(starts_within_seconds=LONG_SECONDS)
    assert made.sorted_runs() <= 4  # of eight
    assert dict(made.iterate()) == {b"key": b"7"}
    made.close()


def _begun_in_name_only(store: RocksDBStore, may: bool) -> None:
    """Nothing merges the runs, so it is up to what is said of the disk when the waiting ends."""
    store._compacts = may


def test_a_compaction_is_waited_for_that_begins_while_rocksdb_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what runs and what is pending one after the other: one that begins in between is in neither."""
    made = RocksDBStore(tmp_path / "db", RocksDBOptions(sorted_runs=4))
    for batch in range(8):
        made.apply([(b"key", b"%d" % batch)], batch)
    monkeypatch.setattr(made, "_number", lambda name: 0)
    made.compact()
    assert made.settle(starts_within_seconds=LONG_SECONDS)
    assert made.sorted_runs() <= 4
    made.close()


def test_threads_may_read_together(tmp_path: Path) -> None:
    made = RocksDBStore(tmp_path / "db", SMALL)
    entries = [(n.to_bytes(3, "big"), b"v%d" % n) for n in range(5000)]
    made.apply(entries, 0)
    answers: list[list[bytes | None]] = []

    def read() -> None:
        answers.append(made.get_many([k for k, _ in entries]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[v for _, v in entries]] * 4
    made.close()
