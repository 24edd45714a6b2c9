"""What a restored harness keeps of the one before, and what it refuses as a job does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from asyncstate.errors import ConfigurationError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, count

SCHEMA = pa.schema([("k", pa.int64())])
LIMIT = "async-state.in-flight-limit"


def test_options_are_kept_and_arguments_may_change() -> None:
    options = {LIMIT: "3", "async-state.enabled": "true"}
    with OperatorHarness(GroupAggregate([count()]), SCHEMA, ["k"], options=options) as before:
        before.push([(1,)])
        before.end_batch()
        assert before.statistics()["in_flight_limit"] == 3
        snapshot = before.snapshot()
    with before.restore(snapshot) as same, before.restore(snapshot, async_enabled=False) as sync:
        for after in (same, sync):
            after.push([(1,)])
            after.end_batch()
        assert same.statistics()["in_flight_limit"] == 3
        assert sync.statistics()["in_flight_limit"] == 1
    with before.restore(snapshot, options={LIMIT: "5"}) as other:
        other.push([(1,)])
        other.end_batch()
        assert other.statistics().get("in_flight_limit") == 5


def test_other_key_groups_are_refused(async_enabled: bool, tmp_path: Path) -> None:
    def harness(max_parallelism: int) -> OperatorHarness:
        return OperatorHarness(
            GroupAggregate([count()]),
            SCHEMA,
            ["k"],
            max_parallelism=max_parallelism,
            async_enabled=async_enabled,
            folder=tmp_path,
        )

    refused = "has 128 key groups, but async-state.max-parallelism is 64; set it to 128"
    with harness(128) as before:
        before.push([(number,) for number in range(50)])
        before.end_batch()
        with pytest.raises(ConfigurationError, match=refused):
            harness(64)
        with pytest.raises(ConfigurationError, match=refused):
            before.restore(before.snapshot(), max_parallelism=64)
        before.push([(1,)])
        assert before.end_batch() == [("-U", 1, 1), ("+U", 1, 2)]  # it still owns the checkpoint


SALES = pa.schema([("shop", pa.string()), ("item", pa.string()), ("amount", pa.int64())])


@pytest.mark.parametrize(
    ("schema", "key", "refused"),
    [
        (SALES, ["item"], r"the key \(key0\) was \(shop: string\) and is now \(item: string\)"),
        (SALES, ["shop", "item"], r"was \(shop: string\) and is now \(shop: string, item: string\)"),
        (SALES.set(2, pa.field("amount", pa.string())), ["shop"], "column 'amount' was int64 and is string"),
    ],
)
def test_what_a_job_refuses_to_go_on_with(
    schema: pa.Schema, key: list[str], refused: str, async_enabled: bool, tmp_path: Path
) -> None:
    def harness(schema: pa.Schema, key: list[str]) -> OperatorHarness:
        operator = GroupAggregate([count()])
        return OperatorHarness(operator, schema, key, async_enabled=async_enabled, folder=tmp_path)

    with harness(SALES, ["shop"]) as before:
        before.push([("ann", "tea", 1)])
        before.end_batch()
    with pytest.raises(SchemaError, match=refused):
        harness(schema, key)
