"""What a harness computes without Spark has Spark's values and types.

The cases are the examples of Spark's documentation of its functions. A harness may refuse them.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.dataflow import Transform
from asyncstate.errors import SchemaError
from asyncstate.testing.expressions import transformed

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROWS = pa.RecordBatch.from_pydict({"k": [1]})
ALWAYS_NEW = (
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
    "now",
    "rand",
    "random",
    "uuid",
)
"""What has another value whenever it is asked."""
TYPES = ("ceil(-0.1)", "ceiling(-0.1)", "floor(-0.1)")
"""DuckDB takes the literal for one digit wider than Spark does."""


@pytest.mark.since_spark("4.3", "the documentation that this was written for")
def test_examples_of_sparks_documentation(spark: Any) -> None:
    wrong, checked = [], 0
    for (name,) in spark.sql("SHOW FUNCTIONS").collect():
        if name in ALWAYS_NEW:
            continue
        lines = [line for (line,) in spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()]
        for example in re.findall(r"^\s*> SELECT (.*);\s*$", "\n".join(lines), re.MULTILINE):
            try:
                found = transformed(
                    Transform(name="v", place="", kind="select", expressions=(f"{example} AS v",)), ROWS
                ).column(0)
            except SchemaError:
                continue
            try:
                (right,) = spark.sql(f"SELECT {example} AS v").toArrow().columns
            except Exception:  # of some examples Spark shows the error
                continue
            checked += 1
            same = (
                found.type.equals(right.type) or _plain(found.type) == _plain(right.type) or example in TYPES
            )
            if not same or _comparable(found[0].as_py()) != _comparable(right[0].as_py()):
                wrong.append(f"{example}: {right.type} {right[0]} in Spark, {found.type} {found[0]} here")
    assert not wrong, "\n".join(wrong)
    assert checked > 250, "the examples were not found"


def _plain(kind: pa.DataType) -> str:
    """The type without the names of elements, and whether there may be nulls."""
    return (
        re.sub(r"<\w+: ", "<", str(kind).replace(" not null", ""))
        if pa.types.is_list(kind)
        else str(kind).replace(" not null", "")
    )


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else round(value, 9)
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    return {name: _comparable(one) for name, one in value.items()} if isinstance(value, dict) else value
