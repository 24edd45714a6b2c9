"""A graph that is restarted with other sinks, filters and sources: what it refuses, and what goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from asyncstate import AsyncStateError
from asyncstate.dataflow import Stream
from asyncstate.functions import KeyedCoProcessFunction, KeyedProcessFunction
from asyncstate.testing import PipelineHarness, PipelineSource, net
from operators import (
    ChangelogNormalize,
    CoProcess,
    GroupAggregate,
    Join,
    KeyedProcess,
    Rank,
    TemporalSort,
    UpsertMaterialize,
    count,
    desc,
    sum_,
)

SALES = {"sales": PipelineSource(pa.schema([("shop", pa.string()), ("amount", pa.int64())]))}

pytestmark = pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])


class Kept:
    """A sink that keeps a table; a harness gives it no rows."""

    keeps_table: ClassVar[bool] = True

    def write(self, rows: Any, batch_id: int) -> None:
        raise AssertionError("a harness writes nothing")


def ignored(rows: Any, batch_id: int) -> None:
    raise AssertionError("a harness writes nothing")


def total(sales: Stream, uid: str = "totals") -> Stream:
    return sales.apply(GroupAggregate([sum_("amount").alias("total")]), key="shop", uid=uid)


def run(harness: PipelineHarness) -> None:
    harness.push("sales", [("ann", 5), ("bob", 50)])
    harness.end_batch()


@pytest.mark.parametrize("sink", [Kept(), ignored], ids=["table", "function"])
def test_another_filter_straight_into_a_sink_is_refused(enabled: bool, sink: Any) -> None:
    def pipeline(condition: str, name: str = "large") -> Any:
        return lambda sales: total(sales).where(condition).to(sink, name=name, starting_now=name != "large")

    with PipelineHarness(pipeline("total > 10"), SALES, async_enabled=enabled) as harness:
        harness.restart(pipeline("total > 1"))  # nothing has been committed
        harness.restart(pipeline("total > 10"))
        run(harness)
        with pytest.raises(
            AsyncStateError, match=r"sink 'large'.*the filter was total > 10 and is total > 1\b"
        ) as e:
            harness.restart(pipeline("total > 1"))
        assert "accept-sink CHECKPOINT large" in str(e.value)
        harness.restart(pipeline("total   >10"))
        harness.push("sales", [("ann", 6)])
        assert harness.end_batch()["large"] == [("+U", "ann", 11)]
        harness.restart(pipeline("total > 1", name="more"))


def test_another_filter_of_insertions_holds_from_now_on_where_no_table_is_kept(enabled: bool) -> None:
    def pipeline(condition: str, sink: Any) -> Any:
        return lambda sales: sales.where(condition).to(sink, name="out")

    with PipelineHarness(pipeline("amount > 10", ignored), SALES, async_enabled=enabled) as harness:
        run(harness)
        harness.restart(pipeline("amount > 1", ignored))
        harness.push("sales", [("ann", 6)])
        assert harness.end_batch()["out"] == [("+I", "ann", 6)]
    with PipelineHarness(pipeline("amount > 10", Kept()), SALES, async_enabled=enabled) as harness:
        run(harness)
        with pytest.raises(AsyncStateError, match="the filter was amount > 10"):
            harness.restart(pipeline("amount > 1", Kept()))


def test_starting_now_is_true_or_false(enabled: bool) -> None:
    def unsure(sales: Stream) -> None:
        total(sales).to(Kept(), name="table", starting_now="no")  # type: ignore[arg-type]

    with (
        pytest.raises(AsyncStateError, match="starting_now is 'no'; give True or False"),
        PipelineHarness(unsure, SALES, async_enabled=enabled),
    ):
        raise AssertionError("the graph was taken")


def test_a_table_that_is_added_to_a_running_aggregate_is_refused(enabled: bool) -> None:
    def first(sales: Stream) -> None:
        total(sales).to(ignored, name="log")

    def added(sink: Any, *, starting_now: bool = False) -> Any:
        return lambda sales: (
            total(sales).to(ignored, name="log").to(sink, name="table", starting_now=starting_now)
        )

    def beside(sales: Stream) -> None:
        first(sales)
        total(sales, "others").to(Kept(), name="table")

    with PipelineHarness(first, SALES, async_enabled=enabled) as harness:
        harness.restart(added(Kept()))
        harness.restart(first)
        run(harness)
        with pytest.raises(
            AsyncStateError, match="would lack the rows that operator 'totals' has given before"
        ):
            harness.restart(added(Kept()))
        harness.restart(added(ignored))
        harness.restart(added(Kept(), starting_now=True))
        harness.restart(beside)  # the operator before the table is as new as the table
        harness.push("sales", [("ann", 6)])
        assert harness.end_batch()["table"] == [("+I", "ann", 6)]
        harness.restart(beside)


def test_a_table_of_another_operator_or_of_other_computed_columns_is_refused(enabled: bool) -> None:
    def pipeline(uid: str, *columns: str) -> Any:
        return lambda sales: total(sales, uid).select(*columns).to(Kept(), name="table")

    with PipelineHarness(pipeline("totals", "shop", "total"), SALES, async_enabled=enabled) as harness:
        run(harness)
        with pytest.raises(
            AsyncStateError, match="those of operator 'totals' and are those of operator 'others'"
        ):
            harness.restart(pipeline("others", "shop", "total"), unclaimed_state="drop")
        with pytest.raises(AsyncStateError, match=r"computed columns were none and are total \* 2 AS total"):
            harness.restart(pipeline("totals", "shop", "total * 2 AS total"))
        harness.restart(pipeline("totals", "total", "shop"))  # the same columns
        harness.restart(pipeline("totals", "shop"))


def sourced(initial: Any = None, **more: Any) -> dict[str, PipelineSource]:
    schema = SALES["sales"].schema
    return {**SALES, "more": PipelineSource(schema, initial=initial, **more)}


def union(sales: Stream, more: Stream) -> None:
    total(sales.union(more)).to(ignored, name="out")


def one(sales: Stream) -> None:
    total(sales).to(ignored, name="out")


def test_initial_rows_of_a_source_that_is_added_come_in_its_first_micro_batch(enabled: bool) -> None:
    def apart(sales: Stream, more: Stream) -> None:
        one(sales)
        total(more, "others").to(ignored, name="others")
        more.where("amount > 1").to(ignored, name="rows")

    with PipelineHarness(one, SALES, async_enabled=enabled) as harness:
        run(harness)
        harness.restart(apart, sourced([("ann", 7)]))
        harness.push("more", [("ann", 1)])
        out = harness.end_batch()
        assert out["rows"] == [("+I", "ann", 7)]
        assert out["others"][-1] in (("+I", "ann", 8), ("+U", "ann", 8))
        harness.restart(apart, sourced([("ann", 7)]))
        harness.push("more", [("ann", 1)])
        assert harness.end_batch()["others"] == [("-U", "ann", 8), ("+U", "ann", 9)]


def test_initial_rows_of_an_added_source_reach_an_operator_that_has_state(enabled: bool) -> None:
    with PipelineHarness(one, SALES, async_enabled=enabled) as harness:
        run(harness)
        harness.restart(union, sourced([("ann", 7)]))
        harness.push("more", [("bob", 1)])
        assert net(harness.end_batch()["out"]) == {
            ("ann", 5): -1,
            ("ann", 12): 1,
            ("bob", 50): -1,
            ("bob", 51): 1,
        }
        harness.restart()
        harness.push("sales", [("ann", 1)])
        assert harness.end_batch()["out"] == [("-U", "ann", 12), ("+U", "ann", 13)]


def test_initial_rows_of_a_source_that_has_begun_without_are_refused(enabled: bool) -> None:
    with PipelineHarness(union, sourced(), async_enabled=enabled) as harness:
        run(harness)
        with pytest.raises(
            AsyncStateError,
            match="source 'more'.*has initial rows, .*but micro-batches have already read",
        ):
            harness.restart(union, sourced([("ann", 7)]))
        harness.restart(union, sourced())


class Alarm(KeyedProcessFunction):
    """Keeps nothing but a timer."""

    def process(self, row: Any, ctx: Any) -> None:
        ctx.timers.register_processing_time(2_000_000)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.emit(*ctx.key)


class OtherAlarm(Alarm):
    """The function alone is another one."""


class Alarms(KeyedCoProcessFunction):
    """Keeps nothing but a timer."""

    def process1(self, row: Any, ctx: Any) -> None:
        ctx.timers.register_processing_time(2_000_000)

    process2 = process1

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.emit(*ctx.key)


def shops(operator: Any) -> Any:
    given = operator.num_inputs

    def pipeline(sales: Stream) -> None:
        others = [sales.select("*") for _ in range(given - 1)]
        sales.apply(operator, *others, key="shop", uid="shops").to(ignored, name="out")

    return pipeline


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (KeyedProcess(Alarm(), "shop string"), GroupAggregate([count()])),
        (KeyedProcess(Alarm(), "shop string"), Rank(desc("amount"), 1)),
        (CoProcess(Alarms(), "shop string"), Join()),
    ],
    ids=["aggregate", "rank", "join"],
)
def test_timers_alone_are_not_those_of_another_operator(enabled: bool, before: Any, after: Any) -> None:
    with PipelineHarness(shops(before), SALES, async_enabled=enabled) as harness:
        run(harness)
        with pytest.raises(AsyncStateError, match="timers are those of (Keyed|Co)Process"):
            harness.restart(shops(after))
        if before.num_inputs == 1:
            harness.restart(shops(KeyedProcess(OtherAlarm(), "shop string")))
        harness.advance_processing_time("3 seconds")
        assert sorted(harness.end_batch()["out"]) == [("+I", "ann"), ("+I", "bob")]


def changes(mode: str) -> dict[str, PipelineSource]:
    return {"sales": PipelineSource(SALES["sales"].schema, mode=mode)}


def test_a_filter_that_changes_together_with_the_mode_is_refused(enabled: bool) -> None:
    def pipeline(condition: str) -> Any:
        return lambda sales: total(sales.where(condition)).to(ignored, name="out")

    with PipelineHarness(pipeline("amount > 3"), changes("insert-only"), async_enabled=enabled) as harness:
        run(harness)
        with pytest.raises(AsyncStateError, match="filter of input 0 was amount > 3 and is amount > 1"):
            harness.restart(pipeline("amount > 1"), changes("retract"))
        harness.restart(pipeline("amount > 1"), changes("insert-only"))


def test_a_way_out_is_offered_where_the_state_can_serve(enabled: bool) -> None:
    def pipeline(operator: Any) -> Any:
        return lambda sales: sales.apply(operator, key="shop", uid="best").to(ignored, name="out")

    with PipelineHarness(pipeline(Rank(desc("amount"), 1)), SALES, async_enabled=enabled) as harness:
        run(harness)
        with pytest.raises(AsyncStateError, match="another program wrote its state") as refused:
            harness.restart(pipeline(Rank(desc("amount"), 1)), changes("retract"))
        assert "accept-change" not in str(refused.value)
        assert "drop-operator" in str(refused.value)
        with pytest.raises(AsyncStateError, match="accept-change CHECKPOINT best"):
            harness.restart(pipeline(Rank(desc("amount"), 2)))


def test_the_watermark_begins_with_the_first_operator_that_has_state(enabled: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    sources = {"events": PipelineSource(schema, event_time="at", watermark_delay="3 seconds")}

    def at(seconds: int) -> tuple[str, datetime]:
        return "a", datetime.fromtimestamp(seconds, UTC)

    def filtered(events: Stream) -> Any:
        return events.where("k = 'a'").to(ignored, name="rows")

    def ordered(events: Stream) -> None:
        filtered(events)
        events.apply(TemporalSort(), uid="sorted").to(ignored, name="sorted")

    with PipelineHarness(filtered, sources, async_enabled=enabled) as harness:
        harness.push("events", [at(95)])
        harness.end_batch()
        assert harness.watermark_waits_for == []
        harness.restart(pipeline=ordered)
        emitted = []
        for seconds in (86, 186, 187):  # the first is neither late nor due: no watermark has been
            harness.push("events", [at(seconds)])
            emitted.append([row[2] for row in harness.end_batch()["sorted"]])
    assert emitted == [[], [], [86_000_000]]


def test_nodes_that_lead_nowhere_are_refused_by_name_and_line(enabled: bool) -> None:
    def pipeline(sales: Stream) -> None:
        totals = total(sales)
        totals.where("total > 1")
        totals.select("shop").union(totals.select("shop"))
        totals.to(ignored, name="out")

    with pytest.raises(AsyncStateError, match="no operator and no sink uses its rows") as refused:
        PipelineHarness(pipeline, SALES, async_enabled=enabled)
    assert "test_changed_graphs.py:" in str(refused.value)
    assert "where total > 1: no operator" in str(refused.value)
    assert "union 1': no operator" in str(refused.value)
    assert "select" not in str(refused.value)


@pytest.mark.parametrize("cut", [(3,), (1, 2), (2, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize(
    ("operator", "left"),
    [
        (lambda: UpsertMaterialize(upsert_key=["id"]), []),
        (lambda: Rank(desc("v"), 2, unique=["id"]), []),
        (ChangelogNormalize, []),
    ],
    ids=["materialize", "rank", "normalize"],
)
def test_a_row_that_comes_twice_and_goes_once_follows_its_sequence_in_any_cut(
    enabled: bool, cut: tuple[int, ...], operator: Any, left: list[Any]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("lsn", pa.int64())])
    sources = {"rows": PipelineSource(schema, mode="retract", primary_key="id", sequence="lsn")}
    made = operator()
    key = "id"

    def pipeline(rows: Stream) -> None:
        rows.apply(made, key=key, uid="o").select("id", "v").to(ignored, name="out")

    changes = [("+I", (1, 7, 1)), ("+I", (1, 7, 2)), ("-D", (1, 7, 3))]
    shown: list[Any] = []
    with PipelineHarness(pipeline, sources, async_enabled=enabled) as harness:
        for size in cut:
            given, changes = changes[:size], changes[size:]
            for kind, row in reversed(given):
                harness.push("rows", [row], kind=kind)
            shown += harness.end_batch()["out"]
    assert list(net(shown)) == left
