"""The Nexmark queries in Flink SQL, and the statements around them.

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

from bench.nexmark.oracle import EVENT_KINDS, QuerySpec

NULL_TEXT = "~"
"""In a CSV file; an empty text is not none."""

_TYPES = {"bigint": "BIGINT", "string": "STRING", "timestamp": "TIMESTAMP(6)", "int": "INT"}
_KINDS = {"INSERT": "+I", "UPDATE_BEFORE": "-U", "UPDATE_AFTER": "+U", "DELETE": "-D"}
_TIMES = ("dateTime", "expires")
_TEXTS = {
    "name", "city", "state", "itemName", "description", "channel", "url", "extra", "emailAddress", "creditCard",
}  # fmt: skip

_HOPS = """
    SELECT auction, count(*) AS num, window_start, window_end
    FROM TABLE(HOP(TABLE bid, DESCRIPTOR(rt), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
    GROUP BY auction, window_start, window_end"""
_AUCTION = (
    "A.id, A.itemName, A.description, A.initialBid, A.reserve, A.dateTime, A.expires, A.seller, A.category, "
    "A.extra"
)

_VERSIONS = "auction_versions"


def _tumble(view: str) -> str:
    return f"TABLE(TUMBLE(TABLE {view}, DESCRIPTOR(rt), INTERVAL '10' SECOND))"


_LEVELS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def _counts(counted: str, name: str) -> str:
    """Over all prices and by level."""
    levels = [f"{counted} FILTER (WHERE {level}) AS {rank}_{name}" for rank, level in _LEVELS.items()]
    return ", ".join([f"{counted} AS total_{name}", *levels])


_COUNTED = {"bids": "count(*)", "bidders": "count(DISTINCT bidder)", "auctions": "count(DISTINCT auction)"}
_STATISTICS = ", ".join(_counts(counted, name) for name, counted in _COUNTED.items())

_QUERIES = {
    "q3": """
        SELECT P.name, P.city, P.state, A.id FROM auction AS A JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": """
        SELECT category AS id, AVG(final) AS final FROM (
            SELECT MAX(B.price) AS final, A.category FROM auction AS A, bid AS B
            WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
            GROUP BY A.id, A.category
        ) GROUP BY category""",
    "q5": f"""
        SELECT C.auction, C.num FROM ({_HOPS}) AS C
        JOIN (
            SELECT max(num) AS most, window_start, window_end FROM ({_HOPS}) GROUP BY window_start, window_end
        ) AS M
        ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.num >= M.most""",
    "q7": """
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
        FROM (SELECT auction, bidder, price, dateTime, extra FROM bid) AS B
        JOIN (
            SELECT MAX(price) AS maxprice, window_start, window_end
            FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(rt), INTERVAL '10' SECOND))
            GROUP BY window_start, window_end
        ) AS H
        ON B.price = H.maxprice WHERE B.dateTime BETWEEN H.window_start AND H.window_end""",
    "q8": f"""
        SELECT P.id, P.name, CAST(P.window_start AS TIMESTAMP(6)) AS stime
        FROM (
            SELECT id, name, window_start, window_end FROM {_tumble("person")}
            GROUP BY id, name, window_start, window_end
        ) AS P
        JOIN (
            SELECT seller, window_start, window_end FROM {_tumble("auction")}
            GROUP BY seller, window_start, window_end
        ) AS A
        ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end""",
    "q9": f"""
        SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            auction, bidder, price, bid_dateTime, bid_extra
        FROM (
            SELECT {_AUCTION}, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
                ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS place
            FROM auction AS A, bid AS B
            WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
        ) WHERE place <= 1""",
    "q11": """
        SELECT bidder, count(*) AS bid_count, CAST(window_start AS TIMESTAMP(6)) AS starttime,
            CAST(window_end AS TIMESTAMP(6)) AS endtime
        FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(rt), INTERVAL '10' SECOND))
        GROUP BY bidder, window_start, window_end""",
    "q15": f"""
        SELECT DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`, {_STATISTICS}
        FROM bid GROUP BY DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
    "q16": f"""
        SELECT channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`,
            max(DATE_FORMAT(dateTime, 'HH:mm')) AS `minute`, {_STATISTICS}
        FROM bid GROUP BY channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
    "q17": """
        SELECT auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS `day`, count(*) AS total_bids,
            count(*) FILTER (WHERE price < 10000) AS rank1_bids,
            count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
            count(*) FILTER (WHERE price >= 1000000) AS rank3_bids,
            min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
    "q18": """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY rt DESC) AS place FROM bid
        ) WHERE place <= 1""",
    "q19": """
        SELECT auction, bidder, price, channel, url, dateTime, extra, rank_number FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, dateTime ASC) AS rank_number
            FROM bid
        ) WHERE rank_number <= 10""",
    "q20": """
        SELECT B.auction, B.bidder, B.price, B.channel, B.url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
            A.itemName, A.description, A.initialBid, A.reserve, A.dateTime AS auction_dateTime, A.expires,
            A.seller, A.category, A.extra AS auction_extra
        FROM bid AS B JOIN auction AS A ON B.auction = A.id WHERE A.category = 10""",
    "window_join": f"""
        SELECT B.auction, B.bidder, B.price, A.category, B.dateTime
        FROM (SELECT * FROM {_tumble("bid")}) AS B
        JOIN (SELECT * FROM {_tumble("auction")}) AS A
        ON B.auction = A.id AND B.window_start = A.window_start AND B.window_end = A.window_end""",
    "window_rank": f"""
        SELECT auction, bidder, price, dateTime FROM (
            SELECT *, ROW_NUMBER() OVER (
                PARTITION BY window_start, window_end, auction ORDER BY price DESC, dateTime, bidder
            ) AS place
            FROM {_tumble("bid")}
        ) WHERE place <= 3""",
    "over_range": """
        SELECT auction, bidder, price, count(*) OVER recent AS bids, sum(price) OVER recent AS total
        FROM bid WINDOW recent AS (
            PARTITION BY auction ORDER BY rt RANGE BETWEEN INTERVAL '10' SECOND PRECEDING AND CURRENT ROW
        )""",
    "match": """
        SELECT auction, low, high, back, bidder FROM bid
        MATCH_RECOGNIZE (
            PARTITION BY auction ORDER BY rt, dateTime, bidder, price
            MEASURES A.price AS low, B.price AS high, C.price AS back, C.bidder AS bidder
            ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW
            PATTERN (A B C) WITHIN INTERVAL '10' SECOND
            DEFINE A AS A.price < 10000, B AS B.price >= 1000000, C AS C.price < 10000
        )""",
    "temporal_join": f"""
        SELECT B.auction, B.bidder, B.price, A.category, B.dateTime
        FROM bid AS B JOIN {_VERSIONS} FOR SYSTEM_TIME AS OF B.rt AS A ON B.auction = A.id""",
}

FLINK_QUERIES: Mapping[str, str] = {
    name: re.sub(r"\bdateTime\b", "`dateTime`", sql)  # a reserved word in Flink
    for name, sql in _QUERIES.items()
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
            f"CREATE VIEW {_VERSIONS} AS SELECT id, category, rt FROM ("
            "SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY rt DESC) AS place FROM auction) WHERE place = 1"
        )
    sink = ", ".join(f"`{name}` {_TYPES[kind]}" for name, kind in spec.columns.items())
    return [*made, f"CREATE TABLE dropped ({sink}) WITH ('connector' = 'blackhole')"]


def dropping(spec: QuerySpec) -> str:
    """The statement that runs the query and drops what comes out."""
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
