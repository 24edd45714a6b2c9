"""Stateful operators in Spark Structured Streaming: the foreachBatch job and what belongs to it.

Owns: nothing; re-exports the public names.
Invariant: importing this package imports neither pyspark nor the job: a Python worker that unpickles a task imports
this package before ``asyncstate.spark.python_task``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncstate.driver.progress import Progress, ProgressFormatter
    from asyncstate.spark.bounded_input import apply_batch
    from asyncstate.spark.job import StreamingJob
    from asyncstate.spark.net_changes import last_changes, netted
    from asyncstate.spark.prometheus import PrometheusProgress
    from asyncstate.spark.reading import read_state
    from asyncstate.spark.session import build_session, recommended_conf
    from asyncstate.spark.spark_micro_batch import MicroBatch

__all__ = [
    "MicroBatch",
    "Progress",
    "ProgressFormatter",
    "PrometheusProgress",
    "StreamingJob",
    "apply_batch",
    "build_session",
    "last_changes",
    "netted",
    "read_state",
    "recommended_conf",
]

_HOMES = {
    "MicroBatch": "asyncstate.spark.spark_micro_batch",
    "Progress": "asyncstate.driver.progress",
    "ProgressFormatter": "asyncstate.driver.progress",
    "PrometheusProgress": "asyncstate.spark.prometheus",
    "StreamingJob": "asyncstate.spark.job",
    "apply_batch": "asyncstate.spark.bounded_input",
    "build_session": "asyncstate.spark.session",
    "last_changes": "asyncstate.spark.net_changes",
    "netted": "asyncstate.spark.net_changes",
    "read_state": "asyncstate.spark.reading",
    "recommended_conf": "asyncstate.spark.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'asyncstate.spark' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
