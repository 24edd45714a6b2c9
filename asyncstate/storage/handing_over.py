"""What a worker has cached of a partition, on its way to the worker that takes the partition's open store.

Owns: ``GiveAway`` and the file that the one writes and the other reads.
Invariant: the file is right for the content that it names, and is there as a whole or not at all. It says nothing that
the store does not say: whoever finds none reads. It is no format: it is only read by the process for which it was
written, so a process of another version never sees it. Must not import stores or anything of execution.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

GiveAway = Callable[[], tuple[str, Any] | None]
"""Gives what this process has cached of a partition, after which it has it no longer, and the lineage of the content
that this is right for; None if there is nothing, or nothing worth the way."""


def write_cached(path: Path, lineage: str, cached: object) -> None:
    """Write what is ``cached`` of the content ``lineage``; on a full disk nothing."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        with temporary.open("wb") as file:
            _write(file, lineage, cached)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_cached(path: Path, lineage: str) -> Any:
    """What was cached of the content ``lineage``; None if that is not there."""
    try:
        with path.open("rb") as file:
            return _read(file, lineage)
    except (OSError, EOFError, ValueError, pickle.PickleError):
        return None


def _write(file: BinaryIO, lineage: str, cached: object) -> None:
    # Arrays go from their memory into the file, and from the file into memory of their own: each is copied twice.
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(cached, protocol=5, buffer_callback=buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    pickle.dump((lineage, [part.nbytes for part in parts]), file)
    for part in parts:
        file.write(part)
    file.write(body)


def _read(file: BinaryIO, lineage: str) -> Any:
    of, sizes = pickle.load(file)
    if of != lineage:
        return None
    parts = [np.empty(size, np.uint8) for size in sizes]
    for part in parts:
        file.readinto(part)  # type: ignore[attr-defined]  # a file in binary mode has it
    return pickle.load(file, buffers=parts)
