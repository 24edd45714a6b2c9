"""Join against tables kept in plain Python, for all join types, layouts and kinds of input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.join import matches
from operators.join.regular import Join
from tests.operators.join_runner import KINDS, UNIQUES, Change, Row, Runner
from tests.operators.set_model import net_of_set


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


def expected_join(kind: str, left: list[Row], right: list[Row], matches: Any) -> Counter[Row]:
    pairs = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if matches(a, b)]
    with_left, with_right = {i for i, _ in pairs}, {j for _, j in pairs}
    if kind == "semi":
        return Counter(left[i] for i in with_left)
    if kind == "anti":
        return Counter(row for i, row in enumerate(left) if i not in with_left)
    out = Counter(left[i] + right[j] for i, j in pairs)
    if kind in ("left", "full"):
        out.update(row + (None,) * 3 for i, row in enumerate(left) if i not in with_left)
    if kind in ("right", "full"):
        out.update((None,) * 3 + row for j, row in enumerate(right) if j not in with_right)
    return out


def apply_output(table: Counter[Row], out: Sequence[Change]) -> None:
    """Apply a changelog; taking back what is not there is an error at any point of it."""
    for kind, row in out:
        table[row] += 1 if kind in ("+I", "+U") else -1
        assert table[row] >= 0, (kind, row, out)
        if not table[row]:
            del table[row]


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
    join: Join, steps: Any, changelog: Sequence[bool], matches: Any, null_safe: bool = False
) -> Runner:
    runner = Runner(join, changelog=changelog)
    tables = [Table(unique, null_safe) for unique in join.unique]
    output: Counter[Row] = Counter()
    for side, actions in steps:
        changes = changes_of(tables[side], actions, not changelog[side], side)
        if not changes:
            continue
        out = runner.run(side, changes)
        apply_output(output, out)
        assert output == expected_join(join.kind, tables[0].rows, tables[1].rows, matches)
        assert runner.dropped.value == tables[0].dropped + tables[1].dropped
        if join.kind not in ("inner", "semi", "anti"):
            assert {kind for kind, _ in out} <= {"+I", "-D"}
    return runner


def on_key(left: Row, right: Row) -> bool:
    return left[0] is not None and left[0] == right[0]


def on_key_and_size(left: Row, right: Row) -> bool:
    return on_key(left, right) and left[1] <= right[2]


@pytest.mark.parametrize("conditional", [False, True], ids=["equi", "condition"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(
    steps=steps,
    unique=st.tuples(st.sampled_from(UNIQUES), st.sampled_from(UNIQUES)),
    changelog=st.tuples(st.booleans(), st.booleans()),
)
def test_net_output_is_the_join_of_both_tables(
    kind: Any, conditional: bool, steps: Any, unique: Any, changelog: Any
) -> None:
    condition = pc.field("id") <= pc.field("w") if conditional else None
    join = Join(kind, condition, left_unique=unique[0], right_unique=unique[1])
    check_against_tables(join, steps, changelog, on_key_and_size if conditional else on_key)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(steps=steps)
def test_null_safe_keys_match_null(kind: Any, steps: Any) -> None:
    join = Join(kind, null_safe=True)
    check_against_tables(join, steps, (True, True), lambda a, b: a[0] == b[0], null_safe=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
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
