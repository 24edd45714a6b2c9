"""A function of the user's own that makes rows, as an aggregator whose values are lists of rows.

Owns: ``TableAggregator`` and ``RowsOfKeys``.
Invariant: what an accumulator has after the rows were put out is what is stored: functions may keep in it what they
have shown.
Must not import anything of ``asyncstate`` but ``errors``, ``functions``, ``operator``, ``row_shape``.

Source: Flink's ``TableAggregateFunction``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.functions.aggregate import TableAggregateFunction, has_method
from asyncstate.operator import BundleContext
from asyncstate.row_shape import RowShape

from ...core.arrays import BoolArray, Int64Array
from ..aggregator import KeyedRows, State, Updated
from .function import Segments, UserAggregator

_ADDED = pa.field("added", pa.bool_(), nullable=False)


class TableAggregator(UserAggregator):
    """``function`` over ``columns``. Its values are lists of the rows that an accumulator has; with
    ``emit_update_with_retract`` those before are missing, and those after are changes: rows with ``added``."""

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
        self.incremental = has_method(function, "emit_update_with_retract")
        shown = pa.struct([*fields, _ADDED] if self.incremental else fields)
        super().__init__(owner, prefix, function, columns, condition, accumulator_type, pa.list_(shown))
        self._shape = RowShape(self.row_schema, owner)
        self.get_value = self._rows_of

    def update(
        self, state: State, rows: KeyedRows, prepared: tuple[Segments, list[list[Any]]], ctx: BundleContext
    ) -> Updated:
        """See ``Aggregator``."""
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
                f"{self.form.owner}: emit_value returned {found!r}, which is no iterable of rows; return a list of rows"
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
    """See ``RetractableCollector``."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, bool]] = []

    def collect(self, row: Any) -> None:
        self.rows.append((row, True))

    def retract(self, row: Any) -> None:
        self.rows.append((row, False))


class RowsOfKeys:
    """m rows of u keys: the ``columns`` (m) of a list column (u) of structs, and the ``owners`` (m), ascending."""

    def __init__(self, lists: pa.Array, there: BoolArray) -> None:
        """Of the keys that are ``there`` (u)."""
        kept = np.flatnonzero(there & ~_nulls(lists))
        chosen = lists.take(pa.array(kept))
        self.columns: Sequence[pa.Array] = chosen.flatten().flatten()
        counts = (
            chosen.value_lengths().to_numpy(zero_copy_only=False) if len(chosen) else np.empty(0, np.int64)
        )
        self.owners: Int64Array = np.repeat(kept, counts.astype(np.int64))


def _nulls(lists: pa.Array) -> BoolArray:
    return np.asarray(lists.is_null().to_numpy(zero_copy_only=False), np.bool_)
