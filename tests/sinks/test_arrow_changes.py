"""The last change of each key, of rows that are in this process."""

from __future__ import annotations

import re

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


@pytest.mark.parametrize("kind", ["*I", None])
def test_an_unknown_kind_is_named(kind: str | None) -> None:
    rows = pa.table({"id": pa.array([1]), "row_kind": pa.array([kind], pa.string())})
    with pytest.raises(
        SchemaError, match=rf"has the value {re.escape(repr(kind))}; write one of \+I, -U, \+U, -D"
    ):
        last_changes(rows, ["id"], RETRACT)
