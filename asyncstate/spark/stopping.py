"""How a query ends on request: the running micro-batch is committed, no other begins, and no error is logged.

Owns: ``Stopping``, and ``late``, the error of a stop that takes too long.
Invariant: a waiting caller holds no lock that a micro-batch needs; a rejected micro-batch has not begun, so that it
loses nothing and comes again at the next start.

Spark interrupts its stream thread when a query is stopped. In the middle of a micro-batch that is an error with pages
of Java frames, and Spark's own commit of it may be cut off. So the query is stopped while its thread is idle: waiting
for rows, or waiting here, in a micro-batch that is rejected with the words by which Spark recognizes an interruption.

Where the user has called ``query.stop()``, Spark gets the error that ends the micro-batch in the same few words: it
looks for them with a pattern that takes stack for each character before them, and a trace of some pages was too much.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from asyncstate.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS: Final = 0.02
INTERRUPTED: Final = (
    "the job is being stopped; Spark recognizes that by: py4j.protocol.Py4JJavaError: An error occurred while "
    "calling the micro-batch.\n: java.lang.InterruptedException"
)
"""In lines as py4j writes them: Spark 3.5 looks for the exception at the beginning of one, after a colon."""


_BROKEN_OFF: Final = re.compile(
    r"java\.lang\.InterruptedException|InterruptedIOException|ClosedByInterruptException"
    r"|Job \d+ cancelled|part of cancelled job group"
)
_CAUSES_MAX: Final = 10


class TurnedAwayError(Exception):
    """Raised into Spark instead of a micro-batch of a query that has been stopped."""


def _is_broken_off(error: BaseException) -> bool:
    """Whether Spark has interrupted what it ran for the micro-batch."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return False
        if type(cause).__module__.startswith(("py4j.", "pyspark.")) and _BROKEN_OFF.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def call_to_its_end(function: Callable[[], object], batch_id: int) -> None:
    """Call the user's function of a micro-batch. An exception that would end its thread or process (``sys.exit``) is
    raised as a JobError: Spark's thread has no other way to report its end, and Spark would wait forever."""
    try:
        function()
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as leaving:
        if threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C, in a micro-batch that the user's program runs itself
        raise JobError(
            f"batch {batch_id}: the micro-batch function or a sink raised {leaving!r}; nothing was committed. Raise "
            "an error to end the query, or call job.stop() from another thread"
        ) from leaving


def late(job: str, seconds: float | None) -> JobError:
    """The error of ``stop`` after its timeout."""
    return JobError(
        f"job '{job}': the running micro-batch did not end within {seconds} s, so the query continues; "
        "call stop() with a longer timeout, or query.stop() to interrupt the micro-batch, which is then replayed"
    )


class Stopping:
    """Coordinates the micro-batches of a job, which run on Spark's thread, with the threads that stop its query."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._turns = threading.Lock()  # one stopping thread at a time
        self._query: StreamingQuery | None = None  # the query that is being stopped
        self._at_work: int | None = None  # the thread of the micro-batch
        self._turned_away = False

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Context manager for a micro-batch. Raises TurnedAwayError if the query is being stopped, or was stopped in
        the middle of it."""
        while not self._begins():
            query = self._query
            # Spark sets this before it interrupts its thread. No lock is held: it is a call into the JVM.
            if query is not None and not query.isActive:
                raise TurnedAwayError(INTERRUPTED)
        try:
            yield
        except Exception as error:
            if _is_broken_off(error):
                raise TurnedAwayError(INTERRUPTED) from None
            raise
        finally:
            with self._changed:
                self._at_work = None
                self._changed.notify_all()

    def _begins(self) -> bool:
        """Begin, unless the query is being stopped: then wait a little, for the stop or for its cancellation."""
        with self._changed:
            self._turned_away = self._query is not None
            if self._turned_away:
                self._changed.notify_all()
                self._changed.wait(_POLL_SECONDS)
                return False
            self._at_work = threading.get_ident()
            return True

    def stop(self, query: StreamingQuery, timeout_seconds: float | None) -> None:
        """Return when the query has ended. Raises JobError after the timeout, and from within a micro-batch; the query
        then goes on."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if self._at_work == threading.get_ident():
            raise JobError(
                f"job '{self._name}': stop() waits for the micro-batch to end, so it cannot be called inside one; "
                "call it from another thread, or raise an error in the function"
            )
        if not self._turns.acquire(timeout=-1 if timeout_seconds is None else timeout_seconds):
            raise late(self._name, timeout_seconds)
        try:
            with self._changed:
                self._query, self._turned_away = query, False
            while not self._at_rest(query):
                if deadline is not None and time.monotonic() > deadline:
                    raise late(self._name, timeout_seconds)
                with self._changed:
                    self._changed.wait(_POLL_SECONDS)
            query.stop()
        finally:
            with self._changed:
                self._query = None
                self._changed.notify_all()
            self._turns.release()

    def _at_rest(self, query: StreamingQuery) -> bool:
        """Whether Spark's thread waits, or is gone: Spark has then committed what the job has committed."""
        if self._at_work is not None:
            return False
        return self._turned_away or not query.isActive or not query.status["isTriggerActive"]
