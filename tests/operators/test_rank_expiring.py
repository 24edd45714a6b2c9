"""Rank with a time to live: which rows rank, what is put out, what leaves the disk, against plain lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import InputSpec, StateTtl
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.state import TtlTime
from asyncstate.testing import OperatorHarness, net
from operators import Rank, desc
from tests.examples import at_most
from tests.state.ttl_direct import MS, ExpiringRunner

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("id", pa.int64()), ("t", pa.timestamp("us"))])
MINUTE = 60_000_000
TTL = StateTtl("10 minutes")
Row = tuple[Any, ...]


class Timed:
    """A harness whose micro-batches are a number of minutes after the one before."""

    def __init__(self, harness: OperatorHarness) -> None:
        self.harness = harness

    def __call__(self, minutes: int, *rows: Row) -> list[Row]:
        self.harness.advance_processing_time(minutes * MINUTE)
        self.harness.push(rows)
        return self.harness.end_batch()


@pytest.fixture
def start(async_enabled: bool) -> Iterator[Callable[..., Timed]]:
    made: list[OperatorHarness] = []

    def run(*arguments: Any, changelog: bool = False, **options: Any) -> Timed:
        operator = Rank(*arguments, **{"ttl": TTL, **options})
        made.append(
            OperatorHarness(operator, SCHEMA, ["k"], changelog=changelog, async_enabled=async_enabled)
        )
        return Timed(made[-1])

    yield run
    for harness in made:
        harness.close()


def test_others_come_in_the_place_of_a_row_that_has_expired(start: Callable[..., Timed]) -> None:
    rank = start(desc("v"), 2)
    assert rank(0, (1, 9, 0, 0)) == [("+I", 1, 9, 0, 0)]
    assert rank(6, (1, 8, 1, 0), (1, 7, 2, 0)) == [("+I", 1, 8, 1, 0)]
    assert rank(3, (1, 6, 3, 0)) == []
    assert rank(1, (1, 5, 4, 0)) == [("+I", 1, 5, 4, 0)]
    assert rank(0, (1, 7, 5, 0)) == [("-D", 1, 5, 4, 0), ("+I", 1, 7, 5, 0)]
    assert rank(6, (1, 1, 6, 0)) == [("+I", 1, 1, 6, 0)]  # the row that stayed kept its time


@pytest.mark.parametrize("update_before", [True, False])
def test_an_equal_row_is_put_out_again_and_keeps_its_place(
    start: Callable[..., Timed], update_before: bool
) -> None:
    rank = start(desc("v"), 2, unique=["id"], monotonic=True, emit_update_before=update_before)
    row = (1, 9, 0, 0)
    rank(0, row)
    for _ in range(3):
        assert rank(9, row) == ([("-U", *row)] if update_before else []) + [("+U", *row)]
    assert rank(10, row) == [("+I", *row)]


def test_rows_leave_the_disk(start: Callable[..., Timed]) -> None:
    rank = start(desc("v"), "k")
    rank(0, *((number % 7, number, number, 0) for number in range(50)))
    assert rank.harness.state_entries()
    for _ in range(3):
        rank(5)
    assert rank.harness.state_entries() == {}


# -- against plain lists --------------------------------------------------------------------------------------

rows_of_stories = st.tuples(
    st.integers(0, 1), st.integers(0, 3), st.integers(0, 9), st.sampled_from([-60, 0, 30])
)
stories = st.lists(
    st.tuples(st.sampled_from([0, 30, 60, 99, 100]), st.lists(rows_of_stories, max_size=5)),
    min_size=2,
    max_size=6,
)
ttls = st.builds(
    StateTtl,
    st.sampled_from([100 * MS, 300 * MS]),
    st.sampled_from(["processing", "event"]),
)


class Rankings:
    """The live rows of each key, the best first: order, number of arrival, the row, its stamp in milliseconds."""

    def __init__(self, ttl: StateTtl, n: int) -> None:
        self.lasts, self.by_event = ttl.duration_us // MS, ttl.time is TtlTime.EVENT
        self.n, self.arrived = n, 0
        self.rows: dict[int, list[list[Any]]] = {0: [], 1: []}

    def net_change(self, rows: list[Row], now: int) -> dict[Row, int]:
        """What a bundle changes of the rows that still live."""
        change: Counter[Row] = Counter()
        for key, held_rows in self.rows.items():
            mine = [row for row in rows if row[0] == key]
            stamps = [max(now, row[3] // MS) if self.by_event else now for row in mine]
            live = [held for held in held_rows if held[3] + self.lasts > now]
            come = [[-row[1], self.arrived + at, row, stamps[at]] for at, row in enumerate(mine)]
            self.arrived += len(mine)
            self.rows[key] = sorted(live + come)[: self.n]
            change.update(held[2] for held in self.rows[key])
            change.subtract(held[2] for held in live)
        return {row: times for row, times in change.items() if times}


def run_story(story: Any, ttl: StateTtl, n: int, size: int, deferred: bool) -> list[Any]:
    runner = ExpiringRunner(Rank(desc("v"), n, ttl=ttl), [InputSpec(SCHEMA, ("k",), "t")], deferred)
    model, now, outcomes = Rankings(ttl, n), 1_000, []
    for pause, drawn in [*story, *[(60, [])] * 8]:
        now += pause
        rows = [(*row[:3], (row[3] + now) * MS) for row in drawn]
        bundles = [rows[start : start + size] for start in range(0, len(rows), size)]
        outputs = runner.batch(now, *((0, bundle, ["+I"] * len(bundle)) for bundle in bundles))
        for bundle, output in zip(bundles, outputs, strict=True):
            assert {row[0] for row in output} <= {"+I", "-D"}
            assert net(output) == model.net_change(bundle, now)
        outcomes.append((outputs, dict(runner.entries)))
    assert runner.entries == {}
    return outcomes


@settings(max_examples=at_most(60))
@given(stories, ttls, st.integers(1, 3), st.sampled_from([1, 3, 500_000]))
def test_rankings_of_the_rows_that_live(story: Any, ttl: StateTtl, n: int, size: int) -> None:
    assert run_story(story, ttl, n, size, False) == run_story(story, ttl, n, size, True)


# -- refusals -------------------------------------------------------------------------------------------------


def test_what_is_refused(start: Callable[..., Timed]) -> None:
    with pytest.raises(StateDeclarationError, match="Rank: ttl='an hour' is not a time to live"):
        Rank("v", 1, ttl="an hour")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="Rank: with a ttl rows expire .*; leave out rank_column, or ttl"):
        Rank("v", 1, rank_column="place", ttl=TTL)
    with pytest.raises(SchemaError, match="Rank: with a ttl rows expire .*; leave out offset, or ttl"):
        Rank("v", 1, offset=1, ttl=TTL)
    with pytest.raises(
        SchemaError, match="Rank: n is 'v', .*; give a number or a key column, or leave ttl out"
    ):
        start("v", "v")
    for options in ({"changelog": True}, {"unique": ["id"]}):
        with pytest.raises(SchemaError, match="Rank: rows of input 0 may be retracted .* cannot expire"):
            start("v", 1, **options)
