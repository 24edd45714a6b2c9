"""Statements over the streams of a job.

Owns: ``SqlContext``: sources, views and sinks by name, and what a statement does with them; ``Compiled``, a statement
as it is stored.
Invariant: a statement that is refused changes nothing: neither the graph, nor what later statements know.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import from_arrow_schema

from asyncstate import operators as ops
from asyncstate.codec import SchemaLike, read_schema
from asyncstate.errors import AsyncStateError, SqlError
from asyncstate.spark.column_types import quoted
from asyncstate.sql import ir
from asyncstate.sql.build import Builder, Built, LookupTable
from asyncstate.sql.catalyst import Catalyst, items
from asyncstate.sql.explained import explained
from asyncstate.sql.expressions import kind_of, refusal
from asyncstate.sql.plans import Reader
from asyncstate.sql.rules import compacted, event_time_source
from asyncstate.sql.syntax import Syntax
from asyncstate.state.expiring.ttl import Ttl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.dataflow import Stream

_SETTINGS: Final = ("spark.sql.ansi.enabled", "spark.sql.session.timeZone", "spark.sql.caseSensitive")


@dataclass(frozen=True)
class Compiled:
    """A compiled query. ``tables``: the columns of each source and view that it reads, as Arrow schemas."""

    name: str
    text: str
    root: ir.Node
    notes: tuple[str, ...] = ()
    made_from: str = ""
    """A digest of all that the plan depends on: texts of the statement and of views, columns, session settings."""

    def to_json(self) -> str:
        """The text of a stored plan."""
        return json.dumps(
            {
                "format": ir.FORMAT,
                "name": self.name,
                "sql": self.text,
                "from": self.made_from,
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
        root, notes = ir.from_json(given["nodes"]), tuple(given["notes"])
        return cls(given["name"], given["sql"], root, notes, given["from"])


def is_readable(text: bytes) -> bool:
    """Whether a stored plan has the format of this version."""
    return bool(json.loads(text).get("format") == ir.FORMAT)


@dataclass
class Table:
    """A source or a stored view."""

    built: Built
    event_time: str | None = None
    has_delay: bool = False
    has_sequence: bool = False

    @property
    def facts(self) -> list[Any]:
        """All that a plan over it depends on."""
        built = self.built
        schema, changes = str(built.facts.schema.remove_metadata()), built.changes.text
        return [schema, changes, self.event_time, self.has_delay, self.has_sequence]


class SqlContext:
    """The tables of a job, and its statements.

    ``spark``: a classic session; None: only plans can be built. ``stored``: plans of an earlier run, by name, which are
    used as long as nothing that they were made from has changed.
    """

    def __init__(self, spark: SparkSession | None, stored: Mapping[str, Compiled] | None = None) -> None:
        self._spark = spark
        self._stored = dict(stored or {})
        self._views: dict[str, str] = {}
        self._syntax = Syntax(self)
        self._catalyst: Catalyst | None = None
        self.tables: dict[str, Table] = {}
        self.lookups: dict[str, LookupTable] = {}
        self.sinks: dict[str, Any] = {}
        self.compiled: dict[str, Compiled] = {}
        self._updating = False

    @property
    def catalyst(self) -> Catalyst:
        """The session in which statements are analyzed. Raises EnvironmentSetupError over Spark Connect."""
        if self._catalyst is None:
            if self._spark is None:
                raise SqlError("a statement is compiled by a Spark session; give one, or run a stored plan")
            self._catalyst = Catalyst(self._spark)
            for name, table in self.tables.items():
                self._catalyst.add(name, from_arrow_schema(table.built.facts.schema))
            for name, lookup in self.lookups.items():
                self._catalyst.add(name, from_arrow_schema(lookup.schema))
        return self._catalyst

    def check_free(self, name: str) -> None:
        """Raise SqlError for a name that is taken. Letters of another case are the same name, as in Spark."""
        if name.lower() in {one.lower() for one in (*self.tables, *self._views, *self.sinks, *self.lookups)}:
            raise SqlError(f"there is '{name}' already; give another name")

    def add(self, name: str, table: Table) -> None:
        """Make a stream known by a name."""
        self.check_free(name)
        self.tables[name] = table
        if self._catalyst is not None:
            self._catalyst.add(name, from_arrow_schema(table.built.facts.schema))

    def add_lookup(
        self, name: str, lookup: Any, key: SchemaLike, columns: SchemaLike, options: Mapping[str, Any]
    ) -> None:
        """Make a lookup known by a name. Raises SqlError for arguments that do not fit."""
        self.check_free(name)
        try:
            sent, back = (read_schema(one, f"lookup '{name}'") for one in (key, columns))
            found = LookupTable(lookup, sent, back, options)
            names = [one.lower() for one in found.schema.names]
            ops.LookupJoin(lookup, found.columns, on=found.key.names, **options)
        except (AsyncStateError, TypeError, AttributeError) as error:
            raise SqlError(f"lookup '{name}': {error}") from error
        if len(set(names)) < len(names) or set(options) & {"how", "where", "suffixes", "ttl"}:
            raise SqlError(
                f"lookup '{name}': its columns are {', '.join(names)} and its options {', '.join(options)}; give "
                "columns of different names, and leave to statements what they say: how, where, suffixes, ttl"
            )
        self.lookups[name] = found
        if self._catalyst is not None:
            self._catalyst.add(name, from_arrow_schema(found.schema))

    def table(self, name: str) -> Table | None:
        """The source or view of a name in lower case."""
        return next((table for own, table in self.tables.items() if own.lower() == name), None)

    def add_sink(self, name: str, sink: Any) -> None:
        """Make a sink known to INSERT INTO."""
        self.check_free(name)
        if not callable(sink) and not callable(getattr(sink, "write", None)):
            raise SqlError(
                f"sink '{name}' is {sink!r}; give a function (rows, batch_id) or an object with a method write"
            )
        self.sinks[name] = sink

    def run(
        self, text: str, name: str | None = None, state_ttl: Ttl = None, windows: str | None = None
    ) -> Any:
        """Run a statement: a query gives its stream, EXPLAIN a text, and a view that is inlined nothing."""
        if windows not in (None, "updating"):
            raise SqlError(f"windows is {windows!r}; give 'updating', or leave it out")
        with self._all_or_nothing():
            self._updating = windows is not None
            return self._run(text, name, state_ttl)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If the block fails, the graph and the names are as before."""
        flow = next((table.built.stream._flow for table in self.tables.values()), None)
        nodes, tables, compiled = len(flow.nodes) if flow else 0, dict(self.tables), dict(self.compiled)
        parts = dict(self._syntax.parts)
        try:
            yield
        except BaseException:
            if flow is not None:
                del flow.nodes[nodes:]
            self.tables, self.compiled, self._syntax.parts = tables, compiled, parts
            raise
        finally:
            self._updating = False

    def _run(self, text: str, name: str | None, state_ttl: Ttl) -> Any:
        parsed = self._syntax.parsed(text)
        kind = kind_of(parsed)
        if kind == "ExplainCommand":
            return explained(self.compile(parsed.logicalPlan(), text, name or "explain"))
        if kind in ("CreateView", "CreateViewCommand"):
            _check_no_argument("CREATE VIEW", name=name, state_ttl=state_ttl, windows=self._updating or None)
            self._view(parsed, text)
            return None
        if kind == "CreateMaterializedViewAsSelect":
            _check_no_argument("CREATE MATERIALIZED VIEW", name=name)
            _check_none("CREATE MATERIALIZED VIEW", "a column list", parsed.columns().size() > 0)
            own = str(items(items(parsed.children())[0].nameParts())[-1])
            return self.query(items(parsed.children())[1], text, own, view=True, state_ttl=state_ttl).stream
        if kind == "InsertIntoStatement":
            return self._insert(parsed, text, name, state_ttl)
        if kind.endswith("Command") or kind.startswith(
            ("Create", "Drop", "Alter", "Update", "Delete", "Merge")
        ):
            raise SqlError(
                f"{kind} is no statement of a stream; use SELECT, CREATE VIEW, CREATE MATERIALIZED VIEW, INSERT INTO "
                "or EXPLAIN"
            )
        own = name or f"sql-{1 + sum(one.startswith('sql-') for one in self.compiled)}"
        return self.query(parsed, text, own, view=name is not None, state_ttl=state_ttl).stream

    def compile(self, parsed: Any, text: str, name: str) -> Compiled:
        """Compile a parsed query."""
        analyzed = self.catalyst.analyzed(parsed, text)
        plan = self.catalyst.optimized(analyzed)
        reader = Reader(self.catalyst, self._is_final, self._syntax, self.lookups)
        root = compacted(reader.read(plan), self._is_final)
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

    def query(self, parsed: Any, text: str, name: str, *, view: bool, state_ttl: Ttl = None) -> Built:
        """Compile and build a query; ``view``: later statements know it by its name."""
        if name in self.compiled or (view and name in self.tables):
            raise SqlError(f"there is '{name}' already; give the statement another name")
        if view:
            self.check_free(name)
        digest, stored = self._digest(text), self._stored.get(name)
        if stored is not None and stored.made_from == digest:
            compiled = stored
        else:
            compiled = replace(self.compile(parsed, text, name), made_from=digest)
        built = self.build(compiled, state_ttl)
        if view:
            self.add(name, Table(built))
        return built

    def build(self, compiled: Compiled, state_ttl: Ttl = None) -> Built:
        """Add the operators of a compiled query to the graph; ``state_ttl``: how long their state is kept."""
        read = dict.fromkeys(node.source for node in ir.walk(compiled.root) if isinstance(node, ir.Scan))
        tables = {name: self._read(name) for name in read}
        builder = Builder(tables, compiled.name, state_ttl, self.lookups)
        built = builder.build(compiled.root)
        builder.check_kept(compiled.root)
        self.compiled[compiled.name] = compiled
        return built

    def _digest(self, text: str) -> str:
        """Of all that a plan of this text depends on, but Spark's version: a stored plan outlives that."""
        assert self._spark is not None
        settings = [self._spark.conf.get(key) for key in _SETTINGS]
        tables = {name: table.facts for name, table in self.tables.items()}
        lookups = {name: str(one.schema.remove_metadata()) for name, one in self.lookups.items()}
        made_from = json.dumps([text, self._views, tables, lookups, self._updating, settings], sort_keys=True)
        return hashlib.sha256(made_from.encode()).hexdigest()

    def _read(self, name: str) -> Built:
        """The rows of a table; upserts as a full changelog."""
        table = self.tables[name]
        if table.has_sequence and not table.built.changes.is_upsert:
            raise SqlError(
                f"source '{name}' has a sequence, which orders changes of a key; declare mode='upsert' and "
                "primary_key= at the source"
            )
        if table.built.changes.is_upsert:
            normal = Builder({}, name).normalized(table.built)
            self.tables[name] = table = replace(table, built=normal, has_sequence=False)
        return table.built

    def _is_final(self, node: ir.Node, column: str) -> bool:
        found = event_time_source(node, column)
        if found is None or self._updating:
            return False
        source, own = found
        table = self.tables[source]
        return table.event_time == own and table.has_delay and table.built.changes.is_insert_only

    def _view(self, parsed: Any, text: str) -> None:
        if kind_of(parsed) == "CreateViewCommand":
            name, query = str(parsed.name().table()), parsed.plan()
        else:
            name, query = str(items(items(parsed.children())[0].nameParts())[-1]), items(parsed.children())[1]
        _check_none("CREATE VIEW", "a column list", parsed.userSpecifiedColumns().size() > 0)
        if name not in self._views or not parsed.replace():
            self.check_free(name)
        self.catalyst.rows(query, text).createOrReplaceTempView(quoted(name))
        self._views[name] = text

    def _insert(self, parsed: Any, text: str, name: str | None, state_ttl: Ttl) -> Stream:
        _check_none("INSERT INTO", "a column list", parsed.userSpecifiedCols().size() > 0)
        _check_none("INSERT INTO", "OVERWRITE", parsed.overwrite())
        _check_none("INSERT INTO", "PARTITION", parsed.partitionSpec().size() > 0)
        _check_none("INSERT INTO", "BY NAME", parsed.byName())
        target = str(items(parsed.table().multipartIdentifier())[-1])
        if target not in self.sinks:
            known = ", ".join(self.sinks) or "none"
            raise SqlError(
                f"there is no sink '{target}'; there are: {known}. Declare it with job.sink(name, target)"
            )
        sink, own = self.sinks[target], name or target
        built = self.query(parsed.query(), text, own, view=False, state_ttl=state_ttl)
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


def _check_none(statement: str, what: str, has: bool) -> None:
    """Refuse a part of a statement that would otherwise be ignored."""
    if has:
        raise SqlError(f"{statement} with {what} is not supported; name and order the columns in the SELECT")


def _check_no_argument(statement: str, **given: Any) -> None:
    """Refuse an argument of ``job.sql`` that would otherwise be ignored."""
    for name, value in given.items():
        if value is not None:
            raise SqlError(
                f"{name}= has no effect on {statement}; give it to the statements that read the view"
            )
