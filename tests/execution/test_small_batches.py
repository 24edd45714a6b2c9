"""A micro-batch of one row, which most of a job's are at night: it makes and passes only what it uses."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import asyncstate
from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.execution import AsyncLimits, ExecutionController, Pacer
from asyncstate.execution.prefetch import PREFETCH_ROWS_MIN
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.storage import MemTable
from asyncstate.testing import FakeContext, OperatorHarness
from tests.memory_store import MemoryStore
from tests.pacers import AlwaysQuick

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PACKAGE = Path(asyncstate.__file__).parent


class Sum(RecordOperator):
    def bind(self, inputs: Any) -> pa.Schema:
        return SCHEMA

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    def process(self, row: Any, ctx: Any) -> Any:
        def add(total: int) -> Any:
            ctx.emit(row.k, total + row.v)
            return self.total.async_update(total + row.v)

        return self.total.async_value().then_compose(add)


def modules_passed(harness: OperatorHarness) -> set[str]:
    """The modules of the package of which a function runs in a micro-batch, without those that run it for a test."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            passed.add(frame.f_code.co_filename)

    gc.collect()  # a generator that an earlier test left suspended runs when it is collected: not in here
    gc.disable()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        harness.end_batch()
    finally:
        sys.setprofile(before)
        gc.enable()
    found = (Path(name) for name in passed)
    return {str(path.relative_to(PACKAGE)) for path in found if path.is_relative_to(PACKAGE)}


@pytest.mark.parametrize("async_enabled", [False, True])
def test_one_row_passes_nothing_that_it_does_not_use(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_memory(), "pacer", AlwaysQuick())
    with OperatorHarness(Sum(), SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        for _ in range(2):  # the first one declares the state
            harness.push([(1, 2)])
            harness.end_batch()
        harness.push([(1, 2)])
        passed = modules_passed(harness)
        assert harness.output[-1] == ("+I", 1, 6)
    assert {"execution/controller.py", "execution/operator_code.py", "runtime/partition/task.py"} <= passed
    reading = {"bundle_reads", "prefetch", "range_prefetch", "read_threads"}
    assert not passed & {f"execution/{name}.py" for name in reading}
    of_others = {"state/column_cache/cache.py", "runtime/rows/sequence_filter.py", "state/expiring/ttl.py"}
    assert not passed & of_others
    made_once = {"codec/row_layout.py", "codec/row_scalars.py", "codec/pages.py", "state/versions.py"}
    assert not passed & made_once


@pytest.mark.parametrize(
    ("slow", "rows", "announced"),
    [(False, PREFETCH_ROWS_MIN - 1, False), (False, PREFETCH_ROWS_MIN, True), (True, 1, True)],
)
def test_few_rows_are_prefetched_from_a_slow_store_alone(slow: bool, rows: int, announced: bool) -> None:
    pacer = Pacer()
    if slow:
        pacer.measured(1, 1.0)
    controller = ExecutionController(MemTable(MemoryStore()), "op", {}, AsyncLimits(), pacer)
    with controller:
        coming = controller.coming_rows(0, [b"\0\0"] * rows, [b"k%d" % row for row in range(rows)])
    assert (coming is not None) == announced


def test_sync_mode_prefetches_nothing() -> None:
    with ExecutionController(MemTable(MemoryStore()), "op", {}) as controller:
        assert controller.coming_rows(0, [b"\0\0"] * 1_000, [b"k"] * 1_000) is None
        assert not controller.reads_ahead


def test_calls_of_several_rows_without_a_micro_batch() -> None:
    """A FakeContext submits no records: a call in sync mode must not keep one in flight."""

    class Calls(Sum):
        def process(self, row: Any, ctx: Any) -> Any:
            ctx.emit(row.k, 0)
            return ctx.call(abs, row.v).then_accept(lambda found: ctx.emit(row.k, found))

    operator = Calls()
    with FakeContext(operator, SCHEMA, ["k"]) as ctx:
        for k in (1, 2, 1):
            operator.process(ctx.row(k, -k), ctx)
        emitted = [row[1:] for row in ctx.emitted]
    assert emitted == [(1, 0), (1, 1), (2, 0), (2, 2), (1, 0), (1, 1)]
