"""An event loop on a separate thread.

Owns: ``LoopThread`` and ``Completions``, which returns outcomes from it.
Invariant: only ``start`` and ``stop`` block the calling thread, each for a given time: a loop that user code blocks
must not block the task's thread as well.
Only this module and ``read_threads`` start threads (and anyio's worker threads, from the loops that start here).
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc

Hook = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Completion:
    """The outcome of one submission: ``values`` or ``error``; for a read also its duration."""

    ticket: Any
    values: Any
    error: BaseException | None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A ticket that has not been answered, and for how many seconds."""

    ticket: Any
    seconds: float


class Completions:
    """Outcomes on their way back to the one thread that waits for them; one per outstanding ticket."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._expected: dict[int, tuple[Any, float]] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, ticket: Any) -> None:
        """Register ``ticket``: a Completion with it will arrive."""
        self._expected[id(ticket)] = (ticket, time.monotonic())

    def put(self, completion: Completion) -> None:
        """Send an outcome back; from any thread."""
        self._queue.put(completion)

    def next(self, timeout_seconds: float) -> Completion | None:
        """The next outcome, in order of completion; None when ``timeout_seconds`` have passed (0: do not wait)."""
        try:
            if timeout_seconds == 0:
                completion = self._queue.get_nowait()
            else:
                completion = self._queue.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        del self._expected[id(completion.ticket)]
        return completion

    def outstanding(self) -> list[Outstanding]:
        """What has not been answered, the oldest first."""
        now = time.monotonic()
        return [Outstanding(ticket, now - asked) for ticket, asked in self._expected.values()]


class LoopThread:
    """Runs ``opening``, then what is passed to ``run_soon``, then ``closing``; the hooks in one and the same task.

    Between ``start`` and ``stop`` the thread that made it may call ``run_soon``.
    """

    def __init__(self, name: str, opening: Hook, closing: Hook) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._opening = opening
        self._closing = closing
        self._started: Future[None] = Future()
        self._cancel = False
        self._loop: asyncio.AbstractEventLoop
        self._tasks: anyio.abc.TaskGroup
        self._stopping: anyio.Event
        self.closing_error: BaseException | None = None
        """The error of ``closing``; known when ``stop`` has returned True."""

    def start(self, timeout_seconds: float | None = None) -> None:
        """Return when ``opening`` has ended; raises what it raises, and TimeoutError."""
        self._thread.start()
        self._started.result(timeout_seconds)

    def run_soon(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Start ``function(*arguments)`` as a task, which must not raise."""
        self._loop.call_soon_threadsafe(self._start, function, arguments)

    def stop(self, *, cancel: bool, timeout_seconds: float | None) -> bool:
        """End the tasks, by cancelling them if ``cancel``, then run ``closing`` and end the thread.

        False when that is not done after ``timeout_seconds``: the thread is then abandoned.
        """
        if self._started.done() and self._started.exception() is None:
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._stop, cancel)
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _start(self, function: Callable[..., Coroutine[Any, Any, None]], arguments: tuple[Any, ...]) -> None:
        self._tasks.start_soon(function, *arguments)

    def _stop(self, cancel: bool) -> None:
        self._cancel = cancel
        self._stopping.set()

    def _run(self) -> None:
        try:
            anyio.run(self._main, backend="asyncio")
        except BaseException as error:
            if self._started.done():
                self.closing_error = error
            else:
                self._started.set_exception(error)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = anyio.Event()
        await self._opening()
        try:
            async with anyio.create_task_group() as self._tasks:
                self._started.set_result(None)
                await self._stopping.wait()
                if self._cancel:
                    self._tasks.cancel_scope.cancel()
        finally:
            await self._closing()
