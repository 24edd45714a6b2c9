"""Rows have the values that they were emitted with, whatever the operator does with its objects afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.operator import OutputSpec, RecordOperator
from asyncstate.testing import OperatorHarness
from operators import KeyedFlatMap

ROWS = pa.schema([("k", pa.int64())])
NESTED = pa.schema(
    [
        ("k", pa.int64()),
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.list_(pa.int64()))),
        ("struct", pa.struct([("n", pa.int64())])),
        ("array", pa.list_(pa.float64())),
    ]
)
ALONE = pa.schema([("list", pa.list_(pa.int64()))])


class Reusing(RecordOperator):
    """Emits the same objects twice, changed in between."""

    def bind(self, inputs: Any) -> OutputSpec:
        return OutputSpec(NESTED, {"alone": ALONE})

    def process(self, row: Any, ctx: Any) -> None:
        values: Any = {"list": [], "map": {"a": []}, "struct": {"n": 0}, "array": np.zeros(1)}
        for number in (1, 2):
            values["list"].append(number)
            values["map"]["a"].append(number)
            values["struct"]["n"] = number
            values["array"][0] = number
            ctx.emit(k=row.k, **values)
            ctx.emit(values["list"], output="alone")


def test_objects_that_change_after_they_were_emitted(async_enabled: bool) -> None:
    with OperatorHarness(Reusing(), ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(7,)])
        assert harness.end_batch() == [
            ("+I", 7, [1], [("a", [1])], {"n": 1}, [1.0]),
            ("+I", 7, [1, 2], [("a", [1, 2])], {"n": 2}, [2.0]),
        ]
        assert harness.side_output("alone") == [("+I", [1]), ("+I", [1, 2])]


def test_a_generator_that_yields_the_same_list(async_enabled: bool) -> None:
    def paths(row: Any) -> Any:
        path: list[int] = []
        for step in range(3):
            path.append(step)
            yield (path,)

    with OperatorHarness(KeyedFlatMap(paths, ALONE), ROWS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(7,)])
        assert harness.end_batch() == [("+I", [0]), ("+I", [0, 1]), ("+I", [0, 1, 2])]
