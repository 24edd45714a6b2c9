"""``python -m tests.class_archive FILE``: a class-data archive for the JVMs that tests start, made by a small job.

Owns: ``VARIABLE``, ``java_options``, ``Making`` and ``main``. With the archive a JVM with Spark needs about 3 s of
processor time less of 12. It is made beside the first tests; JVMs that start before it is there, or that it does not
fit, start as ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
# A test's JVM is too short-lived for what the second compiler gains: the first alone halves its processor time.
# Its own code cache is too small for a session that a whole suite shares: code would be swept out and compiled again.
JVM_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
VARIABLE: Final = "SPARK_SUBMIT_OPTS"
"""Of every Spark that a test starts, in any process."""


def java_options(archive: Path | None = None) -> str:
    """Of every JVM of a test; one that cannot use the archive says nothing of it."""
    return JVM_OPTIONS if archive is None else f"{JVM_OPTIONS} -XX:SharedArchiveFile={archive} -Xlog:disable"


class Making:
    """The job that makes the archive, at work; the file is there when it is whole."""

    def __init__(self, archive: Path) -> None:
        search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.class_archive", str(archive)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": search_path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """No more JVM will start: kill what is not done."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def main(archive: Path) -> None:
    """Run a job in a JVM that writes down its classes when it ends."""
    making = archive.with_suffix(".making")
    os.environ[VARIABLE] = f"{JVM_OPTIONS} -XX:ArchiveClassesAtExit={making}"
    with tempfile.TemporaryDirectory() as folder:
        _run_job(Path(folder))
    if making.exists():
        making.rename(archive)


def _run_job(folder: Path) -> None:
    """Files to rows, two changelogs and a table: what most jobs of the tests load."""
    from asyncstate.operators import GroupAggregate, count, sum_
    from asyncstate.spark import StreamingJob, build_session

    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text('{"shop": "a", "amount": 1}\n{"shop": "b", "amount": 2}\n')
    spark = build_session(
        "class-archive", "local[2]", {"spark.log.level": "ERROR", "spark.ui.enabled": "false"}
    )
    job = StreamingJob(spark, str(folder / "state"), {"async-state.local-dir": str(folder / "local")})
    sales = job.source(
        "sales", spark.readStream.schema("shop string, amount bigint").json(str(folder / "in"))
    )
    total = GroupAggregate([count().alias("sales"), sum_("amount").alias("total")])
    totals = sales.where("amount > 0").apply(total, key="shop", uid="totals")
    totals.to(lambda df, batch_id: df.write.mode("append").parquet(str(folder / "out")))
    job.start(trigger={"availableNow": True}).awaitTermination()
    spark.read.parquet(str(folder / "out")).toArrow()
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its input, and writes the archive then
    gateway.proc.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
