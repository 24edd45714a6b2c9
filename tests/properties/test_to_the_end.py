"""A run to the end of the input gives, row by row, what one micro-batch of all rows and then the end give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.codec.times import integers
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
)
from asyncstate.runtime import CommitRecord, run_to_the_end
from asyncstate.state import MapStateDescriptor, ReducingStateDescriptor
from asyncstate.testing import OperatorHarness
from asyncstate.testing.local_exchange import exchanged
from tests.properties.examples import Example
from tests.properties.runs import KEY_GROUPS, OutputRow, push
from tests.properties.test_every_operator import OPERATORS, examples_of


@pytest.mark.parametrize(
    ("operator", "entry"), [(operator, entry) for operator, entries in OPERATORS.items() for entry in entries]
)
def test_it_is_one_micro_batch_and_the_end(operator: str, entry: str, tmp_path: Path) -> None:
    @settings(settings.default, max_examples=max(min(3, examples_of(operator)), examples_of(operator) // 2))
    @given(
        example=OPERATORS[operator][entry],
        async_enabled=st.booleans(),
        options=st.sampled_from([{}, {"async-state.write-cache-size": "1kb"}]),
    )
    def hold(example: Example, async_enabled: bool, options: dict[str, Any]) -> None:
        given = {**example.settings}
        with (
            example.around(),
            OperatorHarness(
                example.make(),
                list(example.inputs),
                list(example.key),
                async_enabled=async_enabled,
                max_parallelism=KEY_GROUPS,
                options={**given.pop("options", {}), **options, "async-state.local-dir": str(tmp_path)},
                **given,
            ) as harness,
        ):
            push(harness, example.history.records)
            rows, record = _to_the_end(harness)
            usual = harness.end_batch() + harness.finish()
            assert list(map(repr, rows)) == list(map(repr, usual))  # NaN is not equal to itself
            assert record.content.files() == []
        assert list(tmp_path.iterdir()) == []

    hold()


class WindowCallbacks(RecordOperator):
    """The watermark at each row and at its timer, with the rows that this object has seen by then."""

    rows = 0

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("watermark", pa.int64()), ("rows", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        assert ctx.timestamp is not None
        self.rows += 1
        ctx.timers.register_event_time(ctx.timestamp)
        ctx.emit(ctx.watermark, self.rows)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        ctx.emit(ctx.watermark, self.rows)


def test_no_row_is_behind_the_watermark_and_an_object_has_one_micro_batch(async_enabled: bool) -> None:
    schema = pa.schema([("at", pa.timestamp("us"))])
    with OperatorHarness(
        WindowCallbacks(), schema, None, event_time="at", async_enabled=async_enabled
    ) as harness:
        harness.push([(5,), (6,)])
        rows, _ = _to_the_end(harness)
    assert rows == [
        ("+I", MIN_WATERMARK, 1),
        ("+I", MIN_WATERMARK, 2),
        ("+I", MAX_WATERMARK, 0),
        ("+I", MAX_WATERMARK, 0),
    ]


class Entries(RecordOperator):
    """What is stored when the timer of the last row fires: the entries of a map, and its highest key."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("entries", pa.int64()), ("highest", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.entries = context.get_state(MapStateDescriptor("entries", int, int))
        self.highest = context.get_state(ReducingStateDescriptor("highest", max, int))

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.entries.put(row.value, 1)
        self.highest.add(row.value)
        ctx.timers.register_event_time(9)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        ctx.emit(len(list(self.entries.keys())), self.highest.get())


@pytest.mark.parametrize("read_cache", ["auto", "1kb", "0b"])
def test_the_end_sees_what_the_rows_have_written(async_enabled: bool, read_cache: str) -> None:
    schema = pa.schema([("at", pa.timestamp("us")), ("value", pa.int64())])
    options = {"async-state.read-cache-size": read_cache}
    with OperatorHarness(
        Entries(), schema, None, event_time="at", async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([(1, value) for value in range(50)])
        rows, _ = _to_the_end(harness)
    assert rows == [("+I", 50, 49)]


def _to_the_end(harness: OperatorHarness) -> tuple[list[OutputRow], CommitRecord]:
    spec = harness._spec(None, MIN_WATERMARK)
    object.__setattr__(spec, "broadcast", harness._broadcast(spec, harness._pending))
    object.__setattr__(spec, "local_dir", harness._config.local_dir)
    ((_, batches),) = exchanged(spec.inputs, harness._pending, 1, spec.max_parallelism)
    *rows, record = run_to_the_end(harness._operator(), spec, range(1), iter(batches))
    assert isinstance(record, CommitRecord)
    return [row for batch in rows for row in _rows(batch)], record


def _rows(batch: Any) -> Iterator[OutputRow]:
    kinds = batch.column(ROW_KIND_COLUMN).to_pylist()
    return zip(kinds, *(integers(column).to_pylist() for column in batch.columns[:-1]), strict=True)
