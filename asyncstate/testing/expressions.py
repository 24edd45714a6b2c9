"""Evaluates the expressions of a dataflow on rows, without Spark.

Owns: ``transformed``, which applies a ``Transform`` to rows.
Invariant: rows keep their order. What Arrow evaluates as Spark does, it evaluates here too, as in a job's own tasks.
All other Spark SQL text is translated by sqlglot and evaluated by DuckDB: operators, comparisons, CASE, casts, and
functions of numbers, texts and times that both engines have; aggregates, windows, generators but ``explode`` and
``posexplode`` (also of the outer kind), and subqueries are refused, as is what DuckDB does not know.
Must not import Spark.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec.times import in_utc
from asyncstate.dataflow import Transform
from asyncstate.dataflow.arrow_expressions import projection
from asyncstate.dataflow.arrow_rows import arrow_transformed, function_column, no_rows
from asyncstate.errors import EnvironmentSetupError, SchemaError
from asyncstate.testing.duckdb_sql import in_duckdb

_NUMBER = "asyncstate:number"
_opened = threading.local()  # a connection of each thread: to open one takes longer than a query
_SPARK_MIN = 4
_EXPLODES = re.compile(r"\s*(pos)?explode(_outer)?\(", re.IGNORECASE)


def transformed(node: Transform, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The output rows of ``node``; a selection keeps ``row_kind``. Raises SchemaError for what needs Spark."""
    if node.kind == "transform":
        raise SchemaError(
            f"{node.text} is a function of DataFrames, which needs Spark; give the harness a session: "
            "PipelineHarness(..., spark=spark)"
        )
    found = arrow_transformed(node, rows, kinds=True)
    if found is not None:
        return found
    if node.kind == "where":
        (condition,) = node.expressions
        return _query(
            rows, [f'"{name}"' for name in rows.schema.names], _condition(_text(condition), rows.schema)
        )
    if node.kind == "drop":
        missing = [name for name in node.expressions if name not in rows.schema.names]
        if missing:
            raise SchemaError(
                f"there is no column '{missing[0]}' to drop; the columns are {', '.join(rows.schema.names)}"
            )
    if node.kind == "with_columns":
        return _with_columns(rows, node)
    return _selected(rows, node)


def in_session(node: Transform, inputs: Sequence[pa.RecordBatch], spark: Any) -> pa.RecordBatch:
    """The output rows of a ``transform``, computed in a Spark session; times are in UTC, as in a job's rows. Raises
    EnvironmentSetupError for a session that cannot exchange Arrow tables."""
    if int(spark.version.split(".")[0]) < _SPARK_MIN:
        raise EnvironmentSetupError(
            f"{node.text}: a harness runs functions of DataFrames on Spark {_SPARK_MIN}.0 or newer, and this session "
            f"is of Spark {spark.version}; use SQL text or a function of Arrow columns, or test the function in a job"
        )
    (function,) = node.expressions
    try:
        found = function(*(spark.createDataFrame(pa.Table.from_batches([one])) for one in inputs))
        table: pa.Table = found.toArrow()
    except Exception as error:
        raise SchemaError(f"{node.text}: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    fields = [pa.field(field.name, in_utc(field.type)) for field in table.schema]
    return _one_batch(table.cast(pa.schema(fields)))


@lru_cache(maxsize=4096)
def _condition(condition: str, schema: pa.Schema) -> str:
    """The condition in DuckDB's dialect. Raises SchemaError for what is no boolean."""
    text = _translated(condition, schema)
    kind = _query(no_rows(schema), [f"({text}) AS condition"]).column(0).type
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise SchemaError(f"where('{condition}') is of type {kind}; a condition is a boolean")
    return text


def _with_columns(rows: pa.RecordBatch, node: Transform) -> pa.RecordBatch:
    columns = {name: rows.column(name) for name in rows.schema.names} | _named(rows, node)
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _selected(rows: pa.RecordBatch, node: Transform) -> pa.RecordBatch:
    if any(isinstance(one, str) and _EXPLODES.match(one) for one in node.expressions) and not node.named:
        return _exploded(rows, node)
    columns = [column for found in _computed(rows, node.expressions) for column in found]
    columns += _named(rows, node).items()
    if ROW_KIND_COLUMN in rows.schema.names and ROW_KIND_COLUMN not in dict(columns):
        columns.append((ROW_KIND_COLUMN, rows.column(ROW_KIND_COLUMN)))
    return pa.RecordBatch.from_arrays([column for _, column in columns], names=[name for name, _ in columns])


def _exploded(rows: pa.RecordBatch, node: Transform) -> pa.RecordBatch:
    """A row for each element, as one query: all columns follow the one that ``explode`` makes."""
    kinds = ROW_KIND_COLUMN in rows.schema.names and ROW_KIND_COLUMN not in node.expressions
    expressions = [*node.expressions, *([ROW_KIND_COLUMN] if kinds else [])]
    return _query(rows, [_sql(one, rows.schema) for one in expressions])


def _named(rows: pa.RecordBatch, node: Transform) -> dict[str, pa.Array]:
    """The columns that are given by name."""
    found = {name: function_column(one, rows, name) for name, one in node.named.items() if callable(one)}
    texts = {name: one for name, one in node.named.items() if name not in found}
    for name, columns in zip(texts, _computed(rows, list(texts.values())), strict=True):
        found[name] = columns[0][1]
    return {name: found[name] for name in node.named}


def _computed(rows: pa.RecordBatch, expressions: Sequence[object]) -> list[list[tuple[str, pa.Array]]]:
    """The columns of each expression: several of ``*``."""
    by_arrow = [projection([one], {}, rows.schema) for one in expressions]
    texts = [
        _sql(one, rows.schema) for one, columns in zip(expressions, by_arrow, strict=True) if columns is None
    ]
    made = iter(_answers(rows, texts))
    return [
        [(one.name, one.column(rows)) for one in columns]
        if columns is not None
        else list(zip((found := next(made)).schema.names, found.columns, strict=True))
        for columns in by_arrow
    ]


def _answers(rows: pa.RecordBatch, texts: Sequence[str]) -> list[pa.RecordBatch]:
    """What each text gives, by one query if they give a column each."""
    with contextlib.suppress(SchemaError):  # asked alone, the text at fault is named
        if len(texts) > 1 and (found := _query(rows, texts)).num_columns == len(texts):
            return [found.select([number]) for number in range(len(texts))]
    return [_query(rows, [text]) for text in texts]


def _sql(expression: object, schema: pa.Schema) -> str:
    """The expression over columns of ``schema``, in DuckDB's dialect."""
    return _translated(_text(expression), schema)


def _text(expression: object) -> str:
    if isinstance(expression, str):
        return expression
    raise SchemaError(
        f"{expression} is a Spark column, which needs Spark; write it as SQL text, or as a function of Arrow columns"
    )


@lru_cache(maxsize=4096)
def _translated(expression: str, schema: pa.Schema) -> str:
    def type_of(text: str) -> pa.DataType | None:
        try:
            return _query(no_rows(schema), [f"{text} AS value"]).column(0).type
        except SchemaError:  # within a function of its own arguments
            return None

    return in_duckdb(expression, type_of)


def _query(rows: pa.RecordBatch, columns: Sequence[str], where: str | None = None) -> pa.RecordBatch:
    try:
        import duckdb
    except ImportError as error:
        raise EnvironmentSetupError(
            "evaluating SQL text without Spark needs DuckDB, which is not installed; pip install "
            "'asyncstate[testing]'"
        ) from error
    connection = getattr(_opened, "connection", None)
    if connection is None:
        connection = _opened.connection = duckdb.connect(config={"threads": 1})
        connection.execute("SET TimeZone = 'UTC'")
    numbered = pa.Table.from_batches([rows]).append_column(
        _NUMBER, pa.array(range(rows.num_rows), pa.int64())
    )
    connection.register("given", numbered)
    condition = "" if where is None else f" WHERE {where}"
    text = f'SELECT {", ".join(columns)} FROM given{condition} ORDER BY "{_NUMBER}"'
    try:
        found = connection.sql(text).to_arrow_table()
    except duckdb.Error as error:
        raise SchemaError(
            f"{', '.join(columns) if where is None else where}: {str(error).splitlines()[0]} (Spark SQL text is "
            "evaluated by DuckDB here; a function of Arrow columns runs everywhere)"
        ) from error
    finally:
        connection.unregister("given")
    if _NUMBER in found.column_names:  # in the answer to ``*``
        found = found.drop_columns([_NUMBER])
    return _one_batch(found)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    columns = [
        column.combine_chunks() if column.num_chunks != 1 else column.chunk(0) for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=table.column_names)
