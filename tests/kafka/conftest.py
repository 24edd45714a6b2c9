"""Fixtures of the tests with a broker: jobs, and a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.servers.registry import FakeRegistry, fake_registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.spark import StreamingJob


@pytest.fixture
def make_job(spark: SparkSession, tmp_path: Path) -> Callable[..., StreamingJob]:
    """Makes jobs over one checkpoint folder, as a restarted query does."""
    from asyncstate.spark import StreamingJob

    def make(**options: Any) -> StreamingJob:
        options = {"async-state.parallelism": 2, **options}
        return StreamingJob(spark, str(tmp_path / "checkpoint"), options, name="job")

    return make


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    """A schema registry of the test's own."""
    with fake_registry() as running:
        yield running
