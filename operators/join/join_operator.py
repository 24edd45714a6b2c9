"""Join: the regular (unwindowed) join of two inputs, both of which may be changelogs.

Owns: the operator: its checks, its reads and writes. ``rules`` and ``matches`` define the output, ``delta_rows``
what a bundle changes, ``sides`` how rows are stored.
Invariant: after every bundle the netted output is the join of the two tables seen so far.
Must not import anything of ``asyncstate`` but ``changelog``, ``operator``, ``state``, ``futures``, ``codec``,
``errors``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import Changelog, ChangelogMode, accumulates
from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.errors import SchemaError
from asyncstate.futures import StateFuture, combine_all
from asyncstate.growth import WITH_KEYS, StateGrowth, bounded_by, most, with_rows
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec
from asyncstate.program_text import said
from asyncstate.state.columnar.list_columns import ListColumns
from asyncstate.state.expiring.ttl import Ttl, as_bundle_ttl

from ..core.arrays import BoolArray, Int64Array, concat_rows, row_ids, take_rows
from ..core.consolidation import Identified, net_by_content, net_by_unique_key, net_by_upsert_key
from ..core.operator_checks import check_distinct_names, check_one_change
from ..core.row_digests import has_digest
from .delta_rows import DeltaRows, changes_of, insertions
from .join_inputs import JoinCondition, TwoInputJoin, joined_changes, matching
from .long_lists import LongLists
from .matches import (
    JoinRows,
    Matches,
    Residual,
    equal_keys,
    join,
    marked,
    marked_again,
    oriented,
    partners,
)
from .null_key_rows import NullKeyRows, NullKeySide
from .rules import JoinKind, rules
from .sides import Added, ListSide, Own, Rows, SideState, UniqueSide

UniqueKey = Literal["join_key"] | Sequence[str] | None
"""What identifies a row of an input: the join key alone, columns, or nothing (equal rows may repeat)."""

_SIDES = ("left", "right")


class Join(TwoInputJoin):
    """Rows of two inputs with equal keys (``key`` of the inputs), and where ``condition`` holds.

    Example, auctions with their sellers, both with key ``seller`` / ``id``::

        Join("inner", right_unique="join_key", condition=pc.field("category") == 10)

    ``kind``: inner, left, right, full, semi (left rows that have a partner), anti (those that have none) or mark (left
    rows, each with a boolean column ``mark``: whether it has a partner).
    ``condition``: a pyarrow expression over the joined columns, or a function of a RecordBatch of joined
    candidate rows to a boolean array; null is not true. ``left_unique`` / ``right_unique``: what identifies a
    row of that input; ``"join_key"`` is the cheapest state, None (the default) always correct. A row whose
    unique key is stored already replaces the previous row; a retraction removes only a row that is equal to it in all
    columns but those of the input's ``sequence``. ``suffixes`` are appended to column names that both inputs have.
    A null in the key matches nothing, with ``null_safe`` it matches null. ``null_aware``, for mark: the mark is null
    where no condition is true, but one is null, as that of SQL's IN, ANY and NOT IN; what is compared has to be in the
    condition then, not in the key.

    Output: left columns, then right columns (semi and anti: left columns; mark: these and the mark): the net change of
    each bundle, first retractions, then additions, each in arrival order of the rows that cause them and of the rows
    that these match.

    * inner: a row's own kind (+U gives +U).
    * left, right, full: +I and -D. A row without partner is padded with nulls; its first partner retracts the
      padded row (-D) before it adds the pair, the retraction of its last partner adds the padded row again (+I).
    * semi, anti: the left row's own kind when it arrives; +I or -D when right rows change the answer.
    * mark: the left row's own kind when it arrives; -D and +I when right rows change its mark.

    A retraction of a row that is not there is dropped and counted (``retractions_without_state``). Rows with
    a null key never match. Where they are padded, those of upserts and of a changelog with a ``sequence`` are stored by
    themselves (``left_alone``, ``right_alone``), since a change of one does not show what was emitted; others are not
    stored, and a retraction is accepted unchecked.

    ``left_ttl`` and ``right_ttl``: how long a row of that input is kept. A row that has expired is not there: it
    matches nothing and does not count as a partner. Expiry itself emits nothing, so a retraction that finds no row on a
    side with a ttl is accepted and counted (``retractions_of_expired_rows``): it retracts what its row has made
    together with the rows of the other side that are still there. With a ttl, a stored row that is retracted and
    arrives again unchanged is stored and emitted again, so that what it keeps alive stays alive.

    State: ``left`` and ``right``: all columns of the rows, under the join key: a list of rows, or one row
    where the key is unique. A bundle reads the other side's rows for its keys, and of its own side the sizes
    only, unless it retracts or replaces rows or a condition needs to know who had a partner before. Partners
    are counted again from the rows, so no association counts are stored. A key that loses one of more than 1,024 rows
    has an entry a row from then on (``left_by_row``, ``right_by_row``), so that a change costs what it changes.

    Source: Flink's ``StreamingJoinOperator``, ``StreamingSemiAntiJoinOperator`` and their mini-batch forms.
    """

    def __init__(
        self,
        kind: JoinKind = "inner",
        condition: JoinCondition | None = None,
        *,
        left_unique: UniqueKey = None,
        right_unique: UniqueKey = None,
        suffixes: tuple[str, str] = ("", "_right"),
        null_safe: bool = False,
        left_ttl: Ttl = None,
        right_ttl: Ttl = None,
        mark: str = "mark",
        null_aware: bool = False,
    ) -> None:
        super().__init__(kind, condition, suffixes, null_safe, get_args(JoinKind))
        self.mark = mark
        self.null_aware = null_aware
        if null_aware and (kind != "mark" or condition is None):
            raise SchemaError(
                f"{self.owner}: null_aware is for the kind 'mark' with a condition, whose null is unknown; give both"
            )
        self.unique = tuple(
            _unique(key, side, self.owner)
            for key, side in zip((left_unique, right_unique), _SIDES, strict=True)
        )
        self.ttl = (
            as_bundle_ttl(self.owner, left_ttl, "left_ttl"),
            as_bundle_ttl(self.owner, right_ttl, "right_ttl"),
        )

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """Left columns, then right columns; only the left ones for semi and anti."""
        shown = self._output_schema(inputs)
        for unique, spec in zip(self.unique, inputs, strict=True):
            for column in unique if isinstance(unique, tuple) else ():
                spec.column(column)
        changes = self._output_changes(inputs, shown)
        if self.kind == "mark":
            check_distinct_names([*shown.names, self.mark], self.owner)
            shown = shown.append(pa.field(self.mark, pa.bool_(), nullable=self.null_aware))
        return OutputSpec(shown, changes=changes)

    def _output_changes(self, inputs: Sequence[InputSpec], shown: pa.Schema) -> Changelog:
        # New rows make pairs, and let a left row be shown; where one is padded or left out they retract it.
        only_adds = self.kind in ("inner", "semi") and not any(spec.changelog for spec in inputs)
        mode = ChangelogMode.INSERT_ONLY if only_adds else ChangelogMode.RETRACT
        return joined_changes(mode, self.kind, inputs, shown)

    def takes_upserts(self, inputs: Sequence[InputSpec]) -> Sequence[bool]:
        """By the unique keys, which include the join key: a row with another join key is another row."""
        return [
            unique is not None and spec.changes.upserts_by({*spec.key, *_columns_of(unique)})
            for unique, spec in zip(self.unique, inputs, strict=True)
        ]

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``."""
        unique = {f"{side}_unique": said(key) for side, key in zip(_SIDES, self.unique, strict=True)}
        aware = {"null_aware": said(self.null_aware)} if self.kind == "mark" else {}
        return {**super().state_meaning(inputs), **unique, **aware}

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: that of the input whose rows are kept longest."""
        return most(
            bounded_by("ttl")
            if ttl is not None
            else WITH_KEYS
            if unique == "join_key"
            else with_rows(spec.changelog)
            for ttl, unique, spec in zip(self.ttl, self.unique, inputs, strict=True)
        )

    def unique_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """The columns of the unique keys."""
        return [None if unique is None else _columns_of(unique) for unique in self.unique]

    def open(self, context: OperatorContext) -> None:
        """Declare state with ``context.get_state``."""
        self._inputs = tuple(context.inputs)
        self._states: tuple[SideState, ...] = tuple(
            (UniqueSide if unique == "join_key" else ListSide)(name, spec.schema, context, ttl)
            for name, unique, spec, ttl in zip(_SIDES, self.unique, self._inputs, self.ttl, strict=True)
        )
        self._alone = tuple(self._null_key_side(side, context) for side in range(2))
        for side in range(2):  # after the states of older checkpoints
            self._use_long_lists(side, context)
        self._missing = context.missing_rows()
        self._expired = context.counter("retractions_of_expired_rows")
        self._residual = self._condition_over(self._inputs)

    def _use_long_lists(self, side: int, context: OperatorContext) -> None:
        """Where rows go or change, no bundle needs all rows of its own keys, and equal rows are alike: with a ttl or a
        sequence each has its own time or number."""
        state, unique, spec = self._states[side], self.unique[side], self._inputs[side]
        needs_all = rules(self.kind, side).watch and self.condition is not None
        if not isinstance(state, ListSide) or self.ttl[side] is not None or not spec.changelog or needs_all:
            return
        if isinstance(unique, tuple) or not spec.sequence:
            identity = unique if isinstance(unique, tuple) else tuple(spec.schema.names)
            if all(has_digest(spec.schema.field(name).type) for name in identity):
                state.use_long_lists(LongLists(_SIDES[side], spec.schema, identity, context))

    def _null_key_side(self, side: int, context: OperatorContext) -> NullKeySide | None:
        """Where rows with null keys are emitted, and a change of one does not show what was emitted for it."""
        spec, unique = self._inputs[side], self.unique[side]
        by_key = spec.changes.is_upsert
        if self.null_safe or not rules(self.kind, side).unmatched:
            return None
        if not by_key and not (spec.changelog and spec.sequence):
            return None
        columns = _columns_of(unique) if by_key and unique is not None else None
        name = f"{_SIDES[side]}_alone"
        return NullKeySide(name, spec, columns, context, self.ttl[side], self.owner)

    # -- one bundle ---------------------------------------------------------------------------------

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""
        keys, _ = self._matchable(bundle)
        if len(keys):
            self._states[1 - bundle.input_index].prefetch(keys)
            if self._reads_own(bundle):
                self._states[bundle.input_index].prefetch(keys)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None]:
        """Handle the rows of one input."""
        side = bundle.input_index
        keys, row_keys = self._matchable(bundle)
        full = self._full(bundle, len(keys), row_keys)
        watch = rules(self.kind, side).watch
        others = self._states[1 - side].async_rows(keys)
        rows = Rows(bundle.batch.columns, row_keys)
        own = self._states[side].async_own(keys, full, watch, rows)
        alone, never = self._alone[side], np.flatnonzero(row_keys < 0)
        if alone is None or not len(never):
            return others.then_combine(
                own, lambda found, mine: self._join(bundle, keys, row_keys, found, mine, None, ctx)
            )
        return combine_all(others, own, alone.async_change(bundle, never)).then_accept(
            lambda read: self._join(bundle, keys, row_keys, *read, ctx)
        )

    def _matchable(self, bundle: Bundle) -> tuple[KeyBatch, Int64Array]:
        """The keys that can match, and the index of each row's key among them (-1: it never matches)."""
        return matching(bundle.keys, self.null_safe)

    def _replaces(self, side: int) -> bool:
        """True where an accumulated row may replace a stored one."""
        return self.unique[side] is not None and self._inputs[side].changelog

    def _reads_own(self, bundle: Bundle) -> bool:
        """True where a bundle needs more of its own side than a blind write."""
        side = bundle.input_index
        blind = self.unique[side] == "join_key" and not self._replaces(side) and bundle.insert_only
        return not blind or rules(self.kind, side).watch

    def _full(self, bundle: Bundle, num_keys: int, row_keys: Int64Array) -> BoolArray:
        """The keys whose own rows must be read: some may be removed, or the condition needs their partners."""
        side = bundle.input_index
        if self._replaces(side) or (rules(self.kind, side).watch and self.condition is not None):
            return np.ones(num_keys, np.bool_)
        full = np.zeros(num_keys, np.bool_)
        if not bundle.insert_only:
            retracted = row_keys[~bundle.accumulate]
            full[retracted[retracted >= 0]] = True
        return full

    def _join(
        self,
        bundle: Bundle,
        keys: KeyBatch,
        row_keys: Int64Array,
        found: ListColumns,
        own: Own,
        alone: NullKeyRows | None,
        ctx: BundleContext,
    ) -> None:
        side = bundle.input_index
        rule = rules(self.kind, side)
        matchable = np.flatnonzero(row_keys >= 0)
        changes = self._changes(bundle, matchable, row_keys, own)
        self._count(bundle, side, matchable[changes.missing])
        probe, kinds = _probe(bundle, matchable, row_keys, own, changes, rule.unmatched, alone)
        others = JoinRows(found.columns, found.key_index)
        residuals = self._residuals(side)
        candidates = equal_keys(probe, others, len(keys))
        found_pairs = [Matches(probe, others, candidates, residual) for residual in residuals]
        before = None
        if rule.watch:
            expired = matchable[changes.believed]
            gone = JoinRows(take_rows(bundle.batch.columns, expired), row_keys[expired])
            before = [self._partners_before(own, gone, others, len(keys), one) for one in residuals]
        if self.kind == "mark":
            self._emit_marked(probe if side == 0 else others, kinds, found_pairs, before, ctx)
        else:
            for emission in join(rule, kinds, found_pairs[0], None if before is None else before[0]):
                mine, theirs = (probe.columns, emission.probe), (others.columns, emission.other)
                self._emit(side, mine, theirs, emission.kinds, ctx)
        added = matchable[changes.added]
        state = self._states[side]
        columns = take_rows(bundle.batch.columns, added)
        rows = Added(columns, row_keys[added], state.stamps_of(bundle, added), added)
        state.apply(keys, own, changes.removed, rows)
        if alone is not None:
            self._apply_alone(bundle, alone)

    def _apply_alone(self, bundle: Bundle, alone: NullKeyRows) -> None:
        side = bundle.input_index
        unmatched = alone.changes.missing[~np.isin(alone.changes.missing, alone.changes.believed)]
        self._count(bundle, side, alone.rows[unmatched])
        state = self._alone[side]
        assert state is not None
        state.apply(bundle, alone)

    def _residuals(self, side: int) -> list[Residual | None]:
        """Which pairs match, if rows of ``side`` drive, and if the mark is null-aware of which that is unknown."""
        found = [oriented(self._residual, side)]
        if self.null_aware:
            assert self._residual is not None
            found.append(oriented(self._residual.unknown, side))
        return found

    def _emit_marked(
        self,
        rows: JoinRows,
        kinds: npt.NDArray[np.int8],
        found: Sequence[Matches],
        before: Sequence[Int64Array] | None,
        ctx: BundleContext,
    ) -> None:
        parts = marked(kinds, found) if before is None else [marked_again(kinds, found, before)]
        for part in parts:
            if len(part.rows):
                ctx.emit([*take_rows(rows.columns, part.rows), part.marks], part.kinds)

    def _count(self, bundle: Bundle, side: int, missing: Int64Array) -> None:
        if self.ttl[side] is None:
            self._missing.add(missing, bundle)
        else:
            self._expired.add(len(missing))

    def _changes(self, bundle: Bundle, matchable: Int64Array, row_keys: Int64Array, own: Own) -> DeltaRows:
        """The net change of the rows that can match (indices into ``matchable``)."""
        side, stored = bundle.input_index, own.rows
        kinds = bundle.kinds[matchable]
        if bundle.insert_only and not self._replaces(side):
            return insertions(kinds, stored.num_rows)
        columns = [
            pa.concat_arrays([old, new])
            for old, new in zip(stored.columns, take_rows(bundle.batch.columns, matchable), strict=True)
        ]
        groups = np.concatenate([stored.key_index, row_keys[matchable]])
        spec = self._inputs[side]
        names, sequence = spec.schema.names, spec.sequence
        content = row_ids(
            [column for column, name in zip(columns, names, strict=True) if name not in sequence], groups
        )
        size, unique = stored.num_rows, self.unique[side]
        expires = self.ttl[side] is not None
        # The sequence is part of the row, so one that comes again replaces its equal, however bundles are cut.
        refresh = expires or bool(sequence)
        if unique is None:
            net = net_by_content(content[:size], content[size:], accumulates(kinds), refresh)
            return changes_of(net, kinds, replaces=bool(sequence), believes=expires)
        chosen = [] if unique == "join_key" else [columns[names.index(name)] for name in unique]
        both = Identified(row_ids(chosen, groups), content)
        if spec.changes.is_upsert:
            check_one_change(bundle, both.ids[size:], content[size:], spec, self.owner, matchable)
            accumulate = accumulates(kinds)
            upserts = net_by_upsert_key(
                both.slice(0, size), both.slice(size, len(content)), accumulate, refresh
            )
            return changes_of(upserts, kinds, replaces=True, believes=False)
        net = net_by_unique_key(
            both.slice(0, size), both.slice(size, len(content)), kinds, refresh, None, bool(sequence)
        )
        return changes_of(net, kinds, replaces=True, believes=expires)

    def _partners_before(
        self, own: Own, expired: JoinRows, others: JoinRows, num_keys: int, residual: Residual | None
    ) -> Int64Array:
        """Partners of each other row before the bundle; rows that seem to have expired count as partners."""
        if residual is not None:
            before = partners(JoinRows(own.rows.columns, own.rows.key_index), others, num_keys, residual)
            return before + partners(expired, others, num_keys, residual)
        assert own.counts is not None
        counts: Int64Array = own.counts + np.bincount(expired.key_index, minlength=num_keys)
        before_bundle: Int64Array = counts[others.key_index]
        return before_bundle


def _probe(
    bundle: Bundle,
    matchable: Int64Array,
    row_keys: Int64Array,
    own: Own,
    changes: DeltaRows,
    with_null_keys: bool,
    alone: NullKeyRows | None,
) -> tuple[JoinRows, npt.NDArray[np.int8]]:
    """The rows that drive the join, with their kinds: the changes and, ``with_null_keys``, rows that never match, whose
    changes are ``alone`` (None: they are not stored). First retractions, then additions, each in order of the rows that
    cause them."""
    num_rows, num_own = bundle.num_rows, own.rows.num_rows
    rows = _placed(changes, matchable, num_rows)
    kinds, at = changes.kinds, matchable[changes.at]
    if alone is not None:
        never = _placed(alone.changes, alone.rows, num_rows + num_own)
        rows, at = np.concatenate([rows, never]), np.concatenate([at, alone.rows[alone.changes.at]])
        kinds = np.concatenate([kinds, alone.changes.kinds])
    elif with_null_keys and len(matchable) < num_rows:
        never = _net_alone(bundle, np.flatnonzero(row_keys < 0))
        rows, at = np.concatenate([rows, never]), np.concatenate([at, never])
        kinds = np.concatenate([kinds, bundle.kinds[never]])
    order = rows_by(accumulates(kinds), at)
    rows, kinds = rows[order], kinds[order]
    columns, key_index = bundle.batch.columns, row_keys
    if bool((rows >= num_rows).any()):
        columns = concat_rows(columns, own.rows.columns)
        key_index = np.concatenate([row_keys, own.rows.key_index])
        if alone is not None:
            columns = concat_rows(columns, alone.own.rows.columns)
            key_index = np.append(key_index, np.full(alone.own.rows.num_rows, -1))
    return JoinRows(take_rows(columns, rows), key_index[rows]), kinds


def _placed(changes: DeltaRows, rows: Int64Array, offset: int) -> Int64Array:
    """The driving rows of the changes that ``rows`` (n) of a bundle make, as indices: of the bundle, or from ``offset``
    on of the stored rows."""
    return np.append(rows, np.arange(len(changes.removed)) + offset)[changes.rows]


def _net_alone(bundle: Bundle, rows: Int64Array) -> Int64Array:
    """Those of ``rows``, which are never stored, that are left when inserts and retractions of equal rows cancel."""
    if bundle.insert_only:
        return rows
    columns = take_rows(bundle.batch.columns, rows)
    ids = row_ids(columns, np.zeros(len(rows), np.int64))
    net = net_by_content(np.empty(0, np.int64), ids, bundle.accumulate[rows])
    left: Int64Array = rows[np.concatenate([net.missing, net.added])]
    return left


def _columns_of(unique: Literal["join_key"] | tuple[str, ...]) -> tuple[str, ...]:
    """The columns that identify a row in addition to the join key."""
    return () if unique == "join_key" else unique


def _unique(key: UniqueKey, side: str, owner: str) -> Literal["join_key"] | tuple[str, ...] | None:
    if key is None or key == "join_key":
        return key
    if isinstance(key, str) or not key or not all(isinstance(name, str) for name in key):
        raise SchemaError(f"{owner}: {side}_unique is {key!r}; give 'join_key', a list of columns, or None")
    return tuple(key)
