"""Tables that change in micro-batches, a statement kept up to date over them, and DuckDB's answer.

Owns: ``Tables``, and ``changing``, which draws them; ``Draws``; ``difference``; ``kept_right``, which runs a statement
in a harness and checks it after each micro-batch; ``kept_or_constant``, the same for random statements.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from asyncstate.changelog import Changelog
from asyncstate.dataflow import Sink
from asyncstate.errors import SqlError
from asyncstate.sql import sql_pipeline
from asyncstate.testing import PipelineHarness, PipelineSource

NEEDS_COMPILER = pytest.mark.since_spark("4.0", "what compiles SQL statements")
"""The mark of tests that run any."""
Row = tuple[Any, ...]
Change = tuple[str, Row]
Oracle = str | Callable[[Mapping[str, list[Row]]], list[Row]]
"""What a query must give: a text of DuckDB, or a function of the rows of each table."""


@dataclass
class Tables:
    """``changes``: by table the changes of each micro-batch, (row kind, row). ``keys``: primary keys."""

    schemas: Mapping[str, pa.Schema]
    changes: Mapping[str, Sequence[Sequence[Change]]]
    insert_only: bool = False
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)
    delay: str | None = None

    @property
    def batches(self) -> int:
        """The number of micro-batches."""
        return max(len(one) for one in self.changes.values())

    def used(self, sql: str) -> list[str]:
        """The tables that a statement names."""
        return [name for name in self.schemas if re.search(rf"\b{name}\b", sql)]

    def sources(self, names: Sequence[str]) -> dict[str, PipelineSource]:
        """The tables as sources of a harness."""
        return {
            name: PipelineSource(
                self.schemas[name],
                changelog=not self.insert_only,
                primary_key=list(self.keys[name]) if name in self.keys else None,
                event_time=self.times.get(name),
                watermark_delay=self.delay if name in self.times else None,
            )
            for name in names
        }

    def contents(self, batch: int) -> dict[str, list[Row]]:
        """The rows of each table after a micro-batch."""
        found = {}
        for name, batches in self.changes.items():
            rows: Counter[Row] = Counter()
            for changes in batches[: batch + 1]:
                for kind, row in changes:
                    rows[row] += 1 if kind in ("+I", "+U") else -1
            assert all(count >= 0 for count in rows.values()), name
            found[name] = list(rows.elements())
        return found

    def answer(self, query: Oracle, batch: int) -> list[Row]:
        """The answer over the rows after a micro-batch; DuckDB's, if the query is a text."""
        contents = self.contents(batch)
        if not isinstance(query, str):
            return query(contents)
        connection = _duckdb()
        for name in self.used(query):
            schema = self.schemas[name]
            columns = [
                pa.array([row[at] for row in contents[name]], one.type) for at, one in enumerate(schema)
            ]
            connection.register("rows_given", pa.Table.from_arrays(columns, schema=schema))
            connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM rows_given')
        connection.unregister("rows_given")
        return connection.execute(query).fetchall()


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """One connection: to open one takes longer than most answers."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class Draws:
    """What the generators of random statements have in common."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._aliases = 0

    def one_of(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def alias(self) -> str:
        """A new name."""
        self._aliases += 1
        return f"q{self._aliases}"


def changing(
    schemas: Mapping[str, pa.Schema],
    row: Callable[[str], Row],
    rng: random.Random,
    batches: int,
    size: int,
) -> Tables:
    """Random rows that come, change and go; the fourth micro-batch empties the tables first, the third adds nothing.
    ``row`` draws one of a table."""
    there: dict[str, list[Row]] = {name: [] for name in schemas}
    changes: dict[str, list[list[Change]]] = {name: [] for name in schemas}
    for batch in range(batches):
        for name, rows in there.items():
            out: list[Change] = []
            if batch == 3:
                out += [("-D", one) for one in rows]
                rows.clear()
            for number in sorted(rng.sample(range(len(rows)), len(rows) // 3), reverse=True):
                old = rows.pop(number)
                if rng.random() < 0.5:
                    out.append(("-D", old))
                    continue
                new = row(name)
                out += [("-U", old), ("+U", new)]
                rows.append(new)
            for _ in range([size, size // 2, 0, 3, size // 2, size // 2][batch % 6]):
                new = row(name)
                rows.append(new)
                out.append(("+I", new))
            changes[name].append(out)
    return Tables(schemas, changes)


def comparable(value: Any) -> Any:
    """A value as both engines have it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | decimal.Decimal):
        number = float(value)
        return "NaN" if math.isnan(number) else number + 0.0
    if isinstance(value, dt.datetime):
        return float(
            (value.replace(tzinfo=dt.UTC) - dt.datetime.fromtimestamp(0, dt.UTC))
            // dt.timedelta(microseconds=1)
        )
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dict):
        return tuple((name, comparable(one)) for name, one in value.items())
    return tuple(map(comparable, value)) if isinstance(value, list | tuple) else value


def difference(have: Counter[Row], want: Counter[Row]) -> tuple[list[Row], list[Row]] | None:
    """The rows that only one of two multisets has; numbers that are nearly equal are equal."""
    more, less = list((have - want).elements()), list((want - have).elements())
    alone = []
    for row in more:
        match = next((number for number, other in enumerate(less) if _alike(row, other)), None)
        if match is None:
            alone.append(row)
        else:
            del less[match]
    return (alone, less) if alone or less else None


def _alike(one: Row, two: Row) -> bool:
    return len(one) == len(two) and all(
        a == b
        or (isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6))
        or (isinstance(a, tuple) and isinstance(b, tuple) and _alike(a, b))
        for a, b in zip(one, two, strict=True)
    )


def kept_right(
    pipeline: Any,
    tables: Tables,
    sql: str,
    oracle: Oracle,
    *,
    async_enabled: bool,
    restarts: random.Random | None = None,
    finish: bool = False,
) -> int:
    """Run a pipeline in a harness, and compare the net of its output with the answer to ``oracle`` after every
    micro-batch. Half-way the job is started again in the other mode. ``restarts``: restart and rescale between any
    two. ``finish``: compare at the end only, after the last watermark. Returns the most rows that the answer had."""
    used, most = tables.used(sql), 0
    net: Counter[Row] = Counter()
    with PipelineHarness(pipeline, tables.sources(used), async_enabled=async_enabled) as harness:
        changes_of, unique = _said(harness)

        def take(batch: int, rows: Sequence[Row]) -> None:
            """Add rows to the net, and check what the graph says of them."""
            for kind, *row in rows:
                assert kind == "+I" or not changes_of.is_insert_only, f"batch {batch}: {kind} {row}\n{sql}"
                net[tuple(map(comparable, row))] += 1 if kind in ("+I", "+U") else -1
            for key in unique:
                values = Counter(tuple(row[at] for at in key) for row in (+net).elements())
                twice = [one for one, count in values.items() if count > 1]
                assert not twice, f"batch {batch}: not unique: {changes_of.unique_keys}, {twice[:3]}\n{sql}"

        for batch in range(tables.batches):
            for name in used:
                changes = tables.changes[name][batch] if batch < len(tables.changes[name]) else []
                if changes:
                    kinds = [kind for kind, _ in changes]
                    harness.push(name, [row for _, row in changes], kinds=kinds)
            take(batch, harness.end_batch()["out"])
            negative = [row for row, count in net.items() if count < 0]
            assert not negative, f"batch {batch}: retracted without being there: {negative[:3]}\n{sql}"
            if restarts is not None and restarts.random() < 0.5:
                harness.restart(parallelism=restarts.randrange(1, 4), async_enabled=restarts.random() < 0.5)
            elif restarts is None and batch == tables.batches // 2:
                harness.restart(async_enabled=not async_enabled)
            if finish and batch != tables.batches - 1:
                continue
            if finish:
                take(batch, harness.finish()["out"])
            want = Counter(tuple(map(comparable, row)) for row in tables.answer(oracle, batch))
            found = difference(+net, want)
            assert found is None, (
                f"batch {batch}: only kept: {found[0][:4]}, only right: {found[1][:4]}\n{sql}"
            )
            most = max(most, sum(want.values()))
    return most


def _said(harness: PipelineHarness) -> tuple[Changelog, list[list[int]]]:
    """What the graph says of the changes that its sink gets, and the places of the columns of each unique key."""
    (sink,) = (node for node in harness.flow.nodes if isinstance(node, Sink) and node.name == "out")
    schema, changes = harness.flow.facts_of(sink.inputs[0])
    return changes, [[schema.names.index(column) for column in key] for key in changes.unique_keys]


def kept_or_constant(
    spark: Any, sql: str, oracle: str, tables: Tables, rng: random.Random, lookups: Any = None
) -> None:
    """Run a statement by ``kept_right``, with restarts. If Spark proves that its rows are the same whatever the tables
    have (none, or those of an aggregate of none), and it is refused, check that they are."""
    pipeline = sql_pipeline(sql, spark=spark, lookups=lookups)
    try:
        kept_right(pipeline, tables, sql, oracle, async_enabled=rng.random() < 0.5, restarts=rng)
    except SqlError as error:
        if "reads no source" not in str(error):
            raise
        first, *others = (tables.answer(oracle, batch) for batch in range(tables.batches))
        assert all(one == first for one in others), sql
