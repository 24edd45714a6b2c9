"""Functions of Arrow columns, applied to the rows of a DataFrame.

Owns: ``kept_where`` and ``with_arrow_columns``, and the functions that Spark's Python workers run for them.
Invariant: rows stay in their partitions and their order; nothing runs until the rows are read.
Must not import storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from asyncstate.dataflow.nodes import ArrowFunction, array_of
from asyncstate.spark.compatibility import arrow_schema, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class _Kept:
    condition: ArrowFunction

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(array_of(self.condition, batch, "where", pa.bool_()))


@dataclass(frozen=True)
class _Added:
    functions: Mapping[str, ArrowFunction]
    names: tuple[str, ...]
    types: Mapping[str, pa.DataType]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = {
                name: array_of(function, batch, name, self.types[name])
                for name, function in self.functions.items()
            }
            columns = [made[name] if name in made else batch.column(name) for name in self.names]
            yield pa.RecordBatch.from_arrays(columns, names=list(self.names))


def kept_where(df: DataFrame, condition: ArrowFunction) -> DataFrame:
    """The rows for which ``condition`` is true."""
    array_of(condition, _no_rows(df), "where", pa.bool_())
    return df.mapInArrow(_Kept(condition), df.schema)


def with_arrow_columns(df: DataFrame, functions: Mapping[str, ArrowFunction]) -> DataFrame:
    """All columns and those that the functions compute, which replace columns of the same names.

    Their types are those that the functions return for empty input.
    """
    types = {name: array_of(function, _no_rows(df), name).type for name, function in functions.items()}
    fields = {field.name: field for field in df.schema}
    for name, kind in types.items():
        fields[name] = StructField(name, spark_type(kind), True)
    return df.mapInArrow(_Added(functions, tuple(fields), types), StructType(list(fields.values())))


def _no_rows(df: DataFrame) -> pa.RecordBatch:
    schema = arrow_schema(df.schema)
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
