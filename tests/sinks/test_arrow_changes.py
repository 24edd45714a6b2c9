"""The last change of each key, of rows that are in this process."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.changelog import RETRACT, Changelog
from asyncstate.driver.arrow_changes import last_changes
from asyncstate.errors import OperatorError, SchemaError

SCHEMA = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string())), ("row_kind", pa.string())])


def rows(*values: tuple[int, list[str] | None, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, each, strict=True)) for each in values], schema=SCHEMA
    )


def test_upserts_are_not_netted_by_their_content() -> None:
    both = rows((1, ["a"], "+U"), (1, ["a"], "-D"))
    with pytest.raises(OperatorError, match=r"key \{'id': 1\} has several"):
        last_changes(both, ["id"], Changelog.upsert("id"))


def test_upserts_may_have_columns_that_cannot_be_compared() -> None:
    found = last_changes(rows((1, ["a"], "+U"), (2, None, "-D")), ["id"], Changelog.upsert("id"))
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "tags": ["a"], "row_kind": "+U"},
        {"id": 2, "tags": None, "row_kind": "-D"},
    ]


NESTED = pa.struct([("a", pa.list_(pa.float64())), ("b", pa.struct([("c", pa.date32())]))])


@pytest.mark.parametrize(
    ("kind", "same", "other"),
    [
        (pa.list_(pa.string()), ["a", None], ["a"]),
        (pa.list_(pa.timestamp("us", "UTC")), [0], None),
        (NESTED, {"a": [float("nan")], "b": {"c": None}}, {"a": [1.0], "b": None}),
    ],
    ids=str,
)
def test_nested_columns_are_compared_by_their_values(kind: pa.DataType, same: Any, other: Any) -> None:
    """A changed row replaces the one before; a row that comes back as it was is no change."""
    given = [
        (1, same, "-U"),
        (1, other, "+U"),
        (2, same, "-U"),
        (2, same, "+U"),
        (3, other, "-D"),
        (4, same, "+I"),
    ]
    ids, values, kinds = zip(*given, strict=True)
    table = pa.table({"id": ids, "v": pa.array(values, kind), "row_kind": kinds})
    found = last_changes(pa.concat_tables([table[:3], table[3:]]), ["id"], RETRACT)
    assert found.schema.field("v").type == kind
    changes = {row["id"]: (str(row["v"]), row["row_kind"]) for row in found.to_pylist()}
    column = pa.array([other, other, same], kind).to_pylist()
    assert changes == {
        1: (str(column[0]), "+U"),
        3: (str(column[1]), "-D"),
        4: (str(column[2]), "+U"),
    }


def test_a_nested_key_is_shown_as_it_is() -> None:
    key = pa.array([{"a": 1}, {"a": 1}, {"a": 2}], pa.struct([("a", pa.int64())]))
    table = pa.table({"k": key, "n": [1, 2, 3], "row_kind": ["-U", "+U", "-D"]})
    found = last_changes(table, ["k"], RETRACT)
    assert [(row["k"], row["row_kind"]) for row in found.to_pylist()] == [({"a": 1}, "+U"), ({"a": 2}, "-D")]
    with pytest.raises(OperatorError, match=r"key \{'k': \{'a': 1\}\} has several"):
        last_changes(table.slice(0, 2).set_column(2, "row_kind", [["+I", "+I"]]), ["k"], RETRACT)


@pytest.mark.parametrize("wrap", [lambda kind: kind, pa.list_], ids=["map", "list of maps"])
def test_maps_are_refused_as_spark_refuses_them(wrap: Callable[[pa.DataType], pa.DataType]) -> None:
    kind = wrap(pa.map_(pa.string(), pa.int64()))
    table = pa.table({"id": [1], "m": pa.nulls(1, kind), "row_kind": ["+I"]})
    with pytest.raises(SchemaError, match=r"column 'm' is of type .*map.* cannot be compared; cast it"):
        last_changes(table, ["id"], RETRACT)
    assert last_changes(table, ["id"], Changelog.upsert("id")).num_rows == 1


@pytest.mark.parametrize("kind", ["*I", None])
def test_an_unknown_kind_is_named(kind: str | None) -> None:
    rows = pa.table({"id": pa.array([1]), "row_kind": pa.array([kind], pa.string())})
    with pytest.raises(
        SchemaError, match=rf"has the value {re.escape(repr(kind))}; write one of \+I, -U, \+U, -D"
    ):
        last_changes(rows, ["id"], RETRACT)
