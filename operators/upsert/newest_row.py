"""The latest row of each key: read, replaced, removed, and the difference emitted.

Owns: ``LatestRows``, the state ``rows`` of one row per key, and ``ChosenRows``, the changes of a bundle's keys.
Invariant: the netted output equals the state: a key has the row that was last emitted for it, or none.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``futures``, ``codec``.

Source: the value state of Flink's ``DeduplicateFunctionBase``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext
from asyncstate.state.columnar.state_columns import Columns, ColumnState, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import StateTtl

from ..core.arrays import BoolArray, Int64Array, take_rows
from ..core.expiry_options import row_stamps
from ..core.row_kinds import arrival_order, distinct_rows, net_changes, take_changes
from ..core.stored_columns import StoredColumns

_MARK = pa.field("seen", pa.bool_(), nullable=False)


class ChosenRows(NamedTuple):
    """A bundle's changes of its u keys: ``comes``, its row becomes the key's row; ``goes``, the key's row is removed.

    ``rows`` (u): the bundle's row that counts for each key, -1 if there is none. A key with neither flag keeps its row;
    no key has both.
    """

    rows: Int64Array
    comes: BoolArray
    goes: BoolArray


class LatestRows:
    """State ``rows``: the non-key columns of a key's row; a mark if there are none, or with ``marks_only``. ``kept``
    describes which row of a key is stored.

    Without a ``ttl``, a row that replaces an equal one is no change. With one it is stored and emitted, so that neither
    the row nor the rows derived from it downstream expire.
    """

    def __init__(
        self,
        spec: InputSpec,
        context: OperatorContext,
        ttl: StateTtl | None,
        kept: str = "last by arrival",
        marks_only: bool = False,
    ) -> None:
        self.payload = StoredColumns(spec)
        self._ttl = ttl
        # One name for both layouts, so a checkpoint with the other one is refused instead of ignored.
        schema = pa.schema([_MARK] if marks_only or not self.payload.indices else self.payload.fields)
        self._state: ColumnState = context.get_state(
            ColumnStateDescriptor("rows", schema, ttl=ttl, belongs_to=("kept", kept))
        )

    def prefetch(self, keys: KeyBatch) -> None:
        """Start to load the data that ``async_read`` reads."""
        self._state.prefetch(keys)

    def async_read(self, bundle: Bundle) -> StateFuture[Columns]:
        """A future of the stored rows of the keys of ``bundle``."""
        return self._state.async_get(bundle.keys)

    def mark(self, bundle: Bundle, rows: Int64Array, marked: BoolArray) -> None:
        """Store that the keys that are ``marked`` (u) have a row; its stamp is that of ``rows`` (u)."""
        self._put(bundle, rows, [_marks(len(rows))], marked)

    def change(
        self, bundle: Bundle, chosen: ChosenRows, old: Columns, ctx: BundleContext, emit_update_before: bool
    ) -> None:
        """Store the changes of ``chosen`` and emit the net change from ``old``, in order of the keys' first rows."""
        keys = bundle.keys
        new = take_rows(self.payload.of(bundle.batch), chosen.rows) or [_marks(len(keys))]
        changed = chosen.comes & old.present
        if self._ttl is None:
            changed[changed] = distinct_rows(old.columns, new, changed)
        self._put(bundle, chosen.rows, new, changed | (chosen.comes & ~old.present))
        gone = chosen.goes & old.present
        if gone.any():
            self._state.remove(keys.select(gone))
        after = (old.present | chosen.comes) & ~gone
        changes = net_changes(arrival_order(keys), old.present, after, changed, emit_update_before)
        if len(changes.keys):
            columns = take_changes(changes, keys.columns, old.columns, new)
            ctx.emit(self.payload.row(columns), changes.kinds)

    def _put(self, bundle: Bundle, rows: Int64Array, new: list[pa.Array], chosen: BoolArray) -> None:
        """Write the ``new`` rows (u), at ``rows`` (u) in the bundle, for the keys that are ``chosen`` (u)."""
        if not chosen.any():
            return
        keys = bundle.keys
        if not chosen.all():
            mask = pa.array(chosen)
            keys, rows = keys.select(chosen), rows[chosen]
            new = [column.filter(mask) for column in new]
        self._state.put(keys, new, row_stamps(self._state, bundle, self._ttl, rows))


def _marks(count: int) -> pa.Array:
    return pa.array(np.ones(count, np.bool_))
