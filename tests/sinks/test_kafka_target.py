"""A topic as a target, on a real broker: transactions at every kill point, a broker that dies, what check finds."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")

from asyncstate.driver.write_marks import Origin
from asyncstate.errors import JobError, SchemaError, StoreError
from asyncstate.spark.sinks import KafkaTarget
from tests.servers.kafka import KafkaBroker, kafka_broker
from tests.sinks.conftest import NUMBERS
from tests.sinks.killed import WRITTEN
from tests.sinks.places import SCHEMA, Place, changes

pytestmark = pytest.mark.long


def new_place(broker: KafkaBroker) -> Place:
    place = Place("kafka", (broker.servers, f"target-{next(NUMBERS)}"))
    place.create()
    return place


def names(broker: KafkaBroker, place: Place) -> list[tuple[int, str | None]]:
    """Each committed message: the id, and the name or None. A message that was written twice is there twice."""
    found = []
    for message in broker.consume(place.place[1]):
        value = message.value()
        found.append((json.loads(message.key())["id"], None if value is None else json.loads(value)["name"]))
    return sorted(found, key=str)


@pytest.mark.parametrize(("point", "is_there"), [("kafka_sent", False), ("kafka_committed", True)])
def test_killed_elsewhere_in_the_transaction(kafka: KafkaBroker, point: str, is_there: bool) -> None:
    place = new_place(kafka)
    target = place.target()
    assert target.write("w", 0, changes([(1, "one", None), (2, "old", None)]))
    command = [sys.executable, "-m", "tests.sinks.killed", point, json.dumps(place.place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    first = [(1, "one"), (2, "old")]
    later = [(1, None), (2, "two"), (3, "three")]
    assert names(kafka, place) == sorted([*first, *(later if is_there else [])], key=str)
    assert target.write("w", 1, changes(*WRITTEN)) is not is_there
    assert names(kafka, place) == sorted([*first, *later], key=str)


def test_a_second_driver_shuts_the_first_one_out(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    import confluent_kafka

    place = new_place(kafka)
    target = place.target()
    assert target.write("w", 0, changes([(1, "one", None)]))
    own = confluent_kafka.Producer
    second = threading.Thread(target=lambda: place.target().write("w", 1, changes([(2, "second", None)])))

    class Producer(own):  # type: ignore[misc, valid-type]
        def commit_transaction(self, *given: Any) -> None:
            monkeypatch.setattr(confluent_kafka, "Producer", own)
            second.start()
            second.join(60)
            super().commit_transaction(*given)

    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    with pytest.raises(StoreError, match="fenced"):
        target.write("w", 1, changes([(3, "first", None)]))
    assert names(kafka, place) == [(1, "one"), (2, "second")]
    with pytest.raises(JobError, match="has micro-batch 1 of writer 'w'"):
        target.write("w", 0, changes([(3, "first", None)]))


def test_a_broker_that_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies while the transaction is being committed; between micro-batches too. Nothing is lost or there twice."""
    import confluent_kafka

    with kafka_broker(tmp_path) as broker:
        place = new_place(broker)
        target = place.target()
        assert target.write("w", 0, changes([(1, "one", None)]))
        broker.kill()
        broker.start()
        assert not target.write("w", 0, changes([(1, "again", None)]))
        own = confluent_kafka.Producer
        died = []

        class Producer(own):  # type: ignore[misc, valid-type]
            def commit_transaction(self, *given: Any) -> None:
                self.flush(30)
                broker.kill()
                died.append(True)
                broker.start()
                super().commit_transaction(*given)

        monkeypatch.setattr(confluent_kafka, "Producer", Producer)
        assert target.write("w", 1, changes([(2, "two", None)]))
        monkeypatch.setattr(confluent_kafka, "Producer", own)
        assert died == [True]
        assert not target.write("w", 1, changes([(2, "again", None)]))
        assert names(broker, place) == [(1, "one"), (2, "two")]


@pytest.mark.parametrize(
    ("policy", "refused", "warned"),
    [
        ("delete", "cleanup.policy=delete: it would delete rows that do not change for a while", ""),
        ("compact", "", ""),
        ("compact,delete", "", "it deletes rows that do not change within its retention"),
    ],
)
def test_a_topic_that_is_not_compacted_is_refused(
    kafka: KafkaBroker, policy: str, refused: str, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka.create(f"policy-{next(NUMBERS)}", cleanup_policy=policy)
    target = KafkaTarget(kafka.servers, topic)
    with caplog.at_level(logging.WARNING):
        if refused:
            with pytest.raises(SchemaError, match=refused):
                target.check(SCHEMA, ("id",))
        else:
            target.check(SCHEMA, ("id",))
    assert warned in caplog.text
    assert bool(warned) == bool(caplog.records)


def test_a_client_that_may_not_see_the_settings_is_warned(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Over SASL and TLS."""
    topic = kafka.create(f"policy-{next(NUMBERS)}", cleanup_policy="compact")
    kafka.deny(topic, "DESCRIBE_CONFIGS")
    target = KafkaTarget(kafka.secure_servers, topic, kafka.secure_options())
    with caplog.at_level(logging.WARNING):
        target.check(pa.schema([("k", pa.string())]), ("k",))
    assert "cannot determine whether it is compacted" in caplog.text


def test_marks_are_kept_by_the_topic_and_the_job(kafka: KafkaBroker) -> None:
    place = new_place(kafka)
    target = place.target()
    origin = Origin("shop", "c1", "d1", {}, is_first=True)
    assert target.write("w", 0, changes([(1, "first", None)]), origin)
    other = KafkaTarget(kafka.servers, kafka.create(f"other-{next(NUMBERS)}", cleanup_policy="compact"))
    assert other.write("w", 0, changes([(1, "first", None)]), origin)
    assert not target.write("w", 0, changes([(1, "again", None)]), origin)
