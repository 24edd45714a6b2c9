"""From Kafka to Kafka, killed on the way: every key right, every micro-batch written once."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")

from tests.conftest import ROOT, no_server
from tests.servers.kafka import KafkaBroker, jars

pytestmark = [pytest.mark.spark, pytest.mark.long]

NUMBERS = itertools.count()


def killed_run(
    kafka: KafkaBroker, folder: Path, connector: str, *, events: int, keys: int, kills: int, max_rows: int
) -> None:
    files = [str(file) for file in jars("spark-kafka")] if connector == "spark" else []
    if connector == "spark" and not files:
        no_server("no connector of Spark's in build/servers")
    chance = random.Random(f"{connector} {events}")
    source = kafka.create(f"kills-{connector}-{events}", 1)
    target = kafka.create(f"kills-{connector}-{events}-out", 1, cleanup_policy="compact")
    log = kafka.create(f"{target}-log", 2)
    expected: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    messages: list[tuple[Any, ...]] = []
    for _ in range(events):
        key, value = chance.randrange(keys), chance.randrange(1000)
        messages.append((str(key), f'{{"k":{key},"v":{value}}}'))
        expected[key][0] += 1
        expected[key][1] += value
    kafka.produce(source, messages)
    given = {
        "folder": str(folder),
        "servers": kafka.servers,
        "source": source,
        "target": target,
        "connector": connector,
        "max_rows": max_rows,
        "jars": ",".join(files),
    }
    for _ in range(kills):
        assert one_life(given, chance, kills=True) == -signal.SIGKILL
    assert one_life(given, chance, kills=False) == 0
    assert last_of(kafka, target) == expected
    assert last_of(kafka, log, skip="-U") == expected


def last_of(kafka: KafkaBroker, topic: str, skip: str = "") -> dict[int, list[int]]:
    """The last count and sum of each key; its counts must grow from message to message."""
    last: dict[int, list[int]] = {}
    for message in kafka.consume(topic):
        key, value = json.loads(message.key())["k"], json.loads(message.value())
        if value.get("row_kind") == skip:
            continue
        assert last.get(key, [0])[0] < value["n"], f"key {key} was written twice, or in another order"
        last[key] = [value["n"], value["total"]]
    return last


def one_life(given: dict[str, Any], chance: random.Random, *, kills: bool) -> int:
    """Run the job; kill it some time after one or two micro-batches are committed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.kafka.killed_job", json.dumps(given)]
    log = Path(given["folder"], "log")
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as lines:
        committed = chance.randint(1, 2)
        for _ in filter(lambda line: line.startswith("micro-batch"), lines):
            committed -= 1
            if kills and committed == 0:
                time.sleep(chance.uniform(0, 0.8))  # any moment of a micro-batch
                os.killpg(process.pid, signal.SIGKILL)
    code = process.wait(60)
    assert code in (0, -signal.SIGKILL), log.read_text()[-4000:]
    return code


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_kills(kafka: KafkaBroker, tmp_path: Path) -> None:
    killed_run(kafka, tmp_path, "python", events=20_000, keys=2_000, kills=3, max_rows=2_000)


@pytest.mark.since_spark("4.2", "the release of the connector's jar")
@pytest.mark.timeout(400)
def test_a_kill_with_sparks_own_connector(kafka: KafkaBroker, tmp_path: Path) -> None:
    killed_run(kafka, tmp_path, "spark", events=6_000, keys=700, kills=1, max_rows=1_500)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("connector", ["python", "spark"])
def test_ten_kills(kafka: KafkaBroker, tmp_path: Path, connector: str) -> None:
    killed_run(kafka, tmp_path, connector, events=300_000, keys=20_000, kills=10, max_rows=12_000)
