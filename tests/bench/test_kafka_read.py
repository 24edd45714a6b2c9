"""``bench kafka-read`` runs, tiny, with both readers; no figure is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")

from bench.frame import Row
from tests.conftest import ROOT, no_server
from tests.servers.kafka import KafkaBroker, jars

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def test_both_readers_read_all_messages(kafka: KafkaBroker, tmp_path: Path) -> None:
    if not jars("spark-kafka"):
        no_server("no connector of Spark's in build/servers")
    command = [sys.executable, "-m", "bench", "kafka-read", "--servers", kafka.servers, "--tiny"]
    command += ["--output", str(tmp_path)]  # in a process of its own, for a session with these jars
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document = msgspec.json.decode((tmp_path / "kafka-read.json").read_bytes())
    rows = msgspec.convert(document["results"], list[Row])
    assert [row.name for row in rows] == ["Spark's connector", "Python data source"]
    assert all(row.facts["cost"] > 0 and row.facts["ratio"] > 0 for row in rows)
