"""A user-defined function that makes rows, as an aggregator whose values are lists of rows.

Owns: ``TableAggregator``, ``RowsOfKeys``, and the changes between the rows of keys before and after.
Invariant: an accumulator is stored as it is after its rows are emitted: functions may keep in it which rows they have
emitted.
Must not import anything of ``asyncstate`` but ``errors``, ``functions``, ``operator``, ``row_shape``.

Source: Flink's ``TableAggregateFunction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.functions.aggregate_functions import TableAggregateFunction, has_method
from asyncstate.operator import BundleContext
from asyncstate.row_shape import RowShape

from ...core.arrays import (
    BoolArray,
    Int64Array,
    concat_rows,
    place_among_equals,
    row_ids,
    take_rows,
)
from ..aggregator import Aggregator, KeyedRows, State, Updated
from .user_function import Segments, UserAggregator

_ADDED = pa.field("added", pa.bool_(), nullable=False)


class TableAggregator(UserAggregator):
    """``function`` over ``columns``. Its values are lists of the rows of an accumulator; after ``give_changes`` there
    are no values before, and the values after are changes: rows with ``added``."""

    function: TableAggregateFunction

    def __init__(
        self,
        owner: str,
        prefix: str,
        function: TableAggregateFunction,
        columns: tuple[str, ...],
        condition: str | None,
        accumulator_type: pa.DataType,
        row_type: pa.DataType,
    ) -> None:
        fields = list(row_type) if pa.types.is_struct(row_type) else [pa.field("value", row_type)]
        self.row_schema = pa.schema(fields)
        self.incremental = False
        rows = pa.list_(pa.struct(fields))
        super().__init__(owner, prefix, function, columns, condition, accumulator_type, rows)
        self._shape = RowShape(self.row_schema, owner)
        self.get_value = self._rows_of

    def give_changes(self) -> None:
        """Request from the function the changes since its last call, if it has ``emit_update_with_retract``."""
        if has_method(self.function, "emit_update_with_retract"):
            self.incremental = True
            self.result_type = pa.list_(pa.struct([*self.row_schema, _ADDED]))

    def check_gives_all(self, owner: str) -> None:
        """Raise SchemaError if the function has no ``emit_value``, which emits all rows regardless of earlier ones."""
        if not has_method(self.function, "emit_value"):
            name = type(self.function).__name__
            raise SchemaError(
                f"{owner}: {name} lacks emit_value, which windows call for all rows of an accumulator; write it in "
                "addition to emit_update_with_retract, which only GroupTableAggregate calls"
            )

    def update(
        self, state: State, rows: KeyedRows, prepared: tuple[Segments, list[list[Any]]], ctx: BundleContext
    ) -> Updated:
        """The states (u) after the rows; ``prepared`` is the result of ``prepare``."""
        if not self.incremental:
            return super().update(state, rows, prepared, ctx)
        segments, columns = prepared
        accumulators, _ = self.begin(state, rows.keys, segments)
        self.apply(accumulators, segments, columns)
        self.form.as_stored(accumulators, rows.keys)
        shown: list[Any] = []
        with self.named("emit_update_with_retract"), self.form.turns(accumulators) as turns:
            for key, one in enumerate(accumulators):
                turns.take(key)
                shown.append(None if one is None else self._changes_of(one))
        return self.end(accumulators, rows.keys, None, self.result(shown, rows.keys))

    def _rows_of(self, accumulator: Any) -> list[dict[str, Any]]:
        found = self.function.emit_value(accumulator)
        if isinstance(found, str | bytes | dict) or not isinstance(found, Iterable):
            raise SchemaError(
                f"{self.form.owner}: emit_value returned {found!r}, which is not an iterable of rows; return "
                "a list of rows"
            )
        return [self._named_row(row) for row in found]

    def _changes_of(self, accumulator: Any) -> list[dict[str, Any]]:
        out = _Collector()
        result = self.function.emit_update_with_retract(accumulator, out)  # type: ignore[func-returns-value]
        self.returned("emit_update_with_retract", accumulator, result)
        return [{**self._named_row(row), _ADDED.name: added} for row, added in out.rows]

    def _named_row(self, row: Any) -> dict[str, Any]:
        return dict(zip(self.row_schema.names, self._shape.values(row), strict=True))


class _Collector:
    """Collects the rows that a function emits and retracts (see ``RetractableCollector``)."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, bool]] = []

    def collect(self, row: Any) -> None:
        self.rows.append((row, True))

    def retract(self, row: Any) -> None:
        self.rows.append((row, False))


class RowsOfKeys:
    """m rows of u keys: the ``columns`` (m) of a list column (u) of structs, and the ``owners`` (m), ascending."""

    def __init__(self, lists: pa.Array, there: BoolArray) -> None:
        """The rows of the keys that are ``there`` (u)."""
        kept = np.flatnonzero(there & ~_nulls(lists))
        chosen = lists.take(pa.array(kept))
        self.columns: Sequence[pa.Array] = chosen.flatten().flatten()
        counts = (
            chosen.value_lengths().to_numpy(zero_copy_only=False) if len(chosen) else np.empty(0, np.int64)
        )
        self.owners: Int64Array = np.repeat(kept, counts.astype(np.int64))

    def of_keys(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The rows (m), after ``columns`` (u) of their keys."""
        return [*take_rows(columns, self.owners), *self.columns]


class RowChanges(NamedTuple):
    """m removed or new rows of keys: columns, the index of their key, and which are new."""

    columns: list[pa.Array]
    owners: Int64Array
    is_new: BoolArray


def changed_rows(
    old: Sequence[pa.Array], old_owners: Int64Array, new: Sequence[pa.Array], new_owners: Int64Array
) -> RowChanges:
    """The changes between rows of keys before and after: equal rows of one key cancel out one by one."""
    owners = np.concatenate([old_owners, new_owners])
    is_new = np.arange(len(owners)) >= len(old_owners)
    rows = concat_rows(old, new)
    left = _unmatched(rows, owners, is_new)
    return RowChanges(take_rows(rows, left), owners[left], is_new[left])


def _unmatched(rows: Sequence[pa.Array], owners: Int64Array, is_new: BoolArray) -> Int64Array:
    """The indices of those of m rows without an equal row on the other side."""
    if not len(owners):
        return np.empty(0, np.int64)
    ids = row_ids(rows, owners)
    places = np.empty(len(ids), np.int64)
    for side in (is_new, ~is_new):
        places[side] = place_among_equals(ids[side])
    counts = [np.bincount(ids[side], minlength=int(ids.max()) + 1) for side in (~is_new, is_new)]
    others = np.where(is_new, counts[0][ids], counts[1][ids])
    return np.flatnonzero(places >= others)


def table_of(parts: Sequence[Aggregator]) -> TableAggregator | None:
    """The part whose values are rows; None if there is none."""
    return next((part for part in parts if isinstance(part, TableAggregator)), None)


def _nulls(lists: pa.Array) -> BoolArray:
    return np.asarray(lists.is_null().to_numpy(zero_copy_only=False), np.bool_)
