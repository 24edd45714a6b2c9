"""Only the columns that an operator needs reach its tasks; its output and states are the same with the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import SchemaError
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    Operator,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.state import ValueStateDescriptor
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, WindowAggregate, count, max_, sum_, tumble

TIME = pa.timestamp("us", "UTC")
WIDE = pa.schema(
    [("a", pa.int64()), ("k", pa.string()), ("t", TIME), ("b", pa.int64()), ("flag", pa.bool_())]
)
ROWS: list[tuple[Any, ...]] = [(1, "x", 10, 7, True), (2, "y", 20, 8, False), (3, "x", 30, 9, True)]
SEEN = pa.schema([("columns", pa.string())])


class ColumnsOfBundles(BundleOperator):
    """Puts out a row a bundle: the columns that came."""

    def __init__(self, *required: Collection[str] | None) -> None:
        self.required = required

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SEEN

    def required_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        return self.required

    def open(self, context: OperatorContext) -> None:
        self.declared = context.inputs

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        names = bundle.batch.schema.names
        assert names == self.declared[bundle.input_index].schema.names
        ctx.emit([pa.array([",".join(names)])])


class ColumnsOfBoth(ColumnsOfBundles):
    """The same, of two inputs."""

    num_inputs = 2


class ColumnsOfRows(RecordOperator):
    """Puts out the columns of each row."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SEEN

    def required_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        return [{"b"}]

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(",".join(row.as_dict()))


class OutputFromAllColumns(ColumnsOfBundles):
    """Says that it needs ``a``, but its output has a column for each that it is told of."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([(name, pa.string()) for name in inputs[0].schema.names])


class StateFromAllColumns(ColumnsOfBundles):
    """Says that it needs ``a``, but declares a state with what it is told of."""

    def open(self, context: OperatorContext) -> None:
        row = pa.struct(list(context.inputs[0].schema))
        context.get_state(ValueStateDescriptor("row", row))


def columns_seen(operator: Operator, async_enabled: bool, rows: Any = ROWS, **settings: Any) -> set[str]:
    settings = {"key": ["k"]} | settings
    with OperatorHarness(operator, WIDE, async_enabled=async_enabled, **settings) as harness:
        harness.push(rows)
        return {row[1] for row in harness.finish()}


@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize(
    ("required", "settings", "expected"),
    [
        (None, {}, "a,k,t,b,flag"),
        (["b", "a"], {}, "a,k,b"),
        ([], {}, "k"),
        (["k"], {}, "k"),
        (["flag"], {"event_time": "t"}, "k,t,flag"),
        ([], {"key": []}, "a"),
    ],
)
def test_tasks_get_key_event_time_and_what_is_required(
    required: Collection[str] | None, settings: dict[str, Any], expected: str, async_enabled: bool
) -> None:
    assert columns_seen(ColumnsOfBundles(required), async_enabled, **settings) == {expected}


@pytest.mark.parametrize("async_enabled", [False, True])
def test_rows_of_record_grain_are_pruned_too(async_enabled: bool) -> None:
    assert columns_seen(ColumnsOfRows(), async_enabled) == {"k,b"}


@pytest.mark.parametrize("async_enabled", [False, True])
def test_rows_that_wait_for_their_order_come_whole(async_enabled: bool) -> None:
    settings = {"event_time": "t", "order_by": "t"}
    assert columns_seen(ColumnsOfRows(), async_enabled, **settings) == {"a,k,t,b,flag"}


@pytest.mark.parametrize("async_enabled", [False, True])
def test_each_input_for_itself(async_enabled: bool) -> None:
    with OperatorHarness(
        ColumnsOfBoth({"a"}, None), [WIDE, WIDE], [["k"], ["k"]], async_enabled=async_enabled
    ) as harness:
        harness.push(ROWS, 0)
        harness.push(ROWS, 1)
        assert [row[1] for row in harness.end_batch()] == ["a,k", "a,k,t,b,flag"]


@pytest.mark.parametrize(
    ("operator", "message"),
    [
        (ColumnsOfBundles(["nope"]), "input 0 has no column 'nope'; its columns are: a, k, t, b, flag"),
        (ColumnsOfBundles(), "required_columns() has 0 entries for 1 inputs; return one for each"),
        (OutputFromAllColumns(["a"]), "required_columns() omits; include all columns that bind()"),
        (StateFromAllColumns(["a"]), "required_columns() omits; include all columns that bind()"),
    ],
)
def test_wrong_requirements_are_refused_before_any_row(operator: Operator, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        OperatorHarness(operator, WIDE, ["k"])
    assert message in str(caught.value)


@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize("key", [["k"], []])
def test_aggregates_of_a_wide_input(key: list[str], async_enabled: bool) -> None:
    aggregates = [count().alias("n"), sum_("b").where("flag"), max_("a").alias("top")]
    operator = GroupAggregate(aggregates, emit_update_before=False)
    assert operator.required_columns(()) == [{"a", "b", "flag"}]
    with OperatorHarness(operator, WIDE, key, async_enabled=async_enabled, changelog=False) as harness:
        harness.push(ROWS)
        rows = harness.end_batch()
    expected = [("+I", "x", 2, 16, 3), ("+I", "y", 1, None, 2)] if key else [("+I", 3, 16, 3)]
    assert rows == expected


@pytest.mark.parametrize("async_enabled", [False, True])
@pytest.mark.parametrize("key", [["k"], []])
def test_counting_needs_no_column(key: list[str], async_enabled: bool) -> None:
    operator = GroupAggregate([count().alias("n")], emit_update_before=False)
    assert operator.required_columns(()) == [set()]
    with OperatorHarness(operator, WIDE, key, async_enabled=async_enabled, changelog=False) as harness:
        harness.push(ROWS)
        harness.push(ROWS[:1])
        rows = harness.end_batch()
    assert rows == ([("+I", "x", 3), ("+I", "y", 1)] if key else [("+I", 4)])


@pytest.mark.parametrize("async_enabled", [False, True])
def test_windows_keep_their_time(async_enabled: bool) -> None:
    operator = WindowAggregate(tumble("25 milliseconds"), [count().alias("n")])
    assert operator.required_columns(()) == [set()]
    with OperatorHarness(
        operator, WIDE, ["k"], event_time="t", async_enabled=async_enabled, changelog=False
    ) as harness:
        harness.push([(a, k, t * 1000, b, flag) for a, k, t, b, flag in ROWS])
        rows = harness.finish()
    assert [(row[1], row[-1]) for row in rows] == [("x", 1), ("y", 1), ("x", 1)]
