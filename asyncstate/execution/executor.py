"""Store reads on other threads, by anyio.

Owns: ``IOExecutor``.
Invariant: results come back through one queue, to the thread that asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread

from asyncstate.execution.loop import Completion, Completions, LoopThread


class IOExecutor:
    """Runs blocking calls on at most ``parallelism`` threads. The threads start with the first call."""

    def __init__(self, parallelism: int, completions: Completions) -> None:
        self.parallelism = parallelism
        self._completions = completions
        self._loop: LoopThread | None = None
        self._limiter: anyio.CapacityLimiter

    def submit(self, call: Callable[[], Any], ticket: Any) -> None:
        """Run ``call`` on a thread; its Completion carries ``ticket``."""
        if self._loop is None:
            self._loop = LoopThread("asyncstate-reads", self._open)
            self._loop.start()
        self._completions.expect(ticket)
        self._loop.run_soon(self._run, call, ticket)

    def close(self, timeout_seconds: float | None = None) -> bool:
        """Wait for running calls and end the threads; False if calls still run after ``timeout_seconds``."""
        loop, self._loop = self._loop, None
        return loop is None or loop.stop(cancel=False, timeout_seconds=timeout_seconds)

    async def _open(self) -> None:
        self._limiter = anyio.CapacityLimiter(self.parallelism)

    async def _run(self, call: Callable[[], Any], ticket: Any) -> None:
        completion = await anyio.to_thread.run_sync(_outcome, call, ticket, limiter=self._limiter)
        self._completions.put(completion)


def _outcome(call: Callable[[], Any], ticket: Any) -> Completion:
    try:
        return Completion(ticket, call(), None)
    except BaseException as failure:
        return Completion(ticket, None, failure)
