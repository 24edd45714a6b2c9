"""What client and server of a Connect job tell each other in the checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from asyncstate.driver.progress import Progress
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.storage import LocalFiles


class Unsteady(LocalFiles):
    """Files of which the first reads fail."""

    failures = 0

    def get_bytes(self, name: str) -> bytes:
        if self.failures:
            self.failures -= 1
            raise OSError("no answer")
        return super().get_bytes(name)


def progress(number: int) -> Progress:
    return Progress(
        job="job",
        batch_id=number,
        started_at="2026-01-01T00:00:00Z",
        final=False,
        watermark_us=None,
        watermark_waits_for=[],
        sources=[],
        dropped={},
        total_seconds=1.0,
        function_seconds=0.5,
        commit_seconds=0.5,
        operators={},
    )


def numbers(found: list[Progress]) -> list[int]:
    return [one["batch_id"] for one in found]


def test_progress_that_cannot_be_read_comes_later(tmp_path: Path) -> None:
    files = Unsteady(tmp_path)
    server, client = ConnectFiles(files, "run"), ConnectFiles(files, "run")
    for number in range(3):
        server.write_progress(progress(number))
    files.failures = 1
    assert client.new_progress() == []
    assert numbers(client.new_progress()) == [0, 1, 2]
    server.write_progress(progress(3))
    assert numbers(client.new_progress()) == [3]


def test_progress_in_another_format_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = LocalFiles(tmp_path)
    server, client = ConnectFiles(files, "run"), ConnectFiles(files, "run")
    server.write_progress(progress(0))
    files.put_bytes(f"connect/run/progress-{1:020d}", b"{}")
    server.write_progress(progress(2))
    with caplog.at_level(logging.WARNING):
        assert numbers(client.new_progress()) == [0, 2]
    assert f"progress-{1:020d} cannot be read" in caplog.text
