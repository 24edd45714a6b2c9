"""SQL over the streams of a job.

Owns: ``JobSql``: the statements of one ``StreamingJob``.
Invariant: tables are known as soon as they are declared; what a job's checkpoint has of a plan is used as long as its
text is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncstate.dataflow import Source, Stream
from asyncstate.errors import SqlError
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.sql.build import Built, Facts
from asyncstate.sql.pipeline import table_of
from asyncstate.sql.statements import Compiled, SqlContext, Table, is_readable
from asyncstate.storage import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PLANS: Final = "sql/"
"""Where plans are in a checkpoint."""


class JobSql:
    """The tables and statements of one job."""

    def __init__(self, spark: SparkSession, files: CheckpointFiles) -> None:
        self._files = files
        self._stored = {name: files.get_bytes(name) for name in files.list(_PLANS)}
        plans = [Compiled.from_json(text.decode()) for text in self._stored.values() if is_readable(text)]
        self.context = SqlContext(spark, {plan.name: plan for plan in plans})  # others are compiled again

    def save(self) -> None:
        """Write the plans of the job into its checkpoint: the same statements run by them again, whatever the optimizer
        of another Spark makes of their texts."""
        for name, plan in self.context.compiled.items():
            place, text = f"{_PLANS}{name}.json", plan.to_json().encode()
            if self._stored.get(place) != text:
                self._files.put_bytes(place, text)
                self._stored[place] = text

    def source(self, name: str, stream: Stream, df: DataFrame) -> None:
        """A source of the job as a table."""
        self.context.add(name, table_of(stream, arrow_schema_of(df)))

    def view(self, name: str, stream: Stream) -> None:
        """A stream of the graph as a table. Raises JobError for errors of the graph so far."""
        self.context.check_free(name)
        if isinstance(stream.node, Source):
            raise SqlError(
                f"'{stream.node.name}' is a source, and known by that name; use it in the statement"
            )
        schema, changes = stream._flow.facts_of(stream.node)
        times = stream.node.times
        event_time = times.event_time if times.event_time in schema.names else None
        has_delay, has_sequence = times.watermark_delay is not None, bool(times.sequence)
        self.context.add(
            name, Table(Built(stream, Facts(schema, changes)), event_time, has_delay, has_sequence)
        )
