"""Frames in any order of rows: all rows of a key are kept, and the result is kept up to date.

Owns: ``RetractableRows``.
Invariant: after every bundle the netted output is that of a query over the remaining rows.
Must not import anything of ``asyncstate`` but ``changelog``, ``futures``, ``operator`` and ``state``.

Source: Flink's ``NonTimeRangeUnboundedPrecedingFunction`` and related classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.times import event_times
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, OperatorContext
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnStateDescriptor

from ..aggregate.user.user_function import Frames
from ..core.arrays import (
    BoolArray,
    Int64Array,
    concat_rows,
    index_among,
    int64_values,
    places_of,
    row_ids,
    take_rows,
)
from ..core.consolidation import net_by_content
from ..core.row_kinds import arrival_order, distinct
from ..core.sort_orders import OrderColumn, order_codes, sorted_by
from ..core.stored_columns import StoredColumns
from .frames import Frame, Ordered, rows_in_range
from .over_functions import Places
from .over_plan import OverPlan, Values
from .unbounded import changes_of, with_places


class _Table(NamedTuple):
    """m rows of u keys, by key and then by arrival: their columns and the index of their key (m, ascending)."""

    columns: list[pa.Array]
    owners: Int64Array


class RetractableRows:
    """State ``rows``: all rows of each key, in order of arrival, without the columns of the key."""

    def __init__(
        self,
        plan: OverPlan,
        frame: Frame,
        order: Sequence[OrderColumn],
        emit_update_before: bool,
        context: OperatorContext,
    ) -> None:
        spec = context.inputs[0]
        self._plan = plan
        self._frame = frame
        self._order = order
        self._emit_update_before = emit_update_before
        self._schema = spec.schema
        self._content = [at for at, name in enumerate(spec.schema.names) if name not in spec.sequence]
        # The sequence is part of the row, so one that comes again replaces its equal, however bundles are cut.
        self._refresh = bool(spec.sequence)
        self._payload = StoredColumns(spec, at_least_one=True)
        self._missing = context.missing_rows()
        self._state = context.get_state(
            ListColumnStateDescriptor("rows", pa.schema(self._payload.fields), fixed_fields=True)
        )

    def process(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """Update the frames of the bundle's keys and emit the changed rows."""
        return self._state.async_read(bundle.keys).then_compose(lambda read: self._change(bundle, *read, ctx))

    def clean_up(self, ctx: BundleContext) -> None:
        """See ``OverAggregate``: all rows are kept."""

    def _change(
        self, bundle: Bundle, heads: ListHeads, stored: ListColumns, ctx: BundleContext
    ) -> StateFuture[None]:
        owners = stored.key_index.astype(np.int64)
        keys = take_rows(bundle.keys.columns, owners)
        old = _Table(self._payload.row([*keys, *stored.columns]), owners)
        removed, added = self._net(bundle, old)
        kept = np.flatnonzero(~removed)
        new_owners = np.concatenate([owners[kept], bundle.keys.inverse[added]]).astype(np.int64)
        come = take_rows(bundle.batch.columns, added)
        order = rows_by(new_owners)
        columns = take_rows(concat_rows(take_rows(old.columns, kept), come), order)
        new = _Table(columns, new_owners[order])
        self._store(bundle, heads, old, new, removed, added)
        place = places_of(order)
        return self._async_results(old, bundle.keys, ctx).then_compose(
            lambda before: self._async_results(new, bundle.keys, ctx).then_accept(
                lambda after: self._emit(bundle, old, new, before, after, kept, place, ctx)
            )
        )

    def _net(self, bundle: Bundle, old: _Table) -> tuple[BoolArray, Int64Array]:
        """The stored rows to remove, as a mask, and the indices of the bundle's rows to add."""
        stored = [old.columns[at] for at in self._content]
        rows = [bundle.batch.column(at) for at in self._content]
        count = len(old.owners)
        ids = row_ids(concat_rows(stored, rows), np.concatenate([old.owners, bundle.keys.inverse]))
        net = net_by_content(ids[:count], ids[count:], bundle.accumulate, refresh=self._refresh)
        self._missing.add(net.missing, bundle)
        return net.removed, net.added

    def _store(
        self,
        bundle: Bundle,
        heads: ListHeads,
        old: _Table,
        new: _Table,
        removed: BoolArray,
        added: Int64Array,
    ) -> None:
        if removed.any():
            columns = [new.columns[index] for index in self._payload.indices]
            self._state.put(bundle.keys, columns, new.owners, heads)
        elif len(added):
            owners = bundle.keys.inverse[added]
            order = rows_by(owners)
            columns = [bundle.batch.column(index) for index in self._payload.indices]
            self._state.append(bundle.keys, take_rows(columns, added[order]), owners[order], heads)

    # -- results -----------------------------------------------------------------------------------------

    def _async_results(
        self, table: _Table, keys: KeyBatch, ctx: BundleContext
    ) -> StateFuture[list[pa.Array]]:
        """A future of the aggregates of each row (m)."""
        names = self._schema.names
        codes = order_codes([table.columns[names.index(one.column)] for one in self._order], self._order)
        order = sorted_by(codes, major=table.owners, minor=[np.arange(len(table.owners))])
        starts = np.searchsorted(table.owners[order], np.arange(len(keys) + 1))
        batch = pa.RecordBatch.from_arrays(take_rows(table.columns, order), schema=_nullable(self._schema))
        rows = Ordered(batch, starts, changes_of([code[order] for code in codes], starts), keys.columns)
        first, last = self._bounds(rows)
        filled = first <= last
        frames = Frames(first[filled], last[filled], rows.owners[filled])
        values = self._plan.async_values(rows, frames, self._plan.nothing(len(keys)), ctx)
        none, at = np.zeros(len(keys), np.int64), np.arange(batch.num_rows)
        places = Places(rows, at, none, none, first, last)
        indices = pa.array(places_of(order))

        def columns_of(found: Values) -> list[pa.Array]:
            columns = with_places(self._with_empty(found, filled), self._plan, places)
            return [column.take(indices) for column in columns]

        return values.then_apply(columns_of)

    def _with_empty(self, found: Values, filled: BoolArray) -> Values:
        """The values of the frames that are ``filled`` (n) with those of the empty ones."""
        if filled.all():
            return found
        rows = pa.array(np.where(filled, index_among(filled), int(filled.sum())))
        pairs = zip(found.columns, self._plan.of_nothing(), strict=True)
        columns = [
            None if column is None or empty is None else pa.concat_arrays([column, empty]).take(rows)
            for column, empty in pairs
        ]
        return found._replace(columns=columns)

    def _bounds(self, rows: Ordered) -> tuple[Int64Array, Int64Array]:
        """The first and the last row (n) of each row's frame; it is empty where the first comes after the last."""
        before, after, at = self._frame.before, self._frame.after, np.arange(rows.batch.num_rows)
        begins = np.repeat(rows.starts[:-1], rows.sizes)
        ends = np.repeat(rows.starts[1:], rows.sizes) - 1
        if self._frame.unit == "rows":
            first = begins if before is None else np.maximum(at - before, begins)
            return first, ends if after is None else np.minimum(at + after, ends)
        values = self._values(rows) if self._frame.by_value else at
        if before == 0:
            first = np.maximum.accumulate(np.where(rows.differs, at, 0))
        else:
            first = begins if before is None else rows_in_range(rows.starts, values, -before, inclusive=False)
        if after == 0:
            return first, rows.last_peers
        if after is None:
            return first, ends
        return first, rows_in_range(rows.starts, values, after, inclusive=True) - 1

    def _values(self, rows: Ordered) -> Int64Array:
        """The numbers (n), ascending, that define a range; rows without a value count only for each other, so they get
        the smallest or largest number, according to the order of nulls."""
        (order,) = self._order
        column, ends = rows.batch.column(order.column), np.iinfo(np.int64)
        without = ends.min if order.nulls_first else ends.max
        numbers = event_times(column) if pa.types.is_timestamp(column.type) else int64_values(column)
        if order.descending:
            numbers = -np.maximum(numbers, ends.min + 1)
        return np.where(column.is_null(), without, numbers)

    def _emit(
        self,
        bundle: Bundle,
        old: _Table,
        new: _Table,
        before: list[pa.Array],
        after: list[pa.Array],
        kept: Int64Array,
        place: Int64Array,
        ctx: BundleContext,
    ) -> None:
        """Emit -D and -U of old rows, then +U and +I of new ones, key by key; ``place``: the positions, among the new
        rows, of the rows that were ``kept`` (indices of old rows) and of the added ones."""
        stays = place[: len(kept)]
        changed = distinct(take_rows(before, kept), take_rows(after, stays), len(kept))
        goes = np.ones(len(old.owners), np.bool_)
        goes[kept[~changed]] = False
        comes = np.ones(len(new.owners), np.bool_)
        comes[stays[~changed]] = False
        minus = np.full(len(old.owners), RowKind.DELETE, np.int8)
        minus[kept] = RowKind.UPDATE_BEFORE
        plus = np.full(len(new.owners), RowKind.INSERT, np.int8)
        plus[stays] = RowKind.UPDATE_AFTER
        if not self._emit_update_before:
            goes[kept] = False
        columns = concat_rows(
            take_rows([*old.columns, *before], np.flatnonzero(goes)),
            take_rows([*new.columns, *after], np.flatnonzero(comes)),
        )
        kinds = np.concatenate([minus[goes], plus[comes]])
        owners = np.concatenate([old.owners[goes], new.owners[comes]])
        order = rows_by(places_of(arrival_order(bundle.keys))[owners])
        ctx.emit(take_rows(columns, order), kinds[order])


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])
