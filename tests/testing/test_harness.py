"""The harness itself: routing, times, restore, and what it refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate import InputSpec, RecordContext, RecordOperator, Row, Timer, ValueStateDescriptor
from asyncstate.clock import SystemClock
from asyncstate.config import Tuning
from asyncstate.errors import JobError, SchemaError, StateDeclarationError, StoreError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.storage import Checkpoint
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us"))])


class Totals(RecordOperator):
    """Total per user, with the times the operator sees; a timer reports the total."""

    def __init__(self, state_type: pa.DataType | None = None) -> None:
        self.state_type = state_type or pa.int64()

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema(
            [("user", pa.string()), ("total", pa.int64()), ("watermark", pa.int64()), ("now", pa.int64())]
        )

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", self.state_type))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        assert ctx.key == (row.user,)
        total = (await self.total.async_value() or 0) + row["amount"]
        await self.total.async_update(total)
        ctx.timers.register_event_time(row.at + 10, name="report")
        ctx.emit(row.user, total, ctx.watermark, ctx.processing_time)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        return self.total.async_value().then_accept(
            lambda total: ctx.emit(ctx.key[0], -total, timer.time, ctx.processing_time)
        )


def harness(async_enabled: bool, **settings: Any) -> OperatorHarness:
    given = {"event_time": "at", "watermark_delay": 5, **settings}
    operator = given.pop("operator", Totals())
    return OperatorHarness(operator, SCHEMA, ["user"], async_enabled=async_enabled, **given)


def test_times_are_those_of_the_batches_before(async_enabled: bool) -> None:
    with harness(async_enabled) as h:
        h.push([("a", 1, 100), ("b", 2, 103)])
        assert h.end_batch() == [("+I", "a", 1, MIN_WATERMARK, 0), ("+I", "b", 2, MIN_WATERMARK, 0)]
        assert h.watermark == 98
        h.advance_processing_time(7)
        h.push([("a", 1, 115), (None, 5, 90), ("c", 1, None)])
        assert h.end_batch() == [("+I", "a", 2, 98, 7), ("+I", None, 5, 98, 7)]
        assert h.statistics()["counter.null_event_times"] == 1
        assert h.watermark == 110
        # the timers of b (113) and a (replaced: 125) are not due; that of the null key is
        assert h.end_batch() == [("+I", None, -5, 100, 7)]
        assert h.finish() == [("+I", "b", -2, 113, 7), ("+I", "a", -2, 125, 7)]
        with pytest.raises(JobError, match="finished"):
            h.end_batch()


def test_a_micro_batch_whose_commit_fails_runs_again(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its rows is lost, and none comes out twice."""
    with harness(async_enabled) as h:
        h.push([("a", 1, 100)])

        def failing(*_: object) -> None:
            raise StoreError("the network is gone")

        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "commit", failing)
            with pytest.raises(StoreError, match="the network is gone"):
                h.end_batch()
        assert h.output == []
        rows = [("+I", "a", 1, MIN_WATERMARK, 0)]
        assert h.end_batch() == rows
        assert h.output == rows


def test_the_limits_in_force_can_be_read_back() -> None:
    options = {
        "async-state.in-flight-limit": "17",
        "async-state.buffer-size": "5",
    }
    with harness(True, options=options, parallelism=2, tuning=Tuning(io_threads=3)) as h:
        h.push([("a", 1, 100), ("b", 1, 100)])
        h.end_batch()
        statistics = h.statistics()
    assert statistics["in_flight_limit"] == 17
    assert statistics["request_buffer_limit"] == 5
    assert statistics["io_parallelism_limit"] == 3
    assert statistics["buffer_timeout_ms_limit"] == 1000
    assert 0 <= statistics["in_flight_peak"] <= 17


def test_an_explicit_watermark_never_goes_back(async_enabled: bool) -> None:
    with harness(async_enabled, watermark_delay=None) as h:
        h.push([("a", 1, 0)])
        h.advance_watermark(50)
        assert h.end_batch()[-1] == ("+I", "a", -1, 10, 0)
        h.advance_watermark(20)
        h.push([("a", 1, 0)])
        assert h.end_batch()[0][3] == 50


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_restore_at_another_parallelism_goes_on(async_enabled: bool, parallelism: int) -> None:
    _check_rescale(async_enabled, parallelism)


def test_restore_with_a_partition_for_each_key_group() -> None:
    _check_rescale(True, 128)


def _check_rescale(async_enabled: bool, parallelism: int) -> None:
    users = [f"user-{number}" for number in range(40)]
    with harness(async_enabled, parallelism=2) as before:
        before.push([(user, number, 100) for number, user in enumerate(users)])
        before.end_batch()
        entries, snapshot = before.state_entries(), before.snapshot()
        before.push([("user-0", 1000, 100)])
        before.end_batch()
    with before.restore(snapshot, parallelism=parallelism, async_enabled=not async_enabled) as after:
        assert after.state_entries() == entries
        fired = after.finish()
    assert sorted(row[:4] for row in fired) == sorted(
        ("+I", user, -number, 110) for number, user in enumerate(users)
    )
    assert MAX_WATERMARK not in {row[3] for row in fired}


def test_a_changed_state_type_is_refused_before_any_row(async_enabled: bool) -> None:
    with harness(async_enabled) as before:
        before.push([("a", 1, 100)])
        before.end_batch()
        with pytest.raises(
            StateDeclarationError, match=r"state 'total'.*field 'value' changed from int64 to string"
        ):
            before.restore(before.snapshot(), operator=Totals(pa.string()))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"event_time": "when"}, SchemaError, "no column 'when'; its columns are: user, amount, at"),
        ({"event_time": "amount"}, SchemaError, "'amount' is of type int64; cast it to a timestamp"),
    ],
)
def test_wrong_declarations_are_named(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        harness(False, **settings)


def test_somebody_elses_clock_is_not_moved() -> None:
    with (
        harness(False, clock=SystemClock()) as h,
        pytest.raises(JobError, match="SystemClock"),
    ):
        h.advance_processing_time(1)


def test_an_input_spec_names_what_is_missing() -> None:
    with pytest.raises(SchemaError, match="no column 'nobody'"):
        InputSpec(SCHEMA, ("nobody",))
