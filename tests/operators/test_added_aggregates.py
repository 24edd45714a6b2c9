"""Aggregates that are added to state that is there, and that leave it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import AsyncStateError
from asyncstate.errors import SchemaError
from asyncstate.functions import AggregateFunction
from asyncstate.offline.migration import DropField, migrate
from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import (
    Aggregate,
    GroupAggregate,
    GroupWindowAggregate,
    OverAggregate,
    WindowAggregate,
    approx_count_distinct,
    avg,
    bool_and,
    collect,
    count,
    hop,
    last_value,
    max_,
    min_,
    session,
    string_agg,
    sum_,
    tumble,
    udaf,
    var_pop,
)
from tests.local_aggregation import in_phases

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("s", pa.string()),
        ("p", pa.bool_()),
        ("f", pa.float64()),
        ("at", pa.timestamp("us")),
    ]
)
SECOND = 1_000_000

pytestmark = pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])


@udaf(result_type=pa.int64(), accumulator_type=pa.list_(pa.int64()))
class Total(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator[0] += value

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator[0]


def row(key: str, value: int, text: str, is_true: bool, second: int) -> tuple[Any, ...]:
    return key, value, text, is_true, value / 2, second * SECOND


def harness_of(operator: Operator, enabled: bool, **more: Any) -> OperatorHarness:
    return OperatorHarness(
        operator, SCHEMA, ["k"], async_enabled=enabled, event_time="at", **{"changelog": False, **more}
    )


LATER: Mapping[str, tuple[Aggregate, Any, Any]] = {
    "count": (count(), 1, 2),
    "count of p": (count("v").where("p"), 1, 1),
    "sum": (sum_("v"), 10, 14),
    "sum of floats": (sum_("f"), 5.0, 7.0),
    "avg": (avg("v"), 10.0, 7.0),
    "min": (min_("v"), 10, 4),
    "max": (max_("v"), 10, 10),
    "variance": (var_pop("v"), 0.0, 9.0),
    "bool_and": (bool_and("p"), True, False),
    "last": (last_value("s"), "c", "d"),
    "collect": (collect("v"), [10], [10, 4]),
    "string_agg": (string_agg("s"), "c", "c,d"),
    "different": (approx_count_distinct("v"), 1, 2),
    "function": (Total("v"), 10, 14),
}


@pytest.mark.parametrize("local", ["false", "true"])
@pytest.mark.parametrize("kind", LATER)
def test_an_added_aggregate_has_the_rows_from_then_on(kind: str, local: str, enabled: bool) -> None:
    """Of a key from before it is null up to its first row; what it then adds up is never that of before."""
    added, first, second = LATER[kind]
    added = added.alias("new").starting_now()
    with harness_of(in_phases(GroupAggregate([sum_("v")]), local), enabled) as before:
        before.push([row("x", 1, "a", False, 1), row("y", 2, "b", False, 1)])
        before.end_batch()
        snapshot = before.snapshot()
    changed = in_phases(GroupAggregate([added, sum_("v")]), local)
    with before.restore(snapshot, operator=changed) as harness:
        harness.push([row("x", 10, "c", True, 2), row("z", 10, "c", True, 2)])
        assert harness.end_batch() == [
            ("-U", "x", None, 1),
            ("+U", "x", first, 11),
            ("+I", "z", first, 10),
        ]
        again = harness.snapshot()
    with before.restore(again, operator=in_phases(GroupAggregate([sum_("v"), added]), local)) as harness:
        harness.push([row("x", 4, "d", False, 3)])
        assert harness.end_batch() == [("-U", "x", 11, first), ("+U", "x", 15, second)]


def test_aggregates_added_at_different_times_do_not_share_their_rows(enabled: bool) -> None:
    programs = [
        [count()],
        [count(), count().alias("n").starting_now()],
        [count(), count().alias("n").starting_now(), count().alias("m").starting_now()],
    ]
    with harness_of(GroupAggregate(programs[0]), enabled) as harness:
        harness.push([row("x", 1, "a", True, 1)])
        assert harness.end_batch() == [("+I", "x", 1)]
        snapshot = harness.snapshot()
    for aggregates, expected in zip(programs[1:], [("+U", "x", 2, 1), ("+U", "x", 3, 2, 1)], strict=True):
        with harness.restore(snapshot, operator=GroupAggregate(aggregates)) as harness:
            harness.push([row("x", 1, "a", True, 1)])
            assert harness.end_batch()[1] == expected
            snapshot = harness.snapshot()


def test_without_it_the_error_tells_the_way(enabled: bool) -> None:
    with harness_of(GroupAggregate([sum_("v")]), enabled) as harness:
        harness.push([row("x", 1, "a", True, 1)])
        harness.end_batch()
        with pytest.raises(
            AsyncStateError, match=r"aggregate avg\('v'\) is new: of all rows .*starting_now\(\) aggregates"
        ):
            harness.restore(harness.snapshot(), operator=GroupAggregate([sum_("v"), avg("v")]))
        with pytest.raises(AsyncStateError, match="aggregate count"):  # an added one starts once
            harness.restore(harness.snapshot(), operator=GroupAggregate([sum_("v"), count()]))


@pytest.mark.parametrize(
    "window", [tumble("10 seconds"), hop("10 seconds", "5 seconds"), session("5 seconds")]
)
def test_open_windows_have_the_rows_from_then_on(window: Any, enabled: bool) -> None:
    with harness_of(WindowAggregate(window, [count()]), enabled) as before:
        before.push([row("x", 1, "a", True, 6), row("y", 1, "a", True, 6)])
        before.end_batch()
        snapshot = before.snapshot()
    changed = WindowAggregate(window, [count(), sum_("v").starting_now()])
    with before.restore(snapshot, operator=changed) as harness:
        harness.push([row("x", 5, "b", True, 7), row("z", 7, "b", True, 7)])
        found = {(key, rows, total) for _, key, *_, rows, total in harness.finish()}
    assert found == {("x", 2, 5), ("y", 1, None), ("z", 1, 7)}


def test_what_cannot_start_late_is_refused(enabled: bool) -> None:
    later = count().starting_now()
    refused: list[tuple[Operator, dict[str, Any]]] = [
        (GroupAggregate([later]), {"changelog": True}),
        (GroupAggregate([count("v").distinct().starting_now()]), {}),
        (GroupWindowAggregate(tumble("1 second"), [later], early=0), {}),
        (WindowAggregate(session("1 second"), [later, Total("v")]), {}),
    ]
    for operator, more in refused:
        with pytest.raises(SchemaError, match="start"):
            harness_of(operator, enabled, **more)
    with pytest.raises(SchemaError, match=r"has starting_now\(\), but only"):
        OverAggregate([later])


def test_an_aggregate_goes_when_its_states_are_dropped(tmp_path: Path, enabled: bool) -> None:
    with harness_of(GroupAggregate([sum_("v"), avg("v"), max_("f")]), enabled, folder=tmp_path) as harness:
        harness.push([row("x", 4, "a", True, 1)])
        assert harness.end_batch() == [("+I", "x", 4, 4.0, 2.0)]
    fewer = [avg("v"), sum_("v").alias("total")]
    with pytest.raises(AsyncStateError, match="drop-field") as refused:
        harness_of(GroupAggregate(fewer), enabled, folder=tmp_path)
    for name in re.findall(r"drop-field CHECKPOINT operator accumulators (\S+)", str(refused.value)):
        migrate(str(tmp_path / "checkpoint"), "operator", "accumulators", DropField(name.rstrip(";")))
    with harness_of(GroupAggregate(fewer), enabled, folder=tmp_path) as harness:
        harness.push([row("x", 6, "a", True, 1)])
        assert harness.end_batch() == [("-U", "x", 4.0, 4), ("+U", "x", 5.0, 10)]
    with pytest.raises(AsyncStateError, match="is new: of all rows"):
        harness_of(GroupAggregate([*fewer, max_("f")]), enabled, folder=tmp_path)
