"""Types and schemas as Spark writes them: against pyspark's own parser and conversion, and where they are taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputSpec,
    RecordContext,
    RecordOperator,
    Row,
    ValueStateDescriptor,
)
from asyncstate.codec import read_schema, read_schemas, read_type, type_to_text
from asyncstate.errors import SchemaError
from asyncstate.functions import AggregateFunction
from asyncstate.functions.aggregate_functions import list_view, map_view, value_view
from asyncstate.state import ColumnMapStateDescriptor, ColumnStateDescriptor, ListColumnStateDescriptor
from asyncstate.testing import OperatorHarness, PipelineSource
from operators import GroupAggregate, KeyedMap, KeyedProcess, LookupJoin, udaf

_NAMES = st.sampled_from(["a", "b c", "größe", "x.y", "select", "time", "a`b", ">"])


def _flat() -> st.SearchStrategy[tuple[str, Any]]:
    from pyspark.sql import types

    plain = [
        ("boolean", types.BooleanType()),
        ("tinyint", types.ByteType()),
        ("byte", types.ByteType()),
        ("smallint", types.ShortType()),
        ("short", types.ShortType()),
        ("int", types.IntegerType()),
        ("integer", types.IntegerType()),
        ("bigint", types.LongType()),
        ("LONG", types.LongType()),
        ("float", types.FloatType()),
        ("real", types.FloatType()),
        ("double", types.DoubleType()),
        ("decimal", types.DecimalType(10, 0)),
        ("decimal(7)", types.DecimalType(7, 0)),
        ("Decimal( 38 , 38 )", types.DecimalType(38, 38)),
        ("string", types.StringType()),
        ("binary", types.BinaryType()),
        ("date", types.DateType()),
        ("timestamp", types.TimestampType()),
        ("timestamp_ntz", types.TimestampNTZType()),
    ]
    return st.sampled_from(plain)


def _nested(inner: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[tuple[str, Any]]:
    from pyspark.sql import types

    def struct(fields: dict[str, tuple[str, Any]]) -> tuple[str, Any]:
        texts = [f"`{name.replace('`', '``')}`: {text}" for name, (text, _) in fields.items()]
        made = [types.StructField(name, kind) for name, (_, kind) in fields.items()]
        return f"struct<{', '.join(texts)}>", types.StructType(made)

    return st.one_of(
        inner.map(lambda one: (f"array<{one[0]}>", types.ArrayType(one[1]))),
        st.tuples(_flat(), inner).map(
            lambda two: (f"map<{two[0][0]},{two[1][0]}>", types.MapType(two[0][1], two[1][1]))
        ),
        st.dictionaries(_NAMES, inner, min_size=1, max_size=3).map(struct),
    )


@given(st.data())
def test_a_text_gives_what_spark_sends_for_it(data: st.DataObject) -> None:
    from pyspark.sql.pandas.types import to_arrow_type

    text, kind = data.draw(st.recursive(_flat(), _nested, max_leaves=6))
    wanted = to_arrow_type(kind, timezone="UTC")
    assert type_to_text(read_type(text, "x")) == type_to_text(wanted)
    fields = read_schema(f"first {text}, `the ``second`` ` {text} NOT NULL COMMENT 'so, it is'", "x")
    assert fields.names == ["first", "the `second` "]
    assert [type_to_text(one) for one in fields.types] == [type_to_text(wanted)] * 2
    assert [field.nullable for field in fields] == [True, False]


def test_what_is_no_text_stays_as_it_is() -> None:
    schema = pa.schema([("a", pa.int64())])
    for given_ in (None, 5, pa.int64(), schema):
        assert read_type(given_, "x") is given_
        assert read_schema(given_, "x") is given_
        assert read_schemas(given_, "x") is given_
    assert [read_type(kind, "x") for kind in (int, float, str, bytes, bool)] == [
        pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.bool_(),
    ]  # fmt: skip
    assert read_type(dict, "x") is dict


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bigitn", r"the type 'bigitn' cannot be read at position 1 \('bigitn'\); write a type of Spark SQL, such"),
        ("array<int", r"cannot be read at position 7 \('int'\)"),
        ("int int", r"at position 5 \('int'\)"),
        ("", "cannot be read at the end"),
        ("'", "cannot be read at the end"),
        ("variant", "cannot have 'VARIANT', for which there is no type in Arrow"),
        ("interval day", "cannot have 'INTERVAL DAY'"),
        ("map<int>", "cannot have 'MAP<INT>'"),
        ("struct<int>", "cannot have 'INT' without both a name and a type"),
        ("decimal(39, 1)", r"cannot have decimal\(39, 1\): a decimal has 1 to 38 digits"),
        ("decimal(3, 4)", r"cannot have decimal\(3, 4\)"),
        ("decimal(a)", r"cannot have decimal\(A, 0\)"),
    ],
)  # fmt: skip
def test_what_is_no_type_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=f"^state 'n', type: .*{message}"):
        read_type(text, "state 'n', type")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a int, b frob",
            r"the columns 'a int, b frob' cannot be read at position 8 \('b'\); write names and types",
        ),
        ("a string b int", r"at position 10 \('b'\).*in backquotes"),
        ("a int,\n  select int", r"at line 2, position 3 \('select'\)"),
        ("a int> , b struct<x int", r"at position 8 \(','\)"),
        ("a int,", "lack a column at their end"),
        ("  ", "lack a column at their end"),
        ("int", "cannot have 'INT' without both"),
        ("a int default 3", "cannot have more than NOT NULL and COMMENT at 'a'"),
    ],
)
def test_what_is_no_schema_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=f"^bind: .*{message}"):
        read_schema(text, "bind")


# -- where texts are taken ------------------------------------------------------------------------------


class Texts(RecordOperator):
    """Declares everything by texts."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec("account string, total decimal(12, 2)", {"late": "account string"})

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", "decimal(12,2)"))
        self.seen = context.get_state(MapStateDescriptor("seen", "string", "array<bigint>"))
        self.list = context.get_state(ListStateDescriptor("list", "struct<a: int>"))

    def process(self, row: Row, ctx: RecordContext) -> None:
        total = (self.total.value() or 0) + row.amount
        self.total.update(total)
        self.seen.put("amounts", [*(self.seen.get("amounts") or []), row.number])
        ctx.emit(account=row.account, total=total)
        ctx.emit(row.account, output="late")


@pytest.mark.parametrize("async_enabled", [False, True])
def test_an_operator_and_its_harness_may_be_declared_in_texts(async_enabled: bool) -> None:
    from decimal import Decimal

    inputs = "account string, amount decimal(10,2), number long"
    with OperatorHarness(Texts(), inputs, "account", async_enabled=async_enabled) as harness:
        harness.push([("a", Decimal("1.50"), 1), ("a", Decimal("2.25"), 2)])
        assert harness.end_batch() == [("+I", "a", Decimal("1.50")), ("+I", "a", Decimal("3.75"))]
        assert harness.side_output("late") == [("+I", "a"), ("+I", "a")]
        assert [state.types["value"] for state in harness.states()] == [
            "decimal128(12, 2)", "list<int64>", 'struct<"a": int32>',
        ]  # fmt: skip


class OnlyText(Texts):
    def bind(self, inputs: Sequence[InputSpec]) -> str:  # type: ignore[override]
        return "account string, total frob"


def test_errors_of_bind_name_the_operator() -> None:
    with pytest.raises(
        SchemaError, match=r"operator 'operator': .*cannot be read at position 17 \('total'\)"
    ):
        OperatorHarness(OnlyText(), "account string", "account")


class Sum(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator: list[int], value: int) -> None:  # type: ignore[override]
        accumulator[0] += value

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator[0]

    def get_accumulator_type(self) -> str:
        return "array<bigint>"


TAKEN: dict[str, Callable[[str, str], Any]] = {
    "value": lambda kind, columns: ValueStateDescriptor("x", kind).type,
    "column": lambda kind, columns: ColumnStateDescriptor("x", columns).schema,
    "list column": lambda kind, columns: ListColumnStateDescriptor("x", columns).schema,
    "column map": lambda kind, columns: ColumnMapStateDescriptor("x", columns, columns).key_schema,
    "input": lambda kind, columns: InputSpec(columns, ()).schema,
    "source": lambda kind, columns: PipelineSource(columns).schema,
    "output": lambda kind, columns: KeyedMap(lambda row: row, columns).output,
    "lookup": lambda kind, columns: LookupJoin(lambda keys: [], columns).columns,
    "udaf": lambda kind, columns: udaf(Sum, result_type=kind).result_type,
    "map view": lambda kind, columns: map_view("x", "string", kind).type.item_type,
    "list view": lambda kind, columns: list_view("x", kind).type.value_type,
    "value view": lambda kind, columns: value_view("x", kind).type,
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_text_is_taken_wherever_a_type_or_schema_is(name: str) -> None:
    columns = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert TAKEN[name]("bigint", "a bigint, b string") in (pa.int64(), columns)
    with pytest.raises(SchemaError, match=r"'(a )?frob' cannot be read at position 1"):
        TAKEN[name]("frob", "a frob")


def test_functions_take_texts_for_their_outputs() -> None:
    from asyncstate.functions import KeyedProcessFunction

    class Split(KeyedProcessFunction):
        def process(self, row: Row, ctx: RecordContext) -> None:
            ctx.emit(row.n, output="odd" if row.n % 2 else None)

    operator = KeyedProcess(Split(), "n long", side_outputs={"odd": "n long"})
    with OperatorHarness(operator, "k string, n long", "k") as harness:
        harness.push([("a", 1), ("a", 2)])
        assert harness.end_batch() == [("+I", 2)]
        assert harness.side_output("odd") == [("+I", 1)]


def test_an_aggregate_may_be_declared_in_texts() -> None:
    total = udaf(Sum, result_type="bigint")("n").alias("total")
    with OperatorHarness(GroupAggregate([total]), "k string, n long", "k", changelog=False) as harness:
        harness.push([("a", 1), ("a", 2)])
        assert harness.end_batch() == [("+I", "a", 3)]
