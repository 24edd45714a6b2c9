"""Steps of a run at which something can happen to it, and what happens there.

Owns: ``Steps``, and the hooks that let what the product does to files and to SQLite count as steps.
Invariant: only the thread that runs the job counts, so that equal runs reach equal steps. A process that has died does
nothing more: whatever it asks of its files afterwards dies, too.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from asyncstate.storage import LocalFiles, RocksDBStore

_OS_CALLS: Final = ("replace", "rename", "link", "unlink", "mkdir", "rmdir", "fsync", "pwrite")
_FILES_CALLS: Final = ("put_file", "put_bytes", "get_file", "get_bytes", "list", "delete")


class Crash(BaseException):
    """The process has died."""


class TaskFailure(Exception):  # noqa: N818
    """One attempt at a task fails."""


class Steps:
    """Counts the steps of a run. At step ``at`` the ``action`` happens; ``is_dead`` from a crash on."""

    def __init__(self) -> None:
        self.count = 0
        self.happened = ""
        """The name of the step at which the action has happened."""
        self._at = 0
        self._action: Callable[[], None] | None = None
        self._is_dead = False
        self._thread = threading.get_ident()

    def plan(self, at: int, action: Callable[[], None] | None) -> None:
        """Count anew; at step ``at`` call ``action``, once."""
        self.count, self.happened, self._at, self._action, self._is_dead = 0, "", at, action, False

    def die(self) -> None:
        """From now on every step dies."""
        self._is_dead = True
        raise Crash

    def reached(self, name: str) -> None:
        """The run has come to a step."""
        if threading.get_ident() != self._thread:
            return
        if self._is_dead:
            raise Crash
        self.count += 1
        if self._action is not None and self.count >= self._at:
            action, self._action, self.happened = self._action, None, name
            action()


def full_disk() -> None:
    """What a write to a full disk raises."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing_task() -> None:
    """What ends an attempt at a task."""
    raise TaskFailure("an attempt at a task fails here")


@contextmanager
def hooked(steps: Steps, folder: str) -> Iterator[None]:
    """Inside, what the product does to files below ``folder`` counts as steps, before and after it is done."""
    saved: list[tuple[Any, str, Any]] = []

    def hook(owner: Any, name: str, concerns: Callable[..., bool]) -> None:
        original = getattr(owner, name)

        def stepped(*arguments: Any, **keywords: Any) -> Any:
            if not concerns(*arguments):
                return original(*arguments, **keywords)
            steps.reached(f"before {name}")
            result = original(*arguments, **keywords)
            steps.reached(f"after {name}")
            return result

        saved.append((owner, name, original))
        setattr(owner, name, stepped)

    def is_below(*arguments: Any) -> bool:
        first = arguments[0] if arguments else None
        return isinstance(first, int) or (
            isinstance(first, str | os.PathLike) and os.fspath(first).startswith(folder)
        )

    def connection(*arguments: Any, **keywords: Any) -> sqlite3.Connection:
        class Stepped(sqlite3.Connection):
            """A connection each of whose statements is a step, also inside a transaction."""

            def execute(self, *given: Any) -> sqlite3.Cursor:
                steps.reached(f"before {str(given[0])[:20]}")
                return super().execute(*given)

            def executemany(self, *given: Any) -> sqlite3.Cursor:
                steps.reached(f"before {str(given[0])[:20]}")
                return super().executemany(*given)

        # Another driver that has the table stands still until this one has failed: waiting for it cannot help.
        return connect(*arguments, **{**keywords, "timeout": 0.0}, factory=Stepped)

    connect = sqlite3.connect
    saved.append((sqlite3, "connect", connect))
    sqlite3.connect = connection  # type: ignore[assignment]
    for name in _OS_CALLS:
        hook(os, name, is_below)
    for name in _FILES_CALLS:
        hook(LocalFiles, name, lambda *_: True)
    for name in ("apply", "apply_small"):
        hook(RocksDBStore, name, lambda *_: True)
    try:
        yield
    finally:
        for owner, name, original in reversed(saved):
            setattr(owner, name, original)
