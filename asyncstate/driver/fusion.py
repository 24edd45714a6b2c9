"""Fusion: which parts of a graph run in the task of the operator upstream of them.

Owns: ``plan_fusion``, which fuses an operator with the filters and projections that are its only consumers, and with
the first step of the next operator.
Invariant: states, results and what is stored are the same as if Spark ran the parts one after the other.
Must not import storage or Spark.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow import Apply, Dataflow, Node, Output, Transform
from asyncstate.dataflow.arrow_expressions import (
    MadeColumn,
    arrow_condition,
    may_be_other_columns,
    projection,
)
from asyncstate.dataflow.nodes import array_of
from asyncstate.driver.executor import R
from asyncstate.driver.micro_batch import MicroBatch
from asyncstate.driver.operator_call import Call, Downstream, Upstream
from asyncstate.runtime import FilterStep, OutputPipeline, ProjectStep, Step


class FusedChain(NamedTuple):
    """What runs in an operator's task after it.

    ``last``: the node whose rows leave the task. ``without_kinds``: a changelog leaves as insertions. ``next``: the
    node that consumes the rows; ``before``: what that operator must know about the fused steps; ``joined``: that
    operator, which has the same key, runs in the same task. ``feeds``: that operator consumes the rows in the same
    Spark job. ``inside``: the nodes that run in the task; ``stopped``: why no more nodes do."""

    last: Node
    after: OutputPipeline | None = None
    without_kinds: bool = False
    next: Node | None = None
    before: Upstream | None = None
    joined: Downstream | None = None
    feeds: bool = False
    inside: tuple[Node, ...] = ()
    stopped: str = ""


def call_of(node: Apply) -> Call:
    """The operator of a node, with its arguments."""
    return Call(node.operator, **node.arguments())


def plan_fusion(flow: Dataflow, empty: Mapping[Node, R], batch: MicroBatch[R]) -> dict[Apply, FusedChain]:
    """What runs in the task of each operator; ``empty`` has an empty frame with each node's columns."""
    tails: dict[Apply, FusedChain] = {}
    routes: dict[Node, tuple[str, ...]] = {}
    for node in flow.nodes:
        if isinstance(node, Apply):
            tail = tails[node] = _tail_of(flow, node, empty, batch, routes.get(node, ()))
            if tail.joined is not None and tail.next is not None:
                routes[tail.next] = tail.joined.route
    return tails


def _tail_of(
    flow: Dataflow, node: Apply, empty: Mapping[Node, R], batch: MicroBatch[R], route: tuple[str, ...]
) -> FusedChain:
    """What runs in the task of ``node``, which is routed by ``route``."""
    if node.operator.stateless or not batch.fusion or node not in empty:
        return FusedChain(node, stopped="fusion is off" if not batch.fusion else "")
    steps: list[Step] = []
    schema, without_kinds = batch.schema(empty[node]), False
    inputs = [empty[one] for one in node.inputs]
    routes = batch.routed_output(call_of(node), inputs, route)
    last: Node = node
    inside: list[Node] = []
    following = _only_consumer(flow, node)
    while isinstance(following, Transform) and (found := _step(following, schema)) is not None:
        step, schema = found
        steps += [] if step is None else [step]
        routes = [new for one in routes if (new := _renamed_route(one, step)) is not None]
        without_kinds |= following.kind == "drop" and ROW_KIND_COLUMN in following.expressions
        inside.append(following)
        last, following = following, _only_consumer(flow, following)
    after = OutputPipeline(tuple(steps), schema) if steps else None
    tail = FusedChain(last, after, without_kinds, following, inside=tuple(inside))
    if isinstance(following, Apply) and not following.operator.stateless:
        # Initial state needs a separate exchange.
        if len(following.inputs) == 1 and following.initial_state is None:
            joined = batch.downstream(call_of(node), inputs, call_of(following), empty[last], routes)
            if joined is not None:
                return tail._replace(joined=joined)
            first = batch.first_step(call_of(following), empty[last])
            if first is not None:
                step, schema, before = first
                tail = tail._replace(after=OutputPipeline((*steps, step), schema), before=before)
        kept = _kept(node, last, following, empty, batch, inputs, tail.before is not None)
        return tail._replace(feeds=not kept, stopped=kept)
    return tail._replace(
        next=following if isinstance(following, Transform) else None, stopped=_reason(flow, last, following)
    )


def _kept(
    node: Apply,
    last: Node,
    following: Apply,
    empty: Mapping[Node, R],
    batch: MicroBatch[R],
    inputs: Sequence[R],
    stepped: bool,
) -> str:
    """Why the rows of ``last`` are materialized before ``following`` consumes them; empty if they are not."""
    if following.initial_state is not None:
        return f"'{following.name}' may have to start from existing rows"
    if following.inputs.count(last) > 1 or any(one not in empty for one in following.inputs):
        return f"'{following.name}' gets them twice"
    frames = [empty[one] for one in following.inputs]
    index = following.inputs.index(last)
    return batch.kept(call_of(node), inputs, call_of(following), frames, index, stepped)


def _renamed_route(route: tuple[str, ...], step: Step | None) -> tuple[str, ...] | None:
    """The names of the routing columns after a step; None if a column was dropped."""
    if not isinstance(step, ProjectStep):
        return route
    new = {source: name for source, name in reversed(step.columns) if isinstance(source, str)}
    return tuple(new[name] for name in route) if all(name in new for name in route) else None


def places_of(tails: Mapping[Apply, FusedChain]) -> dict[Node, str]:
    """Where nodes run that do not run in their kind's usual place, and why others are not fused."""
    places: dict[Node, str] = {}
    downstream: dict[Apply, list[tuple[Apply, FusedChain]]] = {}
    for node, tail in tails.items():
        places |= {inner: f"in the task of '{node.name}'" for inner in tail.inside}
        if tail.joined is not None and tail.next is not None:
            places[tail.next] = f"in the task of '{node.name}', {_why(tail.joined)}; no exchange, state"
        elif isinstance(tail.next, Apply):
            downstream.setdefault(tail.next, []).append((node, tail))
        elif tail.stopped and isinstance(tail.next, Transform):
            places[tail.next] = f"in Spark's plan of the reader: {tail.stopped}"
    return places | {node: _exchanged(before) for node, before in downstream.items()}


def _exchanged(before: Sequence[tuple[Apply, FusedChain]]) -> str:
    """How an operator receives rows of others through an exchange."""
    said = []
    for node, tail in before:
        if tail.before is not None:
            what = (
                "the best rows of each key"
                if tail.before.local is None
                else "rows partially aggregated by key"
            )
            said.append(f"{what} in the task of '{node.name}'; ")
    feeds = " and ".join(f"'{node.name}'" for node, tail in before if tail.feeds)
    said.append(f"an exchange in the Spark job of {feeds}" if feeds else "an exchange")
    said += [
        f", rows of '{node.name}' kept before it ({tail.stopped})" for node, tail in before if tail.stopped
    ]
    return "".join([*said, ", one task per partition, state"])


def _why(joined: Downstream) -> str:
    return f"routed by {', '.join(joined.route)} as it is" if joined.route else "which has the same key"


def _reason(flow: Dataflow, last: Node, following: Node | None) -> str:
    if following is None:
        count = sum(last in other.inputs for other in flow.nodes if not isinstance(other, Output))
        return f"the rows of '{last.name}' have {count} readers" if count > 1 else ""
    if isinstance(following, Transform):
        return f"'{following.text}' is left to Spark, since Arrow may give another result"
    return ""


def _only_consumer(flow: Dataflow, node: Node) -> Node | None:
    consumers = [other for other in flow.nodes if node in other.inputs and not isinstance(other, Output)]
    return consumers[0] if len(consumers) == 1 else None


def _step(node: Transform, schema: pa.Schema) -> tuple[Step | None, pa.Schema] | None:
    """The node as a step over rows of ``schema`` (None if it does nothing), and the columns after it. The result is
    None if the node must be left to Spark."""
    if node.kind == "where":
        (condition,) = node.expressions
        if callable(condition):
            return FilterStep(functools.partial(_mask, condition)), schema
        kept = arrow_condition(condition, schema) if isinstance(condition, str) else None
        return None if kept is None else (FilterStep(kept), schema)
    if node.kind == "drop":
        return _projected(
            [_passed(one, schema) for one in schema.names if one not in node.expressions], schema
        )
    if node.kind == "with_columns":
        made = None if may_be_other_columns(node.named, schema) else projection((), node.named, schema)
        if made is None:
            return None
        columns = {name: _passed(name, schema) for name in schema.names} | {one.name: one for one in made}
        return _projected(list(columns.values()), schema)
    if node.kind == "select":
        return _projected(projection(node.expressions, node.named, schema), schema)
    return None


def _passed(name: str, schema: pa.Schema) -> MadeColumn:
    return MadeColumn(name, name, schema.field(name).type)


def _projected(
    columns: Sequence[MadeColumn] | None, schema: pa.Schema
) -> tuple[Step | None, pa.Schema] | None:
    if not columns or any(one.name.lower() == ROW_KIND_COLUMN for one in columns):
        return None
    if [one.source for one in columns] == [one.name for one in columns] == schema.names:
        return None, schema
    pairs = [(one.source if isinstance(one.source, str) else one.source.column, one.name) for one in columns]
    return ProjectStep(tuple(pairs)), pa.schema([(one.name, one.type) for one in columns])


def _mask(condition: Any, rows: pa.RecordBatch) -> pa.Array:
    return array_of(condition, rows, "where", pa.bool_())
