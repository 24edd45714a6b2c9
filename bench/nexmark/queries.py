"""The Nexmark queries, and others over the same events, as streaming plans on ``operators``.

Owns: ``PLANS``, the queries of Nexmark, and ``ALL_PLANS``: for each the function that declares its changelog over the
stream of events.
Invariant: a plan's output has the columns of its ``QuerySpec`` and ``row_kind``; what needs no state (filters,
projections, the last step over rows of one finished window) is left to Spark; every operator has a uid of its own in
its query.
Must not import the runner, the oracle's engine or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.dataflow import Stream
from asyncstate.lookups import TableLookup
from bench.nexmark.events import auctions, bids, inserts, people
from operators import (
    Aggregate,
    Deduplicate,
    GroupAggregate,
    Join,
    Match,
    OverAggregate,
    Rank,
    StatelessLookupJoin,
    TemporalJoin,
    WindowAggregate,
    WindowJoin,
    WindowRank,
    count,
    desc,
    hop,
    last,
    max_,
    min_,
    range_,
    rows,
    session,
    skip_to_next,
    sum_,
    tumble,
)

Plan = Callable[[Stream], Stream]
"""From the events, narrowed to what the query needs, to its changelog."""

_SIDES = 10_000
_EUROS = "CAST(0.908BD * price AS DECIMAL(23, 3))"
_CHANNEL_ID = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"


def q0(events: Stream) -> Stream:
    """Pass through."""
    return inserts(bids(events))


def q1(events: Stream) -> Stream:
    """Currency conversion."""
    return inserts(bids(events).select("auction", "bidder", f"{_EUROS} AS price", "dateTime", "extra"))


def q2(events: Stream) -> Stream:
    """Selection."""
    return inserts(bids(events).where("auction % 123 = 0"))


def q10(events: Stream) -> Stream:
    """Log to the file system."""
    days = ("date_format(dateTime, 'yyyy-MM-dd') AS dt", "date_format(dateTime, 'HH:mm') AS hm")
    return inserts(bids(events).select("*", *days))


def q14(events: Stream) -> Stream:
    """Calculation."""
    chosen = bids(events).where("0.908BD * price > 1000000 AND 0.908BD * price < 50000000")
    return inserts(
        chosen.select(
            "auction",
            "bidder",
            f"{_EUROS} AS price",
            """CASE
                WHEN hour(dateTime) >= 8 AND hour(dateTime) <= 18 THEN 'dayTime'
                WHEN hour(dateTime) <= 6 OR hour(dateTime) >= 20 THEN 'nightTime'
                ELSE 'otherTime'
            END AS bidTimeType""",
            "dateTime",
            "extra",
            "CAST(length(extra) - length(replace(extra, 'c', '')) AS BIGINT) AS c_counts",
        )
    )


def q13(events: Stream) -> Stream:
    """Each bid with the text of its auction number modulo 10,000, looked up in a bounded table."""
    sides = pa.table({"key": range(_SIDES), "value": [str(key) for key in range(_SIDES)]})
    lookup = TableLookup(sides, ["key"], ["value"])
    # All keys of a bundle go into one request: the table is in memory.
    join = StatelessLookupJoin(
        lookup, pa.schema([("value", pa.string())]), on=["side"], how="inner", batch=_SIDES
    )
    asked = bids(events).select("auction", "bidder", "price", "dateTime", f"auction % {_SIDES} AS side")
    return asked.apply(join, uid="sides").drop("side")


def q21(events: Stream) -> Stream:
    """Add the channel id."""
    by_name = "CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' "
    by_name += f"WHEN 'baidu' THEN '3' ELSE {_CHANNEL_ID} END AS channel_id"
    found = bids(events).select("auction", "bidder", "price", "channel", by_name)
    return inserts(found.where("channel_id IS NOT NULL"))


def q22(events: Stream) -> Stream:
    """Directories of the url."""
    directories = [f"split_part(url, '/', {place}) AS dir{place - 3}" for place in (4, 5, 6)]
    return inserts(bids(events).select("auction", "bidder", "price", "channel", *directories))


_DELAY: dict[str, Any] = {"watermark_delay": "4 seconds"}
"""As in the benchmark's source tables."""
_TIMED: dict[str, Any] = {**_DELAY, "event_time": "dateTime"}
_AT: dict[str, Any] = {**_DELAY, "event_time": "at"}
_MILLISECOND = "date_trunc('millisecond', dateTime)"
KIND = "row_kind"
_DAY_TEXT = "date_format(day, 'yyyy-MM-dd')"
_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def q3(events: Stream) -> Stream:
    """Auctions of category 10 with their sellers of three states: a join of two growing tables."""
    offers = auctions(events).where("category = 10").select("id", "seller")
    sellers = (
        people(events).where("state IN ('OR', 'ID', 'CA')").select("id AS person", "name", "city", "state")
    )
    joined = offers.join(sellers, Join(right_unique="join_key"), key=("seller", "person"), uid="seller")
    return joined.select("name", "city", "state", "id")


def q4(events: Stream) -> Stream:
    """A join, the highest bid of each auction, and the mean of those, which takes back what it replaces.

    Auctions and bids are never taken back, so their inner join is not either: without its row kinds the highest bid
    needs no log of all bids.
    """
    offers = auctions(events).select("id", "category", "dateTime AS opened", "expires")
    paired = offers.join(
        bids(events), Join(left_unique="join_key"), key=("id", "auction"), uid="bids-in-time"
    )
    in_time = paired.where("dateTime BETWEEN opened AND expires").select("id", "category", "price").drop(KIND)
    highest = in_time.apply(
        GroupAggregate([max_("price").alias("final")]), key=("id", "category"), uid="highest"
    )
    means = highest.select("category", "final").apply(
        GroupAggregate([sum_("final").alias("total"), count().alias("auctions")]), key="category", uid="mean"
    )
    return means.select("category AS id", final="total div auctions")


def q5(events: Stream) -> Stream:
    """Bids of each auction in hopping windows, and of each window the auctions with the most: a ranking of windows,
    whose best rows are chosen in the task that counts."""
    counts = bids(events).apply(
        WindowAggregate(hop("10 seconds", "2 seconds"), [count().alias("num")]),
        key="auction",
        uid="counts",
        **_TIMED,
    )
    most = counts.drop(KIND).apply(WindowRank(desc("num"), 1, function="rank"), uid="most")
    return most.select("auction", "num")


def q6(events: Stream) -> Stream:
    """The mean of the winning bids of each seller's last eleven auctions: an OVER of a changelog, since the winner of
    an auction changes with each higher bid."""
    bid = bids(events).select("auction", "price", "dateTime AS bid_dateTime")
    offer = auctions(events).select("id", "seller", "dateTime AS opened", "expires")
    paired = offer.join(bid, Join(left_unique="join_key"), key=("id", "auction"), uid="bids-in-time")
    in_time = paired.where("bid_dateTime BETWEEN opened AND expires")
    bid_of = in_time.select("id", "seller", "price", "bid_dateTime").drop(KIND)
    winning = bid_of.apply(Rank([desc("price"), "bid_dateTime"], 1), key=("id", "seller"), uid="winning")
    aggregates = [sum_("price").alias("total"), count().alias("auctions")]
    last = winning.apply(
        OverAggregate(aggregates, rows(10), order_by=["bid_dateTime", "id"]), key="seller", uid="last"
    )
    return last.select("seller", avg_price="total div auctions")


def q7(events: Stream) -> Stream:
    """Highest price of each window, joined back to its bids."""
    bid = bids(events).transform(_highest_here)
    highest = bid.apply(
        WindowAggregate(tumble("10 seconds"), [max_("price").alias("maxprice")]), uid="highest", **_TIMED
    )
    bounds = highest.select("maxprice", "window_start", "window_end")
    joined = bid.join(bounds, Join(), key=("price", "maxprice"), uid="bids")
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
    window = WindowAggregate(tumble("10 seconds"))
    new = people(events).apply(window, key=("id", "name"), uid="people", **_TIMED)
    sellers = auctions(events).apply(window, key="seller", uid="sellers", **_TIMED)
    opened = sellers.select("seller AS id", "window_start").drop(KIND)
    found = new.drop(KIND).transform(lambda people, sold: people.join(sold, ["id", "window_start"]), opened)
    return inserts(found.select("id", "name", "window_start AS stime"))


def q9(events: Stream) -> Stream:
    """Auctions joined with their bids in time; the highest of each auction, the earliest of equal ones.

    Auctions and bids are never taken back, so their inner join is not either: without its row kinds the ranking
    keeps one row an auction instead of all.
    """
    bid = bids(events).select("auction", "bidder", "price", "dateTime AS bid_dateTime", "extra AS bid_extra")
    paired = auctions(events).join(
        bid, Join(left_unique="join_key"), key=("id", "auction"), uid="bids-in-time"
    )
    in_time = paired.where("bid_dateTime BETWEEN dateTime AND expires").drop(KIND)
    return in_time.apply(Rank([desc("price"), "bid_dateTime"], 1), key="id", uid="winning")


def q11(events: Stream) -> Stream:
    """Bids of each bidder in session windows."""
    sessions = bids(events).apply(
        WindowAggregate(session("10 seconds"), [count().alias("bid_count")]),
        key="bidder",
        uid="sessions",
        **_TIMED,
    )
    return sessions.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime")


def q12(events: Stream) -> Stream:
    """Bids of each bidder in windows of processing time."""
    windows = WindowAggregate(tumble("10 seconds"), [count().alias("bid_count")], time="processing")
    counts = bids(events).apply(windows, key="bidder", uid="counts")
    return counts.select("bidder", "bid_count", "window_start AS starttime", "window_end AS endtime")


def _statistics() -> list[Aggregate]:
    """Bids, bidders and auctions, of all prices and of three ranges."""
    columns = {"bidders": count("bidder").distinct(), "auctions": count("auction").distinct()}
    return [
        *(count().where(rank).alias(f"{rank}_bids") for rank in _RANKS),
        count().alias("total_bids"),
        *(one.alias(f"total_{name}") for name, one in columns.items()),
        *(one.where(rank).alias(f"{rank}_{name}") for name, one in columns.items() for rank in _RANKS),
    ]


def q15(events: Stream) -> Stream:
    """Twelve counts of each day, eight of them of distinct values, each value kept once for all four filters."""
    bid = bids(events).select("auction", "bidder", "to_date(dateTime) AS day", **_RANKS)
    days = bid.apply(GroupAggregate(_statistics()), key="day", uid="days")
    return days.with_columns(day=_DAY_TEXT)


def q16(events: Stream) -> Stream:
    """As q15 for each channel, with the minute of its last bid."""
    bid = bids(events).select(
        "channel", "auction", "bidder", "dateTime", "to_date(dateTime) AS day", **_RANKS
    )
    aggregates = [*_statistics(), max_("dateTime").alias("last")]
    days = bid.apply(GroupAggregate(aggregates), key=("channel", "day"), uid="days")
    return days.with_columns(day=_DAY_TEXT, minute="date_format(last, 'HH:mm')").drop("last")


def q17(events: Stream) -> Stream:
    """Eight aggregates of each auction and day."""
    bid = bids(events).select("auction", "to_date(dateTime) AS day", "price", **_RANKS)
    aggregates = [
        count().alias("total_bids"),
        *(count().where(rank).alias(f"{rank}_bids") for rank in _RANKS),
        min_("price").alias("min_price"),
        max_("price").alias("max_price"),
        sum_("price").alias("sum_price"),
    ]
    days = bid.apply(GroupAggregate(aggregates), key=("auction", "day"), uid="days")
    # The text of a day is made where rows come out: there are fewer of them, and the key stays short.
    return days.with_columns(day=_DAY_TEXT, avg_price="sum_price div total_bids")


def q18(events: Stream) -> Stream:
    """The last bid of each bidder on each auction."""
    return bids(events).apply(
        Deduplicate(keep="last", time="event"), key=("bidder", "auction"), event_time="dateTime", uid="last"
    )


def q19(events: Stream) -> Stream:
    """The ten highest bids of each auction, the earlier of equal ones first."""
    ranking = Rank([desc("price"), "dateTime"], 10, rank_column="rank_number")
    return bids(events).apply(ranking, key="auction", uid="highest")


def q20(events: Stream) -> Stream:
    """Bids joined with their auctions of category 10."""
    bid = bids(events).transform(_renamed("bid"))
    offer = auctions(events).where("category = 10").transform(_renamed("auction"))
    return bid.join(offer, Join(right_unique="join_key"), key=("auction", "id"), uid="auction")


def _renamed(side: str) -> Callable[[DataFrame], DataFrame]:
    """The columns that both tables have, named for their side."""
    return lambda df: df.withColumnsRenamed({name: f"{side}_{name}" for name in ("dateTime", "extra")})


def window_join(events: Stream) -> Stream:
    """Bids with the auctions that were opened in the same window."""
    opened = auctions(events).select("id", "category", "dateTime AS opened")
    joined = bids(events).join(
        opened,
        WindowJoin(window=tumble("10 seconds")),
        key=("auction", "id"),
        event_time=("dateTime", "opened"),
        uid="joined",
        **_DELAY,
    )
    return joined.select("auction", "bidder", "price", "category", "dateTime")


def window_rank(events: Stream) -> Stream:
    """The three highest bids of each auction and window."""
    return bids(events).apply(
        WindowRank([desc("price"), "dateTime", "bidder"], 3, window=tumble("10 seconds")),
        key="auction",
        uid="highest",
        **_TIMED,
    )


def temporal_join(events: Stream) -> Stream:
    """Bids with their auction as it was at their time, to the millisecond."""
    versions = auctions(events).select("id", "category", at=_MILLISECOND)
    joined = (
        bids(events)
        .with_columns(at=_MILLISECOND)
        .join(versions, TemporalJoin(), key=("auction", "id"), uid="versions", **_AT)
    )
    return joined.select("auction", "bidder", "price", "category", "dateTime")


def over_range(events: Stream) -> Stream:
    """Bids with aggregates of their auction's bids in the ten seconds up to them."""
    bid = bids(events).select("auction", "bidder", "price", at=_MILLISECOND)
    recent = OverAggregate([count().alias("bids"), sum_("price").alias("total")], range_("10 seconds"))
    over = bid.apply(recent, key="auction", uid="recent", **_AT)
    return over.select("auction", "bidder", "price", "bids", "total")


def match(events: Stream) -> Stream:
    """A low, a high and again a low bid, one behind the other."""
    bid = bids(events).with_columns(at=_MILLISECOND)
    low, high = pc.field("price") < 10_000, pc.field("price") >= 1_000_000
    found = Match(
        "LOW HIGH BACK",
        {"LOW": low, "HIGH": high, "BACK": low},
        {
            "low": last("price", "LOW"),
            "high": last("price", "HIGH"),
            "back": last("price", "BACK"),
            "bidder": last("bidder", "BACK"),
        },
        within="10 seconds",
        after_match=skip_to_next(),
        then=["dateTime", "bidder", "price"],
    )
    dips = bid.apply(found, key="auction", uid="dips", **_AT)
    return dips.select("auction", "low", "high", "back", "bidder")


_STATELESS = (q0, q1, q2, q10, q13, q14, q21, q22)
_STATEFUL = (q3, q4, q5, q6, q7, q8, q9, q11, q12, q15, q16, q17, q18, q19, q20)
PLANS: Mapping[str, Plan] = {
    plan.__name__: plan for plan in sorted((*_STATELESS, *_STATEFUL), key=lambda plan: int(plan.__name__[1:]))
}
"""The queries of Nexmark that can be run, by name."""
_OTHERS = (window_join, window_rank, temporal_join, over_range, match)
ALL_PLANS: Mapping[str, Plan] = {**PLANS, **{plan.__name__: plan for plan in _OTHERS}}
"""Those and what else is asked of the same events: one operator each, which no Nexmark query needs."""
