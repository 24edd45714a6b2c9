"""Event files: their order, their boundaries, and what a file stream makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncstate.errors import ConfigurationError
from bench.nexmark.generator import CODEGEN_SETTINGS, EventFiles, file_stream, write_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

BASE_US = 1_436_918_400_000_000


def numbers_in(files: list[Path]) -> list[int]:
    """The event numbers in the files, in the order of their rows; an event lasts 100 microseconds."""
    times = pa.concat_tables([pq.read_table(file, columns=["dateTime"]) for file in files])["dateTime"]
    return [
        (time - BASE_US) // 100 for time in times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    ]


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> EventFiles:
    path = tmp_path_factory.mktemp("nexmark") / "events"
    before = {key: spark.conf.get(key) for key in CODEGEN_SETTINGS}
    written = write_events(spark, path, 1050, micro_batch_events=200, files_per_micro_batch=2)
    assert {key: spark.conf.get(key) for key in CODEGEN_SETTINGS} == before, "the session is left as it was"
    return written


def test_files_hold_the_events_in_order_with_even_boundaries(written: EventFiles) -> None:
    files = sorted(written.path.glob("*.parquet"))
    assert sorted(files, key=lambda file: file.stat().st_mtime) == files
    assert len({file.stat().st_mtime for file in files}) == len(files)
    assert [numbers_in([file]) for file in files[:10]] == [
        list(range(start, start + 100)) for start in range(0, 1000, 100)
    ]
    assert numbers_in(files) == list(range(1050))
    assert sorted(entry.name for entry in written.path.parent.iterdir()) == ["events"]


def test_a_file_stream_takes_one_micro_batch_after_another(
    spark: SparkSession, written: EventFiles, tmp_path: Path
) -> None:
    batches: list[list[int]] = []

    def collect(frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr(f"(unix_micros(dateTime) - {BASE_US}) div 100 AS n").collect()
        batches.append(sorted(row.n for row in rows))

    writer = file_stream(spark, written).writeStream.foreachBatch(collect).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    query.awaitTermination()
    assert batches == [list(range(start, min(start + 200, 1050))) for start in range(0, 1050, 200)]


@pytest.mark.parametrize(("count", "batch", "files"), [(0, 10, 1), (10, 0, 1), (10, 5, 2), (10, 10, 0)])
def test_numbers_out_of_range_are_refused(
    spark: SparkSession, tmp_path: Path, count: int, batch: int, files: int
) -> None:
    with pytest.raises(ConfigurationError, match="Nexmark source"):
        write_events(spark, tmp_path / "events", count, batch, files_per_micro_batch=files)
