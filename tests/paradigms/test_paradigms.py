"""The nine paradigms: every form gives the rows of the model and stores the same bytes, in every mode.

Source: the appendix of FLIP-473.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import FutureStateError, OperatorError
from asyncstate.execution import Pacer
from asyncstate.runtime.partition.worker_memory import worker_memory
from asyncstate.testing import OperatorHarness, Tuning
from bench.paradigms import (
    PARADIGMS,
    ROWS,
    Branches,
    Combined,
    DependentLoop,
    Form,
    IndependentLoop,
    Paradigm,
    Traversal,
)
from bench.paradigms.measure import has_await
from tests.examples import share
from tests.paradigms.models import Line, Row, run_model
from tests.state.fakes import FakeContext, FakeSink, record, run_records

Entries = dict[bytes, bytes]
Outcome = tuple[list[Line], Entries]

WAITING = Tuning(batch_hot_reads=True)
TINY = {
    "async-state.in-flight-limit": "5",
    "async-state.buffer-size": "2",
    "async-state.iterate-response-batch-size": "2",
}
MODES: dict[str, dict[str, Any]] = {
    "sync": {"async_enabled": False},
    "at once": {"async_enabled": True},
    "gathered": {"async_enabled": True, "tuning": WAITING},
    "tiny": {"async_enabled": True, "tuning": WAITING, "options": TINY},
    "threads": {"async_enabled": True, "options": {"async-state.cache-size": "0b"}},
}


class _ShuffledReads(Pacer):
    """Takes the store for a slow device and cuts reads into pieces of any size, which threads answer in any order."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    @property
    def waits_for_device(self) -> bool:
        return True

    def chunk_keys(self, keys: int, threads: int) -> int:
        return self._random.randint(1, max(1, min(keys, 40)))


@contextmanager
def _paced(mode: str, seed: int) -> Iterator[None]:
    """Nothing that reads of other tests have taught counts here: on a busy machine their store seemed slow."""
    before = worker_memory().pacer
    worker_memory().pacer = _ShuffledReads(seed) if mode == "threads" else Pacer()
    try:
        yield
    finally:
        worker_memory().pacer = before


def _forms(paradigm: type[Paradigm]) -> list[str]:
    """Every form whose results are right, the rejected among them."""
    forms: list[str] = [Form.CALLS, Form.FUTURES, *([Form.AWAIT] if has_await(paradigm) else [])]
    return forms + [rejected.method for rejected in paradigm.rejected if rejected.right]


def _run(operator: Paradigm, batches: Sequence[Sequence[Row]], mode: str, seed: int = 0) -> Outcome:
    """Output rows of all micro-batches, in order, and what is stored in the end."""
    with (
        _paced(mode, seed),
        OperatorHarness(operator, ROWS, ["key"], **MODES[mode]) as harness,
    ):
        for rows in batches:
            harness.push(rows)
            harness.end_batch()
        return list(harness.output), harness.state_entries()


def _flat(batches: Sequence[Sequence[Row]]) -> list[Row]:
    return [row for rows in batches for row in rows]


rows = st.lists(st.builds(Row, st.integers(0, 3), st.integers(0, 4), st.integers(0, 4)), max_size=25)
every_paradigm = pytest.mark.parametrize("paradigm", PARADIGMS, ids=lambda paradigm: paradigm.__name__)


@every_paradigm
@given(batches=st.lists(rows, min_size=1, max_size=3), seed=st.integers(0, 2**16))
@settings(max_examples=share(10))
def test_all_forms_give_the_models_rows_and_store_the_same(
    paradigm: type[Paradigm], batches: list[list[Row]], seed: int
) -> None:
    plain = _run(paradigm(Form.CALLS), batches, "sync")
    assert plain[0] == run_model(paradigm, _flat(batches))
    for form in _forms(paradigm):
        for mode in MODES:
            assert _run(paradigm(form), batches, mode, seed=seed) == plain, f"{form}, {mode}"


def _crowd(keys: int, count: int, seed: int) -> list[Row]:
    """Rows of many keys, some of them a hundred times as frequent as others."""
    draw = random.Random(seed)
    return [
        Row(
            draw.randrange(keys) if draw.random() < 0.9 else draw.randrange(5),
            draw.randrange(5),
            draw.randrange(5),
        )
        for _ in range(count)
    ]


@pytest.mark.long
@every_paradigm
@pytest.mark.parametrize("mode", ["at once", "gathered", "threads"])
def test_thousands_of_keys_in_flight(paradigm: type[Paradigm], mode: str) -> None:
    batches = [_crowd(2_000, 3_000, seed) for seed in (1, 2)]
    plain = _run(paradigm(Form.CALLS), batches, "sync")
    assert plain[0] == run_model(paradigm, _flat(batches))
    for form in _forms(paradigm)[1:]:
        assert _run(paradigm(form), batches, mode, seed=7) == plain, form


@every_paradigm
@given(batches=st.lists(rows, min_size=1, max_size=2), seed=st.integers(0, 2**16))
def test_answers_may_come_in_any_order(paradigm: type[Paradigm], batches: list[list[Row]], seed: int) -> None:
    """Reads and scans answered one by one, a random one each time: of each key the rows are those of the model."""
    by_key: dict[int, list[Line]] = {}
    for row, line in zip(_flat(batches), run_model(paradigm, _flat(batches)), strict=True):
        by_key.setdefault(row.key, []).append(line)
    plain = _deferred(paradigm(Form.CALLS), batches, seed)
    assert plain[0] == by_key
    assert _deferred(paradigm(Form.FUTURES), batches, seed) == plain


class _Emitted:
    """The part of a RecordContext that paradigms use."""

    def __init__(self, lines: list[Line]) -> None:
        self._lines = lines

    def emit(self, *values: Any) -> None:
        self._lines.append(("+I", *values))


def _deferred(
    operator: Paradigm, batches: Sequence[Sequence[Row]], seed: int
) -> tuple[dict[int, list[Line]], Entries]:
    """Lines by key, and what is stored, over a sink that answers in random order."""
    sink = FakeSink(deferred=True, seed=seed)
    lines: dict[int, list[Line]] = {}
    for batch in batches:
        context: Any = FakeContext(sink, page_size=2)
        operator.open(context)
        work: list[Any] = []
        for row in batch:
            emitted = _Emitted(lines.setdefault(row.key, []))
            work.append(record(row.key, partial(operator.process, row, emitted)))  # type: ignore[arg-type]
        run_records(sink, work)
        sink.commit()
    return lines, sink.base


@every_paradigm
@pytest.mark.parametrize("form", [Form.CALLS, Form.FUTURES])
def test_a_record_reads_as_often_as_the_page_says(paradigm: type[Paradigm], form: str) -> None:
    with OperatorHarness(paradigm(form), ROWS, ["key"], async_enabled=form is Form.FUTURES) as harness:
        for _ in range(2):
            harness.push([Row(key, 1, 3) for key in range(10)])
            harness.end_batch()
        figures = harness.statistics()
    # the loop of 7 comes to x twice
    assert (figures["reads"] / 10, figures["scans"] / 10) == (paradigm.reads, paradigm.scans)


class TestWhatGoesWrongInRejectedForms:
    """Not that they fail is tested here, but that what the pages say of them is so."""

    @pytest.mark.parametrize("mode", MODES)
    def test_a_future_is_neither_true_nor_false(self, mode: str) -> None:
        with pytest.raises(OperatorError, match="is neither true nor false") as raised:
            _run(Branches("asks_the_future"), [[Row(1, 2, 0)]], mode)
        assert isinstance(raised.value.__cause__, FutureStateError)

    def test_get_works_until_a_read_waits(self) -> None:
        batches = [[Row(1, 2, 3)], [Row(1, 2, 3)]]
        right = _run(Combined(Form.CALLS), batches, "sync")
        assert _run(Combined("gets_too_early"), batches, "at once") == right
        with pytest.raises(OperatorError, match="has no value yet") as raised:
            _run(Combined("gets_too_early"), batches, "gathered")
        assert isinstance(raised.value.__cause__, FutureStateError)

    def test_pages_behind_the_first_are_missed(self) -> None:
        batches = [[Row(1, x, 0) for x in range(1, 5)], [Row(1, 9, 0)]]
        right, _ = _deferred(Traversal(Form.FUTURES), batches, seed=0)
        wrong, _ = _deferred(Traversal("does_not_wait_for_the_pages"), batches, seed=0)
        assert right[1][-1] == ("+I", 1, 1 + 2 + 3 + 4)
        assert wrong[1][-1] == ("+I", 1, 1 + 2)

    def test_an_element_that_comes_twice_is_read_before_it_is_written(self) -> None:
        rows = [[Row(1, 3, 4)]]
        right, _ = _run(DependentLoop(Form.CALLS), rows, "sync")
        for mode in MODES:
            assert _run(DependentLoop("reads_all_first"), rows, mode)[0] != right

    def test_lambdas_see_the_end_of_the_loop(self) -> None:
        batches = [[Row(1, 3, 4)], [Row(1, 3, 4)]]
        right = _run(IndependentLoop(Form.CALLS), batches, "sync")
        assert _run(IndependentLoop("closes_over_the_loop"), batches, "at once") == right
        assert _run(IndependentLoop("closes_over_the_loop"), batches, "gathered") != right


def test_the_rejected_forms_exist_and_say_why() -> None:
    for paradigm in PARADIGMS:
        assert paradigm.rejected
        for rejected in paradigm.rejected:
            why = getattr(paradigm, rejected.method).__doc__
            assert why.startswith(("Right, but", "Correct, but") if rejected.right else "Wrong:")
