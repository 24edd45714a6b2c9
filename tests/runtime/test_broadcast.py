"""The broadcast input, end to end without Spark: every partition sees it first, and it is stored in each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate import (
    BroadcastState,
    BroadcastStateDescriptor,
    BundleOperator,
    InputSpec,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorContext,
    RecordContext,
    RecordOperator,
    Row,
    RowKind,
    ValueState,
    ValueStateDescriptor,
)
from asyncstate.changelog import RETRACT
from asyncstate.codec import BROADCAST_GROUP
from asyncstate.errors import (
    JobError,
    OperatorError,
    SchemaError,
    StateAccessError,
    StateDeclarationError,
    StoreError,
)
from asyncstate.runtime import InputBatch, pack_broadcast
from asyncstate.runtime.partition.broadcast_inputs import unpack_broadcast
from asyncstate.testing import OperatorHarness, Tuning
from tests.examples import at_most

DATA = pa.schema([("user", pa.string()), ("amount", pa.int64())])
RULES = pa.schema([("rule", pa.string()), ("limit", pa.int64())])
INPUTS = [DATA, RULES]
USERS = [f"user{number}" for number in range(12)]


class Rules(RecordOperator):
    """Puts out each row with the rules it breaks; a rule without a limit is withdrawn."""

    num_inputs = 2
    broadcast_input = 1

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        inputs[0].column("amount")
        return pa.schema([("user", pa.string()), ("amount", pa.int64()), ("broken", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self.rules: BroadcastState[str, int] = context.get_state(BroadcastStateDescriptor("rules", str, int))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        if row.limit is None or ctx.row_kind is RowKind.DELETE:
            self.rules.remove(row.rule)
        else:
            self.rules.put(row.rule, row.limit)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        def emit_results(rules: Any) -> None:
            ctx.emit(row.user, row.amount, " ".join(rule for rule, limit in rules if row.amount > limit))

        return self.rules.async_entries().then_accept(emit_results)


class Fraud(Rules):
    """Keeps each user's total. A new rule is tried at once on the totals of all users: who breaks it is put out."""

    notify_stateful_sets = True

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.total: ValueState[int] = context.get_state(ValueStateDescriptor("total", int, default=0))

    async def process(self, row: Row, ctx: RecordContext) -> None:
        await self.total.async_update(await self.total.async_value() + row.amount)  # type: ignore[operator]

    async def process_notification(self, row: Row, ctx: RecordContext) -> None:
        total = await self.total.async_value()
        if row.limit is not None and total is not None and total > row.limit:
            assert self.rules.get(row.rule) == row.limit
            ctx.emit(ctx.key[0], total, row.rule)


def harness(operator: RecordOperator, **settings: Any) -> OperatorHarness:
    settings.setdefault("changelog", [False, True])
    return OperatorHarness(operator, INPUTS, ["user"], **settings)


def broadcast_entries(entries: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {key: value for key, value in entries.items() if key[:2] == BROADCAST_GROUP}


# order


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rules_hold_for_all_rows_of_their_micro_batch(async_enabled: bool, parallelism: int) -> None:
    with harness(Rules(), async_enabled=async_enabled, parallelism=parallelism) as made:
        made.push([(user, 10) for user in USERS])
        made.push([("low", 5), ("high", 50)], input=1)  # pushed later, handled before
        assert sorted(made.end_batch()) == sorted(("+I", user, 10, "low") for user in USERS)
        made.push([("low", 20)], input=1)
        made.push([("low", 11), ("high", 9), ("low", 12)], input=1)  # of one rule the last row counts
        made.push([(user, 12) for user in USERS])
        assert sorted(made.end_batch()) == sorted(("+I", user, 12, "high") for user in USERS)
        made.push([("high", 9)], input=1, kind="-D")
        made.push([(user, 12) for user in USERS])
        assert sorted(made.end_batch()) == sorted(("+I", user, 12, "") for user in USERS)
        assert len(broadcast_entries(made.state_entries())) == 1
        assert made.statistics()["rows_in"] == 1 + len(USERS)  # each row once, however many partitions


def test_a_micro_batch_may_have_rows_of_one_input_or_none(async_enabled: bool) -> None:
    with harness(Rules(), async_enabled=async_enabled, parallelism=3) as made:
        assert made.end_batch() == []
        made.push([("low", 5)], input=1)
        assert made.end_batch() == []
        made.push([("a", 7)])
        assert made.end_batch() == [("+I", "a", 7, "low")]
        assert made.finish() == []


class Log(RecordOperator):
    """Puts out every call with the rules at that moment."""

    num_inputs = 2
    broadcast_input = 0
    notify_stateful_sets = True

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("what", pa.string()), ("user", pa.string()), ("rules", pa.string())])

    def open(self, context: OperatorContext) -> None:
        self.rules: BroadcastState[str, int] = context.get_state(BroadcastStateDescriptor("rules", str, int))
        self.value: ValueState[int] = context.get_state(ValueStateDescriptor("value", int))
        self.map = context.get_state(MapStateDescriptor("map", int, int))
        self.list = context.get_state(ListStateDescriptor("list", int, namespaced=True))

    async def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        await self.rules.async_put(row.rule, row.limit)

    async def process(self, row: Row, ctx: RecordContext) -> None:
        kind = row.amount % 4
        if kind == 1:
            await self.value.async_update(row.amount)
        elif kind == 2:
            await self.map.async_put_all({number: 0 for number in range(40)})
        elif kind == 3:
            await self.list.at(row.amount).async_add_all(list(range(2000)))
        self._log("row", ctx)

    async def process_notification(self, row: Row, ctx: RecordContext) -> None:
        assert ctx.input_index == 0
        await self.map.async_put(-1, row.limit)  # must not bring the key back
        if row.limit == 0:
            await self.value.async_clear()
            await self.map.async_clear()
        self._log("told", ctx)

    def on_watermark(self, watermark: int, ctx: RecordContext) -> None:
        self.rules.get("x")  # may be read without a key
        if watermark == 7:
            ctx.emit("watermark", None, self._text())

    def _log(self, what: str, ctx: RecordContext) -> None:
        ctx.emit(what, ctx.key[0], self._text())

    def _text(self) -> str:
        return " ".join(f"{rule}{limit}" for rule, limit in self.rules.entries())


@pytest.mark.parametrize("options", [{}, {"async-state.in-flight-limit": "2"}], ids=["", "few-in-flight"])
def test_each_key_with_state_is_told_once_between_two_rows(
    async_enabled: bool, options: dict[str, str]
) -> None:
    settings = {"async_enabled": async_enabled, "options": options}
    with OperatorHarness(Log(), [RULES, DATA], [None, "user"], changelog=False, **settings) as made:
        made.push([("ann", 1), ("bob", 2), ("cem", 3), ("dan", 0), ("ann", 2)], input=1)
        made.push([("x", 1)])
        assert [row[1:] for row in made.end_batch()] == [
            ("row", user, "x1") for user in ("ann", "bob", "cem", "dan", "ann")
        ]
        made.push([("y", 2), ("x", 0)])
        made.push([("dan", 1)], input=1)
        out = made.end_batch()
        told = {("told", user) for user in ("ann", "bob", "cem")}
        assert {row[1:] for row in out[:3]} == {(*call, "x1 y2") for call in told}
        assert {row[1:] for row in out[3:6]} == {(*call, "x0 y2") for call in told}
        assert out[6:] == [("+I", "row", "dan", "x0 y2")]
        assert made.statistics()["counter.keys_notified"] == 6
        made.push([("z", 3)])  # ann and bob have lost their state
        made.advance_watermark(7)
        assert {row[1:] for row in made.end_batch()} == {
            ("told", "cem", "x0 y2 z3"), ("told", "dan", "x0 y2 z3"), ("watermark", None, "x0 y2 z3"),
        }  # fmt: skip


def test_both_modes_tell_the_keys_in_the_same_order() -> None:
    outputs, entries = [], []
    for async_enabled in (False, True):
        with OperatorHarness(
            Log(),
            [RULES, DATA],
            [None, ["user"]],
            changelog=False,
            async_enabled=async_enabled,
            parallelism=2,
        ) as made:
            made.push([(user, number) for number, user in enumerate(USERS)], input=1)
            made.end_batch()
            made.push([("x", 1), ("y", 2)])
            outputs.append(made.end_batch())
            entries.append(made.state_entries())
    assert outputs[0] == outputs[1]
    assert entries[0] == entries[1]
    assert len(outputs[0]) == 2 * 9  # a quarter of the users wrote no state


def test_many_keys_are_told_and_their_rows_leave_in_between(async_enabled: bool) -> None:
    keys = 5_000
    with harness(Fraud(), async_enabled=async_enabled) as made:
        made.push([(f"user{number}", number) for number in range(keys)])
        made.end_batch()
        made.push([("low", 9)], input=1)
        out = made.end_batch()
        assert len(out) == keys - 10
        assert made.statistics()["counter.keys_notified"] == keys


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_new_rule_finds_the_users_who_break_it_already(async_enabled: bool, parallelism: int) -> None:
    with harness(Fraud(), async_enabled=async_enabled, parallelism=parallelism) as made:
        made.push([("ann", 60), ("bob", 30), ("ann", 50)])
        made.push([("large", 100)], input=1)  # nobody has state yet
        assert made.end_batch() == []
        made.push([("bob", 80)])
        made.push([("large", 100), ("small", 20)], input=1)
        assert sorted(made.end_batch()) == [
            ("+I", "ann", 110, "large"), ("+I", "ann", 110, "small"), ("+I", "bob", 30, "small"),
        ]  # fmt: skip
        made.push([("large", None)], input=1)
        assert made.end_batch() == []


# restart


def test_broadcast_state_survives_restart_and_rescale(async_enabled: bool) -> None:
    settings = {"async_enabled": async_enabled}
    with harness(Fraud(), **settings) as first:
        first.push([(user, number) for number, user in enumerate(USERS)])
        first.push([("a", 3), ("b", 8)], input=1)
        first.end_batch()
        at_one = first.state_entries()
        assert len(broadcast_entries(at_one)) == 2
        with first.restore(first.snapshot(), parallelism=3) as second:
            assert second.end_batch() == []
            assert second.state_entries() == at_one  # in each of the three; read_state has compared them
            second.push([("c", 10)], input=1)
            assert second.end_batch() == [("+I", "user11", 11, "c")]
            at_three = second.state_entries()
            with second.restore(second.snapshot(), parallelism=2, async_enabled=not async_enabled) as third:
                third.push([("d", 9)], input=1)
                assert sorted(third.end_batch()) == [("+I", "user10", 10, "d"), ("+I", "user11", 11, "d")]
                assert at_three.items() < third.state_entries().items()
                with third.restore(third.snapshot(), operator=Rules(), parallelism=5) as fourth:
                    fourth.push([("ann", 9)])
                    assert fourth.end_batch() == [("+I", "ann", 9, "a b")]


class Differing(Rules):
    """Writes what differs from partition to partition."""

    def __init__(self, pickled: bool) -> None:
        self.pickled = pickled

    def open(self, context: OperatorContext) -> None:
        self.first = context.key_groups.start
        self.rules = context.get_state(
            BroadcastStateDescriptor("rules", str, None if self.pickled else int, pickled=self.pickled)
        )

    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        if row.rule == "all":
            self.rules.put(row.rule, 1)
        elif row.rule == "values":
            self.rules.put(row.rule, self.first)
        elif row.rule == "keys":
            self.rules.put(str(self.first), 1)
        elif self.first:
            self.rules.remove("all")


@pytest.mark.parametrize("rule", ["values", "keys", "removals"])
def test_partitions_that_disagree_commit_nothing(async_enabled: bool, rule: str) -> None:
    with harness(Differing(pickled=False), async_enabled=async_enabled, parallelism=2) as made:
        made.push([("all", 1)], input=1)
        made.end_batch()
        committed = made.state_entries()
        made.push([(rule, 1)], input=1)
        with pytest.raises(
            JobError, match="partitions 0 and 1 made different changes to broadcast state; process_broadcast"
        ):
            made.end_batch()
        assert made.state_entries() == committed


def test_pickles_may_differ_until_somebody_reads_them_all() -> None:
    with harness(Differing(pickled=True), parallelism=2) as made:
        made.push([("values", 1)], input=1)
        made.end_batch()
        with pytest.raises(StoreError, match="partitions 0 and 1 hold different broadcast state"):
            made.state_entries()
        made.push([("keys", 1)], input=1)
        with pytest.raises(JobError, match="different changes to broadcast state"):
            made.end_batch()


# time

TIMED = [
    pa.schema([("user", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]),
    pa.schema([("rule", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]),
]


class Times(Rules):
    def process_broadcast(self, row: Row, ctx: RecordContext) -> None:
        assert ctx.timestamp == row.at
        assert ctx.key == ()
        self.rules.put(row.rule, row.at)

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("rules", pa.int64()), ("watermark", pa.int64())])

    def process(self, row: Row, ctx: RecordContext) -> None:
        ctx.emit(len(self.rules), ctx.watermark)


def test_the_broadcast_input_may_hold_back_the_watermark(async_enabled: bool) -> None:
    with OperatorHarness(
        Times(), TIMED, ["user"], event_time="at", watermark_delay=[0, 5], parallelism=2,
        async_enabled=async_enabled,
    ) as made:  # fmt: skip
        made.push([("a", 100)])
        made.push([("r", 50), ("s", None), ("t", 40)], input=1)
        ((_, rules, _),) = made.end_batch()
        assert rules == 2
        assert made.watermark == 45
        assert made.statistics()["counter.null_event_times"] == 1
        assert made.statistics()["rows_in"] == 4


# refusals


class Careless(Fraud):
    """Does in process_broadcast what ``what`` says."""

    def __init__(self, what: str, later: bool = False) -> None:
        self.what = what
        self.later = later

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.spaces = context.get_state(ValueStateDescriptor("spaces", int, namespaced=True))
        self.elements = context.get_state(ListStateDescriptor("elements", int))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        forbidden: dict[str, Callable[[], Any]] = {
            "value": self.total.async_value,
            "update": lambda: self.total.update(1),
            "namespaced": lambda: self.spaces.at(5).async_value(),
            "list": lambda: self.elements.async_add(1),
            "timer": lambda: ctx.timers.register_event_time(5),
            "emit": lambda: ctx.emit("a", 1, "b"),
        }
        if self.later:
            return self.rules.async_get("x").then_accept(lambda _: forbidden[self.what]())
        return forbidden[self.what]()

    def process(self, row: Row, ctx: RecordContext) -> Any:
        self.rules.put("x", 1)


@pytest.mark.parametrize("later", [False, True], ids=["at-once", "chained"])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "value",
            r"state 'total' .* used by a row of the broadcast input, which has no key; use a BroadcastState",
        ),
        ("update", "state 'total' .* set notify_stateful_sets"),
        ("namespaced", "state 'spaces' .* which has no key"),
        ("list", "state 'elements' .* which has no key"),
        ("timer", "timers of operator 'operator' were used without a current key"),
        ("emit", "a row of the broadcast input emitted a row"),
    ],
)
def test_a_broadcast_row_has_no_key_and_no_output(
    async_enabled: bool, what: str, message: str, later: bool
) -> None:
    with harness(Careless(what, later), async_enabled=async_enabled) as made:
        made.push([("x", 1)], input=1)
        with pytest.raises(OperatorError, match=message) as raised:
            made.end_batch()
        assert isinstance(raised.value.__cause__, StateAccessError)


def test_other_rows_do_not_write_broadcast_state(async_enabled: bool) -> None:
    with harness(Careless("value"), async_enabled=async_enabled) as made:
        made.push([("ann", 1)])
        with pytest.raises(OperatorError, match=r"state 'rules' .* only in process_broadcast\(\)"):
            made.end_batch()


class WritingNotification(Fraud):
    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        self.rules.put("x", 1)


def test_a_notification_does_not_write_broadcast_state(async_enabled: bool) -> None:
    with harness(WritingNotification(), async_enabled=async_enabled) as made:
        made.push([("ann", 1)])
        made.end_batch()
        made.push([("x", 1)], input=1)
        with pytest.raises(
            OperatorError, match=r"key \('ann',\).*state 'rules' .* only in process_broadcast\(\)"
        ):
            made.end_batch()


class NoBroadcastMethod(RecordOperator):
    num_inputs = 2
    broadcast_input = 1

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return DATA

    def process(self, row: Row, ctx: RecordContext) -> Any:
        raise AssertionError("never runs")


class NoNotification(Rules):
    notify_stateful_sets = True


class NoRegularInput(Rules):
    num_inputs = 1
    broadcast_input = 0


class NoSuchInput(Rules):
    broadcast_input = 2


class NotifiesWithout(NoBroadcastMethod):
    broadcast_input = None
    notify_stateful_sets = True


class StateWithout(Rules):
    broadcast_input = None


class Bundles(BundleOperator):
    num_inputs = 2
    broadcast_input = 1

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return DATA

    def process_bundle(self, bundle: Any, ctx: Any) -> Any:
        raise AssertionError("never runs")


@pytest.mark.parametrize(
    ("operator", "settings", "message"),
    [
        (
            NoBroadcastMethod(),
            {},
            r"\(NoBroadcastMethod\) has a broadcast input but no process_broadcast method",
        ),
        (NoNotification(), {}, "no process_notification method"),
        (NoRegularInput(), {"inputs": [RULES], "key": [None]}, "at least one other input"),
        (NoSuchInput(), {"key": None}, "broadcast_input is 2 with num_inputs 2"),
        (NotifiesWithout(), {"key": ["user", "rule"]}, "notify_stateful_sets but has no broadcast input"),
        (Bundles(), {}, "has a broadcast input but no process_broadcast method"),
    ],
)
def test_what_is_refused_on_the_driver(operator: Any, settings: dict[str, Any], message: str) -> None:
    given = {"inputs": INPUTS, "key": ["user", None], **settings}
    with pytest.raises(SchemaError, match=message):
        OperatorHarness(operator, **given)


def test_a_broadcast_input_has_no_key() -> None:
    with pytest.raises(JobError, match="input 1 is broadcast and has no key, every partition gets its rows"):
        OperatorHarness(Rules(), INPUTS, ["user", "rule"])


def test_broadcast_state_needs_a_broadcast_input() -> None:
    with pytest.raises(StateDeclarationError, match="'rules' is declared, but no input is broadcast"):
        OperatorHarness(StateWithout(), INPUTS, ["user", "rule"])


def test_a_broadcast_changelog_needs_an_operator_that_takes_it() -> None:
    class InsertOnly(Rules):
        accepts_changelog = False

    with pytest.raises(SchemaError, match="does not accept retractions, but input 1"):
        OperatorHarness(InsertOnly(), INPUTS, ["user"], changelog=[False, True])


def test_rows_beyond_the_limit_are_refused() -> None:
    with harness(Rules(), tuning=Tuning(broadcast_bytes=1 << 10)) as made:
        made.push([("r", number) for number in range(200)], input=1)
        with pytest.raises(
            JobError,
            match=r"200 rows of input 1 have \d+ bytes, more than the 1024 that async-state.memory.*raise async-state",
        ):
            made.end_batch()


def test_packed_rows_are_unpacked_as_they_were() -> None:
    spec = InputSpec(RULES, (), changes=RETRACT, broadcast=True)
    first = pa.RecordBatch.from_pylist([{"rule": "a", "limit": 1}, {"rule": None, "limit": None}], RULES)
    kinds = pa.array([0, 3], pa.int8()).to_numpy()
    packed = pack_broadcast("op", spec, [InputBatch(first), InputBatch(first, kinds)], 1 << 20)
    assert packed is not None
    again = list(unpack_broadcast(packed, 1))
    assert [given.batch for given in again] == [first, first]
    assert [given.kinds.tolist() for given in again if given.kinds is not None] == [[0, 0], [0, 3]]
    assert [given.input_index for given in again] == [1, 1]
    assert pack_broadcast("op", spec, [], 1 << 20) is None
    assert dataclasses.replace(spec, broadcast=False).broadcast is False


# against a model

BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 30)), max_size=3),
        st.lists(st.tuples(st.sampled_from(USERS[:5]), st.integers(0, 20)), max_size=6),
    ),
    min_size=1,
    max_size=4,
)


class FraudModel:
    """The rules of ``Fraud``, on two dicts."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.rules: dict[str, int] = {}

    def run(self, rules: list[tuple[str, int | None]], rows: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
        out = []
        for rule, limit in rules:
            if limit is None:
                self.rules.pop(rule, None)
                continue
            self.rules[rule] = limit
            out += [("+I", user, total, rule) for user, total in self.totals.items() if total > limit]
        for user, amount in rows:
            self.totals[user] = self.totals.get(user, 0) + amount
        return sorted(out)


@settings(max_examples=at_most(15))
@given(batches=BATCHES, parallelisms=st.lists(st.integers(1, 3), min_size=4, max_size=4))
@pytest.mark.parametrize("mode", [False, True], ids=["sync", "async"])
def test_random_batches_follow_the_model(
    mode: bool, batches: list[tuple[Any, Any]], parallelisms: list[int]
) -> None:
    model = FraudModel()
    opened = [harness(Fraud(), async_enabled=mode, parallelism=parallelisms[0])]
    try:
        for (rules, rows), parallelism in zip(batches, parallelisms, strict=False):
            made = opened[-1]
            if parallelism != made.parallelism:
                made = made.restore(made.snapshot(), parallelism=parallelism)
                opened.append(made)
            made.push(rules, input=1)
            made.push(rows)
            assert sorted(made.end_batch()) == model.run(rules, rows)
            assert len(broadcast_entries(made.state_entries())) == len(model.rules)
    finally:
        for made in opened:
            made.close()
