"""UpsertMaterialize: changes for a table with a primary key, from a changelog with another upsert key.

Owns: the operator.
Invariant: after every bundle the netted output has for each key the newest of its existing rows, or none.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``errors``.

Source: Flink's ``SinkUpsertMaterializer``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec.sorting import rows_by
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns, ListColumnState, ListColumnStateDescriptor
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..core.arrays import Int64Array, concat_rows, index_among, last_of, row_ids, take_rows
from ..core.consolidation import (
    ConsolidatedRows,
    Identified,
    net_by_content,
    net_by_unique_key,
    net_by_upsert_key,
)
from ..core.expiry_options import concat_stamps, row_stamps
from ..core.operator_checks import KeepsKey, check_one_change, keyed_changes
from ..core.row_kinds import arrival_order, distinct_rows, net_changes, take_changes
from ..core.state_meaning import meaning
from ..core.stored_columns import StoredColumns


class UpsertMaterialize(KeepsKey, BundleOperator):
    """The newest existing row of each key: use it upstream of a table whose primary key is the key.

    It is needed if other columns than the table's key identify the rows of the changelog, for example after a join:
    several rows may then have the same key at once, and their changes reach the table in an arbitrary order, so
    a -U of one row would delete what another row has written. If both keys are the same, leave it out: it only adds
    cost.

    ``upsert_key``: the columns that identify a row of the input within a key; a row replaces the previous one with
    the same values and becomes the newest, a retraction removes the row with the same values, regardless of its other
    columns. None: the whole content identifies a row, and a retraction removes the oldest of equal rows. Upserts
    need the upsert key.

    Output: the input's columns, the net change of a bundle: +I for a key's first row, -U and +U (only +U with
    ``emit_update_before=False``) when another row becomes the newest, -D when the last row is removed. Retractions that
    match no row are dropped and counted (``retractions_without_state``); causes are an expired row, columns that
    differ from run to run, or a wrong upsert key.

    ``ttl``: each row expires separately; expiry emits nothing. With a ttl, a row that arrives again unchanged is
    emitted, too.

    State: ``rows``, a list per key of the non-key columns, the newest row last. A bundle reads and writes the complete
    lists of its keys.

    >>> from asyncstate.testing import OperatorHarness
    >>> orders = pa.schema([("customer", pa.string()), ("order", pa.int64()), ("state", pa.string())])
    >>> with OperatorHarness(UpsertMaterialize(["order"]), orders, ["customer"]) as harness:
    ...     harness.push([("ann", 1, "new"), ("ann", 2, "new")])
    ...     print(harness.end_batch())
    ...     harness.push([("ann", 2, "new")], kinds=["-D"])
    ...     print(harness.end_batch())
    [('+I', 'ann', 2, 'new')]
    [('-U', 'ann', 2, 'new'), ('+U', 'ann', 1, 'new')]
    """

    nets_output = True

    def __init__(
        self,
        upsert_key: Sequence[str] | None = None,
        *,
        emit_update_before: bool = True,
        ttl: Ttl = None,
    ) -> None:
        if upsert_key is not None and (isinstance(upsert_key, str) or not upsert_key):
            raise SchemaError(f"{self.owner}: upsert_key is {upsert_key!r}; give a list of columns, or None")
        self.upsert_key = None if upsert_key is None else tuple(upsert_key)
        self.emit_update_before = emit_update_before
        self.ttl = as_bundle_ttl(self.owner, ttl)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns."""
        spec = inputs[0]
        if not spec.key:
            raise SchemaError(
                f"{self.owner}: {spec.name} has no key; give the primary key of the target table"
            )
        for name in self.upsert_key or ():
            spec.column(name)
        return OutputSpec(spec.schema, changes=keyed_changes(spec, self.emit_update_before))

    def takes_upserts(self, inputs: Sequence[InputSpec]) -> Sequence[bool]:
        """By the upsert key."""
        spec = inputs[0]
        return [self.upsert_key is not None and spec.changes.upserts_by({*spec.key, *self.upsert_key})]

    def unique_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """The columns of the upsert key."""
        return [self.upsert_key]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        return meaning(self, upsert_key=self.upsert_key)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        self._payload = StoredColumns(spec, at_least_one=True)
        names = [field.name for field in self._payload.fields]
        self._unique_at = [names.index(name) for name in self.upsert_key or () if name not in spec.key]
        # The position in the log is not part of a row's content: a retraction has another position.
        self._content_at = [at for at, name in enumerate(names) if name not in spec.sequence]
        self._in_order = bool(spec.sequence)
        self._spec = spec
        self._upserts = spec.changes.is_upsert
        self._missing = context.missing_rows()
        text = "content" if self.upsert_key is None else ", ".join(self.upsert_key)
        self._rows: ListColumnState = context.get_state(
            ListColumnStateDescriptor(
                "rows", pa.schema(self._payload.fields), ttl=self.ttl, belongs_to=("identity", text)
            )
        )

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._rows.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        return self._steps(bundle, ctx) if bundle.num_rows else None

    def _steps(self, bundle: Bundle, ctx: BundleContext) -> Generator[StateFuture[Any], None, None]:
        read = self._rows.async_read(bundle.keys)
        yield read
        self._merge(bundle, *read.get(), ctx)

    def _merge(self, bundle: Bundle, heads: ListHeads, stored: ListColumns, ctx: BundleContext) -> None:
        columns = concat_rows(stored.columns, self._payload.of(bundle.batch))
        key = np.concatenate([stored.key_index, bundle.keys.inverse]).astype(np.int64)
        size = stored.num_rows
        net = self._net(bundle, columns, key, size)
        self._missing.add(net.missing, bundle)
        rows = np.concatenate([np.flatnonzero(~net.removed), size + net.added])
        rows = rows[rows_by(key[rows])]
        changed = np.zeros(len(bundle.keys), np.bool_)
        changed[key[:size][net.removed]] = True
        changed[key[size + net.added]] = True
        if changed.any():
            written = rows[changed[key[rows]]]
            new = row_stamps(self._rows, bundle, self.ttl, np.arange(bundle.num_rows))
            stamps = concat_stamps(stored.stamps, new)
            self._rows.put(
                bundle.keys.select(changed),
                take_rows(columns, written),
                index_among(changed)[key[written]],
                heads.select(changed),
                None if stamps is None else stamps[written],
            )
        count = len(bundle.keys)
        before, after = last_of(key[:size], np.arange(size), count), last_of(key[rows], rows, count)
        self._emit(bundle, columns, before, after, ctx)

    def _net(
        self, bundle: Bundle, columns: Sequence[pa.Array], key: Int64Array, size: int
    ) -> ConsolidatedRows:
        """The net change of the bundle's rows against the ``size`` stored ones, which come first in ``columns``."""
        content = row_ids([columns[at] for at in self._content_at], key)
        if self.upsert_key is None:
            return net_by_content(content[:size], content[size:], bundle.accumulate, refresh=True)
        rows = Identified(row_ids([columns[at] for at in self._unique_at], key), content)
        if self._upserts:
            check_one_change(bundle, rows.ids[size:], content[size:], self._spec, self.owner)
            return net_by_upsert_key(
                rows.slice(0, size), rows.slice(size, len(key)), bundle.accumulate, refresh=True
            )
        return net_by_unique_key(
            rows.slice(0, size),
            rows.slice(size, len(key)),
            bundle.kinds,
            refresh=True,
            in_order=self._in_order,
            by_key=True,
        )

    def _emit(
        self,
        bundle: Bundle,
        columns: Sequence[pa.Array],
        before: Int64Array,
        after: Int64Array,
        ctx: BundleContext,
    ) -> None:
        """Emit the change from the rows ``before`` to those ``after`` (u, -1: none), indices of ``columns``."""
        old, new = take_rows(columns, before), take_rows(columns, after)
        changed = (before >= 0) & (after >= 0) & (before != after)
        if self.ttl is None:  # otherwise an equal row is emitted so that derived rows do not expire
            changed[changed] = distinct_rows(old, new, changed)
        changes = net_changes(
            arrival_order(bundle.keys), before >= 0, after >= 0, changed, self.emit_update_before
        )
        if len(changes.keys):
            rows = take_changes(changes, bundle.keys.columns, old, new)
            ctx.emit(self._payload.row(rows), changes.kinds)
