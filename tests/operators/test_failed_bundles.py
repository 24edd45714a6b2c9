"""Rows for which bundle-grain code raises: in the side output with their error, and all else is as without them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import OutputSpec
from asyncstate.driver.partial_aggregation_policy import choose_partial_aggregation
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.execution.failed_rows import BUNDLE_WRITES
from asyncstate.functions import AggregateFunction
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext
from asyncstate.state.columnar.column_maps import ColumnMapState
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import BundleState, ColumnState, ColumnStateDescriptor
from asyncstate.state.expiring.ttl import StateTtl
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, Join, TemporalSort, count, udaf

ROWS = pa.schema([("k", pa.string()), ("v", pa.int64())])
TOTALS = pa.schema([("k", pa.string()), ("total", pa.int64())])
SUM = pa.schema([("sum", pa.int64())])
WAYS = ["plain", "future", "aside", "steps", "late step", "call"]


async def checked(values: list[int]) -> list[int]:
    """An outside call that fails for a bundle with a value it does not take."""
    check(values)
    return values


def check(values: list[int]) -> None:
    wrong = [value for value in values if value < 0]
    if wrong:
        raise ValueError(f"not {wrong[0]}")


class Sums(BundleOperator):
    """Sums ``v`` per key. Checks the values of the bundle, in one of the ways in which code can fail."""

    errors = "output"

    def __init__(self, way: str, *, changes_first: bool = False) -> None:
        self.way, self.changes_first = way, changes_first

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(TOTALS, {"small": ROWS})

    def required_columns(self, inputs: Sequence[InputSpec]) -> Any:
        return [[]]

    def open(self, context: OperatorContext) -> None:
        self.sums: Any = context.get_state(ColumnStateDescriptor("sums", SUM))
        self.bundles = context.counter("bundles")

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        self.bundles.add(1)
        values = bundle.batch.column("v").to_pylist()
        if self.changes_first:
            self.sums.put(bundle.keys, [pa.array([0] * len(bundle.keys))])
        if self.way == "plain":
            check(values)
            self.add(bundle, ctx, self.sums.get(bundle.keys).columns)
            return None
        if self.way == "future":
            return self.sums.async_get(bundle.keys).then_accept(
                lambda old: self.after_check(bundle, ctx, old)
            )
        if self.way == "aside":
            self.sums.async_get(bundle.keys).then_accept(lambda old: self.after_check(bundle, ctx, old))
            return None
        if self.way == "call":
            called = ctx.call(checked, values)
            return called.then_accept(lambda _: self.add(bundle, ctx, self.sums.get(bundle.keys).columns))
        return self.steps(bundle, ctx, values)

    def steps(self, bundle: Bundle, ctx: BundleContext, values: list[int]) -> Iterator[Any]:
        ctx.emit(bundle.batch.columns, output="small")
        if self.way == "steps":
            check(values)
        found: list[Any] = []
        yield self.sums.async_get(bundle.keys).then_accept(lambda old: found.extend(old.columns))
        check(values)
        yield
        self.add(bundle, ctx, found)

    def after_check(self, bundle: Bundle, ctx: BundleContext, old: Any) -> None:
        ctx.emit(bundle.batch.columns, output="small")
        check(bundle.batch.column("v").to_pylist())
        self.add(bundle, ctx, old.columns)

    def add(self, bundle: Bundle, ctx: BundleContext, old: Any) -> None:
        added = np.zeros(len(bundle.keys), np.int64)
        np.add.at(added, bundle.keys.inverse, bundle.batch.column("v").to_numpy())
        total = pa.array(old[0].fill_null(0).to_numpy(zero_copy_only=False) + added)
        self.sums.put(bundle.keys, [total])
        ctx.emit([*bundle.keys.columns, total])


def last(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """The last row of each key: how rows were cut into bundles decides how many there are."""
    return {row[1]: row[2:] for row in rows}


@pytest.mark.parametrize("way", WAYS)
def test_exactly_the_failed_rows_go_aside(async_enabled: bool, way: str) -> None:
    with OperatorHarness(Sums(way), ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([("a", 1), ("b", 2), ("a", -3), ("c", -4), ("a", 5), ("b", 6), ("d", 7)])
        assert last(harness.end_batch()) == {"a": (6,), "b": (8,), "d": (7,)}
        assert harness.side_output("errors") == [
            ("+I", "a", -3, "ValueError", "not -3"),
            ("+I", "c", -4, "ValueError", "not -4"),
        ]
        emitted = [] if way in ("plain", "call") else ["a", "b", "a", "b", "d"]
        assert [row[1] for row in harness.side_output("small")] == emitted
        statistics = harness.statistics()
        assert statistics["counter.rows_failed"] == 2
        assert statistics["counter.bundles"] == 2, (
            "1 and 2; 5, 6 and 7: the attempts that failed do not count"
        )
        harness.push([("c", 8), ("a", 1)])
        assert last(harness.end_batch()) == {"a": (7,), "c": (8,)}
        assert harness.side_output("errors") == []


VALUES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 9)), max_size=12)


@pytest.mark.long
@given(VALUES, VALUES, st.sampled_from(WAYS))
def test_state_and_output_are_those_of_the_other_rows(first: list[Any], second: list[Any], way: str) -> None:
    for async_enabled in (False, True):
        seen = []
        for parts in ([first, second], [[row for row in part if row[1] >= 0] for part in (first, second)]):
            with OperatorHarness(
                Sums(way), ROWS, ["k"], async_enabled=async_enabled, changelog=False
            ) as harness:
                out = []
                for part in parts:
                    harness.push(part)
                    out.append(last(harness.end_batch()))
                seen.append((out, harness.state_entries()))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("way", WAYS)
def test_code_that_has_changed_state_fails_the_micro_batch(async_enabled: bool, way: str) -> None:
    operator = Sums(way, changes_first=True)
    with OperatorHarness(operator, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([("a", 1)])
        assert harness.end_batch() == [("+I", "a", 1)]
        harness.push([("a", 2), ("b", -1)])
        with pytest.raises(
            OperatorError,
            match=r"ValueError: not -1\. Its rows cannot go to the side output 'errors', because",
        ):
            harness.end_batch()


CHANGES: dict[str, tuple[Any, Any]] = {
    "append": (
        ListColumnStateDescriptor("s", SUM),
        lambda state, keys: state.append(keys, [ones(keys)], np.arange(len(keys))),
    ),
    "put": (ColumnStateDescriptor("s", SUM), lambda state, keys: state.put(keys, [ones(keys)])),
    "put with a ttl": (
        ColumnStateDescriptor("s", SUM, ttl=StateTtl("1 hour")),
        lambda state, keys: state.put(keys, [ones(keys)]),
    ),
    "remove": (ColumnStateDescriptor("s", SUM), lambda state, keys: state.remove(keys)),
}


def ones(keys: Any) -> pa.Array:
    return pa.array([1] * len(keys), pa.int64())


class ChangesFirst(BundleOperator):
    errors = "output"

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return TOTALS

    def open(self, context: OperatorContext) -> None:
        self.state = context.get_state(CHANGES[self.name][0])

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        CHANGES[self.name][1](self.state, bundle.keys)
        check(bundle.batch.column("v").to_pylist())


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_every_kind_of_state_are_seen(async_enabled: bool, name: str) -> None:
    with OperatorHarness(
        ChangesFirst(name), ROWS, ["k"], async_enabled=async_enabled, changelog=False
    ) as harness:
        harness.push([("a", 1)])
        harness.end_batch()
        harness.push([("a", -1)])
        with pytest.raises(OperatorError, match="because the operator had already changed state"):
            harness.end_batch()


READS = {
    *(
        "async_counts",
        "async_entries",
        "async_get",
        "async_heads",
        "async_read",
        "async_rows",
        "entries",
        "get",
    ),
    *("heads", "prefetch", "rows", "stamps_at", "up_to"),
    *("cascade_expiry", "use_cache"),  # in open
    "sweep",  # after all rows
}


def test_each_method_of_a_column_state_is_known_to_read_or_to_change() -> None:
    for kind in (BundleState, ColumnState, ColumnMapState, ListColumnState):
        names = {name for name in dir(kind) if not name.startswith("_")}
        assert names <= READS | BUNDLE_WRITES, kind
    assert not READS & BUNDLE_WRITES


# -- operators ----------------------------------------------------------------------------------------------------


class Product(AggregateFunction):
    """Fails for some values, after it has changed the accumulator that it was given."""

    def create_accumulator(self) -> list[int]:
        return [1]

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator[0] *= value
        if value < 0:
            raise ValueError(f"not {value}")

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator[0]


def test_an_aggregate_function_of_yours(async_enabled: bool) -> None:
    product = udaf(
        Product(), result_type=pa.int64(), accumulator_type=pa.schema([("p", pa.int64())]), name="product"
    )
    operator = GroupAggregate([count().alias("n"), product("v").alias("p")])
    operator.errors = "output"
    with OperatorHarness(operator, ROWS, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([("a", 2), ("a", -5), ("b", -1), ("a", 3)])
        assert last(harness.end_batch()) == {"a": (2, 6)}
        assert harness.side_output("errors") == [
            ("+I", "a", -5, "ValueError", "not -5"),
            ("+I", "b", -1, "ValueError", "not -1"),
        ]
        harness.push([("a", 7), ("b", 1), ("a", -7)])
        assert last(harness.end_batch()) == {"a": (3, 42), "b": (1, 1)}
        assert harness.statistics()["counter.rows_failed"] == 1


def test_rows_arrive_whole() -> None:
    operator, inputs = GroupAggregate([count()]), (InputSpec(ROWS, ("k",)),)
    operator.local_aggregation = "always"
    operator.bind(inputs)
    assert choose_partial_aggregation(operator, inputs, None, 0) is not None
    operator.errors = "output"
    assert choose_partial_aggregation(operator, inputs, None, 0) is None


def test_errors_of_the_program_fail_the_micro_batch(async_enabled: bool) -> None:
    class Wrong(Sums):
        def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
            ctx.emit([bundle.keys.columns[0]], output="nowhere")

    with OperatorHarness(
        Wrong("plain"), ROWS, ["k"], async_enabled=async_enabled, changelog=False
    ) as harness:
        harness.push([("a", 1)])
        with pytest.raises(OperatorError, match="nowhere"):
            harness.end_batch()


def test_what_cannot_send_errors_is_refused_by_name() -> None:
    timed = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.timestamp("us", "UTC"))])

    def having(operator: BundleOperator, errors: Any = "output") -> BundleOperator:
        operator.errors = errors
        return operator

    cases: list[tuple[BundleOperator, Any, Any, dict[str, Any], str]] = [
        (Sums("plain"), ROWS, ["k"], {"changelog": True}, "is a changelog, whose rows need each other"),
        (having(Sums("plain"), "drop"), ROWS, ["k"], {"changelog": False}, "errors is 'drop'; choose"),
        (
            having(TemporalSort(["v"])),
            timed,
            ["k"],
            {"changelog": False, "event_time": "t"},
            "wait for the watermark",
        ),
        (having(Join("inner")), [ROWS, TOTALS], [["k"], ["k"]], {"changelog": False}, "different columns"),
    ]
    for operator, inputs, key, more, message in cases:
        with pytest.raises(SchemaError, match=message):
            OperatorHarness(operator, inputs, key, **more)
