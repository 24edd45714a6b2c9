"""Admission policy: disable the cache of decoded values while its hit ratio is too low.

Owns: ``AdmissionPolicy``, for one state of one partition, and ``AdmissionPolicies``, all those of a worker process.
Invariant: a policy decides from counts alone, never from the clock.
Must not import any other part of the project.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

JUDGED_MISSES: Final = 8_192
"""Misses between two decisions. Caching that many values to no use costs a few milliseconds."""

_HITS_A_MISS: Final = 2  # a miss costs about twice what a hit saves
_REST_FIRST: Final = 16  # micro-batches
_REST_LONGEST: Final = 256
_TRIALS_MAX: Final = 4_096


class AdmissionPolicy:
    """Decides, over micro-batches, whether caching decoded values pays for one state of one partition.

    It decides whenever ``judged_misses`` more reads and writes have missed the cache. A cache that does not pay is
    disabled for 16 micro-batches, then for twice as many if it still does not pay, and so on.
    """

    __slots__ = ("_hits", "_misses", "_pause", "_paused", "judged_misses")

    def __init__(self, judged_misses: int = JUDGED_MISSES) -> None:
        self.judged_misses = judged_misses
        self._hits = self._misses = 0
        self._pause = _REST_FIRST
        self._paused = 0

    def begin(self) -> bool:
        """Begin a micro-batch. True unless the cache is disabled."""
        if not self._paused:
            return True
        self._paused -= 1
        return False

    def add(self, hits: int, misses: int) -> bool:
        """Count the hits and misses since the last call. False if the cache does not pay and is disabled from now
        on."""
        self._hits += hits
        self._misses += misses
        if self._misses < self.judged_misses:
            return True
        pays = self._hits >= self._misses * _HITS_A_MISS
        self._hits = self._misses = 0
        if pays:
            self._pause = _REST_FIRST
        else:
            self._paused = self._pause
            self._pause = min(2 * self._pause, _REST_LONGEST)
        return pays


class AdmissionPolicies:
    """The policies of a worker process that were used recently."""

    def __init__(self) -> None:
        self._policies: dict[Hashable, AdmissionPolicy] = {}

    def of(self, state: Hashable) -> AdmissionPolicy:
        """The policy of ``state``, which names job, operator, partition and state."""
        policy = self._policies.pop(state, None) or AdmissionPolicy()
        self._policies[state] = policy
        if len(self._policies) > _TRIALS_MAX:
            del self._policies[next(iter(self._policies))]
        return policy
