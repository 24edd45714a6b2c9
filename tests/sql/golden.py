"""The compiled plans of all features, of TPC-H and of Nexmark, as texts in files.

Owns: ``compiled_plans``, ``stored_plans`` and ``difference``; run as a program (``make plans``), it writes the files.
Invariant: a file has the plans of the newest Spark; what another Spark compiles to another plan, or does not know, is
in a file with its version.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncstate.dataflow import Dataflow
from asyncstate.dataflow.nodes import Times
from asyncstate.errors import SqlError
from asyncstate.spark.compatibility import NEWEST
from asyncstate.sql import SqlContext
from asyncstate.sql.job import table_of
from tests.sql import features, nexmark, tpch
from tests.sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER: Final = Path(__file__).parent / "plans"
_PLACES: Final = re.compile(r"  -- .*$", re.MULTILINE)
"""The parts of the statement, which are long and say nothing about the plan."""
SUITES: Final[Mapping[str, tuple[Mapping[str, str], Tables]]] = {
    "features": ({name: sql for name, (sql, _) in features.FEATURES.items()}, features.changing_tables(3, 1)),
    "tpch": (tpch.QUERIES, tpch.changing_tables()),
    "nexmark": ({name: sql for name, (sql, _) in nexmark.QUERIES.items()}, nexmark.events(count=4)),
}


def compiled_plans(spark: SparkSession, suite: str) -> dict[str, str]:
    """The statements of a suite, each with its plan, by name."""
    statements, tables = SUITES[suite]
    context, flow = SqlContext(spark), Dataflow()
    for name, source in tables.sources(list(tables.schemas)).items():
        times = Times(source.event_time, source.watermark_delay)
        keys = source.primary_key
        context.add(name, table_of(flow.add_source(name, times, source.changelog, source.schema, None, keys)))
    constant = spark.createDataFrame([(0, "x")], "key long, value string")
    constant.createOrReplaceTempView("side_input")  # of Nexmark's q13
    plans = {}
    for name, sql in statements.items():
        try:
            plan = _PLACES.sub("", context.run(f"EXPLAIN {sql}"))
        except SqlError as error:  # a function that this Spark does not have
            plan = str(error).partition(" In: ")[0]
        plans[name] = f"{sql.strip()}\n\n{plan}\n"
    return plans


def stored_plans(spark: SparkSession, suite: str) -> dict[str, str]:
    """The plans that are stored for this Spark, by name."""
    own = _own(spark, suite)
    return _read(FOLDER / f"{suite}.txt") | (_read(own) if own.exists() else {})


def difference(stored: Mapping[str, str], compiled: Mapping[str, str]) -> str:
    """What differs, with the beginning of each plan that does; empty if nothing does."""
    lines: list[str] = []
    for name in dict.fromkeys([*stored, *compiled]):
        was, now = (one.get(name, "").splitlines() for one in (stored, compiled))
        changed = list(difflib.unified_diff(was, now, "stored", "compiled", lineterm="", n=1))[2:]
        lines += [f"== {name}", *changed] if changed else []
    return "\n".join(lines)


def _own(spark: SparkSession, suite: str) -> Path:
    major, minor = spark.version.split(".")[:2]
    return FOLDER / f"{suite}-{major}.{minor}.txt"


def _read(place: Path) -> dict[str, str]:
    parts = place.read_text("utf-8").removeprefix("== ").split("\n== ")
    return dict(part.split("\n", 1) for part in parts)


def _write(place: Path, plans: Mapping[str, str]) -> None:
    place.write_text("\n".join(f"== {name}\n{plan}" for name, plan in plans.items()), "utf-8")


def main() -> None:
    """Write the files of this Spark."""
    from asyncstate.spark import build_session

    spark = build_session(master="local[1]")
    version = tuple(map(int, spark.version.split(".")[:2]))
    FOLDER.mkdir(exist_ok=True)
    for suite in SUITES:
        found, shared = compiled_plans(spark, suite), FOLDER / f"{suite}.txt"
        own = _own(spark, suite)
        own.unlink(missing_ok=True)
        if version == NEWEST:
            _write(shared, found)
        else:
            known = _read(shared)
            others = {
                name: plan
                for name, plan in found.items()
                if difference({name: known.get(name, "")}, {name: plan})
            }
            if others:
                _write(own, others)
    spark.stop()


if __name__ == "__main__":
    main()
