"""Clock: the time of the micro-batch as a table of one row, for ``now()`` in a statement.

Owns: the operator.
Invariant: after each micro-batch the netted output is one row, the processing time at which the micro-batch started.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from asyncstate.changelog import Changelog, RowKind
from asyncstate.codec import KeyBatch
from asyncstate.growth import StateGrowth, rows_per_key
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor

_NOW: Final = pa.field("now", pa.timestamp("us", "UTC"), nullable=False)
_STORED: Final = pa.schema([pa.field("now", pa.int64(), nullable=False)])


class Clock(BundleOperator):
    """One row with the column ``now``. The rows of its input, which has no key, do not matter.

    State: ``now``, the row.
    """

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The time alone."""
        return OutputSpec(pa.schema([_NOW]), changes=Changelog.retract())

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """Always the same."""
        return {}

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """One row."""
        return rows_per_key(1)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        self._codec, self._key_groups = context.key_codec, context.key_groups
        self._state: ColumnState = context.get_state(ColumnStateDescriptor("now", _STORED, fixed_fields=True))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        """Nothing."""

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        """See ``BundleOperator``: emits the change of the row, in the partition that has the key of all rows."""
        key = self._codec.group([], num_rows=1)
        if int(key.groups[0]) not in self._key_groups:
            return None
        return self._state.async_get(key).then_accept(lambda stored: self._tick(key, stored, ctx))

    def _tick(self, key: KeyBatch, stored: Columns, ctx: BundleContext) -> None:
        now = pa.array([ctx.processing_time], pa.int64())
        if not stored.present.all():
            ctx.emit([now.cast(_NOW.type)])
        elif stored.columns[0].equals(now):
            return
        else:
            ctx.emit([stored.columns[0].cast(_NOW.type)], RowKind.UPDATE_BEFORE)
            ctx.emit([now.cast(_NOW.type)], RowKind.UPDATE_AFTER)
        self._state.put(key, [now])
