"""Joins of keys with many rows that change: a change costs what it changes, and nothing else is different."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.changelog import Changelog, ChangelogMode
from asyncstate.errors import OperatorError, StateDeclarationError
from asyncstate.offline import inspect
from asyncstate.offline.inspection import Inspection, read_partition
from asyncstate.offline.migration import DropField, DropState, RenameState, check_migration, migrate
from asyncstate.offline.operator_changes import AcceptChange, change_operator
from asyncstate.storage import Checkpoint, LocalFiles
from asyncstate.testing import OperatorHarness, net
from operators import Join
from operators.core.row_digests import row_digests
from operators.join import long_lists

LEFT = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("v", pa.string())])
RIGHT = pa.schema([("k", pa.int64()), ("name", pa.string())])
UNIQUE = pytest.mark.parametrize("unique", [None, ["id"]], ids=["any-rows", "unique"])


def join_of(unique: Any, kind: Any = "inner", **more: Any) -> OperatorHarness:
    made = Join(kind, left_unique=unique, right_unique="join_key")
    return OperatorHarness(made, [LEFT, RIGHT], ["k", "k"], changelog=[True, True], **more)


def changed(harness: OperatorHarness, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[Any]:
    harness.push([old, new], kinds=["-U", "+U"])
    return harness.end_batch()


@UNIQUE
def test_a_change_writes_as_much_whatever_the_number_of_rows_is(unique: Any, async_enabled: bool) -> None:
    written = []
    for rows in (2_000, 8_000):
        with join_of(unique, async_enabled=async_enabled) as harness:
            harness.push([(1, n, "a") for n in range(rows)])
            harness.push([(1, "one")], 1)
            assert len(harness.end_batch()) == rows
            changed(harness, (1, 5, "a"), (1, 5, "b"))  # from now on each row has an entry
            before = harness.state_entries()
            assert changed(harness, (1, 9, "a"), (1, 9, "b")) == [
                ("-U", 1, 9, "a", 1, "one"),
                ("+U", 1, 9, "b", 1, "one"),
            ]
            after = harness.state_entries()
            touched = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            written.append(sum(len(key) + len(after.get(key, b"")) for key in touched))
    assert written[0] == written[1] < 200


@UNIQUE
@pytest.mark.parametrize("kind", ["inner", "left", "right", "full", "semi", "anti"])
def test_rows_of_long_lists_come_and_go_as_others(
    unique: Any, kind: Any, async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 20)
    rng = random.Random(f"{unique} {kind}")
    output: list[Any] = []
    expected: list[Any] = []
    tables: tuple[Counter[Any], Counter[Any]] = (Counter(), Counter())
    with join_of(unique, kind, async_enabled=async_enabled, parallelism=2) as harness:
        for batch in range(12):
            rows, kinds = [], []
            for _ in range(60 if batch < 3 else 25):
                known = sorted(tables[0].elements())
                if known and rng.random() < (0.2 if batch < 6 else 0.7):
                    row = rng.choice(known)
                    tables[0][row] -= 1
                    rows.append(row)
                    kinds.append("-D")
                    continue
                row = rng.choice([1, 1, 1, 2]), rng.randrange(1_000 if unique else 6), rng.choice("ab")
                if unique is None or row[:2] not in {one[:2] for one in +tables[0]}:
                    tables[0][row] += 1
                    rows.append(row)
                    kinds.append("+I")
            harness.push(rows, kinds=kinds)
            for key in (1, 2):
                other = key, f"name {key}"
                if rng.random() < 0.4:
                    harness.push([other], 1, kind="-D" if tables[1][other] else "+I")
                    tables[1][other] = 1 - tables[1][other]
            output += harness.end_batch()
            if batch == 7:
                harness = harness.restore(harness.snapshot(), parallelism=3)
            expected = [
                (*row, *other)
                for row, times in tables[0].items()
                for other, there in tables[1].items()
                for _ in range(times if there and row[0] == other[0] else 0)
            ]
            if kind == "inner":
                assert net(output) == Counter(expected)
        by_row = next(state for state in harness.states() if state.name == "left_by_row")
        assert any(key[2] == by_row.id for key in harness.state_entries())
        if kind != "inner":
            assert net(output) == _padded(kind, tables)


def _padded(kind: str, tables: tuple[Counter[Any], Counter[Any]]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    left, right = +tables[0], +tables[1]
    names = dict(right)
    for row, times in left.items():
        partner = next((other for other in names if other[0] == row[0]), None)
        if (kind == "semi" and partner) or (kind == "anti" and not partner):
            found[row] += times
        elif kind in ("left", "right", "full") and partner:
            found[(*row, *partner)] += times
        elif kind in ("left", "full") and not partner:
            found[(*row, None, None)] += times
    for other in right if kind in ("right", "full") else ():
        if not any(row[0] == other[0] for row in left):
            found[(None, None, None, *other)] += 1
    return found


@UNIQUE
def test_rows_are_found_after_a_column_became_wider_and_one_was_added(
    unique: Any, async_enabled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 2)
    types = [("k", pa.int64()), ("id", pa.int32()), ("d", pa.decimal128(5, 2)), ("f", pa.float32())]
    wider = [
        *(("k", pa.int64()), ("more", pa.string()), ("id", pa.int64())),
        *(("d", pa.decimal128(9, 2)), ("f", pa.float64())),
    ]
    rows = [(1, n, Decimal(n) / 2, n / 4) for n in range(5)]
    made = Join(left_unique=unique, right_unique="join_key")
    settings: Any = {"changelog": [True, True], "async_enabled": async_enabled, "checkpoint": str(tmp_path)}
    with OperatorHarness(made, [pa.schema(types), RIGHT], ["k", "k"], **settings) as harness:
        harness.push(rows)
        harness.push([(1, "one")], 1)
        harness.end_batch()
        harness.push([rows[0]], kind="-D")
        harness.end_batch()
    with OperatorHarness(made, [pa.schema(wider), RIGHT], ["k", "k"], **settings) as later:
        key, number, half, quarter = rows[3]
        later.push([(key, None, number, half, quarter)], kind="-D")
        assert later.end_batch() == [("-D", key, None, number, half, quarter, 1, "one")]
        later.push([(key, None, number, half, quarter)], kind="-D")  # it is gone
        assert later.end_batch() == []
        assert later.statistics()["counter.retractions_without_state"] == 1


@pytest.mark.parametrize("state", ["left", "left_by_row"])
def test_a_migration_is_refused_only_where_keys_have_long_lists(
    state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 2)
    with join_of(None, checkpoint=str(tmp_path)) as harness:
        harness.push([(1, n, "a") for n in range(5)])
        harness.end_batch()
        migrate(str(tmp_path), "operator", state, DropField("v"))
    with join_of(None, checkpoint=str(tmp_path / "again")) as harness:
        harness.push([(1, n, "a") for n in range(5)])
        harness.end_batch()
        harness.push([(1, 0, "a")], kind="-D")
        harness.end_batch()
        with pytest.raises(StateDeclarationError, match="by a digest of their columns"):
            migrate(str(tmp_path / "again"), "operator", state, DropField("v"))


def test_a_row_of_a_null_key_is_found_after_its_unique_column_became_wider(
    async_enabled: bool, tmp_path: Path
) -> None:
    upserts = Changelog(ChangelogMode.UPSERT, (("k", "id"),), ("k", "id"))
    narrow, wide = (pa.schema([("k", pa.int64()), ("id", kind)]) for kind in (pa.int32(), pa.int64()))
    made = Join("left", left_unique=["id"], right_unique="join_key")
    settings: Any = {
        "changelog": [upserts, True],
        "async_enabled": async_enabled,
        "checkpoint": str(tmp_path),
    }
    with OperatorHarness(made, [narrow, RIGHT], ["k", "k"], **settings) as harness:
        harness.push([(None, 7)])
        assert harness.end_batch() == [("+I", None, 7, None, None)]
    with OperatorHarness(made, [wide, RIGHT], ["k", "k"], **settings) as later:
        later.push([(None, 7)], kind="-D")
        assert later.end_batch() == [("-D", None, 7, None, None)]
        later.push([(None, 7)], kind="-D")
        assert later.end_batch() == []


def test_digests_of_rows_are_equal_for_equal_rows_alone() -> None:
    values = [0, 1, -1, None, 1 << 40]
    column = pa.array(values)
    pairs = [(one, two) for one in range(len(values)) for two in range(len(values))]
    columns = [column.take(pa.array([pair[at] for pair in pairs])) for at in (0, 1)]
    found = {tuple(row) for row in row_digests(columns, ["a", "b"]).tolist()}
    assert len(found) == len(pairs)
    floats = row_digests([pa.array([0.0, -0.0, float("nan"), -float("nan")])], ["a"]).tolist()
    assert floats[0] == floats[1] != floats[2] == floats[3]
    texts = row_digests([pa.array(["ab", "a", ""]), pa.array(["", "b", "ab"])], ["a", "b"]).tolist()
    assert len({tuple(row) for row in texts}) == 3
    long = (
        Decimal("12345678901234567890123456789012345.67"),
        Decimal("12345678901234567890123456789012345.68"),
    )
    numbers = row_digests([pa.array(long, pa.decimal128(38, 2))], ["a"]).tolist()
    assert numbers[0] != numbers[1]


def with_long_lists(place: Path, async_enabled: bool = False, unique: Any = None) -> Counter[Any]:
    """A checkpoint of a join with a key of many rows, one of them twice, and one of few; its rows at the left side."""
    rows = [(1, n, "a") for n in range(6)] + [(1, 1, "a"), (2, 1, "b")]
    with join_of(unique, checkpoint=str(place), async_enabled=async_enabled) as harness:
        harness.push(rows)
        harness.end_batch()
        harness.push([(1, 0, "a")], kind="-D")
        harness.end_batch()
    return Counter(rows[1:])


@pytest.mark.parametrize("change", ["a sequence", "insertions alone", "a list"])
def test_a_program_that_would_not_see_the_rows_of_long_lists_fails(
    change: str, async_enabled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of other keys it may use."""
    monkeypatch.setattr(long_lists, "LONG", 2)
    with_long_lists(tmp_path, async_enabled)
    left, more = LEFT, dict[str, Any](changelog=[True, True])
    if change == "a sequence":
        more["sequence"] = ["id", None]
    elif change == "a list":
        left = LEFT.append(pa.field("tags", pa.list_(pa.string())))
    else:
        more["changelog"] = [False, True]
    made = Join(right_unique="join_key")
    settings: Any = {"checkpoint": str(tmp_path), "async_enabled": async_enabled, **more}
    others = (None,) * (len(left) - 3)
    for rows, side in (([(1, "one")], 1), ([(1, 9, "c", *others)], 0)):
        with OperatorHarness(made, [left, RIGHT], ["k", "k"], **settings) as later:
            later.push(rows, side)
            with pytest.raises(
                OperatorError, match="left.*: an earlier program has stored the rows .* one by one"
            ):
                later.end_batch()
    with OperatorHarness(made, [left, RIGHT], ["k", "k"], **settings) as later:
        later.push([(2, "two")], 1)
        assert later.end_batch() == [("+I", 2, 1, "b", *others, 2, "two")]
    owner = Checkpoint(LocalFiles(tmp_path))
    owner.claim()
    owner.rollback(1)
    with join_of(None, checkpoint=str(tmp_path), async_enabled=async_enabled) as undone:
        undone.push([(1, "one")], 1)
        assert len(undone.end_batch()) == 6


@pytest.mark.parametrize("state", ["left", "left_by_row"])
def test_lists_and_their_long_ones_are_dropped_together(
    state: str, async_enabled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 2)
    with_long_lists(tmp_path, async_enabled)
    with pytest.raises(
        StateDeclarationError, match="in 'left' or in 'left_by_row', .* neither can be renamed"
    ):
        migrate(str(tmp_path), "operator", state, RenameState("other"))
    assert check_migration(str(tmp_path), "operator", state, DropState()) == ["left", "left_by_row"]
    migrate(str(tmp_path), "operator", state, DropState())
    with join_of(None, checkpoint=str(tmp_path), async_enabled=async_enabled) as later:
        later.push([(1, "one"), (2, "two")], 1)
        assert later.end_batch() == []
        later.push([(1, n, "c") for n in range(4)])
        later.end_batch()
        later.push([(1, 0, "c")], kind="-D")
        later.end_batch()
        later.push([(1, "one")], 1, kind="-D")
        assert net(later.end_batch()) == Counter({(1, n, "c", 1, "one"): -1 for n in range(1, 4)})


@pytest.mark.parametrize("page", [2, 4096])
def test_long_lists_are_read_from_outside_as_others(
    page: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 2)
    monkeypatch.setattr(inspect, "_PAGE_ENTRIES", page)
    expected = with_long_lists(tmp_path)
    inspection = Inspection(str(tmp_path))
    pieces = inspection.partitions(inspection.manifest(), "operator", "left")
    found = [row for piece in pieces for _, rows in read_partition(piece) for row in rows.to_pylist()]
    assert Counter(tuple(row["value"].values()) for row in found) == expected
    assert all(row["key"]["k"] == row["value"]["k"] for row in found)
    assert [row["position"] for row in found if row["key"]["k"] == 1] == list(range(6))
    assert [row["position"] for row in found if row["key"]["k"] == 2] == [0]


def test_an_accepted_change_does_not_let_long_lists_be_migrated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 2)
    with_long_lists(tmp_path)
    change_operator(str(tmp_path), "operator", AcceptChange())
    for state in ("left", "left_by_row"):
        with pytest.raises(StateDeclarationError, match="by a digest of their columns"):
            migrate(str(tmp_path), "operator", state, DropField("v"))


@pytest.mark.parametrize(("before", "after"), [(None, ["id"]), (["id"], None), (["id"], ["v"])])
def test_rows_that_other_columns_identify_are_not_looked_for_in_long_lists(
    before: Any, after: Any, async_enabled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are stored by the columns that identified them; nobody can accept others."""
    monkeypatch.setattr(long_lists, "LONG", 2)
    settings: Any = {"checkpoint": str(tmp_path), "async_enabled": async_enabled}
    with join_of(before, **settings) as harness:
        harness.push([(1, n, f"{n}") for n in range(5)])
        harness.end_batch()
        harness.push([(1, 0, "0")], kind="-D")
        harness.end_batch()
    with pytest.raises(StateDeclarationError, match="left_unique was") as refused:
        join_of(after, **settings)
    assert "accept-change" not in str(refused.value)
    change_operator(str(tmp_path), "operator", AcceptChange())
    with pytest.raises(
        StateDeclarationError, match="accepted for the changed program, but the changed operator keeps other"
    ):
        join_of(after, **settings)
    with join_of(before, **settings) as undone:
        undone.push([(1, 1, "1")], kind="-D")
        undone.push([(1, "one")], 1)
        assert len(net(undone.end_batch())) == 3


def test_a_column_may_have_the_name_of_the_counts(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(long_lists, "LONG", 2)
    settings: Any = {"changelog": [True, True], "async_enabled": async_enabled, "checkpoint": str(tmp_path)}
    with OperatorHarness(Join(), [LEFT, RIGHT], ["k", "k"], **settings) as harness:
        harness.push([(1, n, "a") for n in range(5)])
        harness.push([(1, "one")], 1)
        harness.end_batch()
        harness.push([(1, 0, "a")], kind="-D")
        harness.end_batch()
    counted = pa.schema([*LEFT, ("count", pa.int64())])
    with OperatorHarness(Join(), [counted, RIGHT], ["k", "k"], **settings) as later:
        later.push([(1, 1, "a", None)], kind="-D")
        assert later.end_batch() == [("-D", 1, 1, "a", None, 1, "one")]
