"""Row-by-row nodes of a dataflow over Arrow rows, where Arrow gives the same answer as Spark for every row.

Owns: ``arrow_transformed``, ``function_column`` and ``no_rows``.
Invariant: rows keep their order; what is not certain to give Spark's answer is None.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow.arrow_expressions import arrow_condition, may_be_other_columns, projection
from asyncstate.dataflow.nodes import ArrowFunction, Transform, array_of


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
        if may_be_other_columns(node.named, rows.schema):
            return None
        made = _columns((), node.named, rows)
        return None if made is None else _batch({**_all(rows), **made})
    if node.kind == "select":
        columns = _columns(node.expressions, node.named, rows)
        if columns is not None and kinds and ROW_KIND_COLUMN in rows.schema.names:
            columns.setdefault(ROW_KIND_COLUMN, rows.column(ROW_KIND_COLUMN))
        return None if columns is None else _batch(columns)
    return None


def function_column(function: ArrowFunction, rows: pa.RecordBatch, name: str) -> pa.Array:
    """The column ``name`` that a function makes of the rows, of the type that it makes of no rows, as in Spark's plan:
    raises SchemaError if the type depends on the values."""
    kind = array_of(function, no_rows(rows.schema), name).type
    return array_of(function, rows, name, kind)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    """Columns without a value."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _all(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(rows.schema.names, rows.columns, strict=True))


def _batch(columns: Mapping[str, pa.Array]) -> pa.RecordBatch | None:
    """The columns as rows; None without columns, since the number of rows would be lost."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)) if columns else None


def _columns(
    expressions: Sequence[Any], named: Mapping[str, Any], rows: pa.RecordBatch
) -> dict[str, pa.Array] | None:
    texts = {name: one for name, one in named.items() if not callable(one)}
    made = projection(expressions, texts, rows.schema)
    if made is None or not {one.name for one in made[: len(expressions)]}.isdisjoint(named):
        return None
    found = {one.name: one.column(rows) for one in made}
    functions = {name: function_column(one, rows, name) for name, one in named.items() if name not in texts}
    return {one.name: found[one.name] for one in made[: len(expressions)]} | {
        name: functions[name] if name in functions else found[name] for name in named
    }
