"""Declarations of inputs: the harness refuses what a driver refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import AsyncStateError, ConfigurationError, JobError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, Join, count

SCHEMA = pa.schema([("k", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us"))])


def harness(schema: Any = SCHEMA, key: Any = "k", **settings: Any) -> OperatorHarness:
    return OperatorHarness(GroupAggregate([count()]), schema, key, **settings)


def join(key: Any = (["k"], ["k"]), **settings: Any) -> OperatorHarness:
    right = pa.schema([("k", pa.int64()), ("other", pa.string())])
    return OperatorHarness(Join("inner"), [SCHEMA, right], key, **settings)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["k", "v", "k"], r"input 0 has column 'k' twice; rename or drop all but one"),
        (["k", "v", "v"], r"input 0 has column 'v' twice; rename or drop all but one"),
        (["k", "row_kind"], r"'row_kind' is the changelog's own column"),
        (["k", "__asyncstate_commit"], r"column name '__asyncstate_commit' is used by asyncstate; rename it"),
    ],
)
def test_names_of_columns(names: list[str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        harness(pa.schema([(name, pa.int64()) for name in names]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: harness(key=5), JobError, "key 5 is neither a column name, nor a list"),
        (lambda: harness(key=["k", "k"]), JobError, "names a column twice"),
        (lambda: harness(key=["k", 1]), JobError, "neither a column name"),
        (lambda: harness(key="nothing"), SchemaError, "no column 'nothing'"),
        (lambda: join(key=["k"]), JobError, "has 2 inputs, so key needs one entry for each"),
        (lambda: join(key="k"), JobError, "has 2 inputs, so key needs one entry for each"),
        (lambda: join(event_time=["at"]), JobError, "has 2 inputs but event_time has 1 entries"),
        (lambda: harness(watermark_delay=5), JobError, "watermark_delay without event_time"),
        (lambda: harness(event_time="at", watermark_delay=-5), ConfigurationError, "-5 is below zero"),
        (lambda: harness(event_time="at", watermark_delay="soon"), ConfigurationError, "'soon'"),
        (lambda: harness(event_time=5), JobError, "event_time has 5"),
        (lambda: join(changelog=[True]), JobError, "has 2 inputs but changelog has 1 entries"),
        (lambda: harness(changelog="no"), JobError, "changelog is 'no'"),
        (lambda: harness(SCHEMA.field(0)), SchemaError, "input 0.*not a pyarrow schema"),
        (
            lambda: harness(parallelism=9, max_parallelism=4),
            ConfigurationError,
            "parallelism 9.*4 key groups",
        ),
        (lambda: harness(parallelism=0), ConfigurationError, "parallelism is 0"),
        (lambda: harness(parallelism=1.5), ConfigurationError, "parallelism is 1.5"),
        (lambda: harness(partitions_per_task=0), ConfigurationError, "partitions_per_task is 0"),
        (lambda: harness(partitions_per_task="2"), ConfigurationError, "partitions_per_task is '2'"),
        (
            lambda: OperatorHarness(Join("inner"), SCHEMA, "k"),
            JobError,
            r"\(Join\) takes 2 inputs but got 1",
        ),
    ],
)
def test_declarations(make: Callable[[], Any], error: type[AsyncStateError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("key", ["k", ["k"], ("k",), [["k"]], [("k",)]], ids=repr)
def test_spellings_of_the_key(key: Any) -> None:
    with harness(key=key) as h:
        h.push([(1, "a", 0), (1, "b", 0), (2, "c", 0)])
        assert sorted(h.end_batch()) == [("+I", 1, 2), ("+I", 2, 1)]


@pytest.mark.parametrize("key", [None, [], [None], [[]]], ids=repr)
def test_spellings_of_no_key(key: Any) -> None:
    with harness(key=key) as h:
        h.push([(1, "a", 0), (1, "b", 0), (2, "c", 0)])
        assert h.end_batch() == [("+I", 3)]


def test_a_watermark_delay_may_be_a_text() -> None:
    with harness(event_time="at", watermark_delay="1 second") as h:
        h.push([(1, "a", 5_000_000)])
        h.end_batch()
        assert h.watermark == 4_000_000
