"""A statement that was started with another text before: which of its operators keep their state.

Owns: ``Operators``; ``digests`` and ``stream_digest``, of all that rows come from.
Invariant: an operator keeps its state only if it is as it was, and all that its rows come from. Others are refused by
name, or starts with empty state under another uid.
Must not import Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from asyncstate.dataflow import Apply, Node, Output, Source, Transform
from asyncstate.dataflow.nodes import condition_text
from asyncstate.dataflow.sql_text import column_of
from asyncstate.errors import SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.explained import said

if TYPE_CHECKING:
    from asyncstate.sql.statements import Compiled

STREAM: Final = "stream "
"""How the digests of streams of the graph begin, which plans of older versions do not have."""
_ZONE: Final = "spark.sql.session.timeZone"
_TIMES: Final = re.compile("time|date", re.IGNORECASE)
_VALID: Final = re.compile(r"\(`[^`]+` IS NOT NULL\)")


def digests(plan: Compiled) -> dict[ir.Node, str]:
    """A digest of each node and of all that its rows come from."""
    found: dict[ir.Node, str] = {}
    for node in plan.nodes:
        if isinstance(node, ir.Kept):  # how long rows are kept changes no row
            found[node] = found[node.inputs[0]]
            continue
        own = ir.declared(node)
        origin = plan.lineage.get(node.source, "") if isinstance(node, ir.Scan) else ""
        text = json.dumps([own, origin, [found[one] for one in node.inputs]], sort_keys=True)
        found[node] = hashlib.sha256(text.encode()).hexdigest()
    return found


def stream_digest(node: Node) -> str:
    """A digest of what a stream of the graph computes of the rows of sources and of operators with state."""
    return STREAM + hashlib.sha256(json.dumps(_computed(node)).encode()).hexdigest()


def _computed(node: Node) -> list[Any]:
    if isinstance(node, Source) or (isinstance(node, Apply) and not node.operator.stateless):
        return [node.name]
    own: list[Any] = [type(node).__name__]
    if isinstance(node, Transform):
        named = {name: condition_text(one) for name, one in node.named.items()}
        own += [node.kind, [condition_text(one) for one in node.expressions], named]
    elif isinstance(node, Apply | Output):
        own.append(type(node.operator).__name__ if isinstance(node, Apply) else node.side)
    return [*own, *map(_computed, node.inputs)]


def in_local_time(plan: Compiled, views: Collection[str]) -> set[ir.Node]:
    """The nodes whose rows may be others in another time zone of the session: those that compute something of times or
    dates, and all that read their rows. ``views``: those among the views that are kept."""
    found = set[ir.Node]()
    for node in plan.nodes:
        is_view = isinstance(node, ir.Scan) and node.source in views
        if is_view or found.intersection(node.inputs) or any(map(partial(_is_of_time, node), _texts(node))):
            found.add(node)
    return found


def _texts(node: ir.Node) -> Sequence[str]:
    if isinstance(node, ir.Project):
        return [text for text in node.texts if column_of(text) is None]
    if isinstance(node, ir.Filter):
        return node.conditions
    return [node.text] if isinstance(node, ir.Explode) else []


def _is_of_time(node: ir.Node, text: str) -> bool:
    read = [one.type for given in node.inputs for one in given.columns if quoted(one.name) in text]
    return _VALID.fullmatch(text) is None and any(map(_TIMES.search, [text, *read]))


class Operators:
    """The uids of a statement's operators. ``old``: the statement whose state the checkpoint has, if any; ``views``:
    see ``in_local_time``."""

    def __init__(self, now: Compiled, old: Compiled | None, views: Collection[str] = ()) -> None:
        self._now, self._old = now, old
        self._nodes, self._old_nodes = ([] if one is None else one.nodes for one in (now, old))
        self._digests, self._old_digests = ({} if one is None else digests(one) for one in (now, old))
        zone, was = (None if one is None else one.made_from.get(_ZONE) for one in (now, old))
        self._zones = f"{_ZONE} was {was}, is {zone}"
        self._local = in_local_time(now, views) if zone != was and zone and was else set[ir.Node]()
        self._changed: dict[str, str] = {}
        self.uids: dict[str, tuple[str, int]] = {}
        """By the uid of the first generation: the uid, and the number of the node."""

    def uid(self, own: str, node: ir.Node) -> str:
        """The uid of an operator whose uid is ``own`` as long as it does not change."""
        uid, old = own, self._old
        if old is not None:
            was = old.operators.get(own)
            before = None if was is None else self._old_nodes[was[1]]
            is_same = before is not None and self._old_digests[before] == self._digests[node]
            if was is not None and is_same and node not in self._local:
                uid = was[0]
            else:
                uid = f"{own}-v{old.generation + 1}"
                self._changed[own] = self._zones if is_same else self._difference(before, node)
        self.uids[own] = uid, self._nodes.index(node)
        return uid

    def checked(self, start_anew: bool) -> dict[str, object]:
        """What the statement stores of its operators. Raises SqlError for those that changed, unless they start with
        empty state."""
        old = self._old
        if old is None:
            return {"operators": self.uids}
        changed = {**self._changed, **{own: "it is gone" for own in old.operators if own not in self.uids}}
        if changed and not start_anew:
            many = "\n  ".join(f"{own}: {what}" for own, what in changed.items())
            raise SqlError(
                f"statement '{self._now.name}' is not the one whose state the checkpoint has. These operators would "
                f'continue with the state of another text; undo the change, or give changed="start-anew" to start them '
                f"with empty state, from the rows that are still to come:\n  {many}"
            )
        gone = [old.operators[own][0] for own in changed if own in old.operators]
        generation = old.generation + 1 if changed else old.generation
        return {"operators": self.uids, "dropped": (*old.dropped, *gone), "generation": generation}

    def _difference(self, before: ir.Node | None, now: ir.Node) -> str:
        """What differs, at the first node upstream that does."""
        if before is None:
            return f"it is new: {_said(now, self._nodes)}"
        if ir.declared(before) == ir.declared(now) and len(before.inputs) == len(now.inputs):
            for one, two in zip(before.inputs, now.inputs, strict=True):
                if self._old_digests[one] != self._digests[two]:
                    return self._difference(one, two)
            return f"the view '{getattr(now, 'source', '')}' that it reads has changed"
        was, is_ = _said(before, self._old_nodes), _said(now, self._nodes)
        if was == is_:
            was, is_ = (", ".join(f"{c.name} {c.type}" for c in one.columns) for one in (before, now))
        return f"was {was}, is {is_}"


def _said(node: ir.Node, nodes: Sequence[ir.Node]) -> str:
    """A node, with the part of the statement that it, or the next node downstream, comes from."""
    own = next((one.sql for one in nodes[nodes.index(node) :] if one.sql), "")
    return said(replace(node, sql=own))
