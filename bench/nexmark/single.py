"""Queries over Nexmark's events that are none of Nexmark's: one operator each, which no Nexmark query needs.

Owns: ``SINGLE_PLANS``.
Invariant: as for the plans of Nexmark.
Must not import the runner, the oracle's engine or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow.compute as pc

from asyncstate.dataflow import Stream
from bench.nexmark.events import auctions, bids
from bench.nexmark.stateful import WATERMARK_DELAY
from operators import (
    Match,
    OverAggregate,
    TemporalJoin,
    WindowJoin,
    WindowRank,
    count,
    desc,
    last,
    range_,
    skip_to_next,
    sum_,
    tumble,
)


def window_join(events: Stream) -> Stream:
    """Bids with the auctions that were opened in the same window."""
    opened = auctions(events).select("id", "category", "dateTime AS opened")
    joined = bids(events).join(
        opened,
        WindowJoin(window=tumble("10 seconds")),
        key=("auction", "id"),
        event_time=("dateTime", "opened"),
        watermark_delay=WATERMARK_DELAY,
        uid="joined",
    )
    return joined.select("auction", "bidder", "price", "category", "dateTime")


def window_rank(events: Stream) -> Stream:
    """The three highest bids of each auction and window."""
    return bids(events).apply(
        WindowRank([desc("price"), "dateTime", "bidder"], 3, window=tumble("10 seconds")),
        key="auction",
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="highest",
    )


def temporal_join(events: Stream) -> Stream:
    """Bids with their auction as it was at their time, to the millisecond."""
    at = "date_trunc('millisecond', dateTime)"
    versions = auctions(events).select("id", "category", at=at)
    joined = (
        bids(events)
        .with_columns(at=at)
        .join(
            versions,
            TemporalJoin(),
            key=("auction", "id"),
            event_time="at",
            watermark_delay=WATERMARK_DELAY,
            uid="versions",
        )
    )
    return joined.select("auction", "bidder", "price", "category", "dateTime")


def over_range(events: Stream) -> Stream:
    """Bids with aggregates of their auction's bids in the ten seconds up to them."""
    bid = bids(events).select("auction", "bidder", "price", at="date_trunc('millisecond', dateTime)")
    recent = OverAggregate([count().alias("bids"), sum_("price").alias("total")], range_("10 seconds"))
    over = bid.apply(recent, key="auction", event_time="at", watermark_delay=WATERMARK_DELAY, uid="recent")
    return over.select("auction", "bidder", "price", "bids", "total")


def match(events: Stream) -> Stream:
    """A low, a high and again a low bid, in sequence."""
    bid = bids(events).with_columns(at="date_trunc('millisecond', dateTime)")
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
    dips = bid.apply(found, key="auction", event_time="at", watermark_delay=WATERMARK_DELAY, uid="dips")
    return dips.select("auction", "low", "high", "back", "bidder")


SINGLE_PLANS: Mapping[str, Callable[[Stream], Stream]] = {
    plan.__name__: plan for plan in (window_join, window_rank, temporal_join, over_range, match)
}
"""By name."""
