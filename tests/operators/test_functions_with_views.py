"""Functions with views in every operator that takes a function: what the same functions with plain fields give, with a
ttl, over restarts and in both modes; and they leave no more behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from asyncstate import ListView, MapView, StateTtl, ValueView
from asyncstate.functions import (
    AggregateFunction,
    TableAggregateFunction,
    list_view,
    map_view,
    value_view,
)
from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import (
    GroupAggregate,
    GroupTableAggregate,
    GroupWindowAggregate,
    Match,
    OverAggregate,
    WindowAggregate,
    count,
    count_hop,
    cumulate,
    hop,
    range_,
    rows,
    session,
    tumble,
    udaf,
    udtaf,
    unbounded,
)

LONG = pa.int64()
SECOND, MINUTE = 1_000_000, 60_000_000
SCHEMA = pa.schema([("k", pa.string()), ("v", LONG), ("at", pa.timestamp("us"))])
TTL = StateTtl("10 minutes", time="processing")
KINDS = ("map", "list", "value")
VIEWS = {
    "map": (MapView, map_view("kept", LONG, LONG)),
    "list": (ListView, list_view("kept", LONG)),
    "value": (ValueView, value_view("kept", LONG)),
}


class Kept(AggregateFunction):
    """All values of a key: how often each came (map), in their order (list), or their sum (value)."""

    def __init__(self, kind: str, in_view: bool) -> None:
        self.kind, self.in_view = kind, in_view

    def create_accumulator(self) -> Any:
        return [0, VIEWS[self.kind][0]() if self.in_view else []]

    def accumulate(self, accumulator: Any, value: Any) -> None:
        accumulator[0] += 1
        kept = accumulator[1]
        if not self.in_view:
            accumulator[1] = [*kept, value]
        elif self.kind == "map":
            kept[value] = (kept[value] or 0) + 1
        elif self.kind == "list":
            kept.add(value)
        else:
            kept.update((kept.value() or 0) + value)

    def retract(self, accumulator: Any, value: Any) -> None:
        accumulator[0] -= 1
        kept = accumulator[1]
        if not self.in_view:
            values = list(kept)
            values.remove(value)
            accumulator[1] = values
        elif self.kind == "map":
            kept[value] -= 1
            if not kept[value]:
                del kept[value]
        elif self.kind == "list":
            values = list(kept)
            values.remove(value)
            kept.clear()
            kept.add_all(values)
        else:
            kept.update(kept.value() - value)

    def get_value(self, accumulator: Any) -> Any:
        number, kept = accumulator
        if self.kind == "map":
            counts = (
                list(kept.entries())
                if self.in_view
                else [(value, kept.count(value)) for value in sorted(set(kept))]
            )
            return f"{number} {counts}"
        if self.kind == "list":
            return f"{number} {list(kept)}"
        return f"{number} {(kept.value() or 0) if self.in_view else sum(kept)}"

    def get_accumulator_type(self) -> Any:
        plain = pa.field("kept", pa.list_(LONG))
        return pa.schema([pa.field("n", LONG), VIEWS[self.kind][1] if self.in_view else plain])

    def get_result_type(self) -> Any:
        return pa.string()


class KeptRows(Kept, TableAggregateFunction):
    """The same as rows."""

    def emit_value(self, accumulator: Any) -> Any:
        return [(self.get_value(accumulator),), ("always",)]

    def get_result_type(self) -> Any:
        return pa.schema([("text", pa.string())])


class ChangedRows(KeptRows):
    """The same, with what it has shown in the accumulator."""

    def create_accumulator(self) -> Any:
        return [*super().create_accumulator(), None]

    def get_value(self, accumulator: Any) -> Any:
        return super().get_value(accumulator[:2])

    def emit_update_with_retract(self, accumulator: Any, out: Any) -> None:
        if accumulator[2] is not None:
            out.retract((accumulator[2],))
        accumulator[2] = self.get_value(accumulator)
        out.collect((accumulator[2],))

    def get_accumulator_type(self) -> Any:
        return pa.schema([*super().get_accumulator_type(), pa.field("shown", pa.string())])


Made = Callable[[str, bool], Operator]


def of_values(make: Callable[[Any], Operator]) -> Made:
    return lambda kind, in_view: make([udaf(Kept(kind, in_view), name="kept")("v").alias("text"), count()])


def of_rows(function: type[KeptRows], **options: Any) -> Made:
    return lambda kind, in_view: GroupTableAggregate(
        udtaf(function(kind, in_view), name="kept")("v"), **options
    )


GROUPS: dict[str, Made] = {
    "group": of_values(GroupAggregate),
    "group ttl": of_values(lambda aggregates: GroupAggregate(aggregates, ttl=TTL)),
    "each": of_values(lambda aggregates: GroupAggregate(aggregates, emit="each")),
    "each ttl": of_values(lambda aggregates: GroupAggregate(aggregates, ttl=TTL, emit="each")),
    "table": of_rows(KeptRows),
    "table ttl": of_rows(KeptRows, ttl=TTL),
    "changed": of_rows(ChangedRows),
    "changed ttl": of_rows(ChangedRows, ttl=TTL),
}
TIMED: dict[str, Made] = {
    "tumble": of_values(lambda aggregates: WindowAggregate(tumble(4 * SECOND), aggregates)),
    "hop": of_values(lambda aggregates: WindowAggregate(hop(6 * SECOND, 2 * SECOND), aggregates)),
    "cumulate": of_values(lambda aggregates: WindowAggregate(cumulate(6 * SECOND, 2 * SECOND), aggregates)),
    "session": of_values(lambda aggregates: WindowAggregate(session(2 * SECOND), aggregates)),
    "processing": of_values(
        lambda aggregates: WindowAggregate(tumble(4 * MINUTE), aggregates, time="processing")
    ),
    "early": of_values(
        lambda aggregates: GroupWindowAggregate(
            hop(6 * SECOND, 2 * SECOND), aggregates, early=0, allowed_lateness=3 * SECOND
        )
    ),
    "delayed": of_values(
        lambda aggregates: GroupWindowAggregate(tumble(4 * SECOND), aggregates, early=5 * MINUTE)
    ),
    "count": of_values(lambda aggregates: GroupWindowAggregate(count_hop(3, 2), aggregates)),
    "over": of_values(OverAggregate),
    "over rows": of_values(lambda aggregates: OverAggregate(aggregates, unbounded(peers=False))),
    "over ttl": of_values(lambda aggregates: OverAggregate(aggregates, ttl=TTL)),
    "over processing": of_values(lambda aggregates: OverAggregate(aggregates, time="processing", ttl=TTL)),
    "last rows": of_values(lambda aggregates: OverAggregate(aggregates, rows(2))),
    "last seconds": of_values(lambda aggregates: OverAggregate(aggregates, range_(2 * SECOND))),
    "match": lambda kind, in_view: Match(
        "A B{1,3}",
        {"A": pc.field("v") > 1, "B": pc.field("v") <= 1},
        {"text": udaf(Kept(kind, in_view), name="kept")("v")},
    ),
}
CHANGELOGS: dict[str, Made] = {
    **GROUPS,
    "own order": of_values(lambda aggregates: OverAggregate(aggregates, rows(2), order_by=["at", "v"])),
    "own order, all": of_values(lambda aggregates: OverAggregate(aggregates, order_by=["at", "v"])),
    "windows": of_values(lambda aggregates: WindowAggregate(hop(6 * SECOND, 2 * SECOND), aggregates)),
}


class Both:
    """An operator with views and one without, given the same."""

    def __init__(self, make: Made, kind: str, opened: ExitStack, **options: Any) -> None:
        self._opened = opened
        self._runs = [
            opened.enter_context(OperatorHarness(make(kind, in_view), SCHEMA, ["k"], **options))
            for in_view in (True, False)
        ]

    def batch(
        self,
        rows: Sequence[Any],
        kinds: Sequence[str] | None = None,
        minutes: int = 0,
        latest: int | None = None,
    ) -> list[Any]:
        """A micro-batch, so many minutes after the one before; its rows, which both give. ``latest``: the time that the
        watermark follows, that of the latest row by default."""
        latest = max((row[2] for row in rows), default=latest)
        outs = []
        for run in self._runs:
            run.advance_processing_time(minutes * MINUTE)
            run.push(rows, kinds=kinds)
            if latest is not None:
                run.advance_watermark(max(latest - SECOND, run.watermark))
            outs.append(run.end_batch())
        assert outs[0] == outs[1]
        return outs[0]

    def restart(self) -> None:
        self._runs = [
            self._opened.enter_context(run.restore(run.snapshot(), parallelism=2)) for run in self._runs
        ]

    def finish(self) -> None:
        outs = [run.finish() for run in self._runs]
        assert sorted(outs[0], key=repr) == sorted(outs[1], key=repr)

    @property
    def left(self) -> tuple[bool, bool]:
        """Whether anything is stored with views, and without."""
        with_views, plain = (bool(run.state_entries()) for run in self._runs)
        return with_views, plain


ROW = st.tuples(
    st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 12).map(lambda seconds: seconds * SECOND)
)
BATCHES = st.lists(st.tuples(st.lists(ROW, max_size=5), st.sampled_from([0, 4, 11])), max_size=6)
OPTIONS = {"async-state.bundle-size": "3"}
EXAMPLES = min(6, settings.default.max_examples // 3)


@pytest.mark.parametrize("name", [*GROUPS, *TIMED])
@settings(deadline=None, max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
@given(kind=st.sampled_from(KINDS), async_enabled=st.booleans(), batches=BATCHES)
def test_over_insertions(name: str, kind: str, async_enabled: bool, batches: Any) -> None:
    make = {**GROUPS, **TIMED}[name]
    options = {"async_enabled": async_enabled, "changelog": False, "options": OPTIONS}
    timed = {"event_time": "at"} if name in TIMED else {}
    with ExitStack() as opened:
        both = Both(make, kind, opened, **options, **timed)
        for number, (rows, minutes) in enumerate(batches):
            if number == 2:
                both.restart()
            both.batch(rows, minutes=minutes)
        if "ttl" in name:
            both.batch([], latest=MINUTE)
            for _ in range(3):
                both.batch([], minutes=11)
            assert both.left == (False, False)
        both.finish()
        assert both.left[0] == both.left[1]


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGELOGS)
@settings(deadline=None, max_examples=EXAMPLES, phases=[Phase.explicit, Phase.generate])
@given(
    kind=st.sampled_from(KINDS),
    async_enabled=st.booleans(),
    batches=BATCHES,
    taken=st.lists(st.integers(0, 99), max_size=6),
)
def test_over_changelogs(name: str, kind: str, async_enabled: bool, batches: Any, taken: Any) -> None:
    timed = {"event_time": "at"} if name == "windows" else {}
    with ExitStack() as opened:
        both = Both(
            CHANGELOGS[name],
            kind,
            opened,
            async_enabled=async_enabled,
            changelog=True,
            options=OPTIONS,
            **timed,
        )
        there: list[Any] = []
        now, changed = 0, dict[str, int]()
        for number, (rows, minutes) in enumerate(batches):
            if number == 2:
                both.restart()
            now += minutes
            if "ttl" in name:  # only rows that are still there are taken back
                there = [row for row in there if now - changed[row[0]] < 10]
            there += rows
            gone = [there.pop(taken.pop() % len(there)) for _ in range(2) if taken and there]
            both.batch([*rows, *gone], ["+I"] * len(rows) + ["-D"] * len(gone), minutes)
            changed.update({row[0]: now for row in [*rows, *gone]})
        if "ttl" in name:
            both.batch([], latest=MINUTE)
            for _ in range(3):
                both.batch([], minutes=11)
            assert both.left == (False, False)
        both.finish()
        assert both.left[0] == both.left[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["group ttl", "table ttl", "over processing"])
def test_a_key_that_comes_back_begins_anew(name: str, kind: str, async_enabled: bool) -> None:
    """FLIP-139's example with a ttl: what was counted before the key expired does not count."""
    make = {**GROUPS, **TIMED}[name]
    timed = {"event_time": "at"} if name in TIMED else {}
    with ExitStack() as opened:
        both = Both(make, kind, opened, async_enabled=async_enabled, changelog=False, **timed)
        both.batch([("a", 1, 0), ("a", 2, 0)])
        anew = {"map": "1 [(1, 1)]", "list": "1 [1]", "value": "1 1"}[kind]
        assert anew in str(both.batch([("a", 1, 1)], minutes=20))
        both.restart()
        again = {"map": "2 [(1, 1), (2, 1)]", "list": "2 [1, 2]", "value": "2 3"}[kind]
        assert again in str(both.batch([("a", 2, 2)], minutes=1))


@pytest.mark.parametrize("kind", KINDS)
def test_views_of_many_expired_keys_leave_the_store(kind: str, async_enabled: bool) -> None:
    """Of keys that never come back, with more entries than one page of a scan has."""
    with ExitStack() as opened:
        both = Both(
            GROUPS["group ttl"],
            kind,
            opened,
            async_enabled=async_enabled,
            changelog=False,
            options={"async-state.iterate-response-batch-size": "7"},
        )
        both.batch([(f"key {number % 100}", number, 0) for number in range(400)])
        for _ in range(3):
            both.batch([], minutes=11)
        assert both.left == (False, False)


class Copies(AggregateFunction):
    """For a negative value, puts a copy of each entry behind all others, and counts the entries for each."""

    def get_accumulator_type(self) -> Any:
        return pa.schema([map_view("kept", LONG, LONG), pa.field("seen", pa.list_(LONG))])

    def get_result_type(self) -> Any:
        return pa.list_(LONG)

    def create_accumulator(self) -> Any:
        return {"kept": MapView(), "seen": []}

    def accumulate(self, accumulator: Any, value: int) -> None:
        kept = accumulator["kept"]
        if value >= 0:
            kept.put(value, value)
            return
        seen = []
        for key, _ in kept.entries():
            kept.put(key + 1_000, key)
            seen.append(len(list(kept.keys())))
            if len(seen) > 20:  # an iteration over what it writes itself never ends
                break
        kept.remove(0)
        accumulator["seen"] = seen

    def get_value(self, accumulator: Any) -> Any:
        return accumulator["seen"]


def test_an_iteration_within_another_one_sees_what_that_one_must_not(async_enabled: bool) -> None:
    """The outer one gives the entries as of its start, the inner one those of its own."""
    operator = GroupAggregate([udaf(Copies)("v").alias("seen")])
    options = {"async-state.iterate-response-batch-size": "4"}
    with OperatorHarness(
        operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([("a", number, 0) for number in range(10)])
        harness.end_batch()
        harness.push([("a", -1, 0)])
        assert harness.end_batch()[-1] == ("+U", "a", list(range(11, 21)))
