"""ChangelogNormalize: converts upserts, or a changelog with duplicates, to a full changelog.

Owns: the operator: which row of a bundle counts, and when the condition is evaluated. ``operators.upsert.newest_row``
stores the rows and emits the changes.
Invariant: after every bundle the netted output is the newest row of each key that meets the condition.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors``.

Source: Flink's ``ProcTimeDeduplicateKeepLastRowFunction`` over changelogs, as planned by ``ChangelogNormalize``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from asyncstate.changelog import RowKind
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.columnar.state_columns import Columns
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..core.arrays import BoolArray, Int64Array, last_of, row_ids, run_begins, take_rows
from ..core.condition import ConditionLike, RowCondition, check_condition
from ..core.operator_checks import KeepsKey, check_one_change, check_whole_updates, keyed_changes
from ..core.segments import Groups
from ..core.state_meaning import meaning
from .newest_row import ChosenRows, LatestRows


class ChangelogNormalize(KeepsKey, BundleOperator):
    """A full changelog of the newest row of each key; ``key`` is the primary key of the input.

    >>> import pyarrow as pa
    >>> from asyncstate.testing import OperatorHarness
    >>> users = pa.schema([("id", pa.int64()), ("city", pa.string())])
    >>> with OperatorHarness(ChangelogNormalize(), users, ["id"]) as harness:
    ...     harness.push([(1, "Ulm"), (2, "Jena")], kind="+U")
    ...     print(harness.end_batch())
    ...     harness.push([(1, "Ulm"), (1, "Bonn")], kind="+U")
    ...     harness.push([(2, None)], kind="-D")
    ...     print(harness.end_batch())
    [('+I', 1, 'Ulm'), ('+I', 2, 'Jena')]
    [('-U', 1, 'Ulm'), ('+U', 1, 'Bonn'), ('-D', 2, 'Jena')]

    The input may be upserts (both +I and +U add a row or replace the previous one; a -D needs only correct key
    columns), or the changelog of a source that delivers some changes more than once. Its -U are ignored: the +U after
    it replaces the row. So an update of the key itself must arrive as -D and +I, and a filter belongs downstream of the
    operator or in ``condition``, not upstream, where it could pass a -U and drop its +U. Rows with null in the event
    time never reach the operator: declare no event time if rows of -D have only their key.

    With the input's ``sequence``, rows of a micro-batch may arrive in any order. Without one, the order of arrival
    decides; for an input declared as upserts, different changes of a key in one micro-batch then raise OperatorError.
    With ``drop_stale``, rows that arrive again in a later micro-batch make no change even if there were newer ones.

    ``condition``: a pyarrow expression over the columns, or a function of a RecordBatch to a boolean array; null counts
    as false. Only rows that meet it exist in the output: a row that does not retracts the previous one (-D), and the
    next row that does is +I. The condition is evaluated once per row, on arrival, and never for a -D; stored rows are
    not evaluated again, so a changed condition applies to rows after the restart.

    Output: the input's columns: the net change of a bundle, in order of the keys' first rows in it: +I for a new key,
    -U and +U for another row (only +U with ``emit_update_before=False``), -D with the stored row; nothing if the new
    row equals the old in all columns. A -D of a key without a row is dropped. It is counted (``deletes_without_row``)
    if there is no condition, which would be a valid reason for a missing row. It is no error: it may be a change that
    is delivered again.

    ``ttl``: an expired key counts as unseen. With a ttl, a row that replaces an equal one is stored and emitted, too,
    so that it and the rows derived from it do not expire.

    State: ``rows``, the non-key columns (the key has the others): one row per existing key. Raises SchemaError for a
    condition that does not fit the columns.
    """

    nets_output = True

    def __init__(
        self,
        condition: ConditionLike | None = None,
        emit_update_before: bool = True,
        ttl: Ttl = None,
    ) -> None:
        check_condition(condition, self.owner)
        self.condition = condition
        self.emit_update_before = emit_update_before
        self.ttl = as_bundle_ttl(self.owner, ttl)

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The input's columns."""
        condition = self._condition_on(inputs[0])
        if condition is not None:
            condition.check()
        check_whole_updates(inputs[0], self.owner)
        changes = keyed_changes(inputs[0], self.emit_update_before)
        return OutputSpec(inputs[0].schema, changes=changes)

    def takes_upserts(self, inputs: Sequence[InputSpec]) -> Sequence[bool]:
        """By the key."""
        return [inputs[0].changes.upserts_by(inputs[0].key)]

    def unique_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """None in addition to the key, which identifies a row."""
        return [()]

    def _condition_on(self, spec: InputSpec) -> RowCondition | None:
        if self.condition is None:
            return None
        return RowCondition(self.condition, spec.schema, self.owner, f"columns of {spec.name}")

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: stored rows have been emitted under any earlier condition."""
        return meaning(self)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        self._spec = context.inputs[0]
        self._latest = LatestRows(context.inputs[0], context, self.ttl)
        self._meets = self._condition_on(context.inputs[0])
        self._without_row = context.counter("deletes_without_row")

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        self._latest.prefetch(bundle.keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input."""
        if not bundle.num_rows:
            return None
        if self._spec.changes.is_upsert and len(bundle.keys) < bundle.num_rows:
            keys = bundle.keys.inverse.astype(np.int64)
            content = row_ids(bundle.batch.columns, keys)
            check_one_change(bundle, keys, content, self._spec, self.owner)
        read = self._latest.async_read(bundle)
        chosen = self._choose(bundle)  # while the read is in progress
        return read.then_accept(lambda old: self._normalize(bundle, chosen, old, ctx))

    def _choose(self, bundle: Bundle) -> ChosenRows:
        """The change that the last row of each key makes."""
        rows = np.flatnonzero(bundle.kinds != RowKind.UPDATE_BEFORE)
        last = last_of(bundle.keys.inverse[rows], rows, len(bundle.keys))
        known = last >= 0
        comes = known & bundle.accumulate[last]
        if self._meets is not None and comes.any():
            comes[comes] = self._meets.mask(take_rows(bundle.batch.columns, last[comes]))
        return ChosenRows(last, comes, known & ~comes)

    def _normalize(self, bundle: Bundle, chosen: ChosenRows, old: Columns, ctx: BundleContext) -> None:
        if self._meets is None and not bundle.insert_only:
            self._without_row.add(_deletes_without_row(bundle, old.present))
        self._latest.change(bundle, chosen, old, ctx, self.emit_update_before)


def _deletes_without_row(bundle: Bundle, present: BoolArray) -> int:
    """The number of -D that match no row: their key has none (``present``, u), or another -D precedes them."""
    order: Int64Array = Groups.of(bundle.keys).order
    order = order[bundle.kinds[order] != RowKind.UPDATE_BEFORE]
    ids, added = bundle.keys.inverse[order], bundle.accumulate[order]
    there = np.empty(len(order), np.bool_)
    there[1:] = added[:-1]
    begins = run_begins(ids)
    there[begins] = present[ids[begins]]
    return int(np.count_nonzero(~added & ~there))
