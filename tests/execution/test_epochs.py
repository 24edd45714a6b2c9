"""Epochs of the asynchronous controller: what overlaps in which mode."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate.execution import AsyncExecutionController, AsyncLimits, BatchFrame, ReadPacer, Record
from asyncstate.storage import WriteOverlay
from tests.memory_store import MemoryStore

_FRAME = BatchFrame(0, 0, None, pa.schema({"key": pa.int64()}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("serial", "started"), [(True, [b"a", b"A", b"b"]), (False, [b"a", b"b", b"A"])])
def test_serial_epochs_wait_for_the_one_before(serial: bool, started: list[bytes]) -> None:
    """Small letters: a record starts. Capital letters: its read has been answered."""
    limits = AsyncLimits(batch_hot_reads=True, serial_epochs=serial)
    ran: list[bytes] = []

    def process(key: bytes, ctx: Any) -> Any:
        ran.append(key)
        return controller.async_get(key, lambda raw: raw).then_accept(lambda _: ran.append(key.upper()))

    overlay = WriteOverlay(MemoryStore(), 1 << 20)
    with AsyncExecutionController(overlay, "op", {}, limits, ReadPacer()) as controller:
        for key in (b"a", b"b"):
            controller.submit(Record(_FRAME, b"\0\0", key, (key,), process, key))
            controller.end_epoch()
        controller.drain()
        statistics = controller.statistics()
    assert ran[:3] == started
    assert sorted(ran) == [b"A", b"B", b"a", b"b"]
    assert statistics.overlapped.overlapping_epochs == (0 if serial else 2)
