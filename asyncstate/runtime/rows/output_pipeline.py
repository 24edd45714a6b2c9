"""The steps applied to an operator's output in its own task, before it leaves the task.

Owns: ``OutputPipeline`` and its steps: ``FilterStep``, ``ProjectStep``, ``PartialAggregate`` and ``PartialTopN``; the
downstream operator performs the last two.
Invariant: the downstream operator produces the same results as it would with all rows; a step sees only the rows
of one output batch.
Must not import Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, RowKind
from asyncstate.operator import BundleOperator, InputSpec, Operator
from asyncstate.partial_aggregation import PartialStep
from asyncstate.runtime.rows.prepared_rows import kind_codes
from asyncstate.runtime.task_spec import InputBatch

Step = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Maps rows with ``row_kind`` to the rows that leave the task."""


class OutputPipeline(NamedTuple):
    """Steps, and the columns of their result, without ``row_kind``."""

    steps: tuple[Step, ...]
    schema: pa.Schema

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Apply all steps, one after the other."""
        for step in self.steps:
            if not rows.num_rows:
                break
            rows = step(rows)
        return rows


@dataclass(frozen=True)
class FilterStep:
    """Keeps the rows for which a condition is true; null counts as false."""

    condition: Callable[[pa.RecordBatch], pa.Array]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows after this step."""
        mask = self.condition(rows)
        return rows if mask.true_count == len(mask) else rows.filter(mask)


@dataclass(frozen=True)
class ProjectStep:
    """Selects, renames and computes columns: pairs (column, or what computes it of rows; new name)."""

    columns: tuple[tuple[str | Callable[[pa.RecordBatch], pa.Array], str], ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows after this step."""
        made = {
            name: rows.column(source) if isinstance(source, str) else source(rows)
            for source, name in self.columns
        }
        made[ROW_KIND_COLUMN] = rows.column(ROW_KIND_COLUMN)
        return pa.RecordBatch.from_arrays(list(made.values()), names=list(made))


@dataclass(frozen=True)
class _ByReceiver:
    """A step of the downstream ``operator`` on rows before they leave; ``spec`` is its input."""

    operator: Operator
    spec: InputSpec

    def __reduce__(self) -> tuple[type[Self], tuple[Operator, InputSpec]]:
        # Without the step: a stage may run in the driver, which makes it, before a later one is sent to the executors.
        return type(self), (self.operator, self.spec)

    @functools.cached_property
    def _step(self) -> PartialStep:
        assert isinstance(self.operator, BundleOperator)
        return self.operator.partial_step(self.spec)


class PartialAggregate(_ByReceiver):
    """The partial aggregation of the downstream operator; ``spec`` has ``local``."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows after this step."""
        kinds = kind_codes(rows.column(ROW_KIND_COLUMN)) if self.spec.changelog else None
        payload = rows.select(self.spec.schema.names).cast(self.spec.schema)
        made = self._step(payload, kinds)
        return made.append_column(_KIND, pa.array([RowKind.INSERT.text] * made.num_rows, pa.string()))


class PartialTopN(_ByReceiver):
    """Per key, the rows that suffice for the downstream operator; ``spec`` has ``limit``."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows after this step."""
        return self._step(rows, None)


def aggregated_before(operator: Operator, spec: InputSpec, given: InputBatch) -> InputBatch:
    """``given`` after the partial aggregation of ``spec``, an input of ``operator``."""
    assert isinstance(operator, BundleOperator)
    return InputBatch(operator.partial_step(spec)(given.batch, given.kinds), None, given.input_index)


_KIND = pa.field(ROW_KIND_COLUMN, pa.string())
