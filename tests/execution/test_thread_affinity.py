"""State that is used beside the thread of its micro-batch: refused, in both modes, whoever does it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from asyncstate.errors import OperatorError
from asyncstate.execution.thread_affinity import ThreadBound
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.state import MapStateDescriptor, ValueStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("key", pa.int64())])
ROWS = [(key,) for key in range(1, 5)]
Use = Callable[["Owner"], Any]

USES: dict[str, Use] = {
    "value": lambda op: op.value.value(),
    "async_value": lambda op: op.value.async_value(),
    "update": lambda op: op.value.update(1),
    "clear": lambda op: op.value.clear(),
    "map_get": lambda op: op.map.get(1),
    "map_put": lambda op: op.map.put(1, 1),
    "map_items": lambda op: list(op.map.items()),
}


class Owner(RecordOperator):
    """``way`` says who uses the state: a coroutine, a plain function or another thread."""

    def __init__(self, way: str, use: str) -> None:
        self.way = way
        self.use = use

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", int))
        self.map = context.get_state(MapStateDescriptor("map", int, int))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if self.way == "thread":
            with ThreadPoolExecutor(1, "my-pool") as pool:
                pool.submit(self.plainly).result()
            return None
        return ctx.call(getattr(self, self.way), row.key)

    async def later(self, key: int) -> None:
        await asyncio.sleep(0)
        USES[self.use](self)

    def plainly(self, key: int = 0) -> None:
        USES[self.use](self)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("way", "named"),
    [
        ("later", r"inside Owner\.later, a function of ctx\.call"),
        ("plainly", r"inside Owner\.plainly, a function of ctx\.call"),
        ("thread", "by the thread 'my-pool_0'"),
    ],
)
def test_state_is_refused_there(way: str, named: str, use: str, async_enabled: bool) -> None:
    with OperatorHarness(Owner(way, use), SCHEMA, "key", async_enabled=async_enabled) as harness:
        harness.push(ROWS)
        with pytest.raises(OperatorError, match=rf"key \(\d,\).*StateAccessError.*state was used {named}"):
            harness.end_batch()
        assert harness.state_entries() == {}


class Caught(Owner):
    """Goes on after the refusal, in a callback, where state is what it should be."""

    def process(self, row: Row, ctx: RecordContext) -> Any:
        call = ctx.call(self.plainly, row.key).recover(lambda _: None)
        return call.then_accept(lambda _: self.value.update(row.key)).then_accept(
            lambda _: ctx.emit(self.value.value())
        )


def test_nothing_was_written_and_callbacks_of_calls_may_use_state(async_enabled: bool) -> None:
    with OperatorHarness(Caught("", "update"), SCHEMA, "key", async_enabled=async_enabled) as harness:
        harness.push(ROWS)
        assert harness.end_batch() == [("+I", key) for (key,) in ROWS]


class Columns(BundleOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.state = context.get_state(ColumnStateDescriptor("state", SCHEMA))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        with ThreadPoolExecutor(1, "my-pool") as pool:
            pool.submit(self.state.put, bundle.keys, bundle.keys.columns).result()


def test_column_states_are_refused_on_other_threads(async_enabled: bool) -> None:
    with OperatorHarness(Columns(), SCHEMA, "key", async_enabled=async_enabled) as harness:
        harness.push(ROWS)
        with pytest.raises(OperatorError, match="state was used by the thread 'my-pool_0'"):
            harness.end_batch()


class Plain(RecordOperator):
    """Neither calls nor threads. Notes whether the check was on."""

    guarded: ClassVar[list[bool]] = []

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", int))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.value.update(row.key)
        self.guarded.append(isinstance(self.value._binding.sink, ThreadBound))


def test_who_has_no_threads_pays_nothing(async_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        threading, "enumerate", lambda: [threading.current_thread()]
    )  # whatever tests left behind
    Plain.guarded.clear()
    with OperatorHarness(Plain(), SCHEMA, "key", async_enabled=async_enabled) as harness:
        harness.push(ROWS)
        harness.end_batch()
    assert Plain.guarded == [False] * len(ROWS)


def test_a_profiler_of_threads_goes_on(async_enabled: bool) -> None:
    seen: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    before = threading.getprofile()
    threading.setprofile(profile)
    try:
        with OperatorHarness(Owner("thread", "value"), SCHEMA, "key", async_enabled=async_enabled) as harness:
            harness.push(ROWS)
            with pytest.raises(OperatorError):
                harness.end_batch()
        assert threading.getprofile() is profile
    finally:
        threading.setprofile(before)  # type: ignore[arg-type]
    assert "plainly" in seen
    assert sys.getprofile() is None
