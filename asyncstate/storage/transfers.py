"""Several transfers of checkpoint files at a time.

Owns: ``at_once``. Invariant: when it returns or raises, none of its threads runs any more, so the caller may remove
what they worked on. Must not know what is transferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Final, TypeVar

A = TypeVar("A")

TRANSFERS_MAX: Final = 8
"""Files up or down at a time: each may hold a chunk of 8 MB in memory."""


def at_once(threads: int, action: Callable[[A], None], items: Iterable[A]) -> None:
    """Run the action on all items; after an error no other is begun, and the first item's error is raised."""
    work = list(items)
    if len(work) < 2:
        for item in work:
            action(item)
        return
    with ThreadPoolExecutor(min(threads, len(work)), "checkpoint") as pool:
        running = [pool.submit(action, item) for item in work]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
        for done in running:
            if not done.cancelled():
                done.result()
