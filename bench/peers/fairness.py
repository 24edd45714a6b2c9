"""What is held equal between the peers, and what is not, for the JSON.

Owns: ``facts``. Must not start Spark.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import pyspark

from asyncstate import __version__
from bench.peers.flink.run import Flink
from bench.peers.spark_plans import NATIVE, PYTHON, STORES, spark_conf
from bench.session import local_conf


def facts(cores: int, **amounts: Any) -> dict[str, Any]:
    """How much of what, with which settings, where."""
    scratch = Path("FOLDER")
    flink = Flink(Path("PYTHON"), scratch, cores)
    return {
        **amounts,
        "cores_of_machine": os.cpu_count(),
        "versions": {
            "asyncstate": __version__,
            "python": platform.python_version(),
            "spark": pyspark.__version__,
        },
        "fairness": {
            "turns": "a process each, a micro-batch each by turns; seconds from trigger to commit, less the wait",
            "partitions": cores,
            "cores": cores,
            "input": f"the same Parquet files, {cores} a micro-batch and table",
            "trigger": "availableNow, maxFilesPerTrigger",
            "sink": "foreachBatch, format noop; the last micro-batch, untimed, to Parquet and compared with DuckDB",
            "output_mode": {
                **{work: mode for work, (_, mode) in NATIVE.items()},
                **{f"{work}, {peer}": mode for (work, peer), (_, mode) in PYTHON.items()},
            },
            "conf_of_all": local_conf(scratch, cores),
            "conf_of_spark": {store: spark_conf(store) for store in STORES},
            "conf_of_flink": {backend: flink.conf(backend) for backend in ("rocksdb", "forst", "hashmap")},
            "conf_of_asyncstate": "defaults; async-state.enabled as the peer says",
            "slow_peers": "fewer rows a micro-batch and as many fewer keys, so the same rows a key and smaller state",
        },
    }
