"""Debezium for PostgreSQL, in a worker of Kafka Connect, from the jars that ``.ci/check_servers.py`` has copied.

Owns: ``Debezium``. Invariant: its offsets stand in a folder of the test's own, so that it can be killed and started
anew.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
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
_CONNECTOR: Final = """\
name=shop
connector.class=io.debezium.connector.postgresql.PostgresConnector
database.hostname=127.0.0.1
database.port={port}
database.user=tests
database.password=none
database.dbname=postgres
topic.prefix={prefix}
table.include.list={tables}
plugin.name=pgoutput
publication.autocreate.mode=filtered
"""


class Debezium:
    """It writes the changes of ``tables`` into the topics ``<prefix>.<table>``, which must be there."""

    def __init__(self, folder: Path, servers: str, database_port: int, prefix: str, tables: str) -> None:
        self.folder = folder
        worker = _WORKER.format(servers=servers, folder=folder, port=free_ports(1)[0])
        (folder / "worker.properties").write_text(worker)
        connector = _CONNECTOR.format(port=database_port, prefix=prefix, tables=tables)
        (folder / "connector.properties").write_text(connector)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its events come some seconds later."""
        files = [str(self.folder / f"{name}.properties") for name in ("worker", "connector")]
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += ["-cp", str(JARS / "debezium" / "*"), main, *files]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self) -> None:
        """Without a last commit of its offsets: some events come again after the next start."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)


@contextlib.contextmanager
def debezium(folder: Path, servers: str, database_port: int, prefix: str, tables: str) -> Iterator[Debezium]:
    """One that runs."""
    capture = Debezium(folder, servers, database_port, prefix, tables)
    try:
        capture.start()
        yield capture
    finally:
        capture.kill()
