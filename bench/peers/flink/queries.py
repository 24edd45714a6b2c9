"""The Nexmark queries in Flink SQL (``queries.sql``), and the statements around them.

Owns: ``FLINK_QUERIES``, ``LAST_COUNTS``, ``NULL_TEXT``, ``fields``, ``statements``, ``dropping``, ``reading`` and
``keeping``.
Invariant: a query has the columns of its ``QuerySpec``. ``rt`` is the event time in milliseconds, all that Flink's
watermarks take; ``dateTime`` has the microseconds.
Must not import Spark.

Source: ``queries/*.sql`` of github.com/nexmark/nexmark. Not here: q6, which it marks as not supported; q12, whose
windows are of the clock, so that two engines have no result in common; and those without state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from bench.nexmark.oracle import EVENT_KINDS, QUERIES, QuerySpec, read_queries

NULL_TEXT = "~"
"""In a CSV file; an empty text is not none."""

_TYPES = {"bigint": "BIGINT", "string": "STRING", "timestamp": "TIMESTAMP(6)", "int": "INT"}
_KINDS = {"INSERT": "+I", "UPDATE_BEFORE": "-U", "UPDATE_AFTER": "+U", "DELETE": "-D"}
_TIMES = ("dateTime", "expires")
_TEXTS = {
    "name", "city", "state", "itemName", "description", "channel", "url", "extra", "emailAddress", "creditCard",
}  # fmt: skip

_SHARED = {
    "auction": ", ".join(f"A.{name}" for name in QUERIES["q9"].needs["auction"]),
    "hops": """
    SELECT auction, count(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rt), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end""",
}
_QUERIES = {name: sql for (name,), sql in read_queries(Path(__file__).with_suffix(".sql"), **_SHARED)}
_QUERIES |= {name: QUERIES[name].sql for name in ("q3", "q20")}  # which are the same in both
FLINK_QUERIES: Mapping[str, str] = {
    name: re.sub(r"\bdateTime\b", "`dateTime`", _QUERIES[name])  # a reserved word in Flink
    for name in QUERIES
    if name in _QUERIES
}
"""By name. Joins that are not of windows take no ``rt``: Flink allows no event time in their inputs."""

LAST_COUNTS: Mapping[str, str] = {"q9": "id"}
"""Queries of which Flink may leave the rows before an update out, as its asynchronous top 1 does, and their keys."""

_EVENT_TIMED = frozenset(
    ("q5", "q7", "q8", "q11", "q18", "window_join", "window_rank", "temporal_join", "over_range", "match")
)


def fields(spec: QuerySpec) -> list[tuple[str, str, str]]:
    """Kind, field and Flink type of each column after ``event_type`` and ``dateTime``."""
    return [(kind, name, _type(name)) for kind, names in spec.needs.items() for name in names]


def _type(name: str) -> str:
    return _TYPES["timestamp" if name in _TIMES else "string" if name in _TEXTS else "bigint"]


def statements(spec: QuerySpec, folder: str) -> list[str]:
    """Tables and views over the CSV files in ``folder``, and the sink that drops what it gets."""
    columns = ", ".join(f"`{kind}_{name}` {kind_type}" for kind, name, kind_type in fields(spec))
    timed = spec.name in _EVENT_TIMED
    watermark = (
        ", rt AS CAST(event_time AS TIMESTAMP(3)), WATERMARK FOR rt AS rt - INTERVAL '4' SECOND"
        if timed
        else ""
    )
    csv = f"'connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv', 'csv.null-literal' = '{NULL_TEXT}'"
    made = [
        f"CREATE TABLE events (event_type INT, event_time TIMESTAMP(6), {columns}{watermark}) WITH ({csv})"
    ]
    for number, kind in enumerate(EVENT_KINDS):
        names = [f"`{kind}_{name}` AS `{name}`" for name in spec.needs.get(kind, ())]
        if names:
            more = [*names, "rt"] if timed else names
            made.append(
                f"CREATE VIEW {kind} AS SELECT {', '.join(more)} FROM events WHERE event_type = {number}"
            )
    if spec.name == "temporal_join":  # Flink's way from rows to versions: the last row of a key
        made.append(
            "CREATE VIEW auction_versions AS SELECT id, category, rt FROM ("
            "SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY rt DESC) AS place FROM auction) WHERE place = 1"
        )
    sink = ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in spec.columns.items())
    return [*made, f"CREATE TABLE dropped ({sink}) WITH ('connector' = 'blackhole')"]


def dropping(spec: QuerySpec) -> str:
    return f"INSERT INTO dropped {FLINK_QUERIES[spec.name]}"


def reading(spec: QuerySpec) -> tuple[list[str], str]:
    """What is to be made for it, and the statement that reads what the query reads and does nothing else."""
    columns = {"event_type": "INT", "event_time": "TIMESTAMP(6)"}
    columns |= {f"{kind}_{name}": kind_type for kind, name, kind_type in fields(spec)}
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    names = ", ".join(f"`{name}`" for name in columns)
    made = [f"CREATE TABLE only_read ({declared}) WITH ('connector' = 'blackhole')"]
    return made, f"INSERT INTO only_read SELECT {names} FROM events"


def keeping(spec: QuerySpec, folder: str) -> tuple[list[str], str]:
    """What is to be made for it, and the statement that runs the query and writes every change into ``folder``.

    Lines of JSON, the row kind in ``row_kind``; timestamps are text. Needs Flink 2.3.
    """
    columns = {name: "STRING" if kind == "timestamp" else _TYPES[kind] for name, kind in spec.columns.items()}
    chosen = ", ".join(
        f"CAST(`{name}` AS STRING) AS `{name}`" if spec.columns[name] == "timestamp" else f"`{name}`"
        for name in columns
    )
    declared = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    made = [
        f"CREATE VIEW changes AS SELECT {chosen} FROM ({FLINK_QUERIES[spec.name]})",
        f"CREATE TABLE kept (row_kind STRING, {declared}) WITH "
        f"('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'json')",
    ]
    kinds = ", ".join(f"'{name}', '{kind}'" for name, kind in _KINDS.items())
    changes = f"TO_CHANGELOG(input => TABLE changes, op => DESCRIPTOR(row_kind), op_mapping => MAP[{kinds}])"
    names = ", ".join(f"`{name}`" for name in ("row_kind", *columns))
    return made, f"INSERT INTO kept SELECT {names} FROM {changes}"
