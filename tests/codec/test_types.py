"""Text form of types and refusal of unsupported ones."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import (
    check_key_type,
    check_value_type,
    schema_from_text,
    schema_to_text,
    type_from_text,
    type_to_text,
)
from asyncstate.errors import SchemaError
from tests.codec.strategies import flat_types, nested_types


@given(flat_types | nested_types())
def test_text_of_a_type_reads_back_as_the_type(arrow_type: pa.DataType) -> None:
    assert type_from_text(type_to_text(arrow_type)) == arrow_type


@given(st.lists(st.tuples(st.text(), flat_types | nested_types(), st.booleans()), unique_by=lambda f: f[0]))
def test_text_of_a_schema_reads_back_as_the_schema(fields: list[tuple[str, pa.DataType, bool]]) -> None:
    schema = pa.schema([pa.field(*field) for field in fields])
    assert schema_from_text(schema_to_text(schema)) == schema


def test_the_text_is_pinned_because_manifests_hold_it() -> None:
    schema = pa.schema(
        [
            pa.field("user id", pa.int64(), nullable=False),
            pa.field('quote"d', pa.timestamp("us", "UTC")),
            pa.field("m", pa.map_(pa.string(), pa.list_(pa.field("element", pa.float32(), nullable=False)))),
            pa.field("s", pa.struct([("d", pa.decimal128(20, 2)), ("t", pa.timestamp("ns"))])),
        ]
    )
    assert schema_to_text(schema) == (
        '"user id": int64 not null, "quote\\"d": timestamp[us, tz=UTC], '
        '"m": map<string, list<float32 not null>>, "s": struct<"d": decimal128(20, 2), "t": timestamp[ns]>'
    )


@pytest.mark.parametrize("text", ["", "int65", "int64 ", "list<int64", 'struct<"a" int64>', "decimal128(1)"])
def test_a_text_that_is_no_type_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(SchemaError, match="cannot be read at position"):
        type_from_text(text)


@pytest.mark.parametrize(
    "arrow_type", [pa.uint8(), pa.float16(), pa.time64("us"), pa.null(), pa.large_list(pa.int8())]
)
def test_unsupported_types_are_refused_by_column_name(arrow_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'price'.*cannot be a key"):
        check_key_type("price", arrow_type)
    with pytest.raises(SchemaError, match="'price'.*cannot be stored"):
        check_value_type("price", arrow_type)


def test_nested_types_are_values_but_not_keys_and_errors_name_the_inner_field() -> None:
    nested = pa.struct([("a", pa.list_(pa.uint64()))])
    with pytest.raises(SchemaError, match="'bids'.*cannot be a key"):
        check_key_type("bids", pa.list_(pa.int64()))
    with pytest.raises(SchemaError, match=r"'bids\.a\.item'"):
        check_value_type("bids", nested)


def test_a_schema_with_a_repeated_name_is_refused() -> None:
    with pytest.raises(SchemaError, match="'a' occurs twice"):
        schema_to_text(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
