"""Rules that find rankings in a compiled plan.

Owns: ``best_rows``, rows that are joined with the largest or smallest value of their own group;
``may_be_best_rows``; ``of_closed_windows``, rankings of windows that the watermark closes; ``origin_of``, where the
rows and columns of a node come from; ``is_valid``.
Invariant: what is not certain to have the same rows is left as it is. Two nodes with equal origins have the same rows:
they read the same ones in the same way.
Must not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from asyncstate.dataflow.sql_text import column_of
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.conditions import EXACT, FLIPPED
from asyncstate.sql_words import Words, unquoted

_COMPARED: Final = re.compile(r"\(`?(\w+)`? (>=|<=) `?(\w+)`?\)")
_FIELD: Final = re.compile(r"\(*named_struct\('start', (`[^`]+`), 'end', (`[^`]+`)\)+\.`?(start|end)`?")
_BEST: Final = {"max": ("=", ">="), "min": ("=", "<=")}
"""How a value is compared with the best one, if it is to be that."""


def best_rows(join: ir.Node, conditions: Sequence[str] = ()) -> ir.Node | None:
    """The rows of a join for which ``conditions`` are true as a ranking, if one side has the largest or smallest value
    of each group of the other one's rows, and the join takes the rows that have it. None for other joins."""
    if not isinstance(join, ir.Join) or isinstance(join, ir.IntervalJoin) or join.condition is not None:
        return None
    one, two = zip(join.inputs, (join.left_key, join.right_key), strict=True)
    found = _best_rows(join, conditions, *one, *two) if join.how in ("inner", "semi") else None
    return found or (_best_rows(join, conditions, *two, *one) if join.how == "inner" else None)


def may_be_best_rows(nodes: Sequence[ir.Node]) -> bool:
    """Whether a plan has a ranking that ``best_rows`` may have made, and that forgets no rows by itself."""
    ranks = [node for node in nodes if isinstance(node, ir.Rank) and not node.windows]
    return any(rank.function == "rank" and rank.limit == 1 and rank.number is None for rank in ranks)


def _best_rows(
    join: ir.Join,
    conditions: Sequence[str],
    rows: ir.Node,
    key: Sequence[str],
    best: ir.Node,
    best_key: Sequence[str],
) -> ir.Node | None:
    left, right = origin_of(rows), origin_of(best)
    if not isinstance(right.rows, tuple) or right.rows[0] != "Aggregate":
        return None
    _, group_rows, group_conditions, group_key, _ = right.rows
    by_key, values, rest = dict[str, str](), list[tuple[str, str, str]](), list[str]()
    for one, two in zip(key, best_key, strict=True):
        text = right.columns[two]
        if text not in group_key:
            values.append((one, text, "="))
        elif by_key.setdefault(text, one) != one or left.columns[one] != text:
            return None
    for condition in conditions:
        found = _COMPARED.fullmatch(condition)
        one, sign, two = ("", "", "") if found is None else found.groups()
        if one in right.columns:
            one, sign, two = two, FLIPPED[sign], one
        bound = right.columns.get(two)
        if one in left.columns and bound is not None and bound not in group_key:
            values.append((one, bound, sign))
        else:
            rest.append(condition)
    if not group_key or set(by_key) != group_key or len(values) != 1:
        return None
    ((value, text, sign),) = values
    functions = [
        name for name in _BEST if text == called(ir.Call("", name, (value,)), left) and sign in _BEST[name]
    ]
    not_null = [value] if join.null_safe else [*by_key.values(), value]
    checked = {is_valid(left.columns[one]): one for one in not_null}
    if (
        not functions
        or rows.type_of(value).split("(")[0] not in EXACT
        or (sign == "=" and join.null_safe)
        or left.rows != group_rows
        or left.conditions - set(checked) != group_conditions - set(checked)
        or right.conditions - {*checked, is_valid(text)}
    ):
        return None
    shown = {name: (by_key | {text: value}).get(own) for name, own in right.columns.items()}
    shown |= {name: name for name in rows.names}
    if None in [shown[name] for name in join.names]:
        return None
    rank = ir.Rank(
        inputs=(rows,),
        columns=rows.columns,
        key=tuple(by_key.values()),
        order=(ir.Order(value, functions == ["max"], nulls_first=False),),
        limit=1,
        function="rank",
        sql=join.sql,
    )
    nulls = [
        is_valid(quoted(one))
        for one in not_null
        if left.columns[one] not in left.valid and is_valid(left.columns[one]) not in left.conditions
    ]
    ranked = (of_closed_windows(rank) or rank).where(nulls)
    return ir.Project.of(ranked, {one: quoted(str(shown[one.name])) for one in join.columns}).where(rest)


def of_closed_windows(rank: ir.Rank) -> ir.Node | None:
    """A ranking by windows that close as one that waits for them, before the projections of its input. None for another
    one."""
    chain, below = list[ir.Project](), rank.inputs[0]
    while isinstance(below, ir.Project):
        chain.append(below)
        (below,) = below.inputs
    above, origin = origin_of(rank.inputs[0]).columns, origin_of(below)
    names = {text: name for name, text in origin.columns.items()}
    key = [names.get(above[name]) for name in rank.key]
    order = dict[str, ir.Order]()
    for by in rank.order:  # several columns may be one there
        column = names.get(above[by.column], "")
        order.setdefault(column, replace(by, column=column))
    closes = isinstance(origin.rows, tuple) and origin.rows[0] == "WindowAggregate"
    if not (closes and {*ir.WINDOW_COLUMNS[:2]} <= set(key) and all([*key, *order])):
        return None
    more = rank.columns[len(rank.inputs[0].columns) :]
    found: ir.Node = replace(
        rank,
        inputs=(below,),
        columns=(*below.columns, *more),
        key=tuple(dict.fromkeys(str(name) for name in key if name not in ir.WINDOW_COLUMNS)),
        order=tuple(order.values()),
        windows=True,
    )
    for one in reversed(chain):
        texts = dict(zip(one.columns, one.texts, strict=True))
        found = ir.Project.of(found, texts | {column: quoted(column.name) for column in more}, one.sql)
    return found


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
    parts = list[tuple[int, int, str]]()
    for at in range(len(words)):
        name = unquoted(words.cut(at, at + 1))
        is_column = words.is_name(at) and words.word(at - 1) != "." and words.word(at + 1) != "("
        if is_column and name in known:
            parts.append((at, at + 1, known[name]))
    found = words.replaced(*parts)
    field = _FIELD.fullmatch(found)
    if field is not None:
        return field[1 if field[3] == "start" else 2]
    is_whole = words.word(0) == "(" and words.close(0) == len(words) - 1
    return found if is_whole else f"({found})"


def is_valid(text: str) -> str:
    """The condition that a value is not null."""
    return f"({text} IS NOT NULL)"
