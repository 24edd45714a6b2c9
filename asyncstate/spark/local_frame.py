"""Rows in the driver's process as a DataFrame: Spark gets them when something reads them through Spark.

Owns: ``LocalFrame`` and ``local_transformed``, which computes with its rows; ``Collector``, which brings rows of
DataFrames here.
Invariant: Spark sees the rows that are here; a LocalFrame has the schema that the same rows would have if Spark
computed them.
Must not import runtime's tasks or storage.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructField, StructType, UserDefinedType

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow import Transform, Union
from asyncstate.dataflow.arrow_rows import arrow_transformed
from asyncstate.dataflow.changelog_inference import passed_columns
from asyncstate.dataflow.sql_text import columns_in, plain_column
from asyncstate.driver.sent_columns import cast
from asyncstate.errors import JobError
from asyncstate.metrics import DROPPED, Observed
from asyncstate.spark.compatibility import (
    arrow_schema,
    collation_of,
    observed_metrics,
    setting_of,
    spark_type,
)
from asyncstate.spark.exchange import nullable_type, types_in
from asyncstate.spark.facts import local_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


try:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
except ImportError:  # Spark 3.5 has one kind of DataFrames, and no rows here
    ClassicDataFrame = DataFrame  # type: ignore[assignment,misc]


_BATCH_ROWS: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_RESULT_SIZE: Final = "spark.driver.maxResultSize"
"""In the error of a job whose results are too large for the driver."""
_LENGTH: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""In the metadata of a column of strings with a length."""


class LocalFrame(ClassicDataFrame):
    """Rows in this process, in ``batches`` of the Arrow columns of ``struct``. Any use of it as a DataFrame works; what
    reads it through Spark copies the rows into the JVM, once."""

    def __new__(cls, *_: Any, **__: Any) -> LocalFrame:
        """Pyspark's own takes the arguments of its own constructor."""
        return object.__new__(cls)

    def __init__(self, batches: Sequence[pa.RecordBatch], struct: StructType, spark: SparkSession) -> None:
        self._batches = tuple(batches)
        self._struct = struct
        self._plan: Any = None
        self._lock = threading.Lock()
        super().__init__(None, spark)  # see _jdf

    @property
    def _jdf(self) -> Any:
        with self._lock:  # all threads of the user's function get one plan: columns belong to theirs
            if self._plan is None:
                struct = local_rows(self._struct)
                rows: Any = self.table if self.batches else []  # pyspark takes no table without a chunk
                try:
                    self._plan = _created(self.sparkSession, rows, struct)._jdf
                except AttributeError as error:  # of a property, pyspark would say that there is no _jdf
                    raise JobError(f"rows in the driver cannot be sent to Spark: {error}") from error
            return self._plan

    @_jdf.setter
    def _jdf(self, plan: Any) -> None:
        """Replaces the rows, as ``exchange.withdraw`` does."""
        self._plan = plan
        if plan is not None:
            self._batches = ()

    @property
    def schema(self) -> StructType:  # a cached property there
        """Its columns."""
        return self._struct

    @property
    def isStreaming(self) -> bool:  # noqa: N802  # pyspark's name
        """False."""
        return False

    @property
    def batches(self) -> tuple[pa.RecordBatch, ...]:
        """The rows. Raises what ``withdraw`` says if they have been released."""
        if self._plan is not None and not self._batches:
            self._plan.logicalPlan  # noqa: B018  # the error of rows that are released
        return self._batches

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(in_utc(self.batches, self._struct), arrow_schema(self._struct))

    @property
    def batch(self) -> pa.RecordBatch:
        """All rows as one batch."""
        if len(self.batches) == 1:
            return self.batches[0]
        whole = self.table.combine_chunks().to_batches()
        return whole[0] if whole else pa.RecordBatch.from_pylist([], arrow_schema(self._struct))

    def select(self, *columns: Any) -> DataFrame:
        """The selected columns."""
        if len(columns) == 1 and isinstance(columns[0], str) and columns[0] == "*":
            # Another object of the same rows, to which other facts are attached.
            return LocalFrame(self.batches, self._struct, self.sparkSession)
        return super().select(*columns)


def _created(spark: SparkSession, rows: pa.Table | list[Any], struct: StructType) -> DataFrame:
    try:
        return spark.createDataFrame(rows, struct)
    except ValueError:
        bound = setting_of(spark, _BATCH_ROWS)
        if bound is None or int(bound) > 0:
            raise
    # To Spark it means that batches have no bound; pyspark cuts a table by it, and cannot.
    spark.conf.set(_BATCH_ROWS, str(len(rows)))
    try:
        return spark.createDataFrame(rows, struct)
    finally:
        spark.conf.set(_BATCH_ROWS, bound)


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [cast(column, field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def local_transformed(
    node: Transform | Union, inputs: Sequence[DataFrame], kinds: bool = False
) -> LocalFrame | None:
    """The rows of a row-by-row node over rows that are here; None if Spark must compute them."""
    frames = [one for one in inputs if isinstance(one, LocalFrame)]
    if len(frames) < len(inputs):
        return None
    first = frames[0]
    if isinstance(node, Union):
        if any(one.schema != first.schema for one in frames[1:]):
            return None  # other order, other types, or kinds in some of them
        batches = in_utc([batch for one in frames for batch in one.batches], first.schema)
        return LocalFrame(batches, first.schema, first.sparkSession)
    if not _compares_bytes(node, first.schema):
        return None
    made = arrow_transformed(node, first.batch, kinds)
    if made is None:
        return None
    known = _unchanged(node, first.schema)
    fields = [
        known.get(field.name) or StructField(field.name, nullable_type(spark_type(field.type)), True)
        for field in made.schema
    ]
    return LocalFrame([made] if made.num_rows else [], StructType(fields), first.sparkSession)


def in_utc(batches: Sequence[pa.RecordBatch], struct: StructType) -> list[pa.RecordBatch]:
    """Batches of the columns of ``struct``, as operators get them: Spark sends times in the session's time zone."""
    schema = arrow_schema(struct)
    return [_as(batch, schema) for batch in batches]


def _compares_bytes(node: Transform, struct: StructType) -> bool:
    """Whether Spark compares texts byte by byte in what ``node`` computes, and so as Arrow does: not with another
    collation, and not where it pads them."""
    computed = [one for one in (*node.expressions, *node.named.values()) if not plain_column(one)[0]]
    names = {name for one in computed for name in columns_in(one)}
    return not any(
        field.name in names
        and isinstance(field.dataType, StringType)
        and (_LENGTH in (field.metadata or {}) or collation_of(field.dataType) is not None)
        for field in struct
    )


def _unchanged(node: Transform, struct: StructType) -> dict[str, StructField]:
    """The columns that ``node`` takes over as they are, by their new names."""
    before = {field.name: field for field in struct}
    stays = (
        [ROW_KIND_COLUMN] if node.kind == "select" else [name for name in before if name not in node.named]
    )
    passed = {name: name for name in stays}
    if node.kind in ("select", "with_columns"):
        passed |= {name: column for column, name in passed_columns(node, list(before))}
    return {
        name: StructField(name, field.dataType, field.nullable, field.metadata)
        for name, column in passed.items()
        if (field := before.get(column)) is not None
    }


def without_dropped(rows: LocalFrame) -> LocalFrame:
    """The rows that are not marked as dropped, without the marks."""
    struct = StructType([field for field in rows.schema if field.name != DROPPED])
    kept = [batch.filter(batch.column(DROPPED).is_null()).select(struct.names) for batch in rows.batches]
    return LocalFrame([batch for batch in kept if batch.num_rows], struct, rows.sparkSession)


def members(rows: LocalFrame, number_column: str, number: int, column: str) -> LocalFrame:
    """The members of the struct ``column``, as columns, of the rows with this number."""
    kind: Any = rows.schema[column].dataType
    struct = StructType([StructField(one.name, one.dataType, True, one.metadata) for one in kind])
    chosen = [
        batch.filter(pc.equal(batch.column(number_column), number)).column(column) for batch in rows.batches
    ]
    made = [pa.RecordBatch.from_arrays(one.flatten(), names=struct.names) for one in chosen if len(one)]
    return LocalFrame(made, struct, rows.sparkSession)


def has_arrow_types(schema: StructType) -> bool:
    """Whether rows with these columns can be brought here, and back: pyspark does not send types of users back."""
    if any(isinstance(one, UserDefinedType) for one in types_in(schema)):
        return False
    try:
        arrow_schema(schema)
    except (PySparkException, NotImplementedError, TypeError):
        return False
    return True


def without_kinds(rows: LocalFrame) -> LocalFrame:
    """The rows without ``row_kind``."""
    names = [name for name in rows.schema.names if name != ROW_KIND_COLUMN]
    struct = StructType([rows.schema[name] for name in names])
    return LocalFrame([batch.select(names) for batch in rows.batches], struct, rows.sparkSession)


class Collected(NamedTuple):
    """The rows of a DataFrame, and what Spark has observed meanwhile, by name."""

    batches: list[pa.RecordBatch]
    observed: dict[str, Observed]

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        """Their memory."""
        return sum(batch.nbytes for batch in self.batches)


class Collector:
    """Brings rows of DataFrames here. What it looks up in the JVM, it looks up once."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._literal, self._limit = catalyst.expressions.Literal, catalyst.plans.logical.LocalLimit
        self._number = jvm.org.apache.spark.sql.types.DataTypes.IntegerType
        self._dataset = jvm.org.apache.spark.sql.classic.Dataset.ofRows

    def collect(self, df: DataFrame, rows_max: int, names: Collection[str]) -> Collected | None:
        """The rows of ``df``, in one Spark job; None if Spark refuses their size. ``names``: of the metrics that Spark
        may observe meanwhile.

        A partition stops after ``rows_max`` + 1 rows, so what is too large is not read to its end.
        """
        if isinstance(df, LocalFrame):
            return Collected(list(df.batches), {})
        limited = self._limited(df, rows_max + 1)
        try:
            batches = [batch for batch in limited._collect_as_arrow() if batch.num_rows]
        except Exception as error:
            if _RESULT_SIZE in str(error):
                return None
            raise
        return Collected(batches, observed_metrics(limited, names))

    def _limited(self, df: DataFrame, rows: int) -> Any:
        """``df`` with at most ``rows`` rows of each partition: no public method limits without an exchange."""
        limit = self._limit(self._literal(rows, self._number), df._jdf.logicalPlan())
        return DataFrame(self._dataset(df.sparkSession._jsparkSession, limit), df.sparkSession)
