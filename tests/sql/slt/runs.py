"""Keeps the queries of a sqllogictest file up to date, and compares them with what the file expects.

Owns: ``SltRun``, of one file; ``Outcome``, of one of its queries.
Invariant: tables live in DuckDB, where the statements of the file change them; a job gets the differences of each
statement as a micro-batch, or those of some together, and never the rows that a query expects.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot.expressions as exp

from asyncstate.dataflow import Node, Transform
from asyncstate.errors import AsyncStateError, SchemaError, SqlError
from asyncstate.sql import sql_pipeline
from asyncstate.testing import PipelineHarness, PipelineSource
from asyncstate.testing.expressions import in_session
from tests.sql.slt.dialects import NotTranslatedError, for_duckdb, for_spark, parsed
from tests.sql.slt.expected import Row, disagreement, has_hash, hashed
from tests.sql.slt.records import Record, records
from tests.sql.tables import Change, comparable, difference

_BATCHES_MAX = 4
_BATCHES_MAX_OF_VIEW = 20  # a join with what a table has now depends on their order
_FILLED = re.compile(r"create\s+sink\s+\w+\s+into\s+(\w+)", re.IGNORECASE)
_APPENDS = re.compile(r"create\s+table\s+.*\bappend\s+only\b", re.IGNORECASE | re.DOTALL)
_NAMED = re.compile(
    r"(?:create\s+(?:materialized\s+view|view|table|source)(?:\s+if\s+not\s+exists)?|insert\s+into|update|delete\s+from)"
    r"\s+\"?(\w+)",
    re.IGNORECASE,
)
_UNSIGNED = {
    **{pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()},
    pa.uint64(): pa.decimal128(38, 0),
}
_CASTS = {pa.string(): "VARCHAR", pa.decimal128(38, 0): "DECIMAL(38, 0)"}
"""Values of other types of DuckDB as those of the column."""


_FREE = {
    r"AS OF PROCTIME\(\)": "what a table has as of now depends on when the view is made",
    r"\* FROM (HOP|TUMBLE)\(": "a table of windows also has window_time",
    r"^(?!.*ORDER BY).*\bLIMIT \d+": "LIMIT takes any of rows that are equal in the order",
    r"^(?!.*WITHIN GROUP).*\bLISTAGG\(": "LISTAGG without an order has its values in any",
}
"""By what is in a query, why two engines may both be right."""
_DIALECT = {
    r"\bDATE_FORMAT\b": "formats of times are written in another way",
    r"\bPOSEXPLODE\b": "positions begin with 0, and come first",
    r"\bIN \(SELECT\b": "IN with nulls is false in a SELECT of Spark",
    r"\b(MAX|MIN)_BY\b": "a third argument is not translated",
    r"\b(SKEWNESS|KURTOSIS)\b": "of a population, not of a sample",
    r"\bCOLLECT_(LIST|SET)\b": "a list has its values in any order, and no nulls",
}
"""By what is in a query, why Spark's batch engine says something else than the file, as the view does."""


@dataclass(frozen=True)
class Outcome:
    """``kind``: right; refused, by name; dialect, as Spark's batch engine says the same as the view; different;
    broken, by an error that is no refusal; skipped, as it is not for a job."""

    record: Record
    kind: str
    why: str = ""
    detail: str = ""


@dataclass(eq=False)
class _Table:
    """A table of the file, from its CREATE to its DROP. ``appends``: whether it only gets new rows. ``steps``: by
    statement, its changes."""

    name: str
    schema: pa.Schema
    keys: list[str]
    appends: bool = False
    has_watermark: bool = False
    rows: dict[str, tuple[Row, int]] = field(default_factory=dict)
    steps: list[tuple[int, list[Change]]] = field(default_factory=list)

    @property
    def types(self) -> dict[str, str]:
        return {one.name: _type_text(one.type) for one in self.schema}


@dataclass(eq=False)
class _View:
    """A view of the file. ``text``: its query for Spark. ``columns``: the names that it gives them."""

    name: str
    query: exp.Expression
    text: str
    materialized: bool
    reads: list[str]
    why_not: str = ""
    job: _Job | None = None


class _SkippedError(Exception):
    """A query that no job can have."""


class _Harness(PipelineHarness):
    """Expressions that DuckDB does not have are evaluated by Spark; all of them if ``by_spark``."""

    by_spark = False

    def _through(self, node: Node, inputs: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        if not isinstance(node, Transform) or node.kind == "transform":
            return super()._through(node, inputs)
        if not self.by_spark:
            with contextlib.suppress(SchemaError):
                return super()._through(node, inputs)
        return in_session(
            replace(node, kind="transform", expressions=(_evaluated(node),), named={}), inputs, self._spark
        )


class _SparkHarness(_Harness):
    by_spark = True


def _evaluated(node: Transform) -> Callable[[Any], Any]:
    def apply(rows: Any) -> Any:
        from pyspark.sql import functions

        if node.kind == "where":
            return rows.where(node.expressions[0])
        if node.kind == "drop":
            return rows.drop(*node.expressions)
        kinds = ["row_kind"] if "row_kind" in rows.columns else []
        made = [functions.expr(one) if isinstance(one, str) else one for one in (*node.expressions, *kinds)]
        return rows.select(*made) if node.kind == "select" else rows.withColumns(dict(node.named))

    return apply


class _Job:
    """Statements kept up to date over tables. ``content``: the rows of the last one's view."""

    def __init__(
        self,
        statements: Sequence[str],
        tables: Sequence[_Table],
        spark: Any,
        *,
        async_enabled: bool,
        insert_only: bool = False,
        by_spark: bool = False,
    ) -> None:
        self.tables = list(tables)
        self.content: Counter[Row] = Counter()
        self.values: dict[Row, Row] = {}
        self._at, self._async = -1, async_enabled
        sources = {
            one.name: PipelineSource(
                one.schema, changelog=not (insert_only or one.appends), primary_key=one.keys or None
            )
            for one in tables
        }
        made = _SparkHarness if by_spark else _Harness
        self.harness = made(
            sql_pipeline(*statements, spark=spark), sources, async_enabled=async_enabled, spark=spark
        )
        self._batch({})  # what a view says of empty tables

    def catch_up(self, batches: int = _BATCHES_MAX) -> None:
        """Give it all changes so far, in so many micro-batches at most."""
        steps: dict[int, dict[str, list[Change]]] = {}
        for table in self.tables:
            for number, changes in table.steps:
                if number > self._at and changes:
                    steps.setdefault(number, {})[table.name] = changes
        if steps:
            self._at = max(steps)
        numbers = sorted(steps)
        share = -(-len(numbers) // batches) or 1
        for first in range(0, len(numbers), share):
            batch: dict[str, list[Change]] = {}
            for number in numbers[first : first + share]:
                for name, changes in steps[number].items():
                    batch.setdefault(name, []).extend(changes)
            self._batch(batch)

    def restart(self) -> None:
        """Start it again, in the other mode."""
        self._async = not self._async
        self.harness.restart(async_enabled=self._async)

    def churn(self, rng: random.Random) -> None:
        """Take away some of the rows, add some twice, start again, and take all that back."""
        there: dict[str, list[Change]] = {}
        back: dict[str, list[Change]] = {}
        for table in self.tables:
            rows = [row for row, count in table.rows.values() for _ in range(count)]
            gone = rng.sample(rows, -(-len(rows) // 3))
            twice = [] if table.keys else rng.sample(rows, len(rows) // 4)
            there[table.name] = [("-D", one) for one in gone] + [("+I", one) for one in twice]
            back[table.name] = [("-D", one) for one in twice] + [("+I", one) for one in gone]
        self._batch(there)
        self.restart()
        self._batch(back)

    def _batch(self, changes: dict[str, list[Change]]) -> None:
        for name, found in changes.items():
            if found:
                kinds = [kind for kind, _ in found]
                self.harness.push(name, [row for _, row in found], kinds=kinds)
        for kind, *values in self.harness.end_batch()["out"]:
            key = tuple(map(comparable, values))
            self.values[key] = tuple(values)
            self.content[key] += 1 if kind in ("+I", "+U") else -1
        negative = [row for row, count in self.content.items() if count < 0]
        if negative:
            raise AssertionError(f"retracted without being there: {negative[:3]}")

    @property
    def rows(self) -> list[Row]:
        """The rows of the view; times are no numbers."""
        rows = [self.values[key] for key in self.content.elements()]
        if not rows:
            return []
        columns = [
            pa.array(column, field.type).to_pylist() if pa.types.is_timestamp(field.type) else column
            for column, field in zip(zip(*rows, strict=True), self.schema, strict=True)
        ]
        return list(zip(*columns, strict=True))

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view."""
        node = self.harness.flow.sinks[0]
        return pa.schema([one for one in self.harness._schemas[node] if one.name != "row_kind"])

    def close(self) -> None:
        """Delete its state."""
        self.harness.close()


class SltRun:
    """A file. ``most``: of so many of its queries that are no views of their own, spread over the file, a job is made;
    the others are left out."""

    def __init__(self, path: Path, engine: str, spark: Any, most: int | None = None) -> None:
        self._engine, self._spark = engine, spark
        self._duck = duckdb.connect(config={"threads": 1})
        self._duck.execute("SET TimeZone = 'UTC'")
        self._sqlite = sqlite3.connect(":memory:", isolation_level=None)
        self._tables: dict[str, _Table] = {}
        self._views: dict[str, _View] = {}
        self._lost: dict[str, str] = {}
        self._step = itertools.count()
        self._records = list(records(path, engine))
        queries = [one for one in self._records if one.kind == "query"]
        share = 1 if most is None else max(1, -(-len(queries) // most))
        self._wanted = {id(one) for one in queries[::share]}
        self.statements = sum(one.kind == "ok" for one in self._records)
        self.views = 0

    def __enter__(self) -> SltRun:
        return self

    def __exit__(self, *_: object) -> None:
        for view in self._views.values():
            self._forget(view)
        self._duck.close()
        self._sqlite.close()

    def outcomes(self) -> Iterable[Outcome]:
        """Run the file."""
        for record in self._records:
            if record.kind == "ok":
                try:
                    yield from self._executed(record)
                except Exception as error:
                    yield self._failed(record, error, "", [], None)
            elif record.kind == "query" and id(record) in self._wanted:
                yield self._asked(record)

    # -- statements ----------------------------------------------------------------------------------------

    def _executed(self, record: Record) -> Iterable[Outcome]:
        if self._engine == "sqlite":
            with contextlib.suppress(sqlite3.Error):
                self._sqlite.execute(record.sql)
        filled = _FILLED.match(record.sql)
        if filled:
            self._lost[filled[1].lower()] = "a sink of RisingWave fills a table"
        try:
            statement = parsed(record.sql, self._engine)
        except NotTranslatedError as error:
            made = _NAMED.match(record.sql)
            if made:
                self._lost[made[1].lower()] = str(error)
                if "view" in record.sql[:30].lower():
                    yield Outcome(record, "skipped", str(error))
            elif self._engine == "duckdb":
                with contextlib.suppress(duckdb.Error):
                    self._duck.execute(record.sql)
            return
        if isinstance(statement, exp.Create) and statement.kind == "VIEW":
            yield from self._viewed(record, statement)
        elif isinstance(statement, exp.Create) and statement.kind == "TABLE":
            self._created(statement)
            if (table := self._tables.get(_table_of(statement))) is not None:
                table.appends = bool(_APPENDS.match(record.sql))
                table.has_watermark = "watermark for" in record.sql.lower()
        elif isinstance(statement, exp.Drop):
            self._dropped(statement)
        elif isinstance(statement, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.TruncateTable):
            self._changed(statement)
        elif isinstance(statement, exp.Alter) and (view := self._views.get(_table_of(statement))) is not None:
            view.why_not = "ALTER of a view"
            self._forget(view)
        elif isinstance(statement, exp.Alter) or (
            self._engine == "duckdb" and not isinstance(statement, exp.Query | exp.Set | exp.Pragma)
        ):
            with contextlib.suppress(duckdb.Error):
                self._duck.execute(for_duckdb(statement, self._engine))
            for name in [*self._tables]:  # ALTER and COMMIT may change any
                self._reread(name)

    def _created(self, statement: exp.Create) -> None:
        name = _table_of(statement)
        self._lost.pop(name, None)
        self._tables.pop(name, None)
        try:
            properties = statement.args.get("properties")
            if properties and any(
                one.name.lower() == "connector" for one in properties.find_all(exp.Property)
            ):
                raise _SkippedError("a connector")
            statement.set("properties", None)
            self._duck.execute(for_duckdb(statement, self._engine))
            self._known(name)
        except (duckdb.Error, _SkippedError, pa.ArrowException) as error:
            self._lost[name] = f"{_first(error)}"

    def _known(self, name: str) -> None:
        schema = _spark_schema(self._duck.sql(f'SELECT * FROM "{name}" LIMIT 0').to_arrow_table().schema)
        keys = self._duck.execute(
            "SELECT constraint_column_names FROM duckdb_constraints() "
            f"WHERE lower(table_name) = '{name}' AND constraint_type = 'PRIMARY KEY'"
        ).fetchall()
        self._tables[name] = _Table(name, schema, list(keys[0][0]) if keys else [])
        self._diff(name)

    def _reread(self, name: str) -> None:
        with contextlib.suppress(duckdb.Error, _SkippedError):
            table, columns = self._tables[name], self._duck.sql(f'SELECT * FROM "{name}" LIMIT 0')
            if _spark_schema(columns.to_arrow_table().schema) != table.schema:
                self._known(name)
            else:
                self._diff(name)

    def _dropped(self, statement: exp.Drop) -> None:
        for name in [one.name.lower() for one in statement.find_all(exp.Table)]:
            self._dropped_one(name, str(statement.args.get("kind")))

    def _dropped_one(self, name: str, kind: str) -> None:
        view = self._views.pop(name, None)
        if view is not None:
            self._forget(view)
            self._lost.pop(name, None)
        elif kind == "TABLE":
            self._tables.pop(name, None)
            self._lost.pop(name, None)
        kind = "TABLE" if view is not None and view.materialized else kind
        with contextlib.suppress(duckdb.Error):
            self._duck.execute(f'DROP {kind} IF EXISTS "{name}" CASCADE')

    def _forget(self, view: _View) -> None:
        if view.job is not None:
            view.job.close()
            view.job = None

    def _changed(self, statement: exp.Expression) -> None:
        target = statement.this if not isinstance(statement, exp.TruncateTable) else statement.expressions[0]
        found = (
            target
            if isinstance(target, exp.Table)
            else target.find(exp.Table)
            if target is not None
            else None
        )
        name = found.name.lower() if found is not None else ""
        if name not in self._tables:
            return
        try:
            for view in self._materialized(self._read_by(statement)):
                self._caught_up(view)
            statement.set("returning", None)
            if self._engine == "risingwave" and isinstance(statement, exp.Insert) and self._tables[name].keys:
                statement.set("alternative", "REPLACE")  # what its tables do with a key that is there
            self._duck.execute(for_duckdb(statement, self._engine))
            self._diff(name)
        except (duckdb.Error, AsyncStateError, _SkippedError, NotTranslatedError) as error:
            self._lost[name] = f"DuckDB does not run a statement of the file: {_first(error)}"

    def _diff(self, name: str) -> None:
        table = self._tables[name]
        columns = ", ".join(
            f'"{one.name}"::{_CASTS[one.type]}' if one.type in _CASTS else f'"{one.name}"'
            for one in table.schema
        )
        now: dict[str, tuple[Row, int]] = {}
        for row in self._duck.execute(f'SELECT {columns} FROM "{name}"').fetchall():
            key = repr(row)
            now[key] = (row, now[key][1] + 1 if key in now else 1)
        changes: list[Change] = []
        for key, (row, count) in table.rows.items():
            changes += [("-D", row)] * (count - now.get(key, (row, 0))[1])
        for key, (row, count) in now.items():
            changes += [("+I", row)] * (count - table.rows.get(key, (row, 0))[1])
        table.rows = now
        table.steps.append((next(self._step), changes))

    # -- views -----------------------------------------------------------------------------------------------

    def _viewed(self, record: Record, statement: exp.Create) -> Iterable[Outcome]:
        query, named = statement.expression, statement.this
        columns = [one.name for one in named.expressions] if isinstance(named, exp.Schema) else []
        name = _table_of(named)
        properties = statement.args.get("properties")
        materialized = bool(properties and properties.find(exp.MaterializedProperty))
        if not isinstance(query, exp.Query):
            return
        _named(query)
        reads = self._read_by(query)
        self._lost.pop(name, None)
        view = self._views[name] = _View(name, query, "", materialized, reads)
        try:
            text = for_spark(query, self._engine, self._types(reads))
            view.text = f"SELECT * FROM ({text}) AS q ({', '.join(columns)})" if columns else text
        except NotTranslatedError as error:
            view.why_not = str(error)
        if not materialized:
            with contextlib.suppress(duckdb.Error):
                statement.set("properties", None)
                self._duck.execute(for_duckdb(statement, self._engine))
            return
        self.views += 1
        try:
            self._opened(view)
        except Exception as error:
            yield self._failed(record, error, view.text, [name], view)

    def _types(self, reads: Sequence[str]) -> dict[str, dict[str, str]]:
        found = {}
        for name in reads:
            if name in self._tables:
                found[name] = self._tables[name].types
            elif name in self._views and (job := self._views[name].job) is not None:
                found[name] = {one.name: _type_text(one.type) for one in job.schema}
        return found

    def _read_by(self, query: exp.Expression) -> list[str]:
        """The tables and views that a query names."""
        inside = {one.alias.lower() for one in query.find_all(exp.CTE)}
        names = [one.name.lower() for one in query.find_all(exp.Table)]
        names += [
            one.expressions[0].sql().lower()
            for one in query.find_all(exp.Anonymous)
            if str(one.this).lower() in ("tumble", "hop") and one.expressions
        ]
        known = {*self._tables, *self._views, *self._lost}
        return [one for one in dict.fromkeys(names) if one in known and one not in inside]

    def _materialized(self, reads: Sequence[str]) -> list[_View]:
        """The materialized views among these, and below plain views."""
        found = []
        for view in (self._views[name] for name in reads if name in self._views):
            found += [view] if view.materialized else self._materialized(view.reads)
        return found

    def _closure(self, reads: Sequence[str]) -> tuple[list[_View], list[_Table]]:
        """All views and tables that these are made of, in an order in which they can be declared."""
        views: dict[str, _View] = {}
        tables: dict[str, _Table] = {}
        for name in reads:
            if name in self._lost:
                raise _SkippedError(self._lost[name])
            if name in self._views:
                inner, under = self._closure(self._views[name].reads)
                views |= {one.name: one for one in inner} | {name: self._views[name]}
                tables |= {one.name: one for one in under}
            elif name in self._tables:
                tables[name] = self._tables[name]
        for view in views.values():
            if view.why_not:
                raise NotTranslatedError(view.why_not)
        return list(views.values()), list(tables.values())

    def _statements(self, views: Sequence[_View]) -> list[str]:
        kinds = {True: "MATERIALIZED VIEW", False: "VIEW"}
        return [f"CREATE {kinds[one.materialized]} `{one.name}` AS {one.text}" for one in views]

    def _opened(self, view: _View) -> None:
        views, tables = self._closure([view.name])
        if not tables:
            raise _SkippedError("reads no table")
        view.job = _Job(self._statements(views), tables, self._spark, async_enabled=self.views % 2 == 0)

    def _caught_up(self, view: _View) -> None:
        """The rows of a materialized view as a table of DuckDB."""
        if view.job is None or view.why_not:
            raise _SkippedError(view.why_not or "reads a view that was not made")
        view.job.catch_up(_BATCHES_MAX_OF_VIEW)
        columns = zip(*view.job.rows, strict=True) if view.job.rows else [[] for _ in view.job.schema]
        arrays = [
            pa.array(list(values), one.type) for values, one in zip(columns, view.job.schema, strict=True)
        ]
        self._duck.register("rows_of_view", pa.table(arrays, names=_unlike(view.job.schema.names)))
        self._duck.execute(f'CREATE OR REPLACE TABLE "{view.name}" AS SELECT * FROM rows_of_view')
        self._duck.unregister("rows_of_view")

    # -- queries -----------------------------------------------------------------------------------------------

    def _asked(self, record: Record) -> Outcome:
        text, views, reads = "", [], []
        try:
            query = parsed(record.sql, self._engine)
            if not isinstance(query, exp.Query):
                return Outcome(record, "skipped", "no query")
            reads = self._read_by(query)
            views = self._materialized(reads)
            if views:
                return self._of_views(record, query, views)
            text = for_spark(query, self._engine, self._types(reads))
            return self._kept(record, text, reads)
        except Exception as error:
            return self._failed(record, error, text, reads, views[0] if views else None)

    def _of_views(self, record: Record, query: exp.Expression, views: Sequence[_View]) -> Outcome:
        for view in views:
            self._caught_up(view)
        try:
            rows = self._duck.execute(for_duckdb(query, self._engine)).fetchall()
        except duckdb.Error as error:
            return Outcome(record, "skipped", "DuckDB does not run the query over the view", str(error))
        found = self._unlike(record, rows)
        if found is None:
            for view in views:
                assert view.job is not None
                view.job.restart()
            return Outcome(record, "right")
        for view in views:
            inner, tables = self._closure([view.name])
            assert view.job is not None
            outcome = self._judged(record, found, inner[:-1], tables, view.text, view.job.rows)
            if outcome.kind != "dialect":
                break
        return outcome

    def _judged(
        self,
        record: Record,
        found: str,
        views: Sequence[_View],
        tables: Sequence[_Table],
        text: str,
        rows: Sequence[Row],
    ) -> Outcome:
        """What rows are that the file does not expect, over these views and tables."""
        apart = self._as_batch(views, tables, text, rows)
        detail = f"{record.sql}\n{text}\n{found}\n{apart}"
        free = _named_reason(_FREE, text)
        if free or not apart:
            why = _named_reason(_DIALECT, text) or "as Spark's batch engine"
            if any(one.has_watermark for one in tables):
                why = "a watermark of the file's table leaves rows out"
            return Outcome(record, "dialect", free or why, detail)
        statements = [*self._statements(views), text]
        job = _Job(statements, tables, self._spark, async_enabled=False, by_spark=True)
        with contextlib.closing(job):
            job.catch_up()
            by_spark = self._as_batch(views, tables, text, job.rows)
        why = "not as Spark's batch engine" if by_spark else "only where DuckDB evaluates its expressions"
        return Outcome(record, "different", why, detail)

    def _kept(self, record: Record, text: str, reads: Sequence[str]) -> Outcome:
        views, tables = self._closure(reads)
        if not tables:
            raise _SkippedError("reads no table")
        statements = [*self._statements(views), text]
        deletes = any(kind == "-D" for one in tables for _, step in one.steps for kind, _ in step)
        rng = random.Random(record.line)
        insert_only = not deletes and rng.random() < 0.3
        job = _Job(statements, tables, self._spark, async_enabled=rng.random() < 0.5, insert_only=insert_only)
        with contextlib.closing(job):
            job.catch_up()
            if not insert_only and not any(one.appends for one in tables):
                job.churn(rng)
            rows = job.rows
        found = self._unlike(record, rows)
        if found is None:
            return Outcome(record, "right")
        return self._judged(record, found, views, tables, text, rows)

    def _unlike(self, record: Record, rows: Sequence[Row]) -> str | None:
        """What is not as the file expects; None if all is. Raises _SkippedError."""
        columns, digest = record.columns, hashed(record.expected)
        if any(one.startswith(("<REGEX>", "<!REGEX>", "<FILE>")) for one in record.expected):
            raise _SkippedError("expects a pattern or a file")
        if digest is None:
            found = disagreement(rows, record.expected, columns, record.sort, self._engine)
            return None if found is None else f"too many: {found[0][:4]}, missing: {found[1][:4]}"
        if self._engine != "sqlite":
            raise _SkippedError("expects a hash")
        want = self._sqlite.execute(record.sql).fetchall()
        if not has_hash(want, columns, record.sort, digest[1]):
            raise _SkippedError("SQLite has another hash")
        lines = [
            "\t".join("NULL" if value is None else str(value) or "(empty)" for value in row) for row in want
        ]
        found = disagreement(rows, lines, columns, "rowsort", self._engine)
        return None if found is None else f"too many: {found[0][:4]}, missing: {found[1][:4]}"

    def _as_batch(
        self, views: Sequence[_View], tables: Sequence[_Table], text: str, rows: Sequence[Row]
    ) -> str:
        """How rows differ from what Spark's batch engine says; empty if they do not."""
        session = self._spark.newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        for table in tables:
            given = [row for row, count in table.rows.values() for _ in range(count)]
            columns = zip(*given, strict=True) if given else [[] for _ in table.schema]
            arrays = [pa.array(list(one), kind.type) for one, kind in zip(columns, table.schema, strict=True)]
            session.createDataFrame(pa.table(arrays, schema=table.schema)).createOrReplaceTempView(table.name)
        try:
            for view in views:
                session.sql(view.text).createOrReplaceTempView(view.name)
            answer = session.sql(text).toArrow()
        except Exception as error:
            return f"an error: {_reason(error)}"
        want = [
            tuple(row.values()) for row in answer.rename_columns(_unlike(answer.column_names)).to_pylist()
        ]
        found = difference(_counted(rows), _counted(want))
        return "" if found is None else f"kept {found[0][:4]}, batch {found[1][:4]}"

    def _failed(
        self, record: Record, error: Exception, text: str, reads: Sequence[str], view: _View | None
    ) -> Outcome:
        detail = "\n".join([record.sql, text, f"{type(error).__name__}: {error}"])
        if isinstance(error, _SkippedError | NotTranslatedError):
            return self._ended(record, "skipped", str(error), detail, view)
        if isinstance(error, SqlError):
            return self._ended(record, "refused", _reason(error), detail, view)
        batch = self._error_of_batch(text, reads) if isinstance(error, AsyncStateError) else ""
        if batch:
            return self._ended(
                record, "dialect", f"an error, as in Spark's batch engine: {batch}", detail, view
            )
        return self._ended(record, "broken", f"{type(error).__name__}: {_first(error)}", detail, view)

    def _error_of_batch(self, text: str, reads: Sequence[str]) -> str:
        """What Spark's batch engine says in place of rows; empty if it has rows."""
        views, tables = self._closure(reads)
        texts = [text] if text else [one.text for one in views if one.materialized]
        said = [self._as_batch(views, tables, one, []) for one in texts]
        return next((one for one in said if one.startswith("an error: ")), "").removeprefix("an error: ")

    def _ended(self, record: Record, kind: str, why: str, detail: str, view: _View | None) -> Outcome:
        if view is not None and not view.why_not:
            self._forget(view)
            view.why_not = f"view: {why}"
        return Outcome(record, kind, why, detail)


def _named_reason(reasons: Mapping[str, str], text: str) -> str:
    return next((why for pattern, why in reasons.items() if re.search(pattern, text)), "")


def _table_of(statement: exp.Expression) -> str:
    """The first table that a statement names."""
    found = statement.find(exp.Table)
    return "" if found is None else found.name.lower()


def _counted(rows: Iterable[Row]) -> Counter[Any]:
    """Rows that can be compared; the values of a list are in no order."""
    return Counter(
        tuple(
            tuple(sorted(map(comparable, one), key=repr)) if isinstance(one, list) else comparable(one)
            for one in row
        )
        for row in rows
    )


def _unlike(names: Sequence[str]) -> list[str]:
    """Names of which no two are the same."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name.lower()] += 1
        found.append(name if seen[name.lower()] == 1 else f"{name}_{seen[name.lower()]}")
    return found


def _named(query: exp.Expression) -> None:
    """Give the columns of a view the names that PostgreSQL gives them."""
    if not isinstance(query, exp.Select):
        return
    for at, one in enumerate(query.expressions):
        inner = one.this if isinstance(one, exp.Cast | exp.Window | exp.Filter) else one
        if not one.alias and not isinstance(one, exp.Column | exp.Dot | exp.Star):
            name = inner.sql_name().lower() if isinstance(inner, exp.Func) else inner.name or f"column_{at}"
            query.expressions[at] = exp.alias_(one.copy(), name if name.isidentifier() else f"column_{at}")
    query.set("expressions", query.expressions)


def _spark_schema(schema: pa.Schema) -> pa.Schema:
    fields = []
    for one in schema:
        kind = one.type
        if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
            kind = pa.string()
        kind = _UNSIGNED.get(kind, kind)
        if pa.types.is_timestamp(kind):
            kind = pa.timestamp("us", "UTC" if kind.tz else None)
        if (
            pa.types.is_interval(kind)
            or pa.types.is_duration(kind)
            or pa.types.is_time(kind)
            or pa.types.is_union(kind)
        ):
            raise _SkippedError(f"the type {kind} of a column")
        fields.append(pa.field(one.name, kind))
    return pa.schema(fields)


def _type_text(kind: pa.DataType) -> str:
    names = {pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint"}
    names |= {pa.float64(): "double", pa.float32(): "float", pa.bool_(): "boolean", pa.date32(): "date"}
    return names.get(
        kind,
        "decimal" if pa.types.is_decimal(kind) else "timestamp" if pa.types.is_timestamp(kind) else "text",
    )


def _reason(error: Exception) -> str:
    text = str(error)
    found = re.search(r"\[([A-Z_.]+)\]", text)
    if found:
        return f"Spark: {found[1]}"
    said = text.rsplit("not kept up to date: ", maxsplit=1)[-1].split(";", maxsplit=1)[0]
    return re.sub(r"'[^']*'|\d+|\([^()]*\)", "_", said)[:90]


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:160]
