"""A session that knows nothing of asyncstate, in a process whose PATH has another python3."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from asyncstate.spark.session import LOCAL_CHECKPOINTS, quieten

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
from pyspark.sql import SparkSession
from asyncstate.spark import StreamingJob
from operators import GroupAggregate, count

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
job = StreamingJob(spark, sys.argv[1])
found = []

@job.micro_batch
def on_batch(df, batch):
    found.extend(batch.apply(GroupAggregate([count()]), df, key="k", uid="counts").collect())

on_batch(spark.range(10).selectExpr("id % 2 as k"), 0)
print(sorted(map(tuple, found)))
"""


SINK = """
import sys, duckdb
from asyncstate.spark import StreamingJob, build_session

spark, own = build_session(master="local[1]"), duckdb.connect()
spark.range(3).write.parquet(sys.argv[1] + "-in")
with StreamingJob(spark, sys.argv[1]) as job:
    rows = job.source("rows", spark.readStream.schema("id long").parquet(sys.argv[1] + "-in"))
    rows.to(lambda df, batch_id: print(own.execute("SELECT ?", [df.count()]).fetchall()), name="counted")
    job.await_termination(job.start(trigger="availableNow"))
"""


def run(script: str, folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """What a script prints that gets the path of a checkpoint, and what it prints to stderr."""
    place = folder / "script.py"
    place.write_text(script)
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, str(place), str(folder / "checkpoint")]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1], done.stderr


def test_workers_run_the_interpreter_of_the_script(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho \"No module named 'pyarrow'\" >&2\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    assert run(SCRIPT, tmp_path, environment)[0] == "[(0, 5, '+I'), (1, 5, '+I')]"


def test_what_a_sink_refers_to_is_not_reported_as_leaked(tmp_path: Path) -> None:
    said, errors = run(SINK, tmp_path, dict(os.environ))
    assert said == "[(3,)]"
    assert "leaked" not in errors


def test_warnings_of_local_checkpoints_are_left_out_and_a_level_of_the_users_stays(
    spark: SparkSession,
) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    manager = jvm.org.apache.logging.log4j.LogManager
    own = manager.getContext(False).getConfiguration().getLoggerConfig
    root = own("").getLevel().toString()
    quieten(spark.sparkContext)
    assert (own(LOCAL_CHECKPOINTS).getName(), own(LOCAL_CHECKPOINTS).getLevel().toString()) == (
        LOCAL_CHECKPOINTS,
        "ERROR",
    )
    assert own("").getLevel().toString() == root
    own(LOCAL_CHECKPOINTS).setLevel(jvm.org.apache.logging.log4j.Level.valueOf("WARN"))
    try:
        quieten(spark.sparkContext)
        assert own(LOCAL_CHECKPOINTS).getLevel().toString() == "WARN"
    finally:
        own(LOCAL_CHECKPOINTS).setLevel(jvm.org.apache.logging.log4j.Level.valueOf("ERROR"))
