"""What a checkpoint holds, byte for byte, read back from its files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from asyncstate.codec import BROADCAST_GROUP
from asyncstate.storage import Checkpoint, LocalFiles, LocalStores, partition_restore_plan

Stored = dict[str, dict[bytes, bytes]]
"""Operator uid to store key to value."""


def stored_state(checkpoint: Path, version: int | None = None) -> Stored:
    """Every entry of every operator at ``version``, the newest by default; each partition is restored anew."""
    files = LocalFiles(checkpoint)
    found = Checkpoint(files)
    manifest = found.latest() if version is None else found.read(version)
    assert manifest is not None
    state: Stored = {}
    with tempfile.TemporaryDirectory() as folder:
        stores = LocalStores(folder, manifest.job_id, files)
        for uid, operator in manifest.operators.items():
            entries = state[uid] = {}
            for partition in range(operator.parallelism):
                base = partition_restore_plan(manifest, uid, partition, operator.parallelism)
                with stores.acquire(uid, partition, base) as lease:
                    own = dict(lease.store.iterate())
                twice = entries.keys() & own.keys()
                assert all(key[:2] == BROADCAST_GROUP for key in twice), "a key is stored by one partition"
                assert all(entries[key] == own[key] for key in twice), "broadcast state is the same in all"
                entries |= own
    return state
