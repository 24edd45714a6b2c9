"""Two captured tables that are kept joined: orders with the name of their customer, and what each customer owes.

Run it with ``python docs/examples/cdc_join.py``: the whole job runs in one process without Spark, in both modes, with a
crash in between. On Spark, with Debezium's events: docs/examples/debezium_orders.py.

Both tables arrive as upserts (the row after a change; for a deletion only the key), as in a compacted Kafka topic, in
any order within a micro-batch, and some twice. ``sequence`` is the position in the database's log, and ``drop_stale``
drops changes that were processed before. ``ChangelogNormalize`` keeps the row before each change, so that the join can
retract rows.
"""

from __future__ import annotations

import pyarrow as pa

from asyncstate.operators import ChangelogNormalize, GroupAggregate, Join, count, sum_
from asyncstate.testing import PipelineHarness, PipelineSource, net

ORDERS = pa.schema(
    [("id", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64()), ("lsn", pa.int64())]
)
CUSTOMERS = pa.schema([("number", pa.int64()), ("name", pa.string()), ("version", pa.int64())])


def joined(orders, customers):
    """The job."""
    all_orders = orders.apply(ChangelogNormalize(), key="id", uid="orders").drop("lsn")
    all_customers = customers.apply(ChangelogNormalize(), key="number", uid="customers").drop("version")
    named = all_orders.join(
        all_customers,
        Join("left", left_unique=["id"], right_unique=["number"]),
        key=("customer", "number"),
        uid="named",
    )
    named.select("id", "amount", "name").to(print, name="orders")
    owed = named.where("name IS NOT NULL").apply(
        GroupAggregate([count().alias("orders"), sum_("amount").alias("owed")]), key="name", uid="owed"
    )
    owed.to(print, name="owed")


def table(rows) -> list[tuple]:
    """What a table has that was made by these changes."""
    kept = net(rows)
    assert set(kept.values()) <= {1}
    return sorted(kept)


def run(async_enabled: bool) -> list[list[tuple]]:
    """The tables after each of three micro-batches."""
    sources = {
        "orders": PipelineSource(ORDERS, changelog=True, sequence="lsn", drop_stale=True),
        "customers": PipelineSource(CUSTOMERS, changelog=True, sequence="version", drop_stale=True),
    }
    shown = []
    with PipelineHarness(joined, sources, async_enabled=async_enabled, parallelism=2) as harness:

        def end() -> None:
            harness.end_batch()
            shown.append([*table(harness.rows("orders")), *table(harness.rows("owed"))])

        harness.push("customers", [(7, "ann", 1)], kind="+U")
        harness.push("orders", [(1, 7, 10, 100), (2, 8, 20, 101), (3, 7, 5, 102)], kind="+U")
        end()
        harness.push("customers", [(8, "bob", 2)], kind="+U")
        harness.push("orders", [(1, 7, 12, 104), (1, 7, 11, 103)], kind="+U")  # the newer one comes first
        harness.push("orders", [(3, None, None, 105)], kind="-D")
        harness.end_batch(crash_before="orders")  # nothing of it is committed; it comes again
        end()
        harness.push("orders", [(1, 7, 11, 103)], kind="+U")  # seen before
        harness.push("customers", [(7, "anna", 3)], kind="+U")
        end()
    return shown


def main() -> None:
    """Run it in both modes and print the tables."""
    sync, async_ = run(False), run(True)
    assert sync == async_
    for rows in async_:
        print(*rows)


if __name__ == "__main__":
    main()

# Prints:
# (1, 10, 'ann') (2, 20, None) (3, 5, 'ann') ('ann', 2, 15)
# (1, 12, 'ann') (2, 20, 'bob') ('ann', 1, 12) ('bob', 1, 20)
# (1, 12, 'anna') (2, 20, 'bob') ('anna', 1, 12) ('bob', 1, 20)
