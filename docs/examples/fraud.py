"""Payments that look like fraud: what a card spent in the last hour, the risk of the shop, and cards that are blocked.

Run it with ``python docs/examples/fraud.py``: the whole job runs in one process without Spark, in both modes. In a job,
pass the function ``fraud`` the stream ``job.source("payments", stream, event_time="ts", watermark_delay="1 minute")``.

``OverAggregate`` sorts the payments by time and adds the sum of their card's last hour. ``LookupJoin`` adds the risk of
the shop. ``Judge`` approves a payment, or emits it as suspicious and blocks the card for half an hour, until a timer
unblocks it. Payments that are too late for the sums go to a side output.
"""

from __future__ import annotations

import pyarrow as pa

from asyncstate import OutputSpec, RecordOperator, ValueStateDescriptor
from asyncstate.lookups import TableLookup
from asyncstate.operators import LookupJoin, OverAggregate, count, range_, sum_
from asyncstate.testing import PipelineHarness, PipelineSource

PAYMENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("card", pa.string()),
        ("shop", pa.string()),
        ("amount", pa.int64()),
        ("ts", pa.timestamp("us")),
    ]
)
SHOPS = [{"shop": "bakery", "risk": 0.0}, {"shop": "jeweller", "risk": 0.5}, {"shop": "casino", "risk": 0.9}]
MINUTE = 60_000_000


class Judge(RecordOperator):
    """Approves payments, or emits them to "suspicious" with a reason and blocks their card for half an hour."""

    def bind(self, inputs):
        payment = [("id", pa.int64()), ("card", pa.string())]
        suspicious = pa.schema([*payment, ("reason", pa.string())])
        return OutputSpec(pa.schema([*payment, ("spent", pa.int64())]), {"suspicious": suspicious})

    def open(self, context):
        self.blocked = context.get_state(ValueStateDescriptor("blocked", pa.bool_(), default=False))

    async def process(self, row, ctx):
        reason = "card is blocked" if await self.blocked.async_value() else self.reason(row)
        if reason is None:
            ctx.emit(row.id, row.card, row.spent)
            return
        ctx.emit(row.id, row.card, reason, output="suspicious")
        await self.blocked.async_update(True)
        # A timer with a name replaces the one before: half an hour from the last suspicious payment on.
        ctx.timers.register_event_time(ctx.timestamp + 30 * MINUTE, name="lift")

    async def on_timer(self, timer, ctx):
        await self.blocked.async_clear()

    @staticmethod
    def reason(row):
        if row.spent > 1_000:
            return f"{row.spent} in an hour"
        if row.risk > 0.8 and row.payments > 1:
            return f"payment {row.payments} within an hour, in a place of risk"
        return None


def fraud(payments):
    """The job."""
    hour = OverAggregate(
        [sum_("amount").alias("spent"), count().alias("payments")], range_("1 hour"), late_output="late"
    )
    in_hour = payments.apply(hour, key="card", uid="in_hour")
    risk = LookupJoin(TableLookup(SHOPS, ["shop"], ["risk"]), pa.schema([("risk", pa.float64())]))
    judged = in_hour.apply(risk, key="shop", uid="risk").apply(
        Judge(), key="card", event_time="ts", uid="judge"
    )
    judged.to(print, name="approved")
    judged.output("suspicious").to(print, name="suspicious")
    in_hour.output("late").to(print, name="late")


def run(async_enabled: bool) -> PipelineHarness:
    """Three micro-batches, of which the second begins after a restart with more partitions, and the end."""
    source = PipelineSource(PAYMENTS, event_time="ts", watermark_delay="1 minute")
    with PipelineHarness(fraud, {"payments": source}, async_enabled=async_enabled) as harness:
        harness.push(
            "payments",
            [
                (1, "ann", "bakery", 20, 0),
                (2, "bob", "jeweller", 900, 1 * MINUTE),
                (3, "bob", "casino", 50, 2 * MINUTE),  # the second within the hour, in a place of risk
                (4, "ann", "jeweller", 990, 10 * MINUTE),  # with the first one more than 1000
            ],
        )
        harness.end_batch()
        harness.restart(parallelism=2)
        harness.push(
            "payments",
            [
                (5, "bob", "bakery", 5, 20 * MINUTE),  # blocked since minute 2, and now until minute 50
                (6, "ann", "bakery", 5, 75 * MINUTE),  # an hour later nothing is left of it
            ],
        )
        harness.end_batch()
        harness.push("payments", [(7, "ann", "bakery", 1, 5 * MINUTE), (8, "bob", "bakery", 5, 80 * MINUTE)])
        harness.end_batch()
        harness.finish()
        return harness


def main() -> None:
    """Run it in both modes and print what came out."""
    sync, async_ = run(False).outputs, run(True).outputs
    assert {name: sorted(rows) for name, rows in sync.items()} == {
        name: sorted(rows) for name, rows in async_.items()
    }
    for name, rows in async_.items():
        for _, *values in sorted(rows):
            print(name, *values)


if __name__ == "__main__":
    main()

# Prints:
# approved 1 ann 20
# approved 2 bob 900
# approved 6 ann 5
# approved 8 bob 10
# suspicious 3 bob payment 2 within an hour, in a place of risk
# suspicious 4 ann 1010 in an hour
# suspicious 5 bob card is blocked
# late 7 ann bakery 1 300000000
