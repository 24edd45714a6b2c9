"""What the Nexmark queries mean: the DuckDB SQL of ``oracle.sql`` over the same events.

Invariant: the SQL gives the table that a streaming run has made when its input has ended and every window has
closed; it has one answer: where the benchmark leaves ties open (q6, q9, q18, q19) the event time decides.
Must not import Spark.

Source: ``queries/*.sql`` of github.com/nexmark/nexmark. The windows of q12 are of processing time: a run has a clock
that moves by a window's length from micro-batch to micro-batch (``PROCESSING_START_US``), so its result is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import duckdb

EVENT_KINDS = ("person", "auction", "bid")  # in the order of ``event_type``

PROCESSING_START_US, PROCESSING_STEP_US = 1_700_000_000_000_000, 10_000_000
"""Processing time of the first micro-batch of q12, and how much later each one is than the one before."""


class QuerySpec(NamedTuple):
    """One query: ``sql`` is its result in DuckDB, over the views ``person``, ``auction`` and ``bid``; ``columns`` the
    output's in order, with Spark's names for their types (timestamps in UTC); ``needs`` for each kind of event the
    fields it reads."""

    name: str
    description: str
    sql: str
    columns: Mapping[str, str]
    needs: Mapping[str, tuple[str, ...]]


def register_events(connection: duckdb.DuckDBPyConnection, path: Path | str) -> None:
    """Make the views ``person``, ``auction`` and ``bid`` over the event files in ``path``."""
    connection.execute("SET TimeZone = 'UTC'")
    files = str(Path(path) / "*.parquet").replace("'", "''")
    for event_type, kind in enumerate(EVENT_KINDS):
        times = "CAST(dateTime AS TIMESTAMP) AS dateTime"
        if kind == "auction":
            times += ", CAST(expires AS TIMESTAMP) AS expires"
        connection.execute(f"""CREATE OR REPLACE TEMP VIEW {kind} AS SELECT * REPLACE ({times}) FROM
            (SELECT unnest({kind}) FROM read_parquet('{files}') WHERE event_type = {event_type})""")


def register_arrival(connection: duckdb.DuckDBPyConnection, path: Path | str, files_a_batch: int) -> None:
    """Make the view ``bid_arrival``: of each bid the bidder and the number of its micro-batch, from 0."""
    files = str(Path(path) / "*.parquet").replace("'", "''")
    number = f"CAST(regexp_extract(filename, '(\\d+)\\.parquet$', 1) AS BIGINT) // {files_a_batch}"
    connection.execute(f"""CREATE OR REPLACE TEMP VIEW bid_arrival AS
        SELECT bid.bidder AS bidder, {number} AS micro_batch FROM read_parquet('{files}', filename = true)
        WHERE event_type = {EVENT_KINDS.index("bid")}""")


RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 AND price < 1000000", "rank3": "price >= 1000000"}


def _counts(counted: str, name: str) -> str:
    """Over all prices and by level."""
    ranks = [f"{counted} FILTER (WHERE {level}) AS {rank}_{name}" for rank, level in RANKS.items()]
    return ", ".join([f"{counted} AS total_{name}", *ranks])


SHARED = {
    "rank_counts": _counts("count(*)", "bids"),
    "distinct_counts": ", ".join(_counts(f"count(DISTINCT {of})", f"{of}s") for of in ("bidder", "auction")),
    "channel_id": "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')",
    "winning_bids": "FROM auction AS A JOIN bid AS B "
    "ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires "
    "QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) = 1",
    "start": str(PROCESSING_START_US),
    "step": str(PROCESSING_STEP_US),
}
"""What several queries have in common."""


def read_queries(path: Path, **shared: str) -> Iterator[tuple[list[str], str]]:
    """The queries of a file with empty lines between them: the text of the comments above each, a line that goes on as
    one, and its SQL with what is ``shared``, which it names in braces."""
    for block in path.read_text("utf-8").split("\n\n")[1:]:
        lines = block.strip().splitlines()
        comments = [line.removeprefix("-- ") for line in lines if line.startswith("-- ")]
        sql = "\n".join(lines[len(comments) :])
        for name, text in shared.items():
            sql = sql.replace(f"{{{name}}}", text)
        yield "\n".join(comments).replace("\n  ", " ").splitlines(), sql


def _specs() -> Iterator[QuerySpec]:
    for (title, *about), sql in read_queries(Path(__file__).with_suffix(".sql"), **SHARED):
        name, _, description = title.partition(": ")
        needs = {kind: names for kind, _, names in (line.partition(" = ") for line in about)}
        groups = (group.split(": ") for group in needs.pop("columns").split("; "))
        columns = {name: kind for names, kind in groups for name in names.split()}
        fields = {kind: tuple(each.split()) for kind, each in needs.items()}
        yield QuerySpec(name, description, sql, columns, fields)


QUERIES: Mapping[str, QuerySpec] = {spec.name: spec for spec in _specs()}
"""Every query whose result is known in batch, by name."""
