"""Small parts of the driver that need no session: copies of operators, and what a micro-batch gives back."""

from __future__ import annotations

import math
import threading
from typing import Any, cast

import pyarrow as pa
import pytest

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.driver.micro_batch import Applied, JobFrame
from asyncstate.errors import JobError
from asyncstate.operator import OutputSpec
from asyncstate.spark.exchange import SparkStage
from asyncstate.spark.shipped_operator import shipped_copy
from asyncstate.spark.spark_micro_batch import MicroBatch
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64())])


class Holding(RecordOperator):
    """Holds something since it was made."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def bind(self, inputs: Any) -> pa.Schema:
        return SCHEMA

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(self.held.floor(row.k + 0.5))


def test_an_operator_may_hold_a_module(async_enabled: bool) -> None:
    copied = shipped_copy("op", Holding(math))
    assert isinstance(copied, Holding)
    assert copied.held is math
    with OperatorHarness(Holding(math), SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1,)])
        assert harness.end_batch() == [("+I", 1)]


def test_an_operator_that_cannot_be_shipped_is_named() -> None:
    with pytest.raises(JobError, match=r"operator 'op' \(Holding\) cannot be sent.*lock.*in open\(\)"):
        shipped_copy("op", Holding(threading.Lock()))
    with pytest.raises(JobError, match=r"Holding cannot be sent.*lock.*in open\(\)"):
        OperatorHarness(Holding(threading.Lock()), SCHEMA, ["k"])


class Cached:
    """Stands for the rows of a stage."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.released = False

    def release(self) -> None:
        self.released = True
        if self.fails:
            raise RuntimeError("the context is gone")


def test_all_rows_are_given_back_though_one_fails() -> None:
    batch = MicroBatch(cast("JobFrame", None), 0, None, 0, final=False)
    stages = [Cached(fails) for fails in (False, True, False)]
    for number, stage in enumerate(stages):
        uid = str(number)
        output, rows = cast("OutputSpec", None), cast("SparkStage", stage)
        batch.applied[uid] = Applied(uid, "Op", 1, [], {}, None, [], [], output, stage=rows)
    with pytest.raises(RuntimeError, match="gone"):
        batch.close()
    assert [stage.released for stage in stages] == [True, True, True]
