"""The Nexmark queries as streaming plans.

Owns: ``PLANS``, for each query the function that declares its changelog over the stream of events.
Invariant: a plan's output has the columns of its ``QuerySpec`` and ``row_kind``; what needs no state is left
to Spark.
Must not import the runner, the oracle's engine or reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from asyncstate.dataflow import Stream
from asyncstate.lookups import TableLookup
from bench.nexmark.events import bids, inserts
from bench.nexmark.single import SINGLE_PLANS
from bench.nexmark.stateful import STATEFUL_PLANS
from operators import StatelessLookupJoin

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


_PLANS: dict[str, Plan] = {plan.__name__: plan for plan in (q0, q1, q2, q10, q13, q14, q21, q22)}
_PLANS.update(STATEFUL_PLANS)

PLANS: Mapping[str, Plan] = {name: _PLANS[name] for name in sorted(_PLANS, key=lambda name: int(name[1:]))}
"""The queries of Nexmark that can be run, by name."""
ALL_PLANS: Mapping[str, Plan] = {**PLANS, **SINGLE_PLANS}
"""Those and what else is asked of the same events."""
