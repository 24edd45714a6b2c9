"""Operators over the rows of one input and the only row of another one, which is broadcast.

Owns: ``OneRowInput``, their base: it stores the rows, and the one row, and emits what a change of either makes.
Invariant: the rows of a micro-batch see its one row; rows of earlier ones are read if a change of that can affect them.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``errors``, ``futures``, ``operator`` and
``state``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch, RowCodec
from asyncstate.codec.hashing import canonical_floats
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.value_columns import to_storage
from asyncstate.errors import OperatorError
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth, with_rows
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext
from asyncstate.state.broadcast_state import BroadcastStateDescriptor
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnStateDescriptor

from ..core.arrays import BoolArray, Int64Array, concat_rows, row_ids, take_rows
from ..core.consolidation import net_by_content
from ..core.operator_checks import KeepsKey
from ..core.stored_columns import StoredColumns

OneRow = list[pa.Array] | None
"""The columns (1) of the one row; None: there is none."""
EVERYTHING = [(-(1 << 63), (1 << 63) - 1)]
"""The range of all codes."""


class OneRowInput(KeepsKey, BundleOperator):
    """An operator whose second input has one row at most.

    State: ``rows``, the rows of the first input, time-first by the codes that ``codes`` gives them; ``one_row``.
    """

    num_inputs: ClassVar[int] = 2
    broadcast_input: ClassVar[int | None] = 1

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """How the stored state grows, for ``explain()``."""
        return with_rows(inputs[0].changelog)

    @abstractmethod
    def one_row_columns(self, spec: InputSpec) -> Sequence[str]:
        """The columns of the second input that matter."""

    @abstractmethod
    def counted(self, columns: Sequence[pa.Array]) -> BoolArray | None:
        """Which rows (n) can ever be emitted; None: all."""

    def without_settled(self, bundle: Bundle, rows: Int64Array, ctx: BundleContext) -> Int64Array:
        """Those of some ``rows`` of a bundle that another one row may change; the others are emitted, if at all."""
        return rows

    @abstractmethod
    def codes(self, columns: Sequence[pa.Array]) -> Int64Array:
        """A number (n) for each row, by which rows are found again."""

    @abstractmethod
    def affected(self, old: OneRow, new: OneRow) -> Sequence[tuple[int, int]]:
        """The ranges of codes, ends included, whose rows may be emitted differently with another one row."""

    @abstractmethod
    def shown(self, columns: Sequence[pa.Array], one: OneRow) -> tuple[BoolArray | None, list[pa.Array]]:
        """Which rows (n) are emitted, None: all; and the columns of all rows as they are emitted."""

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec, other = context.inputs
        self._content = [at for at, name in enumerate(spec.schema.names) if name not in spec.sequence]
        # The sequence is part of the row, so one that comes again replaces its equal, however bundles are cut.
        self._refresh = bool(spec.sequence)
        self._payload = StoredColumns(spec, at_least_one=True)
        self._missing = context.missing_rows()
        self._rows = context.get_state(
            ListColumnStateDescriptor("rows", pa.schema(self._payload.fields), time_first=True)
        )
        self._names = self.one_row_columns(other)
        self._is_first = context.key_groups.start == 0
        self._codec = RowCodec(pa.schema([other.column(name).with_nullable(True) for name in self._names]))
        self._stored = context.get_state(BroadcastStateDescriptor("one_row", pa.binary(), pa.int64()))

    # -- the one row -------------------------------------------------------------------------------------

    def process_broadcast(self, rows: Bundle, ctx: BundleContext) -> Iterator[None] | None:
        old, before = self._one_row(), dict(self._stored.entries())
        left = self._netted(rows, before)
        if sum(left.values()) > 1:
            raise OperatorError(
                f"{self.owner}: the second input has {sum(left.values())} rows, but may have one; aggregate them "
                "without a key, or use Join"
            )
        self._stored.clear()
        self._stored.put_all(left)
        return None if before == left else self._move(old, self._one_row(), ctx)

    def _netted(self, rows: Bundle, before: Mapping[bytes, int]) -> dict[bytes, int]:
        """How often each row of the second input is there after ``rows``; retractions of others are counted."""
        stored = list(before)
        given = [_canonical(rows.batch.column(name)) for name in self._names]
        known = self._codec.decode(stored)[0] if stored else [pa.nulls(0, column.type) for column in given]
        ids = row_ids(concat_rows(known, given), np.zeros(len(stored) + rows.num_rows, np.int64))
        net = net_by_content(ids[: len(stored)], ids[len(stored) :], rows.accumulate)
        if self._is_first:  # every partition gets these rows
            self._missing.add(net.missing, rows)
        values = self._codec.encode(given, num_rows=rows.num_rows)
        kept = [value for value, gone in zip(stored, net.removed.tolist(), strict=True) if not gone]
        return dict(Counter([*kept, *(values[at] for at in net.added.tolist())]))

    def _one_row(self) -> OneRow:
        stored = list(self._stored.keys())
        return self._codec.decode(stored)[0] if stored else None

    def _move(self, old: OneRow, new: OneRow, ctx: BundleContext) -> Iterator[None]:
        """Emit the rows that another one row changes, page by page."""
        for first, last in self.affected(old, new):
            for found in self._rows.up_to(last, first):
                columns = self._payload.row([*take_rows(found.key_columns, found.lists), *found.columns])
                self._emit_changes(columns, old, new, ctx)
                yield None

    def _emit_changes(self, columns: list[pa.Array], old: OneRow, new: OneRow, ctx: BundleContext) -> None:
        (was, before), (comes, after) = self.shown(columns, old), self.shown(columns, new)
        if was is not None and comes is not None:  # a row that is emitted either way stays as it is
            was, comes = was & ~comes, comes & ~was
        self._emit(before, was, RowKind.DELETE, ctx)
        self._emit(after, comes, RowKind.INSERT, ctx)

    def _emit(
        self, columns: list[pa.Array], chosen: BoolArray | None, kind: RowKind, ctx: BundleContext
    ) -> None:
        if chosen is not None and not chosen.all():
            columns = take_rows(columns, np.flatnonzero(chosen))
        if columns and len(columns[0]):
            ctx.emit(columns, kind)

    # -- rows --------------------------------------------------------------------------------------------

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None] | None:
        """Handle the rows of one input."""
        counted = self.counted(bundle.batch.columns)
        rows = np.arange(bundle.num_rows) if counted is None else np.flatnonzero(counted)
        rows = self.without_settled(bundle, rows, ctx)
        if not len(rows):
            return None
        columns = take_rows(bundle.batch.columns, rows)
        owners = bundle.keys.inverse[rows]
        pairs = bundle.keys.in_namespaces(self.codes(columns), owners)
        read = self._rows.async_read(pairs)
        return read.then_accept(lambda found: self._change(bundle, rows, columns, pairs, *found, ctx))

    def _change(
        self,
        bundle: Bundle,
        rows: Int64Array,
        columns: list[pa.Array],
        pairs: KeyBatch,
        heads: ListHeads,
        stored: ListColumns,
        ctx: BundleContext,
    ) -> None:
        """Store the rows (m), and emit those that pass."""
        keys, owners = take_rows(pairs.columns, stored.key_index), stored.key_index.astype(np.int64)
        old = self._payload.row([*keys, *stored.columns])
        content = [concat_rows([old[at]], [columns[at]])[0] for at in self._content]
        ids = row_ids(content, np.concatenate([owners, pairs.inverse]))
        accumulate = bundle.accumulate[rows]
        net = net_by_content(ids[: len(owners)], ids[len(owners) :], accumulate, refresh=self._refresh)
        self._missing.add(rows[net.missing], bundle)
        come, gone = take_rows(columns, net.added), take_rows(old, np.flatnonzero(net.removed))
        added_owners = pairs.inverse[net.added].astype(np.int64)
        if net.removed.any():
            kept = np.flatnonzero(~net.removed)
            all_owners = np.concatenate([owners[kept], added_owners])
            order = rows_by(all_owners)
            left = take_rows(concat_rows(take_rows(old, kept), come), order)
            self._rows.put(pairs, [left[at] for at in self._payload.indices], all_owners[order], heads)
        elif len(net.added):
            order = rows_by(added_owners)
            new = take_rows([come[at] for at in self._payload.indices], order)
            self._rows.append(pairs, new, added_owners[order], heads)
        one = self._one_row()
        for part, kind in ((gone, RowKind.DELETE), (come, RowKind.INSERT)):
            chosen, shown = self.shown(part, one)
            self._emit(shown, chosen, kind, ctx)


def _canonical(column: pa.Array) -> pa.Array:
    """The column with the same bytes for equal floats."""
    if not pa.types.is_floating(column.type):
        return column
    values = canonical_floats(to_storage(column))
    return pa.array(values, column.type, mask=column.is_null().to_numpy(False))
