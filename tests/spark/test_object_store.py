"""A streaming job whose checkpoint lies in an object store: driver and workers reach it by the same URI."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.storage import Checkpoint, checkpoint_files
from tests.s3_server import SECRET_KEY, S3Server
from tests.spark.modes import ASYNC
from tests.spark.parts import RunningTotal
from tests.spark.test_stateful import MakeJob, Rows, collected, enabled, numbers, running_totals

pytestmark = pytest.mark.spark


@ASYNC
def test_batches_restarts_and_rescaling(
    spark: SparkSession,
    make_job: MakeJob,
    s3: S3Server,
    async_enabled: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = s3.place()
    results: list[Rows] = []
    model: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    expected = []
    with caplog.at_level(logging.DEBUG, "asyncstate"):
        for batch_id, parallelism in enumerate([2, 2, 3]):
            # Other local folders: what workers know of earlier batches comes from the store alone.
            options = {
                "async-state.parallelism": parallelism,
                "async-state.snapshot-interval": 1,
                "async-state.local-dir": str(tmp_path / f"local-{batch_id}"),
            }
            job = make_job(checkpoint_dir=place, options=enabled(async_enabled, **options))
            start, end = batch_id * 30, batch_id * 30 + 30
            collected(job, RunningTotal(), results)(numbers(spark, start, end), batch_id)
            expected.append(running_totals(range(start, end), model))
    assert results == expected
    manifest = Checkpoint(checkpoint_files(place)).latest()
    assert manifest is not None
    assert manifest.batch_id == 2
    for text in (
        caplog.text,
        repr(job._driver._frame),
        repr(job.config),
        json.dumps(checkpoint_files(place).list("")),
    ):
        assert SECRET_KEY.replace("/", "%2F") not in text
        assert SECRET_KEY not in text


def test_a_missing_object_is_named_without_credentials(
    spark: SparkSession, make_job: MakeJob, s3: S3Server, tmp_path: Path
) -> None:
    place = s3.place()
    results: list[Rows] = []
    job = make_job(checkpoint_dir=place, options=enabled(False))
    collected(job, RunningTotal(), results)(numbers(spark, 0, 30), 0)
    files = checkpoint_files(place)
    lost = files.list("state/")[0]
    files.delete(lost)
    fresh = enabled(False, **{"async-state.local-dir": str(tmp_path / "other")})
    on_batch = collected(make_job(checkpoint_dir=place, options=fresh), RunningTotal(), results)
    with pytest.raises(CheckpointCorruptionError, match=lost) as missing:
        on_batch(numbers(spark, 30, 60), 1)
    assert "***@" in str(missing.value)
    with pytest.raises(CheckpointError, match=r"belongs to job 'job'") as other:
        make_job(checkpoint_dir=place, name="another")
    for raised in (missing, other):
        assert SECRET_KEY.replace("/", "%2F") not in str(raised.value)
