"""Join against tables kept in plain Python, for all join types, layouts and kinds of input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import Changelog
from asyncstate.testing import OperatorHarness, net
from operators.join import matches
from operators.join.join_operator import Join
from operators.join.long_lists import LONG
from tests.examples import at_most
from tests.operators.join_runner import KINDS, UNIQUES, Change, Row, Runner
from tests.operators.set_model import net_of_set
from tests.properties.models import joined


class Table:
    """One input's table, changed row by row."""

    def __init__(self, unique: Any, null_safe: bool) -> None:
        self.unique = unique
        self.null_safe = null_safe
        self.rows: list[Row] = []
        self.dropped = 0

    def _same(self, one: Row, other: Row) -> bool:
        if self.unique is None:
            return one == other
        return one[: 1 if self.unique == "join_key" else 2] == other[: 1 if self.unique == "join_key" else 2]

    def find(self, row: Row) -> Row | None:
        return next((stored for stored in self.rows if self._same(stored, row)), None)

    def end_bundle(self, before: list[Row], changes: Sequence[Change]) -> None:
        """The rows of a bundle count as a set, whatever ``apply`` has made of them one by one."""
        alone = [(kind, row) for kind, row in changes if row[0] is None and not self.null_safe]
        matching = [change for change in changes if change not in alone]
        width = 1 if self.unique == "join_key" else 2
        with_null = [row for row in self.rows if row[0] is None] if not self.null_safe else []
        stored = [row for row in before if row[0] is not None or self.null_safe]
        net = net_of_set(stored, matching, None if self.unique is None else lambda row: row[:width])
        self.rows = [stored[at] for at in net.stays] + [matching[at][1] for at in net.comes]
        self.rows += with_null  # they never match and are believed, one by one
        self.dropped += len(net.missing)

    def apply(self, kind: str, row: Row) -> None:
        stored = self.find(row)
        if kind in ("+I", "+U"):
            if self.unique is not None and stored is not None and (row[0] is not None or self.null_safe):
                self.rows.remove(stored)
            self.rows.append(row)
        elif stored is not None:
            self.rows.remove(stored)


steps = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.lists(
            st.tuples(
                st.sampled_from(["insert", "insert", "upsert", "delete", "update", "wrong", "touch"]),
                st.sampled_from([None, 0, 0, 0, 1, 2]),
                st.integers(0, 3),
                st.integers(0, 2),
            ),
            min_size=1,
            max_size=8,
        ),
    ),
    max_size=8,
)


def changes_of(table: Table, actions: Sequence[Any], insert_only: bool, side: int) -> list[Change]:
    """A changelog out of random actions, applied to ``table``; wrong retractions have a key."""
    changes: list[Change] = []
    before = list(table.rows)

    def put(kind: str, row: Row) -> None:
        changes.append((kind, row))
        table.apply(kind, row)

    for action, key, number, value in actions:
        row = (key, number, f"v{value}" if side == 0 else value)
        known = [stored for stored in table.rows if stored[0] == key]
        old = known[number % len(known)] if known else None
        if action == "insert" or insert_only:
            if table.unique is None or table.find(row) is None:
                put("+I", row)
        elif action == "upsert" and key is not None:
            put("+U", row)
        elif action == "wrong" and key is not None:
            put("-D", row)
        elif action == "delete" and old is not None:
            put("-D", old)
        elif action == "touch" and old is not None:
            put("-U", old)
            put("+U", old)
        elif action == "update" and old is not None:
            put("-U", old)
            put("+U", (key, old[1], row[2]))
    table.end_bundle(before, changes)
    return changes


def check_against_tables(
    join: Join,
    steps: Any,
    changelog: Sequence[bool],
    condition: Any = None,
    null_safe: bool = False,
    long: int = LONG,
) -> Runner:
    runner = Runner(join, changelog=changelog, long=long)
    tables = [Table(unique, null_safe) for unique in join.unique]
    output: list[Row] = []
    for side, actions in steps:
        changes = changes_of(tables[side], actions, not changelog[side], side)
        if not changes:
            continue
        out = runner.run(side, changes)
        output += [(kind, *row) for kind, row in out]
        there = [Counter(table.rows) for table in tables]
        expected = joined(join.kind, there, [lambda row: row[:1]] * 2, (3, 3), condition, null_safe)
        assert net(output, in_order=True) == expected
        assert runner.dropped.value == tables[0].dropped + tables[1].dropped
        if join.kind not in ("inner", "semi", "anti"):
            assert {kind for kind, _ in out} <= {"+I", "-D"}
    return runner


def on_size(left: Row, right: Row) -> bool:
    return bool(left[1] <= right[2])


@pytest.mark.parametrize("conditional", [False, True], ids=["equi", "condition"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(25), deadline=None)
@given(
    steps=steps,
    unique=st.tuples(st.sampled_from(UNIQUES), st.sampled_from(UNIQUES)),
    changelog=st.tuples(st.booleans(), st.booleans()),
    long=st.sampled_from([LONG, 0, 1, 2]),
)
def test_net_output_is_the_join_of_both_tables(
    kind: Any, conditional: bool, steps: Any, unique: Any, changelog: Any, long: int
) -> None:
    condition = pc.field("id") <= pc.field("w") if conditional else None
    join = Join(kind, condition, left_unique=unique[0], right_unique=unique[1])
    check_against_tables(join, steps, changelog, on_size if conditional else None, long=long)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(12), deadline=None)
@given(steps=steps, long=st.sampled_from([LONG, 0, 2]))
def test_null_safe_keys_match_null(kind: Any, steps: Any, long: int) -> None:
    join = Join(kind, null_safe=True)
    check_against_tables(join, steps, (True, True), null_safe=True, long=long)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(12), deadline=None)
@given(steps=steps)
def test_pairs_in_small_chunks_give_the_same(kind: Any, steps: Any) -> None:
    outs = []
    for pairs in (1 << 18, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matches, "PAIRS", pairs)
            runner = Runner(Join(kind, pc.field("id") <= pc.field("w")))
            tables = [Table(None, False), Table(None, False)]
            changes = [(side, changes_of(tables[side], actions, False, side)) for side, actions in steps]
            outs.append([runner.run(side, rows) for side, rows in changes if rows])
    assert outs[0] == outs[1]


@pytest.mark.parametrize("kind", ["left", "right", "full", "anti", "mark"])
@pytest.mark.parametrize("size", ["500000", "1"])
def test_a_padded_row_of_a_null_key_is_taken_back_by_what_does_not_show_it(
    kind: Any, size: str, async_enabled: bool
) -> None:
    """An upsert shows only the new row, a -D of upserts only the key, and with a sequence a retraction differs from
    its row."""
    rows = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", pa.int64())])
    others = pa.schema([("j", pa.int64())])
    side = 1 if kind == "right" else 0
    inputs, keys = [[rows, others], [others, rows]][side], [[["k"], ["j"]], [["j"], ["k"]]][side]
    unique = {"right_unique" if side else "left_unique": ["id"]}
    upserts = [[Changelog.upsert("k", "id"), True], [True, Changelog.upsert("k", "id")]][side]
    pads: tuple[Any, ...] = {"anti": (), "mark": (False,)}.get(kind, (None,))

    def out(*row: Any) -> tuple[Any, ...]:
        return (*pads, *row) if side else (*row, *pads)

    options = {"async-state.bundle-size": size}
    with OperatorHarness(
        Join(kind, **unique), inputs, keys, changelog=upserts, async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([(None, 1, 10), (None, 2, 20), (None, 3, 30), (5, 1, 50)], side)
        harness.end_batch()
        harness.push([(None, 1, 11), (None, 2, None), (None, 4, None)], side, kinds=["+U", "-D", "-D"])
        harness.end_batch()
        left = [out(None, 1, 11), out(None, 3, 30), out(5, 1, 50)]
        assert net(harness.output, in_order=True) == Counter(left)
        assert harness.statistics()["counter.retractions_without_state"] == 1
        assert len(harness.state_entries()) == 3
    sequence = [["v", None], [None, "v"]][side]
    with OperatorHarness(
        Join(kind), inputs, keys, sequence=sequence, async_enabled=async_enabled, options=options
    ) as harness:
        harness.push(
            [(None, 1, 1), (None, 1, 2), (None, 2, 3), (None, 2, 4)], side, kinds=["+I"] * 3 + ["-D"]
        )
        harness.end_batch()
        harness.push([(None, 1, 5), (None, 1, 6), (None, 1, 6)], side, kinds=["-D", "-U", "+U"])
        harness.end_batch()
        assert net(harness.output, in_order=True) == Counter([out(None, 1, 6)])
