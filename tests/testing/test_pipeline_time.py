"""The watermark of a whole dataflow: sources behind filters, idle ones, and what a restart changes of the graph."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate.dataflow import Stream
from asyncstate.errors import AsyncStateError, JobError, SchemaError
from asyncstate.functions import KeyedProcessFunction
from asyncstate.operator import MIN_WATERMARK
from asyncstate.testing import PipelineHarness, PipelineSource
from operators import (
    GroupAggregate,
    KeyedProcess,
    TemporalSort,
    WindowAggregate,
    WindowTableFunction,
    count,
    sum_,
    tumble,
)

SECOND = 1_000_000
MINUTE = 60 * SECOND
EVENTS = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("u", pa.timestamp("us"))])
MOVES = PipelineSource(EVENTS, event_time="t", watermark_delay=0)


def windows(rows: Stream, uid: str = "windows", **more: Any) -> Stream:
    counts = WindowAggregate(tumble("10 seconds"), [count()], late_output="late")
    return rows.apply(counts, key="k", uid=uid, **more).to(print, name=uid)


def push(harness: PipelineHarness, source: str, *times: int, kind: str = "x") -> None:
    harness.push(source, [(kind, time * SECOND, time * SECOND) for time in times])


def starts(rows: Any) -> list[int]:
    return [row[2] // SECOND for row in rows]


def test_rows_that_filters_take_out_move_the_watermark(async_enabled: bool) -> None:
    def flow(events: Stream) -> None:
        windows(events.where("k = 'a'"), "a")
        windows(events.where("k = 'b'").select("k", "t", "u"), "b")

    with PipelineHarness(flow, {"events": MOVES}, async_enabled=async_enabled) as harness:
        push(harness, "events", 1, kind="a")
        push(harness, "events", 2, kind="b")
        harness.end_batch()
        push(harness, "events", 30)
        assert harness.end_batch() == {"a": [], "b": []}
        assert harness.watermark == 30 * SECOND
        assert {name: starts(rows) for name, rows in harness.end_batch().items()} == {"a": [0], "b": [0]}


class Now(KeyedProcessFunction):
    """Adds the processing time."""

    def process(self, row: Any, ctx: Any) -> None:
        ctx.emit(*row, ctx.processing_time)


def test_all_operators_of_a_micro_batch_have_one_processing_time(async_enabled: bool) -> None:
    class Ticking:
        seconds = 0

        def now_us(self) -> int:
            self.seconds += 1
            return self.seconds * SECOND

    def flow(events: Stream) -> None:
        first = events.apply(KeyedProcess(Now(), "k string, t bigint"), key="k", uid="first")
        then = KeyedProcess(Now(), "k string, t bigint, then bigint")
        first.drop("row_kind").apply(then, key="k", uid="then").to(print, name="out")

    sources = {"events": PipelineSource("k string")}
    with PipelineHarness(flow, sources, async_enabled=async_enabled, clock=Ticking()) as harness:
        times = []
        for _ in range(2):
            harness.push("events", [("x",)])
            ((_, _, first, then),) = harness.end_batch()["out"]
            assert first == then
            times.append(first)
        assert times[0] < times[1]


def test_a_union_has_the_time_of_its_sources_whatever_their_delays(async_enabled: bool) -> None:
    """And rows of the one that is ahead are not late by the other's watermark, which is the job's."""
    sources = {"quick": MOVES, "slow": PipelineSource(EVENTS, event_time="t", watermark_delay="20 seconds")}

    def flow(quick: Stream, slow: Stream) -> None:
        windows(quick.union(slow)).output("late").to(print, name="late")

    with PipelineHarness(flow, sources, async_enabled=async_enabled) as harness:
        push(harness, "quick", 50)
        assert (harness.end_batch(), harness.watermark) == ({"windows": [], "late": []}, MIN_WATERMARK)
        push(harness, "slow", 60)
        harness.end_batch()
        assert (harness.watermark, harness.watermark_waits_for) == (40 * SECOND, ["slow"])
        push(harness, "quick", 41)
        assert harness.end_batch()["late"] == []
        assert starts(harness.finish()["windows"]) == [40, 50, 60]
        assert harness.rows("late") == []


def test_an_operator_with_a_time_of_its_own_is_one_more_source(async_enabled: bool) -> None:
    """The watermark is the lowest of the source's column and the operator's."""

    def flow(events: Stream) -> None:
        windows(events, "by_t")
        windows(events, "by_u", event_time="u", watermark_delay="5 seconds")

    with PipelineHarness(flow, {"events": MOVES}, async_enabled=async_enabled) as harness:
        harness.push("events", [("x", 40 * SECOND, 30 * SECOND)])
        harness.end_batch()
        assert (harness.watermark, harness.watermark_waits_for) == (25 * SECOND, ["by_u:0"])
        harness.push("events", [("x", 0, 90 * SECOND)])
        assert {name: starts(rows) for name, rows in harness.end_batch().items()} == {"by_t": [0], "by_u": []}
        assert (harness.watermark, harness.watermark_waits_for) == (40 * SECOND, ["events"])
        assert {name: starts(rows) for name, rows in harness.end_batch().items()} == {
            "by_t": [],
            "by_u": [30],
        }


def test_an_idle_source_lets_the_watermark_go_and_comes_back(async_enabled: bool) -> None:
    idle = PipelineSource(EVENTS, event_time="t", watermark_delay=0, idle_after="5 minutes")

    def flow(busy: Stream, quiet: Stream) -> None:
        for name, stream in (("busy", busy), ("quiet", quiet)):
            windows(stream, name).output("late").to(print, name=f"late_{name}")

    with PipelineHarness(flow, {"busy": idle, "quiet": idle}, async_enabled=async_enabled) as harness:

        def after(minutes: int, busy: tuple[int, ...], quiet: tuple[int, ...] = ()) -> int:
            harness.advance_processing_time(minutes * MINUTE)
            push(harness, "busy", *busy)
            push(harness, "quiet", *quiet)
            harness.end_batch()
            return harness.watermark // SECOND

        assert after(0, (100,), (10,)) == 10
        assert after(4, (200,)) == 10
        assert harness.watermark_waits_for == ["quiet"]
        assert "the watermark waits for source 'quiet', which has reached 1970-01-01 00:00:10" in (
            harness.explain()
        )
        assert after(1, (300,)) == 300
        assert after(1, (400,), (350,)) == 350
        assert after(0, (), (340, 280)) == 350  # 340 was not over before
        assert harness.rows("late_quiet") == [("+I", "x", 280 * SECOND, 280 * SECOND)]
        assert after(5, ()) == 350
        assert harness.watermark_waits_for == []
        assert "all sources are idle" in harness.explain()
        harness.restart()
        assert after(60, (410,)) == 410
        assert after(60, (420,), (415,)) == 415


def test_a_source_that_is_gone_or_renamed_or_without_a_delay_leaves(async_enabled: bool) -> None:
    def both(one: Stream, other: Stream) -> None:
        windows(one, "one")
        windows(other, "other")

    def renaming(one: Stream, another: Stream) -> None:
        both(one, another)

    def one_alone(one: Stream) -> None:
        windows(one, "one")

    sources = {"one": MOVES, "other": MOVES}
    renamed = {"one": MOVES, "another": MOVES}
    without = {"one": MOVES, "other": PipelineSource(EVENTS, event_time="t")}
    for pipeline, now, still in (
        (one_alone, {"one": MOVES}, []),
        (renaming, renamed, ["another"]),
        (both, without, []),
    ):
        with PipelineHarness(both, sources, async_enabled=async_enabled) as harness:
            push(harness, "one", 1)
            push(harness, "other", 2)
            harness.end_batch()
            harness.restart(pipeline, now, unclaimed_state="drop")
            push(harness, "one", 50)
            for name in still:
                push(harness, name, 60)
            harness.end_batch()
            assert harness.watermark == 50 * SECOND
            assert starts(harness.end_batch()["one"]) == [0]


def test_a_restart_changes_the_graph(async_enabled: bool) -> None:
    """States go on by uid, new operators start empty, and those that were gone are there again when they are."""

    def counting(*uids: str) -> Any:
        def flow(events: Stream) -> None:
            for uid in uids:
                events.apply(GroupAggregate([count()]), key="k", uid=uid).to(print, name=uid)

        return flow

    with PipelineHarness(counting("a"), {"events": MOVES}, async_enabled=async_enabled) as harness:
        push(harness, "events", 1)
        assert harness.end_batch() == {"a": [("+I", "x", 1)]}
        harness.restart(counting("a", "b"), parallelism=2)
        push(harness, "events", 2)
        assert harness.end_batch() == {"a": [("-U", "x", 1), ("+U", "x", 2)], "b": [("+I", "x", 1)]}
        harness.restart(counting("b"), async_enabled=not async_enabled, unclaimed_state="keep")
        push(harness, "events", 3)
        assert harness.end_batch() == {"b": [("-U", "x", 1), ("+U", "x", 2)]}
        harness.restart(counting("b", "a"))
        push(harness, "events", 4)
        assert harness.end_batch() == {
            "b": [("-U", "x", 2), ("+U", "x", 3)],
            "a": [("-U", "x", 2), ("+U", "x", 3)],
        }
        assert harness.rows("a")[-1] == ("+U", "x", 3)


def test_a_restart_refuses_what_a_job_refuses(async_enabled: bool) -> None:
    """The harness is as it was before, with its rows."""

    def flow(events: Stream) -> None:
        events.apply(GroupAggregate([count()]), key="k", uid="a").to(print, name="a")

    def by_time(events: Stream) -> None:
        events.apply(GroupAggregate([count()]), key="t", uid="a").to(print, name="a")

    def sums(events: Stream) -> None:
        events.apply(GroupAggregate([sum_("nothing")]), key="k", uid="a").to(print, name="a")

    def waits(events: Stream) -> None:
        events.apply(TemporalSort(), key="k", uid="sorted").to(print, name="sorted")

    still = {"events": PipelineSource(EVENTS, event_time="t")}
    other = {"events": PipelineSource("k string, t timestamp, v long", event_time="t")}
    with PipelineHarness(flow, {"events": MOVES}, async_enabled=async_enabled) as harness:
        push(harness, "events", 1)
        harness.end_batch()
        push(harness, "events", 2)
        for changes, message in (
            ({"pipeline": by_time}, "the key .* was .* and is"),
            ({"pipeline": sums}, "nothing"),
            ({"pipeline": waits, "sources": still}, "its rows wait for the watermark, but no source"),
            ({"sources": other}, "has other columns, but unprocessed rows"),
            ({"parallelism": 1000}, "parallelism 1000 is more"),
        ):
            with pytest.raises(AsyncStateError, match=message):
                harness.restart(**changes)
        assert harness.end_batch() == {"a": [("-U", "x", 1), ("+U", "x", 2)]}


def test_stateless_operators_take_the_event_time_of_a_source(async_enabled: bool) -> None:
    """Not its sequence, which is for operators with state."""
    source = PipelineSource(EVENTS, event_time="t", watermark_delay=0, sequence="u", drop_stale=True)

    def flow(events: Stream) -> None:
        each = events.apply(WindowTableFunction(tumble("10 seconds")), uid="each").to(print, name="each")
        sums = WindowAggregate(tumble("10 seconds"), [count()])
        each.drop("row_kind").apply(sums, key="k", uid="w", event_time="window_time").to(print, name="w")

    with PipelineHarness(flow, {"events": source}, async_enabled=async_enabled) as harness:
        push(harness, "events", 1, 25)
        assert len(harness.end_batch()["each"]) == 2
        assert starts(harness.end_batch()["w"]) == [0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"idle_after": "1 minute"}, "idle_after without watermark_delay"),
        ({"watermark_delay": 0, "idle_after": 0}, "idle_after is 0; give a duration above zero"),
        ({"watermark_delay": 0, "event_time": None}, "watermark_delay without event_time"),
        ({"watermark_delay": 0, "event_time": "k"}, "column 'k' is of type string"),
        ({"watermark_delay": 0, "event_time": "when"}, "when"),
    ],
)
def test_what_a_source_cannot_be(source: dict[str, Any], message: str) -> None:
    given = {"event_time": "t", **source}
    with pytest.raises((JobError, SchemaError), match=message):
        PipelineHarness(
            lambda events: events.apply(GroupAggregate([count()]), key="k", uid="a"),
            {"events": PipelineSource(EVENTS, **given)},
        )
