"""async-state.write-cache-size as a job sees it: the same rows and bytes, bounded memory, errors that help."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.state import (
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from asyncstate.storage.value_cache import ENTRY_OVERHEAD_BYTES
from asyncstate.testing import OperatorHarness
from operators import Deduplicate, GroupAggregate, Join, WindowAggregate, count, sum_, tumble
from tests.pacers import AlwaysSlow

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us")), ("value", pa.int64())])
OUTPUT = pa.schema([("key", pa.int64()), ("value", pa.int64())])
KIB = 1024
TINY = {"async-state.write-cache-size": "2kb"}
Output = list[tuple[Any, ...]]


@pytest.fixture(params=["sync", "async", "async, slow reads"])
def enabled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs the test in sync mode, and in async mode with reads at once and with reads on threads."""
    if request.param == "async, slow reads":
        monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    return bool(request.param != "sync")


class Previous(RecordOperator):
    """Asks for the value, replaces it without waiting, and puts out what was there when it asked."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return OUTPUT

    def open(self, context: OperatorContext) -> None:
        self.value: ValueState[int] = context.get_state(ValueStateDescriptor("value", int))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        before = self.value.async_value()
        self.value.async_update(row.value)
        return before.then_accept(lambda value: ctx.emit(row.key, value))


class Reminder(RecordOperator):
    """Keeps rows in a list and a map, and puts them out by timers, which register others."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return OUTPUT

    def open(self, context: OperatorContext) -> None:
        self.rows: ListState[int] = context.get_state(ListStateDescriptor("rows", int))
        self.seen: MapState[int, int] = context.get_state(MapStateDescriptor("seen", int, int))

    async def process(self, row: Row, ctx: RecordContext) -> Any:
        await self.rows.async_add(row.value)
        await self.seen.async_put(row.value, (await self.seen.async_get(row.value) or 0) + 1)
        assert ctx.timestamp is not None
        ctx.timers.register_event_time(ctx.timestamp + 10_000)
        ctx.timers.register_event_time(ctx.timestamp + 5_000, name="last")

    async def on_timer(self, timer: Any, ctx: RecordContext) -> Any:
        if timer.name is None:
            total = 0
            async for value, times in await self.seen.async_entries():
                total += value * times
            ctx.emit(ctx.key[0], total)
            await self.seen.async_clear()
            return
        ctx.emit(ctx.key[0], len(list(await self.rows.async_get())))
        await self.rows.async_clear()
        if timer.time < 150_000:
            ctx.timers.register_event_time(timer.time + 30_000, name="again")


def rows(batch: int, number: int, keys: int) -> list[tuple[int, int, int]]:
    """With times in the batch's tenth of a second."""
    chance = random.Random(batch)
    times = range(100_000 * batch, 100_000 * (batch + 1), 1000)
    return [(chance.randrange(keys), chance.choice(times), chance.randrange(50)) for _ in range(number)]


def run(
    operator: Any,
    batches: list[list[tuple[int, int, int]]],
    async_enabled: bool,
    options: dict[str, str],
    **settings: Any,
) -> tuple[Output, dict[bytes, bytes], list[dict[str, float]]]:
    """All rows, the bytes stored at the end, and the figures of each micro-batch."""
    inputs = settings.pop("inputs", SCHEMA)
    key = settings.pop("key", ["key"])
    with OperatorHarness(
        operator, inputs, key, async_enabled=async_enabled, options=options, **settings
    ) as harness:
        for number, batch in enumerate(batches):
            if isinstance(inputs, pa.Schema):
                harness.push(batch)
            else:
                harness.push(batch[::2], 0)
                harness.push(batch[1::2], 1)
            harness.advance_watermark(100_000 * number - 1)
            harness.end_batch()
        entries = harness.state_entries()
        harness.finish()
        return harness.output, entries, harness.batches


WINDOWS: dict[str, Any] = {"event_time": "time"}
OPERATORS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "group aggregate": (lambda: GroupAggregate([count().alias("c"), sum_("value").alias("s")]), {}),
    "deduplicate": (lambda: Deduplicate(keep="last", time="processing"), {}),
    "join": (Join, {"inputs": [SCHEMA, SCHEMA], "key": [["key"], ["key"]]}),
    "windows": (lambda: WindowAggregate(tumble("10 milliseconds"), [sum_("value").alias("s")]), WINDOWS),
    "records": (Previous, {}),
    "timers": (Reminder, WINDOWS),
    "ordered": (Previous, {"event_time": "time", "order_by": "time"}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_do_not_notice(name: str, enabled: bool) -> None:
    make, settings = OPERATORS[name]
    batches = [rows(number, 60, 20) for number in range(3)]
    options = {"async-state.bundle-size": "50", "async-state.in-flight-limit": "30"}
    plain = run(make(), batches, False, options, **settings)
    spilled = run(make(), batches, enabled, options | TINY, **settings)
    assert spilled[:2] == plain[:2]
    for with_spills, without in zip(spilled[2], plain[2], strict=True):
        for figure in ("rows_out", "changes", "change_bytes", "state_entries_estimate"):
            assert with_spills[figure] == without[figure], figure
    assert min(figures["spills"] for figures in spilled[2][:-1]) > 0
    assert all(figures["spills"] == 0 for figures in plain[2])


def test_a_read_is_answered_as_of_when_it_was_made(enabled: bool) -> None:
    batches = [rows(number, 200, 25) for number in range(3)]
    known: dict[int, int] = {}
    expected = []
    for key, _, value in (row for batch in batches for row in batch):
        expected.append(("+I", key, known.get(key)))
        known[key] = value
    options = TINY | {"async-state.cache-size": "0b", "async-state.in-flight-limit": "12"}
    assert run(Previous(), batches, enabled, options)[0] == expected


def test_list_deletes_leave_reads_that_are_under_way_alone(enabled: bool) -> None:
    """The second page of ordered rows is deleted while records of the first wait; only then the bound is reached."""
    waiting = [(number % 10, number, number) for number in range(5_000)]
    known: dict[int, int] = {}
    expected = []
    for key, _, value in waiting:
        expected.append(("+I", key, known.get(key)))
        known[key] = value
    options = {"async-state.write-cache-size": "400kb"}
    settings: dict[str, Any] = {"event_time": "time", "order_by": "time"}
    found = run(Previous(), [waiting], enabled, options, **settings)
    assert found[0] == expected
    assert found[2][-1]["spills"] > 0


# -- memory -----------------------------------------------------------------------------------------------


class Keep(RecordOperator):
    """Keeps as many bytes as the row says."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return OUTPUT

    def open(self, context: OperatorContext) -> None:
        self.value: ValueState[bytes] = context.get_state(ValueStateDescriptor("value", bytes))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self.value.async_update(bytes(row.value))


@pytest.mark.parametrize("sizes", ["equal", "mixed", "one in a hundred", "growing"])
def test_memory_of_single_writes_keeps_its_bound(sizes: str, async_enabled: bool) -> None:
    bound, largest, number = 256 * KIB, 8 * KIB, 4_000
    chance = random.Random(sizes)
    of_row: dict[str, Callable[[int], int]] = {
        "equal": lambda _: 300,
        "mixed": lambda _: chance.randrange(largest),
        "one in a hundred": lambda _: chance.choice([largest] + [20] * 99),
        "growing": lambda row: largest * row // number,
    }
    keys = 100 if sizes == "growing" else number
    written = [(row % keys, 0, of_row[sizes](row)) for row in range(number)]
    options = {"async-state.write-cache-size": f"{bound // KIB}kb"}
    _, _, (figures, _) = run(Keep(), [written], async_enabled, options)
    weight = sum(value for _, _, value in written[-keys:]) + keys * ENTRY_OVERHEAD_BYTES
    assert figures["spills"] >= weight // (2 * bound)
    # A sixteenth is written between two looks, or a row, before it is known how much rows write; few large values
    # among many small ones are met by chance.
    slack = bound if sizes == "one in a hundred" else bound // 4
    assert figures["write_cache_bytes_peak"] <= bound + slack
    assert figures["write_cache_bytes_limit"] == bound
    assert figures["spilled_bytes"] <= figures["change_bytes"] or sizes == "growing"


def test_memory_of_bundles_keeps_its_bound(async_enabled: bool) -> None:
    batch = [(key, 0, 1) for key in range(20_000)]
    options = {"async-state.write-cache-size": "256kb", "async-state.bundle-size": "500"}
    operator = GroupAggregate([count().alias("c")])
    # A harness pushes a batch as a bundle, so in pieces; a bundle is what may be written between two looks.
    with OperatorHarness(operator, SCHEMA, ["key"], async_enabled=async_enabled, options=options) as harness:
        for first in range(0, len(batch), 500):
            harness.push(batch[first : first + 500])
        harness.end_batch()
        figures = harness.statistics()
    assert figures["changes"] == 20_000
    assert figures["spills"] > 5
    assert figures["write_cache_bytes_peak"] <= 256 * KIB + 500 * (ENTRY_OVERHEAD_BYTES + 64)


# -- errors -----------------------------------------------------------------------------------------------

FULL_DISK = """
import resource, signal
from asyncstate.errors import StoreError
from asyncstate.testing import OperatorHarness
from tests.runtime.test_write_cache import SCHEMA, Previous
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
rows = [(key, 0, key) for key in range(12_000)]
for enabled in (False, True):
    options = {"async-state.write-cache-size": "256kb"}
    with OperatorHarness(Previous(), SCHEMA, ["key"], async_enabled=enabled, options=options) as harness:
        harness.push(rows[:10])
        harness.end_batch()
        harness.push(rows)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, most))
        try:
            harness.end_batch()
        except StoreError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        print(len(harness.end_batch()), len(harness.state_entries()), int(harness.statistics()["spills"]) > 0)
        print(list((harness._folder / "local").rglob("spilled")))
"""


def test_a_full_disk_fails_the_batch_which_can_be_run_again() -> None:
    """No file may grow beyond 10 kB, which is what a full disk is to RocksDB."""
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = ended.stdout.splitlines()
    for message, counts, left in (lines[:3], lines[3:]):
        for part in (
            "operator 'operator'",
            "spilled to",
            "/spilled:",
            "async-state.local-dir",
            "write-cache-size",
        ):
            assert part in message
        assert counts == "12000 12000 True"
        assert left == "[]"
