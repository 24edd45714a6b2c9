"""ChangelogNormalize row by row: what it puts out, what it keeps, what it counts, what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import StateTtl
from asyncstate.changelog import RETRACT
from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.operator import InputSpec
from asyncstate.testing import OperatorHarness, net
from operators import Deduplicate
from operators.upsert.normalize import ChangelogNormalize
from tests.examples import at_most
from tests.operators.direct import DirectRunner

SCHEMA = pa.schema([("v", pa.int64()), ("k", pa.string()), ("s", pa.list_(pa.int64()))])
MINUTE = 60_000_000
Row = tuple[Any, ...]
Push = Callable[..., list[Row]]


class Pushing:
    """A harness whose micro-batches are given as rows with their kinds in front."""

    def __init__(self, harness: OperatorHarness) -> None:
        self.harness = harness

    def __call__(self, *changes: Row, minutes: int = 0) -> list[Row]:
        """``minutes`` after the micro-batch before."""
        self.harness.advance_processing_time(minutes * MINUTE)
        if changes:
            self.harness.push([change[1:] for change in changes], kinds=[change[0] for change in changes])
        return self.harness.end_batch()

    @property
    def without_row(self) -> float:
        return self.harness.statistics().get("counter.deletes_without_row", 0)


@pytest.fixture
def start(async_enabled: bool) -> Iterator[Callable[..., Pushing]]:
    made: list[OperatorHarness] = []

    def run(operator: Any = None, schema: pa.Schema = SCHEMA, key: Any = "k", **options: Any) -> Pushing:
        made.append(
            OperatorHarness(
                operator or ChangelogNormalize(), schema, key, async_enabled=async_enabled, **options
            )
        )
        return Pushing(made[-1])

    yield run
    for harness in made:
        harness.close()


# -- what is put out ------------------------------------------------------------------------------------------


def test_upserts_become_a_full_changelog(start: Callable[..., Pushing]) -> None:
    push = start()
    assert push(("+U", 1, "a", None), ("+I", 2, "b", [1])) == [("+I", 1, "a", None), ("+I", 2, "b", [1])]
    assert push(("+I", 3, "a", None), ("+U", 2, "b", [1])) == [("-U", 1, "a", None), ("+U", 3, "a", None)]
    assert push(("+U", 2, "b", [2])) == [("-U", 2, "b", [1]), ("+U", 2, "b", [2])]
    assert push(("-D", 2, "b", [2]), ("-D", 3, "a", None)) == [("-D", 2, "b", [2]), ("-D", 3, "a", None)]
    assert push.harness.state_entries() == {}


def test_a_deleted_row_is_put_out_as_it_was_stored(start: Callable[..., Pushing]) -> None:
    push = start()
    push(("+I", 1, "a", [7]))
    assert push(("-D", None, "a", None)) == [("-D", 1, "a", [7])]
    assert push(("+I", 1, "a", [7])) == [("+I", 1, "a", [7])]


def test_the_net_change_of_a_micro_batch(start: Callable[..., Pushing]) -> None:
    push = start()
    assert push(
        ("+I", 1, "b", None), ("+I", 1, "a", None), ("-D", None, "a", None), ("+U", 2, "b", None)
    ) == [("+I", 2, "b", None)]
    assert push(("-D", None, "b", None), ("+I", 2, "b", None)) == []
    assert push(("-D", None, "b", None), ("+I", 3, "b", None)) == [("-U", 2, "b", None), ("+U", 3, "b", None)]
    assert push.without_row == 0


def test_the_row_before_an_update_is_ignored(start: Callable[..., Pushing]) -> None:
    push = start()
    assert push(("-U", 9, "a", None)) == []
    assert push.harness.state_entries() == {}
    push(("+I", 1, "a", None))
    assert push(("-U", 1, "a", None)) == []
    assert push(("-U", 1, "a", None), ("+U", 2, "a", None), ("-U", 2, "a", None)) == [
        ("-U", 1, "a", None),
        ("+U", 2, "a", None),
    ]
    assert push.without_row == 0


def test_changes_that_are_delivered_again_vanish(start: Callable[..., Pushing]) -> None:
    push = start()
    log = [("+I", 1, "a", None), ("-U", 1, "a", None), ("+U", 2, "a", None)]
    assert push(*log, *log) == [("+I", 2, "a", None)]
    assert push(*log) == []
    deletion = ("-D", 2, "a", None)
    assert push(deletion, deletion) == [deletion]
    assert push.without_row == 1
    assert push(deletion) == []
    assert push.without_row == 1


def test_without_update_before(start: Callable[..., Pushing]) -> None:
    push = start(ChangelogNormalize(emit_update_before=False))
    push(("+I", 1, "a", None))
    assert push(("+U", 2, "a", None)) == [("+U", 2, "a", None)]
    assert push(("-D", None, "a", None)) == [("-D", 2, "a", None)]


@pytest.mark.parametrize("key", [["k", "v", "n"], ["n", "k", "v"]])
def test_rows_that_are_all_key(start: Callable[..., Pushing], key: list[str]) -> None:
    push = start(schema=pa.schema([("v", pa.int64()), ("k", pa.string()), ("n", pa.int64())]), key=key)
    row = (1, "a", None)
    assert push(("+I", *row), ("+I", *row), ("+I", 2, "a", None)) == [("+I", *row), ("+I", 2, "a", None)]
    assert push(("+U", *row), ("-D", 2, "a", None)) == [("-D", 2, "a", None)]
    assert push(("-D", *row)) == [("-D", *row)]
    assert push.harness.state_entries() == {}


def test_null_keys_and_no_key(start: Callable[..., Pushing]) -> None:
    push = start()
    push(("+I", 1, None, None))
    assert push(("-D", None, None, None)) == [("-D", 1, None, None)]
    table = start(key=[])
    assert table(("+I", 1, "a", None), ("+I", 2, "b", None)) == [("+I", 2, "b", None)]
    assert table(("-D", None, None, None)) == [("-D", 2, "b", None)]


# -- condition ------------------------------------------------------------------------------------------------

IS_LARGE = pytest.mark.parametrize(
    "condition",
    [pc.field("v") > 10, lambda batch: pc.greater(batch["v"], 10)],
    ids=["expression", "function"],
)


@IS_LARGE
def test_a_condition_sees_each_row_by_itself(start: Callable[..., Pushing], condition: Any) -> None:
    push = start(ChangelogNormalize(condition))
    small, large, larger = ((v, "a", None) for v in (1, 11, 12))
    assert push(("+I", *small)) == []
    assert push.harness.state_entries() == {}
    assert push(("+U", *large)) == [("+I", *large)]
    assert push(("+U", *larger)) == [("-U", *large), ("+U", *larger)]
    assert push(("+U", *small)) == [("-D", *larger)]
    assert push.harness.state_entries() == {}
    assert push(("+U", *large)) == [("+I", *large)]
    assert push(("+U", None, "a", None)) == [("-D", *large)]  # null is not true
    assert push(("-D", *small)) == []
    assert push.without_row == 0  # its row may be missing by right
    assert push(("+U", *large), ("+I", 12, "b", None), ("+U", *small)) == [("+I", 12, "b", None)]


@IS_LARGE
def test_the_row_of_a_deletion_is_not_judged(start: Callable[..., Pushing], condition: Any) -> None:
    push = start(ChangelogNormalize(condition))
    push(("+I", 11, "a", None))
    assert push(("-D", None, "a", None)) == [("-D", 11, "a", None)]


def test_another_condition_holds_from_then_on(start: Callable[..., Pushing]) -> None:
    push = start(ChangelogNormalize(pc.field("v") > 10))
    push(("+I", 11, "a", None), ("+I", 5, "b", None))
    again = Pushing(
        push.harness.restore(push.harness.snapshot(), operator=ChangelogNormalize(pc.field("v") < 10))
    )
    assert again(("-D", None, "b", None), ("+U", 12, "a", None)) == [("-D", 11, "a", None)]
    again.harness.close()


def test_the_rows_of_another_operator_are_refused(start: Callable[..., Pushing]) -> None:
    push = start(Deduplicate("last", "processing"), changelog=False)
    push(("+I", 1, "a", None), ("+I", 2, "b", None))
    with pytest.raises(StateDeclarationError, match="operator was Deduplicate and is ChangelogNormalize"):
        push.harness.restore(push.harness.snapshot(), operator=ChangelogNormalize(), changelog=True)


# -- time to live ---------------------------------------------------------------------------------------------

TTL = StateTtl("10 minutes")


def test_an_expired_key_counts_as_unseen(start: Callable[..., Pushing]) -> None:
    push = start(ChangelogNormalize(ttl=TTL))
    row = (1, "a", None)
    push(("+I", *row))
    assert push(("+U", *row), minutes=9) == [("-U", *row), ("+U", *row)]
    assert push(("+U", 2, "a", None), minutes=10) == [("+I", 2, "a", None)]
    assert push(("-D", 2, "a", None), minutes=10) == []
    assert push.without_row == 1


def test_a_row_that_is_deleted_and_comes_again_is_put_out(start: Callable[..., Pushing]) -> None:
    push = start(ChangelogNormalize(ttl=TTL))
    push(("+I", 1, "a", None))
    changes = push(("-D", None, "a", None), ("+I", 1, "a", None), minutes=9)
    assert changes == [("-U", 1, "a", None), ("+U", 1, "a", None)]
    assert push(("-D", None, "a", None), minutes=9) == [("-D", 1, "a", None)]


def test_keys_leave_the_disk(start: Callable[..., Pushing]) -> None:
    push = start(ChangelogNormalize(pc.field("v") >= 0, ttl=TTL))
    push(*(("+I", key, f"key {key}", None) for key in range(50)))
    for _ in range(3):
        push(minutes=5)
    assert push.harness.state_entries() == {}


def test_a_time_to_live_in_event_time(start: Callable[..., Pushing]) -> None:
    timed = pa.schema([("k", pa.string()), ("t", pa.timestamp("us"))])
    push = start(ChangelogNormalize(ttl=StateTtl("10 minutes", time="event")), timed, event_time="t")
    push(("+I", "a", 1 * MINUTE), ("+I", "b", 5 * MINUTE), ("+U", "a", 2 * MINUTE))
    push.harness.advance_watermark(12 * MINUTE)
    assert push(("-D", "a", 12 * MINUTE), ("-D", "b", 12 * MINUTE)) == [("-D", "b", 5 * MINUTE)]
    assert push.without_row == 1


# -- against a plain table ------------------------------------------------------------------------------------

changes_of_keys = st.tuples(
    st.sampled_from(["+I", "+U", "+U", "-U", "-D", "-D"]),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from("ab"),
)


def expected_of(
    table: dict[str, Row], changes: Sequence[Row], passes: Callable[[Row], bool], update_before: bool
) -> list[Row]:
    """Puts the changes into ``table``, one bundle: the net change of each key, in order of the keys' first rows."""
    out: list[Row] = []
    before = dict(table)
    for kind, *values in changes:
        row = (*values, [])
        if kind == "-D" or (kind != "-U" and not passes(row)):
            table.pop(row[1], None)
        elif kind != "-U":
            table[row[1]] = row
    for key in dict.fromkeys(change[2] for change in changes):
        old, new = before.get(key), table.get(key)
        if old == new:
            continue
        if old is not None and (new is None or update_before):
            out.append(("-D" if new is None else "-U", *old))
        if new is not None:
            out.append(("+I" if old is None else "+U", *new))
    return out


def missed(before: dict[str, Row], changes: Sequence[Row]) -> int:
    """How many deletions find no row, row by row."""
    there, count = set(before), 0
    for kind, _, key in changes:
        if kind == "-D":
            count += key not in there
            there.discard(key)
        elif kind != "-U":
            there.add(key)
    return count


@settings(max_examples=at_most(60))
@given(
    st.lists(st.lists(changes_of_keys, max_size=10), min_size=1, max_size=4),
    st.sampled_from([1, 3, 500_000]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_bundle_gives_its_net_change(
    batches: list[list[Row]], size: int, conditional: bool, update_before: bool, deferred: bool
) -> None:
    """With bundles of one row this is what is put out row by row."""
    operator = ChangelogNormalize(pc.field("v") >= 1 if conditional else None, update_before)
    runner = DirectRunner(operator, InputSpec(SCHEMA, ("k",), changes=RETRACT), deferred=deferred)
    table: dict[str, Row] = {}
    for batch in batches:
        count = missed(table, batch)
        expected = [
            row
            for begin in range(0, len(batch), size)
            for row in expected_of(
                table,
                batch[begin : begin + size],
                lambda row: not conditional or (row[0] or 0) >= 1,
                update_before,
            )
        ]
        rows, kinds = [(*values, []) for _, *values in batch], [kind for kind, *_ in batch]
        assert runner.run(rows, kinds, 0, size) == expected
        if not conditional:
            assert runner.counters["deletes_without_row"] == count
        assert len(runner.sink.contents()) == len(table)


@pytest.mark.parametrize("size", ["1", "3", "500000"])
def test_any_order_with_a_sequence_over_restarts_and_partitions(
    start: Callable[..., Pushing], size: str
) -> None:
    schema = pa.schema([("v", pa.int64()), ("k", pa.string()), ("seq", pa.int64())])
    push = start(schema=schema, sequence="seq", options={"async-state.bundle-size": size}, max_parallelism=6)
    table: dict[str, Row] = {}
    shown: list[Row] = []
    for parallelism in (1, 3, 2):
        base = len(push.harness.output) + parallelism * 1000
        changes = []
        for number in range(60):
            kind = ("+U", "-D", "+I", "-U")[number * 7 % 11 % 4]
            row = (number % 4, f"key {number * 5 % 9}", base + number)
            changes.append((kind, *row) if kind != "-D" else (kind, None, *row[1:]))
            if kind == "-D":
                table.pop(row[1], None)
            elif kind != "-U":
                table[row[1]] = row
        harness = push.harness.restore(push.harness.snapshot(), parallelism=parallelism)
        shown += Pushing(harness)(*sorted(changes, key=lambda change: change[3] * 37 % 61))
        assert net(shown) == dict.fromkeys(table.values(), 1)
        assert len(harness.state_entries()) == len(table)
        push.harness.close()
        push.harness = harness
    push.harness.close()


# -- refusals -------------------------------------------------------------------------------------------------


def test_what_is_refused(start: Callable[..., Pushing]) -> None:
    with pytest.raises(
        SchemaError, match="ChangelogNormalize: condition is 'v > 1'; give a pyarrow expression"
    ):
        ChangelogNormalize("v > 1")
    with pytest.raises(
        StateDeclarationError, match=("ChangelogNormalize: ttl='an hour' is not a time to live")
    ):
        ChangelogNormalize(ttl="an hour")  # type: ignore[arg-type]
    for condition in (pc.field("x") > 1, pc.field("v") + 1):
        with pytest.raises(SchemaError, match="ChangelogNormalize: the condition .* the columns of input 0"):
            start(ChangelogNormalize(condition))
    push = start(ChangelogNormalize(lambda batch: batch["v"]))
    with pytest.raises(
        OperatorError, match="ChangelogNormalize: the condition returned 1 values of type int64"
    ):
        push(("+I", 1, "a", None))
