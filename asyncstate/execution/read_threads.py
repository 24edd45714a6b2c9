"""The threads that read from the store, fed by one queue.

Owns: ``ReadThreads``.
Invariant: a list get that was taken in comes back as exactly one Completion; no thread outlives ``close`` unless its
read does not return.

anyio starts and joins the threads; the list gets go to them directly, because handing over each of them through an
event loop costs more than the read. A thread takes the interpreter lock once a list get: it posts the answer and
takes the next keys in one go.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from asyncstate.errors import StoreError
from asyncstate.execution.loop import Completion, Completions, LoopThread

Values = list[bytes | None]


class ListGet(NamedTuple):
    """Keys to read together, and the ticket of the Completion."""

    keys: list[bytes]
    ticket: Any


class ReadThreads:
    """Runs list gets on at most ``limit`` threads. They start as they are needed, the first with the first get."""

    def __init__(self, read: Callable[[list[bytes]], Values], limit: int, completions: Completions) -> None:
        self.limit = limit
        self.threads_peak = 0
        self._threads = 0
        self._read = read
        self._completions = completions
        self._waiting: queue.SimpleQueue[ListGet | None] = queue.SimpleQueue()
        self._started: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._loop: LoopThread | None = None
        self._limiter: anyio.CapacityLimiter

    def submit(self, gets: Sequence[ListGet], threads: int) -> None:
        """Have ``gets`` read, on at least ``threads`` threads. Raises StoreError when none can be started."""
        for get in gets:
            self._completions.expect(get.ticket)
            self._waiting.put(get)
        wanted = min(threads, self.limit) - self._threads
        if wanted > 0:
            self._start(wanted)

    def close(self, timeout_seconds: float | None = None) -> bool:
        """Drop what no thread has taken, wait for running reads and end the threads.

        False when reads still run after ``timeout_seconds``: their threads are then left to themselves.
        """
        loop, self._loop = self._loop, None
        if loop is None:
            return True
        with suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        for _ in range(self._threads):
            self._waiting.put(None)
        self._threads = 0
        return loop.stop(cancel=False, timeout_seconds=timeout_seconds)

    def _start(self, count: int) -> None:
        """Start threads and wait until they run: beside a thread that computes that would take twenty times as long."""
        if self._loop is None:
            self._loop = LoopThread("asyncstate-reads", self._open)
            self._loop.start()
        for _ in range(count):
            self._loop.run_soon(self._run)
        failures = [failure for _ in range(count) if (failure := self._started.get()) is not None]
        self._threads += count - len(failures)
        self.threads_peak = max(self.threads_peak, self._threads)
        if not self._threads:
            raise StoreError(
                f"no thread for reading state could be started: {failures[0]}. Raise the machine's limit of threads, "
                "or lower async-state.io-parallelism"
            ) from failures[0]

    async def _open(self) -> None:
        self._limiter = anyio.CapacityLimiter(self.limit)

    async def _run(self) -> None:
        try:
            await anyio.to_thread.run_sync(self._serve, limiter=self._limiter)
        except RuntimeError as failure:
            self._started.put(failure)

    def _serve(self) -> None:
        self._started.put(None)
        take, read, answer = self._waiting.get, self._read, self._completions.put
        while (get := take()) is not None:
            started = time.perf_counter()
            try:
                completion = Completion(get.ticket, read(get.keys), None)
                completion.seconds = time.perf_counter() - started
            except BaseException as failure:
                completion = Completion(get.ticket, None, failure)
            answer(completion)
