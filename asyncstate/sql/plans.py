"""Reads an optimized Catalyst plan into nodes of our own.

Owns: ``Reader``.
Invariant: what has no node here is refused, with its place in the statement; a subplan that occurs twice is one node.
Names of columns are numbered by their first appearance, never by Catalyst's ids, so that a statement compiled twice
gives the same plan.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.dataflow.arrow_sql import column_of
from asyncstate.errors import SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.aggregates import AggregateReader
from asyncstate.sql.build import LookupTable
from asyncstate.sql.catalyst import COLUMN, SOURCE, Catalyst, items, option, sql_errors
from asyncstate.sql.expressions import (
    Expressions,
    children,
    conjuncts,
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
from asyncstate.sql.intervals import interval_join, interval_of
from asyncstate.sql.parts import as_of_join, read_part
from asyncstate.sql.residual import ResidualReader
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
_RANKS: Final = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}
_SHARED: Final = {"Aggregate", "Join", "Window"}
_FLIPPED: Final = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
_SIGNS: Final = {
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "EqualTo": "=",
}
_ORDERED: Final = {
    *("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
    *("string", "date", "timestamp", "timestamp_ntz"),
}
_SESSION: Final = "precisetimestampconversion"
_SESSION_MARK: Final = "spark.sessionWindow"
_numbers: Final = itertools.count()
Needed = set[int] | None
"""The ids of the columns that are read; None: all."""


@dataclass(frozen=True)
class Read:
    """A node, and the names of its columns by Catalyst's ids."""

    node: ir.Node
    names: dict[int, str]

    @property
    def is_constant(self) -> bool:
        """Whether its rows never change."""
        return isinstance(self.node, ir.Constant)


class Reader:
    """Reads the plan of one statement. ``is_final``: whether windows over a column of a node close; ``syntax``: of
    the statement's text; ``lookups``: by name."""

    def __init__(
        self,
        catalyst: Catalyst,
        is_final: Callable[[ir.Node, str], bool],
        syntax: Syntax,
        lookups: Mapping[str, LookupTable],
    ) -> None:
        self.catalyst, self.is_final, self.syntax, self.lookups = catalyst, is_final, syntax, lookups
        self.expressions = Expressions(catalyst)
        self.text = self.expressions.text
        self.notes: list[str] = []
        self._named = ir.Named()
        self._names: dict[int, str] = {}
        self._made: dict[tuple[int, str], list[tuple[Any, Read, list[int]]]] = {}
        self._raw_times: dict[int, Any] = {}
        self._leaf: Any = None
        # Plans of views are shared by statements, so a tag of one statement must not count for another.
        tag = f"asyncstate.{next(_numbers)}"
        self._tag = catalyst.jvm.org.apache.spark.sql.catalyst.trees.TreeNodeTag(tag)

    def read(self, plan: Any) -> ir.Node:
        """The nodes of a plan; the last has the statement's own names of columns. Raises SqlError."""
        self._leaf = self._any_source(plan)
        found = self.plan(plan, None)
        if found.is_constant:
            raise SqlError(
                "the statement reads no source; its rows never change, so there is nothing to keep up to date"
            )
        texts, columns, used = [], [], dict[str, int]()
        for attribute in items(plan.output()):
            own = str(attribute.name())
            used[own.lower()] = used.get(own.lower(), 0) + 1
            if own.lower() == ROW_KIND_COLUMN:
                raise refusal(f"'{own}' is the changelog's own column", "give the column another name", plan)
            if used[own.lower()] > 1:
                raise refusal(f"two columns are called '{own}'", "give each a name of its own with AS", plan)
            texts.append(quoted(found.names[id_of(attribute)]))
            columns.append(ir.Column(own, type_of(attribute)))
        self.expressions.check()
        return ir.Project(inputs=(found.node,), columns=tuple(columns), texts=tuple(texts))

    # -- names and columns --------------------------------------------------------------------------------

    def name(self, attribute: Any) -> str:
        """The name of a column, the same each time."""
        own = id_of(attribute)
        if own not in self._names:
            self._names[own] = self._named.of(str(attribute.name()))
        return self._names[own]

    def fresh(self, what: str) -> str:
        """A name for a column that the statement does not have."""
        return self._named.of(f"__{what}")

    def column(self, expression: Any, name: str) -> ir.Column:
        """A column of the type of the expression."""
        return ir.Column(name, type_of(expression))

    def project(self, read: Read, added: dict[str, tuple[str, str]]) -> ir.Node:
        """The node with more columns: (text, type) by name."""
        if not added:
            return read.node
        kept = read.node.columns
        columns = (*kept, *(ir.Column(name, kind) for name, (_, kind) in added.items()))
        texts = (*(quoted(one.name) for one in kept), *(text for text, _ in added.values()))
        if isinstance(read.node, ir.Constant):
            rows = self.catalyst.session.createDataFrame(read.node.table)
            named = [f"{text} AS {quoted(one.name)}" for text, one in zip(texts, columns, strict=True)]
            return ir.Constant.of(rows.selectExpr(*named).toArrow(), columns)
        return ir.Project(inputs=(read.node,), columns=columns, texts=texts)

    def only(self, node: ir.Node, names: Sequence[str], sql: str = "") -> ir.Node:
        """The node with these columns alone."""
        if tuple(names) == node.names:
            return node
        columns = tuple(ir.Column(name, node.type_of(name)) for name in names)
        return ir.Project(inputs=(node,), columns=columns, texts=tuple(map(quoted, names)), sql=sql)

    def key_columns(
        self, expressions: Sequence[Any], names: dict[int, str], added: dict[str, tuple[str, str]]
    ) -> list[str]:
        """The columns of a key; ``added`` gets those that are computed, and the leaves of structs."""
        found = []
        for one in expressions:
            if type_of(one).startswith("struct<"):
                for text, kind in leaves(self.text(one, names), one.dataType()):
                    found.append(self.fresh("key"))
                    added[found[-1]] = text, "boolean" if kind is None else str(kind.catalogString())
            elif kind_of(one) == "AttributeReference":
                found.append(names[id_of(one)])
            else:
                column = self.fresh("key")
                added[column] = self.text(one, names), type_of(one)
                found.append(column)
        return list(dict.fromkeys(found))

    def order(
        self, specs: Sequence[Any], names: dict[int, str], added: dict[str, tuple[str, str]]
    ) -> tuple[ir.Order, ...]:
        """The columns of an ORDER BY. A struct becomes its leaves, of which nulls come before all other values."""
        found = []
        for spec in specs:
            one = spec.child()
            descending = spec.direction().toString() != "Ascending"
            first = "NullsFirst" in spec.nullOrdering().toString()
            if kind_of(one) == "AttributeReference" and not type_of(one).startswith("struct<"):
                found.append(ir.Order(names[id_of(one)], descending, first))
                continue
            is_leaf = not type_of(one).startswith("struct<")
            for text, kind in leaves(self.text(one, names), one.dataType()):
                column = self.fresh("order")
                added[column] = text, "boolean" if kind is None else str(kind.catalogString())
                if kind is None:  # whether a struct is null
                    found.append(ir.Order(column, first))
                    first = not descending
                else:
                    found.append(ir.Order(column, descending, first if is_leaf else not descending))
        return tuple(
            {one.column: one for one in reversed(found)}[one]
            for one in dict.fromkeys(o.column for o in found)
        )

    @contextmanager
    def raw_times(self, windows: dict[int, Any], plan: Any) -> Iterator[None]:
        """Meanwhile a column of windows has the time that they are made of, wherever it is renamed in ``plan``."""
        (own, time), before = next(iter(windows.items())), self._raw_times
        found = {own: time}
        while kind_of(plan) in ("Project", "Filter"):
            for one in items(plan.projectList()) if kind_of(plan) == "Project" else ():
                if (
                    id_of(one) in found
                    and kind_of(one) == "Alias"
                    and kind_of(one.child()) == "AttributeReference"
                ):
                    found[id_of(one.child())] = time
            plan = plan.child()
        self._raw_times = found
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
        scan = self.plan(self._leaf, set()).node
        none = ir.Filter(inputs=(scan,), columns=scan.columns, conditions=("false",))
        count = ir.Column(self.fresh("row"), "bigint")
        row = ir.Aggregate(
            inputs=(none,), columns=(count,), keys=(), calls=(ir.Call(count.name, "count", ()),)
        )
        node = ir.Join(inputs=(read.node, row), columns=(*read.node.columns, count), how="inner")
        return Read(self.only(node, read.node.names), read.names)

    # -- plans --------------------------------------------------------------------------------------------

    def plan(self, plan: Any, needed: Needed) -> Read:
        """Read a plan of which at least the columns ``needed`` are read."""
        kind = kind_of(plan)
        if not self._reads_source(plan):
            return self._constant(plan)
        key = None
        if kind in _SHARED:
            canonical = plan.canonicalized()
            key = int(canonical.hashCode()), kind
            for other, read, output in self._made.get(key, []):
                again = self._again(read, output, plan, needed) if other.equals(canonical) else None
                if again is not None:
                    return again
        method = getattr(self, f"_{kind.lower()}", None)
        if method is None:
            raise refusal(
                f"{kind} has no operator that keeps it up to date", "write the query without it", plan
            )
        found: Read = method(plan, needed)
        if not found.node.sql:
            said = fragment(plan)
            found = Read(replace(found.node, sql=said), found.names) if said else found
        if key is not None:
            output = [id_of(one) for one in items(plan.output())]
            self._made.setdefault(key, []).append((plan.canonicalized(), found, output))
        return found

    def _again(self, read: Read, output: list[int], plan: Any, needed: Needed) -> Read | None:
        """A subplan that was read before, under the names of this one; None if it lacks a column."""
        texts, columns, names = [], [], {}
        for old, attribute in zip(output, items(plan.output()), strict=True):
            if old in read.names:
                new = self.name(attribute)
                names[id_of(attribute)] = new
                texts.append(quoted(read.names[old]))
                columns.append(ir.Column(new, read.node.type_of(read.names[old])))
            elif needed is None or id_of(attribute) in needed:
                return None
        self.notes.append(f"{fragment(plan) or kind_of(plan)} is computed once")
        return Read(ir.Project(inputs=(read.node,), columns=tuple(columns), texts=tuple(texts)), names)

    def _reads_source(self, plan: Any) -> bool:
        """Whether a plan reads a source, also in subqueries. Each node is asked once, and tagged with the answer."""
        known = option(plan.getTagValue(self._tag))
        if known is None:
            below = [*items(plan.children()), *items(plan.subqueries())]
            known = str(any([source_of(plan), *map(self._reads_source, below)]))
            plan.setTagValue(self._tag, known)
        return bool(known == "True")

    def _any_source(self, plan: Any) -> Any:
        """The leaf of a source that is not a lookup; None if there is none."""
        if source_of(plan) is not None and source_of(plan) not in self.lookups:
            return plan
        below = map(self._any_source, [*items(plan.children()), *items(plan.subqueries())])
        return next((one for one in below if one is not None), None)

    def _constant(self, plan: Any) -> Read:
        """The rows of a plan that reads no source, as they are now."""
        rows, output = self.catalyst.rows(plan), items(plan.output())
        names = {id_of(one): self.name(one) for one in output}
        columns = tuple(self.column(one, self.name(one)) for one in output)
        if not output:  # an Arrow table without columns has no rows
            rows, columns = rows.selectExpr("1"), (ir.Column(self.fresh("row"), "int"),)
        with sql_errors():
            table: pa.Table = (
                rows.toDF(*(one.name for one in columns)).limit(_CONSTANT_ROWS_MAX + 1).toArrow()
            )
        if table.num_rows > _CONSTANT_ROWS_MAX:
            raise refusal(
                f"a table that no source changes has more than {_CONSTANT_ROWS_MAX} rows",
                "declare it with job.table(...), or join it by a lookup",
                plan,
            )
        return Read(ir.Constant.of(table, columns), names)

    def _logicalrdd(self, plan: Any, needed: Needed) -> Read:
        output = items(plan.output())
        source = str(output[0].metadata().getString(SOURCE))
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
            columns=tuple(self.column(one, self.name(one)) for one in wanted),
            source=source,
            own=tuple(str(one.metadata().getString(COLUMN)) for one in wanted),
        )
        return Read(node, names)

    def _project(self, plan: Any, needed: Needed) -> Read:
        wanted = [one for one in items(plan.projectList()) if needed is None or id_of(one) in needed]
        below = self.plan(plan.child(), set().union(*map(ids_in, wanted)))
        below, replaced = self._subqueries(below, wanted)
        return self.projected(below, wanted, replaced)

    def projected(self, below: Read, wanted: Sequence[Any], replaced: dict[int, str]) -> Read:
        """The named expressions ``wanted`` over a node."""
        texts, columns, names = [], [], {}
        for one in {id_of(one): one for one in wanted}.values():
            bare = one.child() if kind_of(one) == "Alias" else one
            new = self.name(one)
            if id_of(one) in self._raw_times:
                raw = self._raw_times[id_of(one)]
                bare = raw if id_of(raw) in below.names else bare
            elif _SESSION in bare.toString() and one.metadata().contains(_SESSION_MARK):
                raise refusal(
                    "session_window that is not grouped by", "group by it and the columns of a session", one
                )
            texts.append(self.text(bare, below.names, replaced))
            columns.append(self.column(self._raw_times.get(id_of(one), bare), new))
            names[id_of(one)] = new
        if not texts:  # only the number of rows is read
            texts, columns = ["1"], [ir.Column(self.fresh("row"), "int")]
        return Read(ir.Project(inputs=(below.node,), columns=tuple(columns), texts=tuple(texts)), names)

    def _filter(self, plan: Any, needed: Needed) -> Read:
        conditions = [one for one in conjuncts(plan.condition()) if not is_only_valid(one, self._raw_times)]
        ranked = self._ranked(plan, conditions, needed)
        if ranked is not None:
            return ranked
        below = None if needed is None else needed | ids_in(plan.condition())
        return self._filtered(self.plan(plan.child(), below), conditions)

    def _filtered(self, read: Read, conditions: Sequence[Any]) -> Read:
        """The rows for which all conditions are true. Those without subqueries come first: they need no state."""
        read = self.streamed(read)
        subqueries = [any(kind_of(part) == "ScalarSubquery" for part in walk(one)) for one in conditions]
        plain = [one for one, has in zip(conditions, subqueries, strict=True) if not has]
        if plain:
            texts = tuple(self.text(one, read.names) for one in plain)
            read = Read(
                ir.Filter(inputs=(read.node,), columns=read.node.columns, conditions=texts), read.names
            )
        rest = []
        for one in (one for one, has in zip(conditions, subqueries, strict=True) if has):
            found = self._compared_with_one_row(read, one)
            rest += [one] if found is None else []
            read = found or read
        if not rest:
            return read
        joined, replaced = self._subqueries(read, rest)
        texts = tuple(self.text(one, joined.names, replaced) for one in rest)
        node = ir.Filter(inputs=(joined.node,), columns=joined.node.columns, conditions=texts)
        return Read(self.only(node, read.node.names), read.names)

    def _compared_with_one_row(self, read: Read, condition: Any) -> Read | None:
        """The rows whose value compares with one that is computed of a scalar subquery alone; None for another form."""
        kind = kind_of(condition)
        if kind not in (*_FLIPPED, "EqualTo"):
            return None
        value, bound = condition.left(), condition.right()
        if any(kind_of(one) == "ScalarSubquery" for one in walk(value)):
            value, bound, kind = bound, value, _FLIPPED.get(kind, kind)
        of_value, of_bound = (
            [one for one in walk(e) if kind_of(one) == "ScalarSubquery"] for e in (value, bound)
        )
        simple = not of_value and ids_in(value) and len(of_bound) == 1 and not ids_in(bound)
        if not simple or type_of(value) != type_of(bound) or type_of(value).split("(")[0] not in _ORDERED:
            return None
        added: dict[str, tuple[str, str]] = {}
        text = self._typed(value, self.text(value, read.names))
        column = column_of(text)
        if column is None:
            column = self.fresh("compared")
            added[column] = text, type_of(value)
        sub, own = self._one_row(of_bound[0])
        limit = ir.Column(self.fresh("bound"), type_of(bound))
        text = self._typed(bound, self.text(bound, {}, {id_of(of_bound[0]): quoted(own)}))
        node = ir.DynamicFilter(
            inputs=(
                given := self.project(read, added),
                ir.Project(inputs=(sub.node,), columns=(limit,), texts=(text,)),
            ),
            columns=given.columns,
            column=column,
            comparison=_SIGNS[kind],
            bound=limit.name,
            sql=fragment(condition),
        )
        return Read(self.only(node, read.node.names), read.names)

    def _typed(self, expression: Any, text: str) -> str:
        """The text with its type, where engines count the digits of decimals in different ways."""
        kind = type_of(expression)
        return f"CAST({text} AS {kind})" if kind.startswith("decimal") else text

    def _one_row(self, subquery: Any) -> tuple[Read, str]:
        """The rows of a scalar subquery, and the name of its column."""
        if items(subquery.outerAttrs()):
            raise refusal("a correlated subquery stays in an expression", "write it as a join", subquery)
        (attribute,) = items(subquery.plan().output())
        read = self.streamed(self.plan(subquery.plan(), None))
        return read, read.names[id_of(attribute)]

    def _subqueries(self, read: Read, expressions: Sequence[Any]) -> tuple[Read, dict[int, str]]:
        """Join the scalar subqueries of the expressions to the rows: the text of each, by its id."""
        replaced: dict[int, str] = {}
        for expression in expressions:
            for one in walk(expression):
                if kind_of(one) != "ScalarSubquery" or id_of(one) in replaced:
                    continue
                read = self.streamed(read)
                sub, own = self._one_row(one)
                column = self.fresh("scalar")
                kind = ir.Column(column, type_of(one))
                value = ir.Project(inputs=(sub.node,), columns=(kind,), texts=(quoted(own),))
                node = ir.Join(
                    inputs=(read.node, value),
                    columns=(*read.node.columns, kind),
                    how="single",
                    sql=fragment(one),
                )
                read = Read(node, read.names)
                replaced[id_of(one)] = quoted(column)
        return read, replaced

    def _aggregate(self, plan: Any, needed: Needed) -> Read:
        return AggregateReader(self, plan, needed, self.is_final).read()

    def _sort(self, plan: Any, needed: Needed) -> Read:
        return self.plan(plan.child(), needed)

    def _locallimit(self, plan: Any, needed: Needed) -> Read:
        return self.plan(plan.child(), needed)

    _windowgrouplimit = _locallimit  # the filter of a ranking keeps no more

    def _repartitionbyexpression(self, plan: Any, needed: Needed) -> Read:
        return self.plan(plan.child(), needed)

    _rebalancepartitions = _repartition = _resolvedhint = _subqueryalias = _repartitionbyexpression

    def _globallimit(self, plan: Any, needed: Needed) -> Read:
        limit, below, offset = int(plan.limitExpr().toString()), plan.child(), 0
        while kind_of(below) == "LocalLimit":
            below = below.child()
        if kind_of(below) == "Offset":
            offset, below = int(below.offsetExpr().toString()), below.child()
        if limit == 0:
            raise refusal("LIMIT 0 has no rows", "leave the query out", plan)
        projects, node = [], below
        while kind_of(node) == "Project":
            projects.append(node)
            node = node.child()
        if kind_of(node) != "Sort":
            child = self.plan(below, needed)
            self.notes.append("LIMIT without ORDER BY keeps the rows that come first")
            found: ir.Node = ir.Limit(
                inputs=(child.node,), columns=child.node.columns, order=(), limit=limit, offset=offset
            )
            return Read(found, child.names)
        child = self.plan(node.child(), None)
        added: dict[str, tuple[str, str]] = {}
        order = self.order(items(node.order()), child.names, added)
        given = self.project(child, added)
        found = ir.Limit(inputs=(given,), columns=given.columns, order=order, limit=limit, offset=offset)
        read = Read(self.only(found, child.node.names), child.names)
        for one in reversed(projects):
            read = self.projected(read, items(one.projectList()), {})
        return read

    def _offset(self, plan: Any, _: Needed) -> Read:
        raise refusal("OFFSET without LIMIT", "give a LIMIT, too", plan)

    def _union(self, plan: Any, needed: Needed) -> Read:
        output = items(plan.output())
        columns = tuple(self.column(one, f"{self.name(one)}_u") for one in output)
        # Where only the number of rows is read, there is no column.
        row = () if output else (ir.Column(self.fresh("row"), "int"),)
        parts = []
        for below in items(plan.children()):
            child = self.streamed(self.plan(below, None))
            texts = []
            for given, column in zip(items(below.output()), columns, strict=True):
                text = quoted(child.names[id_of(given)])
                texts.append(text if type_of(given) == column.type else f"CAST({text} AS {column.type})")
            project = ir.Project(inputs=(child.node,), columns=columns or row, texts=tuple(texts) or ("1",))
            parts.append(project)
        names = {id_of(one): column.name for one, column in zip(output, columns, strict=True)}
        return Read(ir.Union(inputs=tuple(parts), columns=columns or row), names)

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
        columns = tuple(
            self.column(raw.get(number, one), self.name(one)) for number, one in enumerate(output)
        )
        parts = []
        for part in projections:
            texts = []
            for one, column in zip(part, columns, strict=True):
                text = self.text(one, child.names)
                texts.append(text if type_of(one) == column.type else f"CAST({text} AS {column.type})")
            parts.append(ir.Project(inputs=(child.node,), columns=columns, texts=tuple(texts)))
        names = {id_of(one): column.name for one, column in zip(output, columns, strict=True)}
        if len(parts) == 1:
            return Read(parts[0], names)
        return Read(ir.Union(inputs=tuple(parts), columns=columns), names)

    def _generate(self, plan: Any, _: Needed) -> Read:
        child, generator = self.plan(plan.child(), None), plan.generator()
        output = items(plan.generatorOutput())
        made = tuple(self.column(one, self.name(one)) for one in output)
        names = {id_of(one): self.name(one) for one in output}
        if kind_of(generator) == "ReplicateRows":
            count, *values = children(generator)
            hidden = self.fresh("copy")
            given = self.project(child, {})
            columns = (*made, ir.Column(hidden, "bigint"))
            inner = ir.Project(
                inputs=(given,),
                columns=(*made, ir.Column(hidden, "bigint")),
                texts=(*(self.text(one, child.names) for one in values), self.text(count, child.names)),
            )
            copies = ir.Column(self.fresh("copy"), "bigint")
            node = ir.Explode(
                inputs=(inner,),
                columns=(*columns, copies),
                text=f"explode(sequence(1L, {quoted(hidden)}))",
                made=(copies.name,),
            )
            return Read(self.only(node, [one.name for one in made]), names)
        text = self.expressions.generator(generator, child.names)
        if plan.outer():
            text = re.sub(r"^(\w+)\(", r"\1_outer(", text)
        columns = (*child.node.columns, *made)
        node = ir.Explode(
            inputs=(child.node,), columns=columns, text=text, made=tuple(one.name for one in made)
        )
        return Read(node, {**child.names, **names})

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
        condition = option(plan.condition())
        read_by = ids_in(condition) if condition is not None else set()
        outputs = [{id_of(one) for one in items(side.output())} for side in (plan.left(), plan.right())]
        wanted: list[Needed] = [None if needed is None else (needed | read_by) & own for own in outputs]
        if how in ("semi", "anti", "mark"):
            wanted[1] = read_by & outputs[1]
        sides = [self.plan(plan.left(), wanted[0]), self.plan(plan.right(), wanted[1])]
        pairs, rest = equalities(conjuncts(condition), outputs)
        is_safe = bool(pairs) and all(one[2] for one in pairs)
        inexact = any("float" in type_of(one[0]) or "double" in type_of(one[0]) for one in pairs)
        is_plain = not (is_safe or inexact or (rest and how != "inner"))
        sides = [
            side if is_plain and how in stateless else self.streamed(side)
            for side, stateless in zip(sides, _STATELESS, strict=True)
        ]
        interval = interval_of(self, plan, sides, outputs) if how not in ("mark", "single") else None
        rest = [one for one in rest if interval is None or one not in interval.used]
        added: list[dict[str, tuple[str, str]]] = [{}, {}]
        keys = self._join_key(pairs, sides, added)
        behind = rest if how == "inner" else []
        checked = None
        if rest and how != "inner":
            checked = ResidualReader(self, sides, outputs, added).read(rest)
        shown = ["semi", "anti"]
        given = [self.project(side, more) for side, more in zip(sides, added, strict=True)]
        columns = given[0].columns if how in (*shown, "mark") else (*given[0].columns, *given[1].columns)
        names = {**sides[0].names} if how in (*shown, "mark") else {**sides[0].names, **sides[1].names}
        kept = [one.name for one in sides[0].node.columns]
        kept += [] if how in (*shown, "mark") else [one.name for one in sides[1].node.columns]
        if mark is not None:
            columns = (*columns, ir.Column(self.name(mark), "boolean"))
            names[id_of(mark)] = self.name(mark)
            kept.append(self.name(mark))
        if not pairs:
            self.notes.append(
                f"{fragment(plan) or 'a join'}: a join without an equality runs in one partition"
            )
        joined = ir.Join(
            inputs=(given[0], given[1]),
            columns=columns,
            how=how,
            left_key=tuple(keys[0]),
            right_key=tuple(keys[1]),
            null_safe=is_safe,
            condition=checked,
            sql=fragment(plan),
        )
        node = joined if interval is None else interval_join(joined, interval)
        if behind:
            texts = tuple(self.text(one, names) for one in behind)
            node = ir.Filter(inputs=(node,), columns=node.columns, conditions=texts)
        return Read(self.only(node, kept), names)

    def _join_key(
        self,
        pairs: Sequence[tuple[Any, Any, bool]],
        sides: Sequence[Read],
        added: Sequence[dict[str, tuple[str, str]]],
    ) -> list[list[str]]:
        """The key columns of both sides. A null-safe equality next to others becomes two: whether the value is null,
        and the value with a default for null. A struct becomes its leaves."""
        keys: list[list[str]] = [[], []]
        safe = all(one[2] for one in pairs)
        literal = self.catalyst.jvm.org.apache.spark.sql.catalyst.expressions.Literal
        for *both, is_safe in pairs:
            for side, one in enumerate(both):
                text = self.text(one, sides[side].names)
                own = sides[side].names[id_of(one)] if kind_of(one) == "AttributeReference" else ""
                if not type_of(one).startswith("struct<"):
                    parts = [(text, one.dataType(), is_safe)]
                else:  # a null struct equals nothing, but null fields are equal
                    null, *fields = leaves(text, one.dataType())
                    first = null[0] if is_safe else f"IF({null[0]}, NULL, TRUE)"
                    parts, own = [(first, None, False), *((*field, True) for field in fields)], ""
                for part, kind, by_null in parts:
                    if by_null and not safe and kind is not None:
                        default = literal.default(kind).sql()
                        keys[side].append(self.fresh("null"))
                        added[side][keys[side][-1]] = f"({part}) IS NULL", "boolean"
                        part = f"coalesce({part}, {default})"
                    elif own and own not in keys[side]:
                        keys[side].append(own)
                        continue
                    keys[side].append(self.fresh("key"))
                    kind_text = "boolean" if kind is None else str(kind.catalogString())
                    added[side][keys[side][-1]] = part, kind_text
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
                "write ASOF [LEFT] JOIN r MATCH_CONDITION (l.time >= r.time) ON l.key = r.key, with columns alone",
                plan,
            )
        sides = [self.plan(plan.left(), None), self.plan(plan.right(), None)]
        keys = [tuple(sides[n].names[id_of(pair[n])] for pair in pairs) for n in (0, 1)]
        node = ir.TemporalJoin(
            inputs=(sides[0].node, sides[1].node),
            columns=(*sides[0].node.columns, *sides[1].node.columns),
            how=how,
            left_key=keys[0],
            right_key=keys[1],
            times=(sides[0].names[id_of(times[0])], sides[1].names[id_of(times[1])]),
        )
        return Read(node, {**sides[0].names, **sides[1].names})

    # -- rankings and windows -----------------------------------------------------------------------------

    def _ranked(self, plan: Any, conditions: Sequence[Any], needed: Needed) -> Read | None:
        """Rows chosen by their number: a ranking that keeps the best ones only. None if it is not of this form."""
        window = plan.child()
        if kind_of(window) != "Window" or not self._reads_source(window):
            return None
        # Spark also lists columns of the outer query, which the rows have anyway.
        made = [one for one in items(window.windowExpressions()) if kind_of(one) == "Alias"]
        if len(made) != 1:
            return None
        (alias,) = made
        own, order = id_of(alias), items(window.orderSpec())
        function = _RANKS.get(kind_of(alias.child().windowFunction()))
        if function is None:
            return None
        given_below, projects = window.child(), list[Any]()
        if not order:  # of LIMIT in a correlated subquery, for which Spark sorts the rows before
            while kind_of(given_below) == "Project":
                projects.append(given_below)
                given_below = given_below.child()
            if kind_of(given_below) == "Sort":
                order, given_below = items(given_below.order()), given_below.child()
            else:
                given_below, projects = window.child(), []
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
        below = None
        if needed is not None and order and not projects:
            parts = [*rest, *order, *items(window.partitionSpec())]
            below = needed.union(*map(ids_in, parts)) - {own}
        child = self.plan(given_below, below)
        if projects and (
            numbered or not set().union(*map(ids_in, items(window.partitionSpec()))) <= set(child.names)
        ):
            return None
        added: dict[str, tuple[str, str]] = {}
        by = self.order(order, child.names, added)
        if not by:  # any rows are right
            flat = [
                one for one in child.node.columns if one.type.split("<")[0] not in ("array", "map", "struct")
            ]
            by = tuple(ir.Order(one.name) for one in flat)
        key = self.key_columns(items(window.partitionSpec()), child.names, added)
        given = self.project(child, added)
        number = self.name(alias) if numbered else None
        more = () if number is None else (ir.Column(number, "int"),)
        node: ir.Node = ir.Rank(
            inputs=(given,),
            columns=(*given.columns, *more),
            key=tuple(key),
            order=by,
            limit=limit - offset,
            offset=offset,
            function=function,
            number=number,
            sql=fragment(plan),
        )
        names = dict(child.names) if number is None else {**child.names, own: number}
        if projects:
            read = Read(self.only(node, child.node.names), names)
            for one in reversed(projects):
                read = self.projected(read, items(one.projectList()), {})
            return self._filtered(read, rest)
        found = self._filtered(Read(node, names), rest)
        return Read(self.only(found.node, [*child.node.names, *([] if number is None else [number])]), names)

    def _window(self, plan: Any, needed: Needed) -> Read:
        from asyncstate.sql.over import OverReader

        return OverReader(self, plan, needed).read()


def source_of(leaf: Any) -> str | None:
    """The source of a leaf of a plan."""
    output = items(leaf.output()) if kind_of(leaf) == "LogicalRDD" else []
    is_ours = bool(output) and bool(output[0].metadata().contains(SOURCE))
    return str(output[0].metadata().getString(SOURCE)) if is_ours else None


def equalities(
    conditions: Sequence[Any], outputs: Sequence[set[int]]
) -> tuple[list[tuple[Any, Any, bool]], list[Any]]:
    """The equalities of the left and the right side, (left, right, null-safe), and the other conditions."""
    pairs, rest = [], []
    for one in conditions:
        kind = kind_of(one)
        if kind in ("EqualTo", "EqualNullSafe"):
            a, b = one.left(), one.right()
            of_a, of_b = ids_in(a), ids_in(b)
            if of_a and of_b and of_a <= outputs[0] and of_b <= outputs[1]:
                pairs.append((a, b, kind == "EqualNullSafe"))
                continue
            if of_a and of_b and of_a <= outputs[1] and of_b <= outputs[0]:
                pairs.append((b, a, kind == "EqualNullSafe"))
                continue
        rest.append(one)
    return pairs, rest


def _bound(condition: Any, own: int) -> tuple[int | None, int | None] | None:
    """The (lowest, highest) number that a condition on attribute ``own`` allows; None if it is another condition."""
    kind = kind_of(condition)
    if (
        kind == "IsNotNull"
        and kind_of(condition.child()) == "AttributeReference"
        and id_of(condition.child()) == own
    ):
        return None, None
    if kind not in (*_FLIPPED, "EqualTo"):
        return None
    a, b = condition.left(), condition.right()
    if kind_of(a) == "Literal":
        a, b, kind = b, a, _FLIPPED.get(kind, kind)
    if kind_of(a) != "AttributeReference" or id_of(a) != own or kind_of(b) != "Literal":
        return None
    n = int(b.toString())
    return {
        "LessThan": (None, n - 1),
        "LessThanOrEqual": (None, n),
        "EqualTo": (n, n),
        "GreaterThan": (n + 1, None),
        "GreaterThanOrEqual": (n, None),
    }[kind]
