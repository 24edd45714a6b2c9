"""A coroutine at bundle grain is refused: nothing would ever run it, and its rows would be lost in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import FutureStateError
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec
from asyncstate.testing import OperatorHarness

SCHEMA = pa.schema([("key", pa.int64())])


class Coroutine(BundleOperator):
    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return SCHEMA

    async def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        raise AssertionError("never runs")


def test_a_coroutine_is_refused(async_enabled: bool) -> None:
    with OperatorHarness(Coroutine(), SCHEMA, ["key"], async_enabled=async_enabled) as harness:
        harness.push([(1,)])
        with pytest.raises(FutureStateError, match="operator 'operator'.*return a StateFuture"):
            harness.end_batch()
