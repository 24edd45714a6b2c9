"""The compiled plans of all features, of TPC-H and of Nexmark, as texts in files.

Owns: ``compiled_plans``, ``place_of`` and ``difference``; run as a program (``make plans``), it writes the files.
Invariant: a file has the plans of the newest Spark; a Spark whose plans differ has a file of its own, with its version.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncstate.dataflow import Dataflow
from asyncstate.dataflow.nodes import Times
from asyncstate.spark.compatibility import NEWEST
from asyncstate.sql import SqlContext
from asyncstate.sql.pipeline import table_of
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


def compiled_plans(spark: SparkSession, suite: str) -> str:
    """The statements of a suite, each with its plan."""
    statements, tables = SUITES[suite]
    context, flow = SqlContext(spark), Dataflow()
    for name, source in tables.sources(list(tables.schemas)).items():
        times = Times(source.event_time, source.watermark_delay)
        keys = source.primary_key
        context.add(name, table_of(flow.add_source(name, times, source.changelog, source.schema, None, keys)))
    constant = spark.createDataFrame([(0, "x")], "key long, value string")
    constant.createOrReplaceTempView("side_input")  # of Nexmark's q13
    parts = []
    for name, sql in statements.items():
        plan = _PLACES.sub("", context.run(f"EXPLAIN {sql}"))
        parts.append(f"== {name}\n{sql.strip()}\n\n{plan}\n")
    return "\n".join(parts)


def place_of(spark: SparkSession, suite: str) -> Path:
    """The file with the plans of this Spark."""
    major, minor = spark.version.split(".")[:2]
    own = FOLDER / f"{suite}-{major}.{minor}.txt"
    return own if own.exists() else FOLDER / f"{suite}.txt"


def difference(place: Path, found: str) -> str:
    """What differs from the file, with the beginning of each plan that does; empty if nothing does."""
    before, after = _by_name(place.read_text("utf-8")), _by_name(found)
    lines: list[str] = []
    for name in dict.fromkeys([*before, *after]):
        was, now = (one.get(name, "").splitlines() for one in (before, after))
        changed = list(difflib.unified_diff(was, now, "stored", "compiled", lineterm="", n=1))[2:]
        lines += [f"== {name}", *changed] if changed else []
    return "\n".join(lines)


def _by_name(text: str) -> dict[str, str]:
    parts = [part.split("\n", 1) for part in text.removeprefix("== ").split("\n== ")]
    return {name: plan for name, plan in parts}


def main() -> None:
    """Write the files of this Spark."""
    from asyncstate.spark import build_session

    spark = build_session(master="local[1]")
    version = tuple(map(int, spark.version.split(".")[:2]))
    FOLDER.mkdir(exist_ok=True)
    for suite in SUITES:
        found, shared = compiled_plans(spark, suite), FOLDER / f"{suite}.txt"
        own = FOLDER / f"{suite}-{version[0]}.{version[1]}.txt"
        own.unlink(missing_ok=True)
        if version == NEWEST:
            shared.write_text(found, "utf-8")
        elif difference(shared, found):
            own.write_text(found, "utf-8")
    spark.stop()


if __name__ == "__main__":
    main()
