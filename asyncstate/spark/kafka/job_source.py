"""``job.kafka``: a topic as a source of a graph, with the messages that cannot be read as a side output.

Owns: ``kafka_source`` and ``KafkaStream``.
Invariant: a message gives rows, or one row of the side output.
Must not import runtime, storage or execution.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from pyspark.sql import functions as sf

from asyncstate.changelog import INSERT_ONLY, ROW_KIND_COLUMN, Changelog
from asyncstate.dataflow import Source, Stream, Transform
from asyncstate.dataflow.changelog_inference import source_changes
from asyncstate.errors import ConfigurationError, JobError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.facts import marked_rows, source_facts
from asyncstate.spark.kafka.formats import MessageFormat
from asyncstate.spark.kafka.registry import SchemaRegistry, decoded
from asyncstate.spark.sources.malformed import MARKED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncstate.spark.job import StreamingJob

_log = logging.getLogger(__name__)

OnMalformed = Literal["fail", "drop", "output"]
SIDE: Final = "malformed"
"""The name of the side output."""


class KafkaStream(Stream):
    """The rows of a topic; ``output("malformed")`` has the messages that could not be read."""

    def __init__(self, rows: Stream, dead: Stream | None) -> None:
        super().__init__(rows._flow, rows.node)
        self._dead = dead

    def output(self, name: str) -> Stream:
        """The messages that could not be read: Kafka's columns, and the reason in ``malformed``."""
        if self._dead is not None and name == SIDE:
            return self._dead
        raise JobError(
            f"source '{self.node.name}' has no side output {name!r}; give job.kafka(..., malformed='output'), and call "
            f"output('{SIDE}')"
        )


def kafka_source(
    job: StreamingJob,
    name: str,
    df: DataFrame,
    message_format: MessageFormat | None,
    registry: SchemaRegistry | None,
    malformed: OnMalformed,
    declared: Mapping[str, Any],
) -> KafkaStream:
    """Declare ``df``, the messages of a topic, as the source ``name`` of the job; see ``StreamingJob.kafka``."""
    if malformed not in ("fail", "drop", "output"):
        raise ConfigurationError(
            f"source '{name}': malformed={malformed!r} is none of 'fail', 'drop' and 'output'"
        )
    if message_format is None:
        if registry is not None or malformed != "fail":
            raise ConfigurationError(
                f"source '{name}': registry and malformed say how messages are read; give the format, such as "
                "Json('id bigint not null, name string')"
            )
        return KafkaStream(job.source(name, df, **declared), None)
    if not callable(getattr(message_format, "rows", None)):
        raise ConfigurationError(
            f"source '{name}': format is {message_format!r}; give Json(...) or Debezium(...) of asyncstate.spark.kafka"
        )
    decimals = getattr(message_format, "decimals", None)
    messages = df if registry is None else decoded(df, registry, decimals=decimals)
    if malformed != "output":
        rows = message_format.rows(messages, malformed)
        if malformed == "drop" and marked_rows(rows) is None:
            _log.warning(
                "source '%s': what %r drops is not counted, because it does not return what a reader of "
                "asyncstate.spark.sources has returned",
                name,
                message_format,
            )
        return KafkaStream(job.source(name, rows, **declared), None)
    return _with_output(job, name, message_format.rows(messages, "marked"), dict(declared))


def _with_output(job: StreamingJob, name: str, df: DataFrame, declared: dict[str, Any]) -> KafkaStream:
    """Both kinds of rows in one source, which two transformations part."""
    given = declared.get("mode"), declared.get("changelog"), declared.get("primary_key")
    declared["mode"], declared["primary_key"] = source_facts(name, df, *given)
    declared["changelog"] = None
    initial = declared.get("initial")
    if initial is not None:
        declared["initial"] = initial.withColumn(MARKED, sf.lit(None).cast(df.schema[MARKED].dataType))
    both = job.source(name, df, **declared)
    assert isinstance(both.node, Source)
    columns = [column for column in df.columns if column != MARKED]
    changes = source_changes(both.node, columns, ROW_KIND_COLUMN in columns)

    def readable_messages(rows: DataFrame) -> DataFrame:
        return rows.where(f"{quoted(MARKED)} is null").select(*map(quoted, columns))

    def malformed_messages(rows: DataFrame) -> DataFrame:
        return rows.where(f"{quoted(MARKED)} is not null").select(f"{quoted(MARKED)}.*")

    def transformed(function: Callable[[DataFrame], DataFrame], changes: Changelog, **more: Any) -> Stream:
        return both._flow.add(
            Transform(
                name=both._flow.named("transform"),
                place=both.node.place,
                inputs=(both.node,),
                kind="transform",
                expressions=(function,),
                changes=changes,
                **more,
            )
        )

    # The columns that are declared for time and order are those of the format.
    dead = transformed(malformed_messages, INSERT_ONLY, inherits=False)
    return KafkaStream(transformed(readable_messages, changes, row_by_row=True), dead)
