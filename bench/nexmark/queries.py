"""The Nexmark queries, and others over the same events: as streaming plans on ``operators``, and in Spark's SQL.

Invariant: the output has the columns of the ``QuerySpec`` and ``row_kind``; what needs no state (filters, projections,
the last step over rows of one finished window) is left to Spark; every operator has a uid of its own in its query.
Must not import the runner or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

import operators as ops
from asyncstate.changelog import RowKind
from asyncstate.dataflow import Stream
from asyncstate.lookups import TableLookup
from asyncstate.spark import StreamingJob
from bench.nexmark.generator import narrow
from bench.nexmark.oracle import EVENT_KINDS, QUERIES, RANKS, SHARED, read_queries

Plan = Callable[[Stream], Stream]  # from the events, narrowed to what the query needs, to its changelog


def _of(kind: str) -> Plan:
    return lambda events: events.where(f"event_type = {EVENT_KINDS.index(kind)}").select(f"{kind}.*")


people, auctions, bids = map(_of, EVENT_KINDS)
"""Their rows among the events."""


def inserts(rows: Stream) -> Stream:
    """Rows that only ever are added, as a changelog."""
    return rows.with_columns(row_kind=f"'{RowKind.INSERT.text}'")


SIDES = 10_000
_EUROS = "CAST(0.908BD * price AS DECIMAL(23, 3)) AS price"
_CHANNEL = """CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
    WHEN 'baidu' THEN '3' ELSE nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '') END"""
_TIME_OF_DAY = """CASE WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
    WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime' ELSE 'otherTime' END"""
_C_COUNTS = "CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts"
_FORMATS = {"dt": "yyyy-MM-dd", "hm": "HH:mm"}
_BID = ("auction", "bidder", "price", "channel")
_STATELESS = {
    "q0": ("true", ["*"]),
    "q1": ("true", ["auction", "bidder", _EUROS, "dateTime", "extra"]),
    "q2": ("auction % 123 = 0", ["*"]),
    "q10": ("true", ["*", *(f"date_format(dateTime, '{form}') AS {n}" for n, form in _FORMATS.items())]),
    "q14": (
        "0.908BD * price > 1000000 AND 0.908BD * price < 50000000",
        ["auction", "bidder", _EUROS, f"{_TIME_OF_DAY} AS bidTimeType", "dateTime", "extra", _C_COUNTS],
    ),
    "q21": (f"{_CHANNEL} IS NOT NULL", [*_BID, f"{_CHANNEL} AS channel_id"]),
    "q22": ("true", [*_BID, *(f"split_part(url, '/', {part + 3}) AS dir{part}" for part in (1, 2, 3))]),
}
"""Queries that choose and calculate: which bids, and what of them."""


def _chosen(where: str, columns: list[str]) -> Plan:
    return lambda events: inserts(bids(events).where(where).select(*columns))


def q13(events: Stream) -> Stream:
    """Each bid with the text of its auction number modulo 10,000, looked up in a bounded table."""
    sides = pa.table({"key": range(SIDES), "value": [str(key) for key in range(SIDES)]})
    lookup, found = TableLookup(sides, ["key"], ["value"]), pa.schema([("value", pa.string())])
    # All keys of a bundle go into one request: the table is in memory.
    join = ops.StatelessLookupJoin(lookup, found, on=["side"], how="inner", batch=SIDES)
    asked = bids(events).select("auction", "bidder", "price", "dateTime", f"auction % {SIDES} AS side")
    return asked.apply(join, uid="sides").drop("side")


_BIDS = ops.count().alias("bid_count")
_TEN_SECONDS = ops.tumble("10 seconds")
_DELAY: dict[str, Any] = {"watermark_delay": "4 seconds"}  # as in the benchmark's source tables
_TIMED: dict[str, Any] = {**_DELAY, "event_time": "dateTime"}
_AT: dict[str, Any] = {**_DELAY, "event_time": "at"}
_MILLISECOND = "date_trunc('millisecond', dateTime)"
KIND = "row_kind"
_DAY_TEXT = "date_format(day, 'yyyy-MM-dd')"


def q3(events: Stream) -> Stream:
    offers = auctions(events).where("category = 10").select("id", "seller")
    western = people(events).where("state IN ('OR', 'ID', 'CA')")
    sellers = western.select("id AS person", "name", "city", "state")
    joined = offers.join(sellers, ops.Join(right_unique="join_key"), key=("seller", "person"), uid="seller")
    return joined.select("name", "city", "state", "id")


def q4(events: Stream) -> Stream:
    """A join, the highest bid of each auction, and the mean of those, which retracts the rows it replaces. Auctions and
    bids are insert-only, so their inner join is too: without its row kinds the highest bid needs no log of all bids."""
    offers = auctions(events).select("id", "category", "dateTime AS opened", "expires")
    paired = _with_bids(offers, bids(events))
    in_time = paired.where("dateTime BETWEEN opened AND expires").select("id", "category", "price").drop(KIND)
    final = ops.GroupAggregate([ops.max_("price").alias("final")])
    highest = in_time.apply(final, key=("id", "category"), uid="highest").select("category", "final")
    total = ops.GroupAggregate([ops.sum_("final").alias("total"), ops.count().alias("auctions")])
    means = highest.apply(total, key="category", uid="mean")
    return means.select("category AS id", final="total div auctions")


def _with_bids(offers: Stream, bids: Stream) -> Stream:
    return offers.join(bids, ops.Join(left_unique="join_key"), key=("id", "auction"), uid="bids-in-time")


def q5(events: Stream) -> Stream:
    """Bids of each auction in hopping windows, and of each window the auctions with the most: a ranking of windows,
    whose best rows are chosen in the task that counts."""
    count = ops.WindowAggregate(ops.hop("10 seconds", "2 seconds"), [ops.count().alias("num")])
    counts = bids(events).apply(count, key="auction", uid="counts", **_TIMED)
    most = counts.drop(KIND).apply(ops.WindowRank(ops.desc("num"), 1, function="rank"), uid="most")
    return most.select("auction", "num")


def q6(events: Stream) -> Stream:
    """The mean of the winning bids of each seller's last eleven auctions: an OVER of a changelog, since the winner of
    an auction changes with each higher bid."""
    bid = bids(events).select("auction", "price", "dateTime AS bid_dateTime")
    offer = auctions(events).select("id", "seller", "dateTime AS opened", "expires")
    in_time = _with_bids(offer, bid).where("bid_dateTime BETWEEN opened AND expires")
    bid_of = in_time.select("id", "seller", "price", "bid_dateTime").drop(KIND)
    best = ops.Rank([ops.desc("price"), "bid_dateTime"], 1)
    winning = bid_of.apply(best, key=("id", "seller"), uid="winning")
    aggregates = [ops.sum_("price").alias("total"), ops.count().alias("auctions")]
    eleven = ops.OverAggregate(aggregates, ops.rows(10), order_by=["bid_dateTime", "id"])
    return winning.apply(eleven, key="seller", uid="last").select("seller", avg_price="total div auctions")


def q7(events: Stream) -> Stream:
    bid = bids(events).transform(_highest_here)
    most = ops.WindowAggregate(_TEN_SECONDS, [ops.max_("price").alias("maxprice")])
    highest = bid.apply(most, uid="highest", **_TIMED)
    bounds = highest.select("maxprice", "window_start", "window_end")
    joined = bid.join(bounds, ops.Join(), key=("price", "maxprice"), uid="bids")
    in_window = joined.where("dateTime BETWEEN window_start AND window_end")
    return in_window.select("auction", "bidder", "price", "dateTime", "extra")


def _highest_here(bids: DataFrame) -> DataFrame:
    """Only the highest bids of a window's part in this micro-batch can be the highest of the window: the others end
    here. A bid on the boundary also counts for the window before it, so it stays."""
    opens = F.expr("timestamp_micros(unix_micros(dateTime) div 10000000 * 10000000)")
    windowed = bids.withColumn("opens", opens)
    here = windowed.groupBy("opens").agg(F.max("price").alias("highest_here"))
    candidates = windowed.join(F.broadcast(here), "opens").where("price = highest_here OR dateTime = opens")
    return candidates.select("auction", "bidder", "price", "dateTime", "extra")


def q8(events: Stream) -> Stream:
    """People and sellers of each window; both end with the same watermark, so that joining them needs no state."""
    window = ops.WindowAggregate(_TEN_SECONDS)
    new = people(events).apply(window, key=("id", "name"), uid="people", **_TIMED)
    sellers = auctions(events).apply(window, key="seller", uid="sellers", **_TIMED)
    opened = sellers.select("seller AS id", "window_start").drop(KIND)
    found = new.drop(KIND).transform(lambda people, sold: people.join(sold, ["id", "window_start"]), opened)
    return inserts(found.select("id", "name", "window_start AS stime"))


def q9(events: Stream) -> Stream:
    """Auctions joined with their bids in time; the highest of each auction, the earliest of equal ones. Auctions and
    bids are insert-only, so their inner join is too: without its row kinds the ranking keeps one row per auction
    instead of all."""
    bid = bids(events).select("auction", "bidder", "price", "dateTime AS bid_dateTime", "extra AS bid_extra")
    in_time = _with_bids(auctions(events), bid).where("bid_dateTime BETWEEN dateTime AND expires").drop(KIND)
    return in_time.apply(ops.Rank([ops.desc("price"), "bid_dateTime"], 1), key="id", uid="winning")


def q11(events: Stream) -> Stream:
    windows = ops.WindowAggregate(ops.session("10 seconds"), [_BIDS])
    sessions = bids(events).apply(windows, key="bidder", uid="sessions", **_TIMED)
    return sessions.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime")


def q12(events: Stream) -> Stream:
    windows = ops.WindowAggregate(_TEN_SECONDS, [_BIDS], time="processing")
    counts = bids(events).apply(windows, key="bidder", uid="counts")
    return counts.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime")


def _statistics() -> list[ops.Aggregate]:
    """Bids, bidders and auctions, of all prices and of three ranges."""
    columns = {"bidders": ops.count("bidder").distinct(), "auctions": ops.count("auction").distinct()}
    return [
        *(ops.count().where(rank).alias(f"{rank}_bids") for rank in RANKS),
        ops.count().alias("total_bids"),
        *(one.alias(f"total_{name}") for name, one in columns.items()),
        *(one.where(rank).alias(f"{rank}_{name}") for name, one in columns.items() for rank in RANKS),
    ]


def q15(events: Stream) -> Stream:
    """Twelve counts of each day, eight of them of distinct values, each value kept once for all four filters."""
    bid = bids(events).select("auction", "bidder", "to_date(dateTime) AS day", **RANKS)
    days = bid.apply(ops.GroupAggregate(_statistics()), key="day", uid="days")
    return days.with_columns(day=_DAY_TEXT)


def q16(events: Stream) -> Stream:
    """As q15 for each channel, with the minute of its last bid."""
    bid = bids(events).select("channel", "auction", "bidder", "dateTime", "to_date(dateTime) AS day", **RANKS)
    aggregates = [*_statistics(), ops.max_("dateTime").alias("last")]
    days = bid.apply(ops.GroupAggregate(aggregates), key=("channel", "day"), uid="days")
    return days.with_columns(day=_DAY_TEXT, minute="date_format(last, 'HH:mm')").drop("last")


def q17(events: Stream) -> Stream:
    bid = bids(events).select("auction", "to_date(dateTime) AS day", "price", **RANKS)
    aggregates = [
        ops.count().alias("total_bids"),
        *(ops.count().where(rank).alias(f"{rank}_bids") for rank in RANKS),
        ops.min_("price").alias("min_price"),
        ops.max_("price").alias("max_price"),
        ops.sum_("price").alias("sum_price"),
    ]
    days = bid.apply(ops.GroupAggregate(aggregates), key=("auction", "day"), uid="days")
    # The text of a day is made where rows come out: there are fewer of them, and the key stays short.
    return days.with_columns(day=_DAY_TEXT, avg_price="sum_price div total_bids")


def q18(events: Stream) -> Stream:
    last = ops.Deduplicate(keep="last", time="event")
    return bids(events).apply(last, key=("bidder", "auction"), event_time="dateTime", uid="last")


def q19(events: Stream) -> Stream:
    ranking = ops.Rank([ops.desc("price"), "dateTime"], 10, rank_column="rank_number")
    return bids(events).apply(ranking, key="auction", uid="highest")


def q20(events: Stream) -> Stream:
    bid = bids(events).transform(_renamed("bid"))
    offer = auctions(events).where("category = 10").transform(_renamed("auction"))
    return bid.join(offer, ops.Join(right_unique="join_key"), key=("auction", "id"), uid="auction")


def _renamed(side: str) -> Callable[[DataFrame], DataFrame]:
    """The columns that both tables have, named for their side."""
    return lambda df: df.withColumnsRenamed({name: f"{side}_{name}" for name in ("dateTime", "extra")})


def window_join(events: Stream) -> Stream:
    opened = auctions(events).select("id", "category", "dateTime AS opened")
    how: dict[str, Any] = {"key": ("auction", "id"), "event_time": ("dateTime", "opened"), **_DELAY}
    joined = bids(events).join(opened, ops.WindowJoin(window=_TEN_SECONDS), uid="joined", **how)
    return joined.select("auction", "bidder", "price", "category", "dateTime")


def window_rank(events: Stream) -> Stream:
    ranking = ops.WindowRank([ops.desc("price"), "dateTime", "bidder"], 3, window=_TEN_SECONDS)
    return bids(events).apply(ranking, key="auction", uid="highest", **_TIMED)


def temporal_join(events: Stream) -> Stream:
    versions, bid = auctions(events).select("id", "category", at=_MILLISECOND), bids(events)
    timed = bid.with_columns(at=_MILLISECOND)
    joined = timed.join(versions, ops.TemporalJoin(), key=("auction", "id"), uid="versions", **_AT)
    return joined.select("auction", "bidder", "price", "category", "dateTime")


def over_range(events: Stream) -> Stream:
    bid = bids(events).select("auction", "bidder", "price", at=_MILLISECOND)
    aggregates = [ops.count().alias("bids"), ops.sum_("price").alias("total")]
    recent = ops.OverAggregate(aggregates, ops.range_("10 seconds"))
    over = bid.apply(recent, key="auction", uid="recent", **_AT)
    return over.select("auction", "bidder", "price", "bids", "total")


def match(events: Stream) -> Stream:
    bid = bids(events).with_columns(at=_MILLISECOND)
    low, high = pc.field("price") < 10_000, pc.field("price") >= 1_000_000
    measures = {name: ops.last("price", name.upper()) for name in ("low", "high", "back")}
    found = ops.Match(
        "LOW HIGH BACK",
        {"LOW": low, "HIGH": high, "BACK": low},
        {**measures, "bidder": ops.last("bidder", "BACK")},
        within="10 seconds",
        after_match=ops.skip_to_next(),
        then=["dateTime", "bidder", "price"],
    )
    dips = bid.apply(found, key="auction", uid="dips", **_AT)
    return dips.select("auction", "low", "high", "back", "bidder")


_STATEFUL = (q3, q4, q5, q6, q7, q8, q9, q11, q12, q13, q15, q16, q17, q18, q19, q20)
_OF_NEXMARK: dict[str, Plan] = {name: _chosen(*what) for name, what in _STATELESS.items()}
_OF_NEXMARK |= {plan.__name__: plan for plan in _STATEFUL}
PLANS: Mapping[str, Plan] = dict(sorted(_OF_NEXMARK.items(), key=lambda named: int(named[0][1:])))
"""The queries of Nexmark that can be run, by name; what each is, its ``QuerySpec`` says."""
_OTHERS = (window_join, window_rank, temporal_join, over_range, match)
ALL_PLANS: Mapping[str, Plan] = {**PLANS, **{plan.__name__: plan for plan in _OTHERS}}
"""Those and what else is asked of the same events: one operator each, which no Nexmark query needs."""

_ROWS: Mapping[str, Callable[[Any], Any]] = {"person": people, "auction": auctions, "bid": bids}
"""By table its rows among the events, of a DataFrame as of a Stream."""
_WAITING = ("q5", "q7", "q8", "q11")
"""Those that wait for the watermark: in SQL each of their tables is a source of its own."""
_IN_SQL = {
    **SHARED,
    "day": "date_format(dateTime, 'yyyy-MM-dd') AS day",
    "hops": """SELECT auction, count(*) AS num, w.start AS starttime, w.end AS endtime FROM
    (SELECT auction, window(dateTime, '10 seconds', '2 seconds') AS w FROM bid) GROUP BY auction, w""",
    "in_time": "FROM auction A JOIN bid B ON A.id = B.auction AND B.dateTime BETWEEN A.dateTime AND A.expires",
    "sides": str(SIDES),
}
STATEMENTS = {
    name: f"SELECT {', '.join(columns)} FROM bid WHERE {where}"
    for name, (where, columns) in _STATELESS.items()
} | {name: sql for (name,), sql in read_queries(Path(__file__).with_name("statements.sql"), **_IN_SQL)}
"""The queries in SQL, by name."""


def statement(job: StreamingJob, query: str, events: DataFrame) -> Stream:
    """The changelog of a query in SQL. ``events``: the stream of all kinds."""
    spec = QUERIES[query]
    if query in _WAITING:
        for table in spec.needs:
            job.source(table, _ROWS[table](narrow(events, spec)), **_TIMED)
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
