"""Columns are attributes of a row, whatever they are called."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from asyncstate import RecordContext, RecordOperator, Row
from asyncstate.operator import row_type
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("k", pa.int64()), ("count", pa.int64()), ("index", pa.string())])


class Shown(RecordOperator):
    def bind(self, inputs: Any) -> pa.Schema:
        return pa.schema([("count", pa.int64()), ("index", pa.string()), ("repr", pa.string())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(row.count, row.index, repr(row))


def test_columns_called_as_methods_of_a_tuple_are_columns(async_enabled: bool) -> None:
    with OperatorHarness(Shown(), SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0, "a")])
        assert harness.end_batch() == [("+I", 0, "a", "Row(k=1, count=0, index='a')")]


def test_a_row_without_such_columns_has_the_methods() -> None:
    assert row_type(pa.schema([("k", pa.int64())]))((5,)).count(5) == 1
