"""Rows as tests write them and read them: tuples and dicts, as Arrow columns and back.

Owns: ``record_batch``, ``kind_codes``, ``rows_of`` and ``OutputRow``.
Invariant: what does not fit its column is refused with its row, before anything runs.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, Key
from asyncstate.codec.from_python import UnfitValueError, arrow_column
from asyncstate.codec.times import integers
from asyncstate.errors import SchemaError

OutputRow = tuple[Any, ...]
"""A row kind's text and the values, times as integers."""


def record_batch(rows: Any, schema: pa.Schema, name: str, doing: str = "push") -> pa.RecordBatch:
    """Rows, a list or a RecordBatch, as the columns of an input. Raises SchemaError that names it and the row for what
    does not fit; ``doing``: where the rows were given."""
    if isinstance(rows, pa.RecordBatch):
        if not rows.schema.equals(schema):
            raise SchemaError(
                f"{doing}: the RecordBatch has the columns ({', '.join(map(str, rows.schema))}), but {name} has "
                f"({', '.join(map(str, schema))})"
            )
        return rows
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise SchemaError(
            f"{doing}: the rows of {name} are {rows!r}; give a list of rows, also of a single one"
        )
    values = [_values(row, number, schema, name, doing) for number, row in enumerate(rows)]
    columns = [_column([row[i] for row in values], field, name, doing) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _values(row: Any, number: int, schema: pa.Schema, name: str, doing: str) -> Sequence[Any]:
    """A row's values in the columns' order."""
    if isinstance(row, Mapping):
        missing = [column for column in schema.names if column not in row]
        unknown = [column for column in row if column not in schema.names]
        if not missing and not unknown:
            return [row[column] for column in schema.names]
        wrong = [f"has no {', '.join(missing)}"] if missing else []
        wrong += [f"has {', '.join(map(str, unknown))}, which {name} has not"] if unknown else []
        raise SchemaError(
            f"{doing}: row {number} of {name} is {row!r}: it {' and '.join(wrong)}; give a value (None for null) "
            f"for each of its columns: {', '.join(schema.names)}"
        )
    if isinstance(row, (str, bytes)) or not isinstance(row, Sequence) or len(row) != len(schema):
        raise SchemaError(
            f"{doing}: row {number} of {name} is {row!r}; give a tuple with a value for each of its {len(schema)} "
            f"columns, or a dict: {', '.join(schema.names)}"
        )
    return row


def _column(values: list[Any], field: pa.Field, name: str, doing: str) -> pa.Array:
    try:
        return arrow_column(values, field.type)
    except UnfitValueError as error:
        raise SchemaError(
            f"{doing}: row {error.row} of {name} has, in column '{field.name}', {error}"
        ) from error


def kind_codes(kinds: Any, num_rows: int, doing: str = "push") -> np.ndarray[Any, np.dtype[np.int8]]:
    """The codes of row kinds given as texts: one a row, or one text for all. Raises SchemaError for anything else."""
    if not isinstance(kinds, Iterable):
        raise SchemaError(
            f"{doing}: kinds is {kinds!r}; give one of {', '.join(ROW_KIND_TEXTS)} for each row"
        )
    texts = [kinds] * num_rows if isinstance(kinds, str) else list(kinds)
    if len(texts) != num_rows:
        raise SchemaError(f"{doing}: there are {len(texts)} kinds for {num_rows} rows; give one a row")
    wrong = next(((number, text) for number, text in enumerate(texts) if text not in ROW_KIND_TEXTS), None)
    if wrong is not None:
        raise SchemaError(
            f"{doing}: row {wrong[0]} has the kind {wrong[1]!r}; write one of {', '.join(ROW_KIND_TEXTS)}"
        )
    return np.array([ROW_KIND_TEXTS.index(text) for text in texts], np.int8)


def not_replaced(
    first: Sequence[pa.RecordBatch], then: Sequence[pa.RecordBatch], key: Key | None
) -> Iterator[pa.RecordBatch]:
    """Of upserts by ``key`` those of ``first`` that no row of ``then`` replaces; without a key all of ``first``."""
    if key is None:
        yield from first
        return
    newer = {each for batch in then for each in _keys_of(batch, key)}
    for batch in first:
        yield batch.filter(pa.array([each not in newer for each in _keys_of(batch, key)], pa.bool_()))


def _keys_of(batch: pa.RecordBatch, key: Key) -> list[tuple[Any, ...]]:
    if not key:
        return [()] * batch.num_rows
    return list(zip(*(batch.column(name).to_pylist() for name in key), strict=True))


def rows_of(batches: Sequence[pa.RecordBatch]) -> list[OutputRow]:
    """Output rows as tuples, the text of their kind first, times as integers."""
    return [row for batch in batches for row in _rows_of(batch)]


def _rows_of(batch: pa.RecordBatch) -> Iterator[OutputRow]:
    kinds = batch.column(ROW_KIND_COLUMN).to_pylist()
    columns = [
        integers(column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name != ROW_KIND_COLUMN
    ]
    return zip(kinds, *columns, strict=True)
