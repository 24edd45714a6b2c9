"""When a micro-batch has ended, its writes are free at once: nothing of them waits for the garbage collector.

Small ones are kept for the next micro-batch, which adds them to the store.
"""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.storage.keyed_store import ChangeColumns
from asyncstate.storage.write_buffer import WriteBuffer
from asyncstate.testing import OperatorHarness, Tuning
from operators import GroupAggregate, count

_KEYS = 5_000
_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])


class Sum(RecordOperator):
    """The sum of each key's values."""

    def bind(self, inputs):
        return _SCHEMA

    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum", pa.list_(pa.int64()), default=None))

    def process(self, row, ctx):
        self.sum.update([*(self.sum.value() or ()), row.value])
        ctx.emit(row.key, row.value)


@pytest.mark.long
@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize("column_cache", [0, 1 << 20])
@pytest.mark.parametrize("operator", [lambda: GroupAggregate([count()]), Sum], ids=["bundles", "records"])
def test_no_writes_are_left(operator, column_cache: int, async_enabled: bool) -> None:
    options, tuning = {"async-state.cache-size": "0b"}, Tuning(columns_bytes=column_cache)
    with OperatorHarness(
        operator(), _SCHEMA, ["key"], async_enabled=async_enabled, options=options, tuning=tuning
    ) as harness:
        gc.collect()
        gc.disable()
        try:
            for number in range(3):
                harness.push([(key, number) for key in range(_KEYS)])
                harness.end_batch()
            objects = gc.get_objects()
        finally:
            gc.enable()
    buffers = [each for each in objects if isinstance(each, WriteBuffer)]
    assert sum(buffer.statistics().changes for buffer in buffers) == 0
    assert [each for each in objects if isinstance(each, ChangeColumns) and len(each) >= _KEYS] == []
