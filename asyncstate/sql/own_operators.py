"""Operators that statements alone need.

Owns: ``Clock``, the time of the micro-batch as a table of one row, for ``now()``; ``ConstantJoin``, each row with rows
of a table that never changes.
Invariant: after each micro-batch the netted output of ``Clock`` is one row, the processing time at which the
micro-batch started. ``ConstantJoin`` keeps no state, since a row that is retracted finds what it found before.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import Changelog, RowKind
from asyncstate.codec import KeyBatch
from asyncstate.growth import StateGrowth, rows_per_key
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor

_NOW: Final = pa.field("now", pa.timestamp("us", "UTC"), nullable=False)
_STORED: Final = pa.schema([pa.field("now", pa.int64(), nullable=False)])
_KINDS = {"inner": "inner", "left": "left outer", "semi": "left semi", "anti": "left anti"}
_ROW, _FOUND = "row", "found"


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


class ConstantJoin(BundleOperator):
    """Rows joined with those of ``table`` (an Arrow table, indexed once a task) whose columns ``key`` equal the row's
    columns ``on``; no columns: with all rows. A null equals nothing.

    ``how``: inner, left (rows without a partner are padded with nulls), semi or anti.
    """

    stateless: ClassVar[bool] = True

    def __init__(
        self,
        table: pa.Table,
        on: Sequence[str],
        key: Sequence[str],
        how: Literal["inner", "left", "semi", "anti"],
    ) -> None:
        self.table = table.combine_chunks()
        self.on, self.key = tuple(on), tuple(key)
        self.how = how

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns, then those of the table."""
        (spec,) = inputs
        is_semi = self.how in ("semi", "anti")
        found = [] if is_semi else [field.with_nullable(True) for field in self.table.schema]
        keys = spec.changes.unique_keys if is_semi or self._is_unique() else ()
        changes = spec.changes.with_keys(keys, spec.changes.never_null)
        return OutputSpec(pa.schema([*spec.schema, *found]), changes=changes)

    def _is_unique(self) -> bool:
        """Whether a row finds at most one."""
        if not self.key:
            return bool(len(self.table) <= 1)
        return len(self.table.group_by(list(self.key)).aggregate([])) == len(self.table)

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """Nothing is kept."""
        return {}

    def open(self, context: OperatorContext) -> None:
        """Nothing to declare."""
        self._key = _table([self.table.column(name) for name in self.key], len(self.table), _FOUND)
        self._columns = [one.combine_chunks() for one in self.table.columns]

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Emit the pairs of all rows."""
        given = _table([bundle.batch.column(name) for name in self.on], bundle.num_rows, _ROW)
        names = [name for name in given.column_names if name != _ROW]
        pairs = given.join(self._key, names, join_type=_KINDS[self.how], use_threads=False)
        pairs = pairs.sort_by(_ROW)
        rows = pairs.column(_ROW).combine_chunks()
        columns = [column.take(rows) for column in bundle.batch.columns]
        if self.how in ("inner", "left"):
            found = pairs.column(_FOUND).combine_chunks()
            columns += [pc.take(column, found) for column in self._columns]
        ctx.emit(columns, bundle.kinds[rows.to_numpy(zero_copy_only=False)])


def _table(columns: Sequence[Any], size: int, number: str) -> pa.Table:
    """Key columns by their places, and the number of each row; without columns all rows have one key."""
    keys = {f"key {at}": one for at, one in enumerate(columns)} or {
        "key 0": pa.array(np.zeros(size, np.int8))
    }
    return pa.table({**keys, number: pa.array(np.arange(size, dtype=np.int64))})
