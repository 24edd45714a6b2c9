"""Where the rows and columns of a node come from.

Owns: ``origin_of``; ``event_time_sources``.
Invariant: two nodes with equal origins have the same rows: they read the same ones in the same way.
Must not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from asyncstate.dataflow.arrow_sql import column_of
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql_words import Words, unquoted

_FIELD: Final = re.compile(r"\(*named_struct\('start', (`[^`]+`), 'end', (`[^`]+`)\)+\.`?(start|end)`?")


@dataclass(frozen=True)
class RowOrigin:
    """Which rows a node has, whatever their columns are called: those of ``rows`` for which the ``conditions`` are
    true. ``columns``: what each column is, in the same words for all nodes with these ``rows``; ``valid``: those that
    are never null; ``depth``: how many aggregations there are, one of another."""

    rows: Any
    columns: Mapping[str, str]
    conditions: frozenset[str] = frozenset()
    valid: frozenset[str] = frozenset()
    depth: int = 0


def origin_of(node: ir.Node) -> RowOrigin:
    """The origin of a node's rows."""
    if isinstance(node, ir.Scan):
        return RowOrigin(("Scan", node.source), dict(zip(node.names, map(quoted, node.own), strict=True)))
    if not isinstance(node, ir.Project | ir.Filter | ir.Aggregate | ir.WindowAggregate):
        return RowOrigin(node, {name: quoted(name) for name in node.names})
    below = origin_of(node.inputs[0])
    if isinstance(node, ir.Project):
        made = {
            name: below.columns.get(column_of(text) or "") or _renamed(text, below.columns)
            for name, text in zip(node.names, node.texts, strict=True)
        }
        return replace(below, columns=made)
    if isinstance(node, ir.Filter):
        conditions = {_renamed(text, below.columns) for text in node.conditions}
        return replace(below, conditions=below.conditions | conditions)
    keys = {name: below.columns[name] for name in node.keys}
    calls = {call.name: called(call, below) for call in node.calls}
    counts = [calls[call.name] for call in node.calls if call.function == "count"]
    windows, how = dict[str, str](), tuple[Any, ...]()
    if isinstance(node, ir.WindowAggregate):
        windows = {name: quoted(f"{name}\0") for name in ir.WINDOW_COLUMNS if name in node.names}
        how = node.window, below.columns[node.time]
    rows = type(node).__name__, below.rows, below.conditions, frozenset(keys.values()), how
    valid = frozenset([*windows.values(), *counts])
    return RowOrigin(rows, windows | keys | calls, valid=valid, depth=below.depth + 1)


def called(call: ir.Call, given: RowOrigin) -> str:
    """What the result of a function of ``given`` rows is."""
    read = [None if name is None else given.columns[name] for name in (*call.columns, call.where)]
    order = [(given.columns[one.column], one.descending, one.nulls_first) for one in call.order]
    return f"({call.function}{(given.depth, call.distinct, *call.numbers, *read, *order)})"


def _renamed(text: str, columns: Mapping[str, str]) -> str:
    """A text, in brackets, with other texts in place of its columns; of a window that is made of two columns, one of
    them."""
    words, known = Words(text), {name.lower(): one for name, one in columns.items()}
    names = [(at, unquoted(words.cut(at, at + 1))) for at in range(len(words)) if words.is_name(at)]
    is_column = [words.word(at - 1) != "." and words.word(at + 1) != "(" for at, _ in names]
    parts = [
        (at, at + 1, known[name])
        for (at, name), is_one in zip(names, is_column, strict=True)
        if is_one and name in known
    ]
    found = words.replaced(*parts)
    field = _FIELD.fullmatch(found)
    if field is not None:
        return field[1 if field[3] == "start" else 2]
    is_whole = words.word(0) == "(" and words.close(0) == len(words) - 1
    return found if is_whole else f"({found})"


def is_valid(text: str) -> str:
    """The condition that a value is not null."""
    return f"({text} IS NOT NULL)"


def event_time_sources(node: ir.Node, column: str) -> list[tuple[str, str]]:
    """The event times of sources that ``column`` comes from, as (source, column there), if it never lags the watermark
    more than they do; none if it may."""
    while isinstance(node, ir.Project | ir.Filter):
        if isinstance(node, ir.Project):
            own = column_of(node.texts[node.names.index(column)])
            if own is None:
                return []
            column = own
        (node,) = node.inputs
    if isinstance(node, ir.Scan):
        return [(node.source, node.own[node.names.index(column)])]
    if isinstance(node, ir.Union):
        found = [event_time_sources(one, column) for one in node.inputs]
        return [one for of_input in found for one in of_input] if all(found) else []
    if isinstance(node, ir.IntervalJoin) and column in node.times:
        side = node.times.index(column)
        last_partner = node.bounds[1] if side == 0 else -node.bounds[0]
        return event_time_sources(node.inputs[side], column) if last_partner <= 0 else []
    if isinstance(node, ir.TemporalJoin) and column in node.times[:1]:
        return event_time_sources(node.inputs[0], column)
    if isinstance(node, ir.WindowAggregate) and column == ir.WINDOW_COLUMNS[2]:
        kind, *lengths = node.window  # a window's time is a millisecond before its end
        aligned = kind != "session" and not any(length % 1000 for length in lengths)
        return event_time_sources(node.inputs[0], node.time) if aligned else []
    return []
