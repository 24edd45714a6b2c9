"""The broadcast input on the driver: collected there, sent along with the task.

Owns: ``with_broadcast``.
Invariant: all partitions get the same rows in the same order, that of the DataFrame.
Must not import runtime's tasks or storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from asyncstate.errors import JobError
from asyncstate.runtime import InputBatch, pack_broadcast
from asyncstate.spark.task import PartitionTask, payload_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncstate.operator import InputSpec


def with_broadcast(task: PartitionTask, inputs: Sequence[DataFrame]) -> PartitionTask:
    """``task`` with the rows of its broadcast input, if it has one; runs that input's plan.

    Raises JobError if they are more than ``async-state.broadcast-size-limit``.
    """
    spec = task.spec
    index = spec.operator.broadcast_input
    if index is None:
        return task
    limit = spec.config.broadcast_size_limit_bytes
    packed = _collected(inputs[index], spec.inputs[index], spec.uid, index, limit)
    return replace(task, spec=replace(spec, broadcast=packed))


def _collected(df: DataFrame, spec: InputSpec, uid: str, index: int, limit_bytes: int) -> bytes | None:
    # A collected DataFrame keeps its order, partition by partition; a shuffle would not.
    table = df.toArrow()
    _check_size(uid, table.nbytes, limit_bytes)
    batches = [InputBatch(*payload_of(spec, batch), index) for batch in table.to_batches() if batch.num_rows]
    packed = pack_broadcast(spec, batches)
    _check_size(uid, len(packed or b""), limit_bytes)
    return packed


def _check_size(uid: str, size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise JobError(
            f"operator '{uid}': the broadcast input of this micro-batch has {size_bytes} bytes, more than "
            f"async-state.broadcast-size-limit ({limit_bytes}), and every task gets all of it. Send fewer rows or "
            "columns at a time, raise the limit, or join it as an ordinary input with a key"
        )
