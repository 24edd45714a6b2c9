"""Functions of Arrow columns, applied to the rows of a DataFrame.

Owns: ``kept_where`` and ``with_arrow_columns``, and the functions that Spark's Python workers run for them.
Invariant: rows stay in their partitions and their order; nothing runs until the rows are read. A function gets the
types that it would get in an operator's task: timestamps in UTC, whatever the session's time zone.
Must not import storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from asyncstate.dataflow.arrow_rows import no_rows
from asyncstate.dataflow.nodes import ArrowFunction, array_of
from asyncstate.driver.sent_columns import cast
from asyncstate.spark.compatibility import arrow_schema, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class _Kept:
    condition: ArrowFunction
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(array_of(self.condition, _given(batch, self.schema), "where", pa.bool_()))


@dataclass(frozen=True)
class _Added:
    functions: Mapping[str, ArrowFunction]
    schema: pa.Schema
    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            given = _given(batch, self.schema)
            made = {
                name: array_of(function, given, name, self.types[name])
                for name, function in self.functions.items()
            }
            columns = [made[name] if name in made else batch.column(name) for name in self.names]
            yield pa.RecordBatch.from_arrays(columns, names=list(self.names))


def _given(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def kept_where(df: DataFrame, condition: ArrowFunction) -> DataFrame:
    """The rows for which ``condition`` is true."""
    schema = arrow_schema(df.schema)
    array_of(condition, no_rows(schema), "where", pa.bool_())
    return df.mapInArrow(_Kept(condition, schema), df.schema)


def with_arrow_columns(df: DataFrame, functions: Mapping[str, ArrowFunction]) -> DataFrame:
    """All columns and those that the functions compute, which replace columns of the same names.

    Their types are those that the functions return for empty input.
    """
    schema = arrow_schema(df.schema)
    empty = no_rows(schema)
    types = {name: array_of(function, empty, name).type for name, function in functions.items()}
    fields = {field.name: field for field in df.schema}
    for name, kind in types.items():
        fields[name] = StructField(name, spark_type(kind), True)
    return df.mapInArrow(_Added(functions, schema, tuple(fields), types), StructType(list(fields.values())))
