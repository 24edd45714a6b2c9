"""Debezium in a worker of Kafka Connect, from the jars that ``.ci/check_servers.py`` has copied.

Owns: ``Debezium``; ``postgresql`` and ``mariadb``, which describe what it captures. Invariant: its offsets stand in a
folder of the test's own, so that it can be killed and started anew.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.servers.kafka import JARS, free_ports

MISSING: Final = "no Debezium in build/servers (python3 .ci/check_servers.py --install copies it)"

_WORKER: Final = """\
bootstrap.servers={servers}
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=1000
listeners=http://127.0.0.1:{port}
"""
_DATABASE: Final = """\
name=shop
database.hostname=127.0.0.1
database.port={port}
database.user=tests
database.password=none
topic.prefix={prefix}
table.include.list={tables}
"""
_POSTGRESQL: Final = """\
connector.class=io.debezium.connector.postgresql.PostgresConnector
database.dbname=postgres
plugin.name=pgoutput
publication.autocreate.mode=filtered
"""
_MARIADB: Final = """\
connector.class=io.debezium.connector.mariadb.MariaDbConnector
database.server.id=4711
database.ssl.mode=disable
include.schema.changes=false
skipped.operations=none
schema.history.internal=io.debezium.storage.file.history.FileSchemaHistory
schema.history.internal.file.filename={folder}/history
"""


@dataclass(frozen=True)
class Captured:
    """``jars``: the folder of the connector in build/servers; ``properties``: of the connector."""

    jars: str
    properties: str


def postgresql(port: int, prefix: str, tables: str) -> Captured:
    """``tables`` of the database postgres, into the topics ``<prefix>.<table>``, which must be there."""
    return Captured("debezium", _POSTGRESQL + _DATABASE.format(port=port, prefix=prefix, tables=tables))


def mariadb(port: int, prefix: str, tables: str) -> Captured:
    """``tables``, with their database, into the topics ``<prefix>.<table>``, which must be there. Truncated tables
    have events, which the connector leaves out by default."""
    return Captured("debezium-mariadb", _MARIADB + _DATABASE.format(port=port, prefix=prefix, tables=tables))


class Debezium:
    """Writes the changes of what is captured into topics."""

    def __init__(self, folder: Path, servers: str, captured: Captured) -> None:
        self.folder, self._jars = folder, captured.jars
        worker = _WORKER.format(servers=servers, folder=folder, port=free_ports(1)[0])
        (folder / "worker.properties").write_text(worker)
        (folder / "connector.properties").write_text(captured.properties.replace("{folder}", str(folder)))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its events come some seconds later."""
        files = [str(self.folder / f"{name}.properties") for name in ("worker", "connector")]
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", str(JARS / self._jars / "*"), main, *files]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """Without a last commit of its offsets: some events come again after the next start."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def forget(self) -> None:
        """While it does not run: let the next start take another snapshot."""
        for name in ("offsets", "history"):
            (self.folder / name).unlink(missing_ok=True)


@contextlib.contextmanager
def debezium(folder: Path, servers: str, captured: Captured) -> Iterator[Debezium]:
    """One that runs, with its files in ``folder``."""
    folder.mkdir(exist_ok=True)
    capture = Debezium(folder, servers, captured)
    try:
        capture.start()
        yield capture
    finally:
        capture.kill()
