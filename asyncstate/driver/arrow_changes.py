"""The net result of a micro-batch's changelog, for rows that are in this process.

Owns: ``last_changes``, over an Arrow table with a ``row_kind`` column.
Invariant: rows are treated as a set, so their order does not matter.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS, Changelog, RowKind, has_kinds
from asyncstate.errors import OperatorError, SchemaError

_SIGN = "asyncstate:sign"
_ADDS = pa.array([kind.text for kind in RowKind if kind.is_accumulate])


def last_changes(rows: pa.Table, keys: Sequence[str], changes: Changelog) -> pa.Table:
    """One row per changed key of ``keys``: the new row as +U, or the deleted row as -D.

    Without ``row_kind`` all rows are insertions. ``keys`` must be a unique key of the rows, which are ``changes``.
    Raises SchemaError for columns that Arrow cannot group by and for a key that is not a column, OperatorError for a
    key that is left with several rows.
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
        replaced = comes.select(list(keys)).append_column("asyncstate:here", pa.repeat(True, comes.num_rows))
        # A join does not match null keys; those are refused before anything is written.
        gone = gone.join(replaced, list(keys), join_type="left outer")
        gone = gone.filter(pc.is_null(gone.column("asyncstate:here")))
    parts = [
        part.select(names).cast(schema).append_column(ROW_KIND_COLUMN, pa.repeat(kind.text, part.num_rows))
        for part, kind in ((comes, RowKind.UPDATE_AFTER), (gone, RowKind.DELETE))
    ]
    return pa.concat_tables(parts)


def _check_one_a_key(table: pa.Table, keys: Sequence[str]) -> None:
    counted = table.group_by(list(keys), use_threads=False).aggregate([([], "count_all"), (_SIGN, "max")])
    several = pc.or_(
        pc.greater(counted.column("count_all"), 1), pc.greater(counted.column(f"{_SIGN}_max"), 1)
    )
    if pc.any(several).as_py():
        key = counted.filter(several).select(list(keys)).to_pylist()[0]
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
    signed = rows.select(names).append_column(_SIGN, signs)
    if changes.is_upsert:  # of a deletion only the key counts, so rows cannot cancel by content
        return signed
    try:
        counted = signed.group_by(names, use_threads=False).aggregate([(_SIGN, "sum")])
    except pa.ArrowException as error:
        raise SchemaError(f"the rows cannot be compared: {error}; cast or drop such columns first") from error
    counted = counted.rename_columns([*names, _SIGN])
    return counted.filter(pc.not_equal(counted.column(_SIGN), 0))
