"""Columns are attributes of a row, whatever they are called."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    InputSpec,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    Timer,
    ValueStateDescriptor,
)
from asyncstate.errors import OperatorError
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


# -- keys by name -----------------------------------------------------------------------------------------


class Keys(RecordOperator):
    """The key of rows and timers, in each of the ways to ask for its parts."""

    def bind(self, inputs: Sequence[InputSpec]) -> str:
        return "ways array<bigint>, shown string"

    def open(self, context: OperatorContext) -> None:
        self.kept = context.get_state(ValueStateDescriptor("kept", pickled=True))

    def process(self, row: Row, ctx: RecordContext) -> None:
        key = ctx.key
        assert key is ctx.key
        assert key == tuple(row[:2])
        assert hash(key) == hash(tuple(row[:2]))
        assert pickle.loads(pickle.dumps(key)) == key
        assert type(pickle.loads(pickle.dumps(key))) is tuple
        self.kept.update(key)
        self.say(ctx)
        ctx.timers.register_processing_time(0)

    def say(self, ctx: RecordContext) -> None:
        key = ctx.key
        ctx.emit([key[0], key.shop, key["shop"], key[1], key.count, key["count"]], repr(key))

    def on_timer(self, timer: Timer, ctx: RecordContext) -> None:
        assert self.kept.value() == ctx.key
        self.say(ctx)


def test_the_parts_of_a_key_are_there_by_name(mode: dict[str, Any]) -> None:
    with OperatorHarness(Keys(), "shop long, count long, n long", ["shop", "count"], **mode) as harness:
        harness.push([{"n": 1, "count": 8, "shop": 7}])
        assert harness.end_batch() == [("+I", [7, 7, 7, 8, 8, 8], "(7, 8)")] * 2


def test_a_name_that_no_part_of_the_key_has_is_an_error(mode: dict[str, Any]) -> None:
    class Wrong(Keys):
        def say(self, ctx: RecordContext) -> None:
            assert not hasattr(ctx.key, "shopp")
            ctx.key["shopp"]

    with OperatorHarness(Wrong(), "shop long, count long, n long", ["shop", "count"], **mode) as harness:
        harness.push([(7, 8, 1)])
        with pytest.raises(
            OperatorError, match="the key has no column 'shopp'; its columns are: shop, count"
        ):
            harness.end_batch()
