"""Where the event times of a graph's sources are observed: of all rows, before any filter.

Owns: ``Watch``, ``watches_of`` and ``metric_name``.
Invariant: what is found of a source in a micro-batch is the highest event time of all of its rows, however many
actions read them, in whole, in part or not at all.
Must not import storage or Spark.

The rows are read by stages that run anyway. The tasks of an operator that gets them as they are report their times
in any case. Behind a filter the executor observes them for the first stage that reads all of them. Only where no
stage does so, the source is read once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from asyncstate.dataflow import Apply, Dataflow, Node, Source, Transform
from asyncstate.dataflow.arrow_sql import plain_columns
from asyncstate.driver.executor import Executor, R

_TIME: Final = "asyncstate:time"
_INITIAL: Final = ":initial"


class Watch(NamedTuple):
    """How the times of a source are found: by the report of ``input_index`` of operator ``uid``, by the executor where
    ``consumer`` gets the rows, or by reading them once more if there is neither."""

    uid: str | None = None
    input_index: int = 0
    consumer: Node | None = None


def watches_of(
    flow: Dataflow, names: Collection[str], empty: Mapping[Node, R], executor: Executor[R]
) -> dict[Source, Watch]:
    """How the times of the sources ``names`` are found; ``empty`` has the columns of each node's rows."""
    return {source: _watch(flow, source, empty, executor) for source in flow.sources if source.name in names}


def _watch(flow: Dataflow, source: Source, empty: Mapping[Node, R], executor: Executor[R]) -> Watch:
    time = source.times.event_time
    stages = [node for node in flow.nodes if isinstance(node, Apply) and not node.operator.stateless]
    for node in stages:
        for index, given in enumerate(node.inputs):
            if _as_they_are(given, str(time), empty, executor) is source and _times(node)[index] == time:
                return Watch(node.name, index)
    for consumer in flow.nodes:
        if source in consumer.inputs and any(_reads_all(node, consumer, source) for node in stages):
            return Watch(consumer=consumer)
    return Watch()


def _as_they_are(node: Node, time: str, empty: Mapping[Node, R], executor: Executor[R]) -> Node:
    """The node whose rows come out of ``node``, all of them, with their column ``time``."""
    while isinstance(node, Transform):
        (given,) = node.inputs[:1]
        if node.kind == "select":
            schema = executor.schema(empty[given])
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
    """The name of what is observed of a source's rows; ``initial``: of those before the stream."""
    return f"{_TIME}:{source.name}{_INITIAL if initial else ''}"
