"""Random statements that are started with another text over the state of the first.

Owns: ``Program``; ``changed_text``. Invariant: a text that is accepted emits, from then on, what its own answer changes
by; one that is refused has changed nothing.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asyncstate.errors import JobError, SqlError
from asyncstate.sql import Compiled, SqlContext
from asyncstate.sql.job import table_of
from asyncstate.testing import PipelineHarness
from tests.sql.features import changing_tables
from tests.sql.random_queries import in_duckdb, random_query
from tests.sql.tables import Row, comparable, difference

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Program:
    """Statements by name, as a job starts them: over the plans and the state that it left."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark, self.stored = spark, dict[str, Compiled]()
        self.committed: list[str] | None = None

    def flow(
        self, statements: Mapping[str, str], changed: str | None = None, state_ttl: str | None = None
    ) -> Callable[..., None]:
        """The pipeline of these statements; the rows of each go to a sink of its name."""

        def pipeline(**streams: Any) -> None:
            context = SqlContext(self.spark, self.stored, self.committed)
            for name, stream in streams.items():
                context.add(name, table_of(stream))
            for name, text in statements.items():
                context.run(text, name, state_ttl, changed).to(print, name=name)
            self.stored = dict(context.compiled)
            self.uids = [uid for one in context.compiled.values() for uid, _ in one.operators.values()]

        return pipeline

    def ran(self) -> None:
        """A micro-batch was committed."""
        self.committed = list(self.uids)


CHANGES = (
    (r"\bmax\(", "min("),
    (r"\bmin\(", "max("),
    (r"\bsum\(", "count("),
    (r" < ", " >= "),
    (r" = (\d)", r" > \1"),
    (r"\bLEFT JOIN\b", "JOIN"),
    (r"(?<!T )(?<!L )\bJOIN\b", "LEFT JOIN"),
    (r"\brank\(\)", "row_number()"),
    (r"\b3\b", "2"),
    (r"\+ ", "- "),
    (r"\bDESC\b", ""),
    (r"\bUNION ALL\b", "UNION"),
)
"""What is changed in a text, and to what."""
REFUSED = "is not the one whose state", "reads no source", "rows that another program wrote"


def changed_text(sql: str, rng: random.Random) -> str:
    """Another statement, which shares some operators with ``sql`` or all."""
    which = rng.random()
    if which < 0.25:
        return f"SELECT c0 AS z, 1 AS one FROM ({sql}) AS q WHERE c0 IS NOT NULL"
    if which < 0.4:
        return f"SELECT *, c0 AS again FROM ({sql}) AS q"
    if which < 0.5:
        return f"SELECT c0, count(*) AS n FROM ({sql}) AS q GROUP BY c0"
    pattern, to = rng.choice(CHANGES)
    places = list(re.finditer(pattern, sql))
    if not places:
        return f"SELECT c0 FROM ({sql}) AS q"
    place = rng.choice(places)
    return sql[: place.start()] + place.expand(to) + sql[place.end() :]


def run(spark: Any, seed: int) -> None:
    """Run the statement of a seed over random changes, and another one from some micro-batch on. Raises AssertionError
    and SqlError."""
    rng = random.Random(seed)
    sql = next(
        sql for sql, _ in iter(lambda: random_query(rng.randrange(1_000_000)), None) if "dim" not in sql
    )
    text, changed, tables = sql, changed_text(sql, rng), changing_tables(seed, size=8)
    program, net, at = Program(spark), Counter[Row](), rng.randrange(1, tables.batches)
    used = tables.used(f"{sql} {changed}")
    try:
        harness = PipelineHarness(program.flow({"a": sql}), tables.sources(used), async_enabled=seed % 2 == 0)
    except SqlError as error:
        if "reads no source" in str(error):
            return
        raise
    with harness:
        for batch in range(tables.batches):
            if batch == at:
                try:
                    harness.restart(program.flow({"a": changed}), parallelism=rng.randrange(1, 4))
                except (SqlError, JobError) as error:
                    if not any(said in str(error) for said in REFUSED):
                        raise
                    harness.restart(program.flow({"a": sql}))
                else:
                    text, net = changed, _rows(tables.answer(in_duckdb(changed), batch - 1))
            for name in used:
                if changes := tables.changes[name][batch]:
                    kinds = [kind for kind, _ in changes]
                    harness.push(name, [row for _, row in changes], kinds=kinds)
            for kind, *row in harness.end_batch()["a"]:
                net[_rounded(row)] += 1 if kind in ("+I", "+U") else -1
            program.ran()
            assert min(net.values(), default=0) >= 0, f"batch {batch}, after {at}: {net}\n{sql}\n{text}"
            found = difference(+net, _rows(tables.answer(in_duckdb(text), batch)))
            assert found is None, f"batch {batch}, after {at}: {found}\n{sql}\n{text}"


def _rounded(row: Iterable[Any]) -> Row:
    """A row whose numbers do not depend on the order in which they were added up."""
    return tuple(round(one, 6) if isinstance(one, float) else one for one in map(comparable, row))


def _rows(rows: Iterable[Row]) -> Counter[Row]:
    return Counter(map(_rounded, rows))
