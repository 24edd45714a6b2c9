"""Delta files: one micro-batch's changes of one partition as a sorted SST file, and content checksums.

Owns: writing a delta, checksumming and verifying a local file. Invariant: a file is verified against its
FileRef before a store sees it. Must not import checkpoint or lease.
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from asyncstate.errors import CheckpointCorruptionError
from asyncstate.storage.contract import Changes
from asyncstate.storage.manifest import FileRef
from asyncstate.storage.rocksdb import RocksDBOptions, write_sst

_CHUNK_BYTES = 1 << 20


def file_checksum(path: str | Path) -> str:
    """Return the xxh3-128 of a file's content in hex."""
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_delta(
    changes: Changes, local: str | Path, name: str, options: RocksDBOptions | None = None
) -> FileRef | None:
    """Write sorted changes to a local file that the checkpoint will call ``name``; None when empty."""
    if not changes:
        return None
    write_sst(local, changes, options or RocksDBOptions())
    return FileRef(name, os.stat(local).st_size, file_checksum(local), len(changes))


def verify_file(local: str | Path, ref: FileRef) -> None:
    """Check a fetched file; CheckpointCorruptionError names the checkpoint file and what is wrong with it."""
    size_bytes = os.stat(local).st_size
    if size_bytes != ref.size_bytes:
        raise CheckpointCorruptionError(
            f"checkpoint file {ref.name} is damaged: it has {size_bytes} bytes, its manifest says "
            f"{ref.size_bytes}"
        )
    if file_checksum(local) != ref.checksum:
        raise CheckpointCorruptionError(
            f"checkpoint file {ref.name} is damaged: its content does not match the checksum in its manifest"
        )
