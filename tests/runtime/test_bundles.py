"""Bundle-grain generators: steps that are waited for, output that leaves between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncstate.config import resolve
from asyncstate.errors import OperatorError
from asyncstate.futures import current_scope
from asyncstate.operator import (
    MAX_WATERMARK,
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
)
from asyncstate.runtime import InputBatch, TaskSpec, run_partitions
from asyncstate.state.columnar.state_columns import ColumnStateDescriptor
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Steps(BundleOperator):
    """Sums ``v`` a key, a step for the rows of ``process_bundle`` and ``parts`` steps at the watermark."""

    def __init__(self, parts: int = 3, fail_at: int | None = None) -> None:
        self.parts = parts
        self.fail_at = fail_at
        self.log: list[str] = []

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    def open(self, context: OperatorContext) -> None:
        self.sums: Any = context.get_state(ColumnStateDescriptor("sums", pa.schema([("sum", pa.int64())])))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Iterator[Any]:
        added = np.zeros(len(bundle.keys), np.int64)
        np.add.at(added, bundle.keys.inverse, bundle.batch.column("v").to_numpy())
        found: list[pa.Array] = []
        yield self.sums.async_get(bundle.keys).then_accept(lambda old: found.extend(old.columns))
        assert found, "a step is done before the next one begins"
        old = found[0].fill_null(0).to_numpy(zero_copy_only=False)
        self.sums.put(bundle.keys, [pa.array(old + added)])
        ctx.emit([*bundle.keys.columns, pa.array(old + added)])

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Iterator[None]:
        for part in range(self.parts):
            if part == self.fail_at:
                raise ValueError("step broken")
            self.log.append(f"part {part}")
            ctx.emit([pa.array([-1]), pa.array([part])])
            yield


def test_steps_see_state_and_give_the_same_in_both_modes() -> None:
    found = []
    for async_enabled in (False, True):
        with OperatorHarness(Steps(), SCHEMA, "k", async_enabled=async_enabled) as harness:
            harness.push([(1, 10), (2, 20), (1, 1)])
            first = harness.end_batch()
            harness.push([(2, 2)])
            found.append((first, harness.end_batch(), harness.state_entries()))
    assert found[0] == found[1]
    ends = [("+I", -1, part) for part in range(3)]
    assert sorted(found[0][0][:2]) == [("+I", 1, 11), ("+I", 2, 20)]
    assert found[0][0][2:] == ends
    assert found[0][1] == [("+I", 2, 22), *ends]


def test_a_failing_step_names_the_operator(async_enabled: bool) -> None:
    with (
        OperatorHarness(Steps(fail_at=1), SCHEMA, "k", async_enabled=async_enabled) as harness,
        pytest.raises(OperatorError, match="step broken"),
    ):
        harness.end_batch()


def test_output_leaves_between_steps(async_enabled: bool, tmp_path: Path) -> None:
    operator = Steps(parts=4)
    spec = TaskSpec(
        job_id="job",
        uid="steps",
        operator=operator,
        inputs=(InputSpec(SCHEMA, ("k",)),),
        config=resolve({"async-state.enabled": async_enabled}, {}),
        parallelism=1,
        max_parallelism=128,
        batch_id=0,
        base_version=-1,
        base=None,
        watermark=MAX_WATERMARK,
        previous_watermark=0,
        processing_time=0,
        checkpoint=str(tmp_path / "checkpoint"),
        local_dir=str(tmp_path / "local"),
    )
    given: Iterator[InputBatch] = iter(())
    out = run_partitions(spec, range(1), given)
    for part in range(4):
        batch = next(out)
        assert current_scope() is None, "between two batches this thread is not that of the micro-batch"
        assert isinstance(batch, pa.RecordBatch)
        assert batch.column("v").to_pylist() == [part]
        assert operator.log == [f"part {done}" for done in range(part + 1)]
    assert [type(last).__name__ for last in out] == ["CommitRecord"]
