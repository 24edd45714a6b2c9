"""The input and the report of a task: the contract between a driver (Spark job, harness) and ``run_partitions``.

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
from asyncstate.errors import SchemaError
from asyncstate.operator import (
    MIN_WATERMARK,
    BundleOperator,
    InputSpec,
    Operator,
    OutputSpec,
    RecordOperator,
)
from asyncstate.specs import ERRORS_OUTPUT, with_error_columns
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


def sends_errors(operator: Operator) -> bool:
    """Whether rows that fail go to the side output of errors."""
    return isinstance(operator, RecordOperator | BundleOperator) and operator.errors == "output"


def with_own_outputs(operator: Operator, inputs: Sequence[InputSpec], output: OutputSpec) -> OutputSpec:
    """``output`` with what the framework itself emits: side outputs for late rows have the inputs' changelog
    properties, since these rows are emitted unchanged; rows that fail get a side output.

    Raises SchemaError if rows that fail cannot have one.
    """
    if isinstance(operator, RecordOperator | BundleOperator):
        output = _with_errors(operator, inputs, output)
    late: dict[str, list[Changelog]] = {}
    for name, spec in zip(operator.late_outputs(inputs), inputs, strict=False):
        if name is not None and name in output.side_outputs:
            late.setdefault(name, []).append(spec.changes)
    known = {name: late_changes(found) for name, found in late.items()}
    return replace(output, side_changes={**output.side_changes, **known}) if late else output


def _with_errors(
    operator: RecordOperator | BundleOperator, inputs: Sequence[InputSpec], output: OutputSpec
) -> OutputSpec:
    owner = type(operator).__name__
    if operator.errors not in ("fail", "output"):
        raise SchemaError(f"{owner}: errors is {operator.errors!r}; choose 'fail' or 'output'")
    if operator.errors == "fail":
        return output
    keyed = [spec for spec in inputs if not spec.broadcast]
    problem = ""
    if operator.stateless:
        problem = "without state there are no side outputs; leave stateless = True out"
    elif len(keyed) > 1:
        problem = f"its {len(keyed)} inputs have different columns; give errors='fail', or union them before"
    elif keyed[0].changelog:
        problem = f"{keyed[0].name} is a changelog, whose rows need each other; give errors='fail', or insert-only rows"
    elif isinstance(operator, BundleOperator) and _waits(operator, inputs):
        problem = f"rows of {keyed[0].name} wait for the watermark and are then processed together; give errors='fail'"
    elif ERRORS_OUTPUT in output.side_outputs:
        problem = f"it has a side output '{ERRORS_OUTPUT}' of its own; rename that"
    if problem:
        raise SchemaError(f"{owner}: errors='output' is not possible here: {problem}")
    columns = with_error_columns(owner, keyed[0].schema)
    return replace(output, side_outputs={**output.side_outputs, ERRORS_OUTPUT: columns})


def _waits(operator: BundleOperator, inputs: Sequence[InputSpec]) -> bool:
    """Whether rows wait in state for the watermark, to be processed in their order."""
    asked = any(order is not None for order in operator.ordered_inputs(inputs))
    return asked or any(spec.ordering is not None for spec in inputs)
