"""Rules over compiled plans.

Owns: ``compacted``, which leaves out projections that another one can take over; ``event_time_source``.
Must not import Spark.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from asyncstate.sql import ir


def compacted(root: ir.Node) -> ir.Node:
    """The same plan with fewer projections: one that only picks columns goes into the scan or projection below."""
    readers = Counter(one for node in ir.walk(root) for one in node.inputs)
    done: dict[ir.Node, ir.Node] = {}
    for node in ir.walk(root):
        inputs = tuple(done[one] for one in node.inputs)
        new = node if inputs == node.inputs else replace(node, inputs=inputs)
        if isinstance(new, ir.Project) and (picked := picked_columns(new)) is not None:
            new = _merged(new, picked, readers[node.inputs[0]] == 1)
        done[node] = new
    return done[root]


def _merged(node: ir.Project, picked: list[str], alone: bool) -> ir.Node:
    (below,) = node.inputs
    if isinstance(below, ir.Scan):
        own = dict(zip(below.names, below.own, strict=True))
        return replace(below, columns=node.columns, own=tuple(own[name] for name in picked))
    if isinstance(below, ir.Project) and (alone or picked_columns(below) is not None):
        texts = dict(zip(below.names, below.texts, strict=True))
        return replace(node, inputs=below.inputs, texts=tuple(texts[name] for name in picked))
    return node


def picked_columns(node: ir.Project) -> list[str] | None:
    """The columns that a projection picks, if it does nothing else."""
    known = set(node.inputs[0].names)
    found = [ir.column_of(text) for text in node.texts]
    return [one for one in found if one is not None] if known.issuperset(found) else None


def event_time_source(node: ir.Node, column: str) -> tuple[str, str] | None:
    """The source and the column there that ``column`` is, if rows come from it without an operator."""
    while not isinstance(node, ir.Scan):
        if isinstance(node, ir.Project):
            below = ir.column_of(node.texts[node.names.index(column)])
        else:
            below = column if isinstance(node, ir.Filter) else None
        if below is None or below not in node.inputs[0].names:
            return None
        (node,), column = node.inputs, below
    return node.source, node.own[node.names.index(column)]
