"""Fixtures of the Spark layer's tests: a log of the runs, and a way to make jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstate.config import resolve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.spark import StreamingJob

IN_DRIVER = pytest.mark.since_spark("4.0", "operators in the driver's process")
PLACES = pytest.mark.parametrize("executor", ["spark", pytest.param("local", marks=IN_DRIVER)])
"""Where the operators of a job run."""


@pytest.fixture
def run_log(tmp_path: Path) -> str:
    """An empty file in which tasks note that they ran."""
    path = tmp_path / "runs.txt"
    path.touch()
    return str(path)


@pytest.fixture
def make_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., StreamingJob]:
    """Makes jobs over one checkpoint folder, as a restarted query does; three partitions by default. ``tuning`` holds
    for all until the next one is made."""
    from asyncstate.spark import StreamingJob

    def make(session: SparkSession | None = None, /, **changes: Any) -> StreamingJob:
        options = {
            "async-state.parallelism": 3,
            "async-state.local-dir": str(tmp_path / "local"),
            **changes.pop("options", {}),
        }
        tuned = functools.partial(resolve, tuning=changes.pop("tuning", None))
        monkeypatch.setattr("asyncstate.spark.job.resolve", tuned)
        folder = changes.pop("checkpoint_dir", str(tmp_path / "checkpoint"))
        hooks = {f"_{name}": changes.pop(name) for name in ("clock", "run") if name in changes}
        return StreamingJob(session or spark, folder, options, **{"name": "job", **changes, **hooks})

    return make
