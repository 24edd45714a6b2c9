"""Two-phase aggregation: the columns of partially aggregated (local) rows, and their conversion from and to states.

Owns: ``LocalLayout``.
Invariant: the states gathered from local rows equal those of the input rows, so both ways share one state layout (sums
of floats: up to rounding). Sums of integers and decimals are exact or refused. Local rows from this module and from
Spark SQL are interchangeable.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``partial_aggregation`` and ``operator``.

Source: Flink's ``MiniBatchLocalGroupAggFunction`` and ``MiniBatchGlobalGroupAggFunction``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from asyncstate.changelog import accumulates
from asyncstate.codec import KeyBatch, KeyCodec
from asyncstate.codec.key_batch import UserKeyBatch
from asyncstate.codec.times import event_times
from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import (
    CONDITIONS_MAX,
    LOCAL_MET,
    LOCAL_ROWS,
    LOCAL_SET,
    LocalColumn,
    LocalSlices,
    LocalValues,
    PartialAggregation,
    PartialStep,
    local_columns,
    local_name,
)

from ..core.arrays import Int8Array, Int64Array, valid_rows
from ..core.segments import Groups, group_extreme
from .aggregate_plan import AggregatePlan
from .aggregate_states import LocalValueRows
from .aggregator import MergingAggregator, State, of_groups
from .distinct import DistinctValues

_NO_TIME = np.iinfo(np.int64).min
"""The slice number of rows without an event time."""


class LocalLayout:
    """The partial aggregation's columns for each part of a plan; ``phase`` is None if a part does not support it.

    Parts over distinct values have no columns: their values are separate local rows, and each is passed to the part as
    an input row if it is new to the state.
    """

    def __init__(self, plan: AggregatePlan, changelog: bool, slices: LocalSlices | None = None) -> None:
        self._plan = plan
        self._slices = slices
        columns: list[LocalColumn] = []
        self._indices: list[range] = []
        self._values = _values_of(plan.distincts)
        # A local row of a value does not say how often the value was added and retracted.
        complete = not plan.distincts or (not changelog and self._values is not None)
        for number, (part, source) in enumerate(zip(plan.parts, plan.value_sources, strict=True)):
            own = part.local() if source is None else _none_if(not isinstance(part, MergingAggregator))
            if own is None:
                complete = False
                break
            if number == 0 and not changelog:
                own = ()  # the number of rows, which each local row has anyway
            self._indices.append(range(len(columns), len(columns) + len(own)))
            columns += own
        self.phase = PartialAggregation(tuple(columns), slices, self._values) if complete else None

    def step(self, given: InputSpec) -> PartialStep:
        """Partial aggregation of rows of the input ``given``, by the parts themselves: a row for each key, slice of
        event time and set of values, in order of arrival of the first input row of each."""
        return functools.partial(self._local_rows, given, given.key_codec(1))

    def _local_rows(
        self, given: InputSpec, codec: KeyCodec, batch: pa.RecordBatch, kinds: Int8Array | None
    ) -> pa.RecordBatch:
        if not batch.num_rows:
            return pa.RecordBatch.from_pylist([], given.row_schema)
        added = None if kinds is None else accumulates(kinds)
        signs = None if added is None or added.all() else np.where(added, 1, -1).astype(np.int8)
        keys = codec.group([batch.column(name) for name in given.key], num_rows=batch.num_rows)
        parts = None if given.event_time is None else self._parts(batch.column(given.event_time))
        keys = keys if parts is None else keys.in_namespaces(parts)
        if self._values is None:
            groups = Groups.of(keys)
            return _local_rows_of(given, batch, keys, groups, self._states(batch, signs, groups))
        sets = []
        for at, names in enumerate(self._values.sets):
            pairs = keys.with_user_keys([batch.column(name) for name in names])
            groups = Groups.of(pairs)
            columns = self._states(batch, signs, groups) if at == 0 else _no_rows(len(pairs))
            columns |= _value_columns(batch, pairs, groups, self._values, at)
            sets.append(_local_rows_of(given, batch, pairs, groups, columns))
        return pa.concat_batches(sets)

    def _parts(self, times: pa.Array) -> Int64Array | None:
        """The slice of each row (n), or ``_NO_TIME``; rows of a key in one slice become one. None: all rows do."""
        valid = valid_rows([times])
        if self._slices is not None:
            parts = (event_times(times) - self._slices.offset) // self._slices.step
        elif valid is not None:
            parts = np.zeros(len(times), np.int64)
        else:
            return None
        return parts if valid is None else np.where(valid, parts, _NO_TIME)

    def _states(self, batch: pa.RecordBatch, signs: Int8Array | None, groups: Groups) -> dict[str, pa.Array]:
        """The number of rows of each group (u) and the columns of the parts, by name."""
        columns = {LOCAL_ROWS: pa.array(groups.sizes)}
        for part, own in zip(self._plan.parts, self._indices, strict=True):
            if own:
                assert isinstance(part, MergingAggregator)
                columns |= zip(map(local_name, own), part.partial(batch, signs, groups), strict=True)
        return columns

    def values(self, batch: pa.RecordBatch) -> list[LocalValueRows]:
        """The rows (n) of each set of distinct values."""
        if self._values is None:
            return []
        sets, met = batch.column(LOCAL_SET).to_numpy(), batch.column(LOCAL_MET).to_numpy()
        flags = {name: pa.array((met >> bit) & 1 == 1) for bit, name in enumerate(self._values.conditions)}
        found = []
        for index, names in enumerate(self._values.sets):
            columns = {
                name: batch.column(self._values.column(index, place)) for place, name in enumerate(names)
            }
            rows = pa.RecordBatch.from_pydict({**flags, **columns})
            found.append(LocalValueRows(rows, np.flatnonzero(sets == index)))
        return found

    def gather(
        self,
        batch: pa.RecordBatch,
        groups: Groups,
        values: Sequence[tuple[pa.RecordBatch, Sequence[Int8Array]]] = (),
    ) -> State:
        """The state of each group (u); ``values``: the rows of each set of distinct values, and for each condition
        the signs (n) of the rows, 0 for those that do not count."""
        state: State = []
        for part, own, source in zip(self._plan.parts, self._indices, self._plan.value_sources, strict=True):
            if source is None:
                columns = local_columns(batch, own) if own else [batch.column(LOCAL_ROWS)]
                state += part.gather(columns, groups)
            else:
                rows, signs = values[source[0]]
                assert isinstance(part, MergingAggregator)
                with of_groups(groups):
                    lifted = part.lift(rows, signs[source[1]])
                state += part.combine(lifted, groups)
        return state


def _local_rows_of(
    given: InputSpec, batch: pa.RecordBatch, keys: KeyBatch, groups: Groups, columns: dict[str, pa.Array]
) -> pa.RecordBatch:
    """Local rows (u) with key, event time and these ``columns``; the other columns are null."""
    columns = dict(zip(given.key, keys.columns, strict=False)) | columns  # values come after the key
    if given.event_time is not None and given.event_time not in given.key:
        columns[given.event_time] = group_extreme(batch.column(given.event_time), groups, largest=True)
    schema = given.row_schema
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(len(keys), field.type) for field in schema
    ]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return rows.take(pa.array(np.argsort(keys.first_rows())))


def _value_columns(
    batch: pa.RecordBatch, pairs: UserKeyBatch, groups: Groups, values: LocalValues, at: int
) -> dict[str, pa.Array]:
    """The values (u) of the set ``at``, and the conditions that any row with them meets, by column name."""
    met = np.zeros(len(pairs), np.int64)
    for bit, name in enumerate(values.conditions):
        flags = batch.column(name).fill_null(False).to_numpy(zero_copy_only=False)
        met |= np.logical_or.reduceat(flags[groups.order], groups.starts).astype(np.int64) << bit
    columns = {values.column(at, place): column for place, column in enumerate(pairs.user_columns)}
    sets = pa.array(np.full(len(pairs), at, np.int32))
    return columns | {LOCAL_SET: sets, LOCAL_MET: pa.array(met)}


def _no_rows(size: int) -> dict[str, pa.Array]:
    return {LOCAL_ROWS: pa.array(np.zeros(size, np.int64))}


def _none_if(refused: bool) -> tuple[LocalColumn, ...] | None:
    return None if refused else ()


def _values_of(distincts: Sequence[DistinctValues]) -> LocalValues | None:
    """All distinct values with all of their conditions; None without any, or with more conditions than fit."""
    conditions = {name for values in distincts for name in values.conditions if name is not None}
    if not distincts or len(conditions) > CONDITIONS_MAX:
        return None
    return LocalValues(tuple(values.columns for values in distincts), tuple(sorted(conditions)))
