"""Rules that find rankings in a compiled plan.

Owns: ``best_rows``, rows that are joined with the largest or smallest value of their own group; ``of_closed_windows``,
rankings of windows that the watermark closes.
Invariant: what is not certain to have the same rows is left as it is.
Must not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from asyncstate.dataflow.arrow_sql import column_of
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.conditions import FLIPPED
from asyncstate.sql.lineage import is_valid, origin_of

_COMPARED: Final = re.compile(r"\(`?(\w+)`? (>=|<=) `?(\w+)`?\)")
_VALID: Final = re.compile(r"\(`?(\w+)`? IS NOT NULL\)")
_ORDERED: Final = {
    *("tinyint", "smallint", "int", "bigint", "decimal", "string", "date", "timestamp", "timestamp_ntz")
}
"""Types whose equal values are one value: of floats, 0.0 and -0.0 are two."""
_BEST: Final = {"max": ">=", "min": "<="}


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
            name, sign, bound = bound, FLIPPED[sign], name
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
    left, right = origin_of(rows), origin_of(group.inputs[0])
    same[call.columns[0]] = value
    if left.rows != right.rows or any(left.columns[one] != right.columns[two] for two, one in same.items()):
        return None
    checked = {is_valid(left.columns[one]): one for one in ([value] if join.null_safe else same.values())}
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
    nulls = [is_valid(quoted(one)) for text, one in checked.items() if text not in left.conditions]
    if nulls:
        ranked = ir.Filter(inputs=(ranked,), columns=ranked.columns, conditions=tuple(nulls))
    ranked = ir.Project.of(ranked, {one: quoted(shown[one.name]) for one in join.columns})
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
    above, origin = origin_of(rank.inputs[0]).columns, origin_of(below)
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
        texts = dict(zip(one.columns, one.texts, strict=True))
        found = ir.Project.of(found, texts | {column: quoted(column.name) for column in more}, one.sql)
    return found
