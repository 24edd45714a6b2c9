"""Whether keeping decoded values pays, learnt from hits and misses over micro-batches.

Owns: ``AdmissionPolicy``, of one state of one partition, and ``AdmissionPolicies``, those of a worker process.
Invariant: a trial decides from counts alone, never from the clock.
Must not import any other part of the project.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

JUDGED_MISSES: Final = 8_192
"""Misses between two decisions: keeping as many values in vain costs a few milliseconds."""

_HITS_A_MISS: Final = 2  # a miss costs about twice what a hit saves
_REST_FIRST: Final = 16  # micro-batches
_REST_LONGEST: Final = 256
_TRIALS_MAX: Final = 4_096


class AdmissionPolicy:
    """Whether keeping decoded values pays for one state of one partition, over micro-batches.

    It is decided whenever ``judged_misses`` more reads and writes have met keys of which nothing was known. Where it
    does not pay, it rests for 16 micro-batches, for twice as many if it does not pay then either, and so on.
    """

    __slots__ = ("_hits", "_misses", "_rest", "_resting", "judged_misses")

    def __init__(self, judged_misses: int = JUDGED_MISSES) -> None:
        self.judged_misses = judged_misses
        self._hits = self._misses = 0
        self._rest = _REST_FIRST
        self._resting = 0

    def begin(self) -> bool:
        """A micro-batch begins: True unless it should rest."""
        if not self._resting:
            return True
        self._resting -= 1
        return False

    def add(self, hits: int, misses: int) -> bool:
        """Take in what happened since the last call; False if it does not pay, so that it should rest from now on."""
        self._hits += hits
        self._misses += misses
        if self._misses < self.judged_misses:
            return True
        pays = self._hits >= self._misses * _HITS_A_MISS
        self._hits = self._misses = 0
        if pays:
            self._rest = _REST_FIRST
        else:
            self._resting = self._rest
            self._rest = min(2 * self._rest, _REST_LONGEST)
        return pays


class AdmissionPolicies:
    """The trials of a worker process, those that were used lately."""

    def __init__(self) -> None:
        self._trials: dict[Hashable, AdmissionPolicy] = {}

    def of(self, state: Hashable) -> AdmissionPolicy:
        """The trial of ``state``, which names job, operator, partition and state."""
        trial = self._trials.pop(state, None) or AdmissionPolicy()
        self._trials[state] = trial
        if len(self._trials) > _TRIALS_MAX:
            del self._trials[next(iter(self._trials))]
        return trial
