"""``sequence`` and ``drop_stale``: the order of a key's changes, and rows that come once more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import RecordOperator, ValueStateDescriptor
from asyncstate.changelog import Changelog
from asyncstate.errors import JobError, SchemaError
from asyncstate.operator import OutputSpec
from asyncstate.testing import OperatorHarness, net
from operators import Deduplicate, GroupAggregate, Join, Rank, asc, count
from tests.examples import at_most

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("lsn", pa.int64()), ("part", pa.int32())])
SIZES = pytest.mark.parametrize("size", ["1", "2", "100"])


class Seen(RecordOperator):
    """Puts out each row with how many its key had before."""

    def bind(self, inputs: Any) -> OutputSpec:
        return OutputSpec("k bigint, v string, number bigint", changes=Changelog.retract())

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64(), default=0))

    def process(self, row: Any, ctx: Any) -> Any:
        def emit_results(before: int) -> Any:
            ctx.emit(row.k, row.v, before, kind=ctx.row_kind)
            return self.count.async_update(before + 1)

        return self.count.async_value().then_compose(emit_results)


@pytest.fixture
def start(async_enabled: bool) -> Iterator[Callable[..., OperatorHarness]]:
    made: list[OperatorHarness] = []

    def run(operator: Any, **settings: Any) -> OperatorHarness:
        settings = {"sequence": "lsn", "inputs": SCHEMA, "key": ["k"], **settings}
        made.append(
            OperatorHarness(
                operator, settings.pop("inputs"), settings.pop("key"), async_enabled=async_enabled, **settings
            )
        )
        return made[-1]

    yield run
    for harness in made:
        harness.close()


@SIZES
def test_the_newest_row_by_sequence_is_the_last(start: Any, size: str) -> None:
    harness = start(Deduplicate(keep="last", time="processing"), options={"async-state.bundle-size": size})
    harness.push([(1, "c", 3, 0), (2, "x", 9, 0), (1, "a", 1, 0), (1, "b", 2, 0), (2, "w", None, 0)])
    last = {row[1]: row[2] for row in harness.end_batch() if row[0] in ("+I", "+U")}
    assert last == {1: "c", 2: "x"}


@SIZES
def test_updates_without_retractions_come_in_their_order(start: Any, size: str) -> None:
    right = pa.schema([("k", pa.int64()), ("w", pa.int64())])
    harness = start(
        Join("inner", left_unique="join_key"),
        inputs=[SCHEMA, right],
        key=["k", "k"],
        sequence=[["lsn", "part"], None],
        options={"async-state.bundle-size": size},
    )
    harness.push([(1, 0), (2, 0), (3, 0)], input=1)
    rows = [
        ("+U", (1, "c", 3, 1)), ("-D", (2, "y", 5, 0)), ("+U", (1, "b", 3, 0)), ("+I", (1, "a", 1, 9)),
        ("+I", (2, "x", 4, 0)), ("+U", (2, "y", 4, 1)), ("-D", (3, "z", 3, 0)), ("+I", (3, "z", 2, 0)),
    ]  # fmt: skip
    harness.push([row for _, row in rows], kinds=[kind for kind, _ in rows])
    assert net((row[0], row[2]) for row in harness.end_batch()) == {("c",): 1}


@pytest.mark.parametrize("unique", ["join_key", None])
@pytest.mark.parametrize("cuts", [[], [1], [1, 2], [2]])
def test_a_row_that_differs_in_its_sequence_alone_takes_the_place_of_the_one_before(
    start: Any, unique: Any, cuts: list[int]
) -> None:
    right = pa.schema([("k", pa.int64()), ("w", pa.int64())])
    harness = start(
        Join("inner", left_unique=unique), inputs=[SCHEMA, right], key=["k", "k"], sequence=["lsn", None]
    )
    harness.push([(1, 0)], input=1)
    changes = [("+I", (1, "a", 1, 0)), ("-U", (1, "a", 2, 0)), ("+U", (1, "a", 3, 0))]
    for begin, end in zip([0, *cuts], [*cuts, len(changes)], strict=True):
        harness.push([row for _, row in changes[begin:end]], kinds=[kind for kind, _ in changes[begin:end]])
        harness.end_batch()
    assert net(harness.output) == {(1, "a", 3, 0, 1, 0): 1}


def test_a_record_operator_gets_the_rows_of_a_key_in_order(start: Any) -> None:
    harness = start(Seen(), parallelism=2)
    harness.push([(k, f"{lsn}", lsn, 0) for lsn in (5, 1, 4, 2, 3) for k in range(4)])
    found = harness.end_batch()
    for k in range(4):
        assert [row[2:] for row in found if row[1] == k] == [(str(n + 1), n) for n in range(5)]
    harness.push([(0, "8", 8, 0), (0, "7", 7, 0), (0, "7", 7, 0)], kinds=["+U", "+U", "-U"])
    assert harness.end_batch() == [("-U", 0, "7", 5), ("+U", 0, "7", 6), ("+U", 0, "8", 7)]


@SIZES
def test_rows_that_were_seen_are_dropped_and_counted(start: Any, size: str) -> None:
    harness = start(Seen(), drop_stale=True, options={"async-state.bundle-size": size})
    harness.push([(1, "b", 2, 0), (1, "a", 1, 0), (2, "x", 7, 0), (1, "b", 2, 0)])
    assert sorted(harness.end_batch()) == [("+I", 1, "a", 0), ("+I", 1, "b", 1), ("+I", 2, "x", 0)]
    assert harness.statistics()["counter.stale_rows_dropped"] == 1
    restarted = harness.restore(harness.snapshot(), parallelism=3)
    restarted.push([(1, "b", 2, 0), (1, "c", 3, 0), (1, "a", 1, 0), (2, "w", None, 0), (3, "n", None, 0)])
    assert sorted(restarted.end_batch()) == [("+I", 1, "c", 2), ("+I", 3, "n", 0)]
    assert restarted.statistics()["counter.stale_rows_dropped"] == 3
    restarted.close()


def test_an_update_has_both_rows_at_one_place_of_the_log(start: Any) -> None:
    harness = start(Seen(), drop_stale=True)
    harness.push([(1, "b", 2, 0), (1, "a", 2, 0), (1, "a", 1, 0)], kinds=["+U", "-U", "+I"])
    assert [row[:3] for row in harness.end_batch()] == [("+I", 1, "a"), ("-U", 1, "a"), ("+U", 1, "b")]
    harness.push([(1, "a", 2, 0), (1, "b", 2, 0)], kinds=["-U", "+U"])
    assert harness.end_batch() == []


histories = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=8), min_size=1, max_size=5
)


@settings(max_examples=at_most(15))
@given(batches=histories, size=st.sampled_from(["1", "3", "100"]), parallelism=st.integers(1, 3))
def test_drop_stale_against_a_dict(batches: list[Any], size: str, parallelism: int) -> None:
    outputs = []
    for enabled in (False, True):
        with OperatorHarness(
            Rank([asc("lsn")], 1_000),
            SCHEMA,
            ["k"],
            sequence="lsn",
            drop_stale=True,
            async_enabled=enabled,
            parallelism=parallelism,
            options={"async-state.bundle-size": size},
            changelog=False,
        ) as harness:
            highest: dict[int, int] = {}
            kept = []
            for rows in batches:
                before = dict(highest)
                for k, lsn in dict.fromkeys(rows):
                    if lsn > before.get(k, -1):
                        kept.append((k, lsn))
                        highest[k] = max(highest.get(k, -1), lsn)
                harness.push([(k, "", lsn, 0) for k, lsn in rows])
                harness.end_batch()
            outputs.append((harness.output, harness.state_entries()))
            assert sorted((row[1], row[3]) for row in harness.output) == sorted(kept)
    assert outputs[0] == outputs[1]


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"sequence": "nothing"}, SchemaError, "has no column 'nothing'"),
    ({"sequence": []}, JobError, "give the name of a column"),
    ({"sequence": ["lsn", "lsn"]}, JobError, "names a column twice"),
    ({"sequence": 3}, JobError, "give the name of a column"),
    ({"sequence": None, "drop_stale": True}, SchemaError, "drop_stale but no sequence"),
    ({"drop_stale": "yes"}, JobError, "give True or False"),
    ({"drop_stale": [True, False]}, JobError, "one of them for each input"),
    (
        {"inputs": pa.schema([("k", pa.int64()), ("lsn", pa.list_(pa.int64()))])},
        SchemaError,
        "has a sequence.*'lsn'",
    ),
    (
        {
            "inputs": pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("lsn", pa.int64())]),
            "event_time": "at",
            "order_by": "at",
            "watermark_delay": 0,
        },
        SchemaError,
        "has a sequence and order_by",
    ),
]


@pytest.mark.parametrize(("settings", "error", "text"), BAD)
def test_what_no_input_can_have_is_refused(start: Any, settings: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        start(Seen(), **settings)


def test_with_two_inputs_each_has_its_own(start: Any) -> None:
    with pytest.raises(JobError, match="sequence needs one entry for each"):
        start(Join("inner"), inputs=[SCHEMA, SCHEMA], key=["k", "k"], sequence="lsn")
    harness = start(
        Join("inner"), inputs=[SCHEMA, SCHEMA], key=["k", "k"], sequence=["lsn", None], drop_stale=True
    )
    harness.push([(1, "a", 1, 0)])
    harness.push([(1, "b", 1, 0), (1, "b", 1, 0)], input=1)
    assert len(harness.end_batch()) == 2
    harness.push([(1, "a", 1, 0)])
    assert harness.end_batch() == []


@pytest.mark.parametrize("changelog", [False, True])
def test_rows_that_differ_in_a_column_that_is_not_needed_are_different_rows(
    async_enabled: bool, changelog: bool
) -> None:
    """A log may have several rows at one position."""
    with OperatorHarness(
        GroupAggregate([count().alias("n")]),
        SCHEMA,
        ["k"],
        sequence="lsn",
        drop_stale=True,
        changelog=changelog,
        async_enabled=async_enabled,
    ) as harness:
        harness.push([(1, "a", 5, 0), (1, "b", 5, 0), (1, "b", 5, 0)])
        assert harness.end_batch() == [("+I", 1, 2)]
        assert harness.statistics()["counter.stale_rows_dropped"] == 1
