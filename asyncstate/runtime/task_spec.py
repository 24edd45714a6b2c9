"""The input and the report of a task: the contract between a driver (Spark job, harness) and ``run_partition``.

Owns: ``TaskSpec``, ``InputBatch``, ``SideBatch`` and ``CommitRecord``; all can be pickled or turned into bytes.
Invariant: a TaskSpec contains everything that determines the result of a partition, so that every attempt at it gives
the same rows and the same state.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import Changelog, late_changes
from asyncstate.config import Config
from asyncstate.operator import MIN_WATERMARK, InputSpec, Operator, OutputSpec
from asyncstate.storage import OperatorManifest, PartitionManifest, StateSpec


@dataclass(frozen=True)
class TaskSpec:
    """One operator in one micro-batch, the same for all partitions.

    ``base`` is the operator's entry in the manifest of the version the batch starts from (None: no state yet).
    Times are microseconds. ``broadcast`` has the rows of the broadcast input with their kinds, as an Arrow stream,
    the same for all partitions. ``first_arrival``: the number of the first row of an ordered input, if other rows have
    preceded it in the same micro-batch. ``checkpoint`` is the checkpoint's folder or URI (not in the repr: it may
    contain credentials), ``local_dir`` the worker's folder for stores, None for its default.
    """

    job_id: str
    uid: str
    operator: Operator
    inputs: tuple[InputSpec, ...]
    config: Config
    parallelism: int
    max_parallelism: int
    batch_id: int
    base_version: int
    base: OperatorManifest | None
    watermark: int
    previous_watermark: int
    processing_time: int
    checkpoint: str = field(repr=False)
    local_dir: str | None
    previous_processing_time: int = MIN_WATERMARK
    broadcast: bytes | None = None
    first_arrival: int = 0


@dataclass(frozen=True)
class InputBatch:
    """Rows of one input, in arrival order: payload columns of the InputSpec, kinds as int8 codes (None: all +I)."""

    batch: pa.RecordBatch
    kinds: npt.NDArray[np.int8] | None = None
    input_index: int = 0


@dataclass(frozen=True)
class SideBatch:
    """Rows emitted to the side output ``output``, with its columns and ``row_kind``. Rows of the main output are plain
    RecordBatches."""

    output: str
    batch: pa.RecordBatch

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self.batch.num_rows)


OutBatch = pa.RecordBatch | SideBatch


class CommitRecord(msgspec.Struct, kw_only=True):
    """What one partition asks the driver to commit.

    ``content`` is the partition after the batch. ``max_event_times`` has one entry per input: the
    highest event time seen in this batch, None if there was none.
    ``broadcast_digest`` is a digest of the changes to broadcast state, the same in all partitions. ``missing_row`` is
    an example of the unmatched retractions, None if there were none.
    ``statistics`` holds sums over this batch (see ``docs/architecture.md``), ``peaks`` the highest values.
    """

    partition: int
    content: PartitionManifest
    states: list[StateSpec]
    max_event_times: list[int | None]
    broadcast_digest: str = ""
    missing_row: str | None = None
    statistics: dict[str, float] = msgspec.field(default_factory=dict)
    peaks: dict[str, float] = msgspec.field(default_factory=dict)


def pack_records(records: Sequence[CommitRecord]) -> bytes:
    """Serialize the commit records of the operators of a task, in order."""
    return msgspec.json.encode(records)


def unpack_records(data: bytes) -> list[CommitRecord]:
    """The inverse of ``pack_records``."""
    return msgspec.json.decode(data, type=list[CommitRecord])


def with_late_changes(operator: Operator, inputs: Sequence[InputSpec], output: OutputSpec) -> OutputSpec:
    """``output`` whose side outputs for late rows have the inputs' changelog properties: the framework emits these rows
    unchanged."""
    late: dict[str, list[Changelog]] = {}
    for name, spec in zip(operator.late_outputs(inputs), inputs, strict=False):
        if name is not None and name in output.side_outputs:
            late.setdefault(name, []).append(spec.changes)
    known = {name: late_changes(found) for name, found in late.items()}
    return replace(output, side_changes={**output.side_changes, **known}) if late else output
