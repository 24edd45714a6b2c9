"""The rows of a stream of a job over a sample of its sources.

Owns: ``sample_of``.
Invariant: neither the job's checkpoint nor its sinks are touched, and no source hears that its rows were read.
Must not import storage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row

from asyncstate.changelog import Changelog
from asyncstate.dataflow import Dataflow, Node, Sink, Source
from asyncstate.dataflow.graph import caller
from asyncstate.dataflow.nodes import upstream_of
from asyncstate.dataflow.sample import Sample
from asyncstate.errors import JobError
from asyncstate.spark.compatibility import (
    arrow_table,
    context_of,
    is_connect,
    is_one_machine,
    runs_locally,
)
from asyncstate.spark.packed_inputs import Packing, before, static
from asyncstate.spark.session import suppress_log

_LOG_SECONDS_MAX: Final = 10.0


def sample_of(
    node: Node,
    given: Mapping[str, Any],
    limit: int,
    sources: Packing,
    initial: Mapping[str, Any],
    run: Callable[..., Mapping[Node, Changelog]],
) -> Sample:
    """The rows of ``node`` after the first ``limit`` rows of each source, or all rows that are ``given`` by its name,
    and the last watermark. ``run``: runs a job with a checkpoint folder, a graph, and by source its columns, initial
    rows and rows; returns the changelog properties of the nodes. Raises JobError."""
    nodes = upstream_of(node)
    names = [one.name for one in nodes if isinstance(one, Source)]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise JobError(
            f"{caller()}: show: there is no source '{unknown[0]}' here; there are {', '.join(names)}"
        )
    rows, first = dict[str, DataFrame](), dict[str, DataFrame]()
    counts = dict[str, int]()
    for name in names:
        shape = sources.shape_of(name)
        _check_session(shape.sparkSession)
        session = shape.sparkSession
        if name in given:
            df = _frame(given[name], shape)
            rows[name] = before(f"source '{name}'", static(f"show({{'{name}': ...}})", df), shape)
            counts[name] = rows[name].count()
            continue
        own = _first_rows(shape, limit) if shape.isStreaming else []
        rows[name], counts[name] = session.createDataFrame(own, shape.schema), len(own)
        if name in initial:
            start = initial[name].limit(limit).collect()
            first[name] = session.createDataFrame(start, initial[name].schema)
            counts[name] += len(start)
    nothing = {name: df.sparkSession.createDataFrame([], df.schema) for name, df in rows.items()}
    found = list[pa.Table]()

    def keep(df: DataFrame, batch_id: int) -> None:
        found.append(arrow_table(df))

    flow = Dataflow()
    flow.nodes = [*nodes, Sink(name="show", place=caller(), inputs=(node,), sink=keep)]
    with TemporaryDirectory(prefix="asyncstate-show-") as folder:
        changes = run(folder, flow, nothing, first, rows)[node]
    return Sample(pa.concat_tables(found), changes, counts, limit)


def _check_session(spark: SparkSession) -> None:
    if is_connect(spark):
        raise JobError(
            "show does not run over Spark Connect, because its operators run in this process; use show in a "
            "PipelineHarness, apply_batch for one operator, or a classic session"
        )
    if not runs_locally(spark) and not is_one_machine(spark):
        raise JobError(
            "show: before Spark 4.0 its operators run on the executors, which do not have the temporary folder of this "
            "process; use show in a PipelineHarness, apply_batch for one operator, or a local session"
        )


def _frame(given: Any, shape: DataFrame) -> Any:
    """``given`` as a DataFrame: rows as tuples or dicts get the columns of the source, without ``row_kind`` if they
    have none."""
    if isinstance(given, pa.Table | pa.RecordBatch):
        given = given.to_pylist()
    if not isinstance(given, list | tuple):
        return given
    schema = shape.schema
    size = {len(row) for row in given}
    if size == {len(schema) - 1}:
        schema = shape.drop("row_kind").schema
    return shape.sparkSession.createDataFrame(list(given), schema)


class _EnoughError(Exception):
    """Ends the query before Spark commits the offsets to its sources, which may then delete what was read."""


def _first_rows(df: DataFrame, limit: int) -> list[Row]:
    """The first rows of a streaming DataFrame, from where it starts."""
    found, read, quiet = list[Row](), threading.Event(), threading.Event()

    def keep(rows: DataFrame, batch_id: int) -> None:
        found.extend(rows.limit(limit).collect())
        read.set()
        quiet.wait(_LOG_SECONDS_MAX)
        raise _EnoughError

    with TemporaryDirectory(prefix="asyncstate-show-") as folder:
        writer = df.writeStream.foreachBatch(keep).option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        with suppress_log(context_of(df.sparkSession), query.runId):
            quiet.set()
            try:
                query.awaitTermination()
            except Exception:
                if not read.is_set():
                    raise
            finally:
                with suppress(Exception):
                    query.stop()
    return found
