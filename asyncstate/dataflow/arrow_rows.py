"""Row-by-row nodes of a dataflow over Arrow rows, where Arrow gives the same answer as Spark for every row.

Owns: ``arrow_transformed``, and ``no_rows``.
Invariant: rows keep their order; what is not certain to give Spark's answer is None.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow.arrow_sql import arrow_condition, plain_columns
from asyncstate.dataflow.nodes import Transform, array_of


def arrow_transformed(node: Transform, rows: pa.RecordBatch, kinds: bool) -> pa.RecordBatch | None:
    """The output rows of ``node``, or None. ``kinds``: a selection keeps ``row_kind`` even if it does not list it."""
    if node.kind == "where":
        (condition,) = node.expressions
        if callable(condition):
            return rows.filter(array_of(condition, rows, "where", pa.bool_()))
        kept = arrow_condition(condition, rows.schema) if isinstance(condition, str) else None
        return None if kept is None else rows.filter(kept(rows))
    if node.kind == "drop":
        if not set(node.expressions) <= set(rows.schema.names):
            return None
        return rows.select([name for name in rows.schema.names if name not in node.expressions])
    if node.kind == "with_columns":
        own = {name.lower(): name for name in rows.schema.names}
        if any(own.get(name.lower(), name) != name for name in node.named):
            return None  # to Spark it is the column with other letters
        made = _columns(node.named, rows)
        return None if made is None else _batch({**_all(rows), **made})
    if node.kind == "select":
        plain = plain_columns(node.expressions, rows.schema) if node.expressions else ()
        made = _columns(node.named, rows)
        if plain is None or made is None:
            return None
        columns = {name: rows.column(column) for column, name in plain} | made
        if len(columns) < len(plain) + len(made):
            return None
        if kinds and ROW_KIND_COLUMN in rows.schema.names:
            columns.setdefault(ROW_KIND_COLUMN, rows.column(ROW_KIND_COLUMN))
        return _batch(columns)
    return None


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Columns without a value."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _all(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def _batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
    """The columns as rows; None without columns, since the number of rows would be lost."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)) if columns else None


def _columns(named: Mapping[str, Any], rows: pa.RecordBatch) -> dict[str, pa.Array] | None:
    made: dict[str, pa.Array] = {}
    for name, expression in named.items():
        if callable(expression):
            made[name] = array_of(expression, rows, name)
            continue
        plain = plain_columns([expression], rows.schema)
        if plain is None:
            return None
        made[name] = rows.column(plain[0][0])
    return made
