"""Outcomes on their way back to the task's thread: those of list gets on other threads, and those of outside calls.

Owns: ``Completions`` and ``Completion``.
Invariant: each ticket that is expected is answered by one Completion.
"""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Completion:
    """The outcome of one submission: ``values`` or ``error``; for a read also its duration."""

    ticket: Any
    values: Any
    error: BaseException | None
    seconds: float = 0.0


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

    def outstanding(self) -> list[tuple[Any, float]]:
        """The tickets that have not been answered, and for how many seconds; the oldest first."""
        now = time.monotonic()
        return [(ticket, now - asked) for ticket, asked in self._expected.values()]
