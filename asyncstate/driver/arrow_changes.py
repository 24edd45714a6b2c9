"""The net result of a micro-batch's changelog, for rows that are in this process.

Owns: ``last_changes``, over an Arrow table with a ``row_kind`` column.
Invariant: rows are treated as a set, so their order does not matter. Columns of any type that Spark can group by are
compared, nested ones by the bytes of their values.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, Changelog, RowKind, has_kinds
from asyncstate.codec import ValueCodec
from asyncstate.errors import OperatorError, SchemaError

_SIGN = "asyncstate:sign"
_ROW = "asyncstate:row"
_ADDS = pa.array([kind.text for kind in RowKind if kind.is_accumulate])


def last_changes(rows: pa.Table, keys: Sequence[str], changes: Changelog) -> pa.Table:
    """One row per changed key of ``keys``: the new row as +U, or the deleted row as -D.

    Without ``row_kind`` all rows are insertions. ``keys`` must be a unique key of the rows, which are ``changes``.
    Raises SchemaError for maps, which Spark does not compare either, and for a key that is not a column, OperatorError
    for a key that is left with several rows.
    """
    missing = [name for name in keys if name not in rows.column_names]
    if missing or not keys:
        raise SchemaError(
            f"last_changes: the rows have no column '{', '.join(missing)}'; their columns are: "
            f"{', '.join(rows.column_names)}"
        )
    names = [name for name in rows.column_names if name != ROW_KIND_COLUMN]
    schema = pa.schema([rows.schema.field(name) for name in names])
    table = _net(rows, names, changes)
    goes = pc.less(table.column(_SIGN), 0)
    comes = table.filter(pc.invert(goes))
    gone = table.filter(goes)
    _check_one_a_key(table if changes.is_upsert else comes, keys)
    if gone.num_rows and comes.num_rows and not changes.is_upsert:
        # A join does not match null keys; those are refused before anything is written.
        replaced = _comparable(comes, keys).select(list(keys))
        left = _comparable(gone, keys).join(replaced, list(keys), join_type="left anti", use_threads=False)
        gone = gone.take(left.column(_ROW))
    parts = [
        part.select(names).cast(schema).append_column(ROW_KIND_COLUMN, pa.repeat(kind.text, part.num_rows))
        for part, kind in ((comes, RowKind.UPDATE_AFTER), (gone, RowKind.DELETE))
    ]
    return pa.concat_tables(parts)


def _check_one_a_key(table: pa.Table, keys: Sequence[str]) -> None:
    compared = _comparable(table, keys).append_column(_SIGN, table.column(_SIGN))
    aggregates = [([], "count_all"), (_SIGN, "max"), (_ROW, "min")]
    counted = compared.group_by(list(keys), use_threads=False).aggregate(aggregates)
    several = pc.or_(
        pc.greater(counted.column("count_all"), 1), pc.greater(counted.column(f"{_SIGN}_max"), 1)
    )
    if pc.any(several).as_py():
        first = counted.filter(several).column(f"{_ROW}_min")[:1]
        key = table.select(list(keys)).take(first).to_pylist()[0]
        raise OperatorError(
            f"the key {key} has several rows or changes in one micro-batch, but a table with this primary key can "
            "have only one; add UpsertMaterialize, or ChangelogNormalize with a sequence, with the key upstream"
        )


def _net(rows: pa.Table, names: list[str], changes: Changelog) -> pa.Table:
    """Each distinct row with its net count (insertions minus deletions) if that is not 0; upserts unchanged."""
    if has_kinds(rows.column_names):
        kinds = rows.column(ROW_KIND_COLUMN)
        unknown = kinds.filter(pc.invert(pc.is_in(kinds, pa.array(ROW_KIND_TEXTS))))
        if len(unknown):
            raise SchemaError(
                f"column '{ROW_KIND_COLUMN}' has the value {unknown[0].as_py()!r}; write one of "
                f"{', '.join(ROW_KIND_TEXTS)}, or drop the column if every row is an insert"
            )
        signs = pc.if_else(pc.is_in(kinds, _ADDS), 1, -1)
    else:
        signs = pa.repeat(1, rows.num_rows)
    if changes.is_upsert:  # of a deletion only the key counts, so rows cannot cancel by content
        return rows.select(names).append_column(_SIGN, signs)
    signed = _comparable(rows, names).append_column(_SIGN, signs)
    counted = signed.group_by(names, use_threads=False).aggregate([(_SIGN, "sum"), (_ROW, "min")])
    changed = counted.filter(pc.not_equal(counted.column(f"{_SIGN}_sum"), 0))
    kept = rows.select(names).take(changed.column(f"{_ROW}_min"))
    return kept.append_column(_SIGN, changed.column(f"{_SIGN}_sum"))


def _comparable(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """The columns ``names`` as Arrow groups and joins by them, and the number of each row."""
    columns = [_compared(name, rows.column(name)) for name in names]
    return pa.table([*columns, pa.array(np.arange(rows.num_rows))], [*names, _ROW])


def _compared(name: str, column: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if not pa.types.is_nested(column.type):
        return column
    if _has_map(column.type):
        raise SchemaError(
            f"column '{name}' is of type {column.type}, and maps cannot be compared; cast it, or drop it first"
        )
    return pa.array(ValueCodec(column.type, owner=name).encode(column.combine_chunks()), pa.binary())


def _has_map(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_map(kind) or any(map(_has_map, inner))
