"""Rules that find rankings in a compiled plan.

Owns: ``best_rows``, rows that are joined with the largest or smallest value of their own group; ``of_closed_windows``,
rankings of windows that the watermark closes.
Invariant: two nodes have the same rows only if they read the same ones in the same way; what is not certain is left as
it is.
Must not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from asyncstate.dataflow.arrow_sql import column_of
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql_words import Words, unquoted

_COMPARED: Final = re.compile(r"\(`?(\w+)`? (>=|<=) `?(\w+)`?\)")
_VALID: Final = re.compile(r"\(`?(\w+)`? IS NOT NULL\)")
_FIELD: Final = re.compile(r"\(*named_struct\('start', (`\w+`), 'end', (`\w+`)\)+\.`?(start|end)`?")
_ORDERED: Final = {
    *("tinyint", "smallint", "int", "bigint", "decimal", "string", "date", "timestamp", "timestamp_ntz")
}
"""Types whose equal values are one value: of floats, 0.0 and -0.0 are two."""
_BEST: Final = {"max": ">=", "min": "<="}
_FLIPPED: Final = {">=": "<=", "<=": ">="}


@dataclass(frozen=True)
class _Origin:
    """Which rows a node has, whatever their columns are called: those of ``rows`` for which the ``conditions`` are
    true. ``columns``: what each column is, in the same words for all nodes with these ``rows``."""

    rows: Any
    conditions: frozenset[str]
    columns: Mapping[str, str]


def _origin(node: ir.Node) -> _Origin:
    if isinstance(node, ir.Scan):
        own = dict(zip(node.names, map(quoted, node.own), strict=True))
        return _Origin(("Scan", node.source), frozenset(), own)
    if not isinstance(node, ir.Project | ir.Filter | ir.Aggregate | ir.WindowAggregate):
        return _Origin(node, frozenset(), {name: quoted(name) for name in node.names})
    below = _origin(node.inputs[0])
    if isinstance(node, ir.Project):
        made = [_renamed(text, below.columns) for text in node.texts]
        made = [text if column_of(text) else f"({text})" for text in made]
        return replace(below, columns=dict(zip(node.names, made, strict=True)))
    if isinstance(node, ir.Filter):
        conditions = {_renamed(text, below.columns) for text in node.conditions}
        return replace(below, conditions=below.conditions | conditions)
    how = (node.window, below.columns[node.time]) if isinstance(node, ir.WindowAggregate) else ()
    keys = {name: below.columns[name] for name in node.keys}
    columns = {name: quoted(name) for name in ir.WINDOW_COLUMNS if name in node.names} | keys
    valid = [columns[name] for name in ir.WINDOW_COLUMNS if how and name in columns]
    for call in node.calls:
        read = [None if name is None else below.columns[name] for name in (*call.columns, call.where)]
        columns[call.name] = f"({call.function}{(call.distinct, *call.numbers, *read)})"
        valid += [columns[call.name]] if call.function == "count" else []
    rows = type(node).__name__, below.rows, below.conditions, frozenset(keys.values()), how
    return _Origin(rows, frozenset(map(_is_valid, valid)), columns)


def _renamed(text: str, columns: Mapping[str, str]) -> str:
    """A text with other texts in place of its columns; of a window that is made of two columns, one of them."""
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
    return found if field is None else field[1 if field[3] == "start" else 2]


def _is_valid(text: str) -> str:
    return f"({text} IS NOT NULL)"


def best_rows(join: ir.Node, conditions: Sequence[str] = ()) -> ir.Node | None:
    """The rows of a join for which ``conditions`` are true as a ranking, if one side has the largest or smallest value
    of each group of the other one's rows, and the join takes the rows that have it. None for other joins."""
    if not isinstance(join, ir.Join) or isinstance(join, ir.IntervalJoin) or join.condition is not None:
        return None
    one, two = zip(join.inputs, (join.left_key, join.right_key), strict=True)
    found = _best_rows(join, conditions, *one, *two) if join.how in ("inner", "semi") else None
    return found or (_best_rows(join, conditions, *two, *one) if join.how == "inner" else None)


def _best_rows(
    join: ir.Join,
    conditions: Sequence[str],
    rows: ir.Node,
    key: Sequence[str],
    best: ir.Node,
    best_key: Sequence[str],
) -> ir.Node | None:
    group, names, not_null = best, {name: name for name in best.names}, set[str | None]()
    while isinstance(group, ir.Project | ir.Filter):
        if isinstance(group, ir.Project):
            below: dict[str | None, str | None] = dict(
                zip(group.names, map(column_of, group.texts), strict=True)
            )
            names = {name: own for name, old in names.items() if (own := below[old]) is not None}
            not_null = {below.get(name) for name in not_null}
        else:
            found = [_VALID.fullmatch(text) for text in group.conditions]
            not_null |= {None if one is None else one[1] for one in found}
        (group,) = group.inputs
    if not isinstance(group, ir.Aggregate) or not group.keys:
        return None
    pairs = [(name, names.get(one)) for name, one in zip(key, best_key, strict=True)]
    by_key = [(one, name) for name, one in pairs if one in group.keys]
    same = dict(by_key)
    values = [(name, one, "=") for name, one in pairs if one not in group.keys]
    rest = []
    for text in conditions:
        parts = _COMPARED.fullmatch(text)
        name, sign, bound = ("", "", "") if parts is None else parts.groups()
        if name in names:
            name, sign, bound = bound, _FLIPPED[sign], name
        is_bound = name in rows.names and names.get(bound) not in (None, *group.keys)
        values += [(name, names.get(bound), sign)] if is_bound else []
        rest += [] if is_bound else [text]
    calls = {call.name: call for call in group.calls}
    if set(same) != set(group.keys) or len(same) < len(by_key):
        return None
    if len(values) != 1 or values[0][1] not in calls:
        return None
    value, (call, sign) = values[0][0], (calls[str(values[0][1])], values[0][2])
    kind = rows.type_of(value).split("(")[0]
    if (
        sign not in ("=", _BEST.get(call.function))
        or call.function not in _BEST
        or call.where is not None
        or kind not in _ORDERED
        or (sign == "=" and join.null_safe)
        or call.columns[0] in group.keys
        or not_null - {call.name, *(() if join.null_safe else group.keys)}
    ):
        return None
    left, right = _origin(rows), _origin(group.inputs[0])
    same[call.columns[0]] = value
    if left.rows != right.rows or any(left.columns[one] != right.columns[two] for two, one in same.items()):
        return None
    checked = {_is_valid(left.columns[one]): one for one in ([value] if join.null_safe else same.values())}
    if left.conditions - set(checked) != right.conditions - set(checked):
        return None
    shown = {name: same[one] for name, one in names.items() if one in group.keys}
    shown |= {name: value for name, one in names.items() if one == call.name}
    shown = {name: name for name in rows.names} | shown
    if not set(join.names) <= set(shown):
        return None
    rank = ir.Rank(
        inputs=(rows,),
        columns=rows.columns,
        key=tuple(dict.fromkeys(same[one] for one in group.keys)),
        order=(ir.Order(value, call.function == "max", nulls_first=False),),
        limit=1,
        function="rank",
        sql=join.sql,
    )
    ranked = of_closed_windows(rank) or rank
    nulls = [_is_valid(quoted(one)) for text, one in checked.items() if text not in left.conditions]
    if nulls:
        ranked = ir.Filter(inputs=(ranked,), columns=ranked.columns, conditions=tuple(nulls))
    texts = tuple(quoted(shown[name]) for name in join.names)
    ranked = ir.Project(inputs=(ranked,), columns=join.columns, texts=texts)
    if rest:
        ranked = ir.Filter(inputs=(ranked,), columns=join.columns, conditions=tuple(rest))
    return ranked


def of_closed_windows(rank: ir.Rank) -> ir.Node | None:
    """A ranking by windows that close as one that waits for them, before the projections of its input. None for another
    one."""
    chain, below = list[ir.Project](), rank.inputs[0]
    while isinstance(below, ir.Project):
        chain.append(below)
        (below,) = below.inputs
    above, origin = _origin(rank.inputs[0]).columns, _origin(below)
    names = {text: name for name, text in origin.columns.items()}
    key = [names.get(above[name]) for name in rank.key]
    order = [replace(one, column=names.get(above[one.column], "")) for one in rank.order]
    closes = isinstance(origin.rows, tuple) and origin.rows[0] == "WindowAggregate"
    if not (closes and {*ir.WINDOW_COLUMNS[:2]} <= set(key) and all([*key, *(one.column for one in order)])):
        return None
    more = rank.columns[len(rank.inputs[0].columns) :]
    found: ir.Node = replace(
        rank,
        inputs=(below,),
        columns=(*below.columns, *more),
        key=tuple(str(name) for name in key if name not in ir.WINDOW_COLUMNS),
        order=tuple(order),
        windows=True,
    )
    for one in reversed(chain):
        texts = (*one.texts, *(quoted(column.name) for column in more))
        found = replace(one, inputs=(found,), columns=(*one.columns, *more), texts=texts)
    return found
