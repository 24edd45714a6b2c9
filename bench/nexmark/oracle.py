"""What the Nexmark queries mean: DuckDB SQL over the same events.

Owns: ``QUERIES``, one ``QuerySpec`` a query, and the views they read.
Invariant: the SQL gives the table that a streaming run has made when its input has ended and every window has
closed; it has one answer: where the benchmark leaves ties open (q6, q9, q18, q19) the event time decides.
Must not import Spark.

Source: ``queries/*.sql`` of github.com/nexmark/nexmark. The windows of q12 are of processing time: a run has a clock
that moves by a window's length from micro-batch to micro-batch (``PROCESSING_START_US``), so its result is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb

EVENT_KINDS = ("person", "auction", "bid")
"""In the order of ``event_type``."""

PROCESSING_START_US, PROCESSING_STEP_US = 1_700_000_000_000_000, 10_000_000
"""Processing time of the first micro-batch of q12, and how much later each one is than the one before."""

_BID = ("auction", "bidder", "price", "dateTime", "extra")
_BID_ALL = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")
_AUCTION_ALL = (
    "id",
    "itemName",
    "description",
    "initialBid",
    "reserve",
    "dateTime",
    "expires",
    "seller",
    "category",
    "extra",
)


@dataclass(frozen=True)
class QuerySpec:
    """One query.

    Attributes:
        name: ``q0`` to ``q22``, or what else is asked of the same events.
        description: One line.
        sql: The result in DuckDB, over the views ``person``, ``auction`` and ``bid``.
        columns: Output columns in order, with Spark's names for their types. Timestamps are in UTC.
        needs: For each kind of event the fields the query reads.
    """

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
        connection.execute(
            f"CREATE OR REPLACE TEMP VIEW {kind} AS SELECT * REPLACE ({times}) FROM "
            f"(SELECT unnest({kind}) FROM read_parquet('{files}') WHERE event_type = {event_type})"
        )


def register_arrival(
    connection: duckdb.DuckDBPyConnection, path: Path | str, files_per_micro_batch: int
) -> None:
    """Make the view ``bid_arrival``: of each bid the bidder and the number of its micro-batch, from 0."""
    files = str(Path(path) / "*.parquet").replace("'", "''")
    number = "CAST(regexp_extract(filename, '(\\d+)\\.parquet$', 1) AS BIGINT)"
    connection.execute(
        f"CREATE OR REPLACE TEMP VIEW bid_arrival AS SELECT bid.bidder AS bidder, {number} // {files_per_micro_batch} "
        f"AS micro_batch FROM read_parquet('{files}', filename = true) WHERE event_type = {EVENT_KINDS.index('bid')}"
    )


def _columns(text: str) -> dict[str, str]:
    """``"a b: bigint, c: string"`` as ``{"a": "bigint", "b": "bigint", "c": "string"}``."""
    found: dict[str, str] = {}
    for group in text.split("; "):
        names, kind = group.split(": ")
        found.update(dict.fromkeys(names.split(), kind))
    return found


_BID_COLUMNS = "auction bidder price: bigint; channel url: string; dateTime: timestamp; extra: string"

_RANK_COUNTS = """
    count(*) AS total_bids,
    count(*) FILTER (WHERE price < 10000) AS rank1_bids,
    count(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    count(*) FILTER (WHERE price >= 1000000) AS rank3_bids"""

_DISTINCT_COUNTS = ",".join(
    f"""
    count(DISTINCT {column}) AS total_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s,
    count(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s"""
    for column in ("bidder", "auction")
)
_RANK_COLUMNS = "total_bids rank1_bids rank2_bids rank3_bids"
_DISTINCT_COLUMNS = " ".join(
    f"{rank}_{what}" for what in ("bidders", "auctions") for rank in ("total", "rank1", "rank2", "rank3")
)

_CHANNEL_ID = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"

_WINNING_BIDS = """
    FROM auction AS A JOIN bid AS B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
    QUALIFY row_number() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime) = 1"""

_SPECS = (
    QuerySpec(
        "q0",
        "Pass through: every bid",
        "SELECT auction, bidder, price, dateTime, extra FROM bid",
        _columns("auction bidder price: bigint; dateTime: timestamp; extra: string"),
        {"bid": _BID},
    ),
    QuerySpec(
        "q1",
        "Currency conversion: every bid with its price in euros",
        "SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid",
        _columns("auction bidder: bigint; price: decimal(23,3); dateTime: timestamp; extra: string"),
        {"bid": _BID},
    ),
    QuerySpec(
        "q2",
        "Selection: the bids on every 123rd auction",
        "SELECT auction, price FROM bid WHERE auction % 123 = 0",
        _columns("auction price: bigint"),
        {"bid": ("auction", "price")},
    ),
    QuerySpec(
        "q3",
        "Local item suggestion: who sells in OR, ID or CA in category 10",
        """
        SELECT P.name, P.city, P.state, A.id
        FROM auction AS A JOIN person AS P ON A.seller = P.id
        WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')""",
        _columns("name city state: string; id: bigint"),
        {"person": ("id", "name", "city", "state"), "auction": ("id", "seller", "category")},
    ),
    QuerySpec(
        "q4",
        "Average price for a category: mean of its auctions' highest bids in time, rounded down",
        """
        SELECT category AS id, CAST(sum(final) // count(*) AS BIGINT) AS final
        FROM (
            SELECT max(B.price) AS final, A.category
            FROM auction AS A
            JOIN bid AS B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires
            GROUP BY A.id, A.category
        )
        GROUP BY category""",
        _columns("id final: bigint"),
        {"auction": ("id", "category", "dateTime", "expires"), "bid": ("auction", "price", "dateTime")},
    ),
    QuerySpec(
        "q5",
        "Hot items: the auctions with the most bids in the last 10 s, every 2 s",
        """
        WITH hops AS (
            SELECT auction, epoch_us(dateTime) // 2000000 - unnest(range(5)) AS window_number FROM bid
        ), counts AS (
            SELECT auction, window_number, count(*) AS num FROM hops GROUP BY auction, window_number
        )
        SELECT auction, num FROM counts
        QUALIFY num = max(num) OVER (PARTITION BY window_number)""",
        _columns("auction num: bigint"),
        {"bid": ("auction", "dateTime")},
    ),
    QuerySpec(
        "q6",
        "Average selling price by seller, over this and the ten auctions before it",
        f"""
        SELECT seller, CAST(sum(price) OVER last // count(*) OVER last AS BIGINT) AS avg_price
        FROM (SELECT A.id, A.seller, B.price, B.dateTime AS bid_dateTime {_WINNING_BIDS})
        WINDOW last AS (
            PARTITION BY seller ORDER BY bid_dateTime, id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
        )""",
        _columns("seller avg_price: bigint"),
        {"auction": ("id", "seller", "dateTime", "expires"), "bid": ("auction", "price", "dateTime")},
    ),
    QuerySpec(
        "q7",
        "Highest bid of each 10 s",
        """
        WITH highest AS (
            SELECT max(price) AS maxprice,
                time_bucket(INTERVAL '10 s', dateTime) + INTERVAL '10 s' AS window_end
            FROM bid GROUP BY window_end
        )
        SELECT B.auction, B.bidder, B.price, B.dateTime, B.extra
        FROM bid AS B JOIN highest AS H ON B.price = H.maxprice
        WHERE B.dateTime BETWEEN H.window_end - INTERVAL '10 s' AND H.window_end""",
        _columns("auction bidder price: bigint; dateTime: timestamp; extra: string"),
        {"bid": _BID},
    ),
    QuerySpec(
        "q8",
        "Monitor new users: people who registered and opened an auction in the same 10 s",
        """
        SELECT P.id, P.name, P.stime
        FROM (SELECT DISTINCT id, name, time_bucket(INTERVAL '10 s', dateTime) AS stime FROM person) AS P
        JOIN (SELECT DISTINCT seller, time_bucket(INTERVAL '10 s', dateTime) AS stime FROM auction) AS A
        ON P.id = A.seller AND P.stime = A.stime""",
        _columns("id: bigint; name: string; stime: timestamp"),
        {"person": ("id", "name", "dateTime"), "auction": ("seller", "dateTime")},
    ),
    QuerySpec(
        "q9",
        "Winning bids: each auction with its highest in-time bid, the earliest of equal ones",
        f"""
        SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra
        {_WINNING_BIDS}""",
        _columns(
            "id: bigint; itemName description: string; initialBid reserve: bigint; "
            "dateTime expires: timestamp; seller category: bigint; extra: string; "
            "auction bidder price: bigint; bid_dateTime: timestamp; bid_extra: string"
        ),
        {"auction": _AUCTION_ALL, "bid": _BID},
    ),
    QuerySpec(
        "q10",
        "Log to the file system: every bid with its day and minute",
        """
        SELECT auction, bidder, price, dateTime, extra,
            strftime(dateTime, '%Y-%m-%d') AS dt, strftime(dateTime, '%H:%M') AS hm
        FROM bid""",
        _columns("auction bidder price: bigint; dateTime: timestamp; extra dt hm: string"),
        {"bid": _BID},
    ),
    QuerySpec(
        "q11",
        "User sessions: bids of a bidder with no more than 10 s between two of them",
        """
        WITH steps AS (
            SELECT bidder, dateTime,
                dateTime - lag(dateTime) OVER mine > INTERVAL '10 s' AS opens
            FROM bid WINDOW mine AS (PARTITION BY bidder ORDER BY dateTime)
        ), sessions AS (
            SELECT bidder, dateTime,
                count(*) FILTER (WHERE opens) OVER (PARTITION BY bidder ORDER BY dateTime) AS session
            FROM steps
        )
        SELECT bidder, count(*) AS bid_count,
            min(dateTime) AS starttime, max(dateTime) + INTERVAL '10 s' AS endtime
        FROM sessions GROUP BY bidder, session""",
        _columns("bidder bid_count: bigint; starttime endtime: timestamp"),
        {"bid": ("bidder", "dateTime")},
    ),
    QuerySpec(
        "q12",
        "Bids of each bidder in windows of 10 s of processing time",
        f"""
        SELECT bidder, count(*) AS bid_count,
            make_timestamp({PROCESSING_START_US} + micro_batch * {PROCESSING_STEP_US}) AS starttime,
            make_timestamp({PROCESSING_START_US} + (micro_batch + 1) * {PROCESSING_STEP_US}) AS endtime
        FROM bid_arrival GROUP BY bidder, micro_batch""",
        _columns("bidder bid_count: bigint; starttime endtime: timestamp"),
        {"bid": ("bidder",)},
    ),
    QuerySpec(
        "q13",
        "Bounded side input: every bid with the text of its auction number modulo 10,000",
        """
        SELECT auction, bidder, price, dateTime, CAST(S.key AS VARCHAR) AS value
        FROM bid JOIN (SELECT unnest(range(10000)) AS key) AS S ON auction % 10000 = S.key""",
        _columns("auction bidder price: bigint; dateTime: timestamp; value: string"),
        {"bid": ("auction", "bidder", "price", "dateTime")},
    ),
    QuerySpec(
        "q14",
        "Calculation: bids of some price range in euros, with time of day and the number of c's in extra",
        """
        SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price,
            CASE
                WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime'
            END AS bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid
        WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
        _columns(
            "auction bidder: bigint; price: decimal(23,3); bidTimeType: string; dateTime: timestamp; "
            "extra: string; c_counts: bigint"
        ),
        {"bid": _BID},
    ),
    QuerySpec(
        "q15",
        "Bidding statistics of a day: bids, bidders and auctions, by level of price",
        f"""
        SELECT strftime(dateTime, '%Y-%m-%d') AS day, {_RANK_COUNTS}, {_DISTINCT_COUNTS}
        FROM bid GROUP BY day""",
        _columns(f"day: string; {_RANK_COLUMNS} {_DISTINCT_COLUMNS}: bigint"),
        {"bid": ("auction", "bidder", "price", "dateTime")},
    ),
    QuerySpec(
        "q16",
        "Channel statistics of a day: as q15 for each channel, with the minute of its last bid",
        f"""
        SELECT channel, strftime(dateTime, '%Y-%m-%d') AS day, max(strftime(dateTime, '%H:%M')) AS minute,
            {_RANK_COUNTS}, {_DISTINCT_COUNTS}
        FROM bid GROUP BY channel, day""",
        _columns(f"channel day minute: string; {_RANK_COLUMNS} {_DISTINCT_COLUMNS}: bigint"),
        {"bid": ("auction", "bidder", "price", "channel", "dateTime")},
    ),
    QuerySpec(
        "q17",
        "Auction statistics of a day: bids by level of price; lowest, highest, mean (rounded down), sum",
        f"""
        SELECT auction, strftime(dateTime, '%Y-%m-%d') AS day, {_RANK_COUNTS},
            min(price) AS min_price, max(price) AS max_price,
            CAST(sum(price) // count(*) AS BIGINT) AS avg_price, CAST(sum(price) AS BIGINT) AS sum_price
        FROM bid GROUP BY auction, day""",
        _columns(
            f"auction: bigint; day: string; {_RANK_COLUMNS} min_price max_price avg_price sum_price: bigint"
        ),
        {"bid": ("auction", "price", "dateTime")},
    ),
    QuerySpec(
        "q18",
        "Last bid of each bidder on each auction",
        """
        SELECT auction, bidder, price, channel, url, dateTime, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) = 1""",
        _columns(_BID_COLUMNS),
        {"bid": _BID_ALL},
    ),
    QuerySpec(
        "q19",
        "The ten highest bids of each auction with their rank, the earlier of equal ones first",
        """
        SELECT auction, bidder, price, channel, url, dateTime, extra,
            row_number() OVER (PARTITION BY auction ORDER BY price DESC, dateTime) AS rank_number
        FROM bid QUALIFY rank_number <= 10""",
        _columns(f"{_BID_COLUMNS}; rank_number: bigint"),
        {"bid": _BID_ALL},
    ),
    QuerySpec(
        "q20",
        "Expand a bid with its auction, where the category is 10",
        """
        SELECT auction, bidder, price, channel, url, B.dateTime AS bid_dateTime, B.extra AS bid_extra,
            itemName, description, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller,
            category, A.extra AS auction_extra
        FROM bid AS B JOIN auction AS A ON B.auction = A.id
        WHERE A.category = 10""",
        _columns(
            "auction bidder price: bigint; channel url: string; bid_dateTime: timestamp; bid_extra: string; "
            "itemName description: string; initialBid reserve: bigint; auction_dateTime expires: timestamp; "
            "seller category: bigint; auction_extra: string"
        ),
        {"bid": _BID_ALL, "auction": _AUCTION_ALL},
    ),
    QuerySpec(
        "q21",
        "Add the channel id to a bid: of the four hot channels by name, of others from the url",
        f"""
        SELECT auction, bidder, price, channel,
            CASE lower(channel)
                WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                ELSE {_CHANNEL_ID}
            END AS channel_id
        FROM bid
        WHERE {_CHANNEL_ID} IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu')""",
        _columns("auction bidder price: bigint; channel channel_id: string"),
        {"bid": ("auction", "bidder", "price", "channel", "url")},
    ),
    QuerySpec(
        "q22",
        "The first three directories of a bid's url",
        """
        SELECT auction, bidder, price, channel,
            split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
        FROM bid""",
        _columns("auction bidder price: bigint; channel dir1 dir2 dir3: string"),
        {"bid": ("auction", "bidder", "price", "channel", "url")},
    ),
    QuerySpec(
        "window_join",
        "Bids with the auctions that were opened in the same 10 s",
        """
        SELECT auction, bidder, price, category, B.dateTime
        FROM bid AS B JOIN auction AS A ON B.auction = A.id
            AND time_bucket(INTERVAL '10 s', B.dateTime) = time_bucket(INTERVAL '10 s', A.dateTime)""",
        _columns("auction bidder price category: bigint; dateTime: timestamp"),
        {"auction": ("id", "category", "dateTime"), "bid": ("auction", "bidder", "price", "dateTime")},
    ),
    QuerySpec(
        "window_rank",
        "The three highest bids of each auction in each 10 s, the earlier of equal ones first",
        """
        SELECT auction, bidder, price, dateTime FROM bid
        QUALIFY row_number() OVER (
            PARTITION BY auction, time_bucket(INTERVAL '10 s', dateTime) ORDER BY price DESC, dateTime, bidder
        ) <= 3""",
        _columns("auction bidder price: bigint; dateTime: timestamp"),
        {"bid": ("auction", "bidder", "price", "dateTime")},
    ),
    QuerySpec(
        "temporal_join",
        "Bids with their auction as it was at the time of the bid, to the millisecond",
        """
        SELECT auction, bidder, price, category, B.dateTime
        FROM bid AS B JOIN auction AS A ON B.auction = A.id
            AND date_trunc('millisecond', A.dateTime) <= date_trunc('millisecond', B.dateTime)""",
        _columns("auction bidder price category: bigint; dateTime: timestamp"),
        {"auction": ("id", "category", "dateTime"), "bid": ("auction", "bidder", "price", "dateTime")},
    ),
    QuerySpec(
        "over_range",
        "Each bid with the number and the sum of its auction's bids in the ten seconds up to it, to the millisecond",
        """
        SELECT auction, bidder, price, count(*) OVER recent AS bids, CAST(sum(price) OVER recent AS BIGINT) AS total
        FROM bid WINDOW recent AS (
            PARTITION BY auction ORDER BY date_trunc('millisecond', dateTime)
            RANGE BETWEEN INTERVAL 10 SECONDS PRECEDING AND CURRENT ROW
        )""",
        _columns("auction bidder price bids total: bigint"),
        {"bid": ("auction", "bidder", "price", "dateTime")},
    ),
    QuerySpec(
        "match",
        "Three consecutive bids of an auction within 10 s, to the millisecond: a low, a high and a low one",
        """
        SELECT auction, price AS low, high, back, bidder FROM (
            SELECT auction, price, dateTime, lead(price) OVER next AS high, lead(price, 2) OVER next AS back,
                lead(bidder, 2) OVER next AS bidder, lead(dateTime, 2) OVER next AS until
            FROM bid WINDOW next AS (PARTITION BY auction ORDER BY dateTime, bidder, price)
        ) WHERE price < 10000 AND high >= 1000000 AND back < 10000
            AND date_trunc('millisecond', until) - date_trunc('millisecond', dateTime) < INTERVAL 10 SECONDS""",
        _columns("auction low high back bidder: bigint"),
        {"bid": ("auction", "bidder", "price", "dateTime")},
    ),
)

QUERIES: Mapping[str, QuerySpec] = {spec.name: spec for spec in _SPECS}
"""Every query whose result is known in batch, by name."""
