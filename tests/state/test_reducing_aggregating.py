"""ReducingState and AggregatingState: folding in order, what is stored, what is refused, which errors name what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate import (
    AggregateFunction,
    AggregatingStateDescriptor,
    InputSpec,
    ListStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    ReducingStateDescriptor,
    Row,
    StateFuture,
    ValueStateDescriptor,
    combine_all,
    functions,
)
from asyncstate.errors import CodecError, OperatorError, StateAccessError, StateDeclarationError
from asyncstate.state.keyed import chunks
from asyncstate.testing import OperatorHarness
from tests.state.fakes import FakeContext, FakeSink, record, run_records

ONE = record(1)
STORE_KEY = ONE.group + b"\x08" + ONE.encoded_key


def join(a: str, b: str) -> str:
    """Not commutative, so that a wrong order shows; 'x' cannot be joined."""
    if "x" in (a, b):
        raise ValueError(f"cannot join {a!r} and {b!r}")
    return a + b


class Mean(AggregateFunction[int, dict[str, int], float]):
    """Of ints; refuses what is negative."""

    def create_accumulator(self) -> dict[str, int]:
        return {"total": 0, "count": 0}

    def add(self, value: int, accumulator: dict[str, int]) -> dict[str, int]:
        if value < 0:
            raise ValueError(f"negative: {value}")
        accumulator["total"] += value
        accumulator["count"] += 1
        return accumulator

    def get_result(self, accumulator: dict[str, int]) -> float:
        return accumulator["total"] / accumulator["count"]

    def merge(self, a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {name: a[name] + b[name] for name in a}


WRONG: Any = 7
MEAN_TYPE = pa.struct([("total", pa.int64()), ("count", pa.int64())])


class Joined(AggregateFunction[str, list[str], str]):
    """Keeps everything, in order. What it is asked to return for '' and '?' cannot be stored."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        return {"": None, "?": 7}.get(value, [*accumulator, value])  # type: ignore[return-value]

    def get_result(self, accumulator: list[str]) -> str:
        if "broken" in accumulator:
            raise KeyError("broken")
        return "+".join(accumulator)

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b


@pytest.fixture
def sink() -> FakeSink:
    sink = FakeSink()
    sink.current = ONE
    return sink


def bound(sink: FakeSink, descriptor: Any) -> Any:
    return FakeContext(sink).get_state(descriptor)


# -- folding -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_values_are_reduced_in_the_order_in_which_they_were_added(sink: FakeSink, prefix: str) -> None:
    state = bound(sink, ReducingStateDescriptor("s", join, str))
    add = getattr(state, prefix + "add")
    assert (state.get(), state.async_get().get()) == (None, None)
    add("a")
    assert state.get() == "a"
    add("b")
    add("c")
    assert state.get() == state.async_get().get() == "abc"
    getattr(state, prefix + "clear")()
    assert (state.get(), sink.contents()) == (None, {})


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_an_accumulator_is_kept_and_its_result_shown(sink: FakeSink, prefix: str) -> None:
    state = bound(sink, AggregatingStateDescriptor("s", Mean(), MEAN_TYPE))
    assert (state.get(), state.async_get().get()) == (None, None)
    for value in (1, 2, 6):
        getattr(state, prefix + "add")(value)
    assert state.get() == state.async_get().get() == 3.0
    stored = bound(sink, ValueStateDescriptor("stored", MEAN_TYPE))
    assert stored._decode(sink.contents()[STORE_KEY]) == {"total": 9, "count": 3}


class Weighted(functions.AggregateFunction):
    """A mean whose accumulator is a ``form``: what the SQL side calls an aggregate function."""

    def __init__(self, form: Callable[..., Any]) -> None:
        self.form = form

    def create_accumulator(self) -> Any:
        return self.form({"total": 0, "count": 0}.items())

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        total, count = ("total", "count") if isinstance(accumulator, dict) else (0, 1)
        value, weight = args
        accumulator[total] += value * weight
        accumulator[count] += weight

    def merge(self, accumulator: Any, accumulators: Iterable[Any]) -> None:
        for other in accumulators:
            for at in list(accumulator) if isinstance(accumulator, dict) else range(2):
                accumulator[at] += other[at]

    def get_value(self, accumulator: Any) -> Any:
        total, count = accumulator.values() if isinstance(accumulator, dict) else accumulator
        return total / count

    def get_accumulator_type(self) -> pa.DataType | pa.Schema | None:
        return pa.schema(list(MEAN_TYPE))


FORMS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "list": lambda items: [value for _, value in items],
    "tuple": lambda items: tuple(value for _, value in items),
    "row": lambda items: functions.MutableRow(**dict(items)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("pickled", [False, True])
def test_a_function_of_tables_is_one_of_states_too(sink: FakeSink, form: str, pickled: bool) -> None:
    state = bound(sink, AggregatingStateDescriptor("s", Weighted(FORMS[form]), pickled=pickled))
    assert state.get() is None
    for pair in ((1, 1), (2, 1), (6, 2)):
        state.add(pair)
    assert state.get() == 15 / 4
    if not pickled:
        stored = bound(sink, ValueStateDescriptor("stored", MEAN_TYPE))
        assert stored._decode(sink.contents()[STORE_KEY]) == {"total": 15, "count": 4}
    namespaced = bound(
        sink, AggregatingStateDescriptor("n", Weighted(FORMS[form]), pickled=pickled, namespaced=True)
    )
    for namespace, pair in ((1, (4, 1)), (2, (6, 1))):
        namespaced.at(namespace).add(pair)
    namespaced.merge_namespaces(1, [2])
    assert namespaced.at(1).get() == 5.0


class NeedsMore(Weighted):
    def open(self, context: Any) -> None:
        raise AssertionError


class ShowsRows(functions.TableAggregateFunction):
    def create_accumulator(self) -> Any:
        return []

    def accumulate(self, accumulator: Any, *args: Any) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("function", "accumulator_type", "message"),
    [
        (NeedsMore(dict), None, "NeedsMore has a method open, which is never called for a state"),
        (ShowsRows(), pa.list_(pa.int64()), "ShowsRows has no method get_value"),
        (Weighted(dict), pa.struct([functions.map_view("seen", pa.int64(), pa.int64())]), "seen of the acc"),
        (ShowsRows(), None, "give a type"),
    ],
)
def test_what_a_state_cannot_keep_of_a_function(function: Any, accumulator_type: Any, message: str) -> None:
    with pytest.raises(StateDeclarationError, match=message):
        AggregatingStateDescriptor("s", function, accumulator_type)


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (pa.int64(), -3),
        (pa.string(), "é"),
        (pa.list_(pa.int32()), [1, 2]),
        (MEAN_TYPE, {"total": 1, "count": 2}),
    ],
)
def test_the_bytes_are_those_of_a_value_state(arrow_type: pa.DataType, value: Any) -> None:
    reducing, plain = FakeSink(), FakeSink()
    reducing.current = plain.current = ONE
    bound(reducing, ReducingStateDescriptor("s", lambda a, b: a, arrow_type)).add(value)
    bound(plain, ValueStateDescriptor("s", arrow_type)).update(value)
    assert reducing.contents() == plain.contents()
    assert list(plain.contents()) == [STORE_KEY]


def test_pickled_accumulators_may_be_any_object(sink: FakeSink) -> None:
    class Distinct(AggregateFunction[int, set[int], int]):
        def create_accumulator(self) -> set[int]:
            return set()

        def add(self, value: int, accumulator: set[int]) -> set[int]:
            return accumulator | {value}

        def get_result(self, accumulator: set[int]) -> int:
            return len(accumulator)

        def merge(self, a: set[int], b: set[int]) -> set[int]:
            return a | b

    state = bound(sink, AggregatingStateDescriptor("s", Distinct(), pickled=True))
    for value in (1, 2, 1):
        state.async_add(value)
    assert state.get() == 2


def test_namespaces_are_folded_apart(sink: FakeSink) -> None:
    state = bound(sink, ReducingStateDescriptor("s", join, str, namespaced=True))
    for namespace, text in [(1, "a"), (2, "b"), (1, "c")]:
        state.at(namespace).add(text)
    assert [state.at(namespace).get() for namespace in (1, 2, 3)] == ["ac", "b", None]
    with pytest.raises(StateAccessError, match=r"use at\(namespace\) first"):
        state.add("d")


@pytest.mark.parametrize("method", ["add", "get", "clear"])
@pytest.mark.parametrize("prefix", ["", "async_"])
def test_both_need_a_current_key(sink: FakeSink, method: str, prefix: str) -> None:
    state = bound(sink, ReducingStateDescriptor("s", join, str))
    sink.current = None
    with pytest.raises(StateAccessError, match="state 's' of operator 'op' was used without a current key"):
        getattr(state, prefix + method)(*(["a"] if method == "add" else []))


# -- in order, whatever has to be waited for -----------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "get", "clear"]), st.sampled_from("abc"), st.booleans()),
    max_size=10,
)
BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 2), STEPS), max_size=5), min_size=2, max_size=3)
Batches = list[list[tuple[int, list[tuple[str, str, bool]]]]]


def model(batches: Batches) -> list[list[Any]]:
    kept: dict[int, str | None] = {}
    results: list[list[Any]] = []
    for key, steps in [row for batch in batches for row in batch]:
        results.append([])
        for method, text, _ in steps:
            if method == "get":
                results[-1].append(kept.get(key))
            else:
                kept[key] = (kept.get(key) or "") + text if method == "add" else None
    return results


def run_steps(state: Any, steps: Sequence[tuple[str, str, bool]], all_sync: bool, results: list[Any]) -> None:
    """Ask for everything at once; a get puts its result in its place."""
    for method, text, sync in steps:
        outcome = getattr(state, method if sync or all_sync else "async_" + method)(
            *([text] if method == "add" else [])
        )
        if method == "get":
            index = len(results)
            results.append(None)
            if isinstance(outcome, StateFuture):
                outcome.then_accept(partial(results.__setitem__, index))
            else:
                results[index] = outcome


def run_batches(
    descriptor: Any, batches: Batches, deferred: bool, seed: int, all_sync: bool
) -> tuple[list[list[Any]], dict[bytes, bytes]]:
    sink = FakeSink(deferred, seed)
    results: list[list[Any]] = []
    for batch in batches:
        state = bound(sink, descriptor)
        records = []
        for key, steps in batch:
            results.append([])
            records.append(record(key, partial(run_steps, state, steps, all_sync, results[-1])))
        run_records(sink, records)
        sink.commit()
    return results, sink.base


class Appended(Joined):
    """``Joined`` without a separator, so that both states have the same model."""

    def get_result(self, accumulator: list[str]) -> str:
        return "".join(accumulator)


FOLDING = {
    "reducing": ReducingStateDescriptor("s", join, str),
    "aggregating": AggregatingStateDescriptor("s", Appended(), pa.list_(pa.string())),
}


@pytest.mark.parametrize("kind", FOLDING)
@given(BATCHES, st.integers(0, 2**16))
def test_any_mix_of_plain_and_pending_calls_folds_in_order(kind: str, batches: Batches, seed: int) -> None:
    plain, stored = run_batches(FOLDING[kind], batches, deferred=False, seed=0, all_sync=True)
    assert plain == model(batches)
    assert run_batches(FOLDING[kind], batches, deferred=True, seed=seed, all_sync=False) == (plain, stored)
    assert run_batches(FOLDING[kind], batches, deferred=False, seed=0, all_sync=False) == (plain, stored)


def test_two_pending_adds_share_one_read() -> None:
    sink = FakeSink(deferred=True)
    sink.current = ONE
    state = bound(sink, ReducingStateDescriptor("s", join, str))
    asked = [state.async_add("a"), state.async_get(), state.async_add("b"), state.async_get()]
    assert (sink.reads, [future.done for future in asked]) == (1, [False] * 4)
    sink.answer_one()
    assert [future.get() for future in asked] == [None, "a", None, "ab"]


# -- errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deferred", [False, True])
def test_a_failing_function_fails_its_own_call_only(deferred: bool) -> None:
    sink = FakeSink(deferred)
    sink.current = ONE
    state = bound(sink, ReducingStateDescriptor("words", join, str))
    adds = [state.async_add(text) for text in "axb"]
    while sink.waiting:
        sink.answer_one()
    assert [add.failed for add in adds] == [False, True, False]
    error = adds[1].exception()
    assert isinstance(error, OperatorError)
    assert "operator 'op', state 'words': join raised ValueError: cannot join 'a' and 'x'" in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert state.get() == "ab"
    with pytest.raises(OperatorError, match="join raised ValueError"):
        state.add("x")
    assert state.get() == "ab"


@pytest.mark.parametrize(
    ("descriptor", "given", "error", "text"),
    [
        (ReducingStateDescriptor("s", lambda a, b: None, int), 2, StateAccessError, "returned None"),
        (ReducingStateDescriptor("s", lambda a, b: "2", int), 2, CodecError, "operator 'op', state 's'"),
        (ReducingStateDescriptor("s", max, int), None, StateAccessError, "None cannot be added"),
        (
            AggregatingStateDescriptor("s", Joined(), pa.list_(pa.string())),
            "",
            StateAccessError,
            "state 's' of operator 'op': Joined returned None, which cannot be stored; return the combined value",
        ),
        (
            AggregatingStateDescriptor("s", Joined(), pa.list_(pa.string())),
            "?",
            CodecError,
            "operator 'op', state 's'",
        ),
    ],
)
@pytest.mark.parametrize("prefix", ["", "async_"])
def test_what_cannot_be_stored_is_refused_and_changes_nothing(
    sink: FakeSink, descriptor: Any, given: Any, error: type[Exception], text: str, prefix: str
) -> None:
    state = bound(sink, descriptor)
    state.add(1 if descriptor.kind == "reducing" else "a")
    before = sink.contents()

    def add() -> None:
        outcome = getattr(state, prefix + "add")(given)
        assert isinstance(outcome, StateFuture)
        outcome.get()

    with pytest.raises(error, match=re.escape(text)):
        add()
    assert sink.contents() == before


class Returning(functions.AggregateFunction):
    """Returns a new accumulator."""

    def create_accumulator(self) -> Any:
        return [0]

    def accumulate(self, accumulator: Any, *args: Any) -> Any:
        return [accumulator[0] + args[0]]

    def merge(self, accumulator: Any, accumulators: Iterable[Any]) -> Any:
        return [accumulator[0] + sum(other[0] for other in accumulators)]

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0]


class ReturningItself(Returning):
    def accumulate(self, accumulator: Any, *args: Any) -> Any:
        accumulator[0] += args[0]
        return accumulator


class Later(Returning):
    async def accumulate(self, accumulator: Any, *args: Any) -> Any:  # type: ignore[override]
        accumulator[0] += args[0]


class Shared(ReturningItself):
    def __init__(self) -> None:
        self.nothing = [0]

    def create_accumulator(self) -> Any:
        return self.nothing


def test_an_accumulator_that_keys_would_share() -> None:
    with pytest.raises(
        StateDeclarationError, match="Shared.create_accumulator returns the same list each time"
    ):
        AggregatingStateDescriptor("s", Shared(), pa.list_(pa.int64()))


@pytest.mark.parametrize("prefix", ["", "async_"])
def test_an_accumulator_that_is_returned_instead_of_changed(sink: FakeSink, prefix: str) -> None:
    """What would be lost without a word."""
    for function, shown in ((Returning(), r"Returning.accumulate returned \[2\]"), (Later(), "<coroutine")):
        state = bound(sink, AggregatingStateDescriptor("s", function, pa.list_(pa.int64())))
        with pytest.raises(
            OperatorError, match=f"{shown}.*change the accumulator in place and return nothing"
        ):
            getattr(state, prefix + "add")(2).get()
    good = AggregatingStateDescriptor("n", ReturningItself(), pa.list_(pa.int64()), namespaced=True)
    namespaced = bound(sink, good)
    for namespace in (1, 2):
        namespaced.at(namespace).add(namespace)
    assert namespaced.at(2).get() == 2
    with pytest.raises(OperatorError, match=r"ReturningItself.merge returned \[3\]"):
        namespaced.merge_namespaces(1, [2])


def test_a_failing_result_names_the_method(sink: FakeSink) -> None:
    state = bound(sink, AggregatingStateDescriptor("s", Joined(), pa.list_(pa.string())))
    state.add("broken")
    expected = re.escape("operator 'op', state 's': Joined.get_result raised KeyError: 'broken'")
    with pytest.raises(OperatorError, match=expected):
        state.get()
    assert re.search(expected, str(state.async_get().exception()))


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: ReducingStateDescriptor("s", WRONG, int), "reduce_function=7 cannot be called"),
        (lambda: ReducingStateDescriptor("s", max), "give a type, or declare it with pickled=True"),
        (
            lambda: AggregatingStateDescriptor("s", WRONG, MEAN_TYPE),
            "is not an AggregateFunction; give an instance",
        ),
        (lambda: AggregatingStateDescriptor("s", Mean(), int, pickled=True), "leave the type out"),
    ],
)
def test_a_wrong_declaration_says_what_to_give(declare: Callable[[], Any], text: str) -> None:
    with pytest.raises(StateDeclarationError, match=re.escape(text)):
        declare()


def test_the_declared_type_and_not_the_function_must_agree_with_the_checkpoint(sink: FakeSink) -> None:
    context: Any = FakeContext(sink)
    stored = ReducingStateDescriptor("s", max, pa.int32()).type_texts()
    state: Any = ReducingStateDescriptor("s", min, pa.int64()).bind(sink, 8, context, stored)
    state.add(2**40)
    assert state.get() == 2**40
    with pytest.raises(StateDeclarationError, match="value is pickled but the checkpoint has int32"):
        ReducingStateDescriptor("s", max, pickled=True).bind(sink, 8, context, stored)


# -- on the real controllers and stores ----------------------------------------------------------------------

SCHEMA = pa.schema([("key", pa.int64()), ("word", pa.string()), ("number", pa.int64())])
Rows = list[tuple[int, str, int]]


class Folding(RecordOperator):
    """After each row: the words joined and the mean of the numbers. Adds without waiting."""

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("words", pa.string()), ("mean", pa.float64())])

    def open(self, context: OperatorContext) -> None:
        self.words = context.get_state(ReducingStateDescriptor("words", join, str))
        self.mean = context.get_state(AggregatingStateDescriptor("mean", Mean(), MEAN_TYPE))

    def process(self, row: Row, ctx: RecordContext) -> StateFuture[Any]:
        adds = [self.words.async_add(row.word), self.mean.async_add(row.number)]
        reads: list[StateFuture[Any]] = [self.words.async_get(), self.mean.async_get()]
        return combine_all([*adds, *reads]).then_accept(
            lambda values: ctx.emit(row.key, values[2], values[3])
        )


def folding_harness(async_enabled: bool, **more: Any) -> OperatorHarness:
    return OperatorHarness(Folding(), SCHEMA, ["key"], async_enabled=async_enabled, **more)


def expected_rows(rows: Rows) -> list[tuple[Any, ...]]:
    seen: dict[int, list[tuple[str, int]]] = {}
    output = []
    for key, word, number in rows:
        mine = seen.setdefault(key, [])
        mine.append((word, number))
        output.append(
            ("+I", key, "".join(word for word, _ in mine), sum(number for _, number in mine) / len(mine))
        )
    return output


ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "é"]), st.integers(0, 100)), max_size=12
)


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_both_modes_give_the_same_rows_and_bytes(batches: list[Rows]) -> None:
    stored = []
    for async_enabled in (False, True):
        with folding_harness(async_enabled) as harness:
            for batch in batches:
                harness.push(batch)
                harness.end_batch()
            assert harness.output == expected_rows([row for batch in batches for row in batch])
            stored.append(harness.state_entries())
    assert stored[0] == stored[1]


def test_folded_values_survive_restart_rescaling_and_a_change_of_mode(
    async_enabled: bool, tmp_path: Any
) -> None:
    first: Rows = [(key, word, key) for key in range(20) for word in ("a", "b")]
    second: Rows = [(key, "c", key + 3) for key in range(20)]
    with folding_harness(async_enabled, folder=tmp_path, parallelism=2, max_parallelism=8) as harness:
        harness.push(first)
        harness.end_batch()
    with folding_harness(not async_enabled, folder=tmp_path, parallelism=3, max_parallelism=8) as harness:
        harness.push(second)
        rows = harness.end_batch()
    assert sorted(rows) == sorted(expected_rows(first + second)[len(first) :])


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (
            (5, "x", 1),
            "operator 'operator', state 'words', key (5,): join raised ValueError: cannot join 'a' and 'x'",
        ),
        (
            (5, "b", -1),
            "operator 'operator', state 'mean', key (5,): Mean.add raised ValueError: negative: -1",
        ),
    ],
)
def test_a_failing_function_fails_the_batch_with_operator_state_and_key(
    async_enabled: bool, row: tuple[int, str, int], text: str
) -> None:
    with folding_harness(async_enabled) as harness:
        harness.push([(5, "a", 1)])
        harness.end_batch()
        before = harness.state_entries()
        harness.push([row])
        with pytest.raises(OperatorError, match=re.escape(text)):
            harness.end_batch()
        assert harness.state_entries() == before


class Tolerant(Folding):
    """Puts out what went wrong instead of failing."""

    def process(self, row: Row, ctx: RecordContext) -> StateFuture[Any]:
        return (
            self.words.async_add(row.word)
            .recover(lambda error: ctx.emit(row.key, type(error.__cause__).__name__, None))
            .then_compose(lambda _: self.words.async_get())
            .then_accept(lambda words: ctx.emit(row.key, words, None))
        )


def test_a_failing_function_can_be_recovered_from_in_both_modes(async_enabled: bool) -> None:
    with OperatorHarness(Tolerant(), SCHEMA, ["key"], async_enabled=async_enabled) as harness:
        harness.push([(1, "a", 0), (1, "x", 0), (1, "b", 0)])
        assert [row[2] for row in harness.end_batch()] == ["a", "ValueError", "a", "ab"]


class Strict(RecordOperator):
    """Fails with an error of its own behind a read that had to wait."""

    def __init__(self, descriptor: Any) -> None:
        self._descriptor = descriptor

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("word", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self.words = context.get_state(self._descriptor)

    async def process(self, row: Row, ctx: RecordContext) -> None:
        self.words.async_add(row.word)
        if "".join(await self.words.async_get()) == "ab":
            raise LookupError("no b behind an a")


@pytest.mark.parametrize(
    "descriptor", [ReducingStateDescriptor("words", "{}{}".format, str), ListStateDescriptor("words", str)]
)
def test_a_coroutine_that_fails_behind_a_waiting_read_fails_the_batch(
    device: str, async_enabled: bool, descriptor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1)
    with OperatorHarness(Strict(descriptor), SCHEMA, ["key"], async_enabled=async_enabled) as harness:
        harness.push([(7, "a", 1)])
        harness.end_batch()
        harness.push([(7, "b", 1)])
        with pytest.raises(OperatorError, match=re.escape("key (7,): LookupError: no b behind an a")):
            harness.end_batch()
