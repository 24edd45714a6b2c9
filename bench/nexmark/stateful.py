"""The Nexmark queries that keep state, as streaming plans on ``operators``.

Owns: ``STATEFUL_PLANS``.
Invariant: what needs no state (filters, projections, the last step over rows of one finished window) is left to
Spark; every operator has a uid of its own in its query.
Must not import the runner, the oracle's engine or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.dataflow import Stream
from bench.nexmark.events import auctions, bids, inserts, people
from operators import (
    Aggregate,
    Deduplicate,
    GroupAggregate,
    Join,
    OverAggregate,
    Rank,
    WindowAggregate,
    WindowRank,
    count,
    desc,
    hop,
    max_,
    min_,
    rows,
    session,
    sum_,
    tumble,
)

WATERMARK_DELAY = "4 seconds"
"""As in the benchmark's source tables."""

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
    """A join, the highest bid of each auction, and the mean of those, which retracts the rows it replaces.

    Auctions and bids are insert-only, so their inner join is too: without its row kinds the highest bid
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
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="counts",
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
        WindowAggregate(tumble("10 seconds"), [max_("price").alias("maxprice")]),
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="highest",
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
    time: dict[str, Any] = {"event_time": "dateTime", "watermark_delay": WATERMARK_DELAY}
    new = people(events).apply(window, key=("id", "name"), uid="people", **time)
    sellers = auctions(events).apply(window, key="seller", uid="sellers", **time)
    opened = sellers.select("seller AS id", "window_start").drop(KIND)
    found = new.drop(KIND).transform(lambda people, sold: people.join(sold, ["id", "window_start"]), opened)
    return inserts(found.select("id", "name", "window_start AS stime"))


def q9(events: Stream) -> Stream:
    """Auctions joined with their bids in time; the highest of each auction, the earliest of equal ones.

    Auctions and bids are insert-only, so their inner join is too: without its row kinds the ranking
    keeps one row per auction instead of all.
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
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="sessions",
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


STATEFUL_PLANS: Mapping[str, Callable[[Stream], Stream]] = {
    plan.__name__: plan for plan in (q3, q4, q5, q6, q7, q8, q9, q11, q12, q15, q16, q17, q18, q19, q20)
}
"""The queries with state that can be run, by name."""
