"""Functions on two inputs, connected or broadcast: what a loop over the rows gives, in both modes."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate import (
    BroadcastStateDescriptor,
    CoFlatMapFunction,
    CoMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapFunction,
    OperatorContext,
    RecordContext,
    Row,
    RowKind,
    Timer,
    ValueStateDescriptor,
    to_iterable,
)
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.testing import OperatorHarness
from operators import BroadcastProcess, CoFlatMap, CoMap, CoProcess
from tests.operators.function_runs import Step, inserts, run, run_both, run_step, slow_reads

BIDS = pa.schema([("auction", pa.int64()), ("price", pa.int64())])
CLOSINGS = pa.schema([("id", pa.int64()), ("reserve", pa.int64())])
INPUTS = [BIDS, CLOSINGS]
KEYS = [["auction"], ["id"]]
LINES = pa.schema([("auction", pa.int64()), ("text", pa.string())])


def steps(seed: int, count: int = 60) -> list[Step]:
    """Rows of both inputs; the harness gives those of input 1 first within a micro-batch."""
    chance = random.Random(seed)

    def rows(size: int) -> list[tuple[int, int]]:
        return [(chance.randrange(8), chance.randrange(100)) for _ in range(size)]

    return [Step(rows(count), rows(count // 3)), Step((), rows(5)), Step(rows(count))]


def arrivals(batches: Sequence[Step]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Input and row, in the order in which they are handled."""
    for step in batches:
        yield from ((1, tuple(row)) for row in step.others)  # type: ignore[misc]
        yield from ((0, tuple(row)) for row in step.rows)  # type: ignore[misc]


# -- map and flat map -----------------------------------------------------------------------------------


class _Latest(CoMapFunction):
    """Each bid with the newest reserve of its auction; each closing with the newest bid."""

    def open(self, context: OperatorContext) -> None:
        self.price = context.get_state(ValueStateDescriptor("price", pa.int64()))
        self.reserve = context.get_state(ValueStateDescriptor("reserve", pa.int64()))


class PlainLatest(_Latest):
    def map1(self, row: Row) -> Any:
        self.price.update(row.price)
        return row.auction, f"bid {row.price} over {self.reserve.value()}"

    def map2(self, row: Row) -> Any:
        self.reserve.update(row.reserve)
        return row.id, f"closed at {self.price.value()}"


class FutureLatest(_Latest):
    def map1(self, row: Row) -> Any:
        self.price.async_update(row.price)
        return self.reserve.async_value().then_apply(lambda one: (row.auction, f"bid {row.price} over {one}"))

    def map2(self, row: Row) -> Any:
        self.reserve.async_update(row.reserve)
        return self.price.async_value().then_apply(
            lambda price: {"auction": row.id, "text": f"closed at {price}"}
        )


class AwaitLatest(_Latest):
    async def map1(self, row: Row) -> Any:
        await self.price.async_update(row.price)
        return row.auction, f"bid {row.price} over {await self.reserve.async_value()}"

    async def map2(self, row: Row) -> Any:
        await self.reserve.async_update(row.reserve)
        return row.id, f"closed at {await self.price.async_value()}"


@pytest.mark.parametrize("function", [PlainLatest, FutureLatest, AwaitLatest])
def test_map_shares_state_between_the_inputs(function: Callable[[], CoMapFunction]) -> None:
    batches = steps(3)
    done = run_both(lambda: CoMap(function(), LINES), INPUTS, KEYS, batches)
    newest: tuple[dict[int, int], dict[int, int]] = ({}, {})
    expected = []
    for index, (auction, value) in arrivals(batches):
        newest[index][auction] = value
        other = newest[1 - index].get(auction)
        expected.append((auction, f"closed at {other}" if index else f"bid {value} over {other}"))
    assert inserts(done.rows) == expected


class _Outbid(CoFlatMapFunction):
    """A closing gives the bids since the last one that reach its reserve."""

    def open(self, context: OperatorContext) -> None:
        self.bids = context.get_state(ListStateDescriptor("bids", pa.int64()))


class PlainOutbid(_Outbid):
    def flat_map1(self, row: Row) -> Any:
        self.bids.add(row.price)

    def flat_map2(self, row: Row) -> Any:
        for price in self.bids.get():
            if price >= row.reserve:
                yield row.id, str(price)
        self.bids.clear()


class FutureOutbid(_Outbid):
    def flat_map1(self, row: Row) -> Any:
        return self.bids.async_add(row.price)

    def flat_map2(self, row: Row) -> Any:
        found = to_iterable(self.bids.async_get())
        self.bids.async_clear()
        return found.then_apply(
            lambda prices: [(row.id, str(price)) for price in prices if price >= row.reserve]
        )


class AwaitOutbid(_Outbid):
    async def flat_map1(self, row: Row) -> Any:
        await self.bids.async_add(row.price)

    async def flat_map2(self, row: Row) -> AsyncIterator[Any]:
        async for price in await self.bids.async_get():
            if price >= row.reserve:
                yield row.id, str(price)
        await self.bids.async_clear()


def outbid(batches: Sequence[Step]) -> list[tuple[int, str]]:
    bids: dict[int, list[int]] = {}
    expected = []
    for index, (auction, value) in arrivals(batches):
        if index == 0:
            bids.setdefault(auction, []).append(value)
        else:
            expected += [(auction, str(price)) for price in bids.pop(auction, []) if price >= value]
    return expected


@pytest.mark.parametrize("function", [PlainOutbid, FutureOutbid, AwaitOutbid])
def test_flat_map_shares_state_between_the_inputs(function: Callable[[], CoFlatMapFunction]) -> None:
    batches = [*steps(4), *steps(5)]
    done = run_both(lambda: CoFlatMap(function(), LINES), INPUTS, KEYS, batches)
    assert inserts(done.rows) == outbid(batches)
    assert len(done.rows) > 20


class Relay(CoMapFunction):
    accepts_changelog = True

    def map1(self, row: Row) -> Any:
        return row.auction, "bid"

    def map2(self, row: Row) -> Any:
        return row.id, "closing"


def test_rows_that_are_taken_back_keep_their_kind() -> None:
    changes = Step([(1, 5), (1, 5)], [(1, 0)], kinds=["+I", "-D"])
    done = run_both(lambda: CoMap(Relay(), LINES), INPUTS, KEYS, [changes])
    assert done.rows == [("+I", 1, "closing"), ("+I", 1, "bid"), ("-D", 1, "bid")]
    with pytest.raises(SchemaError, match="does not accept retractions, but input 1 is a changelog"):
        OperatorHarness(CoMap(PlainLatest(), LINES), INPUTS, KEYS, changelog=[False, True])


# -- process --------------------------------------------------------------------------------------------

ORDERS = pa.schema([("order", pa.int64()), ("time", pa.timestamp("us", "UTC"))])
PAYMENTS = pa.schema([("of", pa.int64()), ("paid", pa.timestamp("us", "UTC"))])
FATES = pa.schema([("order", pa.int64()), ("fate", pa.string()), ("at", pa.timestamp("us", "UTC"))])
PATIENCE = 100


class AwaitFates(KeyedCoProcessFunction):
    """Orders that are paid in time, and those that are not."""

    def open(self, context: OperatorContext) -> None:
        self.ordered = context.get_state(ValueStateDescriptor("ordered", pa.int64()))

    async def process1(self, row: Row, ctx: RecordContext) -> Any:
        await self.ordered.async_update(row.time)
        ctx.timers.register_event_time(row.time + PATIENCE, name="patience")

    async def process2(self, row: Row, ctx: RecordContext) -> Any:
        if await self.ordered.async_value() is not None:
            ctx.timers.delete_event_time(name="patience")
            ctx.emit(ctx.key[0], "paid", row.paid)
            await self.ordered.async_clear()

    async def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        ctx.emit(ctx.key[0], "given up", timer.time)
        await self.ordered.async_clear()


class FutureFates(AwaitFates):
    def process1(self, row: Row, ctx: RecordContext) -> Any:  # type: ignore[override]
        ctx.timers.register_event_time(row.time + PATIENCE, name="patience")
        return self.ordered.async_update(row.time)

    def process2(self, row: Row, ctx: RecordContext) -> Any:  # type: ignore[override]
        def settle(_: Any) -> None:
            ctx.timers.delete_event_time(name="patience")
            ctx.emit(ctx.key[0], "paid", row.paid)
            self.ordered.async_clear()

        return self.ordered.async_value().then_conditionally_accept(lambda time: time is not None, settle)


@pytest.mark.parametrize("function", [AwaitFates, FutureFates])
def test_process_with_timers_over_two_inputs(function: Callable[[], KeyedCoProcessFunction]) -> None:
    orders = [(number, 10 * number) for number in range(40)]
    payments = [(number, 10 * number + 50 + 7 * (number % 11)) for number in range(0, 40, 2)]
    batches = [Step(orders)]
    for now in range(0, 600, 50):
        batches.append(Step(others=[one for one in payments if now - 50 < one[1] <= now]))
        batches.append(Step(watermark=now))  # behind the payments up to it
    done = run_both(
        lambda: CoProcess(function(), FATES),
        [ORDERS, PAYMENTS],
        [["order"], ["of"]],
        batches,
        event_time=["time", "paid"],
    )
    # a payment is seen by the end of its fifty, an order given up at the first watermark after its time
    expected = set()
    for number, time in orders:
        paid = dict(payments).get(number)
        given_up = time + PATIENCE
        in_time = paid is not None and -(-paid // 50) <= -(-given_up // 50)
        expected.add((number, "paid", paid) if in_time else (number, "given up", given_up))
    assert set(inserts(done.rows)) == expected
    assert {fate for _, fate, _ in expected} == {"paid", "given up"}
    assert done.stored[-1] == {}


# -- broadcast ------------------------------------------------------------------------------------------

TEXTS = pa.schema([("user", pa.int64()), ("text", pa.string())])
RULES = pa.schema([("word", pa.string()), ("banned", pa.bool_())])
OUT = pa.schema([("user", pa.int64()), ("what", pa.string())])


class PlainModeration(KeyedBroadcastProcessFunction):
    """Passes texts without banned words on; tells each user who has used a word that it is banned now."""

    notify_stateful_sets = True

    def open(self, context: OperatorContext) -> None:
        self.banned = context.get_state(BroadcastStateDescriptor("banned", pa.string(), pa.bool_()))
        self.said = context.get_state(ListStateDescriptor("said", pa.string()))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        if not self.banned.contains(row.text):
            self.said.add(row.text)
            ctx.emit(row.user, row.text)

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        if row.banned:
            self.banned.put(row.word, True)
        else:
            self.banned.remove(row.word)

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        if row.banned and row.word in self.said.get():
            ctx.emit(ctx.key[0], f"{row.word} is banned")


class AwaitModeration(PlainModeration):
    async def process(self, row: Row, ctx: RecordContext) -> Any:
        if not await self.banned.async_contains(row.text):
            await self.said.async_add(row.text)
            ctx.emit(row.user, row.text)

    async def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        await (self.banned.async_put(row.word, True) if row.banned else self.banned.async_remove(row.word))

    async def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        if row.banned and row.word in await to_iterable(self.said.async_get()):
            ctx.emit(ctx.key[0], f"{row.word} is banned")


class FutureModeration(PlainModeration):
    def process(self, row: Row, ctx: RecordContext) -> Any:
        def say(_: Any) -> None:
            self.said.async_add(row.text)
            ctx.emit(row.user, row.text)

        return self.banned.async_contains(row.text).then_conditionally_accept(lambda found: not found, say)

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        def tell(said: list[str]) -> None:
            if row.banned and row.word in said:
                ctx.emit(ctx.key[0], f"{row.word} is banned")

        return to_iterable(self.said.async_get()).then_accept(tell)


def moderation_steps(seed: int) -> list[Step]:
    chance = random.Random(seed)
    return [
        Step(
            [(chance.randrange(12), chance.choice("abcde")) for _ in range(30)],
            [(chance.choice("abcde"), chance.random() < 0.6) for _ in range(3)],
        )
        for _ in range(4)
    ]


def moderated(batches: Sequence[Step]) -> list[list[tuple[int, str]]]:
    """The model: the rows of each micro-batch, sorted."""
    banned: set[str] = set()
    said: dict[int, set[str]] = {}
    results = []
    for step in batches:
        rows: list[tuple[int, str]] = []
        for word, is_banned in step.others:
            (banned.add if is_banned else banned.discard)(word)
            if is_banned:
                rows += [(user, f"{word} is banned") for user, words in said.items() if word in words]
        for user, text in step.rows:
            if text not in banned:
                said.setdefault(user, set()).add(text)
                rows.append((user, text))
        results.append(sorted(rows))
    return results


@pytest.mark.parametrize("function", [PlainModeration, AwaitModeration, FutureModeration])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_broadcast_rules_hold_in_every_partition(
    function: Callable[[], KeyedBroadcastProcessFunction], parallelism: int
) -> None:
    batches = moderation_steps(8)
    done = run_both(
        lambda: BroadcastProcess(function(), OUT),
        [TEXTS, RULES],
        [["user"], None],
        batches,
        finish=False,
        parallelism=parallelism,
    )
    assert [sorted(inserts(rows)) for rows in done.outputs] == moderated(batches)


def test_broadcast_goes_on_after_a_restore_at_another_parallelism_and_mode(async_enabled: bool) -> None:
    batches = moderation_steps(9)
    settings: dict[str, Any] = {"inputs": [TEXTS, RULES], "key": [["user"], None], "parallelism": 2}
    operator = BroadcastProcess(AwaitModeration(), OUT)
    with slow_reads(), OperatorHarness(operator, async_enabled=async_enabled, **settings) as harness:
        outputs = [run_step(harness, step) for step in batches[:2]]
        with harness.restore(harness.snapshot(), parallelism=3, async_enabled=not async_enabled) as restored:
            outputs += run(restored, batches[2:], finish=False).outputs
    assert [sorted(inserts(rows)) for rows in outputs] == moderated(batches)


class Silent(PlainModeration):
    """Does not notify, and has timers."""

    notify_stateful_sets = False

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.timers.register_event_time(5)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        ctx.emit(ctx.key[0], f"banned: {', '.join(self.banned.keys())}")


def test_timers_read_broadcast_state_and_nobody_is_notified_unasked() -> None:
    batches = [Step([(1, "a")], [("x", True)]), Step((), [("y", True)])]
    done = run_both(lambda: BroadcastProcess(Silent(), OUT), [TEXTS, RULES], [["user"], None], batches)
    assert done.outputs == [[], [], [("+I", 1, "banned: x, y")]]


class Forward(PlainModeration):
    def process(self, row: Row, ctx: RecordContext) -> Any:
        self.banned.put(row.text, True)


class Talkative(PlainModeration):
    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        ctx.emit(0, row.word)


@pytest.mark.parametrize("function", [Forward, Talkative])
def test_only_broadcast_rows_write_and_they_put_nothing_out(
    function: Callable[[], KeyedBroadcastProcessFunction], async_enabled: bool
) -> None:
    operator = BroadcastProcess(function(), OUT)
    with OperatorHarness(operator, [TEXTS, RULES], [["user"], None], async_enabled=async_enabled) as harness:
        harness.push([(1, "a")])
        harness.push([("x", True)], input=1)
        with pytest.raises(OperatorError):
            harness.end_batch()


class AllKinds(PlainModeration):
    accepts_changelog = True
    notify_stateful_sets = False

    def process(self, row: Row, ctx: RecordContext) -> Any:
        ctx.emit(row.user, row.text, kind=ctx.row_kind)

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        assert ctx.row_kind is RowKind.INSERT


def test_process_sees_the_kinds_of_a_changelog() -> None:
    step = Step([(1, "a"), (1, "a")], [("x", True)], kinds=["+I", "-D"])
    done = run_both(
        lambda: BroadcastProcess(AllKinds(), OUT), [TEXTS, RULES], [["user"], None], [step], finish=False
    )
    assert done.rows == [("+I", 1, "a"), ("-D", 1, "a")]


# -- mistakes -------------------------------------------------------------------------------------------


class Lonely(MapFunction):
    def map(self, row: Row) -> Any:
        return row


@pytest.mark.parametrize("operator", [CoMap, CoFlatMap, CoProcess, BroadcastProcess])
def test_another_kind_of_function_is_refused(operator: Any) -> None:
    with pytest.raises(SchemaError, match="is not a function for it; give a "):
        operator(Lonely(), LINES)
    with pytest.raises(SchemaError, match="is not a function for it; give a "):
        operator(lambda row: row, LINES)


def test_inputs_whose_keys_differ_in_type_are_refused() -> None:
    with pytest.raises(SchemaError, match="keys of its inputs differ in type"):
        OperatorHarness(
            CoMap(PlainLatest(), LINES), [BIDS, pa.schema([("id", pa.string())])], [["auction"], ["id"]]
        )
