"""The ways to write a row for ``emit``: by position, by name, as a tuple, Row or dict; and what is no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    OutputSpec,
    ProcessWindowFunction,
    RecordContext,
    RecordOperator,
    Row,
    RowKind,
)
from asyncstate.changelog import Changelog
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import KeyedMap, WindowProcess, tumble

ROWS = pa.schema([("name", pa.string()), ("n", pa.int64())])
KIND = pa.schema([("kind", pa.string()), ("output", pa.int64())])

Emit = Callable[[Row, Any], None]


class Emitting(RecordOperator):
    """Puts a row out as ``emit`` says, behind a read of state, so that it may have to wait."""

    def __init__(self, emit: Emit, output: pa.Schema | OutputSpec = ROWS) -> None:
        self.emit = emit
        self.output = output

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema | OutputSpec:
        if isinstance(self.output, OutputSpec):
            return self.output
        return OutputSpec(self.output, changes=Changelog.retract())

    def process(self, row: Row, ctx: RecordContext) -> None:
        self.emit(row, ctx)


class Columns(BundleOperator):
    """The columns of a bundle by name."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(ROWS, changes=Changelog.retract())

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        ctx.emit({name: bundle.batch.column(name) for name in self.names}, bundle.kinds)


def run(emit: Emit, output: pa.Schema | OutputSpec = ROWS, **mode: Any) -> OperatorHarness:
    harness = OperatorHarness(Emitting(emit, output), ROWS, "name", **mode)
    harness.push([("a", 1), ("b", None)])
    harness.end_batch()
    return harness


WAYS: dict[str, Emit] = {
    "positions": lambda row, ctx: ctx.emit(row.name, row.n, kind=RowKind.UPDATE_AFTER),
    "names": lambda row, ctx: ctx.emit(n=row.n, name=row.name, kind=RowKind.UPDATE_AFTER),
    "tuple": lambda row, ctx: ctx.emit((row.name, row.n), kind=RowKind.UPDATE_AFTER),
    "row": lambda row, ctx: ctx.emit(row, kind=RowKind.UPDATE_AFTER),
    "dict": lambda row, ctx: ctx.emit({"n": row.n, "name": row.name}, kind=RowKind.UPDATE_AFTER),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_row_may_be_written_in_each_of_these_ways(way: str, mode: dict[str, Any]) -> None:
    with run(WAYS[way], **mode) as harness:
        assert harness.output == [("+U", "a", 1), ("+U", "b", None)]


@pytest.mark.parametrize("way", WAYS)
def test_side_outputs_take_the_same(way: str) -> None:
    class Aside:
        def __init__(self, ctx: RecordContext) -> None:
            self.emit = lambda *row, kind, **columns: ctx.emit(*row, kind=kind, output="aside", **columns)

    emit: Emit = lambda row, ctx: WAYS[way](row, Aside(ctx))  # noqa: E731
    with run(emit, OutputSpec(KIND, {"aside": ROWS}, side_changes={"aside": Changelog.retract()})) as harness:
        assert harness.output == []
        assert harness.side_output("aside") == [("+U", "a", 1), ("+U", "b", None)]


def test_columns_with_the_names_of_parameters_go_into_a_dict() -> None:
    with run(lambda row, ctx: ctx.emit({"kind": row.name, "output": row.n}), KIND) as harness:
        assert harness.output == [("+I", "a", 1), ("+I", "b", None)]
    with pytest.raises(OperatorError, match=r"the kind 'a'; .* pass a dict"):
        run(lambda row, ctx: ctx.emit(kind=row.name, output=None), KIND)


FLAT: dict[str, tuple[pa.DataType, Any]] = {
    "text": (pa.string(), "x"),
    "bytes": (pa.binary(), b"x"),
    "number": (pa.int64(), 3),
    "float": (pa.float64(), 1.5),
    "truth": (pa.bool_(), True),
    "time": (pa.timestamp("us"), 5),
    "null": (pa.int64(), None),
}


@pytest.mark.parametrize("name", FLAT)
def test_the_value_of_the_only_column_may_be_in_a_tuple_or_dict(name: str, mode: dict[str, Any]) -> None:
    kind, value = FLAT[name]
    for emit in (
        lambda row, ctx: ctx.emit(value),
        lambda row, ctx: ctx.emit((value,)),
        lambda row, ctx: ctx.emit({"only": value}),
        lambda row, ctx: ctx.emit(only=value),
        lambda row, ctx: ctx.emit((value,)) if row.n is None else ctx.emit(value),
    ):
        with run(emit, pa.schema([("only", kind)]), **mode) as harness:
            assert harness.output == [("+I", value)] * 2


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.int64()), (1, 2)),
        (pa.struct([("a", pa.int64())]), {"a": 1}),
        (pa.map_(pa.string(), pa.int64()), (("a", 1),)),
    ],
)
def test_an_only_column_of_a_nested_type_takes_them_as_its_value(kind: pa.DataType, value: Any) -> None:
    wanted = pa.array([value], kind).to_pylist()[0]
    for emit in (lambda row, ctx: ctx.emit(value), lambda row, ctx: ctx.emit(only=value)):
        with run(emit, pa.schema([("only", kind)])) as harness:
            assert harness.output == [("+I", wanted)] * 2


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.list_(pa.int64()), [1, 2]), (pa.struct([("a", pa.int64())]), {"a": 1})]
)
def test_an_only_column_of_a_nested_type_may_be_named_in_a_dict(
    kind: pa.DataType, value: Any, mode: dict[str, Any]
) -> None:
    """What such a dict says was lost to a struct, which has no field of that name."""
    schema = pa.schema([("only", kind)])
    with run(
        lambda row, ctx: ctx.emit({"only": value}), OutputSpec(schema, {"aside": schema}), **mode
    ) as harness:
        assert harness.output == [("+I", value)] * 2
    aside = OutputSpec(ROWS, {"aside": schema})
    with run(lambda row, ctx: ctx.emit({"only": value}, output="aside"), aside, **mode) as harness:
        assert harness.side_output("aside") == [("+I", value)] * 2
    with OperatorHarness(KeyedMap(lambda row: {"only": value}, schema), ROWS, "name", **mode) as harness:
        harness.push([("a", 1)])
        assert harness.end_batch() == [("+I", value)]


def test_a_struct_with_a_field_of_its_columns_name_is_given_as_it_is() -> None:
    kind = pa.struct([("only", pa.struct([("only", pa.int64())]))])
    with run(lambda row, ctx: ctx.emit({"only": {"only": 1}}), pa.schema([("only", kind)])) as harness:
        assert harness.output == [("+I", {"only": {"only": 1}})] * 2


WRONG: dict[str, tuple[Emit, str]] = {
    "too few": (lambda row, ctx: ctx.emit("a"), r"emit\(\) got 'a' for a row of 2 columns: name, n; give one value"),
    "too many": (lambda row, ctx: ctx.emit(1, 2, 3), r"got 3 values for a row of 2 columns"),
    "none": (lambda row, ctx: ctx.emit(), r"got 0 values"),
    "a list": (lambda row, ctx: ctx.emit(["a", 1]), r"got \['a', 1\] for a row"),
    "a short tuple": (lambda row, ctx: ctx.emit(("a",)), r"got a tuple of 1 values"),
    "missing": (lambda row, ctx: ctx.emit(name="a"), r"columns by name without 'n' for"),
    "unknown": (lambda row, ctx: ctx.emit(name="a", n=1, m=2), r"with 'm', which is not a column, for"),
    "misspelt": (lambda row, ctx: ctx.emit({"nam": "a", "n": 1}), r"a dict without 'name' and with 'nam', which"),
    "both": (lambda row, ctx: ctx.emit("a", n=1), r"got 1 values and 'n' by name"),
    "aside": (lambda row, ctx: ctx.emit(name="a", output="aside"), r"side output 'aside': emit\(\) got columns by"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_row_is_refused_where_it_is_emitted(case: str, mode: dict[str, Any]) -> None:
    emit, message = WRONG[case]
    with pytest.raises(OperatorError, match=r"operator 'operator', key \('a',\): SchemaError: .*" + message):
        run(emit, OutputSpec(ROWS, {"aside": ROWS}), **mode)


def test_a_dict_of_other_columns_is_refused_for_the_only_column_too() -> None:
    with pytest.raises(
        SchemaError, match=r"emit\(\) got a dict without 'only' and with 'x', which is not a column"
    ):
        run(lambda row, ctx: ctx.emit({"x": 1}), pa.schema([("only", pa.int64())]))


def test_bundles_take_their_columns_by_name() -> None:
    with OperatorHarness(Columns("n", "name"), ROWS, "name") as harness:
        harness.push([("a", 1)], kind="-D")
        assert harness.end_batch() == [("-D", "a", 1)]
    with OperatorHarness(Columns("n"), ROWS, "name") as harness:
        harness.push([("a", 1)])
        with pytest.raises(OperatorError, match=r"the output: emit\(\) got columns by name without 'name'"):
            harness.end_batch()


class Named(ProcessWindowFunction):
    def process(self, key: tuple[Any, ...], ctx: Any, rows: Sequence[Row]) -> None:
        ctx.emit(n=len(rows), name=key[0])
        ctx.emit({"n": -1, "name": None})


@pytest.mark.parametrize("window_columns", [False, True])
def test_functions_of_windows_name_their_own_columns(window_columns: bool) -> None:
    operator = WindowProcess(Named(), tumble("1 second"), ROWS, window_columns=window_columns)
    timed = pa.schema([("key", pa.string()), ("at", pa.timestamp("us"))])
    with OperatorHarness(operator, timed, "key", event_time="at") as harness:
        harness.push([("a", 5), ("a", 6)])
        rows = harness.finish()
    assert [row[-2:] for row in rows] == [("a", 2), (None, -1)]


@given(st.permutations(["a", "b", "c"]), st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9)))
def test_names_in_any_order_give_the_columns_order(names: list[str], row: dict[str, int]) -> None:
    from asyncstate.row_shape import RowShape

    shape = RowShape(pa.schema([(name, pa.int64()) for name in names]), "x", emits=True)
    if set(row) == set(names):
        assert shape.emitted((), row) == shape.emitted((row,), {}) == tuple(row[name] for name in names)
    else:
        with pytest.raises(SchemaError):
            shape.emitted((), row)
