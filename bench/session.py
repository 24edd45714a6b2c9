"""The Spark session of a benchmark: local, quiet, everything it writes below one folder.

Owns: ``local_session``.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncstate.spark import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[1]
_PROGRESS_UPDATES = 100_000
_OF_EVERY_START: Final = re.compile(
    rb"WARNING: Using incubator modules|Using Spark's default log4j|Setting (default|Spark) log level|"
    rb"To adjust logging level|.* WARN (Utils: (Your hostname|Set SPARK_LOCAL_IP)|NativeCodeLoader: )"
)
"""Lines with which a JVM and Spark begin on any machine, some before there is a log whose level could be set."""


def local_conf(folder: Path, cores: int) -> dict[str, str]:
    """Settings that every benchmark shares, whatever runs in the session."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.executorEnv.PYTHONPATH": str(_ROOT),
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.numRecentProgressUpdates": str(_PROGRESS_UPDATES),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
    }


def local_session(name: str, folder: Path, cores: int, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session on ``cores`` local cores with ``local_conf`` overlaid by ``conf``.

    Raises EnvironmentSetupError if the machine has no JDK that Spark can start.
    """
    with _quiet_start():
        return build_session(name, f"local[{cores}]", local_conf(folder, cores) | dict(conf or {}))


@contextmanager
def _quiet_start() -> Iterator[None]:
    """What a process that starts inside ever writes to stderr loses the lines ``_OF_EVERY_START``."""
    reading, writing = os.pipe()
    stderr = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, stderr), name="stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)


def _pass_on(reading: int, writing: int) -> None:
    with open(reading, "rb") as lines:
        for line in lines:
            if not _OF_EVERY_START.match(line):
                os.write(writing, line)
