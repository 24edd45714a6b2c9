"""Where a local session listens, and how it writes its logs; no Spark is started."""

from __future__ import annotations

import os

import pytest

from asyncstate.spark.session import build_session, local_address, local_logs

LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@pytest.mark.parametrize(
    ("master", "conf", "ip", "expected"),
    [
        ("local", {}, None, LOOPBACK),
        ("local[2]", {}, None, LOOPBACK),
        ("local[*, 3]", {}, None, LOOPBACK),
        (None, {"spark.master": "local[2]"}, None, LOOPBACK),
        ("spark://host:7077", {}, None, {}),
        ("local-cluster[2,1,1024]", {}, None, {}),
        ("yarn", {"spark.master": "local"}, None, LOOPBACK),
        (None, {}, None, {}),
        ("local", {}, "10.0.0.5", {}),
        ("local", {"spark.driver.host": "10.0.0.5"}, None, {}),
        ("local", {"spark.driver.bindAddress": "0.0.0.0"}, None, {}),
    ],
)
def test_a_local_session_listens_on_the_loopback_only(
    monkeypatch: pytest.MonkeyPatch,
    master: str | None,
    conf: dict[str, str],
    ip: str | None,
    expected: dict[str, str],
) -> None:
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if ip is not None:
        monkeypatch.setenv("SPARK_LOCAL_IP", ip)
    assert local_address(master, conf) == expected


def test_a_session_that_listens_on_loopback_has_its_ui_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The UI has no setting for it: it asks the environment of the process that is started."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    started: list[str | None] = []

    def started_with(builder: object) -> object:
        started.append(os.environ.get("SPARK_LOCAL_IP"))
        raise ZeroDivisionError("this is enough")

    monkeypatch.setattr("pyspark.sql.SparkSession.Builder.getOrCreate", started_with)
    for master in ("local[2]", "spark://host:7077"):
        with pytest.raises(ZeroDivisionError):
            build_session("ui", master)
    assert started == ["127.0.0.1", None]
    assert "SPARK_LOCAL_IP" not in os.environ


FILES = "spark.sql.streaming.checkpointFileManagerClass"


@pytest.mark.parametrize(
    ("master", "conf", "chosen"),
    [
        ("local[2]", {}, True),
        (None, {"spark.master": "local"}, True),
        ("local[2]", {FILES: "org.example.Mine"}, False),
        ("spark://host:7077", {}, False),
        ("local-cluster[2,1,1024]", {}, False),
    ],
)
def test_only_a_local_session_writes_its_logs_by_the_file_system(
    master: str | None, conf: dict[str, str], chosen: bool
) -> None:
    found = local_logs(master, conf)
    assert list(found) == ([FILES] if chosen else [])
    assert all(name.endswith("FileSystemBasedCheckpointFileManager") for name in found.values())
