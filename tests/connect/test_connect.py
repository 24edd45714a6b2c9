"""Jobs over Spark Connect, on a real server: its process runs the micro-batches, the client's only declares them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from asyncstate.spark import StreamingJob
from asyncstate.spark.sinks import SqliteTarget, UpsertSink
from tests.conftest import ROOT
from tests.connect.programs import COMMIT, KEYS, PAUSED, RESUME, ROWS, STATEMENT, _totals, modes_of
from tests.connect.server import ConnectServer
from tests.servers.kafka import KafkaBroker, jars
from tests.sinks.places import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS_MAX = 240
SPARKS_OWN = pytest.param("spark", marks=pytest.mark.since_spark("4.2", "the release of the connector's jar"))
"""The connector of which ``.ci/servers`` has the jar, which no earlier Spark runs."""


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
    return ended(client(name, server, folder, mode), server)


def ended(running: subprocess.Popen[str], server: ConnectServer) -> Any:
    """What a running client's program returns."""
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
    assert found["measured"]
    assert "batch 2" in found["repr"]
    assert "sums" in found["html"]
    assert found["keys"] == KEYS
    assert found["metric"] == 3
    assert found["bar"][0] == "job: waiting for rows"
    assert found["bar"][1].startswith(f"last: batch 2, {ROWS} rows in ")
    assert found["left"] == ["begun"]


def test_nexmark_is_right(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    assert result("nexmark", server, tmp_path, mode) == {"q4": [], "q9": [], "q18": []}


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
    totals, more = _totals(range(2 * ROWS)), _totals(range(ROWS))
    assert found["last"] == {f"name {k}": totals[str(k)] + more[str(k)] for k in range(KEYS)}
    assert found["batches"] == [0, 1, 2]


def test_a_source_starts_from_a_table_and_another_is_one(
    server: ConnectServer, tmp_path: Path, mode: str
) -> None:
    expected = {k: total + 1005 for k, total in _totals(range(ROWS)).items()}
    assert result("initial", server, tmp_path, mode) == expected


def test_errors_arrive_as_they_were_raised(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    operator, sink, source, query = result("errors", server, tmp_path, mode)
    assert operator[0] == "OperatorError"
    assert "operator 'balance', key (0,): ValueError: amount -30 of account 0" in operator[1]
    assert sink[:2] == ["LookupError", f"no place for {ROWS} rows"]
    assert "in micro-batch 0 of job 'job'" in sink[2]
    assert source[0] == "SchemaError"
    assert source[1].startswith("debezium_json: ")
    assert "no 7" in source[1]
    assert query == ["False", "", "begun"]


def test_what_is_lost_is_refused_by_name(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("refused", server, tmp_path, mode)
    kinds = {name: kind for name, (kind, _) in found.items()}
    assert kinds == {
        "sql": "ConfigurationError",
        "show": "JobError",
        "show given": "JobError",
        "executor": "ConfigurationError",
        "the job": "JobError",
        "a stream": "JobError",
        "a lock": "JobError",
    }
    assert "run `asyncstate sql compile job.sql -o plan.json` there" in found["sql"][1]
    assert "show" in found["show"][1]
    assert found["show"] == found["show given"]
    assert "only with a classic session" in found["executor"][1]
    assert "uses the job itself" in found["the job"][1]
    assert "uses a streaming DataFrame" in found["a stream"][1]
    assert "cannot be sent to the server of Spark Connect" in found["a lock"][1]


def test_calls_side_outputs_and_relative_paths(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("lookups", server, tmp_path, mode)
    assert found["named"] == {f"name {k}": 2 * ROWS // KEYS for k in range(1, KEYS)}
    assert found["failed"] == [[0, "LookupError"]]
    assert found["batches"] == [0, 1]
    assert found["query"]


def test_a_checkpoint_that_is_another_folder_on_the_server_is_refused(
    server: ConnectServer, tmp_path: Path, mode: str
) -> None:
    kind, text, table, version = result("elsewhere", server, tmp_path, mode)
    assert kind == "CheckpointError"
    assert "the server of Spark Connect finds another folder at the checkpoint's location" in text
    assert table == []
    assert version == -1


def test_a_micro_batch_that_takes_long_is_shown(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("watched", server, tmp_path, mode)
    assert found["shown"]
    assert found["late"][0] == "JobError"
    assert "the running micro-batch did not end within 0.5 s, so the query continues" in found["late"][1]
    assert found["active"]
    assert found["batches"] == [0, 1, 2]
    assert found["left"] == ["begun"]


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
    unknown, explained = found["refused"]
    assert unknown[0] == explained[0] == "SqlError"
    assert "the compiled plans do not have this statement" in unknown[1]
    assert "EXPLAIN" in explained[1]


def test_an_operator_over_a_bounded_frame(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("batch", server, tmp_path, mode)
    assert found["totals"] == _totals(range(ROWS))
    assert "after unpersist()" in found["ended"]
    assert "amount -30 of account 0" in found["failed"]


def test_what_is_known_of_derived_rows_is_that_of_a_classic_session(
    server: ConnectServer, spark: SparkSession, tmp_path: Path
) -> None:
    found = result("modes", server, tmp_path, "sync")
    assert found == modes_of(spark)
    assert found["filtered insertions"] == "insert-only"
    refused = {name for name, mode in found.items() if mode == "refused"}
    assert refused == {name for name in found if "upserts" in name}
    assert {found[name] for name in found.keys() - refused - {"filtered insertions"}} == {"retract"}


@pytest.mark.parametrize("connector", ["python", SPARKS_OWN])
def test_topics_are_read_and_written(
    server: ConnectServer, kafka: KafkaBroker, tmp_path: Path, mode: str, connector: str
) -> None:
    names = {name: f"connect-{connector}-{mode}-{name}" for name in ("source", "totals", "log")}
    for name, topic in names.items():
        kafka.create(topic, 2, cleanup_policy="compact" if name == "totals" else "delete")
    given = {"servers": kafka.servers, "connector": connector, **names}
    (tmp_path / "kafka.json").write_text(json.dumps(given))
    own = None
    try:
        if connector == "spark":
            files = ",".join(map(str, jars("spark-kafka")))
            own = server = ConnectServer(tmp_path, {"spark.jars": files})
        for number in range(2):
            values = range(number * ROWS, (number + 1) * ROWS)
            messages: list[tuple[Any, ...]] = [
                (b"k", json.dumps({"k": v % KEYS, "v": v}), v % 2) for v in values
            ]
            kafka.produce(names["source"], [*messages, (b"k", b"\xff", 1)])
            assert result("topics", server, tmp_path, mode) == [number]
            table = {}
            for message in kafka.consume(names["totals"]):
                table[str(json.loads(message.key())["k"])] = json.loads(message.value())["total"]
            assert table == _totals(range(values.stop))
            log = [json.loads(message.value()) for message in kafka.consume(names["log"])]
            assert [row["malformed"] for row in log] == (number + 1) * ["the message is not text in UTF-8"]
    finally:
        if own is not None:
            own.kill()


def test_tables_of_delta_and_iceberg_are_written(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    for kind in ("delta", "iceberg"):
        for folder in (kind, f"{kind}-log"):
            (tmp_path / folder).mkdir()
            Place(kind, str(tmp_path / folder)).create()
    assert result("lakes", server, tmp_path, mode) == [0, 1]
    rows, totals = range(2 * ROWS), _totals(range(2 * ROWS))
    for kind in ("delta", "iceberg"):
        found = Place(kind, str(tmp_path / kind)).table()
        names = {k: max(f"name {v}" for v in rows if v % KEYS == k) for k in range(KEYS)}
        assert found == {k: (names[k], float(totals[str(k)])) for k in range(KEYS)}
        appended = Place(kind, str(tmp_path / f"{kind}-log")).appended()
        assert appended == sorted(((v % KEYS, f"name {v}", float(v)) for v in rows), key=repr)


def test_a_stopped_query_breaks_no_micro_batch_off(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("stopped", server, tmp_path, mode)
    assert found["ended"] == []
    assert not found["is_active"]
    committed, last = found["committed"]
    assert committed == last < 7
    assert found["batches"] == list(range(8))
    assert found["table"] == _totals(range(8 * ROWS))
    assert found["left"] == ["begun"]


def test_stop_raises_the_error_of_the_micro_batch(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    found = result("stopped failing", server, tmp_path, mode)
    assert found["error"] == found["last"] == ["LookupError", f"no place for {KEYS} rows"]
    assert found["left"] == ["begun"]


def said(folder: Path, name: str, alive: Callable[[], bool]) -> str:
    """The line that a micro-batch writes into a file, as long as it is ``alive``."""
    never, deadline = threading.Event(), time.monotonic() + SECONDS_MAX
    while alive() and time.monotonic() < deadline:
        if (folder / name).exists() and (text := (folder / name).read_text()).endswith("\n"):
            return text.strip()
        never.wait(0.05)
    pytest.fail(f"the micro-batch has not written '{name}'")


@pytest.mark.parametrize("where", ["operator", "sink", "JVM alone"])
def test_a_server_killed_in_the_middle_of_a_micro_batch_loses_nothing(
    tmp_path: Path, mode: str, where: str
) -> None:
    (tmp_path / "server").mkdir()
    server = ConnectServer(tmp_path / "server")
    try:
        running = client("operator" if where == "operator" else "sink", server, tmp_path, mode)
        process = int(said(tmp_path, PAUSED, lambda: running.poll() is None))
        server.kill(with_micro_batches=where != "JVM alone")
        server.start()
        told = ended(running, server)
        assert told["error"][0] == told["last"] == "JobError"
        assert "job 'job': the server of Spark Connect has ended or was started again" in told["error"][1]
        assert told["batches"] == [0]
        found = result("resumed", server, tmp_path, mode)
        assert found["table"] == _totals(range(4 * ROWS))
        assert found["batches"] == [1, 2, 3]
        assert found["version"] == 3
        assert found["left"] == ["begun"]
        if where == "JVM alone":  # the process of the lost micro-batch goes on, and finds another driver
            (tmp_path / RESUME).touch()
            assert said(tmp_path, COMMIT, lambda: True) == "ConcurrentJobError"
            os.kill(process, signal.SIGKILL)  # at its end, Spark's client there looks for the old server
        assert result("after", server, tmp_path, mode) == {"table": _totals(range(4 * ROWS)), "version": 3}
    finally:
        server.kill()


def test_a_client_that_ends_leaves_its_query(server: ConnectServer, tmp_path: Path, mode: str) -> None:
    running = client("sink", server, tmp_path, mode)
    said(tmp_path, PAUSED, lambda: running.poll() is None)
    running.kill()
    running.communicate()
    (tmp_path / RESUME).touch()
    never, deadline = threading.Event(), time.monotonic() + SECONDS_MAX
    expected = {"table": _totals(range(4 * ROWS)), "version": 3}
    while (found := result("after", server, tmp_path, mode)) != expected and time.monotonic() < deadline:
        never.wait(1)
    assert found == expected
