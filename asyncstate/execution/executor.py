"""Store reads on other threads, by anyio.

Owns: ``IOExecutor``.
Invariant: results come back through one bounded-by-its-submissions queue, to the thread that asks for them.
Only this module starts threads.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import anyio.from_thread
import anyio.to_thread


@dataclass(slots=True)
class Completion:
    """The outcome of one submission: ``values`` or ``error``."""

    ticket: Any
    values: Any
    error: BaseException | None


class IOExecutor:
    """Runs blocking calls on at most ``parallelism`` threads. The threads start with the first call."""

    def __init__(self, parallelism: int) -> None:
        self.parallelism = parallelism
        self.outstanding = 0
        self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self._stack = ExitStack()
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._limiter: anyio.CapacityLimiter | None = None

    def submit(self, call: Callable[[], Any], ticket: Any) -> None:
        """Run ``call`` on a thread; its Completion carries ``ticket``."""
        if self._portal is None:
            self._portal = self._stack.enter_context(anyio.from_thread.start_blocking_portal())
            self._limiter = self._portal.call(anyio.CapacityLimiter, self.parallelism)
        self.outstanding += 1
        self._portal.start_task_soon(self._run, call, ticket)

    def next_completion(self, timeout_seconds: float | None) -> Completion | None:
        """The next outcome, in order of completion; None when ``timeout_seconds`` have passed (0: do not wait)."""
        try:
            if timeout_seconds == 0:
                completion = self._completions.get_nowait()
            else:
                completion = self._completions.get(timeout=timeout_seconds)
        except queue.Empty:
            return None
        self.outstanding -= 1
        return completion

    def close(self) -> None:
        """Wait for running calls and end the threads."""
        self._stack.close()
        self._portal = None

    async def _run(self, call: Callable[[], Any], ticket: Any) -> None:
        completion = await anyio.to_thread.run_sync(_outcome, call, ticket, limiter=self._limiter)
        self._completions.put(completion)


def _outcome(call: Callable[[], Any], ticket: Any) -> Completion:
    try:
        return Completion(ticket, call(), None)
    except BaseException as failure:
        return Completion(ticket, None, failure)
