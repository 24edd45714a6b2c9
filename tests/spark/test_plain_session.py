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


def test_workers_run_the_interpreter_of_the_script(tmp_path: Path) -> None:
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho \"No module named 'pyarrow'\" >&2\nexit 1\n")
    other.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{other.parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, str(script), str(tmp_path / "checkpoint")]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[(0, 5, '+I'), (1, 5, '+I')]"


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
