"""The client's view of a query of Spark Connect, whose micro-batches run in a process of the server's.

Owns: ``ConnectClient``: progress that comes from the server, and the end of a query between two micro-batches;
``server_named`` and ``lost_server``, which recognize that the server was lost.
Invariant: each progress is recorded once; nothing here can make a micro-batch fail, or wait.
"""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from asyncstate.driver.progress import Progress
from asyncstate.errors import JobError
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.spark.stopping import late
from asyncstate.storage import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STOP_POLL_SECONDS: Final = 0.1
_PROGRESS_POLL_SECONDS: Final = 1.0
_LOST: Final = re.compile(
    r"RETRIES_EXCEEDED|RetriesExceeded|StatusCode\.UNAVAILABLE|INVALID_HANDLE\.|RESPONSE_ALREADY_RECEIVED|"
    r"Received incorrect (server side )?session identifier|^SparkConnectException "
)
"""In errors of Spark's client whose server does not answer, does not know the client any more, or is another one."""

_log = logging.getLogger(__name__)


class ConnectClient:
    """For one job. ``record`` is called with the progress of each micro-batch, on any thread, one at a time; ``fail``
    with the error of a query that was followed to its end."""

    def __init__(
        self,
        name: str,
        files: CheckpointFiles,
        record: Callable[[Progress], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._name = name
        self._checkpoint = files
        self._record = record
        self._fail = fail
        self._lock = threading.RLock()
        self._files: ConnectFiles | None = None
        self._followed: StreamingQuery | None = None
        self._thread: threading.Thread | None = None
        self._changed = time.perf_counter()
        self._refused = False

    def begin(self) -> str:
        """The name of another start of the job's query; what earlier ones have left is deleted."""
        run = uuid.uuid4().hex
        self.refresh()
        with self._lock:
            self._files = ConnectFiles(self._checkpoint, run)
            self._files.begin()
            self._changed = time.perf_counter()
            self._refused = False
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
            self._refused = False
            self._thread = threading.Thread(
                target=self._follow, args=(query,), daemon=True, name="asyncstate-follow"
            )
            self._thread.start()

    def _follow(self, query: StreamingQuery) -> None:
        ended = threading.Event()
        failure: Exception | None = None
        try:
            while self._followed is query and query.isActive:
                self.refresh()
                ended.wait(_PROGRESS_POLL_SECONDS)
            if self._followed is query:
                failure = query.exception()
                self.end(query)
        except Exception as error:  # the server is gone
            failure = lost_server(self._name, error)
            self.refresh()
        if failure is not None and not self.is_refused:
            self._fail(failure)

    def end(self, query: StreamingQuery) -> None:
        """Record what has not been recorded, and delete the files, after ``query`` has ended."""
        with suppress(Exception):  # the server is gone
            if query.isActive:  # asked without the lock: the answer may take long
                return
            with self._lock:
                if self._files is not None:
                    self.refresh()
                    self._refused = self.is_refused
                    self._files.end()

    def seconds_at_work(self, query: StreamingQuery) -> float | None:
        """Since the last micro-batch has ended; None if the query waits for rows."""
        return time.perf_counter() - self._changed if query.status["isTriggerActive"] else None

    @property
    def is_refused(self) -> bool:
        """Whether a micro-batch was refused because the job is being stopped."""
        return self._refused or (self._files is not None and self._files.is_refused())

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
                raise late(self._name, timeout_seconds)
            time.sleep(_STOP_POLL_SECONDS)
        query.stop()
        self.end(query)


@contextmanager
def server_named(name: str) -> Iterator[None]:
    """Context manager: raises ``lost_server`` in place of errors of Spark's client."""
    try:
        yield
    except Exception as error:
        lost = lost_server(name, error)
        if lost is None:
            raise
        raise lost from error


def lost_server(name: str, error: Exception) -> JobError | None:
    """What to do about an ``error`` of Spark's client that has lost its server; None for another one."""
    if not _LOST.search(f"{type(error).__name__} {error}"):
        return None
    lost = JobError(
        f"job '{name}': the server of Spark Connect has ended or was started again, or cannot be reached; what it had "
        "not committed is replayed. When it is there, make a new session and the job again, and start it"
    )
    lost.__cause__ = error
    return lost
