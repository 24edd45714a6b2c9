"""Epochs: what comes between watermarks, timer ticks and the end of a micro-batch.

Owns: ``EpochManager``.
Invariant: the action that closes an epoch runs only when every record of it, and of all epochs before, has ended.

Source: Flink's ``EpochManager`` with its modes SERIAL_BETWEEN_EPOCH and PARALLEL_BETWEEN_EPOCH.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Epoch:
    """Counts its records in flight."""

    __slots__ = ("action", "closed", "ongoing")

    def __init__(self) -> None:
        self.ongoing = 0
        self.closed = False
        self.action: Callable[[], None] | None = None


class EpochManager:
    """Gives each record its epoch and runs closing actions in order."""

    def __init__(self) -> None:
        self.active = Epoch()
        self._epochs: deque[Epoch] = deque([self.active])
        self._advancing = False

    @property
    def waiting(self) -> int:
        """Closed epochs whose action has not run."""
        return len(self._epochs) - 1

    def enter(self) -> Epoch:
        """The epoch of a record that starts now."""
        epoch = self.active
        epoch.ongoing += 1
        return epoch

    def leave(self, epoch: Epoch) -> None:
        """A record of ``epoch`` has ended."""
        epoch.ongoing -= 1
        if epoch.ongoing == 0 and epoch.closed:
            self._advance()

    def close(self, action: Callable[[], None]) -> None:
        """End the active epoch; ``action`` runs once it and all before it are done, perhaps at once."""
        self.active.closed = True
        self.active.action = action
        self.active = Epoch()
        self._epochs.append(self.active)
        self._advance()

    def _advance(self) -> None:
        if self._advancing:
            return  # an action let records end: the loop below goes on with their epoch
        self._advancing = True
        try:
            while self._epochs[0].closed and self._epochs[0].ongoing == 0:
                action = self._epochs[0].action
                assert action is not None
                action()
                self._epochs.popleft()
        finally:
            self._advancing = False
