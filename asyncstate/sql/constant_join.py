"""ConstantJoin: each row with rows of a table that never changes.

Owns: the operator.
Invariant: it keeps no state, since a row that is retracted finds what it found before; rows keep their kinds.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec

_KINDS = {"inner": "inner", "left": "left outer", "semi": "left semi", "anti": "left anti"}
_ROW, _FOUND = "row", "found"


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
        found = (
            [] if self.how in ("semi", "anti") else [field.with_nullable(True) for field in self.table.schema]
        )
        kept = self.how in ("semi", "anti") or self._is_unique()
        keys = spec.changes.unique_keys if kept else ()
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
        self._columns = [
            one.combine_chunks() if one.num_chunks != 1 else one.chunk(0) for one in self.table.columns
        ]

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
