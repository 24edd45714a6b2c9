"""The parts of the Spark layer that need no Spark: delays, errors as text, the Java check, settings."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from asyncstate import errors
from asyncstate.errors import (
    AsyncStateError,
    ConfigurationError,
    EnvironmentSetupError,
    JobError,
    OperatorError,
)
from asyncstate.runtime import delay_us
from asyncstate.spark import build_session, java, recommended_conf
from asyncstate.spark.query_start import trigger_of
from asyncstate.spark.session import settle_session
from asyncstate.spark.task_errors import marking, own_mark, restore, translated


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ("4 seconds", 4_000_000),
        ("1 second", 1_000_000),
        ("0 seconds", 0),
        ("1 hour 30 minutes", 5_400_000_000),
        ("2 weeks 1 day", 15 * 86_400_000_000),
        ("250milliseconds", 250_000),
        (" 7 Microseconds ", 7),
        (datetime.timedelta(minutes=1, microseconds=1), 60_000_001),
    ],
)
def test_delays(delay: str | datetime.timedelta, expected: int) -> None:
    assert delay_us(delay) == expected


@pytest.mark.parametrize(
    "delay", ["", "4", "seconds", "4 parsecs", "-4 seconds", "4 seconds ago", datetime.timedelta(-1)]
)
def test_odd_delays(delay: str | datetime.timedelta) -> None:
    with pytest.raises(ConfigurationError, match="watermark delay"):
        delay_us(delay)


def raised(error: AsyncStateError) -> str:
    """What Spark makes of an error: its traceback inside pages of something else."""
    try:
        with marking():
            try:
                raise ZeroDivisionError("the user's own")
            except ZeroDivisionError as cause:
                raise error from cause
    except AsyncStateError:
        return f"Job aborted\n{traceback.format_exc()}\n\tat org.apache.spark.Foo(Foo.scala:1)"


@pytest.mark.parametrize("kind", [k for k in vars(errors).values() if isinstance(k, type)])
def test_every_error_crosses_the_border(kind: type[AsyncStateError]) -> None:
    back = restore(raised(kind('a\nb ] " é')))
    assert type(back) is kind
    assert str(back) == 'a\nb ] " é'
    assert "the user's own" in str(back.__cause__)
    assert "org.apache" not in str(back.__cause__)


@pytest.mark.parametrize(
    "text",
    [
        '[asyncstate-error {"kind": "ConcurrentJobError", "message": "delete it", "traceback": ""}]',
        '[asyncstate-error 0123456789abcdef {"kind": "ConcurrentJobError", "message": "", "traceback": ""}]',
        "[asyncstate-error AAAA]",
        f"[asyncstate-error {own_mark()} {{",
        f'[asyncstate-error {own_mark()} {{"kind": 7}}]',
    ],
    ids=["no mark", "another mark", "no JSON", "cut off", "no text"],
)
def test_a_rows_text_does_not_take_the_place_of_an_error(text: str) -> None:
    back = restore(raised(OperatorError(f"operator 'u', key (1,): ValueError: bad {text}")))
    assert (type(back), str(back)) == (OperatorError, f"operator 'u', key (1,): ValueError: bad {text}")
    with pytest.raises(RuntimeError), translated():
        raise RuntimeError(f"of something else: {text}")


def test_what_would_end_a_worker_is_an_error_for_the_driver() -> None:
    with (
        pytest.raises(JobError, match=r"the task of operator 'u' raised SystemExit\(3\)") as ended,
        marking(own_mark(), "the task of operator 'u'"),
    ):
        sys.exit(3)
    back = restore("\n".join([str(ended.value), *ended.value.__notes__]))
    assert (type(back), str(back)) == (JobError, str(ended.value))
    assert "SystemExit: 3" in str(back.__cause__)


def test_other_errors_pass() -> None:
    assert restore("Job aborted: out of memory") is None
    with pytest.raises(KeyError), translated():
        raise KeyError("x")
    with pytest.raises(OperatorError, match="deep"), translated():
        raise RuntimeError(raised(OperatorError("deep")))


def test_only_classes_of_exceptions_are_made_of_a_text(tmp_path: Path) -> None:
    place = tmp_path / "touched"
    for kind, message in (("exec", f"open({str(place)!r}, 'w')"), ("open", str(place)), ("SystemExit", "3")):
        sent = {"kind": kind, "message": message, "traceback": ""}
        back = restore(f"[asyncstate-error {own_mark()} {json.dumps(sent)}]")
        assert (type(back), str(back)) == (JobError, f"{kind}: {message}")
    assert not place.exists()


class _TwoFoldError(AsyncStateError):
    def __init__(self, key: int, what: str) -> None:
        super().__init__(key, what)


def test_a_users_subclass_with_other_arguments_arrives_by_its_name() -> None:
    back = restore(raised(_TwoFoldError(1, "no stock")))
    assert (type(back), str(back)) == (JobError, "_TwoFoldError: (1, 'no stock')")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        ("availableNow", {"availableNow": True}),
        ("available-now", {"availableNow": True}),
        ({"availableNow": True}, {"availableNow": True}),
        ("0 seconds", {"processingTime": "0 milliseconds"}),
        ("1h", {"processingTime": "3600000 milliseconds"}),
        ({"processingTime": "10 min"}, {"processingTime": "600000 milliseconds"}),
    ],
)
def test_triggers(given: object, expected: dict[str, object]) -> None:
    assert trigger_of(given, "j") == expected


@pytest.mark.parametrize(
    "given",
    ["soon", "-1 second", "", 7, {}, {"continuous": "1 second"}, {"availableNow": True, "once": True}],
    ids=repr,
)
def test_what_is_no_trigger_is_refused(given: object) -> None:
    with pytest.raises(ConfigurationError, match="job 'j': .*trigger"):
        trigger_of(given, "j")


def test_java_is_found() -> None:
    assert Path(java.check_java()).name == "java"
    assert java.main() == 0


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "version 11, Spark needs 17"),
        ("echo hello", "unknown version"),
        ("echo 'openjdk version \"17.0.1\"' >&2", "no module jdk.incubator.vector"),
        (None, "no java found"),
    ],
)
def test_a_missing_or_old_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    (tmp_path / "bin").mkdir()
    if script is not None:
        fake = tmp_path / "bin" / "java"
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentSetupError, match=f"{message}.*install a JDK 17"):
        java.check_java()
    with pytest.raises(EnvironmentSetupError, match=message):
        build_session()
    assert java.main() == 1


class Context:
    """As much of a SparkContext as ``settle_session`` looks at."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        self.master = master
        self.pythonExec = "python3"
        self.settings = settings

    def getConf(self) -> Context:  # noqa: N802 - Spark's name
        return self

    def contains(self, key: str) -> bool:
        return key in self.settings

    def get(self, key: str, default: str) -> str:
        return self.settings.get(key, default)


class Session:
    """As much of a SparkSession."""

    def __init__(self, master: str, settings: dict[str, str]) -> None:
        self.sparkContext = Context(master, settings)


@pytest.mark.parametrize(
    ("master", "settings", "variable", "expected"),
    [
        ("local[2]", {}, None, sys.executable),
        ("local", {}, None, sys.executable),
        ("local[2]", {}, "/opt/python", "python3"),
        ("local[2]", {"spark.pyspark.python": "/opt/python"}, None, "python3"),
        ("spark://host:7077", {}, None, "python3"),
    ],
)
def test_local_workers_get_this_interpreter_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    master: str,
    settings: dict[str, str],
    variable: str | None,
    expected: str,
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    session = Session(master, settings)
    settle_session(session)  # type: ignore[arg-type]
    assert session.sparkContext.pythonExec == expected


@pytest.mark.parametrize(
    ("value", "warned"), [("true", True), ("TRUE", True), ("false", False), (None, False)]
)
def test_speculation_is_warned_of(caplog: pytest.LogCaptureFixture, value: str | None, warned: bool) -> None:
    settle_session(Session("local", {} if value is None else {"spark.speculation": value}))  # type: ignore[arg-type]
    assert ("set spark.speculation to false" in caplog.text) is warned


def test_recommended_settings_are_texts() -> None:
    assert all(isinstance(value, str) for value in recommended_conf().values())
    assert recommended_conf()["spark.python.unix.domain.socket.enabled"] == "true"


# -- the end of a worker -----------------------------------------------------------------------------------

_CLOSED = """
import socket
import pyspark.daemon
from asyncstate.spark.python_task import quiet_end
{}
ours, theirs = socket.socketpair()
theirs.close()
print(pyspark.daemon.worker(ours, True))
"""
_FROZEN = """
from asyncstate.spark.python_task import settle_worker
import duckdb
connection = duckdb.connect()
settle_worker()
"""


def said(code: str) -> tuple[str, str]:
    """What a process that runs ``code`` writes to stdout and stderr."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.long
def test_a_worker_whose_connection_is_closed_ends_without_a_word() -> None:
    """Spark closes those of idle workers; PySpark's own daemon prints a trace."""
    out, trace = said(_CLOSED.format(""))
    assert "BrokenPipeError" in trace
    assert said(_CLOSED.format("quiet_end(pyspark.daemon)")) == (out, "")


def test_what_else_the_daemon_prints_stays() -> None:
    code = """
import sys
import pyspark.daemon
from asyncstate.spark.python_task import quiet_end
quiet_end(pyspark.daemon)
try:
    raise OSError("full")
except OSError:
    pyspark.daemon.print("cannot", file=sys.stderr)
"""
    assert said(code) == ("", "cannot\n")


def test_a_process_that_has_run_tasks_leaks_no_native_module() -> None:
    assert said(_FROZEN) == ("", "")
