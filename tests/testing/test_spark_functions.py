"""What a harness computes without Spark has Spark's values and types.

The cases are the examples of Spark's documentation of its functions. A harness may refuse them.
"""

from __future__ import annotations

import contextlib
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
    ours = {}
    for example in _examples(spark):
        with contextlib.suppress(SchemaError):
            node = Transform(name="v", place="", kind="select", expressions=(f"{example} AS v",))
            ours[example] = transformed(node, ROWS).column(0)
    wrong, answers = [], _answers(spark, list(ours))
    for example, right in answers.items():
        found = ours[example]
        same = found.type.equals(right.type) or _plain(found.type) == _plain(right.type) or example in TYPES
        if not same or _comparable(found[0].as_py()) != _comparable(right[0].as_py()):
            wrong.append(f"{example}: {right.type} {right[0]} in Spark, {found.type} {found[0]} here")
    assert not wrong, "\n".join(wrong)
    assert len(answers) > 250, "the examples were not found"


def _examples(spark: Any) -> list[str]:
    """Those of all functions, in their order."""
    catalog = spark._jsparkSession.sessionState().catalog()
    found = {}
    for (name,) in spark.sql("SHOW FUNCTIONS").collect():
        if name not in ALWAYS_NEW and name.isidentifier():  # operators have names of functions, too
            info = catalog.lookupFunctionInfo(
                spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name)
            )
            found |= dict.fromkeys(re.findall(r"^\s*> SELECT (.*);\s*$", info.getExamples(), re.MULTILINE))
    return list(found)


def _answers(spark: Any, examples: list[str]) -> dict[str, Any]:
    """What Spark answers to each, in few statements; those of which it shows an error are left out."""
    try:
        columns = ", ".join(f"{example} AS v{at}" for at, example in enumerate(examples))
        return dict(zip(examples, spark.sql(f"SELECT {columns}").toArrow().columns, strict=True))
    except Exception:  # of some examples Spark shows the error
        half = len(examples) // 2
        return _answers(spark, examples[:half]) | _answers(spark, examples[half:]) if half else {}


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
