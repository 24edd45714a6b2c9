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


def count_frames(key: int, rows: Iterator[Any], sums: list[int]) -> Iterator[Any]:
    """Each row of pandas DataFrames with how many of its key there have been, which ``sums`` has."""
    import pandas as pd

    for frame in rows:
        first = sums[0] + 1
        sums[0] += len(frame)
        yield pd.DataFrame({"key": [key] * len(frame), "n": range(first, sums[0] + 1)})


def mean_of_frames(key: int, rows: Iterator[Any], sums: list[int]) -> Iterator[Any]:
    """The weighted mean of all values of a key so far, of which ``sums`` has total and weight."""
    import pandas as pd

    for frame in rows:
        weights = frame["value"] % 7 + 1
        sums[0] += int((frame["value"] * weights).sum())
        sums[1] += int(weights.sum())
    yield pd.DataFrame({"key": [key], "mean": [sums[0] / sums[1]]})


def _apply_pandas(take: Callable[..., Iterator[Any]], out: str, columns: str) -> Plan:
    def function(key: tuple[Any, ...], frames: Iterator[Any], state: Any) -> Iterator[Any]:
        sums = list(state.get) if state.exists else [0] * (columns.count(",") + 1)
        yield from take(key[0], frames, sums)
        state.update(tuple(sums))

    how = (function, out, columns, "update", "NoTimeout")
    return lambda streams: streams["rows"].groupBy("key").applyInPandasWithState(*how)


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
    ("d", "apply-pandas"): (_apply_pandas(count_frames, _COUNTED, _STATE), "update"),
    ("g", "tws-row"): (_tws("MeanOfRows", _MEAN), "update"),
    ("g", "tws-pandas"): (_tws("MeanOfFrames", _MEAN), "update"),
    ("g", "apply-pandas"): (_apply_pandas(mean_of_frames, _MEAN, _SUMS), "update"),
}
"""By work and peer: the counter of work d, the mean of work g."""
