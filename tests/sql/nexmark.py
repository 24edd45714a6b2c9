# ruff: noqa: E501  # statements are data
"""Nexmark: small events, the queries in Spark's words (the benchmark's text where it parses)."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa

from tests.sql.tables import Change, Tables

L, S, T = pa.int64(), pa.string(), pa.timestamp("us", tz="UTC")
SCHEMAS = {
    "person": pa.schema(
        [
            ("id", L),
            ("name", S),
            ("emailAddress", S),
            ("creditCard", S),
            ("city", S),
            ("state", S),
            ("dateTime", T),
            ("extra", S),
        ]
    ),
    "auction": pa.schema(
        [
            ("id", L),
            ("itemName", S),
            ("description", S),
            ("initialBid", L),
            ("reserve", L),
            ("dateTime", T),
            ("expires", T),
            ("seller", L),
            ("category", L),
            ("extra", S),
        ]
    ),
    "bid": pa.schema(
        [
            ("auction", L),
            ("bidder", L),
            ("price", L),
            ("channel", S),
            ("url", S),
            ("dateTime", T),
            ("extra", S),
        ]
    ),
}


def events(seed: int = 5, count: int = 400, batches: int = 4, delay: str = "4 seconds") -> Tables:
    """Events in order of time: people, auctions and bids on the last ones."""
    rng = random.Random(seed)
    begin = dt.datetime(2024, 1, 1, 7, 59, 0, tzinfo=dt.UTC)
    changes: dict[str, list[list[Change]]] = {name: [[] for _ in range(batches)] for name in SCHEMAS}
    people, auctions = 0, 0
    for number in range(count):
        at, batch = begin + dt.timedelta(milliseconds=200 * number), number * batches // count
        if number % 12 == 0 or people < 3:
            city, state = rng.choice(["Portland", "Kent"]), rng.choice(["OR", "ID", "CA", "WA"])
            changes["person"][batch].append(
                ("+I", (people, f"name{people % 7}", "e", "c", city, state, at, "x"))
            )
            people += 1
        elif number % 12 in (1, 2) or auctions < 3:
            expires = at + dt.timedelta(seconds=rng.randrange(1, 30))
            seller = rng.randrange(max(0, people - 6), people)
            bounds = rng.randrange(100), rng.randrange(1000)
            row = (auctions, f"item{auctions}", "d", *bounds, at, expires, seller, 10 + rng.randrange(3), "x")
            changes["auction"][batch].append(("+I", row))
            auctions += 1
        else:
            channel = rng.choice(["Apple", "Google", "Baidu", "channel-7"])
            url = "https://www.nexmark.com/ab/cd/item.htm?query=1" + (
                "&channel_id=77" if rng.random() < 0.5 else ""
            )
            of = rng.randrange(max(0, auctions - 8), auctions), rng.randrange(max(0, people - 8), people)
            row = (*of, rng.randrange(1, 3_000_000), channel, url, at, "cabccx"[: rng.randrange(1, 6)])
            changes["bid"][batch].append(("+I", row))
    return Tables(SCHEMAS, changes, insert_only=True, times=dict.fromkeys(SCHEMAS, "dateTime"), delay=delay)


QUERIES: dict[str, tuple[str, str]] = {
    "q0": ("""SELECT auction, bidder, price, dateTime, extra FROM bid""", """"""),
    "q1": (
        """SELECT auction, bidder, CAST(0.908 * price AS DECIMAL(23, 3)) AS price, dateTime, extra FROM bid""",
        """""",
    ),
    "q2": ("""SELECT auction, price FROM bid WHERE MOD(auction, 3) = 0""", """"""),
    "q3": (
        """SELECT P.name, P.city, P.state, A.id FROM auction AS A INNER JOIN person AS P ON A.seller = P.id WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')""",
        """""",
    ),
    "q4": (
        """SELECT Q.category, AVG(Q.final) AS final FROM (SELECT MAX(B.price) AS final, A.category FROM auction A, bid B WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires GROUP BY A.id, A.category) Q GROUP BY Q.category""",
        """""",
    ),
    "q5": (
        """SELECT AuctionBids.auction, AuctionBids.num FROM (SELECT auction, count(*) AS num, w.start AS starttime, w.end AS endtime FROM (SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS w FROM bid) GROUP BY auction, w) AS AuctionBids
 JOIN (SELECT max(CountBids.num) AS maxn, CountBids.starttime, CountBids.endtime FROM (SELECT count(*) AS num, w.start AS starttime, w.end AS endtime FROM (SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS w FROM bid) GROUP BY auction, w) AS CountBids GROUP BY CountBids.starttime, CountBids.endtime) AS MaxBids
 ON AuctionBids.starttime = MaxBids.starttime AND AuctionBids.endtime = MaxBids.endtime AND AuctionBids.num >= MaxBids.maxn""",
        """WITH c AS (SELECT auction, w, count(*) AS num FROM (SELECT auction, epoch_us(dateTime) // 2000000 - unnest(range(5)) AS w FROM bid) GROUP BY auction, w) SELECT auction, num FROM c QUALIFY num = max(num) OVER (PARTITION BY w)""",
    ),
    "q6": (
        """SELECT Q.seller, AVG(Q.price) OVER (PARTITION BY Q.seller ORDER BY Q.dateTime ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS avg_price FROM (
 SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id, seller ORDER BY price DESC) AS rownum FROM (SELECT A.id, A.seller, B.price, B.dateTime FROM auction AS A, bid AS B WHERE A.id = B.auction and B.dateTime between A.dateTime and A.expires)) WHERE rownum <= 1) AS Q""",
        """""",
    ),
    "q7": (
        """SELECT B.auction, B.price, B.bidder, B.dateTime, B.extra FROM bid B JOIN (SELECT MAX(price) AS maxprice, w.end as dateTime FROM (SELECT price, window(dateTime, '10 seconds') AS w FROM bid) GROUP BY w) B1
 ON B.price = B1.maxprice WHERE B.dateTime BETWEEN B1.dateTime - INTERVAL '10' SECOND AND B1.dateTime""",
        """WITH h AS (SELECT max(price) AS m, time_bucket(INTERVAL '10 s', dateTime) + INTERVAL '10 s' AS e FROM bid GROUP BY e) SELECT auction, price, bidder, dateTime, extra FROM bid JOIN h ON price = m WHERE dateTime BETWEEN e - INTERVAL '10 s' AND e""",
    ),
    "q8": (
        """SELECT P.id, P.name, P.starttime FROM (SELECT id, name, w.start AS starttime, w.end AS endtime FROM (SELECT id, name, window(dateTime, '10 seconds') AS w FROM person) GROUP BY id, name, w) P
 JOIN (SELECT seller, w.start AS starttime, w.end AS endtime FROM (SELECT seller, window(dateTime, '10 seconds') AS w FROM auction) GROUP BY seller, w) A ON P.id = A.seller AND P.starttime = A.starttime AND P.endtime = A.endtime""",
        """SELECT P.id, P.name, P.s FROM (SELECT DISTINCT id, name, time_bucket(INTERVAL '10 s', dateTime) AS s FROM person) P JOIN (SELECT DISTINCT seller, time_bucket(INTERVAL '10 s', dateTime) AS s FROM auction) A ON P.id = A.seller AND P.s = A.s""",
    ),
    "q9": (
        """SELECT id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra, auction, bidder, price, bid_dateTime, bid_extra FROM (
 SELECT A.*, B.auction, B.bidder, B.price, B.dateTime AS bid_dateTime, B.extra AS bid_extra, ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.dateTime ASC) AS rownum
 FROM auction A, bid B WHERE A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires) WHERE rownum <= 1""",
        """""",
    ),
    "q10": (
        """SELECT auction, bidder, price, dateTime, extra, DATE_FORMAT(dateTime, 'yyyy-MM-dd') AS d, DATE_FORMAT(dateTime, 'HH:mm') AS m FROM bid""",
        """SELECT auction, bidder, price, dateTime, extra, strftime(dateTime, '%Y-%m-%d'), strftime(dateTime, '%H:%M') FROM bid""",
    ),
    "q11": (
        """SELECT bidder, count(*) AS bid_count, w.start AS starttime, w.end AS endtime FROM (SELECT bidder, session_window(dateTime, '10 seconds') AS w FROM bid) GROUP BY bidder, w""",
        """WITH steps AS (SELECT bidder, dateTime, dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime) > INTERVAL '10 s' AS opens FROM bid), s AS (SELECT bidder, dateTime, count(*) FILTER (WHERE opens) OVER (PARTITION BY bidder ORDER BY dateTime) AS n FROM steps)
 SELECT bidder, count(*), min(dateTime), max(dateTime) + INTERVAL '10 s' FROM s GROUP BY bidder, n""",
    ),
    "q13": (
        """SELECT B.auction, B.bidder, B.price, B.dateTime, S.value FROM bid B JOIN side_input S ON mod(B.auction, 10000) = S.key""",
        """SELECT auction, bidder, price, dateTime, CAST(auction % 10000 AS VARCHAR) FROM bid WHERE auction % 10000 < 40""",
    ),
    "q14": (
        """SELECT auction, bidder, 0.908 * price as price, CASE WHEN HOUR(dateTime) >= 8 AND HOUR(dateTime) <= 18 THEN 'dayTime' WHEN HOUR(dateTime) <= 6 OR HOUR(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bidTimeType, dateTime, extra,
 length(extra) - length(replace(extra, 'c', '')) AS c_counts FROM bid WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000""",
        """""",
    ),
    "q15": (
        """SELECT DATE_FORMAT(dateTime, 'yyyy-MM-dd') as `day`, count(*) AS total_bids, count(*) filter (where price < 10000) AS rank1_bids, count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids, count(*) filter (where price >= 1000000) AS rank3_bids, count(distinct bidder) AS total_bidders, count(distinct bidder) filter (where price < 10000) AS rank1_bidders, count(distinct bidder) filter (where price >= 10000 and price < 1000000) AS rank2_bidders, count(distinct bidder) filter (where price >= 1000000) AS rank3_bidders, count(distinct auction) AS total_auctions, count(distinct auction) filter (where price < 10000) AS rank1_auctions, count(distinct auction) filter (where price >= 10000 and price < 1000000) AS rank2_auctions, count(distinct auction) filter (where price >= 1000000) AS rank3_auctions FROM bid GROUP BY DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
        """SELECT strftime(dateTime, '%Y-%m-%d') AS d, count(*) AS total_bids, count(*) filter (where price < 10000) AS rank1_bids, count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids, count(*) filter (where price >= 1000000) AS rank3_bids, count(distinct bidder) AS total_bidders, count(distinct bidder) filter (where price < 10000) AS rank1_bidders, count(distinct bidder) filter (where price >= 10000 and price < 1000000) AS rank2_bidders, count(distinct bidder) filter (where price >= 1000000) AS rank3_bidders, count(distinct auction) AS total_auctions, count(distinct auction) filter (where price < 10000) AS rank1_auctions, count(distinct auction) filter (where price >= 10000 and price < 1000000) AS rank2_auctions, count(distinct auction) filter (where price >= 1000000) AS rank3_auctions FROM bid GROUP BY d""",
    ),
    "q16": (
        """SELECT channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd') as `day`, max(DATE_FORMAT(dateTime, 'HH:mm')) as `minute`, count(*) AS total_bids, count(*) filter (where price < 10000) AS rank1_bids, count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids, count(*) filter (where price >= 1000000) AS rank3_bids, count(distinct bidder) AS total_bidders, count(distinct bidder) filter (where price < 10000) AS rank1_bidders, count(distinct bidder) filter (where price >= 10000 and price < 1000000) AS rank2_bidders, count(distinct bidder) filter (where price >= 1000000) AS rank3_bidders, count(distinct auction) AS total_auctions, count(distinct auction) filter (where price < 10000) AS rank1_auctions, count(distinct auction) filter (where price >= 10000 and price < 1000000) AS rank2_auctions, count(distinct auction) filter (where price >= 1000000) AS rank3_auctions FROM bid GROUP BY channel, DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
        """SELECT channel, strftime(dateTime, '%Y-%m-%d') AS d, max(strftime(dateTime, '%H:%M')), count(*) AS total_bids, count(*) filter (where price < 10000) AS rank1_bids, count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids, count(*) filter (where price >= 1000000) AS rank3_bids, count(distinct bidder) AS total_bidders, count(distinct bidder) filter (where price < 10000) AS rank1_bidders, count(distinct bidder) filter (where price >= 10000 and price < 1000000) AS rank2_bidders, count(distinct bidder) filter (where price >= 1000000) AS rank3_bidders, count(distinct auction) AS total_auctions, count(distinct auction) filter (where price < 10000) AS rank1_auctions, count(distinct auction) filter (where price >= 10000 and price < 1000000) AS rank2_auctions, count(distinct auction) filter (where price >= 1000000) AS rank3_auctions FROM bid GROUP BY channel, d""",
    ),
    "q17": (
        """SELECT auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd') as `day`, count(*) AS total_bids, count(*) filter (where price < 10000) AS rank1_bids, count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids, count(*) filter (where price >= 1000000) AS rank3_bids, min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, DATE_FORMAT(dateTime, 'yyyy-MM-dd')""",
        """SELECT auction, strftime(dateTime, '%Y-%m-%d') AS d, count(*) AS total_bids, count(*) filter (where price < 10000) AS rank1_bids, count(*) filter (where price >= 10000 and price < 1000000) AS rank2_bids, count(*) filter (where price >= 1000000) AS rank3_bids, min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY auction, d""",
    ),
    "q18": (
        """SELECT auction, bidder, price, channel, url, dateTime, extra FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) AS rank_number FROM bid) WHERE rank_number <= 1""",
        """""",
    ),
    "q19": (
        """SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC) AS rank_number FROM bid) WHERE rank_number <= 10""",
        """""",
    ),
    "q20": (
        """SELECT auction, bidder, price, channel, url, B.dateTime AS bd, B.extra AS be, itemName, description, initialBid, reserve, A.dateTime AS ad, expires, seller, category, A.extra AS ae FROM bid AS B INNER JOIN auction AS A on B.auction = A.id WHERE A.category = 10""",
        """""",
    ),
    "q21": (
        """SELECT auction, bidder, price, channel, CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1' WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
 ELSE nullif(REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2), '') END AS channel_id FROM bid where nullif(REGEXP_EXTRACT(url, '(&|^)channel_id=([^&]*)', 2), '') is not null or lower(channel) in ('apple', 'google', 'facebook', 'baidu')""",
        """""",
    ),
    "q22": (
        """SELECT auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2, split_part(url, '/', 6) as dir3 FROM bid""",
        """""",
    ),
    "q23": (
        """SELECT bidder, price, channel, url, B.extra AS bid_extra, P.id AS person_id, name, emailAddress, city, state, itemName, initialBid, reserve, A.dateTime AS auction_dateTime, expires, seller, category FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder""",
        """""",
    ),
}
