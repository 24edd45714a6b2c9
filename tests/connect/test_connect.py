"""Jobs over Spark Connect, on a real server: its process runs the micro-batches, the client's only declares them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from asyncstate.spark import StreamingJob
from asyncstate.spark.sinks import SqliteTarget, UpsertSink
from tests.conftest import ROOT
from tests.connect.programs import KEYS, ROWS, STATEMENT, _totals
from tests.connect.server import ConnectServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS_MAX = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    """One server for the tests that leave it alive."""
    started = ConnectServer(tmp_path_factory.mktemp("connect"))
    yield started
    started.kill()


@pytest.fixture
def mode(async_enabled: bool) -> str:
    """The mode of the jobs."""
    return "async" if async_enabled else "sync"


def client(name: str, server: ConnectServer, folder: Path, mode: str) -> subprocess.Popen[str]:
    """A running client."""
    code = (
        f"from tests.connect.programs import main; main({name!r}, {server.url!r}, {str(folder)!r}, {mode!r})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def result(name: str, server: ConnectServer, folder: Path, mode: str) -> Any:
    """What a client's program returns."""
    running = client(name, server, folder, mode)
    try:
        out, err = running.communicate(timeout=SECONDS_MAX)
    finally:
        running.kill()
    assert running.returncode == 0, f"{out}\n{err}\n{server.log.read_text()[-4000:]}"
    return json.loads(out.splitlines()[-1])


def test_a_graph_runs_on_the_server_and_reports_to_the_client(
    server: ConnectServer, tmp_path: Path, mode: str
) -> None:
    found = result("graph", server, tmp_path, mode)
    assert found["table"] == _totals(range(3 * ROWS))
    assert found["batches"] == found["reported"] == [0, 1, 2]
    assert found["rows"] == 3 * ROWS
    assert found["explained"]
    assert found["keys"] == KEYS


def test_what_a_reader_drops_is_counted_on_the_server(
    server: ConnectServer, tmp_path: Path, mode: str
) -> None:
    found = result("dropped", server, tmp_path, mode)
    assert found["table"] == {k: total for k, total in _totals(range(2 * ROWS)).items() if k != "0"}
    example = "not an event of this format, or more text follows it, in: no"
    assert found["dropped"] == 2 * [{"numbers": {"rows": ROWS // KEYS, "example": example}}]


def test_windows_of_two_sources_end_with_the_input(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("windows", server, tmp_path, mode)
    assert found["before"] == KEYS  # of the first window; the others wait for the end
    assert found["after"] == 3 * KEYS
    assert found["counts"] == [2 * ROWS // KEYS]


def test_a_function_uses_frames_and_session_of_the_client(
    server: ConnectServer, tmp_path: Path, mode: str
) -> None:
    found = result("function", server, tmp_path, mode)
    totals = _totals(range(2 * ROWS))
    assert found["last"] == {f"name {k}": totals[str(k)] for k in range(KEYS)}
    assert found["batches"] == [0, 1]


def test_a_source_starts_from_a_table(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    expected = {k: total + 1000 for k, total in _totals(range(ROWS)).items()}
    assert result("initial", server, tmp_path, mode) == expected


def test_errors_arrive_as_they_were_raised(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    operator, sink, statement, refused = result("errors", server, tmp_path, mode)
    assert operator[0] == "OperatorError"
    assert "operator 'balance'" in operator[1]
    assert "amount -30 of account 0" in operator[1]
    assert sink[:2] == ["LookupError", f"no place for {ROWS} rows"]
    assert "in micro-batch 0 of job 'job'" in sink[2]
    assert statement[0] == "ConfigurationError"
    assert "run `asyncstate sql compile job.sql -o plan.json` there" in statement[1]
    assert refused[0] == "JobError"
    assert "uses the job itself" in refused[1]


def test_statements_run_by_the_plans_of_a_classic_session(
    server: ConnectServer, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    (tmp_path / "empty").mkdir()
    numbers = spark.readStream.schema("k long, v long, at timestamp").parquet(str(tmp_path / "empty"))
    job = StreamingJob(spark, str(tmp_path / "classic"))
    job.source("numbers", numbers)
    job.sink("totals", UpsertSink("k", SqliteTarget(tmp_path / "out.db", "totals")))
    job.sql(STATEMENT)
    (tmp_path / "plan.json").write_text(job.compiled_plans())
    found = result("statements", server, tmp_path, mode)
    assert found["table"] == _totals(range(2 * ROWS))
    assert "the compiled plans do not have this statement" in found["refused"]


def test_an_operator_over_a_bounded_frame(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("batch", server, tmp_path, mode)
    assert found["totals"] == _totals(range(ROWS))
    assert "after unpersist()" in found["ended"]
    assert "amount -30 of account 0" in found["failed"]


def test_a_stopped_query_breaks_no_micro_batch_off(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("stopped", server, tmp_path, mode)
    assert found["ended"] == []
    assert not found["is_active"]
    committed, last = found["committed"]
    assert committed == last < 7
    assert found["batches"] == list(range(8))
    assert found["table"] == _totals(range(8 * ROWS))


def test_a_killed_server_loses_nothing(tmp_path: Path, mode: str) -> None:
    (tmp_path / "server").mkdir()
    server = ConnectServer(tmp_path / "server")
    try:
        for _ in range(2):
            running = client("killed", server, tmp_path, mode)
            assert running.stdout is not None
            line = running.stdout.readline()
            server.kill()
            running.kill()
            running.communicate()
            assert line.startswith("committed "), server.log.read_text()[-4000:]
            server.start()
        found = result("killed", server, tmp_path, mode)
    finally:
        server.kill()
    assert found == {"table": _totals(range(10 * ROWS)), "version": 9}
