"""The size of bundles in rows: large, since each key then costs less, but limited by memory.

Owns: ``BundleSize``.
Invariant: it depends only on the configuration, the version that the micro-batch starts from and the rows, so that
sync and async mode, and every attempt at a micro-batch, split the same rows into the same bundles.
Must not import Spark.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from asyncstate.runtime.task_spec import TaskSpec

ROWS_UNKNOWN: Final = 100_000
"""Maximum rows while no previous micro-batch has measured how large the state of a row is."""
ROWS_MIN: Final = 1_000
"""Minimum rows even if they are wide: list gets of fewer keys cost too much per key."""
_MEASURED: Final = ("rows_in", "bundle_read_bytes", "change_bytes")
_BYTES_MAX: Final = 1 << 30
"""Half the size limit of the strings in an Arrow array: no bundle may exceed it, however wide its rows are."""


class BundleSize:
    """The bound in rows for the bundles of one partition in one micro-batch; ``row_bytes`` and ``key_bytes``: state
    size per row and per key, as far as known in advance."""

    def __init__(self, spec: TaskSpec, row_bytes: int = 0, key_bytes: int = 0) -> None:
        rows, *state_bytes = (0, 0, 0) if spec.base is None else map(spec.base.total, _MEASURED)
        config = spec.config
        self._memory_bytes = config.shares.bundle
        self.rows_max = config.bundle_size if rows else min(config.bundle_size, ROWS_UNKNOWN)
        self._state_bytes = max(sum(state_bytes) / rows if rows else 0.0, row_bytes)
        self._key_bytes = key_bytes

    def rows(self, batch: pa.RecordBatch) -> int:
        """Rows for a bundle with rows like those of ``batch`` (at least one row), which stay in memory until it is
        done."""
        return self.rows_of(batch.nbytes / batch.num_rows)

    def rows_of(self, row_bytes: float) -> int:
        """Rows for a bundle with rows of ``row_bytes`` bytes."""
        each = max(row_bytes + self._state_bytes, 1.0)
        least = max(min(ROWS_MIN, int(_BYTES_MAX / each)), 1)
        return min(self.rows_max, max(int(self._memory_bytes / each), least))

    def fits(self, keys: int) -> bool:
        """Whether the state of ``keys`` keys fits into a bundle."""
        return keys <= ROWS_MIN or keys * self._key_bytes <= self._memory_bytes
