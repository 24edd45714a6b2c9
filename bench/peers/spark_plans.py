"""What Spark runs for each piece of work, with operators of its own and with Python code for each key.

Invariant: nothing of asyncstate is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from bench.peers.works import BOUND, DELAY, HOP, TUMBLE

Streams = Mapping[str, DataFrame]
Plan = Callable[[Streams], DataFrame]

_STORE = "spark.sql.streaming.stateStore"
_PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
_HEAP_MEMORY = "8g"
_COUNTED, _STATE = "key bigint, n bigint", "n bigint"
_MEAN, _SUMS = "key bigint, mean double", "total bigint, weight bigint"


def _rocksdb(changelog: bool) -> dict[str, str]:
    return {
        f"{_STORE}.providerClass": f"{_PROVIDERS}.RocksDBStateStoreProvider",
        f"{_STORE}.rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
        f"{_STORE}.rocksdb.trackTotalNumberOfRows": "false",
    }


STORES: Mapping[str, Mapping[str, str]] = {
    "heap": {
        f"{_STORE}.providerClass": f"{_PROVIDERS}.HDFSBackedStateStoreProvider",
        "spark.driver.memory": _HEAP_MEMORY,
    },
    "changelog": _rocksdb(True),
    "snapshots": _rocksdb(False),
}
"""Where Spark keeps state.

In the heap of the JVM, which is its default, with memory for 10,000,000 keys; or in RocksDB, uploading changes or whole
files, and not counting its rows, which would read before each write.
"""


def spark_conf(store: str) -> dict[str, str]:
    """Spark's best with state in one of ``STORES``: no micro-batches without rows."""
    return {**STORES[store], "spark.sql.streaming.noDataMicroBatches.enabled": "false"}


def _aggregate(streams: Streams) -> DataFrame:
    aggregates = [F.count("*").alias("n"), F.sum("value").alias("total"), F.max("value").alias("highest")]
    return streams["rows"].groupBy("key").agg(*aggregates)


def _first(streams: Streams) -> DataFrame:
    return streams["rows"].dropDuplicates(["key"])


def _join(streams: Streams) -> DataFrame:
    left = streams["left"].withWatermark("left_time", DELAY)
    right = streams["right"].withWatermark("right_time", DELAY)
    bound = f"right_time >= left_time AND right_time <= left_time + INTERVAL {BOUND}"
    joined = left.join(right, F.expr(f"left_key = right_key AND {bound}"))
    return joined.selectExpr("left_key AS key", "left_id", "right_id")


def _windowed(*window: str) -> Plan:
    def plan(streams: Streams) -> DataFrame:
        rows = streams["rows"].withWatermark("time", DELAY)
        aggregates = F.count("*").alias("n"), F.sum("value").alias("total")
        counts = rows.groupBy(F.window("time", *window), "key").agg(*aggregates)
        return counts.selectExpr("key", "window.end AS window_end", "n", "total")

    return plan


def _apply_pandas(function: Callable[..., Iterator[Any]], out: str, state: str) -> Plan:
    return lambda streams: (
        streams["rows"].groupBy("key").applyInPandasWithState(function, out, state, "update", "NoTimeout")
    )


def _count_with_state(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    import pandas as pd

    count = state.get[0] if state.exists else 0
    for frame in frames:
        rows = len(frame)
        yield pd.DataFrame({"key": [key[0]] * rows, "n": range(count + 1, count + rows + 1)})
        count += rows
    state.update((count,))


def _mean_with_state(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
    import pandas as pd

    total, weight = state.get if state.exists else (0, 0)
    for frame in frames:
        weights = frame["value"] % 7 + 1
        total, weight = total + int((frame["value"] * weights).sum()), weight + int(weights.sum())
    state.update((total, weight))
    yield pd.DataFrame({"key": [key[0]], "mean": [total / weight]})


def _tws(processor: str, out: str) -> Plan:
    """``transformWithState`` with a processor of that name, with rows or with frames."""

    def plan(streams: Streams) -> DataFrame:
        from bench.peers import spark_processors

        keyed, made = streams["rows"].groupBy("key"), getattr(spark_processors, processor)()
        transform = keyed.transformWithStateInPandas if "Frames" in processor else keyed.transformWithState
        return transform(made, out, "Update", "None")

    return plan


NATIVE: Mapping[str, tuple[Plan, str]] = {
    "a": (_aggregate, "update"),
    "b": (_first, "append"),
    "c": (_join, "append"),
    "e-tumble": (_windowed(*TUMBLE), "append"),
    "e-hop": (_windowed(*HOP), "append"),
}
"""By work, with the output mode: update, or append where each row comes once, as from asyncstate."""

PYTHON: Mapping[tuple[str, str], tuple[Plan, str]] = {
    ("d", "tws-row"): (_tws("CountRows", _COUNTED), "update"),
    ("d", "tws-pandas"): (_tws("CountFrames", _COUNTED), "update"),
    ("d", "apply-pandas"): (_apply_pandas(_count_with_state, _COUNTED, _STATE), "update"),
    ("g", "tws-row"): (_tws("MeanOfRows", _MEAN), "update"),
    ("g", "tws-pandas"): (_tws("MeanOfFrames", _MEAN), "update"),
    ("g", "apply-pandas"): (_apply_pandas(_mean_with_state, _MEAN, _SUMS), "update"),
}
"""By work and peer: the counter of work d, the mean of work g."""
