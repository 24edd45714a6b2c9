"""Where a benchmark's events come from: Parquet files in event order, and the stream over them.

Invariant: files sort by modification time and by name in the order of their events, so that a file stream
which takes ``files_per_micro_batch`` files a trigger sees micro-batch k as the events [k * m, (k + 1) * m).
Must not import asyncstate beyond its errors.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.errors import ConfigurationError
from bench.nexmark.generator import EVENT_SCHEMA, MAX_EVENT_ID, GeneratorConfig, events
from bench.nexmark.oracle import EVENT_KINDS, QuerySpec

CODEGEN_SETTINGS = {"spark.sql.codegen.hugeMethodLimit": "8000"}
"""HotSpot does not compile methods above 8000 bytes; as one such, the event columns run five times slower."""

_WRITE_SETTINGS = CODEGEN_SETTINGS | {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
_FIRST_MTIME_S = 1_577_836_800
# Nearly every string of an event is new, so a dictionary costs time and saves nothing.
_PARQUET_OPTIONS = {"parquet.enable.dictionary": "false", "compression": "snappy"}


@dataclass(frozen=True)
class EventFiles:
    """A folder of event files: ``*.parquet`` in it are all the events. The last micro-batch may have fewer."""

    path: Path
    events: int
    micro_batch_events: int
    files_per_micro_batch: int

    @property
    def micro_batches(self) -> int:
        return -(-self.events // self.micro_batch_events)

    @property
    def files(self) -> list[Path]:
        return sorted(self.path.glob("*.parquet"))


def write_events(
    spark: SparkSession,
    path: Path,
    events_: int,
    micro_batch_events: int,
    config: GeneratorConfig | None = None,
    files_per_micro_batch: int = 1,
) -> EventFiles:
    """Write the events 0 to ``events_ - 1`` as Parquet files in event order into a new folder, by one Spark job of
    which a partition of the sequence is a file. More files than one let Spark read a micro-batch on several cores.

    Raises ConfigurationError if a number is out of range.
    """
    if not 1 <= events_ <= MAX_EVENT_ID:
        raise ConfigurationError(f"Nexmark source: {events_} events; ask for 1 to {MAX_EVENT_ID}")
    if files_per_micro_batch < 1 or micro_batch_events < 1 or micro_batch_events % files_per_micro_batch:
        raise ConfigurationError(
            f"Nexmark source: {micro_batch_events} events a micro-batch cannot be split evenly over "
            f"{files_per_micro_batch} files; make it a positive multiple of the number of files"
        )
    per_file = micro_batch_events // files_per_micro_batch
    files = -(-events_ // per_file)
    scratch = path.with_name(f".{path.name}.writing")
    ids = spark.range(0, files * per_file, 1, files).where(F.col("id") < events_)
    before = {key: spark.conf.get(key, None) for key in _WRITE_SETTINGS}
    try:
        for key, value in _WRITE_SETTINGS.items():
            spark.conf.set(key, value)
        events(ids, config).write.mode("overwrite").options(**_PARQUET_OPTIONS).parquet(str(scratch))
    finally:
        for key, earlier in before.items():
            spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)
    path.mkdir(parents=True)
    for number, file in enumerate(sorted(scratch.glob("part-*.parquet"))):
        target = path / f"events-{number:06d}.parquet"
        file.rename(target)
        # Steps of a second: a file stream orders by modification time, and some file systems keep no less.
        os.utime(target, (_FIRST_MTIME_S + number, _FIRST_MTIME_S + number))
    shutil.rmtree(scratch)
    return EventFiles(path, events_, micro_batch_events, files_per_micro_batch)


def file_stream(spark: SparkSession, source: EventFiles) -> DataFrame:
    """The events as a file stream; the trigger ``availableNow`` makes ``source.micro_batches`` of it."""
    reader = spark.readStream.schema(EVENT_SCHEMA).option("maxFilesPerTrigger", source.files_per_micro_batch)
    return reader.parquet(str(source.path))


def narrow(events: DataFrame, spec: QuerySpec) -> DataFrame:
    """The kinds of events and the fields that a query needs, still as wide rows; for a stream or a batch.

    Applied before ``foreachBatch``, because after it Spark no longer prunes columns in the file reader.
    """
    kinds = [EVENT_KINDS.index(kind) for kind in spec.needs]
    structs = [
        F.when(
            F.col("event_type") == EVENT_KINDS.index(kind), F.struct(*[f"{kind}.{field}" for field in fields])
        )
        for kind, fields in spec.needs.items()
    ]
    named = [struct.alias(kind) for kind, struct in zip(spec.needs, structs, strict=True)]
    return events.where(F.col("event_type").isin(kinds)).select("event_type", *named)
