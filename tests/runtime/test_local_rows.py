"""An operator of one's own with a local phase: it gets local rows where the job makes them, whole rows where not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.errors import JobError, SchemaError
from asyncstate.partial_aggregation import (
    LocalColumn,
    LocalFunction,
    PartialAggregation,
    PartialStep,
    local_columns,
    local_rows,
)
from asyncstate.testing import OperatorHarness
from tests.local_aggregation import in_phases

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
HIGHEST = PartialAggregation((LocalColumn(LocalFunction.MAX, pa.int64(), "n"),))


class Highest(BundleOperator):
    """The rows of each key in a bundle, and their highest number."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("k", pa.string()), ("rows", pa.int64()), ("highest", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.local = context.inputs[0].local

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation:
        return HIGHEST

    def partial_step(self, given: InputSpec) -> PartialStep:
        def highest(batch: pa.RecordBatch, kinds: Any) -> pa.RecordBatch:
            found: dict[str, list[int]] = {}
            for key, number in zip(*batch.select(["k", "n"]).to_pydict().values(), strict=True):
                found.setdefault(key, []).append(number)
            rows = [[*found], [*map(len, found.values())], [*map(max, found.values())]]
            return pa.RecordBatch.from_arrays([*map(pa.array, rows)], schema=given.row_schema)

        return highest

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        assert self.local in (None, HIGHEST)
        if self.local is None:
            rows, numbers = np.ones(bundle.num_rows, np.int64), bundle.batch.column("n")
        else:
            rows, (numbers,) = local_rows(bundle.batch), local_columns(bundle.batch, [0])
        order, starts = bundle.keys.rows_sorted()
        counts = np.add.reduceat(rows[order], starts)
        highest = np.maximum.reduceat(numbers.to_numpy()[order], starts)
        ctx.emit([bundle.keys.columns[0], pa.array(counts), pa.array(highest)])


class Plain(RecordOperator):
    """A record-grain operator: it always gets rows."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        assert inputs[0].local is None
        return SCHEMA

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation:
        return HIGHEST

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(row.k, row.n)


@pytest.mark.parametrize(("setting", "rows_in"), [("true", 4), ("false", 6), ("auto", 6)])
def test_local_rows_reach_the_operator_where_the_job_makes_them(
    setting: str, rows_in: int, async_enabled: bool
) -> None:
    settings: dict[str, Any] = {"changelog": False, "async_enabled": async_enabled}
    with OperatorHarness(in_phases(Highest(), setting), SCHEMA, ["k"], **settings) as harness:
        harness.push([("a", 1), ("b", 7), ("a", 5)])
        harness.push([("b", 2), ("a", 3), ("b", 9)])
        assert sorted(harness.end_batch()) == [("+I", "a", 3, 5), ("+I", "b", 3, 9)]
        assert harness.statistics()["rows_in"] == rows_in
        assert harness.statistics().get("local_rows_in") == (6 if setting == "true" else None)


class OnlyDescribed(Highest):
    """A local phase that Spark alone could run."""

    partial_step = BundleOperator.partial_step


def test_a_local_phase_without_its_step_is_refused() -> None:
    with OperatorHarness(in_phases(OnlyDescribed(), True), SCHEMA, ["k"], changelog=False) as harness:
        harness.push([("a", 1)])
        with pytest.raises(
            SchemaError, match="OnlyDescribed: has a partial_aggregation but no partial_step.*write OnlyD"
        ):
            harness.end_batch()


def test_record_grain_always_gets_rows() -> None:
    with OperatorHarness(Plain(), SCHEMA, ["k"]) as harness:
        harness.push([("a", 1), ("a", 2)])
        assert harness.end_batch() == [("+I", "a", 1), ("+I", "a", 2)]


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("call_limit", 0, "from 1 to 10000"),
        ("call_limit", True, "from 1 to 10000"),
        ("call_limit", 2.5, "from 1 to 10000"),
        ("call_timeout", 0, "more than 0"),
        ("call_timeout", "2 days", "a day at most"),
        ("call_timeout", "soon", "not a duration"),
        ("local_aggregation", True, "'auto', 'always', 'never'"),
        ("local_aggregation", "true", "'auto', 'always', 'never'"),
    ],
)
def test_a_setting_of_the_operator_that_does_not_fit_is_refused(
    name: str, value: object, advice: str
) -> None:
    operator = Highest()
    setattr(operator, name, value)
    with pytest.raises(JobError, match=f"operator 'operator': {name} is {value!r}.*{advice}"):
        OperatorHarness(operator, SCHEMA, ["k"])
