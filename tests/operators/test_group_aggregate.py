"""GroupAggregate on the harness: what it emits, what it keeps, and that modes and stores agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import AsyncStateError, SchemaError, StateDeclarationError
from asyncstate.operator import InputSpec
from asyncstate.testing import OperatorHarness, net
from operators import (
    Aggregate,
    GroupAggregate,
    GroupTableAggregate,
    avg,
    collect,
    count,
    first_value,
    last_value,
    max_,
    min_,
    sum_,
)

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("s", pa.string()), ("flag", pa.bool_())])
Row = tuple[Any, ...]


@pytest.fixture
def open_harness(async_enabled: bool) -> Iterator[Any]:
    opened: list[OperatorHarness] = []

    def open_one(operator: GroupAggregate, key: tuple[str, ...] = ("k",), **options: Any) -> OperatorHarness:
        harness = OperatorHarness(operator, SCHEMA, key, async_enabled=async_enabled, **options)
        opened.append(harness)
        return harness

    yield open_one
    for harness in opened:
        harness.close()


def push(harness: OperatorHarness, *rows: Row) -> None:
    """Rows as (kind, k, n) with s and flag made from n, or as (kind, k, n, s, flag)."""
    full = [row if len(row) == 5 else (*row, None if row[2] is None else str(row[2]), True) for row in rows]
    harness.push([row[1:] for row in full], kinds=[row[0] for row in full])


def test_net_change_of_each_bundle(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([count().alias("c"), sum_("n")]))
    push(harness, ("+I", "b", 1), ("+I", "a", 2), ("+I", "b", 3))
    assert harness.end_batch() == [("+I", "b", 2, 4), ("+I", "a", 1, 2)]
    push(harness, ("+I", "c", 7), ("-D", "a", 2), ("-U", "b", 3), ("+U", "b", 5))
    assert harness.end_batch() == [("+I", "c", 1, 7), ("-D", "a", 1, 2), ("-U", "b", 2, 4), ("+U", "b", 2, 6)]
    push(harness, ("-D", "b", 1), ("-D", "b", 5), ("-D", "c", 7))
    assert harness.end_batch() == [("-D", "b", 2, 6), ("-D", "c", 1, 7)]
    assert harness.state_entries() == {}


def test_same_result_as_before_emits_nothing_but_is_counted(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([max_("n")]))
    push(harness, ("+I", "a", 5))
    assert harness.end_batch() == [("+I", "a", 5)]
    push(harness, ("+I", "a", 3))
    assert harness.end_batch() == []
    push(harness, ("-D", "a", 5))
    assert harness.end_batch() == [("-U", "a", 5), ("+U", "a", 3)]


def test_rows_that_cancel_out_within_a_bundle(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([count().alias("c"), max_("n")]))
    push(harness, ("+I", "a", 1), ("-D", "a", 1))
    assert harness.end_batch() == []
    assert harness.statistics()["delta_bytes"] == 0
    push(harness, ("+I", "a", 1))
    assert harness.end_batch() == [("+I", "a", 1, 1)]
    push(harness, ("-D", "a", 1), ("+I", "a", 1))
    assert harness.end_batch() == []
    push(harness, ("-D", "a", 1), ("+I", "a", 2))
    assert harness.end_batch() == [("-U", "a", 1, 1), ("+U", "a", 1, 2)]


def test_without_update_before(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([sum_("n")], emit_update_before=False))
    push(harness, ("+I", "a", 1))
    harness.end_batch()
    push(harness, ("+I", "a", 2))
    assert harness.end_batch() == [("+U", "a", 3)]
    push(harness, ("-D", "a", 2), ("-D", "a", 1))
    assert harness.end_batch() == [("-D", "a", 3)]


def test_retractions_of_rows_that_are_not_there_are_dropped_and_counted(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([count().alias("c"), sum_("n")]))
    push(harness, ("-D", "a", 9), ("+I", "a", 1), ("-D", "b", 2))
    assert harness.end_batch() == [("+I", "a", 1, 1)]
    assert harness.statistics()["counter.retractions_without_state"] == 2
    push(harness, ("-D", "a", 1), ("-D", "a", 1), ("+I", "a", 4))
    assert harness.end_batch() == [("-U", "a", 1, 1), ("+U", "a", 1, 4)]
    assert harness.statistics()["counter.retractions_without_state"] == 1


def test_null_keys_and_null_values(open_harness: Any) -> None:
    harness = open_harness(
        GroupAggregate([count().alias("c"), count("n").alias("v"), sum_("n"), avg("n"), min_("s")])
    )
    push(harness, ("+I", None, None), ("+I", None, 4), ("+I", "a", None))
    assert harness.end_batch() == [("+I", None, 2, 1, 4, 4.0, "4"), ("+I", "a", 1, 0, None, None, None)]
    push(harness, ("-D", None, 4))
    assert harness.end_batch() == [("-U", None, 2, 1, 4, 4.0, "4"), ("+U", None, 1, 0, None, None, None)]


def test_filters(open_harness: Any) -> None:
    aggregates = [count().where("flag").alias("c"), max_("n").where("flag").alias("m"), sum_("n")]
    harness = open_harness(GroupAggregate(aggregates))
    push(harness, ("+I", "a", 5, "x", None), ("+I", "a", 9, "x", False), ("+I", "a", 2, "x", True))
    assert harness.end_batch() == [("+I", "a", 1, 2, 16)]
    push(harness, ("-D", "a", 2, "x", True))
    assert harness.end_batch() == [("-U", "a", 1, 2, 16), ("+U", "a", 0, None, 14)]


def test_distinct(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate(), ("k", "s"))
    push(harness, ("+I", "b", 1), ("+I", "a", 2), ("+I", "b", 1))
    assert harness.end_batch() == [("+I", "b", "1"), ("+I", "a", "2")]
    push(harness, ("-D", "b", 1), ("-D", "a", 2), ("+I", "c", 3))
    assert harness.end_batch() == [("-D", "a", "2"), ("+I", "c", "3")]
    push(harness, ("-D", "b", 1))
    assert harness.end_batch() == [("-D", "b", "1")]


def test_distinct_of_inserts_writes_each_key_once(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate(), changelog=False)
    push(harness, ("+I", "b", 1), ("+I", "a", 2), ("+I", "b", 3))
    assert harness.end_batch() == [("+I", "b"), ("+I", "a")]
    stored = harness.state_entries()
    push(harness, ("+I", "b", 1), ("+I", "c", 2), ("+I", "a", 3))
    assert harness.end_batch() == [("+I", "c")]
    push(harness, ("+I", "b", 1), ("+I", "c", 2))
    assert harness.end_batch() == []
    assert harness.statistics()["delta_bytes"] == 0
    assert len(harness.state_entries()) == len(stored) + 1


def test_one_row_without_key_columns(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([count().alias("c"), max_("s")]), ())
    assert harness.end_batch() == []
    push(harness, ("+I", "a", 1), ("+I", "b", 3))
    assert harness.end_batch() == [("+I", 2, "3")]
    push(harness, ("-D", "b", 3))
    assert harness.end_batch() == [("-U", 2, "3"), ("+U", 1, "1")]
    push(harness, ("-D", "a", 1))
    assert harness.end_batch() == [("-D", 1, "1")]


def test_a_long_list_of_values_is_read_only_where_its_extreme_goes(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([min_("n"), max_("n")]))
    push(harness, *[("+I", "a", n) for n in range(3000)])
    assert harness.end_batch() == [("+I", "a", 0, 2999)]
    push(harness, *[("-D", "a", n) for n in range(1, 2999)])
    assert harness.end_batch() == []
    push(harness, ("-D", "a", 2999), ("+I", "a", 7))
    assert harness.end_batch() == [("-U", "a", 0, 2999), ("+U", "a", 0, 7)]
    push(harness, ("-D", "a", 0))
    assert harness.end_batch() == [("-U", "a", 0, 7), ("+U", "a", 7, 7)]
    push(harness, ("-D", "a", 7))
    assert harness.end_batch() == [("-D", "a", 7, 7)]
    assert harness.state_entries() == {}


def test_only_the_values_of_keys_that_lost_their_extreme_are_written_anew(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([max_("n")]))
    keys = "abcd"
    push(harness, *[("+I", key, n) for key in keys for n in range(5)])
    harness.end_batch()
    for loser in keys:
        push(harness, ("-D", loser, 4), *[("+I", key, 0) for key in keys])
        assert harness.end_batch() == [("-U", loser, 4), ("+U", loser, 3)]
    push(harness, *[("-D", key, 3) for key in keys])
    assert [row for row in harness.end_batch() if row[0] == "+U"] == [("+U", key, 2) for key in keys]


def test_values_that_come_and_go_do_not_pile_up(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([max_("n")]))
    push(harness, ("+I", "a", 1_000_000))
    sizes = []
    for batch in range(5):
        push(harness, *[("+I", "a", batch * 100 + n) for n in range(100)])
        harness.end_batch()
        push(harness, *[("-D", "a", batch * 100 + n) for n in range(100)])
        harness.end_batch()
        sizes.append(sum(map(len, harness.state_entries().values())))
    assert max(sizes) < 12_000  # 1,000 rows were written, 24 bytes each
    assert harness.output == [("+I", "a", 1_000_000)]


AGGREGATES: list[Aggregate] = [
    count().alias("c"),
    count("n").where("flag").alias("f"),
    sum_("n"),
    avg("n").where("flag").alias("mean"),
    min_("n"),
    max_("s").where("flag").alias("m"),
]
VALUES = st.tuples(
    st.sampled_from(["a", "b", None]),
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from(["x", "y", "zz"]),
    st.none() | st.booleans(),
)
STEPS = st.lists(st.lists(st.one_of(VALUES, st.integers(0, 10**6)), max_size=40), min_size=3, max_size=4)
"""Batches of steps: a row to insert, or a number that picks a row to take back."""


def expected_table(live: list[Row]) -> dict[Any, Row]:
    """The aggregation of the rows that are there, by plain Python."""
    table = {}
    for key in {row[0] for row in live}:
        rows = [row for row in live if row[0] == key]
        chosen = [row for row in rows if row[3]]
        numbers = [row[1] for row in rows if row[1] is not None]
        flagged = [row[1] for row in chosen if row[1] is not None]
        texts = [row[2] for row in chosen if row[2] is not None]
        table[key] = (
            len(rows),
            len(flagged),
            sum(numbers) if numbers else None,
            sum(flagged) / len(flagged) if flagged else None,
            min(numbers, default=None),
            max(texts, default=None),
        )
    return table


def apply(table: dict[Any, Row], output: list[Row]) -> None:
    """Play a changelog onto ``table``; every change must fit what is there."""
    for kind, key, *values in output:
        if kind in ("-U", "-D"):
            assert table.pop(key) == tuple(values)
        else:
            assert key not in table
            table[key] = tuple(values)


@settings(max_examples=3)  # an example is eight micro-batches, each opens and commits a store
@given(steps=STEPS, insert_only=st.booleans())
def test_netted_output_is_the_aggregation_of_what_is_there(steps: list[list[Any]], insert_only: bool) -> None:
    """Both modes emit the same and store the same bytes; the state goes on at other parallelisms."""
    options: dict[str, Any] = {"key": ["k"], "changelog": not insert_only}
    harnesses = [
        OperatorHarness(GroupAggregate(AGGREGATES), SCHEMA, async_enabled=enabled, **options)
        for enabled in (False, True)
    ]
    live: list[Row] = []
    tables: list[dict[Any, Row]] = [{}, {}]
    for index, batch in enumerate(steps):
        if index == 2:
            harnesses[1] = harnesses[1].restore(harnesses[1].snapshot(), parallelism=3)
        for step in batch:
            if isinstance(step, tuple):
                live.append(step)
                kind, row = "+I", step
            elif live and not insert_only:
                kind, row = "-D", live.pop(step % len(live))
            else:
                continue
            for harness in harnesses:
                harness.push([row], kind=kind)
        outputs = [harness.end_batch() for harness in harnesses]
        assert Counter(outputs[0]) == Counter(outputs[1])
        if index < 2:
            assert outputs[0] == outputs[1]
        for table, output in zip(tables, outputs, strict=True):
            apply(table, output)
            assert table == expected_table(live)
        assert harnesses[0].state_entries() == harnesses[1].state_entries()
    for harness in harnesses:
        harness.close()


def test_modes_agree_byte_by_byte() -> None:
    results = []
    for enabled in (False, True):
        with OperatorHarness(GroupAggregate(AGGREGATES), SCHEMA, ["k"], async_enabled=enabled) as harness:
            harness.push([(key, n, str(n % 7), n % 3 > 0) for n in range(200) for key in ("a", "b", None)])
            harness.end_batch()
            harness.push([("a", n, str(n % 7), n % 3 > 0) for n in range(150, 200)], kind="-D")
            harness.push([("c", 1, "x", None)])
            harness.end_batch()
            results.append((harness.output, harness.state_entries()))
    assert len(results[0][0]) == 6
    assert results[0] == results[1]


def test_a_checkpoint_without_values_is_refused_for_a_changelog() -> None:
    """An insert-only minimum keeps no values to go back to."""
    with OperatorHarness(GroupAggregate([min_("n")]), SCHEMA, ["k"], changelog=False) as harness:
        push(harness, ("+I", "a", 1))
        harness.end_batch()
        with pytest.raises(StateDeclarationError, match="'accumulators': the declaration disagrees"):
            harness.restore(harness.snapshot(), changelog=True)


@pytest.mark.parametrize(
    ("operator", "key", "message"),
    [
        (GroupAggregate([sum_("nope")]), ("k",), "needs a column 'nope'"),
        (GroupAggregate([count().alias("k")]), ("k",), "two output columns have the name 'k'"),
        (GroupAggregate(), (), "neither key columns nor aggregates"),
    ],
)
def test_wrong_declarations(operator: GroupAggregate, key: tuple[str, ...], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        operator.bind([InputSpec(SCHEMA, key)])


def test_an_argument_that_is_no_aggregate() -> None:
    with pytest.raises(SchemaError, match="'n' is not an aggregate"):
        GroupAggregate(["n"])  # type: ignore[list-item]
    with pytest.raises(SchemaError, match="is not an aggregate; create one with udtaf"):
        GroupTableAggregate([count()])  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [count(), count, "n", (one for one in [count()])])
def test_aggregates_that_are_no_list(given: Any) -> None:
    with pytest.raises(
        SchemaError, match="GroupAggregate: aggregates is .*; give a list, even for a single aggregate"
    ):
        GroupAggregate(given)


def test_a_sum_that_overflows_names_the_column(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([sum_("n")]))
    push(harness, ("+I", "a", 2**62))
    harness.end_batch()
    push(harness, ("+I", "a", 2**62))
    with pytest.raises(AsyncStateError, match="column 'n' does not fit int64"):
        harness.end_batch()


def test_each_row_changes_the_result(open_harness: Any) -> None:
    harness = open_harness(GroupAggregate([count().alias("c"), max_("n")], emit="each"))
    push(harness, ("+I", "a", 1), ("+I", "b", 7), ("+I", "a", 2), ("-D", "a", 2))
    assert harness.end_batch() == [
        ("+I", "a", 1, 1), ("+I", "b", 1, 7),
        ("-U", "a", 1, 1), ("+U", "a", 2, 2),
        ("-U", "a", 2, 2), ("+U", "a", 1, 1),
    ]  # fmt: skip
    push(harness, ("-D", "b", 9), ("+I", "b", 9), ("-D", "a", 1), ("+I", "a", 5))
    assert harness.end_batch() == [("-D", "a", 1, 1), ("+I", "a", 1, 5)]
    push(harness, ("-D", "b", 3), ("+I", "b", 3), ("+I", "b", 9), ("+I", "b", 3))
    assert harness.end_batch() == [
        ("-U", "b", 1, 7), ("+U", "b", 2, 9),
        ("-U", "b", 2, 9), ("+U", "b", 3, 9),
    ]  # fmt: skip


@settings(deadline=None)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=8), max_size=4
    ),
    async_enabled=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_each_row_nets_to_the_net_change(batches: Any, async_enabled: bool, random: Any) -> None:
    """Rows of any order within a micro-batch: retractions of rows that are there by its end."""
    aggregates = [count().alias("c"), sum_("n"), max_("n"), count("n").distinct().alias("values")]
    netted = []
    for emit in ("net", "each"):
        rows: Counter[Any] = Counter()
        operator = GroupAggregate(aggregates, emit=emit)  # type: ignore[arg-type]
        with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
            for batch in batches:
                changes = []
                for key, n, added in batch:
                    row = (key, n, None, None)
                    if not added and not rows[row]:
                        continue
                    rows[row] += 1 if added else -1
                    changes.append(("+I" if added else "-D", row))
                random.shuffle(changes)
                harness.push([row for _, row in changes], kinds=[kind for kind, _ in changes])
                harness.end_batch()
            netted.append(net(harness.output))
        assert min(netted[-1].values(), default=0) >= 0
    assert netted[0] == netted[1]


def test_first_last_and_collected_values_skip_nulls(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    operator = GroupAggregate([first_value("v"), last_value("v"), collect("v")])
    with OperatorHarness(operator, schema, ["k"], async_enabled=async_enabled, changelog=False) as harness:
        harness.push([(1, None), (1, 2), (1, 3), (1, None), (2, None)])
        assert harness.end_batch() == [("+I", 1, 2, 3, [2, 3]), ("+I", 2, None, None, None)]


def test_an_aggregate_of_everything_has_no_row_as_long_as_there_are_none(async_enabled: bool) -> None:
    schema = pa.schema([("v", pa.int64())])
    with OperatorHarness(GroupAggregate([count()]), schema, [], async_enabled=async_enabled) as harness:
        assert harness.end_batch() == []
        harness.push([(5,)])
        assert harness.end_batch() == [("+I", 1)]
        harness.push([(5,)], kind="-D")
        assert harness.end_batch() == [("-D", 1)]
