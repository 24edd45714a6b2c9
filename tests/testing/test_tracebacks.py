"""What a failing operator shows under the harness: the test's line and the user's code, not the framework's."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from asyncstate import InputSpec, OperatorContext, RecordContext, RecordOperator, Row, ValueStateDescriptor
from asyncstate.errors import AsyncStateError, OperatorError
from asyncstate.testing import FaultyStore, OperatorHarness, Tuning


class Failing(RecordOperator):
    def bind(self, inputs: list[InputSpec]) -> str:  # type: ignore[override]
        return "n long"

    def open(self, context: OperatorContext) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", int))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.value.async_value().then_apply(self.mine)

    def mine(self, value: int | None) -> None:
        raise ValueError("my own mistake")


class FailingLater(Failing):
    async def process(self, row: Row, ctx: RecordContext) -> None:
        await self.value.async_value()
        self.mine(None)


def files_of(error: BaseException | None) -> list[str]:
    assert error is not None
    return [frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("operator", [Failing(), FailingLater()])
@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize("waiting", [True, False])
def test_the_frames_are_the_tests_and_the_users(
    operator: Failing, async_enabled: bool, waiting: bool
) -> None:
    tuning = Tuning(batch_hot_reads=waiting)
    with OperatorHarness(operator, "n long", "n", async_enabled=async_enabled, tuning=tuning) as harness:
        harness.push([(1,)])
        with pytest.raises(OperatorError) as raised:
            harness.end_batch()
    assert files_of(raised.value) == ["test_tracebacks.py", "harness.py", "harness.py"]
    assert set(files_of(raised.value.__cause__)) == {"test_tracebacks.py"}
    assert "my own mistake" in str(raised.value)


def test_an_error_that_is_not_the_users_keeps_its_frames() -> None:
    def failing(store: Any) -> FaultyStore:
        faulty = FaultyStore(store)
        faulty.fail_read(1)
        return faulty

    with OperatorHarness(Failing(), "n long", "n", wrap_store=failing) as harness:
        harness.push([(1,)])
        with pytest.raises(AsyncStateError) as raised:
            harness.end_batch()
    assert len(files_of(raised.value)) > 5


async def test_a_harness_may_be_used_in_async_code() -> None:
    async with OperatorHarness(Failing(), "n long", "n") as harness:
        assert harness.end_batch() == []
