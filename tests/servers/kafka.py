"""A Kafka broker on the loopback, from the jars that ``.ci/check_servers.py`` has copied.

Owns: ``KafkaBroker``. Invariant: its data stand in a folder of the test's own, and its ports are free ones.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
JARS: Final = ROOT / "build" / "servers"
"""Each pom of ``.ci/servers`` has a folder of this name here."""
READY_SECONDS_MAX: Final = 90.0
PASSWORD: Final = "keep-this-to-yourself"
"""Of the user ``tests``, at the listener with SASL and TLS."""
_JVM: Final = ["-Xmx512m", "-Dlog4j2.level=INFO", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_CLUSTER: Final = "asyncstateTestsKafkaAA"

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{secure},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:{protocol}
log.dirs={folder}/data
auto.create.topics.enable=false
log.retention.ms=-1
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.cleaner.dedupe.buffer.size=2097152
"""
_SECURE: Final = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
listener.name.secure.ssl.keystore.type=PKCS12
listener.name.secure.ssl.keystore.location={folder}/broker.p12
listener.name.secure.ssl.keystore.password=changeit
listener.name.secure.ssl.key.password=changeit
listener.name.secure.sasl.enabled.mechanisms=PLAIN
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_tests="{password}";
"""


def jars(name: str) -> list[Path]:
    """The jars of the pom ``name``; none where they have not been copied."""
    return sorted((JARS / name).glob("*.jar"))


MISSING: Final = "no Kafka broker in build/servers (python3 .ci/check_servers.py --install copies it)"


class KafkaBroker:
    """A broker that can be killed and started anew. ``servers``: its bootstrap servers."""

    def __init__(self, folder: Path, *, is_secure: bool = False) -> None:
        self.folder, self.is_secure = folder, is_secure
        self._ports = dict(zip(("plain", "secure", "controller"), free_ports(3), strict=True))
        self.servers = f"127.0.0.1:{self._ports['plain']}"
        self.secure_servers = f"127.0.0.1:{self._ports['secure']}"
        self.certificate = folder / "ca.pem"
        self._process: subprocess.Popen[bytes] | None = None
        text = _PROPERTIES + (_SECURE if is_secure else "")
        text = text.format(
            **self._ports,
            folder=folder,
            protocol="SASL_SSL" if is_secure else "PLAINTEXT",
            password=PASSWORD,
        )
        self._properties = folder / "server.properties"
        self._properties.write_text(text)
        if is_secure:
            self._make_certificate()
        self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(self._properties))

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = self.folder / "broker.log"
        seen = log.stat().st_size if log.exists() else 0
        command = ["java", *_JVM, "-cp", _class_path(), "kafka.Kafka", str(self._properties)]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=self._environment())
        deadline = time.monotonic() + READY_SECONDS_MAX
        while b"Kafka Server started" not in log.read_bytes()[seen:]:
            assert self._process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)  # it says so nowhere else

    def kill(self) -> None:
        """As a power cut would, but that the files keep what was written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def create(self, topic: str, partitions: int = 1, **config: str) -> str:
        """A new topic; dots in the names of settings are written as underscores."""
        from confluent_kafka.admin import NewTopic

        settings = {name.replace("_", "."): value for name, value in config.items()}
        self._admin(lambda admin: admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]))
        return topic

    def add_partitions(self, topic: str, count: int) -> None:
        """Let the topic have ``count`` partitions."""
        from confluent_kafka.admin import NewPartitions

        self._admin(lambda admin: admin.create_partitions([NewPartitions(topic, count)]))

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Let the topic lose its messages before ``offset``, as its retention would."""
        from confluent_kafka import TopicPartition

        self._admin(lambda admin: admin.delete_records([TopicPartition(topic, partition, offset)]))

    def delete(self, topic: str) -> None:
        """Delete the topic, and wait until it is gone."""
        self._admin(lambda admin: admin.delete_topics([topic]))
        deadline = time.monotonic() + 30
        while topic in self.admin().list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, f"{topic} is still there"
            time.sleep(0.05)  # brokers take a moment to forget it

    def deny(self, topic: str, operation: str) -> None:
        """Let the user ``tests`` describe the topic, and not do ``operation``."""
        from confluent_kafka import admin as kinds

        def rule(name: str, permission: Any) -> Any:
            return kinds.AclBinding(
                kinds.ResourceType.TOPIC,
                topic,
                kinds.ResourcePatternType.LITERAL,
                "User:tests",
                "*",
                kinds.AclOperation[name],
                permission,
            )

        allow, deny = kinds.AclPermissionType.ALLOW, kinds.AclPermissionType.DENY
        rules = [rule("DESCRIBE", allow), rule(operation, deny)]
        self._admin(lambda client: client.create_acls(rules))

    def secure_options(self) -> dict[str, Any]:
        """What a client needs beside ``secure_servers``."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "tests",
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.certificate),
        }

    def produce(self, topic: str, messages: list[tuple[Any, ...]]) -> None:
        """Append messages: key, value and, where given, partition, timestamp in ms and headers."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        for message in messages:
            key, value, *more = message
            named = dict(zip(("partition", "timestamp", "headers"), more, strict=False))
            named = {name: one for name, one in named.items() if one is not None}
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered, **named)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(60) == 0
        assert not failed, failed[0]

    def consume(self, topic: str) -> list[Any]:
        """All committed messages of the topic, partition after partition."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

        options = {"group.id": "reader", "enable.partition.eof": True, "isolation.level": "read_committed"}
        consumer = Consumer({"bootstrap.servers": self.servers, **options})
        found: list[Any] = []
        try:
            for part in sorted(consumer.list_topics(topic, timeout=30).topics[topic].partitions):
                consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING)])
                while True:
                    message = consumer.poll(30)
                    assert message is not None, f"{topic} does not come to its end"
                    error = message.error()
                    if error is None:
                        found.append(message)
                        continue
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    break
        finally:
            consumer.close()
        return found

    def admin(self) -> Any:
        """confluent-kafka's client for topics."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.servers})

    def _admin(self, call: Callable[[Any], dict[Any, Any]]) -> None:
        client = self.admin()  # it must live as long as its futures
        for future in call(client).values():
            future.result(60)

    def _make_certificate(self) -> None:
        store = [
            "-keystore",
            str(self.folder / "broker.p12"),
            "-storetype",
            "PKCS12",
            "-storepass",
            "changeit",
        ]
        name = ["-alias", "broker", "-dname", "CN=127.0.0.1", "-ext", "SAN=ip:127.0.0.1,dns:localhost"]
        make = ["keytool", "-genkeypair", *name, *store, "-keyalg", "RSA", "-validity", "3650"]
        subprocess.run(make, check=True, capture_output=True, timeout=60)
        show = ["keytool", "-exportcert", "-rfc", "-alias", "broker", *store]
        done = subprocess.run(show, check=True, capture_output=True, timeout=60)
        self.certificate.write_bytes(done.stdout)

    def _java(self, *arguments: str) -> None:
        command = ["java", *_JVM, "-cp", _class_path(), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=90, check=False, env=self._environment()
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "LC_ALL": "C.UTF-8"}


def _class_path() -> str:
    return str(JARS / "kafka" / "*")


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now; all are held until the last one is known, so that they differ."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def kafka_broker(folder: Path, *, is_secure: bool = False) -> Iterator[KafkaBroker]:
    """A running broker."""
    broker = KafkaBroker(folder, is_secure=is_secure)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()
