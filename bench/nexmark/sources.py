"""Where a benchmark's events come from: Parquet files in event order, or a live rate.

Owns: writing the event files, their order for a file stream, and the streams over them.
Invariant: files sort by modification time and by name in the order of their events, so that a file stream
which takes ``files_per_micro_batch`` files a trigger sees micro-batch k as the events [k * m, (k + 1) * m).
Must not import asyncstate beyond its errors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.errors import ConfigurationError
from bench.nexmark.config import MAX_EVENT_ID, GeneratorConfig
from bench.nexmark.generator import EVENT_SCHEMA, events

CODEGEN_SETTINGS = {"spark.sql.codegen.hugeMethodLimit": "8000"}
"""HotSpot does not compile methods above 8000 bytes; as one such, the event columns run five times slower."""

_WRITE_SETTINGS = CODEGEN_SETTINGS | {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}
_DESCRIPTION = "_events.json"
_FIRST_MTIME_S = 1_577_836_800
_PARQUET_OPTIONS = {
    # Nearly every string of an event is new, so a dictionary costs time and saves nothing.
    "parquet.enable.dictionary": "false",
    "compression": "snappy",
}


@dataclass(frozen=True)
class EventFiles:
    """A folder of event files.

    Attributes:
        path: The folder; ``*.parquet`` in it are all the events.
        events: How many.
        micro_batch_events: Events a micro-batch; the last one may have fewer.
        files_per_micro_batch: Files a micro-batch.
    """

    path: Path
    events: int
    micro_batch_events: int
    files_per_micro_batch: int

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a file stream makes of them."""
        return -(-self.events // self.micro_batch_events)

    @property
    def files(self) -> list[Path]:
        """The files in event order."""
        return sorted(self.path.glob("*.parquet"))


def write_events(
    spark: SparkSession,
    path: Path | str,
    events: int,
    micro_batch_events: int,
    config: GeneratorConfig | None = None,
    files_per_micro_batch: int = 1,
) -> EventFiles:
    """Write the events 0 to ``events - 1`` as Parquet files in event order; keep a folder that has them.

    Args:
        spark: The session that generates them.
        path: The folder. What it has is replaced, unless it is not a folder of events.
        events: How many, from 1.
        micro_batch_events: Events a micro-batch, a multiple of ``files_per_micro_batch``.
        config: The generator's settings, the benchmark's own by default.
        files_per_micro_batch: More than one lets Spark read a micro-batch on several cores.

    Raises:
        ConfigurationError: A number is out of range, or ``path`` has something else in it.
    """
    config = config or GeneratorConfig()
    _check(events, micro_batch_events, files_per_micro_batch)
    written = EventFiles(Path(path), events, micro_batch_events, files_per_micro_batch)
    description = _description(written, config)
    if _clear_unless_equal(written.path, description):
        return written
    _write(spark, written, config)
    (written.path / _DESCRIPTION).write_bytes(description)
    return written


def file_stream(spark: SparkSession, source: EventFiles) -> DataFrame:
    """The events as a file stream; the trigger ``availableNow`` makes ``source.micro_batches`` of it."""
    reader = spark.readStream.schema(EVENT_SCHEMA).option("maxFilesPerTrigger", source.files_per_micro_batch)
    return reader.parquet(str(source.path))


def rate_stream(
    spark: SparkSession, rows_per_batch: int, config: GeneratorConfig | None = None, partitions: int = 2
) -> DataFrame:
    """Events without end, ``rows_per_batch`` a micro-batch from event 0 on, for a live demonstration.

    The trigger decides how many micro-batches a second there are.
    """
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
    ids = reader.option("numPartitions", partitions).load()
    return events(ids, config, id_column="value")


def _check(events: int, micro_batch_events: int, files_per_micro_batch: int) -> None:
    if not 1 <= events <= MAX_EVENT_ID:
        raise ConfigurationError(f"Nexmark source: {events} events; ask for 1 to {MAX_EVENT_ID}")
    if files_per_micro_batch < 1 or micro_batch_events < 1 or micro_batch_events % files_per_micro_batch:
        raise ConfigurationError(
            f"Nexmark source: {micro_batch_events} events a micro-batch cannot be split evenly over "
            f"{files_per_micro_batch} files; make it a positive multiple of the number of files"
        )


def _description(written: EventFiles, config: GeneratorConfig) -> bytes:
    """What decides the content of the folder; written last, it also says that the files are complete."""
    facts = {**asdict(written), "config": asdict(config)}
    del facts["path"]
    return msgspec.json.encode(facts, order="sorted")


def _clear_unless_equal(path: Path, description: bytes) -> bool:
    """True if ``path`` has exactly the described events; otherwise an older set of events is removed."""
    if not path.exists():
        return False
    known = path / _DESCRIPTION
    if known.is_file() and known.read_bytes() == description:
        return True
    strangers = [
        entry.name for entry in path.iterdir() if entry.suffix != ".parquet" and entry.name != _DESCRIPTION
    ]
    if strangers:
        raise ConfigurationError(
            f"Nexmark source: {path} contains other files than events, such as '{min(strangers)}'; give an empty or a "
            "new folder"
        )
    shutil.rmtree(path)
    return False


def _write(spark: SparkSession, written: EventFiles, config: GeneratorConfig) -> None:
    """One Spark job: a partition of the sequence is a file."""
    per_file = written.micro_batch_events // written.files_per_micro_batch
    files = -(-written.events // per_file)
    scratch = written.path.with_name(f".{written.path.name}.writing")
    ids = spark.range(0, files * per_file, 1, files).where(F.col("id") < written.events)
    with _settings(spark, _WRITE_SETTINGS):
        events(ids, config).write.mode("overwrite").options(**_PARQUET_OPTIONS).parquet(str(scratch))
    written.path.mkdir(parents=True)
    for number, file in enumerate(sorted(scratch.glob("part-*.parquet"))):
        target = written.path / f"events-{number:06d}.parquet"
        file.rename(target)
        # Steps of a second: a file stream orders by modification time, and some file systems keep no less.
        os.utime(target, (_FIRST_MTIME_S + number, _FIRST_MTIME_S + number))
    shutil.rmtree(scratch)


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, earlier in before.items():
            spark.conf.unset(key) if earlier is None else spark.conf.set(key, earlier)
