"""What Match costs beside the order that its rows come in.

Owns: ``InOrder``: jobs of TemporalSort and of Match over the same rows.
Invariant: all rows of a micro-batch are due at its end, so the engine does the same for both.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.config import Config
from asyncstate.operator import InputSpec, Operator
from bench.job import Job
from bench.processor_time import Spent
from operators import Match, TemporalSort, last

_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64()), ("at", pa.timestamp("us"))])
_VALUES = 1_000
_BATCH_ROWS = 100_000
_SECOND = 1_000_000


def _pattern(begin: int) -> Match:
    """``begin`` of a thousand rows can be the first one."""
    value = pc.field("value")
    return Match(
        "A B+ C",
        {"A": value < begin, "B": value < _VALUES // 2, "C": value >= _VALUES // 2},
        {"first": last("value", "A"), "last": last("value", "C")},
        within="10 seconds",
    )


MADE: dict[str, Callable[[], Operator]] = {
    "Match, rows that begin nothing": lambda: _pattern(0),
    "Match, one row of ten begins": lambda: _pattern(_VALUES // 10),
}
"""By what is measured."""


class InOrder:
    """A job over rows of given keys; each micro-batch is a second of event time."""

    def __init__(self, folder: Path, operator: Operator, config: Config, seed: int) -> None:
        self._job = Job(folder, operator, config, InputSpec(_SCHEMA, ("key",), event_time="at"))
        self._random = np.random.default_rng(seed)

    def run(self, keys: np.ndarray) -> Spent:
        """What a micro-batch takes of a row of each of ``keys``."""
        start = self._job.batch_id * _SECOND
        times = np.sort(self._random.integers(start, start + _SECOND, len(keys)))
        values = self._random.integers(0, _VALUES, len(keys))
        columns = [pa.array(keys), pa.array(values), pa.array(times).cast(pa.timestamp("us"))]
        rows = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
        self._job.watermark = start + _SECOND - 1
        return self._job.timed([rows.slice(at, _BATCH_ROWS) for at in range(0, len(keys), _BATCH_ROWS)])


def in_order(folder: Path, config: Config, seed: int) -> InOrder:
    """What both cost: the rows in their order."""
    return InOrder(folder, TemporalSort(), config, seed)
