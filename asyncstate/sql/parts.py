"""Reads the tables in place of parts of a statement, and joins with what another table says at a time.

Owns: ``read_part``; ``as_of_join``, for lookups and for versions.
Invariant: no condition on the right side of such a join reaches its rows before the join: it would choose others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import items, option
from asyncstate.sql.expressions import conjuncts, id_of, ids_in, kind_of, refusal, type_of
from asyncstate.sql.join_conditions import by_time, equalities
from asyncstate.sql.match import columns_read, read_match
from asyncstate.sql.rows import Given, Needed, Read, own_name, source_of
from asyncstate.sql.syntax import Part

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader


def read_part(reader: Reader, plan: Any, part: Part, needed: Needed) -> Read:
    """The rows of a leaf in place of ``part``."""
    if part.what == "versions":
        raise refusal(
            "FOR SYSTEM_TIME AS OF outside of a join", "put it at the right side of JOIN or LEFT JOIN", plan
        )
    output = items(plan.output())
    wanted = [one for one in output if needed is None or id_of(one) in needed]
    read = columns_read(part.match) if part.match is not None else {own_name(one) for one in wanted}
    node, own = _rows(reader, part, read)
    if part.what == "match":
        _check_closes(reader, node, own, part, plan)
        types = {own_name(one): type_of(one) for one in output}
        node = read_match(reader, node, own, part, types)
    elif part.what == "kept":
        assert part.ttl is not None
        node = ir.Kept(inputs=(node,), columns=node.columns, ttl=part.ttl, sql=part.place)
    else:
        node, own = _windows(reader, node, own, part, plan)
    return _picked(reader, node, own, wanted)


def _rows(reader: Reader, part: Part, columns: Collection[str]) -> tuple[ir.Node, dict[str, str]]:
    """The rows of the query, and the names of those ``columns`` there."""
    catalyst = reader.catalyst
    plan = catalyst.optimized(catalyst.analyzed(reader.syntax.parsed(part.query), part.query))
    output = [one for one in items(plan.output()) if str(one.name()) in {*columns, *part.key, part.time}]
    read = reader.plan(plan, {id_of(one) for one in output})
    if read.is_constant:
        raise refusal(f"{part.place}: rows that no source changes", "read a source", plan)
    return read.node, {str(one.name()): read.names[id_of(one)] for one in output}


def _windows(
    reader: Reader, node: ir.Node, own: dict[str, str], part: Part, plan: Any
) -> tuple[ir.Node, dict[str, str]]:
    assert part.time is not None
    time = own[part.time]
    if part.window[0] == "session":
        _check_closes(reader, node, own, part, plan)
    made = tuple(ir.Column(reader.fresh(name), node.type_of(time)) for name in ir.WINDOW_COLUMNS)
    node = ir.WindowTable(
        inputs=(node,),
        columns=(*node.columns, *made),
        key=tuple(own[name] for name in part.key),
        time=time,
        window=part.window,
        sql=part.place,
    )
    return node, {**own, **{name: one.name for name, one in zip(ir.WINDOW_COLUMNS, made, strict=True)}}


def _check_closes(reader: Reader, node: ir.Node, own: dict[str, str], part: Part, plan: Any) -> None:
    if part.time is None or not reader.is_final(node, own[part.time]):
        raise refusal(
            f"{part.place} of rows without a watermark",
            f"give it a source with event_time= and watermark_delay= whose rows are insertions, and {part.time} of it",
            plan,
        )


def _picked(reader: Reader, node: ir.Node, own: dict[str, str], wanted: Collection[Any]) -> Read:
    """These columns of a leaf, under names of their own: the same rows may be read twice."""
    names = {id_of(one): reader.name(one) for one in wanted}
    made = {reader.column(one): quoted(own[own_name(one)]) for one in wanted}
    return Read(ir.Project.of(node, made) if made else node, names)


# -- joins ---------------------------------------------------------------------------------------------------


def as_of_join(reader: Reader, plan: Any, how: str, needed: Needed) -> Read | None:
    """A join of one side with a lookup or with versions: a row of the left side chooses rows of the right one, and all
    other conditions come after it. None if it is another join."""
    sides = [plan.left(), plan.right()]
    leaves = [_leaf(side) for side in sides]
    if how in ("inner", "right") and leaves[1][0] not in reader.lookups and leaves[0][0] in reader.lookups:
        sides, leaves, how = sides[::-1], leaves[::-1], {"right": "left"}.get(how, how)
    name, filters, columns = leaves[1]
    part = None if name in reader.lookups else reader.syntax.parts.get(name)
    is_known = name in reader.lookups or (part is not None and part.what == "versions")
    if how not in ("inner", "left") or not is_known:
        return None
    outputs = [{id_of(one): one for one in items(side.output())} for side in sides]
    shown = outputs[1]
    outputs[1] = {id_of(one): one for one in columns}  # conditions may be on columns that are not shown
    conditions, others = conjuncts(option(plan.condition())), []
    by = reader.lookups[name].key.names if part is None else part.key
    if by:  # further conditions, also by =, come after it
        key = {own for own, one in outputs[1].items() if own_name(one) in by}
        others = [one for one in conditions if not ids_in(one) & key]
        conditions = [one for one in conditions if ids_in(one) & key] or conditions
    pairs, rest = equalities(conditions, outputs)
    known = {own for own, one in outputs[1].items() if part is not None and own_name(one) == part.time}
    known = known.union(*(ids_in(two) for _, two, _ in pairs))  # of which the join takes no nulls
    filters = [one for one in filters if not _is_valid(one, known)]
    if how == "left" and filters:
        filters = _own(filters, sides[0], pairs)
    rest += [*others, *filters]
    times: tuple[Any, ...] = ()
    if part is not None and part.time is not None:
        times, rest = _times(plan, part, rest, outputs)
    if rest and how == "left":
        raise _refused(
            plan, "conditions other than the key in a LEFT JOIN", "put them into WHERE, or into CASE"
        )
    if not pairs or any(safe or kind_of(two) != "AttributeReference" for _, two, safe in pairs):
        raise _refused(
            plan, "this condition", "write ON l.key = r.key, with a column of the right side alone"
        )
    after = set().union(*map(ids_in, rest))
    below = after.union(*map(ids_in, [*(one for one, _, _ in pairs), *times[:1]]))
    left = reader.plan(sides[0], None if needed is None else needed & set(outputs[0]) | below)
    if left.is_constant:
        raise _refused(plan, "rows that no source changes at the left side", "declare them as a source")
    given = Given(reader, left)
    keys = [(given.column("key", one), two) for one, two, _ in pairs]
    kept = set(shown) if needed is None else needed
    wanted = [one for own, one in outputs[1].items() if own in kept | after]
    if part is None:
        found = _looked_up(reader, plan, name, how, given, keys, wanted)
    else:
        read = {id_of(one): one for one in [*wanted, *(two for _, two in keys), *times[1:]]}
        versions = _picked(reader, *_rows(reader, part, set(map(own_name, read.values()))), read.values())
        found = temporal_join(given, versions, how, keys, times, part.place)
    names = [*left.node.names, *(found.names[id_of(one)] for one in wanted)]
    return reader.filtered(found, rest).only(list(dict.fromkeys(names)))


def _own(filters: Sequence[Any], left: Any, pairs: Sequence[Any]) -> list[Any]:
    """The conditions that the statement has: Spark copies those on a key of the left side to the right one, where
    they leave nothing out."""
    known, there = {str(one.toString()) for one in items(left.constraints().toSeq())}, []
    for one in filters:
        text = str(one.toString())
        for mine, other, _ in pairs:
            text = text.replace(str(other.toString()), str(mine.toString()))
        if text not in known:
            there.append(one)
    return there


def _is_valid(condition: Any, own: Collection[int]) -> bool:
    """Whether a condition says that one of these columns is not null."""
    if kind_of(condition) != "IsNotNull" or kind_of(condition.child()) != "AttributeReference":
        return False
    return id_of(condition.child()) in own


def _leaf(plan: Any) -> tuple[str, list[Any], Sequence[Any]]:
    """The source that is all of a plan, the conditions on it and its columns; empty if there is more."""
    filters: list[Any] = []
    while kind_of(plan) in ("Filter", "Project"):
        if kind_of(plan) == "Filter":
            filters += conjuncts(plan.condition())
        elif any(kind_of(one) != "AttributeReference" for one in items(plan.projectList())):
            return "", [], []
        plan = plan.child()
    return source_of(plan) or "", filters, items(plan.output())


def _refused(plan: Any, what: str, remedy: str) -> Exception:
    return refusal(f"{what} of a join with a lookup or FOR SYSTEM_TIME AS OF", remedy, plan)


def _times(
    plan: Any, part: Part, conditions: list[Any], outputs: list[dict[int, Any]]
) -> tuple[tuple[Any, Any], list[Any]]:
    """The left and the right time, of a condition that the rewritten text has, and the other conditions. The statement
    may have further ones of the same form."""
    found: dict[int, tuple[Any, Any, Any]] = {}
    for condition in conditions:
        if kind_of(condition) not in ("GreaterThanOrEqual", "LessThanOrEqual"):
            continue
        one, two = condition.left(), condition.right()
        one, two = (one, two) if kind_of(condition).startswith("Greater") else (two, one)
        if not kind_of(one) == kind_of(two) == "AttributeReference" or id_of(one) not in outputs[0]:
            continue
        right = outputs[1].get(id_of(two))
        if right is not None and own_name(right) == part.time and str(one.name()).lower() == part.at:
            found[id_of(one)] = one, right, condition
    if len(found) != 1:
        raise _refused(
            plan,
            "the time",
            "name a column of the left side, whose name no other one has that is compared with that event time",
        )
    ((one, right, condition),) = found.values()
    return (one, right), [other for other in conditions if not other.equals(condition)]


def temporal_join(
    given: Given,
    versions: Read,
    how: str,
    keys: Sequence[tuple[str, Any]],
    times: Sequence[Any],
    sql: str = "",
    keeps_all: bool = False,
) -> Read:
    """Rows with the versions that they choose. ``keys``: columns of the rows, and of the versions; ``times``: of both,
    none for the newest versions; ``keeps_all``: also rows without a time."""
    rows, names = given.node(), {**given.read.names, **versions.names}
    columns = (*rows.columns, *versions.node.columns)
    around = list[ir.Node]()
    if keeps_all:
        rows, others = by_time(rows, names[id_of(times[0])], columns)
        around.append(others)
    node: ir.Node = ir.TemporalJoin(
        inputs=(rows, versions.node),
        columns=columns,
        how=how,
        left_key=tuple(key for key, _ in keys),
        right_key=tuple(versions.names[id_of(two)] for _, two in keys),
        times=tuple(names[id_of(one)] for one in times),
        sql=sql,
    )
    return Read(ir.Union(inputs=(node, *around), columns=columns) if around else node, names)


def _looked_up(
    reader: Reader,
    plan: Any,
    name: str,
    how: str,
    given: Given,
    keys: list[tuple[str, Any]],
    wanted: list[Any],
) -> Read:
    lookup = reader.lookups[name]
    sent = {own_name(two): key for key, two in keys}
    if set(sent) != set(lookup.key.names) or len(sent) < len(keys):
        raise _refused(
            plan, f"a key that is not {', '.join(lookup.key.names)}", "compare each of them once by ="
        )
    found = [one for one in wanted if own_name(one) not in sent]
    if how == "left" and len(found) < len(wanted):
        raise _refused(
            plan,
            f"a LEFT JOIN that selects {', '.join(sent)}, which is null where nothing was found,",
            "select the columns of the left side, and those that were found",
        )
    names, rows = {id_of(one): reader.name(one) for one in found}, given.node()
    node = ir.LookupJoin(
        inputs=(rows,),
        columns=(*rows.columns, *(reader.column(one) for one in found)),
        source=name,
        how=how,
        key=tuple(sent[column] for column in lookup.key.names),
        own=tuple(map(own_name, found)),
        sql=f"join with {name}",
    )
    names |= {id_of(one): sent[own_name(one)] for one in wanted if own_name(one) in sent}
    return Read(node, {**given.read.names, **names})
