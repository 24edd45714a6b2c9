"""How many rows a key shows: one number for all keys, a column of the key, or a column of the rows.

Owns: ``RankLimits`` and its state.
Invariant: a key has one limit as long as it has state, that of its first row (of those that are left of
a micro-batch); rows that name another one are counted.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``, ``errors``.

Source: ``initRankEnd`` of Flink's ``AbstractTopNFunction`` and its counter ``topn.invalidTopSize``.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import Bundle, InputSpec, OperatorContext
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor

from ..core.arrays import BoolArray, Int64Array, int64_values, row_ids, take_rows
from ..core.consolidation import net_by_content

_SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
_MOST = 1 << 62


def check_limit(n: int | str, spec: InputSpec, owner: str) -> None:
    """Raise SchemaError for a column that cannot be a limit."""
    if isinstance(n, str) and not pa.types.is_signed_integer(spec.column(n).type):
        raise SchemaError(
            f"{owner}: n is column '{n}' of type {spec.column(n).type}; give an integer column, or cast it"
        )


class RankLimits:
    """The last number that each key shows."""

    def __init__(self, n: int | str, offset: int, context: OperatorContext) -> None:
        spec = context.inputs[0]
        self._n, self._offset = n, offset
        self._key_at = spec.key.index(n) if isinstance(n, str) and n in spec.key else None
        self._of_rows = isinstance(n, str) and self._key_at is None
        if not isinstance(n, str):
            return
        self._without = context.counter("rows_without_limit")
        if self._of_rows:
            self._content = [name for name in spec.schema.names if name not in spec.sequence]
            self._others = context.counter("rows_with_another_limit")
            self._state: ColumnState = context.get_state(
                ColumnStateDescriptor("limits", _SCHEMA, fixed_fields=True)
            )

    def prefetch(self, keys: KeyBatch) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        if self._of_rows:
            self._state.prefetch(keys)

    def async_read(self, keys: KeyBatch) -> StateFuture[Columns | None]:
        """A future of the stored limits, for ``ends``."""
        if not self._of_rows:
            return completed_future(None)
        return self._state.async_get(keys).then_apply(lambda found: found)

    def with_limit(self, bundle: Bundle) -> BoolArray | None:
        """The rows (n) that name a limit; None for all. The others are counted."""
        if not isinstance(self._n, str) or not bundle.batch.column(self._n).null_count:
            return None
        named: BoolArray = bundle.batch.column(self._n).is_valid().to_numpy(zero_copy_only=False)
        self._without.add(int((~named).sum()))
        return named

    def ends(self, bundle: Bundle, chosen: Int64Array, found: Columns | None) -> Int64Array:
        """The last number that each key (u) shows: 0 for one that shows nothing.

        ``chosen`` are the rows of the bundle that count. Limits of new keys are written.
        """
        keys = bundle.keys
        if not isinstance(self._n, str):
            return np.full(len(keys), self._n + self._offset, np.int64)
        if self._key_at is not None:
            limits = int64_values(keys.columns[self._key_at])
        else:
            assert found is not None
            limits = self._kept(bundle, chosen, found)
        return np.where(limits > 0, np.minimum(limits, _MOST) + self._offset, 0)

    def _kept(self, bundle: Bundle, chosen: Int64Array, found: Columns) -> Int64Array:
        keys = bundle.keys
        rows = self._left(bundle, chosen)
        given, owners = int64_values(bundle.batch.column(self._n))[rows], keys.inverse[rows]
        limits = found.numpy(0).astype(np.int64)
        first = np.zeros(len(keys), np.int64)
        first[owners[::-1]] = given[::-1]  # of repeated indices the last assignment stays
        limits = np.where(found.present, limits, first)
        self._others.add(int((given != limits[owners]).sum()))
        new = np.zeros(len(keys), np.bool_)
        new[owners] = True
        new &= ~found.present
        if new.any():
            self._state.put(keys.select(new), [pa.array(limits[new])])
        return limits

    def _left(self, bundle: Bundle, chosen: Int64Array) -> Int64Array:
        """Those of the ``chosen`` rows that are added and that no retraction of the bundle cancels out."""
        added = bundle.accumulate[chosen]
        if added.all():
            return chosen
        content = take_rows([bundle.batch.column(name) for name in self._content], chosen)
        ids = row_ids(content, bundle.keys.inverse[chosen])
        return chosen[net_by_content(np.empty(0, np.int64), ids, added).added]

    def forget(self, keys: KeyBatch, gone: BoolArray) -> None:
        """Remove the limits of keys that have no rows any more (a mask of u)."""
        if self._of_rows and gone.any():
            self._state.remove(keys.select(gone))
