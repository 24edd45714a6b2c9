"""A bundle operator run by hand over a fake sink: quick enough for many random examples.

Owns: ``DirectRunner``, and its parts for other runners. The real runtime is tested through ``OperatorHarness``;
nothing is stored here.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_TEXTS, RowKind
from asyncstate.codec import KeyCodec
from asyncstate.codec.times import event_times
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import MIN_WATERMARK, Bundle, BundleOperator, Counter, InputSpec, OutputSpec
from tests.state.fakes import FakeContext, FakeRecord, FakeSink


@dataclass
class CountingContext(FakeContext):
    previous_watermark: int = MIN_WATERMARK
    counters: dict[str, Counter] = field(default_factory=dict)

    def counter(self, name: str) -> Counter:
        return self.counters.setdefault(name, Counter(name))

    def missing_rows(self) -> CountedRows:
        return CountedRows(self.counter("retractions_without_state"))


@dataclass
class CountedRows:
    """Retractions of rows that are not there, counted only; the rows must be of their bundle, and retractions."""

    counter: Counter

    def add(self, rows: Any, bundle: Bundle) -> None:
        assert not bundle.accumulate[rows].any()
        self.count(len(rows))

    def count(self, number: int) -> None:
        self.counter.add(number)


@dataclass
class CollectingContext:
    watermark: int
    previous_watermark: int
    processing_time: int = 0
    previous_processing_time: int = MIN_WATERMARK
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def emit(self, columns: Sequence[pa.Array], kinds: Any = RowKind.INSERT) -> None:
        lists = [
            (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
            for column in columns
        ]
        codes = [kinds] * len(lists[0]) if isinstance(kinds, RowKind) else kinds.tolist()
        self.rows += [(ROW_KIND_TEXTS[code], *row) for code, *row in zip(codes, *lists, strict=True)]

    def call(
        self, function: Callable[..., Any], *arguments: Any, timeout_seconds: float | None = None
    ) -> StateFuture[Any]:
        return completed_future(function(*arguments))


class DirectRunner:
    """Runs micro-batches of one bundle-grain operator; reads are deferred if asked for."""

    def __init__(
        self, operator: BundleOperator, *specs: InputSpec, deferred: bool = False, page_size: int = 3
    ) -> None:
        self.sink = FakeSink(deferred)
        self.counters: dict[str, int] = {}
        self._operator = pickle.dumps(operator)
        self._specs = specs
        self._page_size = page_size
        self._watermark = MIN_WATERMARK
        self._processing_time = MIN_WATERMARK
        self.max_parallelism = 4

    def run(
        self,
        rows: Sequence[Sequence[Any]],
        kinds: Sequence[str],
        watermark: int,
        bundle_rows: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """One micro-batch of one input: output rows as the harness gives them."""
        size = bundle_rows or len(rows) or 1
        starts = range(0, len(rows), size)
        return self.run_bundles(
            [(0, rows[start : start + size], kinds[start : start + size]) for start in starts], watermark
        )

    def run_bundles(
        self,
        bundles: Sequence[tuple[int, Sequence[Sequence[Any]], Sequence[str]]],
        watermark: int,
        processing_time: int = 0,
    ) -> list[tuple[Any, ...]]:
        """One micro-batch of bundles: input, rows and their kinds. ``counters`` are those of this micro-batch."""
        operator: BundleOperator = pickle.loads(self._operator)
        context = CountingContext(
            self.sink, self._page_size, inputs=self._specs, key_schema=self._specs[0].key_schema
        )
        context.previous_watermark, context.processing_time = self._watermark, processing_time
        context.output_schema = OutputSpec.of(operator.bind(self._specs)).schema
        operator.open(context)  # type: ignore[arg-type]
        ctx = CollectingContext(watermark, self._watermark, processing_time, self._processing_time)
        for side, rows, kinds in bundles:
            bundle = make_bundle(self._specs[side], side, rows, kinds, self.max_parallelism)
            if self.sink.deferred:
                operator.prefetch(bundle)
            settle(self.sink, lambda bundle=bundle: operator.process_bundle(bundle, ctx))  # type: ignore[misc]
        settle(self.sink, lambda: operator.on_watermark(watermark, ctx))
        operator.close()
        self.sink.commit()
        self._watermark, self._processing_time = watermark, processing_time
        self.counters = {name: counter.value for name, counter in context.counters.items()}
        return ctx.rows


def settle(sink: FakeSink, work: Callable[[], Any]) -> None:
    """Run ``work`` and answer what it asks for, until nothing waits."""
    sink.current = FakeRecord(b"", b"")
    result = work()
    for step in result if isinstance(result, Iterator) else [result]:
        while sink.waiting:
            sink.answer_one()
        if isinstance(step, StateFuture):
            step.get()


def make_bundle(
    spec: InputSpec, side: int, rows: Sequence[Sequence[Any]], kinds: Sequence[str], max_parallelism: int
) -> Bundle:
    """Rows of one input and their kinds as a bundle."""
    schema = spec.schema
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    key = spec.key_schema
    codec = KeyCodec([field.type for field in key], list(key.names), max_parallelism)
    codes = np.array([ROW_KIND_TEXTS.index(kind) for kind in kinds], np.int8)
    times = event_times(batch.column(spec.event_time)) if spec.event_time else None
    keys = codec.group([batch.column(name) for name in key.names], num_rows=len(rows))
    return Bundle(batch, keys, codes, times, side)
