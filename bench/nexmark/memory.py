"""The highest memory of Spark's Python workers.

Owns: starting the count of the highest memory anew, so that a run is not charged with what ran before it.
Invariant: touches only the processes below Spark's; without /proc it does nothing, and then a reading is the
highest since the worker started.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from pyspark.sql import SparkSession

from bench.processor_time import tree_times

_PROC = Path("/proc")
_RESET_PEAK = "5"
"""Written to ``clear_refs``, it clears the highest resident size (proc(5)); ``getrusage`` follows."""


def reset_worker_peaks(spark: SparkSession) -> int:
    """Start the workers' highest memory from what they use now; returns the number of processes."""
    gateway = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None or not _PROC.is_dir():
        return 0
    done = 0
    for pid in descendants(process.pid):
        with contextlib.suppress(OSError):
            (_PROC / str(pid) / "clear_refs").write_text(_RESET_PEAK)
            done += 1
    return done


def descendants(root: int) -> list[int]:
    """The processes below ``root``, itself not among them."""
    return [pid for pid in tree_times(root) or {} if pid != root]
