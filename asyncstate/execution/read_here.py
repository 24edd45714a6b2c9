"""A list get on the calling thread, from which the pacer learns how slow the store is.

Owns: ``read_here``.
"""

from __future__ import annotations

import time

from asyncstate.execution.pacing import ReadPacer
from asyncstate.storage import LIST_GET_KEYS, WriteOverlay


def read_here(overlay: WriteOverlay, pacer: ReadPacer, keys: list[bytes]) -> tuple[list[bytes | None], float]:
    """What lies below memory under ``keys``, and how many seconds that took. Raises StoreError."""
    started = time.perf_counter()
    values = overlay.store.get_many(keys, LIST_GET_KEYS)
    seconds = time.perf_counter() - started
    pacer.measured(len(keys), seconds)
    return values, seconds
