"""Rows of one join input that match nothing, because a column of their key is null, and that are padded nevertheless.

Owns: ``NullKeySide``, which stores them, and ``NullKeyRows``, what a bundle changes of them.
Invariant: a change of such a row retracts what was emitted for it, although the change does not show that: an upsert
has only the new row, and with a ``sequence`` a retraction differs from its row. Where a retraction is equal to its row,
nothing is stored.
Must not know of join types.

A null key may have any number of rows, so they are stored in short lists, by the key and a digest of what identifies
a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncstate.changelog import accumulates
from asyncstate.codec import KeyBatch
from asyncstate.futures import StateFuture
from asyncstate.operator import Bundle, InputSpec, OperatorContext
from asyncstate.state.columnar.list_columns import ListColumnStateDescriptor
from asyncstate.state.expiring.ttl import StateTtl

from ..core.arrays import Int64Array, concat_rows, row_ids, take_rows
from ..core.consolidation import ConsolidatedRows, Identified, net_by_content, net_by_upsert_key
from ..core.operator_checks import check_one_change
from ..core.row_digests import has_digest, row_digests
from .delta_rows import DeltaRows, changes_of
from .sides import Added, ListSide, Own


@dataclass(frozen=True)
class NullKeyRows:
    """The ``rows`` (n, indices into a bundle) with null keys, what is stored for their ``keys``, and the net change."""

    rows: Int64Array
    keys: KeyBatch
    own: Own
    changes: DeltaRows


class NullKeySide:
    """The rows with null keys of one input.

    ``unique``: the columns that identify a row in addition to the key, None if all but the ``sequence`` do.
    """

    def __init__(
        self,
        name: str,
        spec: InputSpec,
        unique: Sequence[str] | None,
        context: OperatorContext,
        ttl: StateTtl | None,
        owner: str,
    ) -> None:
        names = spec.schema.names
        self._spec = spec
        self._owner = owner
        self._content = [at for at, column in enumerate(names) if column not in spec.sequence]
        self._unique = None if unique is None else [names.index(column) for column in unique]
        identity = self._content if self._unique is None else self._unique
        self._digested = [at for at in identity if has_digest(spec.schema.field(at).type)]
        state = context.get_state(ListColumnStateDescriptor(name, spec.schema, time_first=True, ttl=ttl))
        self._lists = ListSide(name, spec.schema, context, ttl, state)

    def async_change(self, bundle: Bundle, rows: Int64Array) -> StateFuture[NullKeyRows]:
        """A future of what ``rows`` of a bundle change."""
        names = [self._spec.schema.field(at).name for at in self._digested]
        digested = take_rows([bundle.batch.column(at) for at in self._digested], rows)
        codes = row_digests(digested, names)[:, 0] if names else np.zeros(len(rows), np.int64)
        keys = bundle.keys.in_namespaces(codes, bundle.keys.inverse[rows])
        read = self._lists.async_own(keys, np.ones(len(keys), np.bool_), counts=False)
        return read.then_apply(
            lambda own: NullKeyRows(rows, keys, own, self._changes(bundle, rows, keys, own))
        )

    def apply(self, bundle: Bundle, alone: NullKeyRows) -> None:
        """Store the change."""
        added = alone.rows[alone.changes.added]
        self._lists.apply(
            alone.keys,
            alone.own,
            alone.changes.removed,
            Added(
                take_rows(bundle.batch.columns, added),
                alone.keys.inverse[alone.changes.added].astype(np.int64),
                self._lists.stamps_of(bundle, added),
            ),
        )

    def _changes(self, bundle: Bundle, rows: Int64Array, keys: KeyBatch, own: Own) -> DeltaRows:
        kinds, size = bundle.kinds[rows], own.rows.num_rows
        columns = concat_rows(own.rows.columns, take_rows(bundle.batch.columns, rows))
        groups = np.concatenate([own.rows.key_index, keys.inverse]).astype(np.int64)
        content = row_ids([columns[at] for at in self._content], groups)
        net: ConsolidatedRows
        if self._unique is None:
            net = net_by_content(content[:size], content[size:], accumulates(kinds), refresh=True)
            # Like that of a row which is not stored, a retraction without its row is accepted unchecked.
            return changes_of(net, kinds, replaces=True, believes=True)
        both = Identified(row_ids([columns[at] for at in self._unique], groups), content)
        check_one_change(bundle, both.ids[size:], content[size:], self._spec, self._owner, rows)
        stored, new = both.slice(0, size), both.slice(size, len(content))
        net = net_by_upsert_key(stored, new, accumulates(kinds), refresh=True)
        return changes_of(net, kinds, replaces=True, believes=False)
