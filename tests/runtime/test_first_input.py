"""``Operator.first_input``: all its rows of a micro-batch come before those of the others, at both grains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.changelog import RETRACT
from asyncstate.errors import JobError, SchemaError
from asyncstate.operator import (
    Bundle,
    BundleContext,
    BundleOperator,
    InputSpec,
    Operator,
    OperatorContext,
    OutputSpec,
    RecordContext,
    RecordOperator,
    Row,
)
from asyncstate.runtime.rows import input_buffer
from asyncstate.state import (
    BroadcastStateDescriptor,
    ColumnStateDescriptor,
    ValueStateDescriptor,
)
from asyncstate.testing import OperatorHarness, Tuning

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
FOUND = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("other", pa.int64()), ("number", pa.int64())])
KEYS = [["k"], ["k"]]
LEFT, RIGHT = 0, 1


class RecordLookup(RecordOperator):
    """Each left row with the newest right row of its key, and how many left rows its key had before."""

    num_inputs = 2

    def __init__(self, first: int | None = RIGHT) -> None:
        self.first_input = first

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return FOUND

    def open(self, context: OperatorContext) -> None:
        self.newest: Any = context.get_state(ValueStateDescriptor("newest", pa.int64()))
        self.number = context.get_state(ValueStateDescriptor("number", pa.int64(), default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        if ctx.input_index == RIGHT:
            await self.newest.async_update(row.v if ctx.row_kind.name != "DELETE" else None)
            return
        number = await self.number.async_value()
        assert number is not None
        ctx.emit(row.k, row.v, await self.newest.async_value(), number)
        await self.number.async_update(number + 1)


class BundleLookup(BundleOperator):
    """The same at bundle grain."""

    num_inputs = 2
    first_input = RIGHT

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return FOUND

    def open(self, context: OperatorContext) -> None:
        row = pa.schema([("newest", pa.int64()), ("number", pa.int64())])
        self.state = context.get_state(ColumnStateDescriptor("state", row))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        values = bundle.batch.column("v").to_pylist()
        where = bundle.keys.inverse.tolist()
        added = bundle.accumulate.tolist()

        def use(stored: Any) -> None:
            newest, number = (column.to_pylist() for column in stored.columns)
            rows = []
            for key, value, is_added in zip(where, values, added, strict=True):
                if bundle.input_index == RIGHT:
                    newest[key] = value if is_added else None
                else:
                    rows.append((key, value, newest[key], number[key] or 0))
                    number[key] = (number[key] or 0) + 1
            self.state.put(bundle.keys, [pa.array(newest, pa.int64()), pa.array(number, pa.int64())])
            if rows:
                keys, *columns = (
                    pa.array(column, pa.int64()) for column in map(list, zip(*rows, strict=True))
                )
                ctx.emit([bundle.keys.columns[0].take(keys), *columns])

        return self.state.async_get(bundle.keys).then_accept(use)


GRAINS = pytest.mark.parametrize("operator", [RecordLookup, BundleLookup])
# All in memory; a bundle a row; files from the first row on.
SETTINGS = pytest.mark.parametrize(
    "settings",
    [{}, {"options": {"async-state.bundle-size": "1"}}, {"tuning": Tuning(gathered_bytes=1 << 10)}],
)


class Model:
    """What the two operators do."""

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}
        self.number: dict[int, int] = {}

    def run(self, left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]) -> list[tuple[Any, ...]]:
        self.newest.update(right)
        rows: list[tuple[Any, ...]] = []
        for k, v in left:
            rows.append(("+I", k, v, self.newest.get(k), self.number.get(k, 0)))
            self.number[k] = self.number.get(k, 0) + 1
        return rows


@GRAINS
@SETTINGS
def test_rows_of_the_first_input_come_before_the_others(
    operator: type[Operator], settings: dict[str, Any], async_enabled: bool
) -> None:
    with OperatorHarness(
        operator(), [ROWS, ROWS], KEYS, async_enabled=async_enabled, changelog=False, **settings
    ) as harness:
        model = Model()
        left = [(v % 3, v) for v in range(100)]
        for v in range(100):
            harness.push([left[v]], input=LEFT)
            harness.push([(v % 3, 1000 + v)], input=RIGHT)
        assert harness.end_batch() == model.run(left, [(v % 3, 1000 + v) for v in range(100)])
        harness.push([(1, 7)], input=LEFT)
        assert harness.end_batch() == model.run([(1, 7)], [])


def test_rows_that_overtake_each_other_in_their_reads(mode: dict[str, Any]) -> None:
    with OperatorHarness(RecordLookup(), [ROWS, ROWS], KEYS, **mode) as harness:
        model = Model()
        for _ in range(3):
            sides = [[(v % 11, base + v) for v in range(200)] for base in (0, 1_000)]
            for start in range(0, 200, 50):
                for index, rows in enumerate(sides):
                    harness.push(rows[start : start + 50], input=index)
            assert harness.end_batch() == model.run(*sides)


def test_without_it_they_come_as_they_arrive(async_enabled: bool) -> None:
    with OperatorHarness(RecordLookup(None), [ROWS, ROWS], KEYS, async_enabled=async_enabled) as harness:
        harness.push([(1, 1)], input=LEFT)
        harness.push([(1, 2)], input=RIGHT)
        assert harness.end_batch() == [("+I", 1, 1, None, 0)]


def test_it_may_be_the_left_input_too(async_enabled: bool) -> None:
    with OperatorHarness(RecordLookup(LEFT), [ROWS, ROWS], KEYS, async_enabled=async_enabled) as harness:
        harness.push([(1, 2)], input=RIGHT)
        harness.push([(1, 1)], input=LEFT)
        assert harness.end_batch() == [("+I", 1, 1, None, 0)]


micro_batches = st.lists(
    st.lists(st.tuples(st.sampled_from([LEFT, RIGHT]), st.integers(0, 3), st.integers(0, 99)), max_size=30),
    min_size=1,
    max_size=3,
)


@GRAINS
@settings(max_examples=settings().max_examples // 2)
@given(
    history=micro_batches,
    seed=st.randoms(use_true_random=False),
    size=st.sampled_from(["1", "3", "1000"]),
    memory=st.sampled_from([1 << 10, 1 << 20]),
    parallelism=st.integers(1, 3),
    changelog=st.booleans(),
)
def test_any_arrival_of_the_two_inputs_gives_the_same(
    operator: type[Operator],
    history: Any,
    seed: Any,
    size: str,
    memory: int,
    parallelism: int,
    changelog: bool,
) -> None:
    """However the rows of the two inputs are mixed and cut into Arrow batches, in both modes, over restarts."""
    options, tuning = {"async-state.bundle-size": size}, Tuning(gathered_bytes=memory)
    stored = []
    for async_enabled in (False, True):
        model = Model()
        harness = OperatorHarness(
            operator(),
            [ROWS, ROWS],
            KEYS,
            async_enabled=async_enabled,
            options=options,
            tuning=tuning,
            parallelism=parallelism,
            changelog=changelog,
        )
        for arrived in history:
            sides = [[(k, v) for side, k, v in arrived if side == index] for index in (LEFT, RIGHT)]
            waiting = [list(side) for side in sides]
            while any(waiting):
                side = seed.choice([index for index in (LEFT, RIGHT) if waiting[index]])
                count = seed.randint(1, len(waiting[side]))
                harness.push(waiting[side][:count], input=side)
                del waiting[side][:count]
            assert sorted(harness.end_batch(), key=repr) == sorted(model.run(*sides), key=repr)
            restarted = harness.restore(harness.snapshot(), parallelism=seed.randint(1, 3))
            harness.close()
            harness = restarted
        stored.append(harness.state_entries())
        harness.close()
    assert stored[0] == stored[1]


@GRAINS
@SETTINGS
def test_changelogs_and_sequences_beside_it(
    operator: type[Operator], settings: dict[str, Any], async_enabled: bool
) -> None:
    """The first input a changelog in order of a sequence, the other an insert-only one, and the other way round."""
    with OperatorHarness(
        operator(),
        [ROWS, ROWS],
        KEYS,
        async_enabled=async_enabled,
        **settings,
        changelog=[False, True],
        sequence=[None, "v"],
    ) as harness:
        harness.push([(1, 5), (2, 6)], input=LEFT)
        harness.push([(1, 30), (1, 10), (2, 40), (2, 50)], kinds=["+U", "+I", "+I", "-D"], input=RIGHT)
        harness.push([(1, 4)], input=LEFT)
        harness.push([(1, 20)], kinds=["-D"], input=RIGHT)
        found = harness.end_batch()
        assert sorted(found, key=repr) == sorted(
            [("+I", 1, 5, 30, 0), ("+I", 2, 6, None, 0), ("+I", 1, 4, 30, 1)], key=repr
        )
    with OperatorHarness(
        operator(),
        [ROWS, ROWS],
        KEYS,
        async_enabled=async_enabled,
        **settings,
        changelog=[True, False],
        sequence=["v", None],
    ) as harness:
        harness.push([(1, 5), (1, 4), (2, 6)], kinds=["+U", "+I", "-D"], input=LEFT)
        harness.push([(1, 10), (1, 30)], input=RIGHT)
        assert sorted(harness.end_batch(), key=repr) == [
            ("+I", 1, 4, 30, 0),
            ("+I", 1, 5, 30, 1),
            ("+I", 2, 6, None, 0),
        ]


class Inputs(RecordOperator):
    """Puts out where each row came from."""

    num_inputs = 3
    first_input = 2

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("input", pa.int64()), ("v", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(ctx.input_index, row.v)


def test_the_others_come_one_after_the_other(async_enabled: bool) -> None:
    with OperatorHarness(Inputs(), [ROWS] * 3, [["k"]] * 3, async_enabled=async_enabled) as harness:
        for v in range(4):
            for index in range(3):
                harness.push([(v % 2, v)], input=index)
        assert [row[1:] for row in harness.end_batch()] == [(i, v) for i in (2, 0, 1) for v in range(4)]


class BesideBroadcast(Inputs):
    """Input 0 is broadcast, 2 comes first."""

    broadcast_input = 0

    def open(self, context: OperatorContext) -> None:
        self.rules: Any = context.get_state(BroadcastStateDescriptor("rules", pa.int64(), pa.int64()))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        self.rules.put(0, row.v)

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(ctx.input_index, (self.rules.get(0) or 0) + row.v)


def test_broadcast_rows_come_before_all(async_enabled: bool) -> None:
    with OperatorHarness(
        BesideBroadcast(), [ROWS] * 3, [[], ["k"], ["k"]], async_enabled=async_enabled
    ) as harness:
        for index in (1, 2, 0):
            harness.push([(1, index)], input=index)
        harness.push([(1, 7)], input=1)
        assert [row[1:] for row in harness.end_batch()] == [(2, 2), (1, 1), (1, 7)]


EVENTS = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("v", pa.int64())])


def test_rows_that_wait_for_their_order_come_behind_it(async_enabled: bool) -> None:
    with OperatorHarness(
        Inputs(),
        [EVENTS, ROWS, ROWS],
        [["k"]] * 3,
        async_enabled=async_enabled,
        event_time=["at", None, None],
        order_by=["at", None, None],
        watermark_delay=[0, None, None],
    ) as harness:
        harness.push([(1, 2, 20), (1, 1, 10)], input=0)
        harness.push([(1, 1)], input=1)
        harness.push([(1, 2)], input=2)
        assert [row[1:] for row in harness.end_batch()] == [(2, 2), (1, 1)]
        assert [row[1:] for row in harness.finish()] == [(0, 10), (0, 20)]


def test_the_first_input_cannot_wait_for_an_order() -> None:
    with pytest.raises(SchemaError, match="has order_by, but it is the first_input of Inputs"):
        OperatorHarness(
            Inputs(),
            [ROWS, ROWS, EVENTS],
            [["k"]] * 3,
            event_time=[None, None, "at"],
            order_by=[None, None, "at"],
            watermark_delay=[None, None, 0],
        )


class Values(BundleOperator):
    """Puts out its rows as they come."""

    num_inputs = 2
    first_input = RIGHT

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema | OutputSpec:
        return ROWS

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        ctx.emit([bundle.keys.columns[0].take(pa.array(bundle.keys.inverse)), bundle.batch.column("v")])


class Bundles(Values):
    """Emits each row with the number of its bundle."""

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        return OutputSpec(ROWS, changes=RETRACT)

    def open(self, context: OperatorContext) -> None:
        self.bundles = 0

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        self.bundles += 1
        ctx.emit(
            [pa.array([self.bundles] * bundle.num_rows, pa.int64()), bundle.batch.column("v")], bundle.kinds
        )


@pytest.mark.parametrize("memory", [1 << 10, 1 << 20])
def test_a_row_that_waits_and_its_retraction_come_together(memory: int, async_enabled: bool) -> None:
    options, tuning = {"async-state.bundle-size": "2"}, Tuning(gathered_bytes=memory)
    with OperatorHarness(
        Bundles(), [ROWS, ROWS], KEYS, async_enabled=async_enabled, options=options, tuning=tuning
    ) as harness:
        harness.push([(1, v) for v in range(100)], input=LEFT)
        harness.push([(1, -1)], input=RIGHT)
        harness.push([(1, v) for v in range(100)], kinds=["-D"] * 100, input=LEFT)
        first, *rows = harness.end_batch()
    assert first == ("+I", 1, -1)
    added, removed = ({v: number for kind, number, v in rows if kind == one} for one in ("+I", "-D"))
    assert added == removed
    assert len(set(added.values())) > 10


@pytest.mark.parametrize("memory", [1 << 10, 1 << 20])
def test_rows_that_wait_keep_their_order_of_arrival_on_disk_too(
    memory: int, async_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    path_of = input_buffer._Files._path

    def noted(self: Any, number: int) -> Path:
        written.append(path_of(self, number))
        return written[-1]

    monkeypatch.setattr(input_buffer._Files, "_path", noted)
    options, tuning = {"async-state.bundle-size": "100"}, Tuning(gathered_bytes=memory)
    rows = [(v % 7, v) for v in range(1_000)]
    with OperatorHarness(
        Values(),
        [ROWS, ROWS],
        KEYS,
        async_enabled=async_enabled,
        options=options,
        tuning=tuning,
        changelog=False,
    ) as harness:
        for start in range(0, 1_000, 40):
            harness.push(rows[start : start + 40], input=LEFT)
        harness.push([(1, -1)], input=RIGHT)
        assert [row[1:] for row in harness.end_batch()] == [(1, -1), *rows]
    assert bool(written) == (memory == 1 << 10)
    assert not any(path.exists() for path in written)


@pytest.mark.parametrize("first", [2, -1, "right"])
def test_an_input_that_is_not_there_is_refused(first: Any) -> None:
    with pytest.raises(
        JobError, match=f"RecordLookup.*: first_input is {first!r} with num_inputs 2; give the"
    ):
        OperatorHarness(RecordLookup(first), [ROWS, ROWS], KEYS)


def test_the_broadcast_input_and_an_only_input_are_refused() -> None:
    class First(BesideBroadcast):
        first_input = 0

    class Only(Inputs):
        num_inputs = 1
        first_input = 0

    with pytest.raises(JobError, match="first_input is 0.*other than the broadcast input"):
        OperatorHarness(First(), [ROWS] * 3, [[], ["k"], ["k"]])
    with pytest.raises(JobError, match="first_input is 0 with num_inputs 1"):
        OperatorHarness(Only(), ROWS, ["k"])
