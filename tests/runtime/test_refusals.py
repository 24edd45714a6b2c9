"""Kinds of bundles' output and namespaces that are none: refused by name, in both modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncstate import (
    BundleOperator,
    InputSpec,
    RecordContext,
    RecordOperator,
    Row,
    RowKind,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.changelog import Changelog
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.operator import Operator, OutputSpec
from asyncstate.testing import OperatorHarness
from operators import Deduplicate

SCHEMA = pa.schema([("k", pa.int64())])


class Bundles(BundleOperator):
    """Puts out its rows with the kinds that it is told."""

    def __init__(self, kinds: Any) -> None:
        self.kinds = kinds

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(SCHEMA, changes=Changelog.retract())

    def process_bundle(self, bundle: Any, ctx: Any) -> Any:
        ctx.emit(bundle.batch.columns, self.kinds)


class InNamespace(RecordOperator):
    """Uses a timer or a state in the namespace that it is told."""

    def __init__(self, namespace: Any, timer: bool) -> None:
        self.namespace = namespace
        self.timer = timer

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: Any) -> None:
        self.state = context.get_state(ValueStateDescriptor("v", int, namespaced=True))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if self.timer:
            ctx.timers.register_event_time(5, namespace=self.namespace)
            return None
        return self.state.at(self.namespace).async_update(1)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        return None


def run(operator: Operator, async_enabled: bool, rows: Sequence[tuple[int, ...]] = ((1,),)) -> Any:
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push(rows)
        return harness.end_batch()


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (np.array([0, 17], np.int8), "got the kind 17; give one of RowKind.INSERT"),
        (np.array([-1, 0], np.int8), "got the kind -1; give one of RowKind.INSERT"),
        (np.array([0], np.int8), "got 1 kinds for 2 rows; give one for each"),
        (17, "got the kind 17; give one of RowKind.INSERT"),
        ("+I", r"got the kind '\+I'; give one of RowKind.INSERT"),
        ([RowKind.INSERT, "+U"], r"got the kind '\+U'; give one of RowKind.INSERT"),
    ],
    ids=["above", "below", "too few", "a number", "a text", "a list"],
)
def test_kinds_of_bundles_are_checked(async_enabled: bool, kinds: Any, message: str) -> None:
    with pytest.raises(OperatorError, match=rf"'operator'.*SchemaError: emit\(\) {message}"):
        run(Bundles(kinds), async_enabled, [(1,), (2,)])


def test_kinds_of_bundles_may_be_a_list(async_enabled: bool) -> None:
    assert run(Bundles([0, 3]), async_enabled, [(1,), (2,)]) == [("+I", 1), ("-D", 2)]


@pytest.mark.parametrize("timer", [True, False], ids=["timer", "state"])
@pytest.mark.parametrize("namespace", ["x", 1.5, 2**63], ids=repr)
def test_a_namespace_that_is_none_is_named(async_enabled: bool, namespace: Any, timer: bool) -> None:
    with pytest.raises(OperatorError, match=rf"key \(1,\).*namespace {namespace!r} is not an int64"):
        run(InNamespace(namespace, timer), async_enabled)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.list_(pa.string())], ids=str)
def test_a_text_that_is_not_utf8_is_refused_before_it_is_stored(kind: Any, async_enabled: bool) -> None:
    offset = pa.int64() if pa.types.is_large_string(kind) else pa.int32()
    offsets = pa.array([0, 2, 4], offset).buffers()[1]
    text = pa.large_string() if pa.types.is_large_string(kind) else pa.string()
    wrong: Any = pa.Array.from_buffers(text, 2, [None, offsets, pa.py_buffer(b"\xff\xfeok")])
    if pa.types.is_list(kind):
        wrong = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), wrong)
    schema = pa.schema([("k", pa.int64()), ("words", kind)])
    refused = pytest.raises(SchemaError, match=r"column 'words' has a text .* make_valid_utf8\(words\)")
    made = OperatorHarness(Deduplicate(time="processing"), schema, "k", async_enabled=async_enabled)
    with made as harness, refused:
        harness.push(pa.RecordBatch.from_arrays([pa.array([1, 2]), wrong], schema=schema))
        harness.end_batch()
