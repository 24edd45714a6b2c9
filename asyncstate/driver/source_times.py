"""Where the event times of a graph's sources are observed: of all rows, before any filter.

Owns: ``Watch``, ``watches_of`` and ``metric_name``.
Invariant: the result for a source in a micro-batch is the highest event time of all of its rows, however many
actions read them, completely, partly or not at all.
Must not import storage or Spark.

Stages that run anyway read the rows. If an operator receives them unchanged, its tasks report their event times.
Upstream of a filter, the executor observes them for the first stage that reads all of them. Only if no stage does,
the source is read once more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from asyncstate.dataflow import Apply, Dataflow, Node, Source, Transform
from asyncstate.dataflow.arrow_expressions import projection
from asyncstate.driver.executor import Executor, R

_TIME: Final = "asyncstate:time"
_INITIAL: Final = ":initial"


class Watch(NamedTuple):
    """How the event times of a source are found: from the report of ``input_index`` of operator ``uid``, by the
    executor where ``consumer`` reads the rows, or, if there is neither, by reading the rows once more."""

    uid: str | None = None
    input_index: int = 0
    consumer: Node | None = None


def watches_of(
    flow: Dataflow, names: Collection[str], empty: Mapping[Node, R], executor: Executor[R]
) -> dict[Source, Watch]:
    """How the event times of the sources ``names`` are found; ``empty`` has an empty frame with each node's columns."""
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
    """The most distant upstream node all of whose rows ``node`` emits, with the column ``time`` unchanged."""
    while isinstance(node, Transform):
        (given,) = node.inputs[:1]
        if node.kind == "select":
            schema = executor.schema(empty[given])
            columns = projection(node.expressions, {}, schema) if not node.named else None
            if columns is None or all((one.name, one.source) != (time, time) for one in columns):
                return node
        elif node.kind != "drop":
            return node
        node = given
    return node


def _times(node: Apply) -> list[str | None]:
    """The event time column of each input."""
    given = node.arguments()["event_time"]
    return list(given) if isinstance(given, list | tuple) else [given] * len(node.inputs)


def _reads_all(node: Apply, consumer: Node, source: Source) -> bool:
    """Whether the stage of ``node`` reads all rows that ``consumer`` gets from ``source``.

    This must hold on every path between them: a function of DataFrames may stop early, rows of a broadcast input are
    collected separately, and of rows without key and event time the first few may be enough.
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


def reads_all(node: Apply, source: Source) -> bool:
    """Whether the stage of ``node`` reads all rows of ``source``, whatever is between them."""
    return _reads_all(node, source, source)


def _way(node: Node, consumer: Node) -> bool | None:
    """Whether reading all rows of ``node`` reads all rows of ``consumer``; None if no rows come from there."""
    if node is consumer:
        return True
    if not isinstance(node, Apply) or node.operator.stateless:
        ways = [_way(one, consumer) for one in node.inputs]
        if True in ways or False in ways:
            return False not in ways and not _is_function(node)
    return None


def _is_function(node: Node) -> bool:
    return isinstance(node, Transform) and node.kind == "transform" and not node.row_by_row


def metric_name(source: Source, initial: bool = False) -> str:
    """The name under which a source's event times are observed; ``initial``: those of its initial rows."""
    return f"{_TIME}:{source.name}{_INITIAL if initial else ''}"
