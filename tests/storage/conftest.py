"""Fixtures of the storage tests: an empty store of each kind, and a small job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncstate.storage import KeyedStore, RocksDBStore
from tests.memory_store import MemoryStore
from tests.storage.minijob import SMALL, MiniJob


@pytest.fixture(params=[False, True], ids=["own files", "one file"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> MiniJob:
    """A job with an empty checkpoint, whose small deltas are files of their own or one file together."""
    return MiniJob(tmp_path, together=request.param)


@pytest.fixture(params=["rocksdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyedStore]:
    """An empty store: RocksDB, and the fake that other tests take for it."""
    made: KeyedStore = MemoryStore() if request.param == "memory" else RocksDBStore(tmp_path / "db", SMALL)
    yield made
    made.close()
