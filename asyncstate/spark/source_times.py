"""Where the event times of a graph's sources are observed: of all rows, before any filter.

Owns: ``Watch``, ``watches_of``, ``observed`` and ``highest_of``.
Invariant: what is found of a source in a micro-batch is the highest event time of all of its rows, however many
actions read them, in whole, in part or not at all.
Must not import storage.

The rows are read by Spark jobs that run anyway. The tasks of an operator that gets them as they are report their times
in any case. Behind a filter Spark observes them in the plan of the first stage that reads all of them. Only where no
stage does so, the source is read once more. (Spark's observation is an operator without generated code: some
0.1 us a row.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampNTZType

from asyncstate.dataflow import Apply, Dataflow, Node, Source, Transform
from asyncstate.dataflow.arrow_sql import plain_columns
from asyncstate.runtime import LATEST_EVENT_TIME
from asyncstate.spark.columns import quoted
from asyncstate.spark.exchange import arrow_schema_of

_TIME: Final = "asyncstate:time"
_INITIAL: Final = ":initial"


class Watch(NamedTuple):
    """How the times of a source are found: by the report of ``input_index`` of operator ``uid``, by Spark where
    ``consumer`` gets the rows, or by a query of its own if there is neither."""

    uid: str | None = None
    input_index: int = 0
    consumer: Node | None = None


def watches_of(
    flow: Dataflow, names: Mapping[str, Any], empty: Mapping[Node, DataFrame]
) -> dict[Source, Watch]:
    """How the times of the sources ``names`` are found; ``empty`` has the columns of each node's rows."""
    return {source: _watch(flow, source, empty) for source in flow.sources if source.name in names}


def _watch(flow: Dataflow, source: Source, empty: Mapping[Node, DataFrame]) -> Watch:
    time = source.times.event_time
    stages = [node for node in flow.nodes if isinstance(node, Apply) and not node.operator.stateless]
    for node in stages:
        for index, given in enumerate(node.inputs):
            if _as_they_are(given, str(time), empty) is source and _times(node)[index] == time:
                return Watch(node.name, index)
    for consumer in flow.nodes:
        if source in consumer.inputs and any(_reads_all(node, consumer, source) for node in stages):
            return Watch(consumer=consumer)
    return Watch()


def _as_they_are(node: Node, time: str, empty: Mapping[Node, DataFrame]) -> Node:
    """The node whose rows come out of ``node``, all of them, with their column ``time``."""
    while isinstance(node, Transform):
        (given,) = node.inputs[:1]
        if node.kind == "select":
            schema = arrow_schema_of(empty[given])
            columns = None if node.named else plain_columns(node.expressions, schema)
            if columns is None or (time, time) not in columns:
                return node
        elif node.kind != "drop":
            return node
        node = given
    return node


def _times(node: Apply) -> list[str | None]:
    """The event time of each input."""
    given = node.arguments()["event_time"]
    return list(given) if isinstance(given, list | tuple) else [given] * len(node.inputs)


def _reads_all(node: Apply, consumer: Node, source: Source) -> bool:
    """Whether the stage of ``node`` reads all rows that ``consumer`` gets from ``source``.

    It does on every way between them: a function of DataFrames may stop half-way, rows for a broadcast input are
    collected apart, and of rows without key and time the first ones may be enough.
    """
    ways = (
        [one is source or None for one in node.inputs]
        if node is consumer
        else [_way(one, consumer) for one in node.inputs]
    )
    taken = [index for index, way in enumerate(ways) if way]
    if False in ways or not taken or _is_function(consumer):
        return False
    whole = [node.key is not None or _times(node)[index] is not None for index in taken]
    return all(whole) and node.operator.broadcast_input not in taken


def _way(node: Node, consumer: Node) -> bool | None:
    """Whether all rows of ``consumer`` are read by whoever reads those of ``node``; None: it has none of them."""
    if node is consumer:
        return True
    if not isinstance(node, Apply) or node.operator.stateless:
        ways = [_way(one, consumer) for one in node.inputs]
        if True in ways or False in ways:
            return False not in ways and not _is_function(node)
    return None


def _is_function(node: Node) -> bool:
    return isinstance(node, Transform) and node.kind == "transform"


def metric_name(source: Source, initial: bool = False) -> str:
    """The name by which Spark knows the observation of a source's rows; ``initial``: of those before the stream."""
    return f"{_TIME}:{source.name}{_INITIAL if initial else ''}"


def observed(source: Source, df: DataFrame, initial: bool = False) -> DataFrame:
    """The rows of ``source``, which Spark observes where they are read."""
    return df.observe(metric_name(source, initial), sf.expr(_highest(source, df)).alias("highest"))


def highest_of(source: Source, frames: Iterable[DataFrame]) -> int | None:
    """The highest event time of the rows of ``source`` in ``frames``, by a query of its own."""
    found = [df.agg(sf.expr(_highest(source, df))).collect()[0][0] for df in frames]
    return max((time for time in found if time is not None), default=None)


def _highest(source: Source, df: DataFrame) -> str:
    """SQL of the highest event time that may move a watermark, microseconds."""
    name = str(source.times.event_time)
    time = f"unix_micros({quoted(name)})"
    if isinstance(df.schema[name].dataType, TimestampNTZType):
        # Differences are the same in every time zone, casts are not.
        time = f"(({quoted(name)} - timestamp_ntz'1970-01-01 00:00:00') div interval '0.000001' second)"
    return f"max(case when {time} <= {LATEST_EVENT_TIME}L then {time} end)"
