"""Retractions of rows that are not there, under each value of ``async-state.on-missing-row``."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import OperatorError
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, Join, Rank, WindowAggregate, count, desc, session, sum_, tumble
from tests.local_aggregation import in_phases

LOGGER = "asyncstate.runtime.partition.unmatched_retractions"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("at", pa.timestamp("us"))])
OPERATORS: dict[str, Any] = {
    "GroupAggregate": lambda: GroupAggregate([count()]),
    "Rank": lambda: Rank(desc("v"), 2),
    "Rank, unique": lambda: Rank(desc("v"), 2, unique=["v"]),
    "slices": lambda: WindowAggregate(tumble("10 seconds"), [count()]),
    "sessions": lambda: WindowAggregate(session("10 seconds"), [count()]),
    "Join": lambda: Join("inner"),
    "Join, unique": lambda: Join("inner", left_unique="join_key", right_unique=["v"]),
}
by_operator = pytest.mark.parametrize("name", OPERATORS)


def make(name: str, enabled: bool, policy: str | None, **settings: Any) -> OperatorHarness:
    operator = OPERATORS[name]()
    sides = operator.num_inputs
    return OperatorHarness(
        operator,
        [SCHEMA] * sides,
        [["k"]] * sides,
        event_time="at",
        async_enabled=enabled,
        options={} if policy is None else {"async-state.on-missing-row": policy},
        **settings,
    )


@by_operator
def test_one_warning_a_micro_batch_shows_an_example(
    name: str, async_enabled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with make(name, async_enabled, None, parallelism=3) as harness, caplog.at_level(logging.WARNING, LOGGER):
        harness.push([(7, "gone", 0), (7, "gone", 0), (8, "x", 0)], kinds=["-U", "-D", "+I"])
        harness.push([(9, "y", 0)], kind="-D")
        harness.end_batch()
        assert harness.statistics()["counter.retractions_without_state"] == 3
        (record,) = caplog.records
        assert "operator 'operator', batch 0: 3 retractions find no matching row" in record.getMessage()
        assert "k=7" in record.getMessage() or "k=9" in record.getMessage()
        assert "docs/order-and-time.md" in record.getMessage()
        caplog.clear()
        harness.push([(8, "x", 0)], kind="-D")
        harness.end_batch()
        assert not caplog.records


@by_operator
def test_counted_only(name: str, async_enabled: bool, caplog: pytest.LogCaptureFixture) -> None:
    with make(name, async_enabled, "count") as harness, caplog.at_level(logging.WARNING, LOGGER):
        harness.push([(7, "gone", 0)], kind="-D")
        harness.end_batch()
        assert harness.statistics()["counter.retractions_without_state"] == 1
        assert not caplog.records


@by_operator
def test_the_micro_batch_fails_and_nothing_is_committed(name: str, async_enabled: bool) -> None:
    with make(name, async_enabled, "fail") as harness:
        harness.push([(1, "a", 0)])
        harness.end_batch()
        before = harness.state_entries()
        harness.push([(2, "b", 0), (7, "gone", 0)], kinds=["+I", "-D"])
        with pytest.raises(
            OperatorError, match=r"operator 'operator'.*find.* no matching row.*on-missing-row is fail"
        ):
            harness.end_batch()
        assert harness.state_entries() == before
        with make(name, async_enabled, "fail") as other:
            other.push([(7, "here", 0), (7, "here", 0)], kinds=["-D", "+I"])
            other.end_batch()
            assert other.statistics()["counter.retractions_without_state"] == 0


def test_rows_that_were_put_together_are_missing_without_an_example(
    async_enabled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        OperatorHarness(
            in_phases(GroupAggregate([sum_("v")]), True),
            pa.schema([("k", pa.int64()), ("v", pa.int64())]),
            ["k"],
            async_enabled=async_enabled,
        ) as harness,
        caplog.at_level(logging.WARNING, LOGGER),
    ):
        harness.push([(1, 5), (1, 6)], kind="-D")
        harness.end_batch()
        assert "batch 0: 2 retractions find no matching row; dropped" in caplog.records[0].getMessage()
