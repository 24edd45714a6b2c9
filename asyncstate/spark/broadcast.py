"""The broadcast input on the driver: collected there, sent along with the task.

Owns: ``with_broadcast``.
Invariant: all partitions get the same rows in the same order, that of the DataFrame.
Must not import runtime's tasks or storage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from asyncstate.runtime import InputBatch, pack_broadcast
from asyncstate.spark.payload import payload_of
from asyncstate.spark.task import PartitionTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def with_broadcast(task: PartitionTask, inputs: Mapping[int, DataFrame]) -> PartitionTask:
    """``task`` with the rows of its broadcast input, if it has one; runs that input's plan. ``inputs`` by number.

    Raises JobError if they are more than ``async-state.broadcast-size-limit``.
    """
    spec = task.spec
    index = spec.operator.broadcast_input
    if index is None:
        return task
    packed = _collected(task, inputs[index], index)
    return replace(task, spec=replace(spec, broadcast=packed))


def _collected(task: PartitionTask, df: DataFrame, index: int) -> bytes | None:
    spec = task.spec
    declared = spec.inputs[index]
    # Collecting keeps the order, partition by partition; a shuffle would not.
    rows = [batch for batch in df.toArrow().to_batches() if batch.num_rows]
    batches = (InputBatch(*payload_of(declared, batch), index) for batch in rows)
    return pack_broadcast(spec.uid, declared, batches, spec.config.broadcast_size_limit_bytes)
