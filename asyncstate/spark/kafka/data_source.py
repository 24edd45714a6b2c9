"""The Python data source ``asyncstate-kafka``, for Spark 4.0 and newer, without a jar.

Owns: ``KafkaSource`` and its reader. The columns and options are those of Spark's own connector.
Invariant: what a micro-batch reads is decided by its two offsets, which Spark has stored before it runs.
Must not import runtime, storage or execution.

Source: Spark's Python Data Source API.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from asyncstate.errors import ConfigurationError
from asyncstate.spark.kafka.brokers import Brokers, read_range, report_loss
from asyncstate.spark.kafka.planned_offsets import Range, limited, lost, not_before, ranges
from asyncstate.spark.kafka.source_options import NAME, Offsets, SourceOptions, printable, source_options
from asyncstate.spark.task_errors import marking

if TYPE_CHECKING:
    from confluent_kafka import Message
    from pyspark.sql.types import StructType

COLUMNS: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int"
)
HEADERS: Final = ", headers array<struct<key: string, value: binary>>"
_LIMITS_SINCE: Final = (4, 2)

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # before Spark 4.2 a Python source has no limits
        ReadAllAvailable = ReadMaxRows = None
        SupportsTriggerAvailableNow = object


class KafkaSource(DataSource):
    """``spark.dataSource.register(KafkaSource)``, then ``spark.readStream.format("asyncstate-kafka")``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def schema(self) -> str:
        """The columns of Spark's own connector. Raises ConfigurationError for invalid options."""
        options = checked_options(self.options)
        return COLUMNS + (HEADERS if options.headers else "")

    def streamReader(self, schema: StructType) -> KafkaReader:  # noqa: N802
        """A reader with the checked options."""
        return KafkaReader(checked_options(self.options), schema)

    def __repr__(self) -> str:
        return f"<KafkaSource {printable(self.options)}>"


def checked_options(given: Mapping[str, str]) -> SourceOptions:
    """The options, which this version of Spark must be able to keep. Raises ConfigurationError."""
    options = source_options(given)
    if options.max_rows and not has_limits():
        raise ConfigurationError(
            f"{NAME}: maxOffsetsPerTrigger needs Spark 4.2, and this is {pyspark.__version__}: its Python sources have "
            "no limits. Leave it out, or use Spark's own connector (docs/sources.md)"
        )
    return options


def has_limits() -> bool:
    """Whether Python sources of this Spark can limit a micro-batch."""
    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    return found is not None and tuple(map(int, found.groups())) >= _LIMITS_SINCE


@dataclass
class RangePartition(InputPartition):
    """The offsets that one task reads."""

    range: Range


class KafkaReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans offsets in one process of the driver, and reads ranges in tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._initial: Offsets | None = None
        self._first: tuple[Offsets, Offsets] | None = None
        self._has_begun = False
        self._until: Offsets | None = None
        self._brokers: Brokers | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_brokers": None}

    def initialOffset(self) -> Offsets:  # noqa: N802
        """The offsets where a query without a committed micro-batch begins."""
        with marking(self._options.mark):
            self._initial = self._asked().starting()
            return self._initial

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """As many rows as ``maxOffsetsPerTrigger`` says, by default all."""
        return ReadMaxRows(self._options.max_rows) if self._options.max_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there now, and no further."""
        with marking(self._options.mark):
            self._until = self._last()

    def latestOffset(self, start: Offsets | None = None, limit: Any = None) -> Offsets:  # noqa: N802
        """The offsets up to which the next micro-batch reads; before Spark 4.2 without arguments."""
        with marking(self._options.mark):
            if start is not None and start == self._initial and not self._has_begun:
                self._has_begun = True
                if self._options.begins_at_end:
                    # Spark stores the end of a micro-batch alone, and asks for the start of the first one again when
                    # it repeats it. An end moves on, so only an empty one is the same then.
                    self._until = None if self._until is None else not_before(self._until, start)
                    return start
            last = self._last() if self._until is None else self._until
            if start is None:
                return last
            if self._options.fails_on_loss:  # otherwise ``partitions`` reports it, once
                self._check_loss(start, last)
            most = getattr(limit, "max_rows", None)
            return last if most is None else limited(start, last, most)

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """See ``DataSourceStreamReader``: for the progress alone, so that brokers are not asked again."""
        return None

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """One range for each partition with messages between the offsets.

        Spark asks a query whose first micro-batch was not committed for a new start, which "latest" may put after the
        end of that micro-batch: nothing lies between them then, and nothing was lost.
        """
        planned = ranges(start, end)
        if self._first is None and start == self._initial:
            self._first = start, end
        if self._first == (start, end):
            return [RangePartition(one) for one in planned if not one.is_reset]
        with marking(self._options.mark):
            self._check_loss(start, end)
        return [RangePartition(one) for one in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in a task."""
        assert isinstance(partition, RangePartition)
        with marking(self._options.mark):
            schema = arrow_schema(self._schema)
            for messages in read_range(self._options, partition.range):
                yield batch_of(partition.range, messages, schema)

    def stop(self) -> None:
        """Close the client of the brokers."""
        self._brokers = None

    def _check_loss(self, start: Offsets, last: Offsets) -> None:
        gone = lost(start, last)
        if gone:
            report_loss(self._options, "; ".join(gone))

    def _last(self) -> Offsets:
        brokers = self._asked()
        return brokers.ends(brokers.partitions())

    def _asked(self) -> Brokers:
        if self._brokers is None:
            self._brokers = Brokers(self._options)
        return self._brokers


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that this version of Spark expects."""
    from pyspark.sql.pandas.types import to_arrow_schema

    convert: Callable[..., pa.Schema] = to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # before Spark 4.2 it always was UTC
        return convert(schema)


def batch_of(part: Range, messages: list[Message], schema: pa.Schema) -> pa.RecordBatch:
    """The messages as rows of ``schema``."""
    count = len(messages)
    times = [message.timestamp() for message in messages]
    columns = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(part.topic, pa.string()), count),
        pa.repeat(pa.scalar(part.partition, pa.int32()), count),
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([ms if kind else None for kind, ms in times], pa.int64()).cast(pa.timestamp("ms")),
        pa.array([kind - 1 for kind, _ in times], pa.int32()),
    ]
    if len(schema) > len(columns):
        headers: list[Any] = [message.headers() for message in messages]
        columns.append(
            pa.array(
                [
                    None if one is None else [{"key": key, "value": value} for key, value in one]
                    for one in headers
                ],
                schema.field(len(columns)).type,
            )
        )
    typed = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(typed, schema=schema)
