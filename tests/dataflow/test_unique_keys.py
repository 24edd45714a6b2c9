"""What is said to identify a row does: operators downstream, which keep one row of it, lose none."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.compute as pc
import pytest

from asyncstate.errors import JobError
from asyncstate.testing import PipelineHarness, PipelineSource, net
from operators import (
    ChangelogNormalize,
    Join,
    OverAggregate,
    WindowJoin,
    WindowTableFunction,
    count,
    session,
    sum_,
    whole,
)

MODES = pytest.mark.parametrize("async_enabled", [False, True], ids=["sync", "async"])
SECOND = 1_000_000
LEFT = PipelineSource("k string, v bigint")
RIGHT = PipelineSource("k string, w bigint")
WITH_KEY = {
    "left": PipelineSource("k string, v bigint", changelog=True, primary_key="k"),
    "right": PipelineSource("k string, w bigint", changelog=True, primary_key="k"),
}
NAMES = PipelineSource("number bigint, name string")


def of_operator(harness: PipelineHarness, name: str) -> str:
    """What is known of the rows of an operator."""
    return next(changes.text for node, changes in harness.changes.items() if node.name == name)


@MODES
def test_single_rows_that_do_not_match_are_two_rows_of_a_full_join(async_enabled: bool) -> None:
    def flow(left: Any, right: Any, names: Any) -> None:
        lefts, rights = left.group_by().agg(c=count(), uid="c"), right.group_by().agg(d=count(), uid="d")
        both = lefts.apply(Join("full", pc.field("c") == pc.field("d")), rights, uid="both")
        names.join(both.select("c", "d", "1L AS number"), on="number", uid="named").to(print, name="out")

    sources = {"left": LEFT, "right": RIGHT, "names": NAMES}
    with PipelineHarness(flow, sources, async_enabled=async_enabled) as harness:
        assert of_operator(harness, "both") == "retract"
        harness.push("left", [("a", 1)])
        harness.push("right", [("a", 1), ("b", 2)])
        harness.push("names", [(1, "n")])
        table = net(harness.end_batch()["out"])
        assert table == {(1, "n", 1, None): 1, (1, "n", None, 2): 1}
        harness.push("left", [("b", 1)])
        table.update(net(harness.end_batch()["out"]))
        assert +table == {(1, "n", 2, 2): 1}


def placed(lefts: Any, rights: Any) -> None:
    both = lefts.join(rights, Join("full"), key="k", uid="both")
    ranked = both.apply(OverAggregate([sum_("n").alias("s")], whole(), emit_update_before=False), uid="over")
    ranked.apply(ChangelogNormalize(), key=["k", "k_right"], uid="kept").to(print, name="out")


def groups_by_both(left: Any, right: Any) -> None:
    placed(
        left.group_by("k").agg(n="count(*)", uid="left"), right.group_by("k").agg(m="count(*)", uid="right")
    )


def groups_without_nulls(left: Any, right: Any) -> None:
    groups_by_both(left.where("v > 0 AND (k IS NOT NULL)"), right)


def groups_of_keyed_rows(left: Any, right: Any) -> None:
    groups_by_both(left.select("k", "v"), right)


@MODES
def test_the_keys_of_both_sides_of_a_full_join_identify_no_row_if_both_may_be_null(
    async_enabled: bool,
) -> None:
    def kept(left: Any, right: Any) -> None:
        lefts = left.group_by("k").agg(n="count(*)", uid="left")
        both = lefts.join(
            right.group_by("k").agg(m="count(*)", uid="right"), Join("full"), key="k", uid="both"
        )
        both.apply(ChangelogNormalize(), key=["k", "k_right", "n", "m"], uid="kept").to(print, name="out")

    with pytest.raises(JobError, match="emit_update_before=False .* no key identifies a row"):
        PipelineHarness(groups_by_both, {"left": LEFT, "right": RIGHT})
    with PipelineHarness(kept, {"left": LEFT, "right": RIGHT}, async_enabled=async_enabled) as harness:
        assert of_operator(harness, "both") == "retract"
        harness.push("left", [(None, 1), ("a", 1), ("b", 2)])
        harness.push("right", [(None, 1), (None, 2), ("a", 3)])
        found = net(harness.end_batch()["out"])
        assert found == Counter(
            [(None, 1, None, None), (None, None, None, 2), ("b", 1, None, None), ("a", 1, "a", 1)]
        )


@MODES
@pytest.mark.parametrize(
    ("flow", "sources"),
    [(groups_without_nulls, {"left": LEFT, "right": RIGHT}), (groups_of_keyed_rows, WITH_KEY)],
    ids=["where", "primary key"],
)
def test_they_identify_a_row_if_those_of_one_are_never_null(
    flow: Any, sources: Any, async_enabled: bool
) -> None:
    with PipelineHarness(flow, sources, async_enabled=async_enabled) as harness:
        assert of_operator(harness, "both") == "retract, unique (k, k_right)"
        harness.push("left", [("a", 1), ("b", 2)])
        harness.push("right", [("a", 3), ("c", 4)])
        assert net(harness.end_batch()["out"]) == Counter(
            [("a", 1, "a", 1, 2), ("b", 1, None, None, 2), (None, None, "c", 1, 2)]
        )


@MODES
def test_a_row_that_moves_to_another_session_is_kept_beside_the_final_one(async_enabled: bool) -> None:
    def flow(rows: Any, names: Any) -> None:
        sessions = rows.apply(WindowTableFunction(session("10 seconds")), key="k", uid="sessions")
        names.join(sessions.select("id AS number", "k", "at"), on="number", uid="named").to(print, name="out")

    rows = PipelineSource(
        "k string, id bigint, at timestamp",
        changelog=True,
        primary_key="id",
        event_time="at",
        watermark_delay=0,
    )
    with PipelineHarness(flow, {"rows": rows, "names": NAMES}, async_enabled=async_enabled) as harness:
        assert of_operator(harness, "sessions") == "insert-only, unique (id, window_end)"
        harness.push("rows", [("a", 1, 0), ("b", 2, 60 * SECOND)])
        harness.end_batch()
        harness.end_batch()  # the session of a is over
        harness.push("rows", [("a", 1, 0), ("a", 1, 61 * SECOND)], kinds=["-U", "+U"])
        harness.push("rows", [("b", 3, 100 * SECOND)])
        harness.end_batch()
        harness.end_batch()
        harness.push("names", [(1, "n")])
        assert net(harness.end_batch()["out"]) == Counter([(1, "n", "a", 0), (1, "n", "a", 61 * SECOND)])


@MODES
def test_a_row_that_moves_to_another_window_is_joined_in_both(async_enabled: bool) -> None:
    def flow(rows: Any, offers: Any, names: Any) -> None:
        pairs = rows.join(offers, WindowJoin("left"), key="k", uid="pairs")
        names.join(pairs.select("id AS number", "at", "offer"), on="number", uid="named").to(
            print, name="out"
        )

    windows = "window_start timestamp, window_end timestamp"
    rows = PipelineSource(
        f"k string, id bigint, at timestamp, {windows}",
        changelog=True,
        primary_key="id",
        event_time="at",
        watermark_delay=0,
    )
    offers = PipelineSource(f"k string, offer bigint, {windows}", primary_key="k")
    sources = {"rows": rows, "offers": offers, "names": NAMES}
    with PipelineHarness(flow, sources, async_enabled=async_enabled) as harness:
        assert of_operator(harness, "pairs") == "insert-only, unique (id, window_end)"
        harness.push("rows", [("a", 1, 0, 0, 10 * SECOND), ("b", 2, 30 * SECOND, 30 * SECOND, 40 * SECOND)])
        harness.push("offers", [("a", 7, 30 * SECOND, 40 * SECOND)])
        harness.end_batch()
        harness.end_batch()
        moved = [("a", 1, 0, 0, 10 * SECOND), ("a", 1, 31 * SECOND, 30 * SECOND, 40 * SECOND)]
        harness.push("rows", moved, kinds=["-U", "+U"])
        harness.push("rows", [("b", 3, 50 * SECOND, 50 * SECOND, 60 * SECOND)])
        harness.end_batch()
        harness.end_batch()
        harness.push("names", [(1, "n")])
        assert net(harness.end_batch()["out"]) == Counter([(1, "n", 0, None), (1, "n", 31 * SECOND, 7)])
