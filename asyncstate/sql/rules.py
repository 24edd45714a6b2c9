"""Rules over compiled plans.

Owns: ``compacted``, which leaves out projections that another one can take over, and makes one operator of windows and
their aggregation; ``event_time_sources``.
Must not import Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from asyncstate.dataflow.sql_text import column_of
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.rankings import best_rows, is_valid, of_closed_windows


def compacted(
    root: ir.Node,
    is_final: Callable[[ir.Node, str], bool],
    keeps_all: bool = True,
    varying: Collection[str] = (),
) -> ir.Node:
    """The same plan with fewer nodes: a projection that only picks columns goes into the scan or projection below;
    groups by windows of event time that close, see ``is_final``, become window aggregates; a join with the best of
    each group becomes a ranking, unless rows are forgotten (not ``keeps_all``). ``varying``: texts whose value differs
    from one evaluation to the next, which stay one evaluation."""
    readers = Counter(one for node in ir.walk(root) for one in node.inputs)
    done: dict[ir.Node, ir.Node] = {}
    for node in ir.walk(root):
        inputs = tuple(done[one] for one in node.inputs)
        new = node if inputs == node.inputs else replace(node, inputs=inputs)
        if isinstance(new, ir.Aggregate):
            new = _closed(new, is_final) or new
        if isinstance(new, ir.Rank):
            new = of_closed_windows(new) or new
        if keeps_all and isinstance(new, ir.Join):
            new = best_rows(new) or new
        if keeps_all and isinstance(new, ir.Filter) and readers[node.inputs[0]] == 1:
            new = best_rows(new.inputs[0], new.conditions) or new
        while isinstance(new, ir.Project) and (merged := _merged(new, readers, varying)) is not None:
            new = merged
        done[node], readers[new] = new, readers[node]
    return done[root]


def _merged(node: ir.Project, readers: Counter[ir.Node], varying: Collection[str]) -> ir.Node | None:
    """A projection that only picks columns, and the node below as one; None if they stay two."""
    (below,), picked = node.inputs, picked_columns(node)
    if picked is None:
        return None
    if isinstance(below, ir.Scan):
        own = dict(zip(below.names, below.own, strict=True))
        return replace(below, columns=node.columns, own=tuple(own[name] for name in picked))
    if isinstance(below, ir.Project) and (readers[below] < 2 or picked_columns(below) is not None):
        texts = dict(zip(below.names, below.texts, strict=True))
        if any(count > 1 and texts[name] in varying for name, count in Counter(picked).items()):
            return None
        return replace(node, inputs=below.inputs, texts=tuple(texts[name] for name in picked))
    return None


def picked_columns(node: ir.Project) -> list[str] | None:
    """The columns that a projection picks, if it does nothing else."""
    known = set(node.inputs[0].names)
    found = [column_of(text) for text in node.texts]
    return [one for one in found if one is not None] if known.issuperset(found) else None


def _closed(node: ir.Aggregate, is_final: Callable[[ir.Node, str], bool]) -> ir.Node | None:
    """The groups of a table of windows as one operator; None if something between them needs the table."""
    chain, table = list[ir.Project | ir.Filter](), node.inputs[0]
    while isinstance(table, ir.Project | ir.Filter):
        chain.append(table)
        (table,) = table.inputs
    if not isinstance(table, ir.WindowTable) or not is_final(table.inputs[0], table.time):
        return None
    (given,), time = table.inputs, table.time
    windows = dict(zip(table.names[-3:], ir.WINDOW_COLUMNS, strict=True))
    key = {name: name for name in table.key}
    is_session, counts = table.window[0] == "session", list[str]()
    for one in reversed(chain):
        if isinstance(one, ir.Filter):
            valid = {is_valid(name) for name in windows}  # as joins by windows say, and no window is null
            conditions = tuple(text for text in one.conditions if text not in valid)
            if any(name in text for name in windows for text in conditions):
                return None
            others = [name for name in given.names if name not in key]
            if is_session and any(name in text for name in others for text in conditions):
                # A row that is left out still makes its session longer.
                counts.append(f"{time}_counts_{len(counts)}")
                given = _with(given, counts[-1], " AND ".join(conditions))
            elif conditions:
                given = replace(one, inputs=(given,), columns=given.columns, conditions=conditions)
            continue
        texts = dict(zip(one.columns, one.texts, strict=True))
        picked = {column.name: column_of(text) for column, text in texts.items()}
        kept = {column: text for column, text in texts.items() if column_of(text) not in windows}
        column = ir.Column(time, given.type_of(time))
        kept.setdefault(column, quoted(time))
        kept |= {ir.Column(name, "boolean"): quoted(name) for name in counts}
        if len({one.name for one in kept}) < len(kept) or column_of(kept[column]) != time:
            return None
        if any(name in text for name in windows for text in kept.values()):
            return None
        windows = {name: windows[own] for name, own in picked.items() if own in windows}
        key = {name: key[own] for name, own in picked.items() if own in key}
        given = ir.Project.of(given, kept, one.sql)
    keys = tuple(name for name in node.keys if name not in windows)
    read = {name for call in node.calls for name in call.reads}
    if (
        not set(ir.WINDOW_COLUMNS[:2]) <= {windows.get(name) for name in node.keys}
        or read & set(windows)
        or (is_session and {key.get(name) for name in keys} != set(table.key))
    ):
        return None
    calls = list(node.calls)
    if counts:
        for at, where in enumerate(dict.fromkeys([None, *(call.where for call in calls)])):
            name = f"{time}_counts_by_{at}"
            given = _with(given, name, " AND ".join(map(quoted, [*counts, *([where] if where else [])])))
            calls = [replace(call, where=name) if call.where == where else call for call in calls]
            if where is None:
                calls.append(ir.Call(f"{time}_counted", "count", where=name))
    made = [ir.Column(name, given.type_of(time)) for name in ir.WINDOW_COLUMNS]
    columns = [ir.Column(name, node.type_of(name)) for name in keys]
    found = ir.WindowAggregate(
        inputs=(given,),
        columns=(
            *columns,
            *made,
            *(one for one in node.columns if one.name not in node.keys),
            *(ir.Column(call.name, "bigint") for call in calls[len(node.calls) :]),
        ),
        keys=keys,
        calls=tuple(calls),
        time=time,
        window=table.window,
        sql=node.sql or table.sql,
    )
    counted = [f"({quoted(calls[-1].name)} > 0)"] if counts else []
    made_of = {one: quoted(windows.get(one.name, one.name)) for one in node.columns}
    return ir.Project.of(found.where(counted), made_of)


def _with(node: ir.Node, name: str, condition: str) -> ir.Node:
    """The rows with one more column, whether ``condition`` is true."""
    kept = {one: quoted(one.name) for one in node.columns}
    return ir.Project.of(node, kept | {ir.Column(name, "boolean"): f"coalesce({condition}, false)"})


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
