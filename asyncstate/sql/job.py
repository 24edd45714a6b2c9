"""SQL over the streams of a job.

Owns: ``JobSql``: the statements of one ``StreamingJob``.
Invariant: tables are known as soon as they are declared; what a job's checkpoint has of a plan is used as long as its
text is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncstate.dataflow import Source, Stream
from asyncstate.errors import SqlError
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.sql.build import Built, Facts
from asyncstate.sql.pipeline import table_of
from asyncstate.sql.statements import SqlContext, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class JobSql:
    """The tables and statements of one job. ``facts_of``: checks the graph and returns the columns and changelog
    facts of a stream."""

    def __init__(self, spark: SparkSession, facts_of: Callable[[Stream], Any]) -> None:
        self._facts_of = facts_of
        self.context = SqlContext(spark)

    def source(self, name: str, stream: Stream, df: DataFrame) -> None:
        """A source of the job as a table."""
        self.context.add(name, table_of(stream, arrow_schema_of(df)))

    def view(self, name: str, stream: Stream) -> None:
        """A stream of the graph as a table. Raises JobError for errors of the graph so far."""
        if name in self.context.tables:
            raise SqlError(f"there is a table '{name}' already; give the view another name")
        if isinstance(stream.node, Source):
            raise SqlError(
                f"'{stream.node.name}' is a source, and known by that name; use it in the statement"
            )
        schema, changes = self._facts_of(stream)
        self.context.add(name, Table(Built(stream, Facts(schema, changes))))
