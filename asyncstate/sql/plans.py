"""Reads an optimized Catalyst plan into nodes of our own.

Owns: ``Reader``.
Invariant: what has no node here is refused, with its place in the statement; a subplan that occurs twice is one node.
Names of columns are numbered by their first appearance, never by Catalyst's ids, so that a statement compiled twice
gives the same plan.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow.sql_text import column_of
from asyncstate.errors import SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.aggregates import read_aggregate
from asyncstate.sql.build import LookupTable
from asyncstate.sql.catalyst import CLOCK, Catalyst, items, option, sql_errors
from asyncstate.sql.conditions import EXACT, FLIPPED
from asyncstate.sql.expressions import (
    COMPARISONS,
    ID,
    NESTED,
    Expressions,
    children,
    conjuncts,
    disjuncts,
    fragment,
    id_of,
    ids_in,
    is_only_valid,
    kind_of,
    leaves,
    refusal,
    type_of,
    walk,
)
from asyncstate.sql.join_conditions import ResidualReader, equalities, interval_join, interval_of
from asyncstate.sql.over import RANKS, read_over, window_functions
from asyncstate.sql.parts import as_of_join, read_part, temporal_join
from asyncstate.sql.rows import Given, Needed, Read, own_name, source_of
from asyncstate.sql.syntax import Syntax

_CONSTANT_ROWS_MAX: Final = 100_000
_JOINS: Final = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "LeftSingle": "single",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
}
_STATELESS: Final = (("inner", "right"), ("inner", "left", "semi", "anti"))
"""The joins of constant rows, at the left and the right side, that need no state."""
_SHARED: Final = {"Aggregate", "Join", "Window"}
_CUTS: Final = {"Aggregate", "Expand", "Project"}
_PASSING: Final = {"Filter", "Join", "Window"}
"""Nodes that read the columns that are read of them, and some more."""
_ORDERED: Final = {*EXACT, "float", "double"}
_RISING: Final = {
    *("ScalarSubquery", "Literal", "Cast", "UnaryMinus", "TruncDate", "TruncTimestamp", "AddMonths"),
    *("TimeAdd", "TimestampAddInterval", "TimestampAddYMInterval"),
    *("DateAdd", "DateSub", "DateAddInterval", "DateAddYMInterval"),
}
"""Expressions that rise with a time, but for the hours of summer time."""
_TIMES: Final = ("date", "timestamp", "timestamp_ntz")
_SESSION: Final = "precisetimestampconversion"
_SESSION_MARK: Final = "spark.sessionWindow"


def read_plan(plan: Any, make: Callable[[dict[Any, set[int]]], Reader]) -> tuple[Reader, ir.Node]:
    """The nodes of a plan, and their reader, which ``make`` makes. Where a subplan lacks columns that a later and equal
    one reads, all is read once more with them. Raises SqlError."""
    reader = make({})
    root = reader.read(plan)
    while reader.is_wider:
        reader = make(reader.wider)
        root = reader.read(plan)
    return reader, root


class Reader:
    """Reads the plan of one statement. ``is_final``: whether windows over a column of a node close; ``syntax``: of
    the statement's text; ``lookups``: by name; ``wider``: by subplan, in its canonical form, the places of the columns
    that equal ones read."""

    def __init__(
        self,
        catalyst: Catalyst,
        is_final: Callable[[ir.Node, str], bool],
        syntax: Syntax,
        lookups: Mapping[str, LookupTable],
        wider: dict[Any, set[int]],
    ) -> None:
        self.catalyst, self.is_final, self.syntax, self.lookups = catalyst, is_final, syntax, lookups
        self.expressions = Expressions(catalyst)
        self.text = self.expressions.text
        self.notes: list[str] = []
        self._counts: Counter[str] = Counter()  # of names, by their beginning
        self._names: dict[int, str] = {}
        self._made: dict[Any, tuple[Read, list[int]]] = {}  # by canonical plan, with the ids of its columns
        self.wider = wider
        self.is_wider = False
        """Whether ``wider`` has more than it had."""
        self._raw_times: dict[int, Any] = {}
        self._leaf: Any = None
        self._clock: ir.Node | None = None
        self._sourced: dict[Any, bool] = {}  # by plan

    def read(self, plan: Any) -> ir.Node:
        """The nodes of a plan; the last has the statement's own names of columns. Raises SqlError."""
        plan = self._whole(plan)
        self._leaf = self._any_source(plan)
        found = self.plan(plan, None)
        if found.is_constant:
            raise SqlError(
                "the statement reads no source; its rows never change, so there is nothing to keep up to date"
            )
        made, used = dict[ir.Column, str](), set[str]()
        for attribute in items(plan.output()):
            own = str(attribute.name())
            if own.lower() == ROW_KIND_COLUMN:
                raise refusal(f"'{own}' is the changelog's own column", "give the column another name", plan)
            if own.lower() in used:
                raise refusal(f"two columns are called '{own}'", "give each a name of its own with AS", plan)
            used.add(own.lower())
            made[ir.Column(own, type_of(attribute))] = quoted(found.names[id_of(attribute)])
        self.expressions.check()
        return ir.Project.of(found.node, made)

    # -- names and columns --------------------------------------------------------------------------------

    def _unique(self, base: str) -> str:
        """A name that begins like ``base``, without the numbers that Spark 4.0 gives to the columns of a compilation: a
        statement that is compiled again has the same names. Those of one base, whatever the case of its letters, are
        numbered by their first appearance: a column that is added to a statement changes few names of others."""
        start = "".join(c if c.isalnum() or c == "_" else "_" for c in ID.sub("", base))[:40]
        self._counts[start.lower()] += 1
        return f"{start}_{self._counts[start.lower()] - 1}"

    def name(self, attribute: Any) -> str:
        """The name of a column, the same each time."""
        own = id_of(attribute)
        if own not in self._names:
            self._names[own] = self._unique(str(attribute.name()))
        return self._names[own]

    def fresh(self, what: str) -> str:
        """A name for a column that the statement does not have."""
        return self._unique(f"__{what}")

    def column(self, attribute: Any) -> ir.Column:
        """The column that is named after an attribute."""
        return ir.Column(self.name(attribute), type_of(attribute))

    @contextmanager
    def raw_times(self, windows: Iterable[int], time: Any) -> Iterator[None]:
        """Meanwhile these columns of windows have the time that they are made of."""
        before, self._raw_times = self._raw_times, dict.fromkeys(windows, time)
        try:
            yield
        finally:
            self._raw_times = before

    def streamed(self, read: Read) -> Read:
        """Rows that no source changes as rows of a stream: each is joined with a row that is always there."""
        if not read.is_constant:
            return read
        if self._leaf is None:
            raise SqlError(
                "the statement has constant rows next to lookups alone; declare the rows with job.table(...)"
            )
        none = self.plan(self._leaf, set()).where(["false"]).node
        count = ir.Column(self.fresh("row"), "bigint")
        row = ir.Aggregate(inputs=(none,), columns=(count,), keys=(), calls=(ir.Call(count.name, "count"),))
        node = ir.Join(inputs=(read.node, row), columns=(*read.node.columns, count), how="inner")
        return Read(node, read.names).only(read.node.names)

    # -- plans --------------------------------------------------------------------------------------------

    def plan(self, plan: Any, needed: Needed) -> Read:
        """Read a plan of which at least the columns ``needed`` are read."""
        kind = kind_of(plan)
        if not self._reads_source(plan):
            return self._constant(plan)
        canonical, output = None, list[int]()
        if kind in _SHARED:
            canonical, output = plan.canonicalized(), [id_of(one) for one in items(plan.output())]
            if canonical in self._made:
                again = self._again(canonical, plan, needed)
                if again is not None:
                    return again
            elif needed is not None:
                needed = needed | {output[place] for place in self.wider.get(canonical, ())}
        method = getattr(self, f"_{kind.lower()}", None)
        if method is None:
            raise refusal(
                f"{kind} has no operator that keeps it up to date", "write the query without it", plan
            )
        found: Read = method(plan, needed)
        if not found.node.sql:
            said = fragment(plan)
            found = Read(replace(found.node, sql=said), found.names) if said else found
        if canonical is not None:
            self._made.setdefault(canonical, (found, output))
        return found

    def _again(self, canonical: Any, plan: Any, needed: Needed) -> Read | None:
        """A subplan that was read before, under the names of this one; None if it lacks a column, with which the
        statement is read again."""
        made, names, lacking = dict[ir.Column, str](), dict[int, str](), set[int]()
        read, output = self._made[canonical]
        for place, (old, attribute) in enumerate(zip(output, items(plan.output()), strict=True)):
            if needed is not None and id_of(attribute) not in needed:
                continue
            if old in read.names:
                names[id_of(attribute)] = new = self.name(attribute)
                made[ir.Column(new, read.node.type_of(read.names[old]))] = quoted(read.names[old])
            else:
                lacking.add(place)
        known = self.wider.setdefault(canonical, set())
        self.is_wider |= not lacking <= known
        known |= lacking
        if lacking:
            return None
        self.notes.append(f"{fragment(plan) or kind_of(plan)} is computed once")
        node = ir.Project.of(read.node, made) if made else read.node  # or only their number is read
        return Read(node, names)

    def _whole(self, plan: Any, is_cut: bool = False) -> Any:
        """The plan whose joins have all columns of their sides, so that those that differ only in what is read of them
        are equal. ``is_cut``: whether what reads the plan says which columns it reads."""
        below = items(plan.children())
        if not below:
            return plan
        kind = kind_of(plan)
        is_cut = kind in _CUTS or (is_cut and kind in _PASSING)
        whole = [self._whole(one, is_cut) for one in below]
        if kind == "Join" and is_cut:
            wider = [self._without_pruning(one) for one in whole]
            first, second = ({id_of(one) for one in items(side.output())} for side in wider)
            whole = whole if first & second else wider
        if all(one is other for one, other in zip(whole, below, strict=True)):
            return plan
        return plan.withNewChildren(self.catalyst.seq(whole))

    def _without_pruning(self, plan: Any) -> Any:
        """What is below a Project that only leaves columns out."""
        if kind_of(plan) != "Project" or any(
            kind_of(one) != "AttributeReference" for one in items(plan.projectList())
        ):
            return plan
        leaf = plan.child()
        while source_of(leaf) is None and kind_of(leaf) in ("Project", "Filter"):
            leaf = leaf.child()
        return plan if source_of(leaf) in {CLOCK, *self.lookups, *self.syntax.parts} else plan.child()

    def _reads_source(self, plan: Any) -> bool:
        """Whether a plan reads a source, also in subqueries."""
        if plan not in self._sourced:
            below = [*items(plan.children()), *items(plan.subqueries())]
            self._sourced[plan] = any([source_of(plan), *map(self._reads_source, below)])
        return self._sourced[plan]

    def _any_source(self, plan: Any) -> Any:
        """The leaf of a source that is no lookup and not the clock; None if there is none."""
        if source_of(plan) is not None and source_of(plan) not in (*self.lookups, CLOCK):
            return plan
        below = map(self._any_source, [*items(plan.children()), *items(plan.subqueries())])
        return next((one for one in below if one is not None), None)

    def _constant(self, plan: Any) -> Read:
        """The rows of a plan that reads no source, as they are now."""
        rows, output = self.catalyst.rows(plan), items(plan.output())
        columns = tuple(map(self.column, output))
        if not output:  # an Arrow table without columns has no rows
            rows, columns = rows.selectExpr("1"), (ir.Column(self.fresh("row"), "int"),)
        with sql_errors():
            named = rows.toDF(*(one.name for one in columns))
            table: pa.Table = named.limit(_CONSTANT_ROWS_MAX + 1).toArrow()
        if table.num_rows > _CONSTANT_ROWS_MAX:
            raise refusal(
                f"a table that no source changes has more than {_CONSTANT_ROWS_MAX} rows",
                "declare it with job.table(...), or join it by a lookup",
                plan,
            )
        names = {id_of(one): self.name(one) for one in output}
        return Read(ir.Constant.of(table, columns), names)

    def _logicalrdd(self, plan: Any, needed: Needed) -> Read:
        output = items(plan.output())
        source = source_of(plan)
        assert source is not None
        if source == CLOCK:
            raise _other_than_compared(None)
        if source in self.syntax.parts:
            return read_part(self, plan, self.syntax.parts[source], needed)
        if source in self.lookups:
            raise refusal(
                f"lookup '{source}', which has no rows of its own,",
                "write JOIN or LEFT JOIN with it ON its key, which a LEFT JOIN does not select",
                plan,
            )
        wanted = [one for one in output if needed is None or id_of(one) in needed] or output[:1]
        names = {id_of(one): self.name(one) for one in wanted}
        node = ir.Scan(
            columns=tuple(map(self.column, wanted)),
            source=source,
            own=tuple(map(own_name, wanted)),
        )
        return Read(node, names)

    def _project(self, plan: Any, needed: Needed) -> Read:
        wanted = [one for one in items(plan.projectList()) if needed is None or id_of(one) in needed]
        below = self.plan(plan.child(), set().union(*map(ids_in, wanted)))
        below, replaced = self.subqueries(below, wanted)
        return self.projected(below, wanted, replaced)

    def projected(self, below: Read, wanted: Sequence[Any], replaced: dict[int, str]) -> Read:
        """The named expressions ``wanted`` over a node."""
        made, names = dict[ir.Column, str](), dict[int, str]()
        for one in wanted:
            bare = one.child() if kind_of(one) == "Alias" else one
            names[id_of(one)] = new = self.name(one)
            if id_of(one) in self._raw_times:
                raw = self._raw_times[id_of(one)]
                bare = raw if id_of(raw) in below.names else bare
            elif _SESSION in bare.toString() and one.metadata().contains(_SESSION_MARK):
                raise refusal(
                    "session_window that is not grouped by", "group by it and the columns of a session", one
                )
            column = ir.Column(new, type_of(self._raw_times.get(id_of(one), bare)))
            if column.type == "void":
                raise refusal("a column that is NULL and has no type", "write CAST(NULL AS INT)", one)
            made[column] = self.text(bare, below.names, replaced)
        if not made:  # only the number of rows is read
            made[ir.Column(self.fresh("row"), "int")] = "1"
        return Read(ir.Project.of(below.node, made), names)

    def _projected_by(self, read: Read, projects: Sequence[Any]) -> Read:
        """The rows after projections, of which the last one comes first."""
        for one in reversed(projects):
            wanted = items(one.projectList())
            joined, replaced = self.subqueries(read, wanted)
            read = self.projected(joined, wanted, replaced)
        return read

    def _filter(self, plan: Any, needed: Needed) -> Read:
        conditions = [one for one in conjuncts(plan.condition()) if not is_only_valid(one, self._raw_times)]
        ranked = self._ranked(plan, conditions, needed)
        if ranked is not None:
            return ranked
        below = None if needed is None else needed | ids_in(plan.condition())
        return self.filtered(self.plan(plan.child(), below), conditions)

    def filtered(self, read: Read, conditions: Sequence[Any]) -> Read:
        """The rows for which all conditions are true. Those without subqueries come first: they need no state."""
        read = self.streamed(read)
        read = read.where(self.text(one, read.names) for one in conditions if not _scalar_subqueries(one))
        rest = []
        for one in filter(_scalar_subqueries, conditions):
            found = self._compared_with_one_row(read, one) or self._in_time(read, one)
            rest += [one] if found is None else []
            read = found or read
        if not rest:
            return read
        joined, replaced = self.subqueries(read, rest)
        kept = joined.where(self.text(one, joined.names, replaced) for one in rest)
        return kept.only(read.node.names)

    def _compared_with_one_row(self, read: Read, condition: Any) -> Read | None:
        """The rows whose value compares with one that is computed of a scalar subquery alone; None for another form."""
        sign = COMPARISONS.get(kind_of(condition))
        if sign not in FLIPPED:
            return None
        value, bound = condition.left(), condition.right()
        if _scalar_subqueries(value):
            value, bound, sign = bound, value, FLIPPED[sign]
        of_value, of_bound = map(_scalar_subqueries, (value, bound))
        simple = not of_value and ids_in(value) and len(of_bound) == 1 and not ids_in(bound)
        if not simple or type_of(value) != type_of(bound) or type_of(value).split("(")[0] not in _ORDERED:
            return None
        given = Given(self, read)
        text = _exact(value, given.text(value))
        column = column_of(text) or given.computed("compared", text, type_of(value))
        is_clock = _is_clock(of_bound[0].plan())
        sub, own = self._time(of_bound[0]) if is_clock else self._one_row(of_bound[0])
        limit = ir.Column(self.fresh("bound"), type_of(bound))
        text = _exact(bound, self.text(bound, {}, {id_of(of_bound[0]): quoted(own)}))
        rows = given.node()
        rises = is_clock and sign != "=" and type_of(bound) in _TIMES
        rises = rises and all(kind_of(one) in _RISING for one in walk(bound))
        kind: Any = ir.TemporalFilter if rises else ir.DynamicFilter
        node = kind(
            inputs=(rows, ir.Project.of(sub.node, {limit: text})),
            columns=rows.columns,
            column=column,
            comparison=sign,
            bound=limit.name,
            sql=fragment(condition),
        )
        return Read(node, read.names).only(read.node.names)

    def _in_time(self, read: Read, condition: Any) -> Read | None:
        """The rows for which either a condition of the row alone is true, or one that reads the time; None for another
        form. Only rows for which the first is not true get to the second, so the others need no state."""
        either = disjuncts(condition)
        timed = [one for one in either if any(_is_clock(sub.plan()) for sub in _scalar_subqueries(one))]
        own = [one for one in either if not _scalar_subqueries(one)]
        if len(timed) != 1 or len(either) != len(own) + 1 or not own or not condition.deterministic():
            return None
        text = " OR ".join(f"({self.text(one, read.names)})" for one in own)
        rest = self.filtered(read.where([f"NOT coalesce({text}, false)"]), conjuncts(timed[0]))
        node = ir.Union(inputs=(read.where([text]).node, rest.node), columns=read.node.columns)
        return Read(node, read.names)

    def _time(self, subquery: Any) -> tuple[Read, str]:
        """The row of the clock, and the name of its column."""
        if self._clock is None:
            if self._leaf is None:
                raise _other_than_compared(subquery)
            none = self.plan(self._leaf, set()).where(["false"]).node
            now = ir.Column(self.fresh("now"), "timestamp")
            self._clock = ir.Clock(inputs=(none,), columns=(now,))
        (name,) = self._clock.names
        return Read(self._clock, {}), name

    def _one_row(self, subquery: Any) -> tuple[Read, str]:
        """The rows of a scalar subquery, and the name of its column."""
        if _is_clock(subquery.plan()):
            raise _other_than_compared(subquery)
        if items(subquery.outerAttrs()):
            raise refusal("a correlated subquery stays in an expression", "write it as a join", subquery)
        plan = self._whole(subquery.plan())
        (attribute,) = items(plan.output())
        read = self.streamed(self.plan(plan, None))
        return read, read.names[id_of(attribute)]

    def subqueries(self, read: Read, expressions: Sequence[Any]) -> tuple[Read, dict[int, str]]:
        """Join the scalar subqueries of the expressions to the rows: the text of each, by its id."""
        replaced: dict[int, str] = {}
        for expression in expressions:
            for one in _scalar_subqueries(expression):
                if id_of(one) in replaced:
                    continue
                read = self.streamed(read)
                sub, own = self._one_row(one)
                column = ir.Column(self.fresh("scalar"), type_of(one))
                node = ir.Join(
                    inputs=(read.node, ir.Project.of(sub.node, {column: quoted(own)})),
                    columns=(*read.node.columns, column),
                    how="single",
                    sql=fragment(one),
                )
                read = Read(node, read.names)
                replaced[id_of(one)] = quoted(column.name)
        return read, replaced

    def given(self, read: Read, expressions: Sequence[Any]) -> Given:
        """What computes the expressions of rows, joined with their scalar subqueries."""
        joined, replaced = self.subqueries(read, expressions)
        return Given(self, joined, replaced)

    _aggregate, _window = read_aggregate, read_over

    def _sort(self, plan: Any, needed: Needed) -> Read:
        return self.plan(plan.child(), needed)

    _locallimit = _repartition = _repartitionbyexpression = _rebalancepartitions = _sort

    def _globallimit(self, plan: Any, needed: Needed) -> Read:
        limit, below, offset = int(plan.limitExpr().toString()), plan.child(), 0
        while kind_of(below) in ("LocalLimit", "Offset"):
            offset += int(below.offsetExpr().toString()) if kind_of(below) == "Offset" else 0
            below = below.child()
        if limit == 0:
            raise refusal("LIMIT 0 has no rows", "leave the query out", plan)
        projects, node = _projections(below)
        by = items(node.order()) if kind_of(node) == "Sort" else []
        if by:
            child = self.plan(node.child(), None)
        else:
            child, projects = self.plan(below, needed), []
            self.notes.append("LIMIT without ORDER BY keeps the rows that come first")
        given = self.given(child, by)
        order, rows = given.order(by), given.node()
        found = ir.Limit(inputs=(rows,), columns=rows.columns, order=order, limit=limit, offset=offset)
        return self._projected_by(Read(found, child.names).only(child.node.names), projects)

    def _offset(self, plan: Any, _: Needed) -> Read:
        raise refusal("OFFSET without LIMIT", "give a LIMIT, too", plan)

    def _union(self, plan: Any, needed: Needed) -> Read:
        output = items(plan.output())
        columns = [ir.Column(f"{self.name(one)}_u", type_of(one)) for one in output]
        row = [] if output else [ir.Column(self.fresh("row"), "int")]
        parts = []
        for below in items(plan.children()):
            child = self.streamed(self.plan(below, None))
            given = [(quoted(child.names[id_of(one)]), type_of(one)) for one in items(below.output())]
            # Where only the number of rows is read, there is no column.
            parts.append(_typed(child.node, columns or row, given or [("1", "int")]))
        return _united(parts, output)

    def _expand(self, plan: Any, _: Needed) -> Read:
        listed = items(plan.output())
        places = sorted({id_of(one): at for at, one in reversed([*enumerate(listed)])}.values())  # each once
        output = [listed[number] for number in places]
        projections = [[items(one)[number] for number in places] for one in items(plan.projections())]
        child = self.plan(plan.child(), set().union(*(ids_in(one) for part in projections for one in part)))
        raw = {
            number: self._raw_times[id_of(one)]
            for number, one in enumerate(output)
            if id_of(one) in self._raw_times
        }
        if raw:  # one row for all windows of a row
            projections = [[raw.get(number, one) for number, one in enumerate(projections[0])]]
        columns = [
            ir.Column(self.name(one), type_of(raw.get(number, one))) for number, one in enumerate(output)
        ]
        parts = []
        for part in projections:
            given = [(self.text(one, child.names), type_of(one)) for one in part]
            parts.append(_typed(child.node, columns, given))
        return _united(parts, output)

    def _generate(self, plan: Any, _: Needed) -> Read:
        whole, generator = self.plan(plan.child(), None), plan.generator()
        child, replaced = self.subqueries(whole, [generator])
        output = items(plan.generatorOutput())
        made = tuple(map(self.column, output))
        names = {id_of(one): self.name(one) for one in output}
        if kind_of(generator) == "ReplicateRows":
            count, *values = children(generator)
            copies, copy = (ir.Column(self.fresh("copy"), "bigint") for _ in range(2))
            given = [self.text(one, child.names, replaced) for one in (*values, count)]
            inner = ir.Project.of(child.node, dict(zip((*made, copies), given, strict=True)))
            node = ir.Explode(
                inputs=(inner,),
                columns=(*inner.columns, copy),
                text=f"explode(sequence(1L, {quoted(copies.name)}))",
                made=(copy.name,),
            )
            return Read(node, names).only([one.name for one in made])
        text = self.expressions.generator(generator, child.names, replaced)
        if plan.outer() and kind_of(generator) not in ("JsonTuple", "Stack"):  # which make rows of every row
            text = re.sub(r"^(\w+)\(", r"\1_outer(", text)
        columns = (*child.node.columns, *made)
        node = ir.Explode(
            inputs=(child.node,), columns=columns, text=text, made=tuple(one.name for one in made)
        )
        shown = [*whole.node.names, *(one.name for one in made)]
        return Read(node, {**child.names, **names}).only(shown)

    # -- joins --------------------------------------------------------------------------------------------

    def _join(self, plan: Any, needed: Needed) -> Read:
        kind = plan.joinType().toString()
        mark = plan.joinType().exists() if kind.startswith("ExistenceJoin") else None
        how = "mark" if mark is not None else _JOINS.get(kind)
        if how is None:
            raise refusal(f"a join of the kind {kind}", "write it as another join", plan)
        has_others = self.lookups or self.syntax.parts
        found = as_of_join(self, plan, how, needed) if has_others else None
        if found is not None:
            return found
        conditions = conjuncts(option(plan.condition()))
        read_by = set().union(*map(ids_in, conditions))
        outputs = [{id_of(one) for one in items(side.output())} for side in (plan.left(), plan.right())]
        wanted: list[Needed] = [None if needed is None else (needed | read_by) & own for own in outputs]
        shows_left = how in ("semi", "anti", "mark")
        if shows_left:
            wanted[1] = read_by & outputs[1]
        pairs, rest = equalities(conditions, outputs)
        is_safe = bool(pairs) and all(one[2] for one in pairs)
        inexact = any("float" in type_of(one[0]) or "double" in type_of(one[0]) for one in pairs)
        is_plain = not (is_safe or inexact or (rest and how != "inner"))
        reads, sides = list[Read](), list[Given]()
        asked = [*(one for pair in pairs for one in pair[:2]), *(rest if how != "inner" else [])]
        subqueries = _by_side(asked, outputs[1])
        for side, of_side, stateless, of_both in zip(
            (plan.left(), plan.right()), wanted, _STATELESS, subqueries, strict=True
        ):
            found = self.plan(side, of_side).kept(of_side)
            reads.append(found if is_plain and how in stateless else self.streamed(found))
            sides.append(self.given(reads[-1], of_both))
        is_plain_time = how not in ("mark", "single") and not any(subqueries)  # whose values change rows
        interval = interval_of(self, plan, reads, outputs) if is_plain_time else None
        rest = [one for one in rest if interval is None or one not in interval.used]
        keys = self._join_key(pairs, sides)
        behind = rest if how == "inner" else []
        checked = ResidualReader(sides, outputs).read(rest) if rest and how != "inner" else None
        given = [side.node() for side in sides]
        shown = slice(1 if shows_left else 2)
        columns = [column for node in given[shown] for column in node.columns]
        names = {own: name for read in reads[shown] for own, name in read.names.items()}
        kept = [name for read in reads[shown] for name in read.node.names]
        if mark is not None:
            names[id_of(mark)] = self.name(mark)
            columns.append(ir.Column(self.name(mark), "boolean"))
            kept.append(self.name(mark))
        if not pairs:
            self.notes.append(
                f"{fragment(plan) or 'a join'}: a join without an equality runs in one partition"
            )
        joined = ir.Join(
            inputs=tuple(given),
            columns=tuple(columns),
            how=how,
            left_key=tuple(keys[0]),
            right_key=tuple(keys[1]),
            null_safe=is_safe,
            condition=checked,
            sql=fragment(plan),
        )
        read = Read(joined if interval is None else interval_join(joined, interval), names)
        return self.filtered(read, behind).only(kept)

    def _join_key(self, pairs: Sequence[tuple[Any, Any, bool]], sides: Sequence[Given]) -> list[list[str]]:
        """The key columns of both sides. A null-safe equality next to others becomes two: whether the value is null,
        and the value with a default for null. A struct becomes its leaves."""
        keys: list[list[str]] = [[], []]
        safe = all(one[2] for one in pairs)
        literal = self.catalyst.expression_classes.Literal
        for *both, is_safe in pairs:
            for side, one, key in zip(sides, both, keys, strict=True):
                text = side.text(one)
                own = side.read.names[id_of(one)] if kind_of(one) == "AttributeReference" else ""
                if not type_of(one).startswith("struct<"):
                    parts = [(text, type_of(one), one.dataType(), is_safe)]
                else:  # a null struct equals nothing, but null fields are equal
                    null, *fields = leaves(text, one.dataType())
                    first = null[0] if is_safe else f"IF({null[0]}, NULL, TRUE)"
                    parts, own = [(first, null[1], None, False), *((*field, True) for field in fields)], ""
                for part, kind, spark_kind, by_null in parts:
                    if by_null and not safe and spark_kind is not None:
                        key.append(side.computed("null", f"({part}) IS NULL", "boolean"))
                        part = f"coalesce({part}, {literal.default(spark_kind).sql()})"
                    elif own and own not in key:
                        key.append(own)
                        continue
                    key.append(side.computed("key", part, kind))
        return keys

    def _asofjoin(self, plan: Any, _: Needed) -> Read:
        how = {"Inner": "inner", "LeftOuter": "left"}.get(plan.joinType().toString())
        condition = plan.asOfCondition()
        times = [condition.left(), condition.right()] if kind_of(condition) == "GreaterThanOrEqual" else []
        outputs = [{id_of(one) for one in items(side.output())} for side in (plan.left(), plan.right())]
        pairs, rest = equalities(conjuncts(option(plan.condition())), outputs)
        plain = [
            kind_of(one) == "AttributeReference" for one in (*times, *(e for pair in pairs for e in pair[:2]))
        ]
        if how is None or not times or rest or not pairs or not all(plain) or any(pair[2] for pair in pairs):
            raise refusal(
                "this ASOF JOIN",
                "write [LEFT] ASOF JOIN r MATCH_CONDITION (l.time >= r.time) ON l.key = r.key, with columns alone",
                plan,
            )
        given, versions = Given(self, self.plan(plan.left(), None)), self.plan(plan.right(), None)
        known = zip((given.read, versions), times, strict=True)
        if not all(
            id_of(one) in side.names and self.is_final(side.node, side.names[id_of(one)])
            for side, one in known
        ):
            raise refusal(
                "ASOF JOIN by a time that is no event time of insertions, so later rows could change its rows",
                "declare event_time= and watermark_delay= at both sources, or write JOIN r FOR SYSTEM_TIME AS OF "
                "l.time, which takes the row as it was at that time",
                plan,
            )
        keys = [(given.column("key", one), two) for one, two, _ in pairs]
        keeps_all = how == "left" and bool(times[0].nullable())
        return temporal_join(given, versions, how, keys, times, fragment(plan), keeps_all)

    # -- rankings and windows -----------------------------------------------------------------------------

    def _ranked(self, plan: Any, conditions: Sequence[Any], needed: Needed) -> Read | None:
        """Rows chosen by their number: a ranking that keeps the best ones only. None if it is not of this form."""
        window = plan.child()
        if kind_of(window) != "Window" or not self._reads_source(window):
            return None
        made = window_functions(window)
        if len(made) != 1:
            return None
        (alias,) = made
        own, order, ranked, projects = id_of(alias), items(window.orderSpec()), window.child(), list[Any]()
        function = RANKS.get(kind_of(alias.child().windowFunction()))
        if function is None:
            return None
        if not order:  # of LIMIT in a correlated subquery, for which Spark sorts the rows before
            above, node = _projections(ranked)
            if kind_of(node) == "Sort":
                order, ranked, projects = items(node.order()), node.child(), above
        bounds = [(one, _bound(one, own)) for one in conditions]
        rest = [one for one, bound in bounds if bound is None]
        highest = [bound[1] for _, bound in bounds if bound is not None and bound[1] is not None]
        lowest = [bound[0] for _, bound in bounds if bound is not None and bound[0] is not None]
        if not highest:
            return None
        offset, limit = max([one - 1 for one in lowest] + [0]), min(highest)
        if limit <= offset:
            raise refusal(f"no row has a number from {offset + 1} to {limit}", "leave the query out", plan)
        numbered = needed is None or own in needed or any(own in ids_in(one) for one in rest)
        below, partition = None, items(window.partitionSpec())
        if needed is not None and order and not projects:
            below = needed.union(*map(ids_in, [*rest, *order, *partition])) - {own}
        given = Given(self, self.plan(ranked, below))
        if projects and (numbered or not set().union(*map(ids_in, partition)) <= set(given.read.names)):
            return None
        by = given.order(order)
        if not by:  # any rows are right
            flat = [one for one in given.read.node.columns if not one.type.startswith(NESTED)]
            by = tuple(ir.Order(one.name) for one in flat)
        key, rows = given.key(partition), given.node()
        number = self.name(alias) if numbered else None
        more = () if number is None else (ir.Column(number, "int"),)
        node = ir.Rank(
            inputs=(rows,),
            columns=(*rows.columns, *more),
            key=key,
            order=by,
            limit=limit - offset,
            offset=offset,
            function=function,
            number=number,
            sql=fragment(plan),
        )
        names = given.read.names if number is None else {**given.read.names, own: number}
        found = Read(node, names).only([*given.read.node.names, *(one.name for one in more)])
        return self.filtered(self._projected_by(found, projects), rest)


def _projections(plan: Any) -> tuple[list[Any], Any]:
    """The projections at the top of a plan, and what is below them."""
    found = list[Any]()
    while kind_of(plan) == "Project":
        found.append(plan)
        plan = plan.child()
    return found, plan


def _is_clock(plan: Any) -> bool:
    """Whether a subquery is the time of the micro-batch."""
    return source_of(_projections(plan)[1]) == CLOCK


def _other_than_compared(node: Any) -> SqlError:
    return refusal(
        "the current time outside of a comparison in a condition, where it would change all rows",
        "write WHERE time > now() - INTERVAL 1 DAY; a source has the time at which a row comes as a column",
        node,
    )


def _scalar_subqueries(e: Any) -> list[Any]:
    return [one for one in walk(e) if kind_of(one) == "ScalarSubquery"]


def _by_side(conditions: Sequence[Any], right: set[int]) -> tuple[list[Any], list[Any]]:
    """The scalar subqueries of a join's conditions that belong to what is computed of the left side, or of no side, and
    those of the ``right`` one."""
    found: tuple[list[Any], list[Any]] = [], []
    for one in conditions:
        own, read_by = _scalar_subqueries(one), ids_in(one)
        if own and read_by & right and not read_by <= right:
            parts = _by_side(children(one), right)
        else:
            parts = ([], own) if read_by & right else (own, [])
        found[0].extend(parts[0])
        found[1].extend(parts[1])
    return found


def _exact(expression: Any, text: str) -> str:
    """The text with its type, where engines count the digits of decimals in different ways."""
    kind = type_of(expression)
    return f"CAST({text} AS {kind})" if kind.startswith("decimal") else text


def _typed(node: ir.Node, columns: Sequence[ir.Column], texts: Sequence[tuple[str, str]]) -> ir.Project:
    """Columns of texts, each of which has a type."""
    made = {
        column: text if kind == column.type else f"CAST({text} AS {column.type})"
        for column, (text, kind) in zip(columns, texts, strict=True)
    }
    return ir.Project.of(node, made)


def _united(parts: Sequence[ir.Node], output: Sequence[Any]) -> Read:
    names = {id_of(one): name for one, name in zip(output, parts[0].names, strict=False)}
    if len(parts) == 1:
        return Read(parts[0], names)
    return Read(ir.Union(inputs=tuple(parts), columns=parts[0].columns), names)


def _bound(condition: Any, own: int) -> tuple[int | None, int | None] | None:
    """The (lowest, highest) number that a condition on attribute ``own`` allows; None if it is another condition."""
    if is_only_valid(condition, {own}):
        return None, None
    sign = COMPARISONS.get(kind_of(condition))
    if sign not in FLIPPED:
        return None
    a, b = condition.left(), condition.right()
    if kind_of(a) == "Literal":
        a, b, sign = b, a, FLIPPED[sign]
    if kind_of(a) != "AttributeReference" or id_of(a) != own or kind_of(b) != "Literal":
        return None
    n = int(b.toString())
    return {"<": (None, n - 1), "<=": (None, n), "=": (n, n), ">": (n + 1, None), ">=": (n, None)}[sign]
