"""TemporalJoin: each left row with the version of its own time, whatever the cut, the order of arrival and the mode."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import StateTtl
from asyncstate.changelog import Changelog
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import TemporalJoin

TIME = pa.timestamp("us")
LEFT = pa.schema([("k", pa.int64()), ("at", TIME), ("id", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("at", TIME), ("v", pa.int64())])
KINDS = ("+I", "-U", "+U", "-D")


class Change(NamedTuple):
    """A right row."""

    k: int | None
    at: int
    v: int
    kind: str


def harness(kind: Any = "inner", *arguments: Any, **settings: Any) -> OperatorHarness:
    options = {name: settings.pop(name) for name in ("time", "null_safe", "ttl") if name in settings}
    is_event = options.get("time") != "processing"
    settings.setdefault("changelog", [is_event, True])
    return OperatorHarness(
        TemporalJoin(kind, *arguments, **options),
        [LEFT, RIGHT],
        [["k"], ["k"]],
        event_time="at" if is_event else None,
        **{"max_parallelism": 4, **settings},
    )


# -- a model: a list of changes a key and time ---------------------------------------------------------------


def standing(changes: list[Change]) -> tuple[bool, int | None]:
    """Whether the changes of one key and time say anything, and which value holds afterwards."""
    added = [change.v for change in changes if change.kind[0] == "+"]
    deleted = [change.v for change in changes if change.kind == "-D"]
    replaced = [change.v for change in changes if change.kind == "-U"]
    alive = [v for v in added if added.count(v) > deleted.count(v)]
    settled = [v for v in alive if added.count(v) > deleted.count(v) + replaced.count(v)]
    holds = settled or ([] if deleted else alive)
    return bool(holds or deleted), holds[-1] if holds else None


def version_at(changes: list[Change], key: int, time: int) -> tuple[int, int] | None:
    """The value and the time of the version that holds."""
    by_time: dict[int, list[Change]] = defaultdict(list)
    for change in changes:
        if change.k == key and change.at <= time:
            by_time[change.at].append(change)
    version = None
    for at in sorted(by_time):
        said, new = standing(by_time[at])
        if said:
            version = None if new is None else (new, at)
    return version


def joined(lefts: list[tuple[int, ...]], changes: list[Change], kind: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for number, (key, at) in enumerate(lefts):
        version = version_at(changes, key, at)
        if version is not None:
            rows.append(("+I", key, at, number, key, version[1], version[0]))
        elif kind == "left":
            rows.append(("+I", key, at, number, None, None, None))
    return rows


LEFTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8)), max_size=10)
CHANGES = st.lists(
    st.builds(
        Change, st.integers(0, 2), st.integers(0, 8), st.integers(0, 2), st.sampled_from([*KINDS, "+I", "+U"])
    ),
    max_size=12,
)


@given(LEFTS, CHANGES, st.sampled_from(["inner", "left"]), st.randoms(use_true_random=False), st.data())
@settings(max_examples=settings().max_examples // 2)
def test_each_left_row_meets_the_version_of_its_time(
    async_enabled: bool, lefts: Any, changes: list[Change], kind: str, random: Any, data: Any
) -> None:
    """In any cut and any order but that of the rows of a key and time, with restarts in another parallelism."""
    # Rows of a key and time keep their order; all others come in any order, in micro-batches that pass none of them.
    arrivals: list[tuple[int, Any]] = [(0, (number, row)) for number, row in enumerate(lefts)]
    arrivals += [(1, change) for change in changes]
    shuffled = random.sample(arrivals, len(arrivals))
    places = {id(item): place for place, item in enumerate(shuffled)}
    same: dict[Any, list[Any]] = defaultdict(list)
    for item in arrivals:
        if item[0] == 1:
            same[(item[1].k, item[1].at)].append(item)
    for items in same.values():
        slots = sorted(places[id(item)] for item in items)
        for slot, item in zip(slots, items, strict=True):
            shuffled[slot] = item

    def time_of(item: tuple[int, Any]) -> int:
        return int(item[1][1][1] if item[0] == 0 else item[1].at)

    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=3)))
    runner = harness(
        kind,
        async_enabled=async_enabled,
        options={"async-state.bundle-size": str(data.draw(st.sampled_from([1, 3, 500_000])))},
    )
    for start, end in zip([0, *cuts], [*cuts, len(shuffled)], strict=True):
        for index, row in shuffled[start:end]:
            if index == 0:
                number, (key, at) = row
                runner.push([(key, at, number)], 0)
            else:
                runner.push([(row.k, row.at, row.v)], 1, kind=row.kind)
        runner.advance_watermark(min(map(time_of, shuffled[end:]), default=99) - 1)
        runner.end_batch()
        parallelism = data.draw(st.sampled_from([1, 1, 2]))
        if parallelism != runner.parallelism:
            with runner as before:
                runner, output = before.restore(before.snapshot(), parallelism=parallelism), before.output
                runner.output = output
    with runner:
        runner.finish()
        assert sorted(runner.output, key=repr) == sorted(joined(lefts, changes, kind), key=repr)
        live = {key for key in range(3) if version_at(changes, key, 99) is not None}
        assert len(runner.state_entries()) == len(live)


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 2)), max_size=4),
            st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=4),
        ),
        max_size=4,
    ),
    st.sampled_from(["inner", "left"]),
    st.sampled_from(["1", "500000"]),
    st.booleans(),
)
@settings(max_examples=settings().max_examples // 4)
def test_in_processing_time_the_right_rows_of_a_micro_batch_come_first(
    async_enabled: bool, batches: Any, kind: str, size: str, emit_before: bool
) -> None:
    """Right rows as an operator before it would put them out: updates as -U and +U, or as -D and +I."""
    held: dict[int, int] = {}
    kinds = ("-U", "+U") if emit_before else ("-D", "+I")
    with harness(
        kind, time="processing", async_enabled=async_enabled, options={"async-state.bundle-size": size}
    ) as runner:
        for lefts, rights in batches:
            runner.push([(key, 0, 7) for (key,) in lefts], 0)
            for key, v, stays in rights:
                before = held.pop(key, None)
                if before is not None:
                    runner.push([(key, 0, before)], 1, kind=kinds[0] if stays else "-D")
                if stays:
                    runner.push([(key, 0, v)], 1, kind="+I" if before is None else kinds[1])
                    held[key] = v
            expected = [
                ("+I", key, 0, 7, *((key, 0, held[key]) if key in held else (None,) * 3))
                for (key,) in lefts
                if key in held or kind == "left"
            ]
            assert sorted(runner.end_batch(), key=repr) == sorted(expected, key=repr)
        assert len(runner.state_entries()) == len(held)


# -- cases ---------------------------------------------------------------------------------------------------


def test_a_version_holds_from_its_time_until_the_next_one(async_enabled: bool) -> None:
    with harness(async_enabled=async_enabled) as runner:
        runner.push([(1, at, at) for at in (4, 5, 9, 10, 11)], 0)
        runner.push([(1, 5, 50), (1, 10, 100)], 1)
        rows = runner.finish()
    assert [(row[2], row[6]) for row in rows] == [(5, 50), (9, 50), (10, 100), (11, 100)]


def test_a_left_row_waits_until_the_watermark_has_passed_it(async_enabled: bool) -> None:
    with harness("left", async_enabled=async_enabled) as runner:
        runner.push([(1, 10, 0)], 0)
        runner.advance_watermark(9)
        assert runner.end_batch() == []
        runner.push([(1, 10, 5)], 1)
        runner.advance_watermark(10)
        assert runner.end_batch() == [("+I", 1, 10, 0, 1, 10, 5)]
        assert len(runner.state_entries()) == 1


def test_a_minus_u_waits_for_its_plus_u_and_a_minus_d_ends_the_version(async_enabled: bool) -> None:
    with harness("left", async_enabled=async_enabled) as runner:
        runner.push([(1, at, at) for at in (1, 4, 6, 9)], 0)
        runner.push([(1, 1, 10)], 1)
        runner.push([(1, 3, 10)], 1, kind="-U")
        runner.push([(1, 5, 20)], 1, kind="+U")
        runner.push([(1, 8, 20)], 1, kind="-D")
        rows = runner.finish()
        assert [(row[2], row[6]) for row in rows] == [(1, 10), (4, 10), (6, 20), (9, None)]
        assert runner.state_entries() == {}


def test_of_one_time_the_version_counts_that_no_change_has_replaced(async_enabled: bool) -> None:
    """The row that was replaced arrives last, as it may within a micro-batch."""
    with harness("left", async_enabled=async_enabled) as runner:
        runner.push([(1, 6, 0)], 0)
        runner.push([(1, 5, 20), (1, 5, 10), (1, 5, 10)], 1, kinds=["+U", "+I", "-U"])
        assert [(row[2], row[6]) for row in runner.finish()] == [(6, 20)]


def test_left_rows_keep_their_kinds(async_enabled: bool) -> None:
    with harness(async_enabled=async_enabled) as runner:
        runner.push([(1, 0, 5)], 1)
        runner.push([(1, 1, 0), (1, 1, 0), (1, 2, 0), (1, 2, 0)], 0, kinds=["+I", "-U", "+U", "-D"])
        assert [row[0] for row in runner.finish()] == ["+I", "-U", "+U", "-D"]


def test_late_left_rows_are_dropped_and_late_versions_count_for_what_comes(async_enabled: bool) -> None:
    with harness("left", async_enabled=async_enabled) as runner:
        runner.push([(1, 10, 100), (2, 10, 100), (3, 10, 100)], 1)
        runner.advance_watermark(20)
        runner.end_batch()
        runner.push([(1, 15, 0), (1, 30, 1), (2, 30, 2), (3, 30, 3), (4, 30, 4)], 0)
        # Newer than the one that stands, older, of the same time, and of a key that has none.
        runner.push([(1, 15, 150), (2, 5, 50), (3, 10, 101), (4, 1, 10)], 1)
        rows = runner.finish()
        assert sorted((row[3], row[6]) for row in rows) == [(1, 150), (2, 100), (3, 101), (4, 10)]
        counters = runner.statistics()
    assert counters["counter.late_rows_dropped"] == 1
    assert counters["counter.late_versions"] == 4
    assert counters["counter.late_versions_dropped"] == 1


def test_the_condition_is_asked_of_pairs(async_enabled: bool) -> None:
    condition = pc.field("v") > pc.field("id")
    for kind, expected in (("inner", [(5, 7)]), ("left", [(5, 7), (9, None)])):
        with harness(kind, condition, async_enabled=async_enabled) as runner:
            runner.push([(1, 1, 5), (1, 2, 9)], 0)
            runner.push([(1, 0, 7)], 1)
            assert [(row[3], row[6]) for row in runner.finish()] == expected


@pytest.mark.parametrize("time", ["event", "processing"])
@pytest.mark.parametrize("null_safe", [False, True])
def test_a_null_in_the_key_matches_nothing_unless_null_safe(
    async_enabled: bool, time: str, null_safe: bool
) -> None:
    with harness("left", time=time, null_safe=null_safe, async_enabled=async_enabled) as runner:
        runner.push([(None, 1, 5), (1, 1, 6)], 0)
        runner.push([(None, 0, 7), (1, 0, 8)], 1)
        runner.end_batch()
        runner.finish()
        assert sorted((row[3], row[6]) for row in runner.output) == [(5, 7 if null_safe else None), (6, 8)]
        assert len(runner.state_entries()) == 1 + null_safe


def test_a_version_expires(async_enabled: bool) -> None:
    with harness(
        "left", time="processing", ttl=StateTtl("10 microseconds"), async_enabled=async_enabled
    ) as runner:
        runner.push([(1, 0, 5)], 1)
        runner.end_batch()
        for passed, value in ((9, 5), (1, None)):
            runner.advance_processing_time(passed)
            runner.push([(1, 0, 0)], 0)
            assert [row[6] for row in runner.end_batch()] == [value]


def test_rows_of_all_key_columns_are_versions_too(async_enabled: bool) -> None:
    only = pa.schema([("k", pa.int64())])
    with OperatorHarness(
        TemporalJoin("left", time="processing"),
        [only, only],
        [["k"], ["k"]],
        changelog=[False, True],
        async_enabled=async_enabled,
    ) as runner:
        runner.push([(1,)], 1)
        runner.push([(1,), (2,)], 0)
        assert sorted(runner.end_batch(), key=repr) == [("+I", 1, 1), ("+I", 2, None)]


@pytest.mark.parametrize("size", ["1", "500000"])
def test_of_upserts_only_the_key_of_a_deletion_counts(async_enabled: bool, size: str) -> None:
    upserts = [False, Changelog.upsert("k")]
    options = {"async-state.bundle-size": size}
    with harness(
        "left", time="processing", changelog=upserts, async_enabled=async_enabled, options=options
    ) as runner:
        for v, kind in ((5, "+I"), (None, "-D"), (6, "+U"), (7, "+U"), (None, "-D")):
            runner.push([(1, None, v)], 1, kind=kind)
            runner.push([(1, 0, 0)], 0)
            assert [row[6] for row in runner.end_batch()] == [v]
        assert runner.state_entries() == {}


def test_of_upserts_of_one_time_the_last_one_counts(async_enabled: bool) -> None:
    with harness("left", changelog=[False, Changelog.upsert("k")], async_enabled=async_enabled) as runner:
        runner.push([(1, 5, 10), (1, 5, None), (2, 5, None), (2, 5, 20)], 1, kinds=["+I", "-D", "-D", "+U"])
        runner.push([(1, 6, 0), (2, 6, 0)], 0)
        runner.advance_watermark(6)
        assert sorted((row[1], row[6]) for row in runner.end_batch()) == [(1, None), (2, 20)]
        runner.push([(2, 5, None)], 1, kind="-D")  # late, and not older than the row that stands
        runner.push([(2, 7, 0)], 0)
        assert [row[6] for row in runner.finish()] == [None]
        assert runner.state_entries() == {}


def test_upserts_in_an_unknown_order_are_refused(async_enabled: bool) -> None:
    upserts = [False, Changelog.upsert("k")]
    with harness(time="processing", changelog=upserts, async_enabled=async_enabled) as runner:
        runner.push([(1, 0, 5), (1, 0, 6)], 1, kind="+U")
        with pytest.raises(OperatorError, match="TemporalJoin: input 1 has several changes of k = 1"):
            runner.end_batch()
    with harness(
        time="processing", changelog=upserts, sequence=[None, "v"], async_enabled=async_enabled
    ) as runner:
        runner.push([(1, 0, 6), (1, 0, 5)], 1, kind="+U")
        runner.push([(1, 0, 0)], 0)
        assert [row[6] for row in runner.end_batch()] == [6]


@pytest.mark.parametrize("time", ["event", "processing"])
def test_a_deletion_has_a_position_of_its_own(async_enabled: bool, time: str) -> None:
    """The sequence is not part of what a row and its retraction have in common."""
    with harness("left", time=time, sequence=[None, "v"], async_enabled=async_enabled) as runner:
        runner.push([(1, 5, 1), (2, 5, 1)], 1)
        runner.end_batch()
        runner.push([(1, 5, 2), (2, 5, 3), (2, 5, 4)], 1, kinds=["-D", "-D", "+I"])
        runner.end_batch()
        runner.push([(1, 6, 0), (2, 6, 0)], 0)
        runner.end_batch()
        runner.finish()
        assert sorted((row[1], row[6]) for row in runner.output) == [(1, None), (2, 4)]
        assert len(runner.state_entries()) == 1


@pytest.mark.parametrize(
    ("operator", "settings", "message"),
    [
        (lambda: TemporalJoin("full"), {}, "TemporalJoin: kind is 'full'; choose 'inner' or 'left'"),
        (lambda: TemporalJoin(time="soon"), {}, "TemporalJoin: time is 'soon'; choose 'event' or"),
        (TemporalJoin, {"event_time": ["at", None]}, "time='event' needs an event time but input 1 declares"),
        (TemporalJoin, {"key": ["k", "at"]}, "key column 'k' of input 0 is int64 but 'at' of input 1"),
        (lambda: TemporalJoin(suffixes=("", "")), {}, "column 'k' would occur twice in the output"),
        (lambda: TemporalJoin(condition=3), {}, "TemporalJoin: condition is 3; give a pyarrow expression"),
        (
            lambda: TemporalJoin(time="processing", ttl=StateTtl("1 second", time="event")),
            {},
            "TemporalJoin: ttl is in event time, but the join is in processing time",
        ),
        (
            lambda: TemporalJoin(time="processing"),
            {"changelog": True},
            "rows of input 0 are changes .retract., and a retraction would join with the current right row",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(operator: Any, settings: Any, message: str) -> None:
    keys = settings.pop("key", ["k", "k"])
    with pytest.raises(SchemaError, match=message):
        OperatorHarness(operator(), [LEFT, RIGHT], keys, **{"event_time": "at", **settings})
