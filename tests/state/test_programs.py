"""Generated programs of state operations against dicts and lists: at once, deferred, in two micro-batches.

A program is a sequence of steps for one record. A step is one operation; ``sync`` picks its plain form,
``waits`` tells whether the next step is asked for only when its result is there. Whatever is picked, each
result must be that of the model running the same steps in order, and the stored bytes must be the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.futures import StateFuture, StateIterator, combine_all, completed_void_future
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor, chunks
from asyncstate.testing import OperatorHarness
from tests.state.fakes import FakeContext, FakeSink, record, run_records

KEYS = st.integers(0, 3)
TEXTS = st.text("ab\x00é", max_size=6)
VALUES = st.integers(-5, 5)


class Step(NamedTuple):
    """``state``: value, list, map or windowed (a map with namespaces), whose ``method`` is called."""

    state: str
    method: str
    arguments: tuple[Any, ...]
    sync: bool
    waits: bool
    namespace: int = 0


Program = list[Step]


def steps(sync: st.SearchStrategy[bool]) -> st.SearchStrategy[Step]:
    maps = [
        ("get", st.tuples(VALUES)),
        ("put", st.tuples(VALUES, TEXTS)),
        ("put", st.tuples(VALUES, TEXTS)),
        ("put_all", st.tuples(st.dictionaries(VALUES, TEXTS, max_size=5))),
        ("remove", st.tuples(VALUES)),
        ("contains", st.tuples(VALUES)),
        ("entries", st.just(())),
        ("keys", st.just(())),
        ("values", st.just(())),
        ("is_empty", st.just(())),
        ("clear", st.just(())),
    ]
    kinds: dict[str, list[tuple[str, st.SearchStrategy[tuple[Any, ...]]]]] = {
        "value": [("value", st.just(())), ("update", st.tuples(st.none() | VALUES)), ("clear", st.just(()))],
        "list": [
            ("get", st.just(())),
            ("get", st.just(())),
            ("add", st.tuples(TEXTS)),
            ("add", st.tuples(TEXTS)),
            ("add_all", st.tuples(st.lists(TEXTS, max_size=6))),
            ("update", st.tuples(st.none() | st.lists(TEXTS, max_size=6))),
            ("clear", st.just(())),
        ],
        "map": maps,
        "windowed": maps,
    }
    choices: list[st.SearchStrategy[Step]] = [
        st.builds(Step, st.just(kind), st.just(method), arguments, sync, st.booleans(), st.integers(-1, 1))
        for kind, methods in kinds.items()
        for method, arguments in methods
    ]
    return st.one_of(choices)


def batches(sync: st.SearchStrategy[bool]) -> st.SearchStrategy[list[list[tuple[int, Program]]]]:
    """Two micro-batches of records: a key and its program each."""
    program = st.lists(steps(sync), max_size=8)
    return st.lists(st.lists(st.tuples(KEYS, program), max_size=6), min_size=2, max_size=2)


# -- the model -------------------------------------------------------------------------------------------


@dataclass
class Model:
    """The states of one key as plain Python."""

    value: int | None
    items: list[str]
    maps: dict[int | None, dict[int, str]]

    def run(self, step: Step) -> Any:
        arguments = step.arguments
        if step.state == "value":
            return self._value(step.method, *arguments)
        if step.state == "list":
            return self._list(step.method, *arguments)
        return self._map(
            self.maps[step.namespace if step.state == "windowed" else None], step.method, *arguments
        )

    def _value(self, method: str, update: int | None = None) -> int | None:
        if method == "value":
            return self.value
        self.value = update
        return None

    def _list(self, method: str, given: Any = None) -> list[str] | None:
        match method:
            case "get":
                return list(self.items)
            case "add":
                self.items.append(given)
            case "add_all":
                self.items += given
            case _:
                self.items = list(given or ())
        return None

    def _map(self, entries: dict[int, str], method: str, key: Any = None, value: Any = None) -> Any:
        match method:
            case "get":
                return entries.get(key)
            case "contains":
                return key in entries
            case "put":
                entries[key] = value
            case "put_all":
                entries.update(key)
            case "remove":
                entries.pop(key, None)
            case "clear":
                entries.clear()
            case "entries":
                return sorted(entries.items())
            case "keys":
                return sorted(entries)
            case "values":
                return [value for _, value in sorted(entries.items())]
            case "is_empty":
                return not entries
        return None


def expected(program_batches: list[list[tuple[int, Program]]]) -> list[list[Any]]:
    models = {key: Model(None, [], {name: {} for name in (None, -1, 0, 1)}) for key in range(4)}
    return [
        [models[key].run(step) for step in program] for batch in program_batches for key, program in batch
    ]


# -- the states --------------------------------------------------------------------------------------------


class Runner:
    """Runs programs over states that ``context`` binds."""

    def __init__(self, context: OperatorContext) -> None:
        declared: dict[str, Any] = {
            "value": ValueStateDescriptor("value", pa.int64()),
            "list": ListStateDescriptor("list", pa.string()),
            "map": MapStateDescriptor("map", pa.int64(), pa.string()),
            "windowed": MapStateDescriptor("windowed", int, str, namespaced=True),
        }
        self._states = {name: context.get_state(descriptor) for name, descriptor in declared.items()}

    def run(self, program: Program, all_sync: bool, results: list[Any]) -> StateFuture[Any]:
        """Put the result of each step into ``results``; the future is there when all are."""
        results.extend([None] * len(program))
        return self._go_on(iter(enumerate(program)), all_sync, results, {})

    def _go_on(
        self,
        program: Iterator[tuple[int, Step]],
        all_sync: bool,
        results: list[Any],
        late: dict[int, Iterator[Any]],
    ) -> StateFuture[Any]:
        """Ask for steps until one waits; iterators of plain calls that do not wait are read at the end."""
        asked: list[StateFuture[Any]] = []
        for index, step in program:
            outcome = self._ask(step, all_sync)
            if isinstance(outcome, StateFuture):
                kept = outcome.then_compose(partial(_keep, results, index))
                if step.waits:
                    return combine_all(
                        [*asked, kept.then_compose(lambda _: self._go_on(program, all_sync, results, late))]
                    )
                asked.append(kept)
            elif isinstance(outcome, Iterator) and not step.waits:
                late[index] = outcome
            else:
                results[index] = list(outcome) if isinstance(outcome, Iterator) else outcome
        for index, iterator in late.items():
            results[index] = list(iterator)
        return combine_all(asked)

    def _ask(self, step: Step, all_sync: bool) -> Any:
        state = self._states[step.state]
        if step.state == "windowed":
            state = state.at(step.namespace)
        prefix = "" if step.sync or all_sync else "async_"
        return getattr(state, prefix + step.method)(*step.arguments)


def _keep(results: list[Any], index: int, value: Any) -> StateFuture[Any]:
    if isinstance(value, StateIterator):
        return value.to_list().then_accept(partial(results.__setitem__, index))
    results[index] = value
    return completed_void_future()


def run(
    program_batches: list[list[tuple[int, Program]]], deferred: bool, seed: int, all_sync: bool
) -> tuple[list[list[Any]], dict[bytes, bytes]]:
    """The results of all records and the bytes stored at the end."""
    sink = FakeSink(deferred, seed)
    results: list[list[Any]] = []
    for batch in program_batches:
        runner = Runner(FakeContext(sink, page_size=2))
        records = []
        for key, program in batch:
            results.append([])
            records.append(record(key, partial(runner.run, program, all_sync, results[-1])))
        run_records(sink, records)
        sink.commit()
    return results, sink.base


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of a few elements have several chunks."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 20)


@given(batches(st.just(False)), st.integers(0, 2**16))
@settings(max_examples=2 * settings().max_examples)
def test_both_forms_and_both_modes_agree_with_the_model(
    program_batches: list[list[tuple[int, Program]]], seed: int
) -> None:
    plain, stored = run(program_batches, deferred=False, seed=0, all_sync=True)
    assert plain == expected(program_batches)
    assert run(program_batches, deferred=False, seed=0, all_sync=False) == (plain, stored)
    assert run(program_batches, deferred=True, seed=seed, all_sync=False) == (plain, stored)


@given(batches(st.booleans()), st.integers(0, 2**16))
@settings(max_examples=2 * settings().max_examples)
def test_plain_calls_between_pending_ones_keep_the_order(
    program_batches: list[list[tuple[int, Program]]], seed: int
) -> None:
    results, stored = run(program_batches, deferred=True, seed=seed, all_sync=False)
    assert results == expected(program_batches)
    assert stored == run(program_batches, deferred=False, seed=0, all_sync=True)[1]


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
        self._runner = Runner(context)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        results: list[Any] = []
        done = self._runner.run(self._programs[row.program], False, results)
        return done.then_accept(lambda _: ctx.emit(repr(results)))


def run_harness(
    program_batches: list[list[tuple[int, Program]]], store: str, async_enabled: bool
) -> tuple[list[str], dict[bytes, bytes]]:
    """What ``run`` gives, results as text, in the order of the records."""
    programs = [program for batch in program_batches for _, program in batch]
    numbers = iter(range(len(programs)))
    schema = pa.schema([("key", pa.int64()), ("program", pa.int64())])
    options = {"async-state.iterate-response-batch-size": "2"}
    with OperatorHarness(
        ProgramOperator(programs), schema, ["key"], store=store, async_enabled=async_enabled, options=options
    ) as harness:
        for batch in program_batches:
            harness.push([(key, next(numbers)) for key, _ in batch])
            harness.end_batch()
        return [text for _, text in harness.output], harness.state_entries()


@given(batches(st.booleans()))
@settings(max_examples=settings().max_examples // 5)
def test_the_controllers_and_stores_agree_with_the_model(
    store_kind: Literal["rocksdb", "memory"], program_batches: list[list[tuple[int, Program]]]
) -> None:
    results, stored = run_harness(program_batches, store_kind, async_enabled=False)
    assert results == [repr(record_results) for record_results in expected(program_batches)]
    assert run_harness(program_batches, store_kind, async_enabled=True) == (results, stored)
