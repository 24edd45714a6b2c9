"""Reads the tables in place of parts of a statement, and joins with what another table says at a time.

Owns: ``read_part``; ``as_of_join``, for lookups and for versions.
Invariant: no condition on the right side of such a join reaches its rows before the join: it would choose others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import COLUMN, items, option
from asyncstate.sql.expressions import conjuncts, id_of, ids_in, is_only_valid, kind_of, refusal, type_of
from asyncstate.sql.match import columns_read, read_match
from asyncstate.sql.syntax import Part

if TYPE_CHECKING:
    from asyncstate.sql.plans import Needed, Read, Reader


def read_part(reader: Reader, plan: Any, part: Part, needed: Needed) -> Read:
    """The rows of a leaf in place of ``part``."""
    from asyncstate.sql.plans import Read

    if part.what == "versions":
        raise refusal(
            "FOR SYSTEM_TIME AS OF outside of a join", "put it at the right side of JOIN or LEFT JOIN", plan
        )
    output = items(plan.output())
    wanted = [one for one in output if needed is None or id_of(one) in needed]
    read = columns_read(part.match) if part.match is not None else {_own(one) for one in wanted}
    node, own = _rows(reader, part, read)
    if part.what == "match":
        _check_closes(reader, node, own, part, plan)
        types = {_own(one): type_of(one) for one in output}
        node = read_match(reader, Read(node, {}), own, part, types)
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


def _own(attribute: Any) -> str:
    """The name of a column of a leaf at its table."""
    return str(attribute.metadata().getString(COLUMN))


def _picked(reader: Reader, node: ir.Node, own: dict[str, str], wanted: Collection[Any]) -> Read:
    """These columns of a leaf, under names of their own: the same rows may be read twice."""
    from asyncstate.sql.plans import Read

    names = {id_of(one): reader.name(one) for one in wanted}
    columns = tuple(reader.column(one, reader.name(one)) for one in wanted)
    texts = tuple(quoted(own[_own(one)]) for one in wanted)
    if not wanted:
        return Read(node, {})
    return Read(ir.Project(inputs=(node,), columns=columns, texts=texts), names)


# -- joins ---------------------------------------------------------------------------------------------------


def as_of_join(reader: Reader, plan: Any, how: str, needed: Needed) -> Read | None:
    """A join of one side with a lookup or with versions; None if it is another join."""
    sides = [plan.left(), plan.right()]
    leaves = [_leaf(side) for side in sides]
    if how in ("inner", "right") and leaves[1][0] not in reader.lookups and leaves[0][0] in reader.lookups:
        sides, leaves, how = sides[::-1], leaves[::-1], {"right": "left"}.get(how, how)
    name, filters = leaves[1]
    part = reader.syntax.parts.get(name)
    is_lookup = name in reader.lookups
    if how not in ("inner", "left") or not (is_lookup or (part is not None and part.what == "versions")):
        return None
    return _AsOf(reader, plan, sides, how, filters).read(name if is_lookup else part, needed)


def _leaf(plan: Any) -> tuple[str, list[Any]]:
    """The source that is all of a plan, and the conditions on it; empty if there is more."""
    from asyncstate.sql.plans import source_of

    filters: list[Any] = []
    while kind_of(plan) in ("Filter", "Project"):
        if kind_of(plan) == "Filter":
            filters += conjuncts(plan.condition())
        elif any(kind_of(one) != "AttributeReference" for one in items(plan.projectList())):
            return "", []
        plan = plan.child()
    return source_of(plan) or "", filters


class _AsOf:
    """One such join: a row of the left side chooses rows of the right one; all other conditions come after it."""

    def __init__(self, reader: Reader, plan: Any, sides: list[Any], how: str, filters: list[Any]) -> None:
        from asyncstate.sql.plans import equalities

        self._reader, self._plan, self._sides, self._how = reader, plan, sides, how
        self._outputs = [{id_of(one): one for one in items(side.output())} for side in sides]
        conditions = conjuncts(option(plan.condition()))
        self._pairs, self._rest = equalities(conditions, [set(one) for one in self._outputs])
        self._rest += [one for one in filters if not is_only_valid(one, self._outputs[1])]

    def read(self, given: str | Part | None, needed: Needed) -> Read:
        reader = self._reader
        time = self._time(given) if isinstance(given, Part) and given.time is not None else None
        if self._rest and self._how == "left":
            raise self._refused(
                "conditions other than the key in a LEFT JOIN", "put them into WHERE, or into CASE"
            )
        if not self._pairs or any(
            safe or kind_of(two) != "AttributeReference" for _, two, safe in self._pairs
        ):
            raise self._refused(
                "this condition", "write ON l.key = r.key, with a column of the right side alone"
            )
        after = set().union(*map(ids_in, self._rest))
        below = set().union(
            *(ids_in(one) for one, _, _ in self._pairs), after, [] if time is None else [time[0]]
        )
        left = reader.plan(self._sides[0], None if needed is None else needed & set(self._outputs[0]) | below)
        if left.is_constant:
            raise self._refused("rows that no source changes at the left side", "declare them as a source")
        added: dict[str, tuple[str, str]] = {}
        keys = [
            left.names[id_of(one)]
            if kind_of(one) == "AttributeReference"
            else self._computed(one, left, added)
            for one, _, _ in self._pairs
        ]
        wanted = [one for own, one in self._outputs[1].items() if needed is None or own in needed | after]
        rows, kept = reader.project(left, added), left.node.names
        if isinstance(given, Part):
            read = self._versions(given, rows, left, keys, wanted, time)
        else:
            read = self._looked_up(str(given), rows, left, keys, wanted)
        if self._rest:
            texts = tuple(reader.text(one, read.names) for one in self._rest)
            read = type(read)(
                ir.Filter(inputs=(read.node,), columns=read.node.columns, conditions=texts), read.names
            )
        shown = [*kept, *dict.fromkeys(read.names[id_of(one)] for one in wanted)]
        return type(read)(reader.only(read.node, list(dict.fromkeys(shown))), read.names)

    def _computed(self, e: Any, left: Read, added: dict[str, tuple[str, str]]) -> str:
        column = self._reader.fresh("key")
        added[column] = self._reader.text(e, left.names), type_of(e)
        return column

    def _refused(self, what: str, remedy: str) -> Exception:
        return refusal(f"{what} of a join with a lookup or FOR SYSTEM_TIME AS OF", remedy, self._plan)

    def _time(self, part: Part) -> tuple[int, Any]:
        """The left and the right time: a condition that the rewritten text has."""
        for condition in self._rest:
            if kind_of(condition) not in ("GreaterThanOrEqual", "LessThanOrEqual"):
                continue
            one, two = condition.left(), condition.right()
            one, two = (one, two) if kind_of(condition).startswith("Greater") else (two, one)
            if not kind_of(one) == kind_of(two) == "AttributeReference" or id_of(one) not in self._outputs[0]:
                continue
            right = self._outputs[1].get(id_of(two))
            if right is not None and _own(right) == part.time:
                self._rest = [other for other in self._rest if not other.equals(condition)]
                return id_of(one), right
        raise self._refused("the time", "name a column of the left side")

    def _versions(
        self, part: Part, rows: ir.Node, left: Read, keys: list[str], wanted: list[Any], time: Any
    ) -> Read:
        reader, more = self._reader, [two for _, two, _ in self._pairs] + ([] if time is None else [time[1]])
        wanted = list({id_of(one): one for one in [*wanted, *more]}.values())
        right = _picked(reader, *_rows(reader, part, {_own(one) for one in wanted}), wanted)
        node = ir.TemporalJoin(
            inputs=(rows, right.node),
            columns=(*rows.columns, *right.node.columns),
            how=self._how,
            left_key=tuple(keys),
            right_key=tuple(right.names[id_of(two)] for _, two, _ in self._pairs),
            times=() if time is None else (left.names[time[0]], right.names[id_of(time[1])]),
            sql=part.place,
        )
        return type(left)(node, {**left.names, **right.names})

    def _looked_up(self, name: str, rows: ir.Node, left: Read, keys: list[str], wanted: list[Any]) -> Read:
        reader, lookup = self._reader, self._reader.lookups[name]
        sent = {_own(two): key for key, (_, two, _) in zip(keys, self._pairs, strict=True)}
        if set(sent) != set(lookup.key.names) or len(sent) < len(keys):
            raise self._refused(
                f"a key that is not {', '.join(lookup.key.names)}", "compare each of them once by ="
            )
        found = [one for one in wanted if _own(one) not in sent]
        if self._how == "left" and len(found) < len(wanted):
            raise self._refused(
                f"a LEFT JOIN that selects {', '.join(sent)}, which is null where nothing was found,",
                "select the columns of the left side, and those that were found",
            )
        names = {id_of(one): reader.name(one) for one in found}
        node = ir.LookupJoin(
            inputs=(rows,),
            columns=(*rows.columns, *(reader.column(one, reader.name(one)) for one in found)),
            source=name,
            how=self._how,
            key=tuple(sent[column] for column in lookup.key.names),
            own=tuple(_own(one) for one in found),
            sql=f"join with {name}",
        )
        names |= {id_of(one): sent[_own(one)] for one in wanted if _own(one) in sent}
        return type(left)(node, {**left.names, **names})
