"""Stateless operators in the harness: no exchange, no state, nothing in the manifest; what they cannot have."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.changelog import Changelog
from asyncstate.errors import JobError, OperatorError, StateDeclarationError
from asyncstate.operator import OutputSpec
from asyncstate.testing import OperatorHarness

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
OUT = pa.schema([("v", pa.int64()), ("at", pa.int64())])


class Doubled(BundleOperator):
    """Twice ``v`` and the event time of each row."""

    stateless = True

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(OUT, changes=Changelog.retract())

    def required_columns(self, inputs: Sequence[InputSpec]) -> list[list[str]]:
        return [["v"]]

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        assert bundle.batch.schema.names == ["v", "at"]
        assert bundle.times is not None
        values = bundle.batch.column("v").to_numpy() * 2
        ctx.emit([pa.array(values), pa.array(bundle.times)], bundle.kinds)


class Called(RecordOperator):
    """Twice ``v``, by a call to the outside."""

    stateless = True

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(OUT, changes=Changelog.retract())

    def twice(self, value: int) -> int:
        if value < 0:
            raise ValueError("below zero")
        return value * 2

    async def process(self, row: Row, ctx: RecordContext) -> None:
        assert ctx.key == ()
        ctx.emit(await ctx.call(self.twice, row.v), ctx.timestamp, kind=ctx.row_kind)


class Meeting(Called):
    """Calls that end only when two are under way."""

    both = threading.Barrier(2, timeout=20)

    def twice(self, value: int) -> int:
        self.both.wait()
        return value * 2


def run(operator: Any, async_enabled: bool, **settings: Any) -> OperatorHarness:
    return OperatorHarness(
        operator, ROWS, None, event_time="at", async_enabled=async_enabled, parallelism=2, **settings
    )


@pytest.mark.parametrize("operator", [Doubled(), Called()], ids=["bundles", "records"])
def test_rows_come_as_they_were_pushed(operator: Any, async_enabled: bool) -> None:
    with run(operator, async_enabled, options={"async-state.bundle-size": "2"}) as harness:
        harness.push([(1, 5, 7), (2, 6, 8)])
        harness.push([(1, 5, 7), (3, 9, None), (1, 4, 9)], kinds=["-U", "+U", "+U"])
        assert harness.end_batch() == [("+I", 10, 7), ("+I", 12, 8), ("-U", 10, 7), ("+U", 8, 9)]
        figures = harness.statistics()
        assert figures["counter.null_event_times"] == 1
        assert (figures["rows_in"], figures["rows_out"]) == (5, 4)
        assert (harness.state_entries(), harness.states()) == ({}, [])
        with harness.restore(harness.snapshot(), parallelism=3, async_enabled=not async_enabled) as again:
            again.push([(1, 1, 1)])
            assert again.end_batch() == [("+I", 2, 1)]
            assert again.finish() == []
        stored = [path.name for path in Path(harness._folder).rglob("*") if "operator" in path.name]
        assert stored == []  # neither a local store nor a file of state


def test_rows_of_a_changelog_do_not_wait_for_each_other(async_enabled: bool) -> None:
    rows = [(1, number, number) for number in range(20)]
    with run(Doubled(), async_enabled, options={"async-state.bundle-size": "2"}) as harness:
        harness.push(rows, kinds=["-U", "+U"] * 10)
        assert [row[1] for row in harness.end_batch()] == [2 * number for number in range(20)]


def test_no_row_waits_for_the_calls_of_another() -> None:
    with run(Meeting(), True) as harness:
        harness.push([(1, number, number) for number in range(4)])
        assert harness.end_batch() == [("+I", 2 * number, number) for number in range(4)]


def test_a_failure_is_told_as_of_other_operators(async_enabled: bool) -> None:
    with run(Called(), async_enabled) as harness:
        harness.push([(1, -5, 7)])
        with pytest.raises(OperatorError, match=r"operator 'operator'.*ValueError: below zero"):
            harness.end_batch()


class Keeps(Doubled):
    def open(self, context: OperatorContext) -> None:
        context.get_state(ValueStateDescriptor("kept", pa.int64()))


class TwoInputs(Doubled):
    num_inputs = 2


class HasTimers(Called):
    def on_timer(self, timer: Timer, ctx: RecordContext) -> None: ...


class SeesTheWatermark(Doubled):
    def on_watermark(self, watermark: int, ctx: BundleContext) -> None: ...


@pytest.mark.parametrize(
    ("operator", "settings", "message"),
    [
        (Doubled(), {"key": "k"}, "its rows are not exchanged; leave key out"),
        (
            Doubled(),
            {"watermark_delay": 1},
            "leave watermark_delay out and declare it at the next stateful operator",
        ),
        (Called(), {"order_by": "at"}, "no rows can wait for a watermark; leave order_by out"),
        (Doubled(), {"sequence": "v"}, "the rows of a key are not brought together; leave sequence out"),
        (HasTimers(), {}, "but it has on_timer"),
        (SeesTheWatermark(), {}, "but it has on_watermark"),
        (TwoInputs(), {"inputs": [ROWS, ROWS]}, "so it takes one input"),
    ],
)
def test_what_needs_state_is_refused(operator: Any, settings: dict[str, Any], message: str) -> None:
    given = {"inputs": ROWS, "key": None, "event_time": "at"} | settings
    with pytest.raises(JobError, match=f"operator 'operator' .* is stateless.*{message}"):
        OperatorHarness(operator, **given)


def test_state_is_refused(async_enabled: bool) -> None:
    with pytest.raises(StateDeclarationError, match=r"is stateless, but open\(\) declares state \('kept'\)"):
        run(Keeps(), async_enabled)
    before = Keeps()
    before.stateless = False  # type: ignore[misc]
    with run(before, async_enabled) as harness:
        harness.push([(1, 1, 1)])
        harness.end_batch()
        with pytest.raises(StateDeclarationError, match=r"the checkpoint has state of this uid \('kept'\)"):
            harness.restore(harness.snapshot(), operator=Doubled())
