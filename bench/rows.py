"""The rows of the benchmarks that run one operator without Spark: an int64 key and an int64 value.

Owns: ``INPUT``, ``batches`` and ``draws``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from asyncstate.operator import InputSpec

_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])

INPUT = InputSpec(_SCHEMA, ("key",))


def batches(keys: np.ndarray, rows: int) -> list[pa.RecordBatch]:
    """A row a key, ``rows`` in an Arrow batch."""
    # Other values each time: an operator that finds nothing changed writes nothing.
    value = np.random.default_rng(int(keys[0])).integers(0, 1_000_000, len(keys))
    whole = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(value)], schema=_SCHEMA)
    return [whole.slice(start, rows) for start in range(0, len(keys), rows)]


def draws(state_keys: int, unique: int, seed: int) -> Iterator[np.ndarray]:
    """Again and again ``unique`` different keys of those below ``state_keys``."""
    random = np.random.default_rng(seed)
    while True:
        yield random.choice(state_keys, unique, replace=False).astype(np.int64)
