"""The rows that a lookup has found for the keys of a bundle, as columns.

Owns: ``Answers``.
Invariant: the rows of a key are contiguous, in the order in which the lookup returned them.
Must not know of state, of row kinds, or of how the keys were requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.lookups.lookup_source import Key, Rows
from asyncstate.row_shape import RowShape
from asyncstate.specs import RowError

from ...core.arrays import BoolArray, Int64Array, count_up
from .lookup_requests import FailedRows


class Answers(NamedTuple):
    """Rows (m) of u keys: one column per field of ``columns``, how many rows each key has (u), and why its request has
    failed (u; None: it has not)."""

    columns: list[pa.Array]
    counts: Int64Array
    errors: list[RowError | None]

    @staticmethod
    def of(keys: Sequence[Key], rows: Sequence[Rows], schema: pa.Schema, owner: str) -> Answers:
        """The ``rows`` of each of ``keys``; OperatorError with the key for rows that do not fit ``schema``."""
        shape = RowShape(schema, owner)
        try:
            values = [shape.values(row) for found in rows for row in found]
        except SchemaError as error:
            raise OperatorError(f"{error} (the lookup of {len(keys)} keys, the first {keys[0]!r})") from error
        by_column: Sequence[Sequence[Any]] = list(zip(*values, strict=True)) or [()] * len(schema)
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        columns = [
            _column(field, list(column), keys, counts, owner)
            for field, column in zip(schema, by_column, strict=True)
        ]
        errors = [found.error if isinstance(found, FailedRows) else None for found in rows]
        return Answers(columns, counts, errors)

    @property
    def failed(self) -> BoolArray:
        """Whether the request of a key has failed (u)."""
        return np.fromiter((error is not None for error in self.errors), np.bool_, len(self.errors))

    def of_rows(self, keys: Int64Array, pads: bool) -> tuple[Int64Array, Int64Array]:
        """For rows (n) with these keys: the row, and the found row (-1: none), of each pair. ``pads``: a row for which
        nothing was found makes a pair, too."""
        found = self.counts[keys]
        pairs = np.maximum(found, 1) if pads else found
        starts = (np.cumsum(self.counts) - self.counts)[keys]
        answers = np.where(np.repeat(found > 0, pairs), np.repeat(starts, pairs) + count_up(pairs), -1)
        return np.repeat(np.arange(len(keys)), pairs), answers


def _column(
    field: pa.Field, values: list[Any], keys: Sequence[Key], counts: Int64Array, owner: str
) -> pa.Array:
    try:
        return arrow_values(values, field.type)
    except UnfitValueError as error:
        key = keys[int(np.searchsorted(np.cumsum(counts), error.row, side="right"))]
        raise OperatorError(
            f"{owner}: the lookup of key {key!r} returned, for column '{field.name}', {error}; fix the lookup, or the "
            "types in columns="
        ) from error
