"""Functions on one keyed input: every style of writing them gives what a loop over the rows gives, in both modes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    OperatorContext,
    RecordContext,
    ReduceFunction,
    Row,
    RowKind,
    StateFuture,
    Timer,
    ValueStateDescriptor,
    combine_all,
    completed_future,
)
from asyncstate.errors import AsyncStateError, OperatorError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import KeyedFilter, KeyedFlatMap, KeyedMap, KeyedProcess, KeyedReduce
from tests.operators.function_runs import Step, inserts, run, run_both, run_step, slow_reads

Sale = tuple[str, int]

SALES = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
TOTALS = pa.schema([("shop", pa.string()), ("total", pa.int64())])


def sales(seed: int, count: int = 120, shops: int = 9) -> list[Sale]:
    chance = random.Random(seed)
    return [(f"shop {chance.randrange(shops)}", chance.randrange(-50, 50)) for _ in range(count)]


STEPS = [Step(sales(1)), Step(), Step(sales(2)), Step(sales(3, 10))]
ALL_SALES = [sale for step in STEPS for sale in step.rows]


def before_each(rows: list[Any]) -> Iterator[tuple[Sale, list[int]]]:
    """Each sale with the amounts of its shop before it."""
    amounts: dict[str, list[int]] = defaultdict(list)
    for shop, amount in rows:
        yield (shop, amount), list(amounts[shop])
        amounts[shop].append(amount)


# -- map ------------------------------------------------------------------------------------------------


class _Total(MapFunction):
    def open(self, context: OperatorContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))


class PlainTotal(_Total):
    def map(self, row: Row) -> Any:
        total = self.total.value() + row.amount
        self.total.update(total)
        return row.shop, total


class FutureTotal(_Total):
    def map(self, row: Row) -> Any:
        def add(before: int) -> dict[str, Any]:
            self.total.async_update(before + row.amount)
            return {"total": before + row.amount, "shop": row.shop}

        return self.total.async_value().then_apply(add)


class AwaitTotal(_Total):
    async def map(self, row: Row) -> Any:
        total = await self.total.async_value() + row.amount
        await self.total.async_update(total)
        return row.shop, total


@pytest.mark.parametrize("function", [PlainTotal, FutureTotal, AwaitTotal])
def test_map_with_state(function: Callable[[], MapFunction]) -> None:
    done = run_both(lambda: KeyedMap(function(), TOTALS), SALES, ["shop"], STEPS)
    expected = [(shop, sum(before) + amount) for (shop, amount), before in before_each(ALL_SALES)]
    assert inserts(done.rows) == expected


@pytest.mark.parametrize(
    ("function", "column", "expected"),
    [
        (lambda row: row.amount * 2, pa.int64(), 14),
        (lambda row: (row.amount,), pa.int64(), 7),
        (lambda row: {"out": row.amount}, pa.int64(), 7),
        (lambda row: None, pa.int64(), None),
        (lambda row: [row.amount, 1], pa.list_(pa.int64()), [7, 1]),
        (lambda row: {"amount": row.amount}, pa.struct([("amount", pa.int64())]), {"amount": 7}),
        (lambda row: completed_future(row.amount), pa.int64(), 7),
    ],
)
def test_rows_of_one_column_may_be_the_value_itself(
    function: Callable[[Row], Any], column: pa.DataType, expected: Any, async_enabled: bool
) -> None:
    operator = KeyedMap(function, pa.schema([("out", column)]))
    with OperatorHarness(operator, SALES, ["shop"], async_enabled=async_enabled) as harness:
        harness.push([("ann", 7)])
        assert harness.end_batch() == [("+I", expected)]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ((1, 2, 3), "a tuple of 3 values for a row of 2 columns: shop, total"),
        ({"shop": "ann"}, "a dict without 'total' for a row"),
        (
            {"shop": "ann", "sum": 1},
            ("a dict without 'total' and with 'sum', which is not a column, for a row"),
        ),
        (["ann", 1], r"returned \['ann', 1\] for a row"),
        (None, "returned None for a row"),
    ],
)
def test_what_is_no_row_is_refused(result: Any, complaint: str, async_enabled: bool) -> None:
    with OperatorHarness(
        KeyedMap(lambda row: result, TOTALS), SALES, ["shop"], async_enabled=async_enabled
    ) as harness:
        harness.push([("ann", 7)])
        with pytest.raises(AsyncStateError, match=complaint):
            harness.end_batch()


# -- flat map -------------------------------------------------------------------------------------------


class _Pairs(FlatMapFunction):
    """Each amount beside every amount of the shop before it."""

    def open(self, context: OperatorContext) -> None:
        self.amounts = context.get_state(ListStateDescriptor("amounts", pa.int64()))


class GeneratorPairs(_Pairs):
    def flat_map(self, row: Row) -> Any:
        for amount in self.amounts.get():
            yield amount, row.amount
        self.amounts.add(row.amount)


class FuturePairs(_Pairs):
    def flat_map(self, row: Row) -> Any:
        found = self.amounts.async_get()
        self.amounts.async_add(row.amount)
        return found.then_compose(lambda amounts: amounts.to_list()).then_apply(
            lambda amounts: [(amount, row.amount) for amount in amounts]
        )


class AwaitPairs(_Pairs):
    async def flat_map(self, row: Row) -> Any:
        pairs = [(amount, row.amount) async for amount in await self.amounts.async_get()]
        await self.amounts.async_add(row.amount)
        return pairs or None


class AsyncGeneratorPairs(_Pairs):
    async def flat_map(self, row: Row) -> AsyncIterator[Any]:
        async for amount in await self.amounts.async_get():
            yield amount, row.amount
        await self.amounts.async_add(row.amount)


@pytest.mark.parametrize("function", [GeneratorPairs, FuturePairs, AwaitPairs, AsyncGeneratorPairs])
def test_flat_map_with_state(function: Callable[[], FlatMapFunction]) -> None:
    output = pa.schema([("before", pa.int64()), ("amount", pa.int64())])
    done = run_both(
        lambda: KeyedFlatMap(function(), output),
        SALES,
        ["shop"],
        STEPS,
        options={"async-state.iterate-response-batch-size": "3"},
    )
    expected = [(one, amount) for (_, amount), before in before_each(ALL_SALES) for one in before]
    assert inserts(done.rows) == expected


class StoredAmounts(_Pairs):
    """Puts out a StateIterator as it is."""

    def flat_map(self, row: Row) -> StateFuture[Any]:
        self.amounts.async_add(row.amount)
        return self.amounts.async_get()


def test_flat_map_takes_the_iterator_of_a_state() -> None:
    done = run_both(
        lambda: KeyedFlatMap(StoredAmounts(), pa.schema([("amount", pa.int64())])),
        SALES,
        ["shop"],
        STEPS,
    )
    assert inserts(done.rows) == [
        (one,) for (_, amount), before in before_each(ALL_SALES) for one in [*before, amount]
    ]


@pytest.mark.parametrize("result", ["ann", {"amount": 1}, 7])
def test_what_is_no_iterable_of_rows_is_refused(result: Any, async_enabled: bool) -> None:
    operator = KeyedFlatMap(lambda row: result, pa.schema([("amount", pa.int64())]))
    with OperatorHarness(operator, SALES, ["shop"], async_enabled=async_enabled) as harness:
        harness.push([("ann", 7)])
        with pytest.raises(OperatorError, match="not an iterable of rows; return a list of rows"):
            harness.end_batch()


# -- filter ---------------------------------------------------------------------------------------------


class _Records(FilterFunction):
    """The sales above all sales of the shop before."""

    def open(self, context: OperatorContext) -> None:
        self.highest = context.get_state(ValueStateDescriptor("highest", pa.int64()))

    def keep(self, highest: int | None, amount: int) -> bool:
        higher = highest is None or amount > highest
        if higher:
            self.highest.update(amount)
        return higher


class PlainRecords(_Records):
    def filter(self, row: Row) -> Any:
        return self.keep(self.highest.value(), row.amount)


class FutureRecords(_Records):
    def filter(self, row: Row) -> Any:
        return self.highest.async_value().then_apply(lambda highest: self.keep(highest, row.amount))


class AwaitRecords(_Records):
    async def filter(self, row: Row) -> Any:
        return self.keep(await self.highest.async_value(), row.amount)


@pytest.mark.parametrize("function", [PlainRecords, FutureRecords, AwaitRecords])
def test_filter_with_state(function: Callable[[], FilterFunction]) -> None:
    done = run_both(lambda: KeyedFilter(function()), SALES, ["shop"], STEPS)
    expected = [sale for sale, before in before_each(ALL_SALES) if all(sale[1] > one for one in before)]
    assert inserts(done.rows) == expected


def test_a_filter_that_forgets_its_answer_is_refused(async_enabled: bool) -> None:
    with OperatorHarness(
        KeyedFilter(lambda row: None), SALES, ["shop"], async_enabled=async_enabled
    ) as harness:
        harness.push([("ann", 7)])
        with pytest.raises(OperatorError, match="returned None; return True to keep a row"):
            harness.end_batch()


# -- reduce ---------------------------------------------------------------------------------------------


class PlainSum(ReduceFunction):
    def reduce(self, a: Row, b: Row) -> Any:
        return a.shop, a.amount + b.amount


class FutureSum(ReduceFunction):
    """Counts its calls in a state of its own."""

    def open(self, context: OperatorContext) -> None:
        self.calls = context.get_state(ValueStateDescriptor("calls", pa.int64(), default=0))

    def reduce(self, a: Row, b: Row) -> Any:
        def add(calls: int) -> dict[str, Any]:
            self.calls.async_update(calls + 1)
            return {"shop": a.shop, "amount": a.amount + b.amount}

        return self.calls.async_value().then_apply(add)


class AwaitSum(FutureSum):
    async def reduce(self, a: Row, b: Row) -> Any:
        await self.calls.async_update(await self.calls.async_value() + 1)
        return b.shop, a.amount + b.amount


@pytest.mark.parametrize("function", [PlainSum, FutureSum, AwaitSum])
def test_reduce_gives_the_value_after_each_row(function: Callable[[], ReduceFunction]) -> None:
    done = run_both(lambda: KeyedReduce(function()), SALES, ["shop"], STEPS)
    assert inserts(done.rows) == [
        (shop, sum(before) + amount) for (shop, amount), before in before_each(ALL_SALES)
    ]


def test_reduce_as_a_changelog_says_nothing_of_equal_values() -> None:
    def highest(a: Row, b: Row) -> Any:
        return a if a.amount >= b.amount else b

    done = run_both(lambda: KeyedReduce(highest, changelog=True), SALES, ["shop"], STEPS)
    expected: list[Any] = []
    for (shop, amount), before in before_each(ALL_SALES):
        if not before:
            expected.append(("+I", shop, amount))
        elif amount > max(before):
            expected += [("-U", shop, max(before)), ("+U", shop, amount)]
    assert done.rows == expected


NESTED = pa.schema(
    [
        ("k", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float32()), ("y", pa.float64())])),
        ("at", pa.timestamp("ms", "UTC")),
        ("note", pa.string()),
    ]
)


def test_reduce_keeps_rows_of_any_storable_columns() -> None:
    rows = [
        (1, ["a"], {"x": 0.5, "y": 0.1}, 5, None),
        (1, ["b", None], None, 7, "n"),
        (1, None, {"x": None, "y": 1.0}, None, ""),
    ]

    def join(a: Row, b: Row) -> Any:
        return (a.k, (a.tags or []) + (b.tags or []), b.place or a.place, b["at"] or a["at"], b.note)

    done = run_both(lambda: KeyedReduce(join), NESTED, ["k"], [Step(rows[:1]), Step(rows[1:])])
    assert inserts(done.rows) == [
        rows[0],
        (1, ["a", "b", None], {"x": 0.5, "y": 0.1}, 7, "n"),
        (1, ["a", "b", None], {"x": None, "y": 1.0}, 7, ""),
    ]


def test_reduce_may_change_the_lists_of_its_arguments() -> None:
    def extended(a: Row, b: Row) -> Any:
        a.tags.extend(b.tags)
        return a

    rows = [(1, [text], None, None, None) for text in "abc"]
    steps = [Step(rows[:2]), Step(rows[2:])]
    found = {
        changelog: run_both(lambda: KeyedReduce(extended, changelog=changelog), NESTED, ["k"], steps).rows  # noqa: B023
        for changelog in (False, True)
    }
    so_far = [["a"], ["a", "b"], ["a", "b", "c"]]
    assert [row[2] for row in found[False]] == so_far
    assert [(row[0], row[2]) for row in found[True]] == [
        ("+I", ["a"]),
        ("-U", ["a"]),
        ("+U", ["a", "b"]),
        ("-U", ["a", "b"]),
        ("+U", ["a", "b", "c"]),
    ]


# -- process --------------------------------------------------------------------------------------------

EVENTS = pa.schema([("user", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
VISITS = pa.schema([("user", pa.int64()), ("visits", pa.int64()), ("until", pa.timestamp("us", "UTC"))])
PAUSE = 600


class _Visits(KeyedProcessFunction):
    """Counts a user's events; puts the count out when none has come for a while."""

    def open(self, context: OperatorContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", pa.int64(), default=0))
        self.last = context.get_state(ValueStateDescriptor("last", pa.int64()))


class FutureVisits(_Visits):
    def process(self, row: Row, ctx: RecordContext) -> Any:
        def note(found: list[Any]) -> None:
            count, last = found
            latest = max(row.time, last or row.time)
            self.count.async_update(count + 1)
            self.last.async_update(latest)
            ctx.timers.register_event_time(latest + PAUSE)

        return combine_all([self.count.async_value(), self.last.async_value()]).then_accept(note)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        def tell(found: list[Any]) -> None:
            count, last = found
            if last is not None and timer.time == last + PAUSE:
                ctx.emit(ctx.key[0], count, timer.time)
                self.count.async_clear()
                self.last.async_clear()

        return combine_all([self.count.async_value(), self.last.async_value()]).then_accept(tell)


class AwaitVisits(_Visits):
    async def process(self, row: Row, ctx: RecordContext) -> Any:
        await self.count.async_update(await self.count.async_value() + 1)
        last = max(row.time, await self.last.async_value() or row.time)
        await self.last.async_update(last)
        ctx.timers.register_event_time(last + PAUSE)

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        last = await self.last.async_value()
        if last is not None and timer.time == last + PAUSE:
            ctx.emit(ctx.key[0], await self.count.async_value(), timer.time)
            self.count.clear()
            self.last.clear()


class PlainVisits(_Visits):
    def process(self, row: Row, ctx: RecordContext) -> Any:
        self.count.update(self.count.value() + 1)
        last = max(row.time, self.last.value() or row.time)
        self.last.update(last)
        ctx.timers.register_event_time(last + PAUSE)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        if self.last.value() == timer.time - PAUSE:
            ctx.emit(ctx.key[0], self.count.value(), timer.time)
            self.count.clear()
            self.last.clear()


def visits(rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """The model: rows that are in order of time, at most a pause apart, belong together."""
    found: dict[int, list[list[int]]] = defaultdict(list)
    for user, time in sorted(rows):
        if not found[user] or time - found[user][-1][-1] > PAUSE:
            found[user].append([])
        found[user][-1].append(time)
    return sorted((user, len(times), times[-1] + PAUSE) for user, each in found.items() for times in each)


@pytest.mark.parametrize("function", [PlainVisits, FutureVisits, AwaitVisits])
def test_process_with_state_and_timers(function: Callable[[], KeyedProcessFunction]) -> None:
    chance = random.Random(5)
    rows: list[tuple[int, int]] = []
    steps = []
    for base in (1, 400, 2_000, 2_500, 4_000):
        steps.append(Step(watermark=base - 1))  # timers run behind the rows of their micro-batch
        steps.append(Step([(chance.randrange(6), base + chance.randrange(100)) for _ in range(20)]))
        rows += steps[-1].rows  # type: ignore[arg-type]
    done = run_both(lambda: KeyedProcess(function(), VISITS), EVENTS, ["user"], steps, event_time="time")
    assert sorted(inserts(done.rows)) == visits(rows)
    assert any(done.outputs[1:-1]), "timers fire on the way, not only at the end"
    assert done.stored[-1] == {}


# -- changelogs -----------------------------------------------------------------------------------------


class Doubled(MapFunction):
    accepts_changelog = True

    def map(self, row: Row) -> Any:
        return row.shop, 2 * row.amount


class Both(FlatMapFunction):
    accepts_changelog = True

    def flat_map(self, row: Row) -> Any:
        return [(row.shop, row.amount), (row.shop, -row.amount)]


class Positive(FilterFunction):
    accepts_changelog = True

    async def filter(self, row: Row) -> Any:
        return row.amount > 0


class Kinds(KeyedProcessFunction):
    accepts_changelog = True

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.emit(row.shop, row.amount if ctx.row_kind is RowKind.INSERT else 0, kind=ctx.row_kind)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: KeyedMap(Doubled(), TOTALS), [("+I", 6), ("-U", 6), ("+U", -4), ("-D", -4)]),
        (
            lambda: KeyedFlatMap(Both(), TOTALS),
            [("+I", 3), ("+I", -3), ("-U", 3), ("-U", -3), ("+U", -2), ("+U", 2), ("-D", -2), ("-D", 2)],
        ),
        (lambda: KeyedFilter(Positive()), [("+I", 3), ("-U", 3)]),
        (lambda: KeyedProcess(Kinds(), TOTALS), [("+I", 3), ("-U", 0), ("+U", 0), ("-D", 0)]),
    ],
    ids=["map", "flat_map", "filter", "process"],
)
def test_rows_that_are_taken_back_keep_their_kind(make: Callable[[], Any], expected: list[Any]) -> None:
    rows = [("ann", 3), ("ann", 3), ("ann", -2), ("ann", -2)]
    done = run_both(make, SALES, ["shop"], [Step(rows, kinds=["+I", "-U", "+U", "-D"])])
    assert [(kind, amount) for kind, _, amount in done.rows] == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: KeyedMap(PlainTotal(), TOTALS),
        lambda: KeyedFlatMap(lambda row: None, TOTALS),
        lambda: KeyedFilter(lambda row: True),
        lambda: KeyedReduce(PlainSum()),
        lambda: KeyedProcess(PlainVisits(), TOTALS),
    ],
    ids=["map", "flat_map", "filter", "reduce", "process"],
)
def test_a_changelog_is_refused_unless_the_function_takes_it(make: Callable[[], Any]) -> None:
    with pytest.raises(SchemaError, match="does not accept retractions, but input 0 is a changelog"):
        OperatorHarness(make(), SALES, ["shop"], changelog=True)


class BoldSum(PlainSum):
    accepts_changelog = True


def test_no_reduction_takes_rows_back_whatever_it_says() -> None:
    with pytest.raises(SchemaError, match="does not accept retractions"):
        OperatorHarness(KeyedReduce(BoldSum()), SALES, ["shop"], changelog=True)


# -- life cycle, restart, mistakes ------------------------------------------------------------------------

LIFE: list[str] = []


class Living(MapFunction):
    def open(self, context: OperatorContext) -> None:
        LIFE.append("open")

    def map(self, row: Row) -> Any:
        LIFE.append("map")
        if row.amount < 0:
            raise ValueError("negative")
        return row

    def close(self) -> None:
        LIFE.append("close")


def test_a_function_is_opened_and_closed_also_when_it_fails(async_enabled: bool) -> None:
    LIFE.clear()
    with OperatorHarness(KeyedMap(Living(), SALES), SALES, ["shop"], async_enabled=async_enabled) as harness:
        assert LIFE == ["open", "close"], "the trial on the driver"
        harness.push([("ann", 1)])
        harness.end_batch()
        harness.push([("ann", -1)])
        with pytest.raises(OperatorError, match=r"key \('ann',\): ValueError: negative"):
            harness.end_batch()
    assert LIFE[2:] == ["open", "map", "close"] * 2


@pytest.mark.parametrize(
    ("make", "by_batch"),
    [
        (lambda: KeyedMap(AwaitTotal(), TOTALS), True),
        (lambda: KeyedFilter(FutureRecords()), True),
        (lambda: KeyedReduce(AwaitSum()), True),
    ],
    ids=["map", "filter", "reduce"],
)
def test_goes_on_after_a_restore_at_another_parallelism_and_mode(
    make: Callable[[], Any], by_batch: bool, async_enabled: bool
) -> None:
    with OperatorHarness(make(), SALES, ["shop"]) as harness:
        whole = run(harness, STEPS)
    with (
        slow_reads(),
        OperatorHarness(make(), SALES, ["shop"], async_enabled=async_enabled, parallelism=2) as harness,
    ):
        first = [run_step(harness, step) for step in STEPS[:2]]
        snapshot = harness.snapshot()
        restored = harness.restore(snapshot, parallelism=3, async_enabled=not async_enabled)
        with restored:
            rest = run(restored, STEPS[2:])
    outputs = [*first, *rest.outputs]
    assert [sorted(rows) for rows in outputs] == [sorted(rows) for rows in whole.outputs]
    assert rest.stored[-1] == whole.stored[-1]


class Yielding(KeyedProcessFunction):
    def process(self, row: Row, ctx: RecordContext) -> Any:
        yield row


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (
            lambda: KeyedMap(PlainTotal, TOTALS),
            r"PlainTotal is a class; give an instance: PlainTotal\(\)",
        ),
        (lambda: KeyedMap(7, TOTALS), "7 is not a function for it; give a MapFunction or a plain function"),
        (lambda: KeyedMap(PlainSum(), TOTALS), "give a MapFunction or a plain function"),
        (lambda: KeyedProcess(lambda row: row, TOTALS), "give a KeyedProcessFunction$"),
        (lambda: KeyedProcess(Yielding(), TOTALS), "Yielding.process is a generator, .* call ctx.emit"),
        (lambda: KeyedMap(PlainTotal(), ["total"]), "output is .* give a schema"),
        (lambda: KeyedMap(PlainTotal(), pa.schema([("row_kind", pa.string())])), "which is reserved"),
        (
            lambda: KeyedMap(PlainTotal(), pa.schema([("a", pa.int64()), ("a", pa.int64())])),
            "column 'a' twice",
        ),
    ],
)
def test_mistakes_are_refused_when_the_operator_is_made(make: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(SchemaError, match=complaint):
        make()


def test_two_states_of_one_name_are_refused_also_beside_the_operators_own() -> None:
    class Clashing(PlainSum):
        def open(self, context: OperatorContext) -> None:
            context.get_state(ValueStateDescriptor("_reduced", pa.int64()))

    with pytest.raises(AsyncStateError, match="two states have the name '_reduced'"):
        OperatorHarness(KeyedReduce(Clashing()), SALES, ["shop"])


def test_functions_are_abstract() -> None:
    kinds: list[type[Function]] = [MapFunction, FlatMapFunction, FilterFunction, ReduceFunction]
    for kind in [*kinds, KeyedProcessFunction]:
        with pytest.raises(TypeError, match="abstract"):
            kind()


# -- calls to the outside -----------------------------------------------------------------------------------


class Converted(KeyedProcessFunction):
    """The total of each shop in another currency, whose rate is asked for at every sale."""

    def open(self, context: OperatorContext) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", pa.int64(), default=0))

    async def open_calls(self) -> None:
        self.rates = {f"shop {number}": number for number in range(9)}

    async def close_calls(self) -> None:
        CLOSED.append(len(self.rates))

    async def rate_of(self, shop: str) -> int:
        return self.rates[shop]

    async def process(self, row: Row, ctx: RecordContext) -> Any:
        rate = await ctx.call(self.rate_of, row.shop)
        total = await self.total.async_value() + rate * row.amount
        await self.total.async_update(total)
        ctx.emit(row.shop, total)


CLOSED: list[int] = []


def test_process_calls_to_the_outside_beside_state() -> None:
    CLOSED.clear()
    done = run_both(lambda: KeyedProcess(Converted(), TOTALS), SALES, ["shop"], STEPS)
    assert inserts(done.rows) == [
        (shop, int(shop.removeprefix("shop ")) * (sum(before) + amount))
        for (shop, amount), before in before_each(ALL_SALES)
    ]
    assert CLOSED == [9] * 3 * 2, "for each micro-batch with rows, in both modes"
