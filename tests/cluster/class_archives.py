"""Class-data archives of the JVMs that a story starts: with one, a JVM starts in about half the processor time.

Owns: ``java_options`` and ``record``. Without a JDK's ``jcmd`` there are no archives, and everything runs as slowly as
before; an archive that does not fit is ignored by the JVM.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.cluster import executors_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("driver", "executor")
_DUMP_SECONDS_MAX = 120


def java_options(folder: Path, kind: str) -> tuple[str, ...]:
    """For a JVM of this kind: use the archive in ``folder``, or be ready to leave one."""
    archive = _archive(folder, kind)
    return (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ("-XX:+RecordDynamicDumpInfo",)


def record(spark: SparkSession, folder: Path) -> None:
    """Leave archives of the driver and of one executor of ``spark``, which have done what a story does."""
    from asyncstate.spark.java import check_java

    jcmd = Path(check_java()).resolve().with_name("jcmd")
    if not jcmd.exists():
        return
    assert spark._jvm is not None
    driver = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    executors = executors_of(spark.sparkContext.applicationId or "")
    folder.mkdir()
    for kind, pid in zip(KINDS, (driver, *executors[:1]), strict=False):
        made = folder / f"{kind}.making"
        command = [str(jcmd), str(pid), "VM.cds", "dynamic_dump", str(made)]
        subprocess.run(command, check=False, capture_output=True, timeout=_DUMP_SECONDS_MAX)
        if made.exists():
            shutil.move(made, _archive(folder, kind))


def _archive(folder: Path, kind: str) -> Path:
    return folder / f"{kind}.jsa"
