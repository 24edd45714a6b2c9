"""Process table functions: the examples of their proposal, their tables, states and timers, and what is refused."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import ListView, MapView, RecordContext, Row, RowKind, StateTtl, Timer, ValueView, to_iterable
from asyncstate.changelog import Changelog
from asyncstate.errors import AsyncStateError, OperatorError, SchemaError
from asyncstate.functions import (
    BroadcastTable,
    ProcessTableFunction,
    RowTable,
    SetTable,
    StateHint,
    TableContext,
    TableHint,
    table_function,
)
from asyncstate.operator import OutputSpec
from asyncstate.testing import OperatorHarness, Tuning
from operators.process.process_table_function import TableFunction
from tests.operators.function_runs import slow_reads

HOUR = 3_600_000_000
WAITING = Tuning(batch_hot_reads=True)
TEXTS = pa.schema([("text", pa.string())])
SCORES = pa.schema([("ts", pa.timestamp("us")), ("name", pa.string()), ("score", pa.int64())])


def harness_of(
    function: Any, inputs: Any, key: Any, async_enabled: bool, output: Any = TEXTS, **settings: Any
) -> OperatorHarness:
    operator = function if isinstance(function, TableFunction) else TableFunction(function, output)
    return OperatorHarness(operator, inputs, key, async_enabled=async_enabled, changelog=False, **settings)


def texts(rows: list[tuple[Any, ...]]) -> list[str]:
    assert all(row[0] == "+I" for row in rows)
    return [row[1] for row in rows]


# -- late data ---------------------------------------------------------------------------------------------


def identity(input: SetTable) -> Iterator[Row]:
    yield input


SCORED = [(13, "Bob", 12), (13, "Bob", 33), (14, "Bob", 50), (12, "Bob", 100)]


@pytest.mark.parametrize("order", [None, "ts"])
def test_late_data_enters_the_function_unless_its_table_is_ordered(
    async_enabled: bool, order: str | None
) -> None:
    """Each row is a micro-batch, and moves the watermark to its time."""
    names = {} if order is None else {"input": "late"}
    operator = TableFunction(identity, SCORES, late_outputs=names)
    with harness_of(operator, SCORES, ["name"], async_enabled, event_time="ts", order_by=order) as harness:
        for hour, name, score in SCORED:
            harness.push([(hour * HOUR, name, score)])
            harness.advance_watermark(max(harness.watermark, hour * HOUR))
            harness.end_batch()
        got = [(row[1] // HOUR, *row[2:]) for row in harness.output]
        if order is None:
            assert got == SCORED
        else:
            assert got == [(13, "Bob", 12), (14, "Bob", 50)]
            late = [(row[1] // HOUR, *row[2:]) for row in harness.side_output("late")]
            assert late == [(13, "Bob", 33), (12, "Bob", 100)]


# -- state -------------------------------------------------------------------------------------------------

GUESTS = pa.schema([("name", pa.string()), ("condition", pa.string())])


@dataclass
class CountState:
    counter: int = 0


class GreetingWithMemory(ProcessTableFunction):
    output = TEXTS

    def eval(self, state: CountState, input: SetTable) -> Iterator[str]:
        state.counter += 1
        yield f"Hello {input.name}, your {state.counter} time?"


class LazyGreetingWithMemory(ProcessTableFunction):
    output = TEXTS

    def eval(self, state: ValueView[int], input: SetTable) -> Iterator[str]:
        if input.condition == "true":
            return
        new = 1
        if not state.is_empty():
            new = (state.value() or 0) + 1
        state.update(new)
        yield f"Hello {input.name}, your {new} time?"


async def awaiting_greeting(state: ValueView[int], input: SetTable, ctx: RecordContext) -> None:
    if input.condition != "true":
        new = (await state.async_value() or 0) + 1
        await state.async_update(new)
        ctx.emit(f"Hello {input.name}, your {new} time?")


async def yielding_greeting(ctx: RecordContext, input: SetTable, state: ValueView[int]) -> AsyncIterator[str]:
    if input.condition != "true":
        new = (await state.async_value() or 0) + 1
        await state.async_update(new)
        yield f"Hello {ctx.key[0]}, your {new} time?"


def chained_greeting(state: ValueView[int], input: SetTable) -> Any:
    def greet(count: int | None) -> list[str]:
        state.async_update((count or 0) + 1)
        return [f"Hello {input.name}, your {(count or 0) + 1} time?"]

    return None if input.condition == "true" else state.async_value().then_apply(greet)


GREETINGS = [
    GreetingWithMemory(),
    LazyGreetingWithMemory(),
    awaiting_greeting,
    yielding_greeting,
    chained_greeting,
]


@pytest.mark.parametrize("function", GREETINGS, ids=lambda one: getattr(one, "__name__", type(one).__name__))
@given(
    batches=st.lists(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["true", "false"])), max_size=9),
        min_size=1,
        max_size=4,
    ),
    restart=st.integers(0, 4),
)
@settings(max_examples=settings().max_examples // 4)
def test_greetings_are_those_of_a_plain_loop(
    function: Any, batches: list[list[tuple[str, str]]], restart: int, async_enabled: bool
) -> None:
    seen: dict[str, int] = {}
    with slow_reads():
        harness = harness_of(function, GUESTS, ["name"], async_enabled)
        for number, rows in enumerate(batches):
            wanted = []
            for name, condition in rows:
                if condition == "true" and not isinstance(function, GreetingWithMemory):
                    continue
                seen[name] = seen.get(name, 0) + 1
                wanted.append(f"Hello {name}, your {seen[name]} time?")
            harness.push(rows)
            got = texts(harness.end_batch())
            assert (got if number <= restart else sorted(got)) == (
                wanted if number <= restart else sorted(wanted)
            )
            if number == restart:
                snapshot = harness.snapshot()
                harness.close()
                harness = harness.restore(snapshot, parallelism=3, async_enabled=not async_enabled)
        harness.close()


def test_a_view_that_is_not_asked_for_is_not_read(async_enabled: bool) -> None:
    with harness_of(LazyGreetingWithMemory(), GUESTS, ["name"], async_enabled) as harness:
        harness.push([("Bob", "true")])
        harness.end_batch()
        assert harness.statistics()["reads"] == 0
        assert harness.state_entries() == {}
        harness.push([("Bob", "false")])
        harness.end_batch()
        assert harness.statistics()["reads"] > 0
        assert len(harness.state_entries()) == 1


@dataclass
class Basket:
    items: Annotated[list[str] | None, pa.list_(pa.string())] = field(default_factory=list)
    total: float | None = 0.0
    open: bool = False


class Shopping(ProcessTableFunction):
    """A dataclass with a list, which is changed in place."""

    output = TEXTS

    def eval(self, input: SetTable, basket: Basket, log: ListView[str], counts: MapView[str, int]) -> None:
        assert basket.items is not None
        if input.condition == "pay":
            basket.items, basket.total, basket.open = [], 0.0, False
        elif input.condition != "look":
            basket.items.append(input.condition)
            basket.total = (basket.total or 0) + 0.5
            basket.open = True
        log.add(f"{len(basket.items)} {basket.total}")
        counts[input.condition] = (counts[input.condition] or 0) + 1


def test_dataclasses_are_kept_as_long_as_they_say_something(async_enabled: bool) -> None:
    def values(harness: OperatorHarness) -> int:
        return len([key for key in harness.state_entries() if key[2] == 8])

    with harness_of(Shopping(), GUESTS, ["name"], async_enabled) as harness:
        harness.push([("ann", "tea"), ("ann", "ink"), ("bob", "look")])
        harness.end_batch()
        assert values(harness) == 1
        writes = harness.state_entries()
        harness.push([("ann", "look")])
        harness.end_batch()
        kept = {key: value for key, value in harness.state_entries().items() if key[2] == 8}
        assert kept == {key: value for key, value in writes.items() if key[2] == 8}
        harness.push([("ann", "pay")])
        harness.end_batch()
        assert values(harness) == 0


# -- broadcast ---------------------------------------------------------------------------------------------

SENTENCES = pa.schema([("id", pa.int64()), ("sentence", pa.string())])
WORDS = pa.schema([("word", pa.string()), ("score", pa.float64())])


class Rules(ProcessTableFunction):
    """Filters data based on a dynamic list."""

    output = TEXTS

    def eval(
        self,
        bad_words: Annotated[MapView[str, float], StateHint(broadcast=True)],
        data: RowTable | None,
        rules: BroadcastTable | None,
    ) -> Any:
        if rules is not None:
            bad_words[rules.word] = rules.score
            return None
        assert data is not None
        if any(word in bad_words for word in data.sentence.lower().split()):
            return None
        return [data.sentence]


@pytest.mark.parametrize("key", [None, ("id", None)])
def test_rules_are_the_same_for_all_rows(async_enabled: bool, key: Any) -> None:
    with harness_of(Rules(), [SENTENCES, WORDS], key, async_enabled, parallelism=3) as harness:
        harness.push([(1, "Have a nice day"), (2, "a bad day")])
        assert sorted(texts(harness.end_batch())) == ["Have a nice day", "a bad day"]
        harness.push([("bad", 1.0), ("ugly", 2.0)], input=1)
        harness.push([(1, "Have a nice day"), (2, "a BAD day"), (3, "so ugly")])
        assert texts(harness.end_batch()) == ["Have a nice day"]


@dataclass
class Cache:
    payload: str | None = None


PAYLOADS = pa.schema([("k", pa.string()), ("payload", pa.string())])
RESETS = pa.schema([("why", pa.string())])
Reset = Annotated[Row, TableHint("broadcast", notify_stateful_sets=True)]


class ControllableDedup(ProcessTableFunction):
    """Dedups data until broadcast cache invalidation."""

    output = TEXTS

    def eval(self, cache: Cache | None, data: SetTable | None, reset: Reset | None) -> Iterator[str]:
        if data is not None:
            assert cache is not None
            if cache.payload is None:
                cache.payload = data.payload
                yield data.payload
        elif reset is not None and cache is not None:
            cache.payload = None


def test_a_broadcast_row_is_shown_to_all_sets_with_state(async_enabled: bool) -> None:
    with harness_of(
        ControllableDedup(), [PAYLOADS, RESETS], ["k", None], async_enabled, parallelism=2
    ) as harness:
        harness.push([("a", "a1"), ("b", "b1"), ("a", "a2")])
        assert sorted(texts(harness.end_batch())) == ["a1", "b1"]
        harness.push([("a", "a3"), ("c", "c1")])
        assert texts(harness.end_batch()) == ["c1"]
        harness.push([("new",)], input=1)
        harness.push([("b", "b2")])
        assert texts(harness.end_batch()) == ["b2"]
        assert harness.statistics()["counter.keys_notified"] == 3
        assert len(harness.state_entries()) == 1
        harness.push([("a", "a4")])
        assert texts(harness.end_batch()) == ["a4"]


def told(note: ValueView[str] | None, data: SetTable | None, reset: Reset | None, ctx: RecordContext) -> Any:
    """Says who was told; in a notification sets may put rows out and have timers."""
    if data is not None:
        assert note is not None
        return note.async_update(data.payload)
    assert reset is not None
    if note is None:
        return None
    return note.async_value().then_apply(lambda text: [f"{ctx.key[0]} {text}: {reset.why}"])


def test_notified_sets_put_rows_out(async_enabled: bool) -> None:
    with harness_of(told, [PAYLOADS, RESETS], ["k", None], async_enabled) as harness:
        harness.push([("a", "1"), ("b", "2")])
        assert harness.end_batch() == []
        harness.push([("late",), ("over",)], input=1)
        assert sorted(texts(harness.end_batch())) == ["a 1: late", "a 1: over", "b 2: late", "b 2: over"]


def greedy(data: SetTable | None, rules: BroadcastTable | None) -> Iterator[str]:
    yield "a row"


def test_rows_of_a_broadcast_table_put_nothing_out(async_enabled: bool) -> None:
    with harness_of(greedy, [PAYLOADS, RESETS], ["k", None], async_enabled) as harness:
        harness.push([("new",)], input=1)
        with pytest.raises(OperatorError, match="every partition would emit"):
            harness.end_batch()


# -- several tables, timers, order --------------------------------------------------------------------------

ORDERS = pa.schema([("id", pa.string()), ("amount", pa.int64()), ("at", pa.timestamp("us"))])
PAYMENTS = pa.schema([("order", pa.string()), ("paid", pa.int64()), ("when", pa.timestamp("us"))])
OnTime = Annotated[Row, TableHint("set", on_time=True)]


class Unpaid(ProcessTableFunction):
    """Orders that have not been paid ten microseconds later."""

    output = TEXTS
    side_outputs: ClassVar[dict[str, pa.Schema]] = {"paid": TEXTS}

    async def eval(
        self, due: ValueView[int], order: OnTime | None, payment: OnTime | None, ctx: RecordContext
    ) -> None:
        if order is not None:
            assert ctx.timestamp is not None
            await due.async_update((await due.async_value() or 0) + order.amount)
            ctx.timers.register_event_time(ctx.timestamp + 10, name="reminder")
        elif payment is not None:
            left = (await due.async_value() or 0) - payment.paid
            await due.async_update(left or None)
            if not left:
                ctx.timers.delete_event_time(name="reminder")
                ctx.emit(ctx.key[0], output="paid")

    def on_timer(self, timer: Timer, due: ValueView[int], ctx: RecordContext) -> Iterator[str]:
        yield f"{ctx.key[0]} owes {due.value()} at {timer.time}"
        due.clear()


def test_two_tables_share_state_and_timers(async_enabled: bool) -> None:
    with harness_of(
        Unpaid(), [ORDERS, PAYMENTS], ["id", "order"], async_enabled, event_time=["at", "when"], parallelism=2
    ) as harness:
        harness.push([("o1", 7, 10), ("o2", 5, 11)])
        harness.advance_watermark(12)
        assert harness.end_batch() == []
        harness.push([("o1", 7, 15)], input=1)
        harness.push([("o2", 1, 16)], input=1)
        harness.advance_watermark(30)
        assert texts(harness.end_batch()) == ["o2 owes 4 at 21"]
        assert texts(harness.side_output("paid")) == ["o1"]
        assert harness.state_entries() == {}


def in_turn(a: SetTable | None, b: SetTable | None, seen: ListView[str]) -> Any:
    async def tell() -> list[str]:
        await seen.async_add(f"a{a.at}" if a is not None else f"b{b.when}")  # type: ignore[union-attr]
        return [" ".join(await to_iterable(seen.async_get()))]

    return tell()


@given(
    rows=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=12),
    cuts=st.integers(1, 4),
)
@settings(max_examples=settings().max_examples // 2)
def test_each_table_has_an_order_of_its_own(
    rows: list[tuple[int, int]], cuts: int, async_enabled: bool
) -> None:
    """Ordered tables are delivered in order of time, whatever the micro-batch in which they came."""
    chance = random.Random(len(rows))
    with harness_of(
        TableFunction(in_turn, TEXTS, late_outputs={"a": "late_a"}),
        [ORDERS, PAYMENTS],
        ["id", "order"],
        async_enabled,
        event_time=["at", "when"],
        order_by=["at", ["when", ("paid", "desc")]],
    ) as harness:
        for _ in range(cuts):
            harness.end_batch()
        for table, time in rows:
            harness.push([("o", 1, time)], input=table)
            if chance.random() < 0.3:
                harness.end_batch()
        out = texts(harness.finish())
        assert harness.side_output("late_a") == []
    wanted = [f"{'ab'[table]}{time}" for time, table in sorted((time, table) for table, time in rows)]
    assert out == [" ".join(wanted[: number + 1]) for number in range(len(wanted))]


# -- changelogs, declared functions, time to live -----------------------------------------------------------


def balances(
    row: Annotated[Row, TableHint("set", changelog=True)], total: ValueView[int], ctx: RecordContext
) -> None:
    added = ctx.row_kind in (RowKind.INSERT, RowKind.UPDATE_AFTER)
    total.update((total.value() or 0) + (1 if added else -1))
    ctx.emit(f"{row.name} {total.value()}", kind=ctx.row_kind)


def test_a_table_may_be_a_changelog(async_enabled: bool) -> None:
    operator = TableFunction(balances, TEXTS)
    with OperatorHarness(operator, GUESTS, ["name"], async_enabled=async_enabled) as harness:
        harness.push([("ann", ""), ("ann", "")])
        harness.push([("ann", "")], kind="-D")
        assert harness.end_batch() == [("+I", "ann 1"), ("+I", "ann 2"), ("-D", "ann 1")]


def half_a_changelog(a: Annotated[Row | None, TableHint("set", changelog=True)], b: SetTable | None) -> None:
    pass


@table_function(TEXTS, {"long": TEXTS})
def shorten(row: RowTable, ctx: RecordContext) -> Iterator[dict[str, str]]:
    if len(row.name) > 3:
        ctx.emit(row.name, output="long")
    yield {"text": row.name[:3]}


def test_a_decorated_function_says_what_it_puts_out(async_enabled: bool) -> None:
    with harness_of(TableFunction(shorten), GUESTS, None, async_enabled) as harness:
        harness.push([("Bob", ""), ("Alice", "")])
        assert texts(harness.end_batch()) == ["Bob", "Ali"]
        assert texts(harness.side_output("long")) == ["Alice"]


class WithLife(ProcessTableFunction):
    """It is opened and closed as any function; its state has types, a default and a time to live."""

    output = TEXTS

    def __init__(self) -> None:
        self.opened = False

    def open(self, context: Any) -> None:
        self.opened = True

    def eval(
        self,
        row: SetTable,
        seen: Annotated[ValueView[list[int]], StateHint(pa.list_(pa.int64()), default=[7])],
        fresh: Annotated[ValueView[int] | None, StateHint(ttl=StateTtl("1 second"))],
        anything: Annotated[ValueView[Any], StateHint(pickled=True)],
        objects: Annotated[MapView[str, Any], StateHint(pickled=True)],
    ) -> Iterator[str]:
        assert self.opened
        assert fresh is not None
        values = [*(seen.value() or []), len(seen.value() or [])]
        seen.update(values)
        fresh.update((fresh.value() or 0) + 1)
        anything.update({"at": (1, 2)})
        objects["x"] = {1, 2}
        yield f"{values} {fresh.value()} {anything.value()} {objects['x']}"


def test_states_have_what_descriptors_have(async_enabled: bool) -> None:
    with harness_of(WithLife(), GUESTS, ["name"], async_enabled) as harness:
        harness.push([("ann", "")])
        assert texts(harness.end_batch()) == ["[7, 1] 1 {'at': (1, 2)} {1, 2}"]
        harness.advance_processing_time(2_000_000)
        harness.push([("ann", "")])
        assert texts(harness.end_batch()) == ["[7, 1, 2] 1 {'at': (1, 2)} {1, 2}"]
        assert {state.name for state in harness.states()} == {"seen", "fresh", "anything", "objects"}


# -- refusals ------------------------------------------------------------------------------------------------


def no_hint(row, count: ValueView[int]):  # type: ignore[no-untyped-def]
    pass


def odd_hint(row: SetTable, count: int) -> None:
    pass


def no_table(count: ValueView[int]) -> None:
    pass


def only_broadcast(rules: BroadcastTable) -> None:
    pass


def two_broadcast(row: SetTable, a: BroadcastTable, b: BroadcastTable) -> None:
    pass


def row_and_set(a: RowTable, b: SetTable) -> None:
    pass


def two_rows(a: RowTable, b: RowTable) -> None:
    pass


def many(a: SetTable, b: SetTable, c: SetTable, d: SetTable) -> None:
    pass


def odd_semantics(a: Annotated[Row, TableHint("sets")]) -> None:
    pass


def notified_set(a: Annotated[Row, TableHint("set", notify_stateful_sets=True)]) -> None:
    pass


def set_state_of_rows(row: RowTable, count: ValueView[int]) -> None:
    pass


def broadcast_without_table(
    row: SetTable, n: Annotated[MapView[str, int], StateHint(broadcast=True)]
) -> None:
    pass


def untyped(row: SetTable, n: ValueView) -> None:  # type: ignore[type-arg]
    pass


def untypable(row: SetTable, n: ValueView[list[int]]) -> None:
    pass


def variadic(row: SetTable, *more: ValueView[int]) -> None:
    pass


def two_contexts(row: SetTable, a: RecordContext, b: RecordContext) -> None:
    pass


def timer_in_eval(row: SetTable, timer: Timer) -> None:
    pass


@dataclass
class Needy:
    value: int


@dataclass
class Untyped:
    value: object = None


def needy(row: SetTable, state: Needy) -> None:
    pass


def untyped_field(row: SetTable, state: Untyped) -> None:
    pass


def dataclass_with_default(row: SetTable, state: Annotated[Cache, StateHint(default=Cache())]) -> None:
    pass


def unknown_name(row: SetTable, state: Undefined) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


class NoEval(ProcessTableFunction):
    pass


class RowTimers(ProcessTableFunction):
    def eval(self, row: RowTable) -> None:
        pass

    def on_timer(self, timer: Timer) -> None:
        pass


class OtherState(ProcessTableFunction):
    def eval(self, row: SetTable, count: ValueView[int]) -> None:
        pass

    def on_timer(self, timer: Timer, count: ValueView[str]) -> None:
        pass


class TimerRow(ProcessTableFunction):
    def eval(self, row: SetTable) -> None:
        pass

    def on_timer(self, row: SetTable) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, "parameter 'row' has no type hint; give SetTable"),
        (odd_hint, "parameter 'count' has the hint <class 'int'>; give SetTable"),
        (no_table, "no table with row or set semantics"),
        (only_broadcast, "no table with row or set semantics"),
        (two_broadcast, "tables 'a' and 'b' are broadcast; only one can be"),
        (row_and_set, "table 'a' has row semantics, which cannot be combined with 'b'"),
        (two_rows, "table 'a' has row semantics, which cannot be combined with 'b'"),
        (many, "are too many; at most 3"),
        (odd_semantics, "'sets' semantics; choose 'row', 'set' or 'broadcast'"),
        (notified_set, "table 'a' has notify_stateful_sets, which needs another table"),
        (set_state_of_rows, "state 'count' belongs to a set, but the table has row semantics"),
        (broadcast_without_table, "state 'n' is broadcast, but there is no broadcast table"),
        (untyped, "state 'n' needs 1 types and has 0; write them in brackets, such as ValueView[str]"),
        (untypable, "list[int] is not a type; give a pyarrow type"),
        (variadic, "is variadic; name each parameter"),
        (two_contexts, "parameters 'a' and 'b' are all RecordContext"),
        (timer_in_eval, "parameter 'timer' is a Timer; those are for on_timer"),
        (needy, "state 'state': cannot create a Needy"),
        (untyped_field, "field 'value' of Untyped has the hint <class 'object'>"),
        (dataclass_with_default, "is a dataclass, which has defaults and types of its own"),
        (unknown_name, "its type hints cannot be read: NameError"),
        (NoEval(), "NoEval has no method eval"),
        (NoEval, "NoEval is a class; give an instance"),
        (RowTimers(), "on_timer: timers belong to sets, but the table has row semantics"),
        (OtherState(), "state 'count' is declared differently by eval"),
        (TimerRow(), "parameter 'row' is a table, but a timer has no row"),
        (7, "7 is not a function for it; give a ProcessTableFunction or a plain function"),
    ],
)
def test_declarations_that_are_refused(function: Any, message: str) -> None:
    with pytest.raises(SchemaError) as raised:
        TableFunction(function, TEXTS)
    assert message in str(raised.value)
    assert str(raised.value).startswith("TableFunction")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TableFunction(identity), "the output of identity is not known; give output"),
        (
            lambda: TableFunction(identity, SCORES, late_outputs={"rows": "late"}),
            "tables of identity (input)",
        ),
        (lambda: TableFunction(identity, SCORES, late_outputs={"input": 7}), "late_output is 7"),  # type: ignore[dict-item]
        (lambda: TableFunction(identity, SCORES, late_outputs={"input": "late"}), "or leave the output out"),
        (lambda: TableFunction(Unpaid()), "takes 2 inputs but got 1"),
    ],
)
def test_what_does_not_fit_the_inputs(make: Callable[[], TableFunction], message: str) -> None:
    with pytest.raises(AsyncStateError) as raised:
        OperatorHarness(make(), SCORES, ["name"], event_time="ts", changelog=False)
    assert message in str(raised.value)


def test_a_table_needs_what_it_asks_for() -> None:
    with pytest.raises(SchemaError, match="does not accept retractions, but input 0 is a changelog"):
        OperatorHarness(TableFunction(identity, SCORES), SCORES, ["name"], changelog=True)
    with pytest.raises(SchemaError, match="table 'b': input 1 is a changelog"):
        OperatorHarness(TableFunction(half_a_changelog, TEXTS), [GUESTS, GUESTS], ["name", "name"])
    with pytest.raises(SchemaError, match=r"table 'order': on_time=True needs an event time"):
        OperatorHarness(TableFunction(Unpaid()), [ORDERS, PAYMENTS], ["id", "order"], changelog=False)


# -- the set as a whole ------------------------------------------------------------------------------------


@dataclass
class Sold:
    number: int = 0


class Sales(ProcessTableFunction):
    """Counts in a dataclass and in views, until a row with a negative score clears what its name says."""

    output = pa.schema([("text", pa.string())])

    def eval(
        self,
        sold: Sold,
        last: ValueView[int],
        seen: MapView[int, int],
        all_scores: ListView[int],
        sale: SetTable,
        ctx: TableContext,
    ) -> Iterator[str]:
        sold.number += 1
        last.update(sale.score)
        seen[sale.score] = 1
        all_scores.add(sale.score)
        ctx.timers.register_processing_time(ctx.processing_time + HOUR)
        ctx.timers.register_processing_time(ctx.processing_time + HOUR, name="named")
        if sale.score == -1:
            ctx.clear_all_state()
        elif sale.score == -2:
            ctx.clear_all_timers()
        elif sale.score == -3:
            ctx.clear_all()
        yield f"{sale.name}: {sold.number} {sorted(seen.keys())} {list(all_scores)}"

    def on_timer(self, timer: Timer, sold: Sold, ctx: TableContext) -> Iterator[str]:
        yield f"{ctx.key[0]} {timer.name} {sold.number}"


class LaterSales(Sales):
    """The same with a call that waits between."""

    async def eval(  # type: ignore[override]
        self, last: ValueView[int], seen: MapView[int, int], sale: SetTable, ctx: TableContext
    ) -> list[str]:
        number = (await last.async_value() or 0) + 1
        last.update(number)
        seen[sale.score] = 1
        if sale.score == -1:
            ctx.clear_all_state()
        return [f"{sale.name}: {number}"]

    on_timer = None  # type: ignore[assignment]


def test_a_set_is_cleared_when_the_call_has_ended(async_enabled: bool) -> None:
    with harness_of(TableFunction(Sales()), SCORES, ["name"], async_enabled) as harness:
        harness.push([(0, "a", 5), (0, "b", 5), (0, "a", -1), (0, "a", 7)])
        assert sorted(texts(harness.end_batch())) == [
            "a: 1 [5] [5]", "a: 1 [7] [7]", "a: 2 [-1, 5] [5, -1]", "b: 1 [5] [5]"
        ]  # fmt: skip
        harness.push([(0, "a", -2), (0, "b", -3)])
        assert sorted(texts(harness.end_batch())) == ["a: 2 [-2, 7] [7, -2]", "b: 2 [-3, 5] [5, -3]"]
        harness.advance_processing_time(HOUR)
        assert harness.end_batch() == []  # neither has timers any more
        harness.push([(0, "a", 1), (0, "b", 1)])
        assert sorted(texts(harness.end_batch())) == ["a: 3 [-2, 1, 7] [7, -2, 1]", "b: 1 [1] [1]"]
        harness.advance_processing_time(HOUR)
        assert sorted(texts(harness.end_batch())) == ["a None 3", "a named 3", "b None 1", "b named 1"]


def test_a_call_that_waits_clears_when_it_has_ended(async_enabled: bool) -> None:
    with harness_of(TableFunction(LaterSales()), SCORES, ["name"], async_enabled, tuning=WAITING) as harness:
        harness.push([(0, "a", 5), (0, "a", -1), (0, "a", 2), (0, "a", -1)])
        assert texts(harness.end_batch()) == ["a: 1", "a: 2", "a: 1", "a: 2"]
        assert harness.state_entries() == {}


def test_a_timer_may_clear_the_timers_that_are_due_with_it(async_enabled: bool) -> None:
    class Once(ProcessTableFunction):
        output = TEXTS

        def eval(self, row: SetTable, ctx: RecordContext) -> None:
            for number in range(5):
                ctx.timers.register_event_time(10 + number % 2, name=f"t{number}")
                ctx.timers.register_event_time(10 + number)

        def on_timer(self, timer: Timer, ctx: TableContext) -> Iterator[str]:
            ctx.clear_all_timers()
            yield f"{ctx.key[0]} {timer.time}"

    settings_: Any = {"event_time": "ts"}
    with harness_of(TableFunction(Once()), SCORES, ["name"], async_enabled, **settings_) as harness:
        harness.push([(1, "a", 1), (1, "b", 1)])
        harness.end_batch()
        harness.advance_watermark(20)
        assert sorted(texts(harness.end_batch())) == ["a 10", "b 10"]
        assert harness.state_entries() == {}


def test_a_state_of_a_set_in_a_broadcast_row_is_named(async_enabled: bool) -> None:
    def plain(times: ValueView[int], row: SetTable, rule: BroadcastTable) -> None:
        times.update(1)

    async def waiting(times: ValueView[int], row: SetTable, rule: BroadcastTable) -> None:
        times.update(1)

    for function in (plain, waiting):
        with harness_of(function, [SCORES, TEXTS], [["name"], None], async_enabled) as harness:
            harness.push([("rule",)], 1)
            with pytest.raises(
                OperatorError, match=r"broadcast table 'rule' has no set, .* \(times\) are None"
            ):
                harness.end_batch()


# -- columns that are passed through ------------------------------------------------------------------------


KeyedTable = Annotated[Row, TableHint("set", pass_through="key")]
WholeTable = Annotated[Row, TableHint("set", pass_through="all")]
WholeRow = Annotated[Row, TableHint("row", pass_through="all")]
PAIR = pa.schema([("player", pa.string()), ("game", pa.int64()), ("score", pa.int64())])
STRUCTS = pa.schema([("seen", pa.struct([("n", pa.int64())]))])


class Named(ProcessTableFunction):
    """Emits in every way that there is, and from a timer."""

    output = pa.schema([("n", pa.int64()), ("text", pa.string())])
    side_outputs: ClassVar[dict[str, pa.Schema]] = {"side": TEXTS}

    def eval(self, seen: ValueView[int], row: KeyedTable, ctx: RecordContext) -> Iterator[Any]:
        count = (seen.value() or 0) + 1
        seen.update(count)
        ctx.emit(count, "values")
        ctx.emit(n=count, text="columns")
        ctx.emit({"text": "dict", "n": count}, kind=RowKind.DELETE)
        ctx.emit("beside", output="side")
        ctx.timers.register_processing_time(ctx.processing_time + 1)
        yield {"n": count, "text": "yielded"}

    def on_timer(self, timer: Timer, seen: ValueView[int], ctx: TableContext) -> Iterator[Any]:
        ctx.clear_all_state()
        yield seen.value(), "timer"


def test_the_key_stands_before_what_a_function_emits(async_enabled: bool) -> None:
    operator = TableFunction(Named(), OutputSpec("n long, text string", changes=Changelog.retract()))
    with harness_of(operator, PAIR, ["game", "player"], async_enabled, parallelism=2) as harness:
        assert harness.output_schema.names == ["game", "player", "n", "text"]
        harness.push([("ann", 1, 5), ("bob", 1, 5), ("ann", 1, 5)])
        found = harness.end_batch()
        for player, counts in (("ann", [1, 2]), ("bob", [1])):
            assert [row for row in found if row[2] == player] == [
                (kind, 1, player, count, text)
                for count in counts
                for kind, text in (("+I", "values"), ("+I", "columns"), ("-D", "dict"), ("+I", "yielded"))
            ]
        assert texts(harness.side_output("side")) == ["beside"] * 3
        harness.advance_processing_time(1)
        assert sorted(harness.end_batch()) == [("+I", 1, "ann", 2, "timer"), ("+I", 1, "bob", 1, "timer")]
        assert harness.state_entries() == {}


async def whole(seen: ValueView[int], row: WholeTable, rule: BroadcastTable | None) -> Any:
    if rule is None:
        count = (await seen.async_value() or 0) + 1
        await seen.async_update(count)
        yield {"n": count}


def doubled(row: WholeRow) -> Iterator[int]:
    yield row.score
    yield 2 * row.score


def test_all_columns_stand_before_what_a_function_emits(async_enabled: bool) -> None:
    """Also where the only column of the function is a struct, of which a dict is a value."""
    rows = [("ann", 1, 5), ("bob", 2, 7), ("ann", 1, 6)]
    inputs, key = [PAIR, TEXTS], (["player"], None)
    with harness_of(whole, inputs, key, async_enabled, output=STRUCTS, tuning=WAITING) as harness:
        harness.push([("rule",)], input=1)
        harness.push(rows)
        assert harness.end_batch() == [
            ("+I", "ann", 1, 5, {"n": 1}), ("+I", "bob", 2, 7, {"n": 1}), ("+I", "ann", 1, 6, {"n": 2})
        ]  # fmt: skip
    with harness_of(doubled, PAIR, None, async_enabled, output=pa.schema([("n", pa.int64())])) as harness:
        harness.push(rows)
        assert [row[1:] for row in harness.end_batch()] == [
            (*row, factor * row[2]) for row in rows for factor in (1, 2)
        ]


def passed_twice(a: KeyedTable | None, b: KeyedTable | None) -> None:
    pass


def key_of_rows(row: Annotated[Row, TableHint("row", pass_through="key")]) -> None:
    pass


def passed_broadcast(
    row: SetTable | None, rule: Annotated[Row, TableHint("broadcast", pass_through="all")]
) -> None:
    pass


def odd_columns(row: Annotated[Row, TableHint("set", pass_through="keys")]) -> None:  # type: ignore[arg-type]
    pass


def whole_beside_another(a: WholeTable | None, b: SetTable | None) -> None:
    pass


def whole_beside_notified(a: WholeTable | None, b: Reset | None) -> None:
    pass


class WholeTimers(ProcessTableFunction):
    def eval(self, row: WholeTable) -> None:
        pass

    def on_timer(self, timer: Timer) -> None:
        pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (passed_twice, "tables 'a' and 'b' have pass_through; a row has the columns of one"),
        (key_of_rows, "table 'row' has pass_through='key', but row semantics, which have no key"),
        (passed_broadcast, "table 'rule' has pass_through='all', but its rows emit nothing"),
        (odd_columns, "table 'row' has pass_through='keys'; choose 'key' or 'all'"),
        (
            whole_beside_another,
            "table 'a' has pass_through='all', but rows are also emitted without a row of it",
        ),
        (
            whole_beside_notified,
            "table 'a' has pass_through='all', but rows are also emitted without a row of it",
        ),
        (WholeTimers(), "on_timer: a timer has no row to pass columns through from"),
    ],
)
def test_columns_that_cannot_be_passed_through(function: Any, message: str) -> None:
    with pytest.raises(SchemaError) as raised:
        TableFunction(function, TEXTS)
    assert message in str(raised.value)


def test_passed_columns_have_names_of_their_own_and_a_key() -> None:
    def keyed(row: KeyedTable) -> None:
        pass

    with pytest.raises(SchemaError, match="player"):
        harness_of(keyed, PAIR, ["player"], False, output=pa.schema([("player", pa.string())]))
    with pytest.raises(SchemaError, match="table 'row': pass_through='key', but input 0 has no key"):
        harness_of(keyed, PAIR, None, False)


# -- values and lists that are the same for all sets ---------------------------------------------------------


@dataclass
class Limit:
    limit: int = 0


def broadcast_dataclass(
    row: SetTable, r: BroadcastTable, n: Annotated[Limit, StateHint(broadcast=True)]
) -> None:
    pass


def list_with_default(row: SetTable, n: Annotated[ListView[int], StateHint(default=[1])]) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            broadcast_dataclass,
            "state 'n' is broadcast, but a dataclass belongs to a set; declare a ValueView",
        ),
        (list_with_default, "state 'n' has a default, which only a ValueView supports"),
    ],
)
def test_states_that_are_refused(function: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        TableFunction(function, TEXTS)


def limits(
    limit: Annotated[ValueView[int, int], StateHint(broadcast=True, default=10)],
    history: Annotated[ListView[int], StateHint(broadcast=True)],
    pickled: Annotated[ValueView[Any], StateHint(broadcast=True, pickled=True)],
    row: SetTable | None,
    rule: BroadcastTable | None,
) -> Iterator[str]:
    """Negative rules clear."""
    if rule is None:
        yield f"{limit.value()} {limit.is_empty()} {list(history)} {pickled.value()}"
    elif rule.score < 0:
        limit.clear()
        history.clear()
    else:
        limit.update(rule.score)
        history.add_all([rule.score, rule.score + 1])
        pickled.update({rule.score})


async def later_limits(
    limit: Annotated[ValueView[int, int], StateHint(broadcast=True, default=10)],
    history: Annotated[ListView[int], StateHint(broadcast=True)],
    pickled: Annotated[ValueView[Any], StateHint(broadcast=True, pickled=True)],
    row: SetTable | None,
    rule: BroadcastTable | None,
) -> AsyncIterator[str]:
    """The same, awaiting."""
    if rule is None:
        seen = list(await to_iterable(history.async_get()))
        value, empty = await limit.async_value(), await limit.async_is_empty()
        yield f"{value} {empty} {seen} {await pickled.async_value()}"
    elif rule.score < 0:
        await limit.async_clear()
        await history.async_clear()
    else:
        await limit.async_update(rule.score)
        await history.async_add(rule.score)
        await history.async_add_all([rule.score + 1])
        await pickled.async_update({rule.score})


@pytest.mark.parametrize("function", [limits, later_limits])
def test_a_broadcast_value_and_list_are_the_same_for_all_sets(async_enabled: bool, function: Any) -> None:
    rules = pa.schema([("score", pa.int64())])
    harness = harness_of(function, [PAYLOADS, rules], ["k", None], async_enabled, parallelism=3)
    keys = [(key, "") for key in "abcdef"]
    expected = {
        (): "10 True [] None",
        (7,): "7 False [7, 8] {7}",
        (20, 3): "3 False [7, 8, 20, 21, 3, 4] {3}",
        (-1,): "10 True [] {3}",
        (5,): "5 False [5, 6] {5}",
    }
    for number, (scores, text) in enumerate(expected.items()):
        harness.push([(score,) for score in scores], input=1)
        harness.push(keys)
        assert texts(harness.end_batch()) == [text] * len(keys)
        if number == 2:  # what is stored is found again, whatever the parallelism and the mode
            snapshot = harness.snapshot()
            harness.close()
            harness = harness.restore(snapshot, parallelism=2, async_enabled=not async_enabled)
    harness.close()


def changing_default(
    seen: Annotated[
        ValueView[list[float], list[float]],
        StateHint(pa.list_(pa.float64()), broadcast=True, default=[1]),
    ],
    row: SetTable | None,
    rule: BroadcastTable | None,
) -> Iterator[str]:
    found = seen.value()
    if rule is not None and rule.score < 0:
        seen.clear()
    elif rule is not None:
        found.append(rule.score)
        seen.update(found)
    else:
        yield str(found)
        found.append(7)


def test_a_broadcast_default_is_no_object_that_calls_share(async_enabled: bool) -> None:
    """Each read gives it anew, as it would be stored."""
    rules = pa.schema([("score", pa.int64())])
    with harness_of(changing_default, [PAYLOADS, rules], ["k", None], async_enabled) as harness:
        expected = {(): "[1.0]", (2,): "[1.0, 2.0]", (-1,): "[1.0]"}
        for scores, text in expected.items():
            harness.push([(score,) for score in scores], input=1)
            harness.push([("a", ""), ("b", "")])
            assert texts(harness.end_batch()) == [text] * 2


def writing_row(
    limit: Annotated[ListView[int], StateHint(broadcast=True)], row: SetTable, rule: BroadcastTable
) -> None:
    limit.add(1)


def test_other_rows_write_no_broadcast_value(async_enabled: bool) -> None:
    with harness_of(writing_row, [PAYLOADS, TEXTS], ["k", None], async_enabled) as harness:
        harness.push([("a", "1")])
        with pytest.raises(OperatorError, match="state 'limit'.* can be written only in process_broadcast"):
            harness.end_batch()


# -- broadcast tables in order -------------------------------------------------------------------------------


TIMED_RULES = pa.schema([("ts", pa.timestamp("us")), ("rule", pa.int64())])


def ruled(
    rules: Annotated[ListView[int], StateHint(broadcast=True)],
    row: SetTable | None,
    rule: BroadcastTable | None,
) -> Iterator[str]:
    if rule is None:
        yield " ".join(map(str, rules))
    else:
        rules.add(rule.rule)


def test_a_broadcast_table_comes_in_order_of_time(async_enabled: bool) -> None:
    """Rows wait until the watermark has passed them, over micro-batches and a restart; late ones are told once."""
    operator = TableFunction(ruled, TEXTS, late_outputs={"rule": "late"})
    harness = harness_of(
        operator, [SCORES, TIMED_RULES], ["name", None], async_enabled, parallelism=3,
        event_time=["ts", "ts"], order_by=[None, ["ts", ("rule", "desc")]],
    )  # fmt: skip
    people = [(1, name, 0) for name in "abcd"]

    def after(rules: list[tuple[int, int]], watermark: int) -> str:
        harness.push(rules, input=1)
        harness.push(people)
        harness.advance_watermark(watermark)
        (seen,) = set(texts(harness.end_batch()))
        return seen

    assert after([(30, 30), (10, 10), (20, 20), (20, 21)], 5) == ""
    assert after([(15, 15)], 20) == "10 15 21 20"
    snapshot = harness.snapshot()
    harness.close()
    harness = harness.restore(snapshot, parallelism=2, async_enabled=not async_enabled)
    assert after([(12, 12), (25, 25)], 40) == "10 15 21 20 25 30"
    assert [row[2] for row in harness.side_output("late")] == [12]
    assert harness.statistics()["counter.late_rows_dropped"] == 1
    assert after([(50, 50)], 45) == "10 15 21 20 25 30"
    harness.finish()
    assert not [key for key in harness.state_entries() if key[2] < 8]  # nothing waits any more
    harness.close()


def test_a_broadcast_table_in_order_notifies_sets_in_order(async_enabled: bool) -> None:
    async def notified(
        seen: ListView[int] | None, row: SetTable | None, rule: Reset | None, ctx: RecordContext
    ) -> AsyncIterator[str]:
        if seen is None:
            return
        await seen.async_add(0 if rule is None else rule.rule)
        if rule is not None:
            yield f"{ctx.key[0]} {list(await to_iterable(seen.async_get()))}"

    with harness_of(
        notified, [SCORES, TIMED_RULES], ["name", None], async_enabled, event_time=["ts", "ts"],
        order_by=[None, "ts"],
    ) as harness:  # fmt: skip
        harness.push([(1, "a", 0), (1, "b", 0)])
        harness.push([(9, 9), (8, 8)], input=1)
        harness.end_batch()
        harness.advance_watermark(10)
        assert sorted(texts(harness.end_batch())) == ["a [0, 8, 9]", "a [0, 8]", "b [0, 8, 9]", "b [0, 8]"]
