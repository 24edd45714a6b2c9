"""What the checkpoint stores of a graph, and whether a changed graph may continue from it.

Owns: ``graph_manifest``, ``check_sinks``, ``check_order``, ``check_initial`` and ``to_begin``.
Invariant: a sink never continues silently if the rows it has received differ from those that the graph would now emit.
Must not import Spark.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog
from asyncstate.dataflow.graph import Dataflow
from asyncstate.dataflow.nodes import (
    Apply,
    Node,
    Output,
    Sink,
    Source,
    Transform,
    Union,
    condition_text,
    filters_of,
)
from asyncstate.dataflow.sql_text import plain_column
from asyncstate.errors import JobError
from asyncstate.storage import GraphManifest, SinkManifest

_MIGRATE: Final = "python -m asyncstate state migrate"
_NONE: Final = "none"


def graph_manifest(
    flow: Dataflow, changes: Mapping[Node, Changelog], initial: Collection[str], before: GraphManifest | None
) -> GraphManifest:
    """What the manifest stores of ``flow``; ``initial``: the sources that start with initial rows."""
    known = {} if before is None else before.sources
    new = {node.name: node.name in initial for node in flow.sources if node.name not in known}
    sinks = {node.name: _rows_of(node, changes) for node in flow.sinks}
    return GraphManifest({**known, **new}, sinks, _streams(flow))


def _streams(flow: Dataflow) -> list[str]:
    return [node.name for node in flow.sources if node.streams]


def to_begin(initial: Collection[str], before: GraphManifest | None, is_first: bool) -> list[str]:
    """The sources whose initial rows this micro-batch reads."""
    if before is None:
        return list(initial) if is_first else []
    return [name for name in initial if name not in before.sources]


def check_initial(node: Source, before: GraphManifest | None, is_first: bool) -> None:
    """Raise JobError if a source has initial rows that would never be read."""
    if is_first:
        return
    if before is None:
        raise JobError(
            "it has initial rows, and the checkpoint does not say whether they were already processed; if so, leave "
            "initial out, else give them to an operator with a new uid: apply(..., initial_state=...)"
        )
    if not before.sources.get(node.name, True):
        raise JobError(
            "it has initial rows, which must come before its stream, but micro-batches have already read that; leave "
            "initial out, or give them to an operator with a new uid: apply(..., initial_state=...)"
        )


def check_order(flow: Dataflow, before: GraphManifest | None) -> None:
    """Raise JobError if a source has another place than before: Spark would read it with the offsets of the one that
    was there."""
    was, now = (None if before is None else before.streams) or [], _streams(flow)
    moved = [name for at, name in enumerate(now) if name in was and was.index(name) != at]
    if moved:
        raise JobError(
            f"the sources were ({', '.join(was)}) and are ({', '.join(now)}). Spark knows them by their order, "
            f"and would read '{moved[0]}' with the offsets of another one. Declare them in the old order; or name them "
            "in Spark from the first start (docs/dataflow.md, several sources)"
        )


def check_sinks(
    flow: Dataflow,
    changes: Mapping[Node, Changelog],
    before: GraphManifest | None,
    operators: Collection[str],
) -> Iterator[str]:
    """Problems of sinks that continue or are added; ``operators``: the uids that the checkpoint knows.

    A sink that keeps a table must receive the same rows as before. For other sinks only the filters of changes are
    compared, since what else they do with their rows is not known.
    """
    if before is None:
        return
    for node in flow.sinks:
        if node.inputs[0] not in changes:
            continue  # the problem is upstream of it
        was, now = before.sinks.get(node.name), _rows_of(node, changes)
        if was is None:
            missed = [_input_text(one) for one in now.inputs or () if _has_run(one, before, operators)]
            if node.is_table and missed and not node.starting_now:
                yield node.problem(_added(missed))
            continue
        changed = list(_changed(was, now, node.is_table))
        if changed:
            yield node.problem(_refused(node, changed))


def _added(missed: Sequence[str]) -> str:
    return (
        f"it is new, so its table would lack the rows that {', '.join(missed)} has given before. Give the upstream "
        "operator a new uid and replay its rows from the beginning; or, if the table only needs changes from now on, "
        "use to(..., starting_now=True)"
    )


def _refused(node: Sink, changed: Sequence[str]) -> str:
    new = (
        "another name, and another table with to(..., starting_now=True)" if node.is_table else "another name"
    )
    return (
        f"it has rows that another program wrote, which would stay: {'; '.join(changed)}. Undo the change; or give "
        f"the sink {new}; or correct the rows that it holds, and confirm that while the query is stopped: {_MIGRATE} "
        f"accept-sink CHECKPOINT {shlex.quote(node.name)}"
    )


def _changed(was: SinkManifest, now: SinkManifest, is_table: bool) -> Iterator[str]:
    if (is_table or was.changes or now.changes) and None is not was.filters != now.filters:
        yield f"the filter was {was.filters} and is {now.filters}"
    if is_table and None is not was.columns != now.columns:
        yield f"the computed columns were {was.columns} and are {now.columns}"
    if is_table and None is not was.inputs != now.inputs:
        yield f"the rows were those of {_texts(was.inputs)} and are those of {_texts(now.inputs)}"


def _has_run(given: str, before: GraphManifest, operators: Collection[str]) -> bool:
    uid, _, name = given.partition(":")
    return uid in operators if uid else name in before.sources


def _texts(inputs: Collection[str] | None) -> str:
    return ", ".join(map(_input_text, inputs or ())) or "nothing"


def _input_text(given: str) -> str:
    uid, _, name = given.partition(":")
    if not uid:
        return f"source '{name}'"
    return f"side output '{name}' of operator '{uid}'" if name else f"operator '{uid}'"


def _rows_of(node: Sink, changes: Mapping[Node, Changelog]) -> SinkManifest:
    (given,) = node.inputs
    return SinkManifest(
        not changes[given].is_insert_only, filters_of(given), _columns_of(given), sorted(_inputs_of(given))
    )


def _is_operator(node: Node) -> bool:
    """Whether the node keeps state, so that changes upstream of it show in that state."""
    return isinstance(node, Apply) and not node.operator.stateless


def _inputs_of(node: Node) -> set[str]:
    if isinstance(node, Source):
        return {f":{node.name}"}
    if isinstance(node, Output):
        return {f"{node.inputs[0].name}:{node.side}"}
    if _is_operator(node):
        return {node.name}
    return {name for one in node.inputs for name in _inputs_of(one)}


def _columns_of(node: Node) -> str:
    """Columns computed between a source or stateful operator and this node. Columns that pass unchanged or are dropped
    do not affect the others."""
    if isinstance(node, Source | Output) or _is_operator(node):
        return _NONE
    before = [_columns_of(one) for one in node.inputs]
    if isinstance(node, Union):
        return " or ".join(f"({part})" for part in sorted(before)) if set(before) != {_NONE} else _NONE
    own = sorted(_made(node))
    return ", ".join([*(part for part in before if part != _NONE), *own]) or _NONE


def _made(node: Node) -> Iterator[str]:
    if isinstance(node, Apply):
        yield f"operator '{node.name}'"
    if not isinstance(node, Transform) or node.kind in ("where", "drop"):
        return
    for expression in node.expressions:
        old, new = plain_column(expression)
        is_star = isinstance(expression, str) and expression.strip().startswith("*")
        if (old != new or not old) and not is_star and new != ROW_KIND_COLUMN:
            yield condition_text(expression)
    for name, expression in node.named.items():
        if plain_column(expression)[0] != name:
            yield f"{condition_text(expression)} AS {name}"
