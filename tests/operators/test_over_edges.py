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
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.testing import OperatorHarness, net
from operators import (
    Aggregate,
    OverAggregate,
    asc,
    avg,
    count,
    cume_dist,
    dense_rank,
    desc,
    first_value,
    lag,
    lead,
    max_,
    median,
    min_,
    nth_value,
    ntile,
    percent_rank,
    range_,
    rank_,
    row_number,
    rows,
    sum_,
    udaf,
    unbounded,
    whole,
)
from operators.core.sort_orders import ARRIVAL
from tests.operators.test_over import OwnSum

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
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING": whole(),
    "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING": rows(1, 2),
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING": rows(0, None),
    "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING": rows(None, -1),
    "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING": rows(3, -1),
    "ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING": rows(-1, 2),
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING": range_(0, None),
    "RANGE BETWEEN UNBOUNDED PRECEDING AND 5 FOLLOWING": range_(None, 5),
    "RANGE BETWEEN 3 PRECEDING AND 5 FOLLOWING": range_(3, 5),
    "RANGE BETWEEN 9 PRECEDING AND 4 PRECEDING": range_(9, -4),
    "RANGE BETWEEN 4 FOLLOWING AND 9 FOLLOWING": range_(-4, 9),
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
_LONG = pa.int64()
OWN_SUM = udaf(OwnSum, result_type=_LONG, accumulator_type=pa.schema([("sum", _LONG), ("number", _LONG)]))
OTHERS: list[tuple[Aggregate, str]] = [
    (count("v").distinct().alias("n"), "count(DISTINCT v)"),
    (sum_("v").distinct().where("flag").alias("s"), "sum(DISTINCT v) FILTER (flag)"),
    (nth_value("v").alias("first"), "first_value(v)"),
    (nth_value("v", from_last=True).alias("last"), "last_value(v)"),
    (nth_value("v", 2).alias("second"), "nth_value(v, 2)"),
    (nth_value("v", ignore_nulls=True).alias("first_there"), "first_value(v IGNORE NULLS)"),
    (nth_value("v", from_last=True, ignore_nulls=True).alias("last_there"), "last_value(v IGNORE NULLS)"),
    (nth_value("v", 3, ignore_nulls=True).alias("third_there"), "nth_value(v, 3 IGNORE NULLS)"),
    (median("v").alias("middle"), "median(v)"),
    (OWN_SUM("v").alias("own"), "sum(v)"),
    (first_value("v").alias("kept"), "first_value(v IGNORE NULLS)"),
]
"""Aggregates with their SQL, by the frame."""
PLACES: list[tuple[Aggregate, str]] = [
    (row_number().alias("number"), "row_number()"),
    (rank_().alias("rank"), "rank()"),
    (dense_rank().alias("dense"), "dense_rank()"),
    (percent_rank().alias("percent"), "percent_rank()"),
    (cume_dist().alias("cume"), "cume_dist()"),
    (ntile(3).alias("tile"), "ntile(3)"),
    (lag("v").alias("lag"), "lag(v)"),
    (lag("v", 2, -99).alias("lag2"), "lag(v, 2, -99)"),
    (lag("v", 0, 7).alias("lag0"), "lag(v, 0, 7)"),
    (lead("v", 3, 99).alias("lead3"), "lead(v, 3, 99)"),
    (lag("v", 2, ignore_nulls=True).alias("lag_there"), "lag(v, 2 IGNORE NULLS)"),
    (lead("v", 1, 50, ignore_nulls=True).alias("lead_there"), "lead(v, 1, 50 IGNORE NULLS)"),
]
"""Functions with their SQL, by an order without peers."""
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


def _in_sql(held: list[Any], functions: list[tuple[Aggregate, str]], over: str) -> Counter[str]:
    table = pa.table(
        [pa.array([row[at] for row in held], kind) for at, kind in enumerate(COLUMNS.types)], schema=COLUMNS
    )
    with duckdb.connect() as connection:
        connection.register("t", table)
        shown = ", ".join(f"{text} {over}" for _, text in functions)
        found = connection.execute(f"SELECT k, v, flag, tm, id, {shown} FROM t").fetchall()
    return Counter((_plain(row),) for row in found)


def _plain(row: Any) -> str:
    return repr(
        [round(float(one), 9) if isinstance(one, int | float) and one is not None else one for one in row]
    )


@pytest.mark.long
@settings(deadline=None)
@given(
    steps=st.lists(st.lists(st.tuples(ROW, st.booleans()), max_size=6), max_size=3),
    frame=st.sampled_from(list(FRAMES)),
    descending=st.booleans(),
    numbered=st.booleans(),
    async_enabled=st.booleans(),
    bundle=st.sampled_from(["2", "1000"]),
)
def test_functions_of_frames_and_places_are_those_of_duckdb(
    steps: Any, frame: str, descending: bool, numbered: bool, async_enabled: bool, bundle: str
) -> None:
    """``numbered``: the order is by a column of integers."""
    schema = COLUMNS if numbered else pa.schema([*SCHEMA, ("id", pa.int64())])
    by_value = FRAMES[frame].by_value
    direction = desc if descending else asc
    column = "tm" if numbered else "at"
    order = [direction(column)] if by_value else [direction(column), asc("id")]
    over = f"OVER (PARTITION BY k ORDER BY tm {'DESC' if descending else ''}{'' if by_value else ', id'} {frame})"
    places = f"OVER (PARTITION BY k ORDER BY tm {'DESC' if descending else ''}, id)"
    of_frames = [one for one in OTHERS if not by_value or "value" not in one[1]]
    operators = [
        (OverAggregate([made for made, _ in of_frames], FRAMES[frame], order_by=order), of_frames, over),
        (
            OverAggregate(
                [made for made, _ in PLACES], FRAMES[frame], order_by=[direction(column), asc("id")]
            ),
            PLACES,
            places,
        ),
    ]
    for operator, functions, text in operators if not by_value else operators[:1]:
        held: list[Any] = []
        shown: list[Any] = []
        with OperatorHarness(
            operator, schema, ["k"], async_enabled=async_enabled, options={"async-state.bundle-size": bundle}
        ) as harness:
            for number, step in enumerate(steps):
                changes, kinds = [], []
                for place, (row, takes) in enumerate(step):
                    if takes and held:
                        changes.append(held.pop(place % len(held)))
                    else:
                        changes.append((*row, number * 100 + place))
                        held.append(changes[-1])
                    kinds.append("-D" if takes and changes[-1] not in held else "+I")
                harness.push(changes, kinds=kinds)
                shown += [(kind, _plain(values)) for kind, *values in harness.end_batch()]
                assert net(shown) == _in_sql(held, functions, text)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_whole_partition_needs_no_order(ordered: bool, async_enabled: bool) -> None:
    operator = OverAggregate([sum_("v").alias("all")], whole(), order_by=ARRIVAL if ordered else None)
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        harness.push([("a", 1, None, 5), ("a", 2, None, 3)])
        assert sorted(harness.end_batch()) == [("+I", "a", 1, None, 5, 3), ("+I", "a", 2, None, 3, 3)]
        harness.push([("a", 4, None, 1)])
        kinds = [row[0] for row in harness.end_batch()]
    assert sorted(kinds) == ["+I", "+U", "+U", "-U", "-U"]


def test_frames_and_functions_that_cannot_be_are_refused() -> None:
    for wrong, what in [
        (lambda: rows(-1), "ends 0 after it; let it end where it starts"),
        (lambda: range_(-5, 3), "starts 5 after its row and ends 3 after it"),
        (lambda: ntile(0), "parts is 0"),
        (lambda: nth_value("v", 0), "n is 0"),
        (lambda: lag("v", -1), "distance is -1"),
    ]:
        with pytest.raises(SchemaError, match=what):
            wrong()
    settings_: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
    for operator, what in [
        (OverAggregate([count()], range_(0)), "is for rows in an order of their own"),
        (OverAggregate([ntile(2)]), "needs all rows of a key; give order_by"),
        (OverAggregate([nth_value("v")], rows(2)), "needs all rows of a key; give order_by"),
        (OverAggregate([lag("v", 1, "x")], rows(2)), "has the default 'x', which is no int64"),
        (OverAggregate([count()], range_(3, 3), order_by=["at", "v"]), "a range needs one column"),
        (
            OverAggregate([count()], range_(3, 3), order_by="k"),
            "a range needs one column of timestamps or integers",
        ),
    ]:
        with pytest.raises(SchemaError, match=what), OperatorHarness(operator, SCHEMA, ["k"], **settings_):
            pass


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
