"""The exchange of a Spark job, in this process: which partition gets which of the pushed rows.

Owns: ``exchanged``.
Invariant: a row goes to the partition of its key's group, and rows of a partition keep their order; rows of a broadcast
input go another way.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from asyncstate.operator import InputSpec
from asyncstate.runtime import InputBatch
from asyncstate.runtime.put_together import put_together

__tracebackhide__ = True  # pytest shows the test's own line


def exchanged(
    inputs: Sequence[InputSpec], rows: Sequence[InputBatch], parallelism: int, max_parallelism: int
) -> list[list[InputBatch]]:
    """The pushed rows by partition, as the exchange of a Spark job would deliver them."""
    parts: list[list[InputBatch]] = [[] for _ in range(parallelism)]
    for pushed in rows:
        spec = inputs[pushed.input_index]
        if spec.broadcast:
            continue
        if spec.local is not None:
            pushed = put_together(pushed, spec, max_parallelism)
        else:
            pushed = replace(pushed, batch=pushed.batch.select(spec.schema.names))
        codec = spec.key_codec(max_parallelism)
        columns = [pushed.batch.column(name) for name in spec.key]
        groups = codec.groups(columns) if columns else np.zeros(pushed.batch.num_rows, np.int32)
        owners = groups.astype(np.int64) * parallelism // max_parallelism
        for partition in np.unique(owners).tolist():
            mine = owners == partition
            kinds = None if pushed.kinds is None else pushed.kinds[mine]
            parts[partition].append(
                InputBatch(pushed.batch.filter(pa.array(mine)), kinds, pushed.input_index)
            )
    return parts
