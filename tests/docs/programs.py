"""``python -m tests.docs.programs FOLDER ...``: the program of each folder, one after another in one process.

Owns: the names of a folder's files, and ``run``. Each program has a Spark of its own, in its folder, as if a user ran
it; they share the JVM, whose start costs more than most of them.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM, PRINTED, FAILED = "program.py", "printed.txt", "failed.txt"
"""What is run, what it has printed, and how it has failed, if it has."""


def run(folders: Sequence[Path], seconds_max: float) -> None:
    """Run the programs of all folders. Raises AssertionError if their process does not come to its end."""
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.programs", *map(str, folders)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": search_path},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds_max,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def main(folders: Sequence[Path]) -> None:
    """In the process of the programs."""
    _start_java()
    for folder in folders:
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        with (folder / PRINTED).open("w", encoding="utf-8") as printed, contextlib.redirect_stdout(printed):
            try:
                runpy.run_path(str(folder / PROGRAM), run_name="__main__")
            except BaseException:
                (folder / FAILED).write_text(traceback.format_exc(), "utf-8")
        _stop_spark()


def _start_java() -> None:
    """Before the first program, whose settings would be the JVM's, and so those of all."""
    from pyspark import SparkContext

    from asyncstate.spark.java import check_java

    check_java()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    SparkContext._ensure_initialized()
    del os.environ["SPARK_LOCAL_IP"]


def _stop_spark() -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        SparkSession.builder.getOrCreate().stop()


if __name__ == "__main__":
    main([Path(given) for given in sys.argv[1:]])
