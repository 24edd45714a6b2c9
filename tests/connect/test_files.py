"""What client and server of a Connect job tell each other in the checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyarrow import fs

pytest.importorskip("pyspark")

from asyncstate.driver.job_driver import HISTORY_BATCHES_MAX
from asyncstate.driver.progress import Progress
from asyncstate.errors import CheckpointError, EnvironmentSetupError, JobError
from asyncstate.spark.connect_batch import ServerBatch
from asyncstate.spark.connect_client import lost_server, server_named
from asyncstate.spark.connect_files import ConnectFiles
from asyncstate.storage import LocalFiles
from asyncstate.storage.object_files import ObjectFiles


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


def test_the_server_sees_in_an_object_store_that_the_client_has_begun(tmp_path: Path) -> None:
    """There a file without content is a mark of a folder, and none of the checkpoint's."""
    files = ObjectFiles(fs.LocalFileSystem(), str(tmp_path), str(tmp_path))
    server = ConnectFiles(files, "run")
    with pytest.raises(CheckpointError, match="finds another folder"):
        server.check_begun("job")
    ConnectFiles(files, "run").begin()
    server.check_begun("job")


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


def test_the_client_deletes_what_it_has_read(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    server, client = ConnectFiles(files, "run"), ConnectFiles(files, "run")
    client.begin()
    for number in range(3):
        server.write_progress(progress(number))
    assert numbers(client.new_progress()) == [0, 1, 2]
    assert files.list("connect/") == ["connect/run/begun"]
    assert client.new_progress() == []
    client.ask_to_stop()
    server.refuse()
    client.end()
    assert files.list("connect/") == ["connect/run/begun"]


def test_without_a_client_the_newest_progress_is_kept(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    server = ConnectFiles(files, "run")
    for number in range(HISTORY_BATCHES_MAX + 7):
        server.write_progress(progress(number))
    assert numbers(ConnectFiles(files, "run").new_progress()) == list(range(7, HISTORY_BATCHES_MAX + 7))
    server.write_progress(progress(HISTORY_BATCHES_MAX + 7))
    ConnectFiles(files, "another").begin()
    assert files.list("connect/") == ["connect/another/begun"]


def test_a_server_with_another_folder_is_refused(tmp_path: Path) -> None:
    ConnectFiles(LocalFiles(tmp_path / "client"), "run").begin()
    ConnectFiles(LocalFiles(tmp_path / "client"), "run").check_begun("job")
    with pytest.raises(
        CheckpointError, match=r"job 'job': .* finds another folder .*/server than the client"
    ):
        ConnectFiles(LocalFiles(tmp_path / "server"), "run").check_begun("job")


def test_a_server_with_another_version_is_refused() -> None:
    batch = ServerBatch(b"no pickle", "mark", "0.0.1")
    with pytest.raises(
        EnvironmentSetupError, match=r"has asyncstate .*, and the client 0\.0\.1; install the same"
    ):
        batch(SimpleNamespace(sparkSession=None), 0)  # type: ignore[arg-type]


def test_a_lost_server_is_named() -> None:
    for text in (
        "[RETRIES_EXCEEDED] The maximum number of retries has been exceeded.",
        "<_InactiveRpcError of RPC that terminated with: status = StatusCode.UNAVAILABLE",
        "[INVALID_HANDLE.SESSION_CHANGED] The handle 1 is invalid. The existing Spark server driver has restarted.",
        "[INVALID_HANDLE.SESSION_NOT_FOUND] The handle 1 is invalid. Session not found.",
        "[RESPONSE_ALREADY_RECEIVED] OPERATION_NOT_FOUND on the server but responses were already received from it.",
        "Received incorrect session identifier for request:1 != 2",
        "Received incorrect server side session identifier for request. Please create a new Spark Session to "
        "reconnect. (1 != 2)",
    ):
        lost = lost_server("job", RuntimeError(text))
        assert lost is not None
        assert "job 'job': the server of Spark Connect has ended" in str(lost)
        assert str(lost.__cause__) == text
        with pytest.raises(JobError, match="the server of Spark Connect has ended"), server_named("job"):
            raise RuntimeError(text)
    assert lost_server("job", RuntimeError("[PATH_NOT_FOUND] no such folder")) is None
    with pytest.raises(RuntimeError, match="no such folder"), server_named("job"):
        raise RuntimeError("no such folder")
