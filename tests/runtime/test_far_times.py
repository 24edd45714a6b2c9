"""Event times at the end of int64, as "for ever" is written: they neither end the job nor expire early."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate import OperatorContext, RecordContext, RecordOperator, Row, StateTtl, ValueStateDescriptor
from asyncstate.errors import SchemaError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, Operator
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, WindowAggregate, count, tumble
from tests.local_aggregation import in_phases

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us"))])
SECOND = 1_000_000
BOUND = 2**62
TTL = StateTtl("1 second", time="event")


class Counted(RecordOperator):
    """The number of the key's rows, with a time to live."""

    def __init__(self, ttl: StateTtl | None = TTL) -> None:
        self.ttl = ttl

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("count", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.rows = context.get_state(ValueStateDescriptor("rows", int, default=0, ttl=self.ttl))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.rows.update((self.rows.value() or 0) + 1)
        ctx.emit(row.k, self.rows.value())


@pytest.mark.parametrize(
    "operator", [Counted(), GroupAggregate([count()], ttl=TTL)], ids=["record", "bundle"]
)
@pytest.mark.parametrize("time", [MAX_WATERMARK, MAX_WATERMARK - 1])
def test_what_is_written_for_ever_lives_on(operator: Operator, time: int, async_enabled: bool) -> None:
    with OperatorHarness(
        operator, SCHEMA, ["k"], event_time="at", max_parallelism=1, async_enabled=async_enabled
    ) as harness:
        harness.push([(1, time), (2, 0)])
        harness.end_batch()
        for seconds in range(1, 40):  # the clean-up comes to every key many times
            harness.advance_watermark(seconds * SECOND)
            harness.push([(3, seconds * SECOND)])
            harness.end_batch()
        harness.push([(1, 50 * SECOND), (2, 50 * SECOND)])
        counts = {row[1]: row[2] for row in harness.end_batch()}
    assert counts == {1: 2, 2: 1}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_of_the_far_future_do_not_move_the_watermark(async_enabled: bool, parallelism: int) -> None:
    operator = WindowAggregate(tumble("10 seconds"), [count().alias("rows")])
    with OperatorHarness(
        in_phases(operator, False),
        SCHEMA,
        ["k"],
        event_time="at",
        watermark_delay=0,
        parallelism=parallelism,
        async_enabled=async_enabled,
    ) as harness:
        harness.push([(1, MAX_WATERMARK)])
        harness.end_batch()
        assert harness.watermark == MIN_WATERMARK
        assert harness.statistics()["counter.event_times_far_ahead"] == 1
        harness.push([(1, 3 * SECOND), (1, BOUND + 1), (2, 20 * SECOND), (2, MAX_WATERMARK)])
        harness.end_batch()
        assert harness.watermark == 20 * SECOND
        assert harness.statistics()["counter.event_times_far_ahead"] == 2
        harness.push([(1, 21 * SECOND)])
        fired = [row[:2] + row[-1:] for row in harness.end_batch()]
        assert fired == [("+I", 1, 1)]
        assert "counter.late_rows" not in {n for n, value in harness.statistics().items() if value}
        assert harness.watermark == 21 * SECOND


def test_the_bound_itself_moves_the_watermark() -> None:
    with OperatorHarness(Counted(), SCHEMA, ["k"], event_time="at", watermark_delay=5) as harness:
        harness.push([(1, BOUND)])
        harness.end_batch()
        assert harness.watermark == BOUND - 5
        assert "counter.event_times_far_ahead" not in harness.statistics()


@pytest.mark.parametrize("days", [2_932_897, -719_163])
@pytest.mark.parametrize("key", ["k", "day"])
def test_a_date_that_python_has_not_is_named(days: int, key: str, async_enabled: bool) -> None:
    """Spark's dates go beyond the years 1 to 9999."""
    schema = pa.schema([("k", pa.int64()), ("day", pa.date32())])
    numbers = pa.array([days], pa.int32())
    rows = pa.RecordBatch.from_arrays([pa.array([1]), numbers.cast(pa.date32())], schema=schema)
    with OperatorHarness(Counted(ttl=None), schema, [key], async_enabled=async_enabled) as harness:
        harness.push(rows)
        with pytest.raises(SchemaError, match="'day' has a date outside the years 1 to 9999"):
            harness.end_batch()
