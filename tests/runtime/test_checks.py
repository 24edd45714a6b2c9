"""What is refused before any row is read, whatever drives the operator: here without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, count, sum_

LIST = pa.list_(pa.int64())


def test_a_key_of_a_type_that_keys_cannot_have_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"operator .*'ks'"):
        OperatorHarness(GroupAggregate([count()]), pa.schema([("ks", LIST)]), "ks")


def test_an_event_time_that_is_no_timestamp_is_refused() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", pa.string())])
    with pytest.raises(SchemaError, match=r"'at' is of type string; cast it to a timestamp"):
        OperatorHarness(GroupAggregate([count()]), schema, "k", event_time="at")


@pytest.mark.parametrize(
    ("column", "message"),
    [("nothing", "needs a column 'nothing'.*its columns are: k, text"), ("text", "'sum_text'.*string")],
)
def test_columns_of_aggregates_are_checked(column: str, message: str) -> None:
    schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
    with pytest.raises(SchemaError, match=rf"operator 'operator': GroupAggregate: .*{message}"):
        OperatorHarness(GroupAggregate([sum_(column)]), schema, "k")


def test_a_null_key_is_a_key(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.int64())])
    with OperatorHarness(GroupAggregate([count()]), schema, "k", async_enabled=async_enabled) as harness:
        harness.push([(None,), (1,), (None,)])
        assert sorted(harness.end_batch(), key=repr) == [("+I", 1, 1), ("+I", None, 2)]
        harness.push([(None,)])
        assert harness.end_batch() == [("-U", None, 2), ("+U", None, 3)]
