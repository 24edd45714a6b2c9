"""What type checkers know of a user's code: read by mypy (`make check`) and, from the wheel, by mypy and pyright.

Nothing here runs. An ``assert_type`` says what the type is, a ``type: ignore`` that the line is wrong: if a checker
found nothing wrong there, the ignore would be unused, which is an error, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, assert_type

import numpy as np
import pyarrow as pa

from asyncstate import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    BroadcastStateDescriptor,
    Bundle,
    BundleContext,
    BundleOperator,
    ColumnMapState,
    ColumnMapStateDescriptor,
    ColumnState,
    ColumnStateDescriptor,
    InputSpec,
    ListColumnState,
    ListColumnStateDescriptor,
    ListState,
    ListStateDescriptor,
    ListView,
    MapState,
    MapStateDescriptor,
    MapView,
    OperatorContext,
    RecordContext,
    RecordOperator,
    ReducingState,
    ReducingStateDescriptor,
    Row,
    SetTable,
    StateFuture,
    StateHint,
    StateIterator,
    StateTtl,
    Trigger,
    ValueState,
    ValueStateDescriptor,
    ValueView,
    combine_all,
    completed_future,
    completed_void_future,
    table_function,
    to_iterable,
)
from asyncstate.dataflow import Stream
from asyncstate.operators import GroupAggregate, Join, asc, count, rows, sum_, triggers, tumble
from asyncstate.relational import Grouped, Over
from asyncstate.testing import OperatorHarness

OUTPUT = pa.schema([("n", pa.int64())])


class Basket:
    """Something of the user's own, stored as a pickle."""

    total: int = 0


class Mean(AggregateFunction[int, list[int], float]):
    """From ints to a float, by way of a sum and a count."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [a[0] + b[0], a[1] + b[1]]


def values(context: OperatorContext) -> None:
    """A type as a Python class says what reads give; with a default they always give something."""
    plain = context.get_state(ValueStateDescriptor("a", int))
    assert_type(plain, ValueState[int])
    assert_type(plain.value(), int | None)
    assert_type(plain.async_value(), StateFuture[int | None])
    assert_type(plain.at(3).value(), int | None)
    plain.update(7)
    plain.update(None)
    plain.update("7")  # type: ignore[arg-type]
    plain.value() + 1  # type: ignore[operator]

    counted = context.get_state(ValueStateDescriptor("b", int, default=0, namespaced=True))
    assert_type(counted, ValueState[int, int])
    assert_type(counted.value(), int)
    assert_type(counted.async_value(), StateFuture[int])
    assert_type(counted.at(3).value() + 1, int)
    also: ValueState[int] = counted  # one with a default may be used as one without
    assert_type(also.async_update(1), StateFuture[None])

    assert_type(context.get_state(ValueStateDescriptor("c", float, 0)), ValueState[float, float])
    assert_type(context.get_state(ValueStateDescriptor("d", bytes)), ValueState[bytes])
    assert_type(context.get_state(ValueStateDescriptor("e", bool, default=False)), ValueState[bool, bool])
    kept = ValueStateDescriptor("f", str, ttl=StateTtl("1 hour"))
    assert_type(context.get_state(kept).value(), str | None)
    ValueStateDescriptor("g", 7)  # type: ignore[call-overload]
    ValueStateDescriptor("g", int, wrong=True)  # type: ignore[call-overload]


def arrow_types(context: OperatorContext) -> None:
    """Arrow types tell a checker nothing (pyarrow has no types): Any, until the author says what they are."""
    unknown = context.get_state(ValueStateDescriptor("a", pa.int32()))
    assert_type(unknown, ValueState[Any])
    said = context.get_state(ValueStateDescriptor[int]("b", pa.int32()))
    assert_type(said, ValueState[int])
    defaulted = context.get_state(ValueStateDescriptor[list[int]]("c", pa.list_(pa.int64()), default=[]))
    assert_type(defaulted, ValueState[list[int], list[int]])
    declared: ValueState[int] = context.get_state(ValueStateDescriptor("d", pa.int32()))
    assert_type(declared.value(), int | None)

    pickled = context.get_state(ValueStateDescriptor[Basket]("e", pickled=True))
    assert_type(pickled, ValueState[Basket])
    full = context.get_state(ValueStateDescriptor("f", pickled=True, default=Basket()))
    assert_type(full.value().total, int)
    ValueStateDescriptor[int]("g", pa.int32(), default="")  # type: ignore[call-overload]


def collections(context: OperatorContext) -> None:
    """Lists and maps."""
    words = context.get_state(ListStateDescriptor("a", str))
    assert_type(words, ListState[str])
    assert_type(words.get(), Iterator[str])
    assert_type(words.async_get(), StateFuture[StateIterator[str]])
    assert_type(to_iterable(words.async_get()), StateFuture[list[str]])
    assert_type(list(words), list[str])
    words.add(7)  # type: ignore[arg-type]
    assert_type(context.get_state(ListStateDescriptor[int]("b", pa.int16())), ListState[int])
    assert_type(context.get_state(ListStateDescriptor("c", pa.int16())), ListState[Any])

    best = context.get_state(MapStateDescriptor("d", str, int))
    assert_type(best, MapState[str, int])
    assert_type(best.get("x"), int | None)
    assert_type(best["x"], int | None)
    assert_type(best.async_get("x"), StateFuture[int | None])
    assert_type(best.async_entries(), StateFuture[StateIterator[tuple[str, int]]])
    best["x"] = 7
    best.put("x", "7")  # type: ignore[arg-type]
    best.get(7)  # type: ignore[arg-type]
    assert_type(context.get_state(MapStateDescriptor("e", str, pa.date32())), MapState[str, Any])
    assert_type(
        context.get_state(MapStateDescriptor[str, Basket]("f", str, pickled=True)), MapState[str, Basket]
    )
    MapStateDescriptor("g", 7, int)  # type: ignore[arg-type]


def folds(context: OperatorContext) -> None:
    """States that fold what is added."""
    highest = context.get_state(ReducingStateDescriptor("a", max, int))
    assert_type(highest, ReducingState[int])
    assert_type(highest.get(), int | None)
    assert_type(highest.async_get(), StateFuture[int | None])
    assert_type(highest.async_add(3), StateFuture[None])
    highest.add("3")  # type: ignore[arg-type]
    assert_type(context.get_state(ReducingStateDescriptor("b", lambda a, b: a + b, str)), ReducingState[str])
    assert_type(context.get_state(ReducingStateDescriptor[int]("c", min, pa.int64())), ReducingState[int])

    mean = context.get_state(AggregatingStateDescriptor("d", Mean(), pa.list_(pa.int64())))
    assert_type(mean, AggregatingState[int, float])
    assert_type(mean.get(), float | None)
    assert_type(mean.async_get(), StateFuture[float | None])
    mean.add(3.5)  # type: ignore[arg-type]


def the_rest(context: OperatorContext) -> None:
    """Broadcast states and states as columns."""
    limits = context.get_state(BroadcastStateDescriptor("a", str, int))
    assert_type(limits, BroadcastState[str, int])
    assert_type(limits.get("x"), int | None)
    assert_type(context.get_state(ColumnStateDescriptor("b", OUTPUT)), ColumnState)
    assert_type(context.get_state(ListColumnStateDescriptor("c", OUTPUT)), ListColumnState)
    assert_type(context.get_state(ColumnMapStateDescriptor("d", OUTPUT, OUTPUT)), ColumnMapState)
    context.get_state("a")  # type: ignore[arg-type]


def views(context: OperatorContext) -> None:
    """Views, which are over a state or hold what they show themselves."""
    assert_type(ValueView[int]().value(), int | None)
    counted = context.get_state(ValueStateDescriptor("a", int, default=0))
    assert_type(ValueView(counted).value(), int)
    assert_type(ValueView(context.get_state(ValueStateDescriptor("b", int))).value(), int | None)
    assert_type(ListView(context.get_state(ListStateDescriptor("c", str))).get(), Iterator[str])
    assert_type(MapView(context.get_state(MapStateDescriptor("d", str, int)))["x"], int | None)


@table_function(OUTPUT)
def counts(seen: Annotated[ValueView[int, int], StateHint(default=0)], row: SetTable) -> Iterator[tuple[int]]:
    """A table function: what a view's reads give stands second in its brackets."""
    assert_type(seen.value(), int)
    assert_type(row, Row)
    seen.update(seen.value() + 1)
    yield (seen.value(),)


def futures(text: StateFuture[str], number: StateFuture[int | None]) -> None:
    """A chain keeps its types."""
    assert_type(text.then_apply(len), StateFuture[int])
    assert_type(text.then_accept(print), StateFuture[None])
    assert_type(text.then_compose(lambda found: completed_future(len(found))), StateFuture[int])
    assert_type(text.then_combine(number, lambda a, b: (a, b)), StateFuture[tuple[str, int | None]])
    assert_type(text.then_conditionally_accept(str.isdigit, print), StateFuture[bool])
    assert_type(text.then_conditionally_apply(str.isdigit, int), StateFuture[tuple[bool, int | None]])
    assert_type(text.recover(lambda error: None), StateFuture[str | None])
    assert_type(text.finally_(lambda: None), StateFuture[str])
    assert_type(completed_void_future(), StateFuture[None])
    wider: StateFuture[str | None] = text  # what gives a str may be used where a str or None is expected
    assert_type(wider.then_apply(repr), StateFuture[str])
    text.then_apply(abs)  # type: ignore[arg-type]
    text.complete(7)  # type: ignore[arg-type]


def length_later(text: str) -> StateFuture[int]:
    """A function for each entry, which asks for something."""
    return completed_future(len(text))


def many_futures(text: StateFuture[str], number: StateFuture[int], iterator: StateIterator[str]) -> None:
    """Futures given one by one keep their types; those of an iterable have one in common."""
    assert_type(combine_all(text, number), StateFuture[tuple[str, int]])
    assert_type(combine_all(text, number, text).get()[2], str)
    assert_type(combine_all(text, number, text, number), StateFuture[tuple[str, int, str, int]])
    assert_type(combine_all(text, number, text, number, text).get(), tuple[str, int, str, int, str])
    assert_type(combine_all(*[text, text]), StateFuture[tuple[str, ...]])
    assert_type(combine_all([text, text]), StateFuture[list[str]])
    assert_type(combine_all(future for future in (number, number)), StateFuture[list[int]])
    combine_all([text, number]).then_accept(print)
    combine_all(text, 7)  # type: ignore[call-overload]
    assert_type(iterator.on_next(length_later), StateFuture[list[int]])
    assert_type(iterator.on_next(print), StateFuture[Any])
    assert_type(list(iterator), list[str])


class Balance(RecordOperator):
    """A record operator, as one writes it."""

    def bind(self, inputs: Any) -> pa.Schema:
        return OUTPUT

    def open(self, context: OperatorContext) -> None:
        self.balance = context.get_state(ValueStateDescriptor("balance", int, default=0))
        self.last = context.get_state(ValueStateDescriptor("last", str))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        balance, last = await combine_all(self.balance.async_value(), self.last.async_value())
        assert_type(balance, int)
        assert_type(last, str | None)
        await self.balance.async_update(balance + row.amount)
        ctx.emit(balance)


class Sums(BundleOperator):
    """A bundle operator."""

    def bind(self, inputs: Any) -> pa.Schema:
        assert_type(inputs, Any)
        return OUTPUT

    def open(self, context: OperatorContext) -> None:
        assert_type(context.inputs[0], InputSpec)
        self.sums = context.get_state(ColumnStateDescriptor("sums", OUTPUT))

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> None:
        assert_type(bundle.num_rows, int)
        ctx.emit([pa.array(np.zeros(bundle.num_rows))])


def operators() -> None:
    """The built-in operators have types under the package's name."""
    grouped = GroupAggregate([count().alias("n"), sum_("x").alias("total")])
    assert_type(grouped, GroupAggregate)
    assert_type(Join("left"), Join)
    Join("sideways")  # type: ignore[arg-type]
    assert_type(triggers.purging(triggers.count(2)), Trigger)
    with OperatorHarness(grouped, OUTPUT, ["n"]) as harness:
        assert_type(harness, OperatorHarness)


def chains(orders: Stream, customers: Stream) -> None:
    """Relational methods return streams, by way of groups and frames."""
    groups = orders.group_by("customer", day="date(ts)")
    assert_type(groups, Grouped)
    assert_type(groups.agg(count(), total=sum_("amount"), n="count(*)", uid="totals"), Stream)
    assert_type(groups.window(tumble("1 minute")).agg(n=count()), Stream)
    assert_type(groups.top(3, by=["amount", asc("id")], number="place"), Stream)
    assert_type(orders.over("customer", order_by="ts DESC", frame=rows(3)), Over)
    assert_type(orders.over(["a", "b"]).with_columns(s=sum_("amount")), Stream)
    assert_type(orders.distinct().top(3, by="amount"), Stream)
    assert_type(orders.join(customers, on={"customer": "id"}, how="left"), Stream)
    assert_type(orders.join(customers, Join("left"), uid="joined", key="customer"), Stream)
    assert_type(list(orders.columns), list[str])
    orders.show(5)
    orders.show({"orders": [("ann", 1)]}, changes=True)
    orders.join(customers)  # type: ignore[call-overload]
    orders.join(customers, Join("left"))  # type: ignore[call-overload]
    orders.group_by(3)  # type: ignore[arg-type]
    groups.agg(n=3)  # type: ignore[arg-type]
    groups.window("1 minute")  # type: ignore[arg-type]


def rate_of(country: str, day: int = 0) -> float:
    """A call to the outside."""
    return len(country) / (day + 1)


async def name_of(number: int) -> str:
    """One that is awaited."""
    return str(number)


def calls(ctx: RecordContext, bundles: BundleContext) -> None:
    """``ctx.call`` keeps the parameters and the result of its function."""
    assert_type(ctx.call(rate_of, "CH", day=2), StateFuture[float])
    assert_type(ctx.call(name_of, 7), StateFuture[str])
    assert_type(bundles.call(name_of, 7), StateFuture[str])
    assert_type(ctx.call(rate_of, "CH", timeout_seconds="2 seconds"), StateFuture[float])
    assert_type(ctx.call(name_of, 7, timeout_seconds=1.5), StateFuture[str])
    ctx.call(rate_of, 7)  # type: ignore[call-overload]
    ctx.call(name_of)  # type: ignore[call-overload]
