"""The Spark session of a benchmark: local, quiet, everything it writes below one folder.

Owns: ``local_session``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from asyncstate.spark import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).resolve().parents[1]
_PROGRESS_UPDATES = 100_000


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
    return build_session(name, f"local[{cores}]", local_conf(folder, cores) | dict(conf or {}))
