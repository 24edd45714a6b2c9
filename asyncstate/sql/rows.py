"""The rows that a part of a statement makes, while it is read.

Owns: ``Read``, a node and its columns; ``Given``, what an operator reads; ``source_of`` and ``own_name``, of leaves.
Invariant: what an operator computes of a row before it works is a column of its own, under a name that is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.catalyst import COLUMN, SOURCE, items
from asyncstate.sql.expressions import id_of, kind_of, leaves, type_of

if TYPE_CHECKING:
    from asyncstate.sql.plans import Reader

Needed = set[int] | None
"""The ids of the columns that are read; None: all."""


@dataclass(frozen=True)
class Read:
    """A node, and the names of its columns by Catalyst's ids."""

    node: ir.Node
    names: Mapping[int, str]

    @property
    def is_constant(self) -> bool:
        """Whether its rows never change."""
        return isinstance(self.node, ir.Constant)

    def where(self, conditions: Iterable[str]) -> Read:
        """The rows for which all conditions are true."""
        return Read(self.node.where(conditions), self.names)

    def only(self, names: Sequence[str]) -> Read:
        """The rows with these columns alone."""
        if tuple(names) == self.node.names:
            return self
        made = {ir.Column(name, self.node.type_of(name)): quoted(name) for name in names}
        found = {own: name for own, name in self.names.items() if name in names}
        return Read(ir.Project.of(self.node, made), found)

    def kept(self, needed: Needed) -> Read:
        """The rows with the columns that are read alone; with all if that is none of them."""
        names = {name for own, name in self.names.items() if needed is None or own in needed}
        is_all = needed is None or not names or self.is_constant
        return self if is_all else self.only([name for name in self.node.names if name in names])


class Given:
    """What an operator reads: the columns of ``read``, and ``added`` ones, (text, type) by name. ``replaced``: the
    texts of subqueries, by id."""

    def __init__(self, reader: Reader, read: Read, replaced: Mapping[int, str] | None = None) -> None:
        self.reader, self.read = reader, read
        self.added: dict[str, tuple[str, str]] = {}
        self._replaced = replaced
        self._arguments: dict[str, str] = {}

    def node(self) -> ir.Node:
        """The rows with all of these columns."""
        given = self.read.node
        if not self.added:
            return given
        made = {one: quoted(one.name) for one in given.columns}
        made |= {ir.Column(name, kind): text for name, (text, kind) in self.added.items()}
        if isinstance(given, ir.Constant):
            rows = self.reader.catalyst.session.createDataFrame(given.table)
            named = [f"{text} AS {quoted(one.name)}" for one, text in made.items()]
            return ir.Constant.of(rows.selectExpr(*named).toArrow(), tuple(made))
        return ir.Project.of(given, made)

    def text(self, e: Any) -> str:
        """The text of an expression."""
        return self.reader.text(e, self.read.names, self._replaced)

    def computed(self, what: str, text: str, kind: str) -> str:
        """A new column."""
        name = self.reader.fresh(what)
        self.added[name] = text, kind
        return name

    def column(self, what: str, e: Any) -> str:
        """The column that an expression is, or a new one."""
        if kind_of(e) == "AttributeReference":
            return self.read.names[id_of(e)]
        return self.computed(what, self.text(e), type_of(e))

    def argument(self, e: Any) -> str:
        """The column of an argument of a function."""
        if kind_of(e) == "AttributeReference":
            return self.read.names[id_of(e)]
        return self.shared(self.text(e), type_of(e))

    def shared(self, text: str, kind: str) -> str:
        """The column of an argument with this text, the same one each time."""
        if text not in self._arguments:
            self._arguments[text] = self.computed("argument", text, kind)
        return self._arguments[text]

    def key(self, expressions: Iterable[Any]) -> tuple[str, ...]:
        """The columns of a key; of a struct, its leaves."""
        found = []
        for one in expressions:
            if type_of(one).startswith("struct<"):
                found += [self.computed("key", *leaf[:2]) for leaf in leaves(self.text(one), one.dataType())]
            else:
                found.append(self.column("key", one))
        return tuple(dict.fromkeys(found))

    def order(
        self, specs: Iterable[Any], column_of: Callable[[Any], str] | None = None
    ) -> tuple[ir.Order, ...]:
        """The columns of an ORDER BY, each once. A struct becomes its leaves, of which nulls come before all other
        values. ``column_of``: the column of an expression; without it, a new one."""
        column_of = column_of or partial(self.column, "order")
        found = dict[str, ir.Order]()
        for spec in specs:
            one, descending = spec.child(), spec.direction().toString() != "Ascending"
            first = "NullsFirst" in spec.nullOrdering().toString()
            if not type_of(one).startswith("struct<"):
                column = column_of(one)
                found.setdefault(column, ir.Order(column, descending, first))
                continue
            for text, kind, is_value in leaves(self.text(one), one.dataType()):
                column = self.computed("order", text, kind)
                if is_value is None:  # whether a struct is null
                    found[column] = ir.Order(column, first)
                    first = not descending
                else:
                    found[column] = ir.Order(column, descending, not descending)
        return tuple(found.values())


def source_of(leaf: Any) -> str | None:
    """The source of a leaf of a plan."""
    output = items(leaf.output()) if kind_of(leaf) == "LogicalRDD" else []
    is_ours = bool(output) and bool(output[0].metadata().contains(SOURCE))
    return str(output[0].metadata().getString(SOURCE)) if is_ours else None


def own_name(attribute: Any) -> str:
    """The name of a column of a leaf at its source."""
    return str(attribute.metadata().getString(COLUMN))
