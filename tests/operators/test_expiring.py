"""Operators with a time to live through the runtime: both modes, restarts, what leaves the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import InputSpec, StateTtl
from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.errors import StateDeclarationError
from asyncstate.testing import OperatorHarness
from operators import Deduplicate, GroupAggregate, Join, count, max_, min_, sum_

MINUTE = 60_000_000
TTL = StateTtl("10 minutes")
LEFT = pa.schema([("k", pa.string()), ("a", pa.int64())])
RIGHT = pa.schema([("k", pa.string()), ("b", pa.int64())])
TIMED = pa.schema([("k", pa.string()), ("v", pa.int64()), ("t", pa.timestamp("us", tz="UTC"))])

Run = Callable[..., list[Any]]


class Timed:
    """A harness whose micro-batches are a number of minutes after the one before."""

    def __init__(self, harness: OperatorHarness) -> None:
        self.harness = harness

    def __call__(self, minutes: int, *changes: tuple[Any, ...], input: int = 0) -> list[Any]:
        """``changes``: kind and values; the rows that the micro-batch puts out."""
        self.harness.advance_processing_time(minutes * MINUTE)
        if changes:
            rows, kinds = [change[1:] for change in changes], [change[0] for change in changes]
            self.harness.push(rows, input, kinds=kinds)
        return self.harness.end_batch()

    def left(self, *changes: tuple[Any, ...], after: int = 0) -> list[Any]:
        return self(after, *changes)

    def right(self, *changes: tuple[Any, ...], after: int = 0) -> list[Any]:
        return self(after, *changes, input=1)

    @property
    def dropped(self) -> float:
        return self.harness.statistics()["counter.retractions_without_state"]


@pytest.fixture
def start(async_enabled: bool) -> Iterator[Callable[..., Timed]]:
    made: list[OperatorHarness] = []

    def run(operator: Any, *arguments: Any, **options: Any) -> Timed:
        made.append(OperatorHarness(operator, *arguments, async_enabled=async_enabled, **options))
        return Timed(made[-1])

    yield run
    for harness in made:
        harness.close()


def joined(start: Callable[..., Timed], *arguments: Any, **options: Any) -> Timed:
    return start(Join(*arguments, **options), [LEFT, RIGHT], [["k"], ["k"]])


UNIQUE = pytest.mark.parametrize("unique", [None, "join_key"])


# -- Join -------------------------------------------------------------------------------------------------


@UNIQUE
def test_each_side_has_its_own_time(start: Callable[..., Timed], unique: Any) -> None:
    join = joined(start, left_ttl=TTL, right_ttl=StateTtl("1 hour"), right_unique=unique, left_unique=unique)
    join.left(("+I", "x", 1))
    assert join.right(("+I", "x", 2), after=9) == [("+I", "x", 1, "x", 2)]
    assert join.right(("+I", "x", 3), after=1) == []
    assert join.left(("+I", "x", 4), after=40) == [
        ("+I", "x", 4, "x", b) for b in ((3,) if unique else (2, 3))
    ]


@UNIQUE
def test_a_retraction_of_an_expired_row_takes_back_what_is_still_there_of_the_other_side(
    start: Callable[..., Timed], unique: Any
) -> None:
    join = joined(start, left_ttl=TTL, left_unique=unique)
    join.right(("+I", "x", 2))
    join.left(("+I", "x", 1))
    assert join.left(("-D", "x", 1), after=10) == [("-D", "x", 1, "x", 2)]
    assert join.dropped == 0
    assert join.harness.statistics()["counter.retractions_of_expired_rows"] == 1
    assert join.left(("+I", "x", 1)) == [("+I", "x", 1, "x", 2)]
    assert join.left(("-D", "x", 1), after=9) == [("-D", "x", 1, "x", 2)]
    assert join.dropped == 0


@UNIQUE
def test_a_retraction_of_an_expired_partner_brings_the_pad_back(
    start: Callable[..., Timed], unique: Any
) -> None:
    join = joined(start, "left", right_ttl=TTL, right_unique=unique)
    join.left(("+I", "x", 1))
    join.right(("+I", "x", 2))
    assert join.right(("-D", "x", 2), after=11) == [("-D", "x", 1, "x", 2), ("+I", "x", 1, None, None)]


@UNIQUE
def test_expiry_puts_nothing_out_and_an_expired_partner_is_none(
    start: Callable[..., Timed], unique: Any
) -> None:
    join = joined(start, "left", right_ttl=TTL, right_unique=unique)
    join.left(("+I", "x", 1))
    join.right(("+I", "x", 2))
    assert join(10) == []
    assert join.left(("+I", "x", 3)) == [("+I", "x", 3, None, None)]
    # The row that was not padded when its partner expired is taken for one without a partner, too.
    assert sorted(join.right(("+I", "x", 4)), key=repr) == sorted(
        [
            *(("-D", "x", a, None, None) for a in (1, 3)),
            *(("+I", "x", a, "x", 4) for a in (1, 3)),
        ],
        key=repr,
    )


def test_a_condition_asks_only_rows_that_live(start: Callable[..., Timed]) -> None:
    join = joined(start, "semi", lambda pairs: pa.compute.less(pairs["a"], pairs["b"]), right_ttl=TTL)
    join.left(("+I", "x", 1))
    assert join.right(("+I", "x", 2)) == [("+I", "x", 1)]
    assert join.right(("+I", "x", 3), after=9) == []
    assert join.right(("-D", "x", 3), after=5) == [("-D", "x", 1)]


def test_rows_that_stay_in_a_list_keep_their_time(start: Callable[..., Timed]) -> None:
    join = joined(start, left_ttl=TTL)
    join.left(("+I", "x", 1), ("+I", "x", 2), ("+I", "x", 3))
    join.left(("-D", "x", 2), ("+I", "x", 4), after=6)
    assert [row[2] for row in join.right(("+I", "x", 0), after=3)] == [1, 3, 4]
    assert [row[2] for row in join.right(("+I", "x", 0), after=1)] == [4]


@UNIQUE
def test_a_row_that_comes_again_is_kept_alive_and_put_out_again(
    start: Callable[..., Timed], unique: Any
) -> None:
    join = joined(start, left_ttl=TTL, left_unique=unique)
    join.right(("+I", "x", 2))
    join.left(("+I", "x", 1))
    again = join.left(("-U", "x", 1), ("+U", "x", 1), after=9)
    assert again == [("-U", "x", 1, "x", 2), ("+U", "x", 1, "x", 2)]
    assert join.right(("+I", "x", 3), after=9) == [("+I", "x", 1, "x", 3)]
    assert join.right(("+I", "x", 4), after=1) == []


@UNIQUE
def test_expired_rows_leave_the_disk(start: Callable[..., Timed], unique: Any) -> None:
    join = joined(start, "full", left_ttl=TTL, right_ttl=TTL, left_unique=unique, right_unique=unique)
    names = [f"key {number}" for number in range(20)]
    join.left(*(("+I", name, number) for name in names for number in range(1 if unique else 70)))
    join.right(*(("+I", name, 1) for name in names))
    assert len(join.harness.state_entries()) == (40 if unique else 60)  # long lists have a chunk
    for _ in range(3):
        assert join(5) == []
    assert join.harness.state_entries() == {}


def test_event_time_counts_from_the_row_and_the_watermark(async_enabled: bool) -> None:
    ttl = StateTtl("10 minutes", time="event")
    with OperatorHarness(
        Join(left_ttl=ttl, right_ttl=ttl),
        [TIMED, TIMED],
        [["k"], ["k"]],
        event_time="t",
        async_enabled=async_enabled,
    ) as harness:

        def at(watermark: int, *rows: tuple[Any, ...], input: int = 0) -> list[Any]:
            harness.advance_watermark(watermark * MINUTE)
            harness.push([(k, v, t * MINUTE) for k, v, t in rows], input)
            return harness.end_batch()

        at(0, ("x", 1, 5), ("x", 2, 1))
        assert len(at(10, ("x", 0, 10), input=1)) == 2
        assert [row[2] for row in at(11, ("x", 0, 11), input=1)] == [1]
        assert at(15, ("x", 0, 15), input=1) == []


# -- GroupAggregate -----------------------------------------------------------------------------------------

TOTALS = [count().alias("n"), sum_("a").alias("s"), min_("a").alias("low"), max_("a").alias("high")]


@pytest.mark.parametrize("changelog", [False, True])
def test_an_expired_key_starts_anew(start: Callable[..., Timed], changelog: bool) -> None:
    run = start(GroupAggregate(TOTALS, ttl=TTL), LEFT, ["k"], changelog=changelog)
    assert run(0, ("+I", "x", 1)) == [("+I", "x", 1, 1, 1, 1)]
    assert run(9, ("+I", "x", 2)) == [("-U", "x", 1, 1, 1, 1), ("+U", "x", 2, 3, 1, 2)]
    assert run(9, ("+I", "x", 3)) == [("-U", "x", 2, 3, 1, 2), ("+U", "x", 3, 6, 1, 3)]
    assert run(10, ("+I", "x", 7)) == [("+I", "x", 1, 7, 7, 7)]
    if changelog:  # the log of the values from before is no part of it
        assert run(0, ("+I", "x", 9), ("-D", "x", 7)) == [("-U", "x", 1, 7, 7, 7), ("+U", "x", 1, 9, 9, 9)]


def test_a_retraction_for_an_expired_key_is_dropped_and_counted(start: Callable[..., Timed]) -> None:
    run = start(GroupAggregate(TOTALS, ttl=TTL), LEFT, ["k"])
    run(0, ("+I", "x", 1))
    assert run(10, ("-U", "x", 1), ("+U", "x", 2)) == [("+I", "x", 1, 2, 2, 2)]
    assert run.dropped == 1


@pytest.mark.parametrize("update_before", [True, False])
def test_what_stays_the_same_is_put_out_again_and_stays_alive(
    start: Callable[..., Timed], update_before: bool
) -> None:
    run = start(GroupAggregate([max_("a")], update_before, ttl=TTL), LEFT, ["k"], changelog=False)
    run(0, ("+I", "x", 5))
    again = [("-U", "x", 5), ("+U", "x", 5)] if update_before else [("+U", "x", 5)]
    for _ in range(3):
        assert run(9, ("+I", "x", 1)) == again
    assert run(10, ("+I", "x", 1)) == [("+I", "x", 1)]


@pytest.mark.parametrize("changelog", [False, True])
def test_distinct(start: Callable[..., Timed], changelog: bool) -> None:
    run = start(GroupAggregate(ttl=TTL), LEFT, ["k"], changelog=changelog)
    assert run(0, ("+I", "x", 1), ("+I", "y", 1), ("+I", "x", 2)) == [("+I", "x"), ("+I", "y")]
    assert run(9, ("+I", "x", 1)) == [("-U", "x"), ("+U", "x")]
    assert run(9, ("+I", "y", 1), ("+I", "x", 1)) == [("+I", "y"), ("-U", "x"), ("+U", "x")]


def test_accumulators_and_logs_leave_the_disk_together(start: Callable[..., Timed]) -> None:
    run = start(GroupAggregate(TOTALS, ttl=TTL), LEFT, ["k"])
    run(0, *(("+I", f"key {key}", value) for key in range(20) for value in range(100)))
    assert {key[2] for key in run.harness.state_entries()} == {8, 9}
    for _ in range(4):
        run(4, ("+I", "alive", 1))
    assert len(run.harness.state_entries()) == 2
    for _ in range(4):
        run(4)
    assert run.harness.state_entries() == {}


def test_rows_that_replace_each_other_are_not_put_together_before_they_come() -> None:
    inputs = [InputSpec(LEFT, ("k",), changes=RETRACT if flag else INSERT_ONLY) for flag in (False, True)]
    for spec in inputs:
        assert GroupAggregate([count()]).partial_aggregation([spec]) is not None
    assert GroupAggregate([count()], ttl=TTL).partial_aggregation(inputs[:1]) is not None
    assert GroupAggregate([count()], ttl=TTL).partial_aggregation(inputs[1:]) is None


# -- Deduplicate ----------------------------------------------------------------------------------------------


def deduplicated(start: Callable[..., Timed], keep: Any, ttl: StateTtl = TTL) -> Timed:
    return start(Deduplicate(keep, "processing", ttl=ttl), LEFT, ["k"])


def test_an_expired_key_counts_as_unseen(start: Callable[..., Timed]) -> None:
    run = deduplicated(start, "first")
    assert run(0, ("+I", "x", 1)) == [("+I", "x", 1)]
    assert run(9, ("+I", "x", 2)) == []
    assert run(1, ("+I", "x", 3)) == [("+I", "x", 3)]


def test_an_equal_row_is_put_out_again_and_keeps_its_key(start: Callable[..., Timed]) -> None:
    run = deduplicated(start, "last")
    run(0, ("+I", "x", 1))
    for _ in range(3):
        assert run(9, ("+I", "x", 1)) == [("-U", "x", 1), ("+U", "x", 1)]
    assert run(10, ("+I", "x", 1)) == [("+I", "x", 1)]


def test_rows_that_are_all_key(start: Callable[..., Timed]) -> None:
    first, last = (
        start(Deduplicate(keep, "processing", ttl=TTL), LEFT, ["k", "a"]) for keep in ("first", "last")
    )
    for run in (first, last):
        assert run(0, ("+I", "x", 1)) == [("+I", "x", 1)]
    assert first(9, ("+I", "x", 1)) == []
    assert last(0, ("+I", "x", 1)) == [("-U", "x", 1), ("+U", "x", 1)]
    assert first(1, ("+I", "x", 1)) == [("+I", "x", 1)]
    assert last(10, ("+I", "x", 1)) == [("+I", "x", 1)]


def test_keys_leave_the_disk(start: Callable[..., Timed]) -> None:
    run = deduplicated(start, "last")
    run(0, *(("+I", f"key {key}", key) for key in range(50)))
    for _ in range(3):
        run(5)
    assert run.harness.state_entries() == {}


# -- for all ------------------------------------------------------------------------------------------------

MAKERS: dict[str, Callable[[StateTtl | None], Any]] = {
    "left": lambda ttl: Join(left_ttl=ttl),
    "right": lambda ttl: Join(right_ttl=ttl, right_unique="join_key"),
    "accumulators": lambda ttl: GroupAggregate([count()], ttl=ttl),
    "rows": lambda ttl: Deduplicate("last", "processing", ttl=ttl),
}


def opened(operator: Any, **options: Any) -> OperatorHarness:
    if isinstance(operator, Join):
        return OperatorHarness(operator, [LEFT, RIGHT], [["k"], ["k"]], **options)
    return OperatorHarness(operator, LEFT, ["k"], **options)


@pytest.mark.parametrize("name", MAKERS)
def test_a_stored_state_keeps_its_ttl_or_its_lack_of_one(name: str) -> None:
    for before, now in ((None, TTL), (TTL, None)):
        with opened(MAKERS[name](before)) as harness:
            harness.push([("x", 1)], 1 if name == "right" else 0)
            harness.end_batch()
            with pytest.raises(StateDeclarationError, match=f"state '{name}': .*no ttl"):
                harness.restore(harness.snapshot(), operator=MAKERS[name](now))
            with harness.restore(
                harness.snapshot(), operator=MAKERS[name](before and StateTtl("1 hour"))
            ) as longer:
                assert longer.end_batch() == []


@pytest.mark.parametrize("name", MAKERS)
def test_a_ttl_may_be_a_duration_alone(name: str) -> None:
    argument = f"{name}_ttl" if name in ("left", "right") else "ttl"
    given: Any = MAKERS[name]("1 hour").ttl  # type: ignore[attr-defined, arg-type]
    assert StateTtl("1 hour") in (given if isinstance(given, tuple) else (given,))
    with pytest.raises(
        StateDeclarationError, match=f"^[A-Z][A-Za-z]+: {argument}='an hour' is not a time to live"
    ):
        MAKERS[name]("an hour")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    ("option", "value"), [("update", "read-and-write"), ("visibility", "return-if-not-cleaned")]
)
def test_options_of_record_grain_are_refused(name: str, option: str, value: str) -> None:
    with pytest.raises(
        StateDeclarationError,
        match=f"^[A-Z].*: .*ttl has {option}='{value}', .*only states of a RecordOperator.*leave {option}",
    ):
        MAKERS[name](StateTtl("10 minutes", **{option: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MAKERS)
def test_both_modes_both_stores_and_any_parallelism_agree(name: str) -> None:
    outcomes = []
    for options in (
        {},
        {"async_enabled": True, "options": {"async-state.cache-size": "0b"}},
        {"async_enabled": True, "parallelism": 3},
    ):
        with opened(MAKERS[name](TTL), **options) as harness:  # type: ignore[arg-type]
            outputs = []
            for step in range(8):
                harness.advance_processing_time(4 * MINUTE)
                for side in (0, 1) if isinstance(MAKERS[name](None), Join) else (0,):
                    rows = [(f"key {key}", step) for key in range(9) if (key + step + side) % 3 == 0]
                    harness.push(rows, side)
                outputs.append(sorted(harness.end_batch(), key=repr))
            outcomes.append((outputs, harness.state_entries()))
    assert outcomes[0][1]
    assert outcomes[0] == outcomes[1] == outcomes[2]
