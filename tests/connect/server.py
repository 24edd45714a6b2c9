"""A server of Spark Connect on the loopback, as a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from tests.conftest import ROOT

_START_SECONDS_MAX = 90.0


class ConnectServer:
    """Started at once; ``kill`` ends it as a crash does, ``start`` begins another one on the same port. ``conf``: more
    settings, such as the jars of a connector."""

    def __init__(self, folder: Path, conf: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._conf = dict(conf or {})
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / "server.log"
        self.start()

    @property
    def url(self) -> str:
        """What ``SparkSession.builder.remote`` takes."""
        return f"sc://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Return when the server listens."""
        home = Path(pyspark.__file__).parent
        search_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {
            "spark.connect.grpc.binding.port": str(self._port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.executorEnv.PYTHONPATH": search_path,
            "spark.local.dir": str(self._folder / "local"),
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self._folder / "warehouse"),
            "spark.ui.enabled": "false",
            **self._conf,
        }
        command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": search_path,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        for name in ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"):
            environment.pop(name, None)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
            )
        self._await()

    def _await(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS_MAX
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as tried:
                tried.settimeout(1)
                if tried.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"no server of Spark Connect: {self.log.read_text()[-4000:]}")

    def kill(self, *, with_micro_batches: bool = True) -> None:
        """End the server and its workers at once. ``with_micro_batches=False``: only its JVM, as when that runs out of
        memory; the process of a micro-batch stays, and ends when it misses the JVM."""
        if self._process is not None:
            send = os.killpg if with_micro_batches else os.kill
            send(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
