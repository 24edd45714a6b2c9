"""A pipeline that is restarted with a changed program: what it refuses, and what goes on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate import AsyncStateError
from asyncstate.dataflow import Stream
from asyncstate.functions import KeyedProcessFunction
from asyncstate.testing import PipelineHarness, PipelineSource, net
from operators import (
    Aggregate,
    GroupAggregate,
    Join,
    KeyedMap,
    KeyedProcess,
    WindowAggregate,
    WindowJoin,
    WindowTableFunction,
    count,
    sum_,
    tumble,
)

SALES = {"sales": PipelineSource(pa.schema([("shop", pa.string()), ("amount", pa.int64())]))}

pytestmark = pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])


def totals(uid: str) -> Any:
    def pipeline(sales: Stream) -> None:
        total = sales.apply(GroupAggregate([sum_("amount").alias("total")]), key="shop", uid=uid)
        total.to(lambda rows, batch: None, name="out")

    return pipeline


def sizes(condition: str) -> Any:
    def pipeline(sales: Stream) -> None:
        total = sales.apply(GroupAggregate([sum_("amount").alias("total")]), key="shop", uid="totals")
        large = total.where(condition).apply(GroupAggregate([count().alias("n")]), key="shop", uid="large")
        large.to(lambda rows, batch: None, name="out")

    return pipeline


def enriched(*more: Aggregate) -> Any:
    def pipeline(sales: Stream) -> None:
        total = sales.apply(GroupAggregate([count().alias("n"), *more]), key="shop", uid="totals")
        joined = total.apply(Join(), sales.select("shop AS name"), key=["shop", "name"], uid="joined")
        joined.to(lambda rows, batch: None, name="out")

    return pipeline


def test_state_that_no_operator_claims(enabled: bool) -> None:
    with PipelineHarness(totals("totals"), SALES, async_enabled=enabled) as harness:
        harness.restart(totals("totals-2"))  # there is no state yet
        harness.restart(totals("totals"))
        harness.push("sales", [("ann", 100)])
        harness.end_batch()
        with pytest.raises(AsyncStateError, match="Did you rename 'totals' to 'totals-by-shop'"):
            harness.restart(totals("totals-by-shop"))
        harness.push("sales", [("ann", 10)])  # it is as it was
        assert harness.end_batch()["out"] == [("-U", "ann", 100), ("+U", "ann", 110)]
        harness.restart(totals("totals-by-shop"), unclaimed_state="drop")
        harness.restart(totals("totals"), unclaimed_state="drop")
        harness.push("sales", [("ann", 1)])
        assert harness.end_batch()["out"] == [("+I", "ann", 1)]


def test_state_that_is_kept_outlives_a_failed_micro_batch(enabled: bool) -> None:
    with PipelineHarness(totals("totals"), SALES, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 100)])
        harness.end_batch()
        harness.restart(totals("others"), unclaimed_state="keep")
        harness.push("sales", [("ann", 1)])
        assert harness.end_batch(crash_before="out") == {}
        assert harness.end_batch()["out"] == [("+I", "ann", 1)]
        harness.restart(totals("totals"), unclaimed_state="keep")
        harness.push("sales", [("ann", 10)])
        assert harness.end_batch()["out"] == [("-U", "ann", 100), ("+U", "ann", 110)]


class Alarm(KeyedProcessFunction):
    """Keeps nothing but a timer."""

    def process(self, row: Any, ctx: Any) -> None:
        ctx.timers.register_processing_time(2_000_000)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.emit(*ctx.key)


def shops(operator: Any, uid: str) -> Any:
    def pipeline(sales: Stream) -> None:
        sales.apply(operator, key="shop", uid=uid).to(lambda rows, batch: None, name="out")

    return pipeline


def test_an_operator_that_keeps_nothing_leaves_nothing_behind(enabled: bool) -> None:
    names = KeyedMap(lambda row: (row["shop"],), "shop string")
    with PipelineHarness(shops(names, "names"), SALES, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 1)])
        assert harness.end_batch()["out"] == [("+I", "ann")]
        for uid in ("others", "again"):
            harness.restart(shops(names, uid))
            harness.push("sales", [("bob", 1)])
            assert harness.end_batch()["out"] == [("+I", "bob")]


def test_timers_are_state_that_an_operator_must_claim(enabled: bool) -> None:
    alarm = KeyedProcess(Alarm(), "shop string")
    with PipelineHarness(shops(alarm, "alarms"), SALES, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 1)])
        assert harness.end_batch()["out"] == []
        with pytest.raises(AsyncStateError, match="has state of operator 'alarms'"):
            harness.restart(shops(alarm, "others"))
        harness.advance_processing_time("3 seconds")
        assert harness.end_batch()["out"] == [("+I", "ann")]


def test_another_filter_of_a_changelog_on_its_way(enabled: bool) -> None:
    with PipelineHarness(sizes("total > 10"), SALES, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 5), ("bob", 50)])
        assert harness.end_batch()["out"] == [("+I", "bob", 1)]
        with pytest.raises(AsyncStateError, match="filter of input 0 was total > 10 and is total > 1"):
            harness.restart(sizes("total > 1"))
        harness.restart(sizes("total  >10"))
        harness.push("sales", [("ann", 6)])
        assert harness.end_batch()["out"] == [("+I", "ann", 1)]


def windows(condition: str) -> Any:
    def pipeline(sales: Stream) -> None:
        seen = sales.where(condition).apply(WindowTableFunction(tumble("10 seconds")), uid="windows")
        total = seen.apply(GroupAggregate([count().alias("n")]), key=["shop", "window_start"], uid="counts")
        total.select("shop", "n").to(lambda rows, batch: None, name="out")

    return pipeline


def test_another_filter_of_a_changelog_before_an_operator_without_state(enabled: bool) -> None:
    schema = pa.schema([*SALES["sales"].schema, ("at", pa.timestamp("us", "UTC"))])
    sales = {"sales": PipelineSource(schema, event_time="at", watermark_delay=0, changelog=True)}
    with PipelineHarness(windows("amount > 3"), sales, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 1, 0), ("ann", 5, 0)])
        assert harness.end_batch()["out"] == [("+I", "ann", 1)]
        with pytest.raises(AsyncStateError, match="filter of input 0 was amount > 3 and is amount > 0"):
            harness.restart(windows("amount > 0"))


def test_a_side_output_may_be_asked_for_twice(enabled: bool) -> None:
    def pipeline(sales: Stream) -> None:
        windows = WindowAggregate(tumble("10 seconds"), [count().alias("n")], late_output="late")
        out = sales.apply(windows, key="shop", uid="w")
        for name in ("one", "other"):
            out.output("late").select("shop").to(lambda rows, batch: None, name=name)

    schema = pa.schema([*SALES["sales"].schema, ("at", pa.timestamp("us", "UTC"))])
    sales = {"sales": PipelineSource(schema, event_time="at", watermark_delay=0)}
    with PipelineHarness(pipeline, sales, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 1, 20_000_000)])
        harness.end_batch()
        harness.end_batch()
        harness.push("sales", [("bob", 1, 0)])
        assert harness.end_batch() == {"one": [("+I", "bob")], "other": [("+I", "bob")]}


def test_an_added_aggregate_reaches_what_is_behind(enabled: bool) -> None:
    """The join takes back rows from before, which it has without the new column."""
    with PipelineHarness(enriched(), SALES, async_enabled=enabled) as harness:
        harness.push("sales", [("ann", 5)])
        assert harness.end_batch()["out"] == [("+I", "ann", 1, "ann")]
        harness.restart(enriched(sum_("amount").alias("total").starting_now()))
        harness.push("sales", [("ann", 6), ("bob", 7)])
        found = net(harness.end_batch()["out"])
    taken, added = ("ann", 1, None, "ann"), ("ann", 2, 6, "ann")
    assert found == {added: 2, ("bob", 1, 7, "bob"): 1, taken: -1}


@pytest.mark.parametrize(("left", "right"), [(True, False), (False, True), (False, False)])
def test_late_rows_of_both_inputs_may_share_an_output(enabled: bool, left: bool, right: bool) -> None:
    """Whichever of them is a changelog."""

    def pipeline(a: Stream, b: Stream) -> None:
        join = WindowJoin(window=tumble("10 seconds"), late_outputs=("late", "late"))
        out = a.join(b, join, uid="w", key="k")
        out.output("late").to(lambda rows, batch: None, name="late")

    def source(changelog: bool) -> PipelineSource:
        schema = "id long, k string, t timestamp"
        return PipelineSource(schema, "t", "0 seconds", changelog=changelog, primary_key="id")

    sources = {"a": source(left), "b": source(right)}
    with PipelineHarness(pipeline, sources, async_enabled=enabled) as harness:
        for name in sources:
            harness.push(name, [(1, "x", 0), (2, "x", 30_000_000)])
        harness.end_batch()
        harness.end_batch()
        expected = []
        for name, kind in (("a", "-D" if left else "+I"), ("b", "-D" if right else "+I")):
            harness.push(name, [(1, "x", 0)], kind=kind)
            expected.append((kind, 1, "x", 0))
        assert sorted(harness.end_batch()["late"]) == sorted(expected)
        mode = "retract" if left or right else "insert-only"
        assert f"side output 'late' of w gives {mode} [" in harness.explain()  # nothing identifies a row
