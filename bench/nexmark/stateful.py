"""The Nexmark queries that keep state, as streaming plans on ``operators``.

Owns: ``STATEFUL_PLANS``.
Invariant: what needs no state (filters, projections, the last step over rows of one finished window) is left to
Spark; every operator has a uid of its own in its query.
Must not import the runner, the oracle's engine or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with
from pyspark.sql.window import Window

from asyncstate.changelog import ROW_KIND_COLUMN
from bench.nexmark.events import auctions, bids, inserts, people
from operators import (
    Aggregate,
    Deduplicate,
    GroupAggregate,
    Join,
    OverAggregate,
    Rank,
    WindowAggregate,
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

if TYPE_CHECKING:
    from asyncstate.spark import MicroBatch

WATERMARK_DELAY = "4 seconds"
"""As in the benchmark's source tables."""

_RANKS = {
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}


def q3(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Auctions of category 10 with their sellers of three states: a join of two growing tables."""
    offers = auctions(events).where("category = 10").select("id", "seller")
    sellers = people(events).where("state IN ('OR', 'ID', 'CA')").withColumnRenamed("id", "person")
    joined = batch.apply(
        Join(right_unique="join_key"), offers, sellers, key=("seller", "person"), uid="seller"
    )
    return joined.select("name", "city", "state", "id", ROW_KIND_COLUMN)


def q4(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """A join, the highest bid of each auction, and the mean of those, which takes back what it replaces."""
    offers = auctions(events).select("id", "category", F.col("dateTime").alias("opened"), "expires")
    paired = batch.apply(
        Join(left_unique="join_key"), offers, bids(events), key=("id", "auction"), uid="bids-in-time"
    )
    in_time = paired.where("dateTime BETWEEN opened AND expires").select("id", "category", "price")
    highest = batch.apply(
        GroupAggregate([max_("price").alias("final")]), in_time, key=("id", "category"), uid="highest"
    )
    means = batch.apply(
        GroupAggregate([sum_("final").alias("total"), count().alias("auctions")]),
        highest.select("category", "final", ROW_KIND_COLUMN),
        key="category",
        uid="mean",
    )
    return means.selectExpr("category AS id", "total div auctions AS final", ROW_KIND_COLUMN)


def q5(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Bids of each auction in hopping windows. A window's rows all come in the micro-batch in which it ends, so
    that the choice of the highest needs no state."""
    counts = batch.apply(
        WindowAggregate(hop("10 seconds", "2 seconds"), [count().alias("num")]),
        bids(events),
        key="auction",
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="counts",
    )
    most = F.max("num").over(Window.partitionBy("window_end"))
    return counts.withColumn("most", most).where("num = most").select("auction", "num", ROW_KIND_COLUMN)


def q6(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """The mean of the winning bids of each seller's last eleven auctions: an OVER of a changelog, since the winner of
    an auction changes with each higher bid."""
    bid = bids(events).select("auction", "price", F.col("dateTime").alias("bid_dateTime"))
    offer = auctions(events).select("id", "seller", F.col("dateTime").alias("opened"), "expires")
    paired = batch.apply(Join(left_unique="join_key"), offer, bid, key=("id", "auction"), uid="bids-in-time")
    in_time = paired.where("bid_dateTime BETWEEN opened AND expires").select(
        "id", "seller", "price", "bid_dateTime"
    )
    winning = batch.apply(
        Rank([desc("price"), "bid_dateTime"], 1), in_time, key=("id", "seller"), uid="winning"
    )
    last = batch.apply(
        OverAggregate(
            [sum_("price").alias("total"), count().alias("auctions")],
            rows(10),
            order_by=["bid_dateTime", "id"],
        ),
        winning,
        key="seller",
        uid="last",
    )
    return last.selectExpr("seller", "total div auctions AS avg_price", ROW_KIND_COLUMN)


def q7(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Highest price of each window, joined back to its bids.

    Only the highest bids of a window's part in this micro-batch can be the highest of the window: the others end
    here. A bid on the boundary also counts for the window before it, so it stays.
    """
    windowed = bids(events).withColumn(
        "opens", F.expr("timestamp_micros(unix_micros(dateTime) div 10000000 * 10000000)")
    )
    here = windowed.groupBy("opens").agg(F.max("price").alias("highest_here"))
    candidates = windowed.join(F.broadcast(here), "opens").where("price = highest_here OR dateTime = opens")
    bid = candidates.select("auction", "bidder", "price", "dateTime", "extra")
    highest = batch.apply(
        WindowAggregate(tumble("10 seconds"), [max_("price").alias("maxprice")]),
        bid,
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="highest",
    )
    joined = batch.apply(
        Join(),
        bid,
        highest.select("maxprice", "window_start", "window_end"),
        key=("price", "maxprice"),
        uid="bids",
    )
    in_window = joined.where("dateTime BETWEEN window_start AND window_end")
    return in_window.select("auction", "bidder", "price", "dateTime", "extra", ROW_KIND_COLUMN)


def q8(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """People and sellers of each window; both end with the same watermark, so that joining them needs no state."""
    window = tumble("10 seconds")
    new = batch.apply(
        WindowAggregate(window),
        people(events),
        key=("id", "name"),
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="people",
    )
    sellers = batch.apply(
        WindowAggregate(window),
        auctions(events),
        key="seller",
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="sellers",
    )
    opened = sellers.select(F.col("seller").alias("id"), "window_start")
    found = new.drop(ROW_KIND_COLUMN).join(opened, ["id", "window_start"])
    return inserts(found.select("id", "name", F.col("window_start").alias("stime")))


def q9(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Auctions joined with their bids in time; the highest of each auction, the earliest of equal ones.

    Auctions and bids are never taken back, so their inner join is not either: without its row kinds the ranking
    keeps one row an auction instead of all.
    """
    bid = bids(events).withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    paired = batch.apply(
        Join(left_unique="join_key"), auctions(events), bid, key=("id", "auction"), uid="bids-in-time"
    )
    in_time = paired.where("bid_dateTime BETWEEN dateTime AND expires").drop(ROW_KIND_COLUMN)
    return batch.apply(Rank([desc("price"), "bid_dateTime"], 1), in_time, key="id", uid="winning")


def q11(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Bids of each bidder in session windows."""
    sessions = batch.apply(
        WindowAggregate(session("10 seconds"), [count().alias("bid_count")]),
        bids(events),
        key="bidder",
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="sessions",
    )
    return sessions.selectExpr(
        "bidder", "bid_count", "window_start AS starttime", "window_end AS endtime", ROW_KIND_COLUMN
    )


def _statistics() -> list[Aggregate]:
    """Bids, bidders and auctions, of all prices and of three ranges."""
    columns = {"bidders": count("bidder").distinct(), "auctions": count("auction").distinct()}
    return [
        *(count().where(rank).alias(f"{rank}_bids") for rank in _RANKS),
        count().alias("total_bids"),
        *(one.alias(f"total_{name}") for name, one in columns.items()),
        *(one.where(rank).alias(f"{rank}_{name}") for name, one in columns.items() for rank in _RANKS),
    ]


def q15(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Twelve counts of each day, eight of them of distinct values, each value kept once for all four filters."""
    levels = [F.expr(condition).alias(rank) for rank, condition in _RANKS.items()]
    rows = bids(events).select("auction", "bidder", F.to_date("dateTime").alias("day"), *levels)
    days = batch.apply(GroupAggregate(_statistics()), rows, key="day", uid="days")
    return days.withColumn("day", F.date_format("day", "yyyy-MM-dd"))


def q16(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """As q15 for each channel, with the minute of its last bid."""
    levels = [F.expr(condition).alias(rank) for rank, condition in _RANKS.items()]
    day = F.to_date("dateTime").alias("day")
    rows = bids(events).select("channel", "auction", "bidder", "dateTime", day, *levels)
    aggregates = [*_statistics(), max_("dateTime").alias("last")]
    days = batch.apply(GroupAggregate(aggregates), rows, key=("channel", "day"), uid="days")
    return days.withColumns(
        {"day": F.date_format("day", "yyyy-MM-dd"), "minute": F.date_format("last", "HH:mm")}
    ).drop("last")


def q17(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Eight aggregates of each auction and day."""
    levels = [F.expr(condition).alias(rank) for rank, condition in _RANKS.items()]
    rows = bids(events).select("auction", F.to_date("dateTime").alias("day"), "price", *levels)
    aggregates = [
        count().alias("total_bids"),
        *(count().where(rank).alias(f"{rank}_bids") for rank in _RANKS),
        min_("price").alias("min_price"),
        max_("price").alias("max_price"),
        sum_("price").alias("sum_price"),
    ]
    days = batch.apply(GroupAggregate(aggregates), rows, key=("auction", "day"), uid="days")
    # The text of a day is made where rows come out: there are fewer of them, and the key stays short.
    day = F.date_format("day", "yyyy-MM-dd")
    return days.withColumns({"day": day, "avg_price": F.expr("sum_price div total_bids")})


def q18(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """The last bid of each bidder on each auction."""
    return batch.apply(
        Deduplicate(keep="last", time="event"),
        bids(events),
        key=("bidder", "auction"),
        event_time="dateTime",
        uid="last",
    )


def q19(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """The ten highest bids of each auction, the earlier of equal ones first."""
    return batch.apply(
        Rank([desc("price"), "dateTime"], 10, rank_column="rank_number"),
        bids(events),
        key="auction",
        uid="highest",
    )


def q20(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Bids joined with their auctions of category 10."""
    bid = bids(events).withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    offer = auctions(events).where("category = 10")
    offer = offer.withColumnsRenamed({"dateTime": "auction_dateTime", "extra": "auction_extra"})
    return batch.apply(Join(right_unique="join_key"), bid, offer, key=("auction", "id"), uid="auction")


STATEFUL_PLANS: Mapping[str, Callable[[MicroBatch, DataFrame], DataFrame]] = {
    plan.__name__: plan for plan in (q3, q4, q5, q6, q7, q8, q9, q11, q15, q16, q17, q18, q19, q20)
}
"""The queries with state that can be run, by name."""
