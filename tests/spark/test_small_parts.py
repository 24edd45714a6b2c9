"""The parts of the Spark layer that need no Spark: delays, errors as text, the Java check, settings."""

from __future__ import annotations

import datetime
import traceback
from pathlib import Path

import pytest

from asyncstate import errors
from asyncstate.errors import AsyncStateError, ConfigurationError, EnvironmentSetupError, OperatorError
from asyncstate.spark import java, recommended_conf
from asyncstate.spark.durations import delay_us
from asyncstate.spark.failures import mark, restore, translated


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
        try:
            raise ZeroDivisionError("the user's own")
        except ZeroDivisionError as cause:
            raise error from cause
    except AsyncStateError as caught:
        mark(caught)
        return f"Job aborted\n{traceback.format_exc()}\n\tat org.apache.spark.Foo(Foo.scala:1)"


@pytest.mark.parametrize("kind", [k for k in vars(errors).values() if isinstance(k, type)])
def test_every_error_crosses_the_border(kind: type[AsyncStateError]) -> None:
    back = restore(raised(kind('a\nb ] " é')))
    assert type(back) is kind
    assert str(back) == 'a\nb ] " é'
    assert "the user's own" in str(back.__cause__)
    assert "org.apache" not in str(back.__cause__)


def test_other_errors_pass() -> None:
    assert restore("Job aborted: out of memory") is None
    with pytest.raises(KeyError), translated():
        raise KeyError("x")
    with pytest.raises(OperatorError, match="deep"), translated():
        raise RuntimeError(raised(OperatorError("deep")))


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
    with pytest.raises(EnvironmentSetupError, match=message):
        java.check_java()
    assert java.main() == 1


def test_recommended_settings_are_texts() -> None:
    assert all(isinstance(value, str) for value in recommended_conf().values())
    assert recommended_conf()["spark.python.unix.domain.socket.enabled"] == "true"
