"""How well people could watch: sessions of viewers with their mean quality, weighted by time.

Run it with ``python docs/examples/sessions.py``: the whole job runs in one process without Spark, in both modes.

A session ends when a viewer has been away for half an hour. A report has the quality (0 to 100) over some seconds. The
mean of a session weighs each report by its seconds, which no built-in aggregate does: ``WeightedMean`` is an aggregate
function of our own. It can merge accumulators, so two sessions that a late report connects become one.
"""

from __future__ import annotations

import datetime

import pyarrow as pa

from asyncstate.functions import AggregateFunction
from asyncstate.operators import WindowAggregate, count, session, sum_, udaf
from asyncstate.testing import PipelineHarness, PipelineSource

REPORTS = pa.schema(
    [("viewer", pa.string()), ("quality", pa.int64()), ("seconds", pa.int64()), ("ts", pa.timestamp("us"))]
)
EVENING = datetime.datetime(2026, 3, 1, 20)


@udaf(result_type=pa.float64(), accumulator_type=pa.schema([("total", pa.int64()), ("seconds", pa.int64())]))
class WeightedMean(AggregateFunction):
    """The mean of ``quality``, weighted by ``seconds``; null if nothing lasted."""

    def create_accumulator(self):
        return [0, 0]

    def accumulate(self, accumulator, quality, seconds):
        if quality is not None and seconds:
            accumulator[0] += quality * seconds
            accumulator[1] += seconds

    def merge(self, accumulator, others):
        for total, seconds in others:
            accumulator[0] += total
            accumulator[1] += seconds

    def get_value(self, accumulator):
        return accumulator[0] / accumulator[1] if accumulator[1] else None


def sessions(reports):
    """The job."""
    aggregates = [
        count().alias("reports"),
        sum_("seconds"),
        WeightedMean("quality", "seconds").alias("quality"),
    ]
    watched = WindowAggregate(session("30 minutes"), aggregates, late_output="late")
    found = reports.apply(watched, key="viewer", uid="sessions")
    found.to(print, name="sessions")
    found.output("late").to(print, name="late")


def at(minute: int) -> datetime.datetime:
    """A time of the evening."""
    return EVENING + datetime.timedelta(minutes=minute)


def run(async_enabled: bool) -> PipelineHarness:
    """Five micro-batches, one of them without rows, and the end."""
    source = PipelineSource(REPORTS, event_time="ts", watermark_delay="20 minutes")
    with PipelineHarness(sessions, {"reports": source}, async_enabled=async_enabled) as harness:
        harness.push("reports", [("ann", 90, 60, at(0)), ("ann", 30, 20, at(5)), ("bob", 50, 60, at(1))])
        harness.end_batch()
        harness.push(
            "reports", [("ann", 100, 60, at(40)), ("ann", 60, 60, at(20))]
        )  # the later one joins two sessions
        harness.end_batch()
        harness.push("reports", [("bob", 80, 10, at(120)), ("ann", 0, 10, at(121))])
        harness.end_batch()
        harness.end_batch()  # the watermark has passed the first sessions only now
        harness.push("reports", [("bob", 10, 10, at(2)), ("bob", 20, 30, at(110))])  # one is too late
        harness.end_batch()
        harness.finish()
        return harness


def main() -> None:
    """Run it in both modes and print each session when it is over."""
    sync, async_ = run(False), run(True)
    assert sync.outputs == async_.outputs
    for _, viewer, start, end, _, reports, seconds, quality in async_.rows("sessions"):
        minutes = (end - start) // 60_000_000 - 30
        print(
            f"{viewer}: {reports} reports in {minutes} minutes, {seconds} s with a mean quality of {quality:.1f}"
        )
    for _, viewer, quality, *_ in async_.rows("late"):
        print(f"too late: {viewer} {quality}")


if __name__ == "__main__":
    main()

# Prints:
# bob: 1 reports in 0 minutes, 60 s with a mean quality of 50.0
# ann: 4 reports in 40 minutes, 200 s with a mean quality of 78.0
# bob: 2 reports in 10 minutes, 40 s with a mean quality of 35.0
# ann: 1 reports in 0 minutes, 10 s with a mean quality of 0.0
# too late: bob 10
