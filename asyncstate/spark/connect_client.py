"""The client's view of a query of Spark Connect, whose micro-batches run in a process of the server's.

Owns: ``ConnectClient``: progress that comes from the server, and the end of a query between two micro-batches.
Invariant: each progress is recorded once; nothing here can make a micro-batch fail, or wait.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from asyncstate.driver.progress import Progress
from asyncstate.errors import JobError
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.storage import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STOP_POLL_SECONDS: Final = 0.1
_PROGRESS_POLL_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class ConnectClient:
    """For one job. ``record`` is called with the progress of each micro-batch, on any thread, one at a time."""

    def __init__(self, name: str, files: CheckpointFiles, record: Callable[[Progress], None]) -> None:
        self._name = name
        self._checkpoint = files
        self._record = record
        self._lock = threading.RLock()
        self._files: ConnectFiles | None = None
        self._followed: StreamingQuery | None = None
        self._thread: threading.Thread | None = None
        self._changed = time.perf_counter()

    def begin(self) -> str:
        """The name of another start of the job's query; what earlier ones have left is not read any more."""
        run = uuid.uuid4().hex
        self.refresh()
        with self._lock:
            self._files = ConnectFiles(self._checkpoint, run)
            self._changed = time.perf_counter()
        return run

    def refresh(self) -> None:
        """Record what the server has reported since the last call."""
        with self._lock:
            if self._files is None:
                return
            try:
                for progress in self._files.new_progress():
                    self._changed = time.perf_counter()
                    self._record(progress)
            except Exception as error:
                _log.warning("job '%s': the progress on the server cannot be read: %s", self._name, error)

    def follow(self, query: StreamingQuery) -> None:
        """Refresh as long as ``query`` runs, in a thread of its own."""
        with self._lock:
            if self._followed is query:
                return
            self._followed = query
            self._thread = threading.Thread(
                target=self._follow, args=(query,), daemon=True, name="asyncstate-follow"
            )
            self._thread.start()

    def _follow(self, query: StreamingQuery) -> None:
        ended = threading.Event()
        with suppress(Exception):  # the server is gone
            while self._followed is query and query.isActive:
                self.refresh()
                ended.wait(_PROGRESS_POLL_SECONDS)
        self.refresh()

    def seconds_at_work(self, query: StreamingQuery) -> float | None:
        """Since the last micro-batch has ended; None if the query waits for rows."""
        return time.perf_counter() - self._changed if query.status["isTriggerActive"] else None

    @property
    def is_refused(self) -> bool:
        """Whether a micro-batch was refused because the job is being stopped."""
        files = self._files
        return files is not None and files.is_refused()

    def stop(self, query: StreamingQuery, timeout_seconds: float | None) -> None:
        """Return when the query has ended, between two micro-batches. Raises JobError after the timeout; the query then
        goes on."""
        files = self._files
        if files is None:  # a query that another process has started
            query.stop()
            return
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        files.ask_to_stop()
        while query.isActive and query.status["isTriggerActive"] and not files.is_refused():
            if deadline is not None and time.monotonic() > deadline and not files.is_refused():
                files.forget_stop()
                raise JobError(
                    f"job '{self._name}': the micro-batch at work has not ended within {timeout_seconds} s, so the "
                    "query goes on; call stop() with a longer timeout, or query.stop() to break it off: its rows "
                    "then come again"
                )
            time.sleep(_STOP_POLL_SECONDS)
        query.stop()
        self.refresh()
