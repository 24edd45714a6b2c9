"""SQL over the streams of a job.

Owns: ``JobSql``: the statements of one ``StreamingJob``.
Invariant: tables are known as soon as they are declared; what a job's checkpoint has of a plan is used as long as its
text is the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow import Source, Stream
from asyncstate.errors import CheckpointCorruptionError, SqlError
from asyncstate.spark.exchange import arrow_schema_of
from asyncstate.sql.pipeline import table_of, view_of
from asyncstate.sql.statements import (
    Compiled,
    SqlContext,
    is_readable,
    plans_from_json,
    plans_to_json,
)
from asyncstate.storage import CheckpointFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PLANS: Final = "sql/"
"""Where plans are in a checkpoint."""
_JSON: Final = ".json"
_EARLIER: Final = "sql-earlier/"
"""Where those are of which operators have started with empty state since: a rollback may return to theirs."""


class JobSql:
    """The tables and statements of one job. ``committed``: the uids whose state the checkpoint has, None if there is
    none. ``plans``: the text of compiled statements, which are run instead of compiling any."""

    def __init__(
        self,
        spark: SparkSession,
        files: CheckpointFiles,
        committed: Collection[str] | None,
        plans: str | None,
    ) -> None:
        self._files = files
        self._stored = {name: files.get_bytes(name) for name in files.list(_PLANS) if name.endswith(_JSON)}
        stored = _plans(self._stored)
        earlier = _plans({name: files.get_bytes(name) for name in files.list(_EARLIER)})
        self.context = SqlContext(spark, {plan.name: plan for plan in stored}, committed, earlier)
        if plans is not None:
            self.context.give(plans_from_json(plans))

    @property
    def plans(self) -> str:
        """The compiled statements, as the text of a file."""
        return plans_to_json(self.context.compiled.values())

    def save(self) -> None:
        """Write the plans of the job into its checkpoint: the same statements run by them again, whatever the optimizer
        of another Spark makes of their texts."""
        for name, plan in self.context.compiled.items():
            if plan.root is None:
                continue
            place, text = f"{_PLANS}{name}.json", plan.to_json().encode()
            if self._stored.get(place) != text:
                for before in _plans({place: self._stored[place]} if place in self._stored else {}):
                    if before.generation != plan.generation:
                        kept = f"{_EARLIER}{name}/{before.generation}.json"
                        self._files.put_bytes(kept, self._stored[place])
                self._files.put_bytes(place, text)
                self._stored[place] = text

    def source(self, name: str, stream: Stream, df: DataFrame) -> None:
        """A source of the job as a table."""
        schema = arrow_schema_of(df)
        if ROW_KIND_COLUMN in df.columns:
            schema = schema.append(pa.field(ROW_KIND_COLUMN, pa.string()))
        self.context.add(name, table_of(stream, schema))

    def view(self, name: str, stream: Stream) -> None:
        """A stream of the graph as a table. Raises JobError for errors of the graph so far."""
        self.context.check_free(name)
        if isinstance(stream.node, Source):
            raise SqlError(
                f"'{stream.node.name}' is a source, and known by that name; use it in the statement"
            )
        self.context.add(name, view_of(stream))


def _plans(texts: Mapping[str, bytes]) -> list[Compiled]:
    """The plans of this format, by the names of their files. Others are compiled again. Raises
    CheckpointCorruptionError for what is no plan."""
    found = []
    for name, text in texts.items():
        try:
            found += [Compiled.from_json(text.decode())] if is_readable(text) else []
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointCorruptionError(
                f"{name} in the checkpoint is no compiled statement: {error!r}. Restore it from a copy; without it the "
                "statement would be compiled again, and not compared with the one whose state is there"
            ) from error
    return found
