"""What is done to an operator's output in its own task, before it leaves it.

Owns: ``OutputPipeline`` and its steps: ``FilterStep``, ``ProjectStep``, ``PartialAggregate`` and ``PartialTopN``; the
last two are done by the operator that gets the rows.
Invariant: the operator that gets the rows comes to the same results as it would with all of them; a step sees the rows
of one output batch and no others.
Must not import Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, RowKind
from asyncstate.operator import BundleOperator, InputSpec, Operator
from asyncstate.partial_aggregation import PartialStep
from asyncstate.runtime.spec import InputBatch

Step = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Some rows, with ``row_kind``, to those that leave."""


class OutputPipeline(NamedTuple):
    """Steps, and the columns of what leaves them, without ``row_kind``."""

    steps: tuple[Step, ...]
    schema: pa.Schema

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """All steps, one after the other."""
        for step in self.steps:
            if not rows.num_rows:
                break
            rows = step(rows)
        return rows


@dataclass(frozen=True)
class FilterStep:
    """The rows for which a condition is true; null is not."""

    condition: Callable[[pa.RecordBatch], pa.Array]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        mask = self.condition(rows)
        return rows if mask.true_count == len(mask) else rows.filter(mask)


@dataclass(frozen=True)
class ProjectStep:
    """Some of the columns, with other names: pairs of both."""

    columns: tuple[tuple[str, str], ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        found = rows.select([name for name, _ in self.columns] + [ROW_KIND_COLUMN])
        return found.rename_columns([name for _, name in self.columns] + [ROW_KIND_COLUMN])


@dataclass(frozen=True)
class _ByReceiver:
    """What ``operator``, which gets the rows, does to them before they leave; ``spec`` is its input."""

    operator: Operator
    spec: InputSpec

    @functools.cached_property
    def _step(self) -> PartialStep:
        assert isinstance(self.operator, BundleOperator)
        return self.operator.partial_step(self.spec)


class PartialAggregate(_ByReceiver):
    """The local phase of the operator that gets the rows: ``spec`` has ``local``."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        kinds = None
        if self.spec.changelog:
            codes = pc.index_in(rows.column(ROW_KIND_COLUMN), value_set=_KINDS)
            kinds = codes.to_numpy(zero_copy_only=False).astype(np.int8)
        payload = rows.select(self.spec.schema.names).cast(self.spec.schema)
        made = self._step(payload, kinds)
        return made.append_column(_KIND, pa.array([RowKind.INSERT.text] * made.num_rows, pa.string()))


class PartialTopN(_ByReceiver):
    """Of each key the rows that are enough for the operator that gets them: ``spec`` has ``limit``."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        return self._step(rows, None)


def aggregated_before(operator: Operator, spec: InputSpec, given: InputBatch) -> InputBatch:
    """``given`` as the local phase of ``spec``, an input of ``operator``, leaves it."""
    assert isinstance(operator, BundleOperator)
    return InputBatch(operator.partial_step(spec)(given.batch, given.kinds), None, given.input_index)


_KIND = pa.field(ROW_KIND_COLUMN, pa.string())
_KINDS: Any = pa.array([kind.text for kind in RowKind])
