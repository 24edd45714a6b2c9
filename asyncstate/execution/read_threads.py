"""The threads that read from the store, fed by one queue.

Owns: ``ReadThreads``.
Invariant: an accepted list get returns as exactly one Completion; no thread outlives ``close`` unless its read does not
return.

Nothing here awaits, so no event loop is needed: a thread takes the interpreter lock once per list get, when it posts
the answer and takes the next keys in one step.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from asyncstate.errors import StoreError
from asyncstate.execution.completions import Completion, Completions
from asyncstate.execution.reads import ListGet, Values


class ReadThreads:
    """Runs list gets on at most ``limit`` threads. They start as they are needed, the first with the first get."""

    def __init__(self, read: Callable[[list[bytes]], Values], limit: int, completions: Completions) -> None:
        self.limit = limit
        self.threads_peak = 0
        self._threads: list[threading.Thread] = []
        self._read = read
        self._completions = completions
        self._waiting: queue.SimpleQueue[ListGet | None] = queue.SimpleQueue()

    def submit(self, gets: Sequence[ListGet], threads: int) -> None:
        """Read ``gets`` on at least ``threads`` threads. Raises StoreError when none can be started."""
        for get in gets:
            self._completions.expect(get)
            self._waiting.put(get)
        wanted = min(threads, self.limit) - len(self._threads)
        if wanted > 0:
            self._start(wanted)

    def close(self, timeout_seconds: float) -> bool:
        """Drop waiting list gets, wait for running reads and end the threads.

        False when reads still run after ``timeout_seconds``: their threads are then abandoned.
        """
        threads, self._threads = self._threads, []
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        for _ in threads:
            self._waiting.put(None)
        until = time.monotonic() + timeout_seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _start(self, count: int) -> None:
        """Start threads; each is running when the next is started. If some run, fewer than requested are enough."""
        failure: RuntimeError | None = None
        for _ in range(count):
            thread = threading.Thread(target=self._serve, name="asyncstate-reads", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine has no more of them
                failure = error
                break
            self._threads.append(thread)
        self.threads_peak = max(self.threads_peak, len(self._threads))
        if not self._threads:
            raise StoreError(
                f"no thread for reading state could be started: {failure}. Raise the machine's limit of threads"
            ) from failure

    def _serve(self) -> None:
        take, read, answer = self._waiting.get, self._read, self._completions.put
        while (get := take()) is not None:
            started = time.perf_counter()
            try:
                completion = Completion(get, (get.read or read)(get.keys), None)
                completion.seconds = time.perf_counter() - started
            except BaseException as failure:
                completion = Completion(get, None, failure)
            answer(completion)
