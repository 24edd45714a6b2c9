"""The row of an aggregate without keys: there before any input, once, and after the last row is taken back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.functions import AggregateFunction
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, avg, collect, count, max_, median, udaf

SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.string())])


@udaf(result_type=pa.int64(), accumulator_type=pa.schema([("total", pa.int64())]))
class Total(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator: Any, value: int) -> None:
        accumulator[0] += value

    def retract(self, accumulator: Any, value: int) -> None:
        accumulator[0] -= value

    def get_value(self, accumulator: Any) -> int:
        total: int = accumulator[0]
        return total


def operator(**more: Any) -> GroupAggregate:
    made = [count(), max_("v"), avg("v"), median("v"), collect("v"), Total("v")]
    return GroupAggregate(made, empty_row=True, **more)


EMPTY = (0, None, None, None, None, 0)
ONE = (1, 7, 7.0, 7.0, [7], 7)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_it_is_emitted_once_whatever_restarts(async_enabled: bool, parallelism: int) -> None:
    with OperatorHarness(
        operator(), SCHEMA, [], async_enabled=async_enabled, parallelism=parallelism
    ) as first:
        assert first.end_batch() == [("+I", *EMPTY)]
        assert first.end_batch() == []
        before = first.snapshot()
    with first.restore(before, parallelism=2) as second:
        assert second.end_batch() == []
        second.push([(7, "a")])
        assert second.end_batch() == [("-U", *EMPTY), ("+U", *ONE)]
        second.push([(7, "a")], kinds=["-D"])
        assert second.end_batch() == [("-U", *ONE), ("+U", *EMPTY)]
        between = second.snapshot()
    with second.restore(between, parallelism=parallelism) as third:
        third.push([(9, "a"), (9, "a")], kinds=["+I", "-D"])
        assert third.end_batch() == []


def test_with_input_the_first_row_is_that_of_the_input(async_enabled: bool) -> None:
    with OperatorHarness(operator(), SCHEMA, [], async_enabled=async_enabled) as harness:
        harness.push([(7, "a")])
        assert harness.end_batch() == [("+I", *ONE)]
        assert harness.end_batch() == []


def test_a_first_micro_batch_that_cancels_out_has_the_empty_row(async_enabled: bool) -> None:
    made = operator(emit_update_before=False)
    with OperatorHarness(made, SCHEMA, [], async_enabled=async_enabled) as harness:
        harness.push([(7, "a"), (7, "a")], kinds=["+I", "-D"])
        assert harness.end_batch() == [("+I", *EMPTY)]
        harness.push([(7, "a")])
        assert harness.end_batch() == [("+U", *ONE)]


def test_every_change_starts_from_the_empty_row(async_enabled: bool) -> None:
    made = GroupAggregate([count()], emit="each", empty_row=True)
    with OperatorHarness(made, SCHEMA, [], changelog=False, async_enabled=async_enabled) as harness:
        assert harness.end_batch() == [("+I", 0)]
        harness.push([(7, "a"), (8, "a")])
        assert harness.end_batch() == [("-U", 0), ("+U", 1), ("-U", 1), ("+U", 2)]


def test_a_job_with_state_cannot_change_whether_there_is_such_a_row() -> None:
    with OperatorHarness(GroupAggregate([count()]), SCHEMA, []) as before:
        before.push([(7, "a")])
        before.end_batch()
        snapshot = before.snapshot()
    with (
        pytest.raises(StateDeclarationError, match="empty_row"),
        before.restore(snapshot, operator=GroupAggregate([count()], empty_row=True)),
    ):
        pass


def test_what_it_cannot_be_part_of_is_refused() -> None:
    with (
        pytest.raises(
            SchemaError, match="empty_row is for an input without key columns, but .* is keyed by k"
        ),
        OperatorHarness(operator(), SCHEMA, ["k"]),
    ):
        pass
    with pytest.raises(SchemaError, match="cannot expire; leave out ttl or empty_row"):
        operator(ttl="1 hour")
