"""OverAggregate at its edges: cuts, clean-up, nulls in the order, bytes of both modes; and beside DuckDB."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import Changelog
from asyncstate.errors import StateDeclarationError
from asyncstate.testing import OperatorHarness, net
from operators import OverAggregate, asc, avg, count, desc, max_, min_, range_, rows, sum_, unbounded

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("flag", pa.bool_()), ("at", pa.timestamp("us"))])


@pytest.mark.parametrize("bundle", ["1", "2", "1000"])
@pytest.mark.parametrize("frame", [range_(10), unbounded(), rows(1)])
def test_processing_time_however_it_is_cut(frame: Any, bundle: str, async_enabled: bool) -> None:
    operator = OverAggregate([count(), sum_("v")], frame, time="processing")
    options = {"async-state.bundle-size": bundle}
    with OperatorHarness(
        operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([("a", 1, True, 9), ("a", 2, True, 1), ("b", 7, True, 1), ("a", 4, True, 1)])
        found = sorted((*row[1:3], *row[5:]) for row in harness.end_batch())
        last = (2, 6) if frame.kind == "rows" else (3, 7)
        assert found == [("a", 1, 1, 1), ("a", 2, 2, 3), ("a", 4, *last), ("b", 7, 1, 7)]


def test_a_range_leaves_nothing_behind(async_enabled: bool) -> None:
    operator = OverAggregate([count()], range_(10), time="processing")
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        harness.push([("a", 1, True, 9)])
        harness.end_batch()
        assert harness.state_entries()
        harness.advance_processing_time(100)
        harness.end_batch()
        assert harness.state_entries() == {}
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    with OperatorHarness(
        OverAggregate([count()], range_(10)), SCHEMA, ["k"], async_enabled=async_enabled, **settings_
    ) as harness:
        harness.push([("a", 1, True, 9), ("b", 1, True, 1000)])
        for watermark in (1000, 5000):
            harness.advance_watermark(watermark)
            harness.end_batch()
        assert harness.state_entries() == {}


@pytest.mark.parametrize("order", [asc("at"), asc("at", nulls="last")])
@pytest.mark.parametrize("at", [5_000_000, -50])
def test_rows_without_a_time_count_for_each_other(order: Any, at: int, async_enabled: bool) -> None:
    operator = OverAggregate([sum_("v").alias("sum")], range_(10), order_by=order)
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([("a", 1, True, None), ("a", 2, True, at), ("a", 4, True, None), ("a", 8, True, 3)])
        assert {row[2]: row[5] for row in harness.end_batch()} == {1: 5, 4: 5, 2: 2, 8: 8}


def test_late_rows_are_dropped_and_counted(async_enabled: bool) -> None:
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    operator = OverAggregate([count()], rows(3))
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled, **settings_) as harness:
        harness.push([("a", 1, True, 5)])
        harness.advance_watermark(6)
        assert [row[5] for row in harness.end_batch()] == [1]
        harness.push([("a", 1, True, 4)])
        harness.advance_watermark(8)
        assert harness.end_batch() == []
        assert harness.statistics()["counter.late_rows_dropped"] == 1


def test_without_updates_before(async_enabled: bool) -> None:
    operator = OverAggregate([count()], order_by="at", emit_update_before=False)
    known = Changelog.insert_only("v")
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=known, async_enabled=async_enabled) as harness:
        harness.push([("a", 1, True, 5)])
        harness.end_batch()
        harness.push([("a", 2, True, 4)])
        assert harness.end_batch() == [("+U", "a", 1, True, 5, 2), ("+I", "a", 2, True, 4, 1)]


@pytest.mark.parametrize(
    "options",
    [
        {"frame": unbounded()},
        {"frame": rows(2)},
        {"frame": range_(10)},
        {"frame": range_(10), "time": "processing"},
        {"frame": rows(2), "order_by": "v"},
        {"frame": unbounded(), "order_by": desc("v")},
    ],
)
def test_both_modes_store_the_same_bytes(options: Any) -> None:
    found = []
    for async_enabled in (False, True):
        operator = OverAggregate([count(), sum_("v"), min_("v")], **options)
        settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
        with OperatorHarness(
            operator,
            SCHEMA,
            ["k"],
            async_enabled=async_enabled,
            options={"async-state.bundle-size": "3"},
            **settings_,
        ) as harness:
            out = []
            for number in range(3):
                harness.push([(k, v, v % 2 == 0, 10 * number + v) for v in range(5) for k in "abc"])
                harness.advance_watermark(10 * number + 3)
                out += harness.end_batch()
            found.append((sorted(map(repr, out)), harness.state_entries()))
    assert found[0][1]
    assert found[0] == found[1]


FRAMES = {
    "RANGE UNBOUNDED PRECEDING": unbounded(),
    "ROWS UNBOUNDED PRECEDING": unbounded(peers=False),
    "ROWS 3 PRECEDING": rows(3),
    "RANGE 7 PRECEDING": range_(7),
}
ROW = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(-5, 5),
    st.none() | st.booleans(),
    st.integers(-40, 40),
)
AGGREGATES = [
    count().alias("n"),
    sum_("v").where("flag").alias("s"),
    min_("v").alias("low"),
    max_("v").alias("high"),
    avg("v").alias("mean"),
]
COLUMNS = pa.schema([*SCHEMA.remove(3), ("tm", pa.int64()), ("id", pa.int64())])


def in_duckdb(held: list[Any], frame: str, by_id: bool) -> Counter[str]:
    table = pa.table(
        [pa.array([row[at] for row in held], kind) for at, kind in enumerate(COLUMNS.types)], schema=COLUMNS
    )
    over = f"OVER (PARTITION BY k ORDER BY tm{', id DESC' if by_id else ''} {frame})"
    with duckdb.connect() as connection:
        connection.register("t", table)
        found = connection.execute(
            f"SELECT k, v, flag, tm, id, count(*) {over}, sum(v) FILTER (flag) {over}, min(v) {over}, max(v) {over}, "
            f"avg(v) {over} FROM t"
        ).fetchall()
    return Counter((shown_as(row),) for row in found)


def shown_as(row: Any) -> str:
    plain = [
        int(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in row[:-1]
    ]
    return repr(
        (*plain[:6], None if plain[6] is None else int(plain[6]), *plain[7:], row[-1] and round(row[-1], 9))
    )


@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.tuples(ROW, st.booleans()), max_size=6), max_size=4),
    frame=st.sampled_from(list(FRAMES)),
    async_enabled=st.booleans(),
    bundle=st.sampled_from(["1", "2", "1000"]),
    parallelism=st.sampled_from([1, 3]),
)
def test_any_order_is_that_of_duckdb(
    steps: Any, frame: str, async_enabled: bool, bundle: str, parallelism: int
) -> None:
    """With a restart, and another parallelism, after each micro-batch."""
    schema = pa.schema([*SCHEMA, ("id", pa.int64())])
    by_id = not FRAMES[frame].peers
    operator = OverAggregate(AGGREGATES, FRAMES[frame], order_by=["at", desc("id")] if by_id else "at")
    held: list[Any] = []
    shown: list[Any] = []
    harness = OperatorHarness(
        operator, schema, ["k"], async_enabled=async_enabled, options={"async-state.bundle-size": bundle}
    )
    for number, step in enumerate(steps):
        changes, kinds = [], []
        for place, (row, takes) in enumerate(step):
            if takes and held:
                changes.append(held.pop(place % len(held)))
                kinds.append("-D")
            else:
                changes.append((*row, number * 100 + place))
                held.append(changes[-1])
                kinds.append("+I")
        harness.push(changes, kinds=kinds)
        shown += [(kind, shown_as(values)) for kind, *values in harness.end_batch()]
        assert net(shown) == in_duckdb(held, frame, by_id)
        restored = harness.restore(harness.snapshot(), parallelism=parallelism)
        harness.close()
        harness = restored
    harness.close()


FORMS: dict[str, dict[str, Any]] = {
    "unbounded": {},
    "rows": {"frame": rows(3)},
    "range": {"frame": range_(10)},
    "own": {"order_by": "v"},
}


@pytest.mark.parametrize("before", FORMS)
@pytest.mark.parametrize("after", FORMS)
def test_another_form_does_not_begin_anew_without_a_word(
    before: str, after: str, async_enabled: bool, tmp_path: Any
) -> None:
    """Each form has states of its own, so what the one has stored would not count for the other."""

    def harness(form: str) -> OperatorHarness:
        operator = OverAggregate([sum_("v")], time="processing", **FORMS[form])
        return OperatorHarness(
            operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, folder=tmp_path
        )

    with harness(before) as first:
        first.push([("a", 1, True, 9)])
        first.end_batch()
    if before == after:
        with harness(after) as second:
            second.push([("a", 2, True, 9)])
            assert second.end_batch() == [("+I", "a", 2, True, 9, 3)]
    else:
        with pytest.raises(StateDeclarationError):
            harness(after)
