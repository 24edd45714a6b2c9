"""Conversion of test rows: tuples and dicts to Arrow columns and back.

Owns: ``record_batch``, ``kind_codes``, ``rows_of``, ``net`` and ``OutputRow``.
Invariant: a value that does not fit its column is refused with its row, before anything runs.
Must not import Spark.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, Key, RowKind
from asyncstate.codec.from_python import UnfitValueError, arrow_column
from asyncstate.codec.times import integers
from asyncstate.errors import SchemaError

OutputRow = tuple[Any, ...]
"""A row kind's text and the values, times as integers."""


def record_batch(rows: Any, schema: pa.Schema, name: str, doing: str = "push") -> pa.RecordBatch:
    """Convert rows, a list or a RecordBatch, to the columns of an input. Raises SchemaError that names it and the row
    for a value that does not fit; ``doing``: the call that received the rows."""
    if isinstance(rows, pa.RecordBatch):
        if not rows.schema.equals(schema):
            raise SchemaError(
                f"{doing}: the RecordBatch has the columns ({', '.join(map(str, rows.schema))}), but {name} has "
                f"({', '.join(map(str, schema))})"
            )
        return rows
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise SchemaError(
            f"{doing}: the rows of {name} are {rows!r}; give a list of rows, even for a single row"
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
            f"{doing}: row {number} of {name} is {row!r}; give a tuple with one value for each of its {len(schema)} "
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
    """The codes of row kinds given as texts: one per row, or one text for all. Raises SchemaError for anything else."""
    if not isinstance(kinds, Iterable):
        raise SchemaError(
            f"{doing}: kinds is {kinds!r}; give one of {', '.join(ROW_KIND_TEXTS)} for each row"
        )
    texts = [kinds] * num_rows if isinstance(kinds, str) else list(kinds)
    if len(texts) != num_rows:
        raise SchemaError(f"{doing}: there are {len(texts)} kinds for {num_rows} rows; give one per row")
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


_SIGNS: Final = {kind.text: 1 if kind.is_accumulate else -1 for kind in RowKind}


def net(rows: Iterable[Sequence[Any]], *, in_order: bool = False) -> Counter[tuple[Any, ...]]:
    """Net a changelog: each row of the table that it describes, without the row kind, and its count.

    ``rows`` are ``(row kind, *values)``, as a harness returns them, or rows that Spark collected, which count as +I if
    they have no column ``row_kind``. +I and +U add a row; -U and -D retract a row with equal values. The order does not
    matter, and rows that cancel are left out.

    A count below zero means that a row is retracted more often than it is added. A complete changelog has none, since
    the result would then equal no table. The rows of one micro-batch can have some: ``table.update(net(rows))`` adds
    them up.
    The rows of an upsert stream do not contain what they replace, so they have no net.

    ``in_order``: check that no row is retracted before it is added, as the output of one partition guarantees from its
    first micro-batch on.

    All NaN are one value. A list becomes a tuple, and a dict a tuple of (name, value).

    Raises SchemaError for a row that does not begin with a row kind, and with ``in_order`` AssertionError that names
    the row that is retracted too early.

    >>> net([("+I", "a", 1), ("+I", "b", 7), ("-U", "a", 1), ("+U", "a", 2)])
    Counter({('b', 7): 1, ('a', 2): 1})
    """
    if not isinstance(rows, Iterable):
        raise SchemaError(f"net: {rows!r} is not a list of rows; give rows as a harness returns them")
    counts: Counter[tuple[Any, ...]] = Counter()
    for number, row in enumerate(rows):
        given: object = row
        kind, values = _kind_and_values(row) if isinstance(given, Sequence) else (None, ())
        if not isinstance(kind, str) or kind not in _SIGNS:
            raise SchemaError(
                f"net: row {number} is {row!r}; give (row kind, *values), with one of {', '.join(_SIGNS)} first"
            )
        key = tuple(map(_hashable, values))
        counts[key] += _SIGNS[kind]
        if in_order and counts[key] < 0:
            raise AssertionError(f"net: row {number} is {row!r}, but no earlier row added {key!r}")
    return Counter({row: times for row, times in counts.items() if times})


def _kind_and_values(row: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    names = getattr(row, "__fields__", None)
    if names is None:
        return (row[0] if row else None), row[1:]
    if ROW_KIND_COLUMN not in names:
        return RowKind.INSERT.text, row
    at = names.index(ROW_KIND_COLUMN)
    return row[at], (*row[:at], *row[at + 1 :])


def _hashable(value: Any) -> Any:
    """The value as part of a key of a dict, where in Python NaN does not equal NaN."""
    if isinstance(value, float):
        return math.nan if math.isnan(value) else value
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in value.items())
    return value
