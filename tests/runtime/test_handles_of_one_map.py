"""Values that leave the cache in the middle of a ``put_all``: no handle of the map shows what was before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate import MapStateDescriptor, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("read", pa.int64())])
ENTRIES = 9_000
LAST = ENTRIES - 1


class TwoHandles(RecordOperator):
    """Writes an entry through two handles of one namespace after a large ``put_all``."""

    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("v", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        entries = context.get_state(MapStateDescriptor("m", int, int, namespaced=True))
        self.day, self.also = entries.at(1), entries.at(1)

    def process(self, row: Row, ctx: RecordContext) -> None:
        if row.read:
            ctx.emit(self.day.get(LAST))
            return
        self.day.put_all(dict.fromkeys(range(ENTRIES), 0))
        self.day.put(LAST, 7)
        self.also.put(LAST, (self.also.get(LAST) or 0) + 1)


@pytest.mark.parametrize("read_cache", ["auto", "1mb", "1kb", "0b"])
def test_no_update_is_lost(async_enabled: bool, read_cache: str) -> None:
    options = {"async-state.read-cache-size": read_cache}
    with OperatorHarness(
        TwoHandles(), SCHEMA, ["k"], async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([(1, 0)])
        harness.end_batch()
        harness.push([(1, 1)])
        assert harness.end_batch() == [("+I", 8)]
