"""Rows that wait for others of their micro-batch: which come together, in which order, in memory and on disk."""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.changelog import RETRACT, RowKind
from asyncstate.codec.times import event_times
from asyncstate.errors import StoreError
from asyncstate.operator import InputSpec
from asyncstate.runtime.rows.input_buffer import SpillingInputBuffer
from asyncstate.runtime.rows.prepared_rows import PreparedBatch
from asyncstate.testing import OperatorHarness, Tuning, net
from operators import GroupAggregate, Join, count, max_, sum_

SCHEMA = pa.schema([
    ("k", pa.string()),
    ("id", pa.int64()),
    ("tags", pa.list_(pa.string())),
    ("at", pa.timestamp("us")),
])  # fmt: skip
Row = tuple[Any, ...]
MEMORY = pytest.mark.parametrize("memory", [1 << 30, 1], ids=["memory", "files"])


def batch(rows: Sequence[Row], kinds: Sequence[int]) -> PreparedBatch:
    columns = [
        pa.array([row[at] for row in rows], pa.int64()).cast(field.type)
        if pa.types.is_timestamp(field.type)
        else pa.array([row[at] for row in rows], field.type)
        for at, field in enumerate(SCHEMA)
    ]
    made = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return PreparedBatch(made, np.array(kinds, np.int8), event_times(made.column("at")), 1, 0)


def row(key: str | None, number: int, at: int = 0) -> Row:
    return (key, number, [str(number)], at)


def found(parts: Sequence[PreparedBatch]) -> list[list[tuple[int, Row]]]:
    """Kinds and rows of each part; the times must be those of the rows."""
    listed = []
    for part in parts:
        assert part.times is not None
        assert part.times.tolist() == event_times(part.batch.column("at")).tolist()
        assert part.input_index == 1
        values = [[*one.values()][:2] for one in part.batch.to_pylist()]
        listed.append([
            (kind, row(*value, at))
            for kind, value, at in zip(part.kinds.tolist(), values, part.times.tolist(), strict=True)
        ])  # fmt: skip
    return listed


def gathering(
    tmp_path: Path,
    memory: int,
    limit: int,
    together: Sequence[str] | None = None,
    waits: bool = False,
    chosen: Callable[[PreparedBatch], PreparedBatch] = lambda rows: rows,
    **declared: Any,
) -> SpillingInputBuffer:
    spec = InputSpec(SCHEMA, declared.pop("key", ("k",)), "at", changes=RETRACT, **declared)
    folder = str(tmp_path / "gathered")
    return SpillingInputBuffer(spec, 1, together, waits, lambda _: limit, memory, folder, chosen)


def run(
    waiting: SpillingInputBuffer, batches: Sequence[Sequence[tuple[int, Row]]]
) -> list[list[tuple[int, Row]]]:
    """All parts, in order."""
    parts: list[PreparedBatch] = []
    for rows in batches:
        parts += waiting.add(batch([one for _, one in rows], [kind for kind, _ in rows]))
    parts += waiting.free()
    parts += waiting.parts()
    waiting.close()
    return found(parts)


keys = st.sampled_from(["a", "b", "c", "dddd", "", None])
changes = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.builds(row, keys, st.integers(0, 9), st.integers(0, 99))), min_size=1
    ),
    max_size=6,
)


@MEMORY
@given(batches=changes, limit=st.integers(1, 20), unique=st.booleans())
def test_rows_that_need_each_other_come_together(
    tmp_path_factory: pytest.TempPathFactory, memory: int, batches: Any, limit: int, unique: bool
) -> None:
    """All rows come, once. Those of a key and identity are in one part, from the first on that is no +I."""
    folder = tmp_path_factory.mktemp("gather")
    waiting = gathering(folder, memory, limit, together=("id",) if unique else None, waits=unique)
    parts = run(waiting, batches)
    arrived = [one for rows in batches for one in rows]
    assert Counter(map(repr, arrived)) == Counter(repr(one) for part in parts for one in part)
    assert list((folder / "gathered").glob("*")) == []
    home: dict[Any, int] = {}
    retracted = False
    for number, part in enumerate(parts):
        if not unique and not retracted and all(kind == 0 for kind, _ in part):
            continue  # rows that are only added may have come before
        retracted = True
        for _, (key, number_, _, _) in part:
            assert home.setdefault((key, number_), number) == number or not unique


@MEMORY
def test_a_row_and_its_retraction_come_together_however_many_rows_a_key_has(
    tmp_path: Path, memory: int
) -> None:
    plus = [(0, row("a", number)) for number in range(200)]
    minus = [(3, one) for _, one in plus]
    parts = run(gathering(tmp_path, memory, 10, waits=True), [minus[:150], plus, minus[150:]])
    assert len(parts) > 10
    for part in parts:
        assert not net((RowKind(kind).text, repr(one)) for kind, one in part)


@given(
    changes=st.lists(st.tuples(st.sampled_from([0, 0, 3]), st.integers(0, 9)), min_size=1, max_size=40),
    limit=st.integers(1, 6),
    unique=st.booleans(),
)
def test_a_key_that_is_taken_apart_keeps_the_order_in_which_its_rows_came(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], limit: int, unique: bool
) -> None:
    """Of each row that is left, and of the newest ones of unique keys."""
    rows = [(kind, row("a", number, at)) for at, (kind, number) in enumerate(changes)]
    if not unique:
        rows = [(kind, (*one[:-1], 0)) for kind, one in rows]
    together = ("id",) if unique else None
    folder = tmp_path_factory.mktemp("gather")
    parts = run(gathering(folder, 1 << 20, limit, together=together, waits=True), [rows])
    newest = {number: at for at, (kind, number) in enumerate(changes) if kind == 0}
    taken = {number for kind, number in changes if kind == 3}

    def left(arrived: Any) -> list[int]:
        """The numbers of rows whose order counts: of those that are taken back, and of unique ones, the last."""
        numbers = [one[1] for kind, one in arrived if kind == 0]
        return [
            number
            for at, number in enumerate(numbers)
            if number not in numbers[at + 1 :] or (number not in taken and not unique)
        ]

    assert left([one for part in parts for one in part]) == left(rows)
    assert len(newest) == len({number for number in left(rows)})
    home: dict[int, int] = {}
    for number, part in enumerate(parts):
        for _, one in part:
            if unique or one[1] in taken:
                assert home.setdefault(one[1], number) == number


@MEMORY
@pytest.mark.parametrize("sequence", [(), ("id",)], ids=["as it came", "sequence"])
def test_a_key_with_many_rows_takes_no_other_key_apart(
    tmp_path: Path, memory: int, sequence: tuple[str, ...]
) -> None:
    """Rows of a key that fit into a part are in one, in the order in which they came, whatever key is beside them."""
    others = [f"key {number % 300}" for number in range(1200)]
    rows = [(0, row(key, number)) for number, pair in enumerate((key, "a") for key in others) for key in pair]
    rows[0] = (3, rows[0][1])
    waiting = gathering(tmp_path, memory, 100, waits=True, sequence=sequence)
    parts = run(waiting, [rows[:1000], rows[1000:]])
    delivered = [(key, number, part) for part, each in enumerate(parts) for _, (key, number, *_) in each]
    assert Counter(one[:2] for one in delivered) == Counter(one[:2] for _, one in rows)
    assert len({part for key, _, part in delivered if key == "a"}) > 5
    for name in set(others):
        mine = [(number, part) for key, number, part in delivered if key == name]
        assert [number for number, _ in mine] == [at for at, key in enumerate(others) if key == name]
        assert len({part for _, part in mine}) == 1


@MEMORY
def test_rows_without_a_key_are_taken_apart_by_what_identifies_them(tmp_path: Path, memory: int) -> None:
    rows = [(2 * (turn % 2), row("x", number, turn)) for turn in range(4) for number in range(50)]
    parts = run(gathering(tmp_path, memory, 20, together=("id",), waits=True, key=()), [rows])
    assert len(parts) > 5
    home: dict[int, int] = {}
    for number, part in enumerate(parts):
        assert all(home.setdefault(one[1], number) == number for _, one in part)


@MEMORY
@given(batches=changes, limit=st.integers(1, 20))
def test_a_sequence_orders_the_rows_of_each_key(
    tmp_path_factory: pytest.TempPathFactory, memory: int, batches: Any, limit: int
) -> None:
    """By time, then by number; what is taken back before what comes; else as it arrived."""
    folder = tmp_path_factory.mktemp("gather")
    waiting = gathering(folder, memory, limit, waits=True, sequence=("at", "id"))
    delivered = [one for part in run(waiting, batches) for one in part]
    arrived = [one for rows in batches for one in rows]
    for key in {one[0] for _, one in arrived}:
        mine = [one for one in arrived if one[1][0] == key]
        expected = sorted(mine, key=lambda one: (one[1][3], one[1][1], one[0] in (0, 2)))
        assert [one for one in delivered if one[1][0] == key] == expected


def test_rows_that_are_only_added_leave_when_there_are_enough(tmp_path: Path) -> None:
    waiting = gathering(tmp_path, 1 << 30, 10)
    parts: list[int] = []
    for number in range(5):
        rows = [row("a", number)] * 4
        parts += [part.batch.num_rows for part in waiting.add(batch(rows, [0] * 4))]
    assert parts == [4, 4, 4, 4]
    assert [part.batch.num_rows for part in waiting.free()] == [4]
    assert list(waiting.parts()) == []


def test_all_rows_of_some_keys_are_chosen_from_at_once(tmp_path: Path) -> None:
    seen: list[Counter[Any]] = []

    def chosen(rows: PreparedBatch) -> PreparedBatch:
        seen.append(Counter(rows.batch.column("k").to_pylist()))
        return rows.filter(np.array(rows.batch.column("id").to_pylist()) > 0)

    waiting = gathering(tmp_path, 1, 3, waits=True, chosen=chosen, sequence=("id",))
    rows = [(0, row(key, number)) for number in range(7) for key in "abcdef"]
    parts = run(waiting, [rows[:20], rows[20:]])
    assert sum(map(len, parts)) == 36
    assert sum(seen, Counter()) == {key: 7 for key in "abcdef"}
    assert all(times == 7 for each in seen for times in each.values())


# -- through the harness ---------------------------------------------------------------------------------------

PAYMENT = pa.schema([("payment", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64())])
CUSTOMER = pa.schema([("customer", pa.int64()), ("country", pa.string())])


@pytest.mark.parametrize("size", ["1", "7", "500000"])
@pytest.mark.parametrize("memory", [1 << 10, 256 << 20])
def test_a_disordered_micro_batch_gives_what_an_ordered_one_gives(
    async_enabled: bool, size: str, memory: int
) -> None:
    """Payments that change their customer and amount some times, with all insertions before all retractions."""
    options, tuning = {"async-state.bundle-size": size}, Tuning(gathered_bytes=memory)
    history = []
    for payment in range(60):
        rows = [(payment, (payment + turn) % 7, 10 * payment + turn) for turn in range(1 + payment % 4)]
        history += [("+U", one) for one in rows] + [("-U", one) for one in rows[:-1]]
    history.sort(key=lambda one: (one[0] == "-U", -one[1][2]))
    expected = {payment: (payment + payment % 4) % 7 for payment in range(60)}
    with OperatorHarness(
        Join("left", left_unique=["payment"]),
        [PAYMENT, CUSTOMER],
        ["customer", "customer"],
        async_enabled=async_enabled,
        options=options,
        tuning=tuning,
        parallelism=2,
    ) as joined:
        joined.push([(customer, f"c{customer % 3}") for customer in range(5)], input=1)
        joined.push([one for _, one in history], kinds=[kind for kind, _ in history])
        table = net(joined.end_batch())
        assert joined.statistics()["counter.retractions_without_state"] == 0
    assert sorted(one[:2] for one in table) == sorted(expected.items())
    assert set(table.values()) == {1}

    with OperatorHarness(
        GroupAggregate([count(), sum_("amount"), max_("amount")]),
        PAYMENT,
        ["customer"],
        async_enabled=async_enabled,
        options=options,
        tuning=tuning,
    ) as summed:
        summed.push([one for _, one in history], kinds=[kind for kind, _ in history])
        table = net(summed.end_batch())
        assert summed.statistics()["counter.retractions_without_state"] == 0
    amounts = defaultdict(list)
    for payment, customer in expected.items():
        amounts[customer].append(10 * payment + payment % 4)
    assert table == {(customer, len(own), sum(own), max(own)): 1 for customer, own in amounts.items()}


@pytest.mark.parametrize("when", ["a file is made", "it is closed"])
def test_a_full_disk_names_the_input_and_the_way_out(
    async_enabled: bool, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with OperatorHarness(
        GroupAggregate([max_("amount")]),
        PAYMENT,
        ["customer"],
        async_enabled=async_enabled,
        tuning=Tuning(gathered_bytes=1),
    ) as harness:
        harness.push([(1, 1, 10), (1, 1, 10), (1, 1, 20)], kinds=["+U", "-U", "+U"])
        with monkeypatch.context() as disk:
            writer = SimpleNamespace(write_batch=lambda _: None, close=full)
            disk.setattr(pa.ipc, "new_stream", full if when == "a file is made" else lambda *_: writer)
            message = (
                r"rows of input 0 could not be spilled to .*No space left on device\. Free space on that disk"
            )
            with pytest.raises(StoreError, match=message):
                harness.end_batch()
        assert net(harness.end_batch()) == {(1, 20): 1}
