"""Statements over the streams of a job.

Owns: ``SqlContext``: sources, views and sinks by name, and what a statement does with them; ``Compiled``, a statement
as it is stored.
Invariant: a statement is compiled before anything is added to the graph, so one that is refused changes nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import from_arrow_schema

from asyncstate.errors import AsyncStateError, SqlError
from asyncstate.sql import ir
from asyncstate.sql.build import Builder, Built
from asyncstate.sql.catalyst import Catalyst, items
from asyncstate.sql.explained import explained
from asyncstate.sql.expressions import kind_of, refusal
from asyncstate.sql.plans import Reader
from asyncstate.sql.rules import compacted, event_time_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.dataflow import Stream

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Compiled:
    """A compiled query. ``tables``: the columns of each source and view that it reads, as Arrow schemas."""

    name: str
    text: str
    root: ir.Node
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The text of a stored plan."""
        return json.dumps(
            {
                "format": ir.FORMAT,
                "name": self.name,
                "sql": self.text,
                "notes": self.notes,
                "nodes": ir.to_json(self.root),
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> Compiled:
        """The plan that ``to_json`` wrote. Raises SqlError for one of another version."""
        given = json.loads(text)
        if given.get("format") != ir.FORMAT:
            raise SqlError(
                f"a stored plan has the format {given.get('format')!r}, not {ir.FORMAT}; compile it again"
            )
        return cls(given["name"], given["sql"], ir.from_json(given["nodes"]), tuple(given["notes"]))


@dataclass
class Table:
    """A source or a stored view."""

    built: Built
    event_time: str | None = None
    has_delay: bool = False
    has_sequence: bool = False


class SqlContext:
    """The tables of a job, and its statements.

    ``spark``: a classic session; None: only stored plans can be built.
    """

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark
        self._catalyst: Catalyst | None = None
        self.tables: dict[str, Table] = {}
        self.sinks: dict[str, Any] = {}
        self.compiled: dict[str, Compiled] = {}

    @property
    def catalyst(self) -> Catalyst:
        """The session in which statements are analyzed. Raises EnvironmentSetupError over Spark Connect."""
        if self._catalyst is None:
            if self._spark is None:
                raise SqlError("a statement is compiled by a Spark session; give one, or run a stored plan")
            self._catalyst = Catalyst(self._spark)
            for name, table in self.tables.items():
                self._catalyst.add(name, from_arrow_schema(table.built.facts.schema))
        return self._catalyst

    def add(self, name: str, table: Table) -> None:
        """Make a stream known by a name."""
        self.tables[name] = table
        if self._catalyst is not None:
            self._catalyst.add(name, from_arrow_schema(table.built.facts.schema))

    def add_sink(self, name: str, sink: Any) -> None:
        """Make a sink known to INSERT INTO."""
        if name in self.sinks or name in self.tables:
            raise SqlError(f"there is '{name}' already; give the sink another name")
        self.sinks[name] = sink

    def run(self, text: str, name: str | None = None) -> Any:
        """Run a statement: a query gives its stream, EXPLAIN a text, and a view that is inlined nothing."""
        parsed = self.catalyst.parsed(text)
        kind = kind_of(parsed)
        if kind == "ExplainCommand":
            return explained(self.compile(parsed.logicalPlan(), text, name or "explain"))
        if kind in ("CreateView", "CreateViewCommand"):
            self._view(parsed, text)
            return None
        if kind == "CreateMaterializedViewAsSelect":
            own = str(items(items(parsed.children())[0].nameParts())[-1])
            return self.query(items(parsed.children())[1], text, own, view=True).stream
        if kind == "InsertIntoStatement":
            return self._insert(parsed, text, name)
        if kind.endswith("Command") or kind.startswith(
            ("Create", "Drop", "Alter", "Update", "Delete", "Merge")
        ):
            raise SqlError(
                f"{kind} is no statement of a stream; use SELECT, CREATE VIEW, CREATE MATERIALIZED VIEW, INSERT INTO "
                "or EXPLAIN"
            )
        own = name or f"sql-{1 + sum(one.startswith('sql-') for one in self.compiled)}"
        return self.query(parsed, text, own, view=name is not None).stream

    def compile(self, parsed: Any, text: str, name: str) -> Compiled:
        """Compile a parsed query."""
        analyzed = self.catalyst.analyzed(parsed, text)
        plan = self.catalyst.optimized(analyzed)
        reader = Reader(self.catalyst, self._is_final)
        root = compacted(reader.read(plan))
        self._check_volatile(reader, root)
        return Compiled(name, text, root, tuple(dict.fromkeys(reader.notes)))

    def _check_volatile(self, reader: Reader, root: ir.Node) -> None:
        """Refuse values that differ between evaluations, unless a row is evaluated once and never retracted."""
        rowwise = ir.Scan | ir.Project | ir.Filter | ir.Union | ir.Explode
        once = all(
            isinstance(node, rowwise)
            and (not isinstance(node, ir.Scan) or self.tables[node.source].built.changes.is_insert_only)
            for node in ir.walk(root)
        )
        if reader.expressions.volatile and not once:
            one = reader.expressions.volatile[0]
            raise refusal(
                f"{one.sql()} differs from one evaluation to the next, so a row that is retracted would not be found",
                "put the value into a column of the source",
                one,
            )

    def query(self, parsed: Any, text: str, name: str, *, view: bool) -> Built:
        """Compile and build a query; ``view``: later statements know it by its name."""
        if name in self.compiled or (view and name in self.tables):
            raise SqlError(f"there is '{name}' already; give the statement another name")
        compiled = self.compile(parsed, text, name)
        built = self.build(compiled)
        if view:
            self.add(name, Table(built))
        return built

    def build(self, compiled: Compiled) -> Built:
        """Add the operators of a compiled query to the graph."""
        tables = {
            node.source: self._read(node.source)
            for node in ir.walk(compiled.root)
            if isinstance(node, ir.Scan)
        }
        built = Builder(tables, compiled.name).build(compiled.root)
        self.compiled[compiled.name] = compiled
        return built

    def _read(self, name: str) -> Built:
        """The rows of a table; upserts as a full changelog."""
        table = self.tables[name]
        if table.has_sequence and not table.built.changes.is_upsert:
            raise SqlError(
                f"source '{name}' has a sequence, which orders changes of a key; declare mode='upsert' and "
                "primary_key= at the source"
            )
        if table.built.changes.is_upsert:
            self.tables[name] = table = replace(table, built=Builder({}, name).normalized(table.built))
        return table.built

    def _is_final(self, node: ir.Node, column: str) -> bool:
        found = event_time_source(node, column)
        if found is None:
            return False
        source, own = found
        table = self.tables[source]
        return table.event_time == own and table.has_delay and table.built.changes.is_insert_only

    def _view(self, parsed: Any, text: str) -> None:
        if kind_of(parsed) == "CreateViewCommand":
            name, query = str(parsed.name().table()), parsed.plan()
        else:
            name, query = str(items(items(parsed.children())[0].nameParts())[-1]), items(parsed.children())[1]
        if name in self.tables:
            raise SqlError(f"there is a table '{name}' already; give the view another name")
        self.catalyst.rows(query, text).createOrReplaceTempView(name)

    def _insert(self, parsed: Any, text: str, name: str | None) -> Stream:
        target = str(items(parsed.table().multipartIdentifier())[-1])
        if target not in self.sinks:
            known = ", ".join(self.sinks) or "none"
            raise SqlError(
                f"there is no sink '{target}'; there are: {known}. Declare it with job.sink(name, target)"
            )
        sink, own = self.sinks[target], name or target
        built = self.query(parsed.query(), text, own, view=False)
        keys = getattr(sink, "keys", None)
        if keys and not built.changes.identifies(keys):
            built = Builder({}, own).materialized(built, keys)
        check = getattr(sink, "check_changes", None)
        if callable(check):
            try:
                check(built.changes)
            except AsyncStateError as error:
                raise SqlError(f"the sink '{target}' does not take these rows: {error}") from error
        return built.stream.to(sink, name=own)
