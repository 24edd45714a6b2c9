"""``close`` of an operator: once for each ``open``, and its failure never hides an earlier one."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow as pa
import pytest

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.errors import OperatorError
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64())])


class Failing(RecordOperator):
    """Fails in the task, not on the driver, in the hooks that ``fails`` names."""

    seen: ClassVar[list[str]] = []
    opened: ClassVar[int] = 0

    def __init__(self, *fails: str) -> None:
        self.fails = fails
        Failing.opened = 0
        Failing.seen = []

    def bind(self, inputs: Any) -> pa.Schema:
        return SCHEMA

    def _do(self, hook: str) -> None:
        Failing.seen.append(hook)
        if hook in self.fails and Failing.opened > 1:
            raise ValueError(f"{hook} went wrong")

    def open(self, context: Any) -> None:
        Failing.opened += 1
        self._do("open")

    def process(self, row: Row, ctx: RecordContext) -> None:
        self._do("process")

    def close(self) -> None:
        self._do("close")


def run(async_enabled: bool, *fails: str) -> BaseException:
    """The error of a micro-batch of one row."""
    with OperatorHarness(Failing(*fails), SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(5,)])
        with pytest.raises(Exception, match="went wrong") as raised:
            harness.end_batch()
    return raised.value


def test_close_is_called_in_a_task_whose_open_has_failed(async_enabled: bool) -> None:
    assert isinstance(run(async_enabled, "open"), ValueError)
    assert Failing.seen == ["open", "close", "open", "close"]  # on the driver, in the task


def test_a_failing_close_names_its_operator(async_enabled: bool) -> None:
    error = run(async_enabled, "close")
    assert isinstance(error, OperatorError)
    assert "operator 'operator' (Failing): close() failed: ValueError: close went wrong" in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_a_failing_close_does_not_hide_what_failed_first(async_enabled: bool) -> None:
    error = run(async_enabled, "process", "close")
    assert isinstance(error, OperatorError)
    assert "key (5,): ValueError: process went wrong" in str(error)
    assert error.__notes__ == ["operator 'operator': close() failed as well: ValueError: close went wrong"]
