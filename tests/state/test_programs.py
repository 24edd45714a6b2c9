"""Generated programs of state operations against dicts and lists: at once, deferred, on every controller and store.

Whatever forms a program's steps take, each result must be that of the model running the same steps in order, and
the stored bytes must be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import InputSpec, ListStateDescriptor, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.state.keyed import chunks
from asyncstate.testing import OperatorHarness
from tests.examples import share
from tests.pacers import AlwaysSlow
from tests.state.fakes import FakeContext, FakeSink, record, run_records
from tests.state.programs import (
    KINDS,
    HypothesisDraw,
    MicroBatch,
    Model,
    Program,
    ProgramRunner,
    SeededDraw,
    generate,
    some_states,
)

TEXTS = st.text("ab\x00é", max_size=6)
PROGRAMS_A_SEED = 500
SEEDS = range(20)
SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.timestamp("us", tz="UTC")), ("program", pa.int64())])


@st.composite
def small_programs(draw: Any, sync: bool | None = None) -> list[MicroBatch]:
    return generate(
        HypothesisDraw(draw), keys=4, records=6, steps=8, batches=3, sync=sync, states=draw(some_states())
    )


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a few elements have several chunks."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 20)


# -- over a sink in memory, answers in any order ------------------------------------------------------------


def run_fake(
    batches: list[MicroBatch], deferred: bool, seed: int, all_sync: bool
) -> tuple[list[list[Any]], dict[bytes, bytes]]:
    """The results of all records and the bytes stored at the end."""
    sink = FakeSink(deferred, seed)
    results: list[list[Any]] = []
    for batch in batches:
        context = FakeContext(
            sink,
            page_size=2,
            inputs=[InputSpec(SCHEMA, ("key",), "time")],
            watermark=batch.watermark,
            processing_time=batch.processing_time,
        )
        runner = ProgramRunner(context)
        records = []
        for row in batch.records:
            results.append([])
            work = partial(runner.run, row.program, all_sync, results[-1])
            records.append(record(row.key, work, row.time))
        run_records(sink, records)
        sink.commit()
    return results, sink.base


@given(small_programs(sync=False), st.integers(0, 2**16))
def test_both_forms_and_both_modes_agree_with_the_model(batches: list[MicroBatch], seed: int) -> None:
    plain, stored = run_fake(batches, deferred=False, seed=0, all_sync=True)
    assert plain == Model().run(batches)
    assert run_fake(batches, deferred=False, seed=0, all_sync=False) == (plain, stored)
    assert run_fake(batches, deferred=True, seed=seed, all_sync=False) == (plain, stored)


@given(small_programs(), st.integers(0, 2**16))
def test_plain_calls_between_pending_ones_keep_the_order(batches: list[MicroBatch], seed: int) -> None:
    results, stored = run_fake(batches, deferred=True, seed=seed, all_sync=False)
    assert results == Model().run(batches)
    assert stored == run_fake(batches, deferred=False, seed=0, all_sync=True)[1]


@given(st.lists(TEXTS), st.lists(st.lists(TEXTS, max_size=5)))
def test_the_bytes_of_a_list_do_not_depend_on_how_it_came(first: list[str], parts: list[list[str]]) -> None:
    one, many = FakeSink(), FakeSink()
    for sink in (one, many):
        sink.current = record(1)
    descriptor: Any = ListStateDescriptor("l", str)
    state = FakeContext(one).get_state(descriptor)
    state.update(first)
    for part in parts:
        state.add_all(part)
    state = FakeContext(many).get_state(descriptor)
    for element in [*first, *(element for part in parts for element in part)]:
        state.async_add(element)
    assert one.contents() == many.contents()


# -- on the real controllers and stores ---------------------------------------------------------------------


class ProgramOperator(RecordOperator):
    """A row is the number of a program; put out are the results of its steps."""

    def __init__(self, programs: list[Program]) -> None:
        self._programs = programs

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("results", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self._runner = ProgramRunner(context)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        results: list[Any] = []
        done = self._runner.run(self._programs[row.program], False, results)
        return done.then_accept(lambda _: ctx.emit(repr(results)))


def run_harness(
    batches: list[MicroBatch], async_enabled: bool, **options: str
) -> tuple[list[str], dict[bytes, bytes]]:
    """The results of all records as text, in the order of the records, and the bytes stored at the end."""
    return _run_harness(batches, async_enabled, options)[:2]


def _run_harness(
    batches: list[MicroBatch], async_enabled: bool, options: dict[str, str]
) -> tuple[list[str], dict[bytes, bytes], float]:
    """The same, and how often writes were spilled."""
    programs = [row.program for batch in batches for row in batch.records]
    numbers = iter(range(len(programs)))
    with OperatorHarness(
        ProgramOperator(programs),
        SCHEMA,
        ["key"],
        event_time="time",
        async_enabled=async_enabled,
        options={"async-state.iterate-response-batch-size": "2"}
        | {f"async-state.{name.replace('_', '-')}": value for name, value in options.items()},
    ) as harness:
        for batch in batches:
            harness.advance_processing_time(batch.processing_time - harness.clock.now_us())
            harness.advance_watermark(batch.watermark)
            harness.push([(row.key, row.time, next(numbers)) for row in batch.records])
            harness.end_batch()
        spills = sum(figures["spills"] for figures in harness.batches)
        return [text for _, text in harness.output], harness.state_entries(), spills


@given(small_programs())
@settings(max_examples=share(5))
def test_the_controllers_and_stores_agree_with_the_model(batches: list[MicroBatch]) -> None:
    results, stored = run_harness(batches, async_enabled=False)
    assert results == [repr(record_results) for record_results in Model().run(batches)]
    assert run_harness(batches, async_enabled=True) == (results, stored)


@pytest.mark.parametrize(
    "seed", [*SEEDS[:4], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[4:])]
)
def test_programs_by_the_thousand(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand programs over all seeds, hundreds of keys at once, each on both stores and in both modes."""
    batches = generate(SeededDraw(seed), keys=200, records=2 * PROGRAMS_A_SEED // 3, steps=6, batches=3)
    shortfall = PROGRAMS_A_SEED - sum(len(batch.records) for batch in batches)
    if shortfall > 0:
        last = batches[-1]
        more = generate(SeededDraw(seed + 1_000), keys=200, records=1, steps=6, batches=shortfall)
        rows = [row._replace(time=last.watermark) for batch in more for row in batch.records]
        batches.append(last._replace(records=rows))
    expected = [repr(results) for results in Model().run(batches)]
    assert len(expected) >= PROGRAMS_A_SEED
    results, stored = run_harness(batches, async_enabled=False)
    _same(seed, batches, expected, results)
    monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    for async_enabled in (False, True):
        results, entries = run_harness(batches, async_enabled)
        _same(seed, batches, expected, results)
        assert entries == stored, f"seed {seed}: async {async_enabled} stored other bytes"


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("slow", [False, True], ids=["quick", "slow"])
def test_programs_whose_writes_are_spilled_all_the_time(
    seed: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for some writes only, results and stored bytes are as without a bound, also while reads are slow."""
    batches = generate(SeededDraw(seed), keys=50, records=60, steps=6, batches=3)
    expected = [repr(results) for results in Model().run(batches)]
    _, stored = run_harness(batches, async_enabled=False)
    if slow:
        monkeypatch.setattr(worker_memory(), "pacer", AlwaysSlow())
    for async_enabled in (False, True):
        options = {
            "write_cache_size": "1kb",
            "cache_size": "1kb" if seed % 2 else "1mb",
            "in_flight_limit": "20",
        }
        results, entries, spills = _run_harness(batches, async_enabled, options)
        _same(seed, batches, expected, results)
        assert entries == stored
        assert spills > len(batches)


def _same(seed: int, batches: list[MicroBatch], expected: list[str], results: list[str]) -> None:
    """Equal results; else the first record that differs, with its key's whole history."""
    rows = [row for batch in batches for row in batch.records]
    assert len(results) == len(rows)
    for row, wanted, got in zip(rows, expected, results, strict=True):
        if wanted != got:
            history = "\n".join(map(repr, (other for other in rows if other.key == row.key)))
            pytest.fail(f"seed {seed}, {row}:\n  {got}\n  instead of\n  {wanted}\nkey's records:\n{history}")


def test_every_kind_of_state_is_generated() -> None:
    batches = generate(SeededDraw(0), keys=10, records=400, steps=8, batches=2)
    used = {step.state for batch in batches for row in batch.records for step in row.program}
    assert used == set(KINDS)
