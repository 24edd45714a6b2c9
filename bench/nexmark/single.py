"""Queries over Nexmark's events that are none of Nexmark's: one operator each, which no Nexmark query needs.

Owns: ``SINGLE_PLANS``.
Invariant: as for the plans of Nexmark.
Must not import the runner, the oracle's engine or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name Spark code is read with

from asyncstate.changelog import ROW_KIND_COLUMN
from bench.nexmark.events import auctions, bids
from bench.nexmark.stateful import WATERMARK_DELAY
from operators import TemporalJoin, WindowJoin, WindowRank, desc, tumble

if TYPE_CHECKING:
    from asyncstate.spark import MicroBatch


def window_join(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Bids with the auctions that were opened in the same window."""
    opened = auctions(events).withColumnRenamed("dateTime", "opened")
    joined = batch.apply(
        WindowJoin(window=tumble("10 seconds")),
        bids(events),
        opened,
        key=("auction", "id"),
        event_time=("dateTime", "opened"),
        watermark_delay=WATERMARK_DELAY,
        uid="joined",
    )
    return joined.select("auction", "bidder", "price", "category", "dateTime", ROW_KIND_COLUMN)


def window_rank(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """The three highest bids of each auction and window."""
    return batch.apply(
        WindowRank([desc("price"), "dateTime", "bidder"], 3, window=tumble("10 seconds")),
        bids(events),
        key="auction",
        event_time="dateTime",
        watermark_delay=WATERMARK_DELAY,
        uid="highest",
    )


def temporal_join(batch: MicroBatch, events: DataFrame) -> DataFrame:
    """Bids with their auction as it was at their time, to the millisecond."""
    at = F.date_trunc("millisecond", "dateTime").alias("at")
    versions = auctions(events).select("id", "category", at)
    joined = batch.apply(
        TemporalJoin(),
        bids(events).select("*", at),
        versions,
        key=("auction", "id"),
        event_time="at",
        watermark_delay=WATERMARK_DELAY,
        uid="versions",
    )
    return joined.select("auction", "bidder", "price", "category", "dateTime", ROW_KIND_COLUMN)


SINGLE_PLANS: Mapping[str, Callable[[MicroBatch, DataFrame], DataFrame]] = {
    plan.__name__: plan for plan in (window_join, window_rank, temporal_join)
}
"""By name."""
