"""Fixtures of the storage tests: an empty store of each kind, and a small job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from asyncstate.storage import KeyedStore, MemoryStore, RocksDBStore
from tests.storage.minijob import SMALL, MiniJob


@pytest.fixture
def job(tmp_path: Path) -> MiniJob:
    """A job with an empty checkpoint."""
    return MiniJob(tmp_path)


@pytest.fixture(params=["rocksdb", "memory"])
def store_kind(request: pytest.FixtureRequest) -> Literal["rocksdb", "memory"]:
    """Runs the test once over each store."""
    kind: Literal["rocksdb", "memory"] = request.param
    return kind


@pytest.fixture
def store(store_kind: Literal["rocksdb", "memory"], tmp_path: Path) -> Iterator[KeyedStore]:
    """An empty store of each kind."""
    made: KeyedStore = MemoryStore() if store_kind == "memory" else RocksDBStore(tmp_path / "db", SMALL)
    yield made
    made.close()
