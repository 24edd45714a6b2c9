"""Where bundles begin and end: by rows, by memory, and by what the micro-batch before told of the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.changelog import RETRACT
from asyncstate.config import resolve
from asyncstate.errors import OperatorError
from asyncstate.operator import (
    MIN_WATERMARK,
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    OutputSpec,
)
from asyncstate.runtime import TaskSpec
from asyncstate.runtime.rows.bundle_size import ROWS_MIN, ROWS_UNKNOWN, BundleSize
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor
from asyncstate.storage import OperatorManifest, PartitionManifest
from asyncstate.testing import OperatorHarness, Tuning

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROW_BYTES = 16


class Sizes(BundleOperator):
    """Puts out each row's key and how many rows came together; keeps a text a key."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.texts: Any = context.get_state(
            ColumnStateDescriptor("texts", pa.schema([("text", pa.string())]))
        )

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        rows = bundle.batch.num_rows
        ctx.emit([bundle.batch.column("k"), pa.array([rows] * rows)])
        if not self.text:
            return None
        return self.texts.async_get(bundle.keys).then_accept(
            lambda _: self.texts.put(bundle.keys, [pa.array([self.text] * len(bundle.keys))])
        )


class WideKeys(Sizes):
    """The same, of which it is known that a key has 10,000 bytes of state."""

    key_bytes = 10_000


class Times(Sizes):
    """Emits key, event time and kind of each row."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(OutputSpec.of(super().bind(inputs)).schema, changes=RETRACT)

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        assert bundle.times is not None
        ctx.emit([bundle.batch.column("k"), pa.array(bundle.times)], bundle.kinds)


def bundles(output: Sequence[Sequence[Any]]) -> list[int]:
    """The rows of each bundle, by what ``Sizes`` put out."""
    found = []
    while output:
        found.append(output[0][2])
        output = output[found[-1] :]
    return found


def rows(start: int, count: int) -> list[list[int]]:
    return [[number, number] for number in range(start, start + count)]


@pytest.mark.parametrize(
    ("batches", "limit", "expected"),
    [
        ([10, 10, 10], 100, [30]),
        ([10, 10, 10], 20, [20, 10]),
        ([10, 10, 10], 25, [20, 10]),  # batches are put together whole where they fit
        ([45], 20, [20, 20, 5]),
        ([45, 15], 20, [20, 20, 20]),
        ([5, 45], 20, [5, 20, 20, 5]),
        ([1, 1, 1], 1, [1, 1, 1]),
    ],
)
def test_batches_are_put_together_and_cut(
    batches: list[int], limit: int, expected: list[int], async_enabled: bool
) -> None:
    options = {"async-state.bundle-size": str(limit)}
    with OperatorHarness(Sizes(), SCHEMA, "k", async_enabled=async_enabled, options=options) as harness:
        start = 0
        for count in batches:
            harness.push(rows(start, count))
            start += count
        output = harness.end_batch()
    assert [row[1] for row in output] == list(range(sum(batches)))
    assert bundles(output) == expected


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 50))
def test_no_row_is_lost_and_no_bundle_too_large(batches: list[int], limit: int) -> None:
    options = {"async-state.bundle-size": str(limit)}
    with OperatorHarness(Sizes(), SCHEMA, "k", options=options) as harness:
        start = 0
        for count in batches:
            harness.push(rows(start, count))
            start += count
        output = harness.end_batch()
    assert [row[1] for row in output] == list(range(start))
    assert max(bundles(output), default=0) <= limit


def test_kinds_and_times_stay_with_their_rows(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
    texts = ["+I", "-D", "+U", "-U", "+I"]
    options = {"async-state.bundle-size": "2"}
    with OperatorHarness(
        Times(), schema, "k", event_time="t", changelog=True, async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([[key, key * 10] for key in range(5)], kinds=texts)
        # Rows of a changelog come key by key where they do not fit into one bundle.
        assert sorted(harness.end_batch(), key=lambda row: row[1]) == [
            (text, key, key * 10) for key, text in enumerate(texts)
        ]


def test_wide_state_makes_the_next_bundles_smaller(async_enabled: bool) -> None:
    """Rows of 16 bytes, whose state is 4,000 bytes read and as many written."""
    options = {"async-state.cache-size": "0b"}
    tuning = Tuning(bundle_bytes=16 << 20)
    with OperatorHarness(
        Sizes("x" * 4_000), SCHEMA, "k", async_enabled=async_enabled, options=options, tuning=tuning
    ) as harness:
        found = []
        for _ in range(3):
            harness.push(rows(0, 5_000))
            found.append(bundles(harness.end_batch()))
    assert found[0] == [5_000]  # nothing is known yet
    assert found[1][0] == pytest.approx((16 << 20) / (ROW_BYTES + 4_000), rel=0.03)  # it was only written
    assert found[2][0] == pytest.approx((16 << 20) / (ROW_BYTES + 8_000), rel=0.03)
    assert [sum(each) for each in found] == [5_000] * 3


@pytest.mark.parametrize("changelog", [False, True])
def test_a_bundle_has_as_many_keys_as_their_state_leaves_room_for(
    async_enabled: bool, changelog: bool
) -> None:
    """1,677 keys; rows of few keys come together however many they are."""
    tuning = Tuning(bundle_bytes=16 << 20)
    with OperatorHarness(
        WideKeys(), SCHEMA, "k", async_enabled=async_enabled, changelog=changelog, tuning=tuning
    ) as harness:
        harness.push(rows(0, 5_000))
        output = harness.end_batch()
        assert sorted(row[1] for row in output) == list(range(5_000))
        assert bundles(output) == [1_250] * 4
        assert harness.statistics()["keys"] == 5_000
        harness.push([[number % 1_500, number] for number in range(5_000)])
        assert bundles(harness.end_batch()) == [5_000]
        assert harness.statistics()["keys"] == 1_500


def test_rows_of_some_mebibytes_do_not_pass_what_an_array_may_have() -> None:
    size = size_of(None)
    for row_bytes in (1 << 20, 3 << 20, 3 << 30):
        assert size.rows_of(row_bytes) == max(min(ROWS_MIN, (1 << 30) // row_bytes), 1)


class Beyond(Sizes):
    """Asks Arrow for strings of more than 2 GiB in one array."""

    def __init__(self, made: Callable[[], object]) -> None:
        super().__init__()
        self.made = made

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        self.made()


@pytest.mark.parametrize(
    "made",
    [
        lambda: pa.concat_arrays([pa.array([b"x" * (1 << 20)])] * 2_100),
        lambda: pa.nulls(2_100, pa.binary()).fill_null(b"x" * (1 << 20)),
    ],
    ids=["concat", "fill_null"],
)
def test_more_than_an_array_can_have_is_refused_with_what_to_do(
    async_enabled: bool, made: Callable[[], object]
) -> None:
    with OperatorHarness(Beyond(made), SCHEMA, "k", async_enabled=async_enabled) as harness:
        harness.push(rows(0, 3))
        with pytest.raises(OperatorError, match="'operator': Arrow.*2 GiB.*lower async-state.bundle-size"):
            harness.end_batch()


def size_of(
    before: dict[str, float] | None, bundle_size: int = 500_000, memory: int | None = None
) -> BundleSize:
    config = resolve({"async-state.bundle-size": bundle_size}, {}, Tuning(bundle_bytes=memory))
    base = None
    if before is not None:
        halves = {name: value / 2 for name, value in before.items()}
        partitions = [PartitionManifest(number, statistics=halves) for number in range(2)]
        base = OperatorManifest("op", "Sizes", 2, partitions)
    return BundleSize(
        TaskSpec(
            job_id="job",
            uid="op",
            operator=Sizes(),
            inputs=(InputSpec(SCHEMA, ("k",)),),
            config=config,
            parallelism=2,
            max_parallelism=128,
            batch_id=1,
            base_version=0,
            base=base,
            watermark=MIN_WATERMARK,
            previous_watermark=MIN_WATERMARK,
            processing_time=0,
            checkpoint=str(Path("checkpoint")),
            local_dir=str(Path("local")),
        )
    )


BATCH = pa.RecordBatch.from_arrays([pa.array(np.arange(100)), pa.array(np.arange(100))], schema=SCHEMA)
KNOWN = {"rows_in": 1_000.0, "bundle_read_bytes": 50_000.0, "change_bytes": 34_000.0}  # 84 bytes a row


@pytest.mark.parametrize(
    ("before", "size", "memory", "expected"),
    [
        (None, 500_000, None, ROWS_UNKNOWN),
        (None, 70, None, 70),
        ({"rows_in": 0.0}, 500_000, None, ROWS_UNKNOWN),
        (KNOWN, 500_000, None, 500_000),
        (KNOWN, 500_000, 1 << 20, (1 << 20) // 100),
        (KNOWN, 500_000, 1 << 10, ROWS_MIN),
        (KNOWN, 7, 1 << 10, 7),
        (None, 500_000, 1 << 20, (1 << 20) // ROW_BYTES),
    ],
)
def test_rows_by_memory(
    before: dict[str, float] | None, size: int, memory: int | None, expected: int
) -> None:
    assert size_of(before, size, memory).rows(BATCH) == expected


def test_a_slice_counts_by_its_own_bytes() -> None:
    texts = pa.array(["x" * 984] * 10 + [""] * 90)
    batch = pa.RecordBatch.from_arrays([texts], ["text"])
    size = size_of(None, memory=10 << 20)
    assert size.rows(batch.slice(0, 10)) == pytest.approx((10 << 20) / 988, rel=0.01)
    assert size.rows(batch.slice(10, 90)) == ROWS_UNKNOWN
