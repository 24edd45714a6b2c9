"""The Nexmark queries in SQL, for ``job.sql`` over the tables ``person``, ``auction`` and ``bid``.

Owns: ``STATEMENTS`` and ``statement``, which declares one over a job. Not in them: q12, since Spark's SQL has no word
for windows of processing time.
Invariant: a statement's columns are those of its ``QuerySpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from asyncstate.dataflow import Stream
from asyncstate.spark import StreamingJob
from bench.nexmark.oracle import QUERIES
from bench.nexmark.queries import RANKS, SIDES, auctions, bids, people
from bench.nexmark.sources import narrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS: Mapping[str, Callable[[Any], Any]] = {"person": people, "auction": auctions, "bid": bids}
"""By table its rows among the events, of a DataFrame as of a Stream."""
_TIMED = ("q5", "q7", "q8", "q11")
"""Those that wait for the watermark: each of their tables is a source of its own."""
_COUNTS = "count(*) AS total_bids, " + ", ".join(
    f"count(*) FILTER (WHERE {rank}) AS {name}_bids" for name, rank in RANKS.items()
)
_DISTINCT = ", ".join(
    f"count(DISTINCT {one}) AS total_{one}s, "
    + ", ".join(
        f"count(DISTINCT {one}) FILTER (WHERE {rank}) AS {name}_{one}s" for name, rank in RANKS.items()
    )
    for one in ("bidder", "auction")
)
_CHANNEL = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
_DAY = "date_format(dateTime, 'yyyy-MM-dd') AS day"
_IN_TIME = "FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires"
_COUNTED = """(SELECT auction, count(*) AS num, w.start AS starttime, w.end AS endtime FROM
    (SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS w FROM bid) GROUP BY auction, w)"""

STATEMENTS = {
    "q0": "SELECT auction, bidder, price, dateTime, extra FROM bid",
    "q1": "SELECT auction, bidder, CAST(0.908BD * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""SELECT category AS id, sum(final) div count(*) AS final
        FROM (SELECT max(B.price) AS final, A.category {_IN_TIME} GROUP BY A.id, A.category) GROUP BY category""",
    "q5": f"""SELECT C.auction, C.num FROM {_COUNTED} C
        JOIN (SELECT max(num) AS most, starttime, endtime FROM {_COUNTED} GROUP BY starttime, endtime) M
        ON C.starttime = M.starttime AND C.endtime = M.endtime AND C.num >= M.most""",
    "q6": f"""SELECT seller, sum(price) OVER last div count(*) OVER last AS avg_price FROM (
            SELECT A.id, A.seller, B.price, B.dateTime AS at,
                row_number() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC, B.dateTime) AS place {_IN_TIME}
        ) WHERE place = 1
        WINDOW last AS (PARTITION BY seller ORDER BY at, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)""",
    "q7": """SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra FROM bid B JOIN (
            SELECT max(price) AS most, w.start AS opened, w.end AS closed
            FROM (SELECT price, window(dateTime, '10 seconds') AS w FROM bid) GROUP BY w
        ) H ON B.price = H.most WHERE B.dateTime BETWEEN H.opened AND H.closed""",
    "q8": """SELECT P.id, P.name, P.w.start AS stime
        FROM (SELECT id, name, w FROM (SELECT id, name, window(dateTime, '10 seconds') AS w FROM person)
            GROUP BY id, name, w) P
        JOIN (SELECT seller, w FROM (SELECT seller, window(dateTime, '10 seconds') AS w FROM auction)
            GROUP BY seller, w) A ON P.id = A.seller AND P.w = A.w""",
    "q9": f"""SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra,
            auction, bidder, price, bid_dateTime, bid_extra
        FROM (SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
            row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) AS place {_IN_TIME})
        WHERE place = 1""",
    "q10": """SELECT auction, bidder, price, dateTime, extra, date_format(dateTime, 'yyyy-MM-dd') AS dt,
            date_format(dateTime, 'HH:mm') AS hm FROM bid""",
    "q11": """SELECT bidder, count(*) AS bid_count, w.start AS starttime, w.end AS endtime
        FROM (SELECT bidder, session_window(dateTime, '10 seconds') AS w FROM bid) GROUP BY bidder, w""",
    "q13": f"""SELECT B.auction, B.bidder, B.price, B.dateTime, S.value
        FROM bid B JOIN side_input S ON B.auction % {SIDES} = S.key""",
    "q14": """SELECT auction, bidder, CAST(0.908BD * price AS DECIMAL(23, 3)) AS price,
            CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType,
            dateTime, extra, CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts
        FROM bid WHERE 0.908BD * price > 1000000 AND 0.908BD * price < 50000000""",
    "q15": f"SELECT {_DAY}, {_COUNTS}, {_DISTINCT} FROM bid GROUP BY day",
    "q16": f"""SELECT channel, {_DAY}, max(date_format(dateTime, 'HH:mm')) AS minute, {_COUNTS}, {_DISTINCT}
        FROM bid GROUP BY channel, day""",
    "q17": f"""SELECT auction, {_DAY}, {_COUNTS}, min(price) AS min_price, max(price) AS max_price,
            sum(price) div count(*) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, day""",
    "q18": """SELECT auction, bidder, price, channel, url, dateTime, extra FROM (
            SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS place FROM bid
        ) WHERE place = 1""",
    "q19": """SELECT auction, bidder, price, channel, url, dateTime, extra, CAST(place AS BIGINT) AS rank_number FROM (
            SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS place FROM bid
        ) WHERE place <= 10""",
    "q20": """SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra, itemName,
            description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category,
            A.extra AS auction_extra
        FROM bid B JOIN auction A ON B.auction = A.id WHERE A.category = 10""",
    "q21": f"""SELECT auction, bidder, price, channel, CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' ELSE {_CHANNEL} END AS channel_id
        FROM bid WHERE {_CHANNEL} IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
    "q22": """SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2,
            split_part(url, '/', 6) AS dir3 FROM bid""",
}


def statement(job: StreamingJob, query: str, events: DataFrame) -> Stream:
    """The query's changelog. ``events``: the stream of all kinds."""
    spec = QUERIES[query]
    if query in _TIMED:
        for table in spec.needs:
            rows = _ROWS[table](narrow(events, spec))
            job.source(table, rows, event_time="dateTime", watermark_delay="4 seconds")
    else:
        stream = job.source("events", narrow(events, spec))
        for table in spec.needs:
            job.view(table, _ROWS[table](stream))
    if query == "q13":
        sides = events.sparkSession.range(SIDES).selectExpr("id AS key", "CAST(id AS STRING) AS value")
        sides.createOrReplaceTempView("side_input")
    found = job.sql(STATEMENTS[query], name=query)
    assert isinstance(found, Stream)
    return found
