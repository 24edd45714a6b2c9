"""Statements over the streams of a job.

Owns: ``SqlContext``: sources, views and sinks by name, and what a statement does with them; ``Compiled``, a statement
as it is stored.
Invariant: a statement that is refused changes nothing: neither the graph, nor what later statements know.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema

from asyncstate import operators as ops
from asyncstate.codec import SchemaLike, read_schema
from asyncstate.dataflow.nodes import Times
from asyncstate.errors import AsyncStateError, SqlError
from asyncstate.runtime import FILE_NAME_RULE, names_files
from asyncstate.sql import ir
from asyncstate.sql.build import Builder, Built, LookupTable
from asyncstate.sql.catalyst import SETTINGS, Catalyst, items
from asyncstate.sql.changes import STREAM, Operators, digests, in_local_time
from asyncstate.sql.explained import explained
from asyncstate.sql.expressions import kind_of, refusal
from asyncstate.sql.plans import Reader, read_plan
from asyncstate.sql.rankings import may_be_best_rows
from asyncstate.sql.rules import compacted, event_time_sources
from asyncstate.sql.syntax import Syntax
from asyncstate.state.expiring.ttl import Ttl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncstate.dataflow import Stream


_COMPILE: Final = "asyncstate sql compile job.sql -o plan.json"
_STATE_TTL: Final = "state_ttl"


@dataclass(frozen=True)
class Compiled:
    """A statement as it is stored. ``kind``: query, view (which later statements know by its name), inlined (a view
    without a plan of its own) or insert, into the sink ``target``."""

    name: str
    text: str
    root: ir.Node | None
    notes: tuple[str, ...] = ()
    made_from: Mapping[str, Any] = field(default_factory=dict)
    """All that the plan depends on: the statement, views, facts of tables, session settings."""
    kind: str = "query"
    target: str = ""
    operators: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """The uids and nodes of its operators, as ``Operators`` has them."""
    lineage: Mapping[str, str] = field(default_factory=dict)
    """A digest of each view that it reads."""
    generation: int = 1
    dropped: tuple[str, ...] = ()
    """The uids of operators that continue with empty state under other ones."""

    @property
    def nodes(self) -> list[ir.Node]:
        """Those of its plan, inputs first; none of an inlined view."""
        return [] if self.root is None else list(ir.walk(self.root))

    def serves(self, state_ttl: Ttl) -> bool:
        """Whether it is the plan for this ``state_ttl``: what needs all rows is not in a plan that may forget some."""
        return state_ttl is None or _STATE_TTL in self.made_from or not may_be_best_rows(self.nodes)

    def to_json(self) -> str:
        """The text of a stored plan."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "root"}
        return json.dumps({"format": ir.FORMAT, **own, "nodes": ir.to_json(self.nodes)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Compiled:
        """The plan that ``to_json`` wrote. Raises SqlError for one of another version."""
        given = json.loads(text)
        if given.pop("format", None) != ir.FORMAT:
            raise SqlError("a stored plan has the format of another version; compile it again")
        nodes = given.pop("nodes")
        given["operators"] = {own: (uid, number) for own, (uid, number) in given["operators"].items()}
        for name in ("notes", "dropped"):
            given[name] = tuple(given[name])
        return cls(root=ir.from_json(nodes) if nodes else None, **given)


class Statement(NamedTuple):
    """A statement that was read: its kind, as in Compiled, and its query as Spark's parser has it, if it was asked."""

    kind: str
    name: str
    text: str
    query: Any = None
    target: str = ""
    replaces: bool = False


def plans_to_json(plans: Iterable[Compiled]) -> str:
    """The text of a file of compiled statements."""
    return json.dumps([json.loads(one.to_json()) for one in plans], indent=1)


def plans_from_json(text: str) -> dict[str, Compiled]:
    """The statements of such a file, by name. Raises SqlError for another text."""
    try:
        plans = [Compiled.from_json(json.dumps(one)) for one in json.loads(text)]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise SqlError(f"this is no file of compiled statements ({error}); write one: {_COMPILE}") from error
    return {one.name: one for one in plans}


@dataclass
class Table:
    """A source or a stored view, and its time attributes; of a view that is kept the ``digest`` of its plan, and if
    its rows ``are_local``: see ``in_local_time``."""

    built: Built
    times: Times = field(default_factory=Times)
    digest: str = ""
    are_local: bool = False

    @property
    def has_delay(self) -> bool:
        """Whether it has a watermark."""
        return self.times.watermark_delay is not None

    @property
    def facts(self) -> list[Any]:
        """All that a plan over it depends on."""
        schema, changes = str(self.built.schema.remove_metadata()), self.built.changes.text
        return [schema, changes, self.times.event_time, self.has_delay, bool(self.times.sequence)]


class SqlContext:
    """The tables of a job, and its statements.

    ``spark``: a classic session; None: only plans can be built. ``stored``: plans of an earlier run, by name, which are
    used as long as nothing that they were made from has changed. ``committed``: the uids whose state the checkpoint
    has, None if it has none at all. ``earlier``: plans whose operators have started with empty state
    since.
    """

    def __init__(
        self,
        spark: SparkSession | None,
        stored: Mapping[str, Compiled] | None = None,
        committed: Collection[str] | None = None,
        earlier: Iterable[Compiled] = (),
    ) -> None:
        self._spark = spark
        self._earlier = sorted(earlier, key=lambda plan: -plan.generation)
        self._stored = dict(stored or {})
        self._committed = committed
        self._given: dict[str, Compiled] | None = None
        self._views: dict[str, str] = {}
        self._replaced: dict[str, str] = {}
        self._syntax = Syntax(self)
        self._catalyst: Catalyst | None = None
        self.tables: dict[str, Table] = {}
        self.lookups: dict[str, LookupTable] = {}
        self.sinks: dict[str, Any] = {}
        self.compiled: dict[str, Compiled] = {}
        self._updating = False

    def give(self, plans: Mapping[str, Compiled]) -> None:
        """Run only statements that have been compiled to these plans, and compile none."""
        self._given = dict(plans)

    @property
    def catalyst(self) -> Catalyst:
        """The session in which statements are analyzed. Raises EnvironmentSetupError over Spark Connect."""
        if self._catalyst is None:
            if self._spark is None:
                raise SqlError("a statement is compiled by a Spark session; give one, or run a stored plan")
            self._catalyst = Catalyst(self._spark)
        schemas = {name: table.built.schema for name, table in self.tables.items()}
        for name, schema in (schemas | {name: one.schema for name, one in self.lookups.items()}).items():
            self._catalyst.add(name, from_arrow_schema(schema, prefer_timestamp_ntz=True))
        return self._catalyst

    def is_known(self, name: str) -> bool:
        """Whether a name is taken. Letters of another case are the same name, as in Spark."""
        return name.lower() in map(str.lower, (*self.tables, *self._views, *self.sinks, *self.lookups))

    def check_free(self, name: str) -> None:
        """Raise SqlError for a name that is taken."""
        if self.is_known(name):
            raise SqlError(f"there is '{name}' already; give another name")

    def add(self, name: str, table: Table) -> None:
        """Make a stream known by a name."""
        self.check_free(name)
        self.tables[name] = table

    def add_lookup(
        self, name: str, lookup: Any, key: SchemaLike, columns: SchemaLike, **options: Any
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
        self,
        text: str,
        name: str | None = None,
        state_ttl: Ttl = None,
        changed: str | None = None,
        windows: str | None = None,
    ) -> Any:
        """Run a statement: a query gives its stream, EXPLAIN a text, and a view that is inlined nothing."""
        for option, given, value in (("changed", changed, "start-anew"), ("windows", windows, "updating")):
            if given not in (None, value):
                raise SqlError(f'{option} is {given!r}; give "{value}", or leave it out')
        with self._all_or_nothing():
            self._updating = windows is not None
            return self._run(self._read(text, name), name, state_ttl, changed)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """If the block fails, the graph and the names are as before."""
        flow = next((table.built.stream._flow for table in self.tables.values()), None)
        nodes, tables, compiled = len(flow.nodes) if flow else 0, dict(self.tables), dict(self.compiled)
        parts = dict(self._syntax.parts)
        superseded = set(flow.superseded) if flow else set()
        try:
            yield
        except BaseException:
            if flow is not None:
                del flow.nodes[nodes:]
                flow.superseded = superseded
            self.tables, self.compiled, self._syntax.parts = tables, compiled, parts
            raise
        finally:
            self._updating = False

    def _read(self, text: str, name: str | None) -> Statement:
        """What a statement is, from the plans that were given, or from Spark's parser."""
        if self._given is None:
            self.catalyst.refresh()
            return self._parsed(self._syntax.parsed(text), text, name)
        for one in self._given.values():
            if one.text == text and name in (None, one.name):
                return Statement(one.kind, one.name, text, None, one.target)
        if text.lstrip()[:7].upper() == "EXPLAIN":
            raise SqlError(
                "EXPLAIN compiles a statement, and this job runs by compiled plans; leave it out, or run without them"
            )
        other = "" if name not in self._given else f" (of '{name}' they have another text)"
        raise SqlError(
            f"the compiled plans do not have this statement{other}; compile the statements again: "
            f"{_COMPILE}. The statement: {text.strip()}"
        )

    def _parsed(self, parsed: Any, text: str, name: str | None) -> Statement:
        kind = kind_of(parsed)
        if kind == "ExplainCommand":
            read = self._parsed(parsed.logicalPlan(), text, name)
            return read._replace(kind="explain", name=name or "explain")
        if kind == "UnresolvedWith" and kind_of(parsed.child()) == "InsertIntoStatement":
            read = self._parsed(parsed.child(), text, name)
            return read._replace(query=parsed.withNewChildren(self.catalyst.seq([read.query])))
        if kind in ("CreateView", "CreateViewCommand"):
            if kind == "CreateViewCommand":
                own, query = str(parsed.name().table()), parsed.plan()
            else:
                own, query = _own_name(parsed), items(parsed.children())[1]
            columns = [str(one._1()) for one in items(parsed.userSpecifiedColumns())]
            query = self._with_columns(query, columns, f"view '{own}'")
            return Statement("inlined", own, text, query, replaces=bool(parsed.replace()))
        if kind == "CreateMaterializedViewAsSelect":
            _check_none("CREATE MATERIALIZED VIEW", "a column list", parsed.columns().size() > 0)
            _check_no_argument("CREATE MATERIALIZED VIEW", name=name)
            return Statement("view", _own_name(parsed), text, items(parsed.children())[1])
        if kind == "InsertIntoStatement":
            _check_none("INSERT INTO", "OVERWRITE", parsed.overwrite())
            _check_none("INSERT INTO", "PARTITION", parsed.partitionSpec().size() > 0)
            target = str(items(parsed.table().multipartIdentifier())[-1])
            # BY NAME says what holds anyway: sinks know columns by their names.
            columns = list(map(str, items(parsed.userSpecifiedCols())))
            query = self._with_columns(parsed.query(), columns, f"sink '{target}'")
            return Statement("insert", name or target, text, query, target)
        own = name or f"sql-{1 + sum(one.startswith('sql-') for one in self.compiled)}"
        return Statement("query" if name is None else "view", own, text, parsed)

    def _with_columns(self, query: Any, names: Sequence[str], of: str) -> Any:
        """The parsed query with these names of its columns, or its own if none are given."""
        if len({name.lower() for name in names}) < len(names):
            raise SqlError(f"{of}: the list of columns ({', '.join(names)}) has a name twice")
        return self.catalyst.with_columns(query, names) if names else query

    def _run(self, read: Statement, name: str | None, state_ttl: Ttl, changed: str | None) -> Any:
        if read.kind == "explain":
            compiled = self.compile(read, state_ttl, {})
            return explained(compiled.nodes, compiled.notes)
        if read.kind == "inlined":
            windows = self._updating or None
            _check_no_argument(
                "CREATE VIEW", name=name, state_ttl=state_ttl, changed=changed, windows=windows
            )
            if read.name not in self._views or not read.replaces:
                self.check_free(read.name)
            if read.query is not None:
                self.catalyst.view(read.name, self.catalyst.rows(read.query, read.text))
            if read.name in self._views:  # views that were made of it still have its rows
                before = (self._replaced.get(read.name), self._views[read.name])
                self._replaced[read.name] = "\n".join(filter(None, before))
            self._views[read.name] = read.text
            self.compiled[read.name] = Compiled(read.name, read.text, None, kind=read.kind)
            return None
        if read.kind == "insert":
            return self._insert(read, state_ttl, changed)
        return self.query(read, state_ttl, changed).stream

    def compile(self, read: Statement, state_ttl: Ttl, made_from: Mapping[str, Any]) -> Compiled:
        """Compile a parsed query."""
        plan = self.catalyst.optimized(self.catalyst.analyzed(read.query, read.text), read.text)
        make = partial(Reader, self.catalyst, self._is_final, self._syntax, self.lookups)
        reader, root = read_plan(plan, make)
        root = compacted(root, self._is_final, state_ttl is None, reader.expressions.varying)
        self._check_varying(reader, root)
        notes = tuple(dict.fromkeys(reader.notes))
        return Compiled(read.name, read.text, root, notes, made_from, read.kind, read.target)

    def _check_varying(self, reader: Reader, root: ir.Node) -> None:
        """Refuse values that differ between evaluations, unless a row is evaluated once and never retracted."""
        rowwise = ir.Scan | ir.Project | ir.Filter | ir.Union | ir.Explode
        once = all(
            isinstance(node, rowwise)
            and (not isinstance(node, ir.Scan) or self.tables[node.source].built.changes.is_insert_only)
            for node in ir.walk(root)
        )
        varying = list(reader.expressions.varying.values())
        if varying and not once:
            raise refusal(
                f"{varying[0].sql()} differs from one evaluation to the next, so a row that is retracted would not be "
                "found",
                "put the value into a column of the source",
                varying[0],
            )

    def query(
        self, read: Statement, state_ttl: Ttl = None, changed: str | None = None, keys: Sequence[str] = ()
    ) -> Built:
        """Compile and build a query; ``keys``: of the table that it is inserted into."""
        name = read.name
        if not names_files(name):
            raise SqlError(
                f"the statement is called {name!r}, which begins the names of its operators and files; "
                f"{FILE_NAME_RULE}; give name="
            )
        if name in self.compiled:
            raise SqlError(f"there is '{name}' already; give the statement another name")
        if read.kind == "view":
            self.check_free(name)
        now = self._made_from(read.text)
        self._go_back(name, now)
        stored = (self._given or self._stored).get(name)
        now |= {} if state_ttl is None else {_STATE_TTL: "given"}
        differing = [] if stored is None else self._differing(stored, now, state_ttl)
        if stored is not None and not differing:
            compiled = stored
        elif self._given is not None:
            raise SqlError(
                f"the compiled plan of statement '{name}' was made from something else; compile it again: "
                f"{_COMPILE}. {'. '.join(differing)}"
            )
        else:
            compiled = self.compile(read, state_ttl, now)
        built = self.build(compiled, state_ttl, changed, keys)
        if read.kind == "view":
            compiled = self.compiled[name]
            *_, root = compiled.nodes
            are_local = root in in_local_time(compiled, self._local_views())
            self.add(name, Table(built, digest=digests(compiled)[root], are_local=are_local))
        return built

    def build(
        self,
        compiled: Compiled,
        state_ttl: Ttl = None,
        changed: str | None = None,
        keys: Sequence[str] = (),
    ) -> Built:
        """Add the operators of a compiled query to the graph; ``state_ttl``: how long their state is kept."""
        if not compiled.serves(state_ttl):
            raise SqlError(
                f"the compiled plan of statement '{compiled.name}' may have a ranking in place of a join, which needs "
                "all rows; compile it with state_ttl=, or leave that out"
            )
        nodes, was = compiled.nodes, self._before(compiled.name)
        tables = {node.source: self._rows(node.source) for node in nodes if isinstance(node, ir.Scan)}
        lineage = {name: self.tables[name].digest for name in tables if self.tables[name].digest}
        if was is not None:
            lineage = {
                one: said
                for one, said in lineage.items()
                if one in was.lineage or not said.startswith(STREAM)
            }
        operators = Operators(replace(compiled, lineage=lineage), was, self._local_views())
        built = Builder(tables, compiled.name, state_ttl, operators.uid, self.lookups).whole(nodes, keys)
        stored: dict[str, Any] = operators.checked(changed is not None)
        compiled = self.compiled[compiled.name] = replace(compiled, lineage=lineage, **stored)
        built.stream._flow.superseded.update(compiled.dropped)
        return built

    def _local_views(self) -> set[str]:
        return {name for name, table in self.tables.items() if table.are_local}

    def _before(self, name: str) -> Compiled | None:
        """The statement of this name, if the checkpoint has the state of its operators."""
        old = self._stored.get(name)
        if old is None or self._committed is None or old.root is None:
            return None
        uids = {uid for uid, _ in old.operators.values()}
        # A new generation may not have come to its first commit; the state under earlier uids is not its own.
        return old if not uids or old.generation > 1 or uids & set(self._committed) else None

    def _go_back(self, name: str, now: Mapping[str, Any]) -> None:
        """Take the plan of an earlier generation that was made from the same, if the checkpoint was rolled back to its
        state: it still has operators that a later generation has dropped."""
        latest = self._stored.get(name)
        if latest is None or not set(latest.dropped) & set(self._committed or ()):
            return
        for plan in self._earlier:
            is_before = plan.name == name and plan.generation < latest.generation
            if is_before and not self._differing(plan, now):
                self._stored[name] = plan
                return

    def _differing(self, plan: Compiled, now: Mapping[str, Any], state_ttl: Ttl = None) -> list[str]:
        """What a plan was made from that is something else now, in words."""
        was = plan.made_from
        known = {_STATE_TTL} if plan.serves(state_ttl) else set[str]()
        if self._given is not None:  # without a compiler functions are not known
            known |= {name for name in was if name.startswith("function ")}
        return [
            f"{name} was {was.get(name, 'not there')}, is {now.get(name, 'not there')}"
            for name in {**was, **now}
            if was.get(name) != now.get(name) and name not in known
        ]

    def _made_from(self, text: str) -> dict[str, Any]:
        """All that a plan of this text depends on, but Spark's version: a stored plan outlives that."""
        assert self._spark is not None
        found: dict[str, Any] = {"the statement": text}
        texts = [text]
        functions = {} if self._catalyst is None else self._catalyst.functions
        views = {"view": self._views, "view before it was replaced": self._replaced}
        for one in texts:  # views in views come later in the list
            for what, known in (*views.items(), ("function", functions)):
                for name, said in known.items():
                    if name.lower() in one.lower() and said not in texts:
                        texts.append(said)
                        found[f"{what} '{name}'"] = said
        facts: dict[tuple[str, str], Any] = {("table", name): one.facts for name, one in self.tables.items()}
        facts |= {("lookup", name): str(one.schema.remove_metadata()) for name, one in self.lookups.items()}
        several = {name: one.key.names for name, one in self.lookups.items() if len(one.key) > 1}
        facts |= {("key of lookup", name): names for name, names in several.items()}
        for (kind, name), fact in facts.items():
            if any(name.lower() in one.lower() for one in texts):
                found[f"{kind} '{name}'"] = fact
        found |= {"windows": "updating"} if self._updating else {}
        return {**found, **{key: self._spark.conf.get(key) for key in SETTINGS}}

    def _rows(self, name: str) -> Built:
        """The rows of a table; upserts as a full changelog."""
        table = self.tables[name]
        if table.times.sequence and not table.built.changes.is_upsert:
            raise SqlError(
                f"source '{name}' has a sequence, which orders changes of a key; declare mode='upsert' and "
                "primary_key= at the source"
            )
        if table.built.changes.is_upsert:
            normal = Builder({}, name).normalized(table.built)
            self.tables[name] = table = replace(
                table, built=normal, times=table.times._replace(sequence=None)
            )
        return table.built

    def _is_final(self, node: ir.Node, column: str) -> bool:
        found = [] if self._updating else event_time_sources(node, column)
        tables = [(self.tables[source], own) for source, own in found]
        return bool(tables) and all(
            table.times.event_time == own and table.has_delay and table.built.changes.is_insert_only
            for table, own in tables
        )

    def _insert(self, read: Statement, state_ttl: Ttl, changed: str | None) -> Stream:
        target = read.target
        if target not in self.sinks:
            known = ", ".join(self.sinks) or "none"
            raise SqlError(
                f"there is no sink '{target}'; there are: {known}. Declare it with job.sink(name, target)"
            )
        sink = self.sinks[target]
        built = self.query(read, state_ttl, changed, getattr(sink, "keys", None) or ())
        check = getattr(sink, "check_changes", None)
        if callable(check):
            try:
                check(built.changes)
            except AsyncStateError as error:
                raise SqlError(f"the sink '{target}' does not take these rows: {error}") from error
        return built.stream.to(sink, name=read.name)


def _own_name(parsed: Any) -> str:
    return str(items(items(parsed.children())[0].nameParts())[-1])


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
