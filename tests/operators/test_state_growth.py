"""How the state of each operator grows: what ``explain()`` says, against what is stored after many micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pytest

import operators
from asyncstate.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
)
from asyncstate.functions.table_functions import SetTable
from asyncstate.operator import Operator
from asyncstate.state import ListStateDescriptor, StateTtl, ValueStateDescriptor
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource
from operators import (
    BroadcastProcess,
    ChangelogNormalize,
    CoFlatMap,
    CoMap,
    CoProcess,
    Deduplicate,
    DynamicFilter,
    GroupAggregate,
    GroupTableAggregate,
    GroupWindowAggregate,
    IncrementalGroupAggregate,
    IntervalJoin,
    Join,
    KeyedFilter,
    KeyedFlatMap,
    KeyedMap,
    KeyedProcess,
    KeyedReduce,
    Limit,
    LookupJoin,
    Match,
    OneRowJoin,
    OverAggregate,
    Rank,
    Sort,
    SortLimit,
    StatelessLookupJoin,
    TableFunction,
    TemporalJoin,
    TemporalSort,
    UpsertMaterialize,
    WindowAggregate,
    WindowApply,
    WindowDeduplicate,
    WindowJoin,
    WindowProcess,
    WindowRank,
    WindowTableFunction,
    assigners,
    collect,
    count,
    count_tumble,
    desc,
    match_number,
    max_,
    range_,
    rows,
    session,
    sum_,
    triggers,
    tumble,
)
from tests.operators.test_changed_programs import both

MINUTE: Final = 60_000_000
SCHEMA: Final = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
TEXT: Final = pa.schema([("text", pa.string())])
BATCHES: Final = 12
TTL: Final = "2 minutes"

NOTHING = "keeps nothing"
KEYS = "grows with the number of keys"
VALUES = "grows with the number of keys and of distinct values in each"
ROWS = "grows with every row"
LEFT = "grows with every row that is not retracted"
BOUNDED_BY_TTL, BY_WATERMARK, BY_WINDOW = "bounded by ttl", "bounded by watermark", "bounded by window"


class _Last(KeyedProcessFunction):
    """Keeps the last row of each key, or with ``all_rows`` all of them."""

    def __init__(self, all_rows: bool = False, ttl: Any = None) -> None:
        self.all_rows = all_rows
        self.ttl = ttl

    def open(self, context: Any) -> None:
        made = ListStateDescriptor if self.all_rows else ValueStateDescriptor
        self.state = context.get_state(made("kept", pa.int64(), ttl=self.ttl))

    def process(self, row: Any, ctx: Any) -> None:
        if self.all_rows:
            self.state.add(row.v)
        else:
            self.state.update(row.v)


class _Both(KeyedCoProcessFunction):
    def process1(self, row: Any, ctx: Any) -> None:
        ctx.emit(row.k)

    process2 = process1


class _Rules(KeyedBroadcastProcessFunction):
    def process(self, row: Any, ctx: Any) -> None:
        ctx.emit(row.k)

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        return None


class _Maps(CoMapFunction):
    def map1(self, row: Any) -> Any:
        return (row.k,)

    map2 = map1


class _FlatMaps(CoFlatMapFunction):
    def flat_map1(self, row: Any) -> Any:
        return [(row.k,)]

    flat_map2 = flat_map1


class _Windowed(ProcessWindowFunction):
    def process(self, key: Any, ctx: Any, rows: Any) -> None:
        ctx.emit(key[0])


def _greet(guest: SetTable) -> Any:
    yield (guest.k,)


def _found(keys: Any) -> Any:
    return [[(str(key[0]),)] for key in keys]


@dataclass(frozen=True)
class Case:
    """An operator, how it is run, and what it says."""

    make: Callable[[], Operator]
    says: str
    changelog: Any = False
    timed: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def _names(key: Any, window: Any, rows: Any) -> Any:
    return [(key[0],)]


CASES: Final[Mapping[str, Case]] = {
    "BroadcastProcess": Case(
        lambda: BroadcastProcess(_Rules(), TEXT), NOTHING, settings={"key": ["k", None]}
    ),
    "ChangelogNormalize": Case(ChangelogNormalize, KEYS, True, False),
    "ChangelogNormalize ttl": Case(lambda: ChangelogNormalize(ttl=TTL), BOUNDED_BY_TTL, True, False),
    "CoFlatMap": Case(lambda: CoFlatMap(_FlatMaps(), TEXT), NOTHING),
    "CoMap": Case(lambda: CoMap(_Maps(), TEXT), NOTHING),
    "CoProcess": Case(lambda: CoProcess(_Both(), TEXT), NOTHING),
    "Deduplicate": Case(Deduplicate, KEYS),
    "Deduplicate ttl": Case(lambda: Deduplicate("last", "processing", ttl=TTL), BOUNDED_BY_TTL),
    "GroupAggregate": Case(lambda: GroupAggregate([count(), sum_("v")]), KEYS),
    "GroupAggregate ttl": Case(lambda: GroupAggregate([count()], ttl=TTL), BOUNDED_BY_TTL),
    "GroupAggregate distinct": Case(lambda: GroupAggregate([count("v").distinct()]), VALUES),
    "GroupAggregate lists": Case(lambda: GroupAggregate([collect("v")]), ROWS),
    "GroupAggregate lists of changes": Case(lambda: GroupAggregate([collect("v")]), LEFT, True),
    "GroupAggregate extremes": Case(lambda: GroupAggregate([max_("v")]), KEYS),
    "GroupAggregate extremes of changes": Case(lambda: GroupAggregate([max_("v")]), LEFT, True),
    "GroupTableAggregate": Case(lambda: GroupTableAggregate(both()), KEYS),
    "GroupWindowAggregate": Case(
        lambda: GroupWindowAggregate(tumble("2 minutes"), [count()], early="1 second"), BY_WINDOW
    ),
    "GroupWindowAggregate counts": Case(
        lambda: GroupWindowAggregate(count_tumble(3), [count()], time="processing"),
        "bounded by 3 rows per key",
    ),
    "IncrementalGroupAggregate": Case(
        lambda: IncrementalGroupAggregate([count()], "b"), KEYS, settings={"key": ["k", "b"]}
    ),
    "IntervalJoin": Case(lambda: IntervalJoin("left", lower=0, upper="2 minutes"), BY_WATERMARK),
    "IntervalJoin processing": Case(
        lambda: IntervalJoin(lower=0, upper="2 minutes", time="processing"), "bounded by the interval"
    ),
    "DynamicFilter": Case(lambda: DynamicFilter("v", ">", "v"), ROWS, settings={"key": ["k", None]}),
    "OneRowJoin": Case(OneRowJoin, ROWS, settings={"key": ["k", None]}),
    "Join": Case(Join, ROWS),
    "Join changes": Case(Join, LEFT, True),
    "Join unique": Case(lambda: Join(left_unique="join_key", right_unique="join_key"), KEYS, True),
    "Join ttl": Case(lambda: Join(left_ttl=TTL, right_ttl=TTL), BOUNDED_BY_TTL),
    "Join one ttl": Case(lambda: Join(left_ttl=TTL), ROWS),
    "KeyedFilter": Case(lambda: KeyedFilter(lambda row: True), NOTHING),
    "KeyedFlatMap": Case(lambda: KeyedFlatMap(lambda row: [(row.k,)], TEXT), NOTHING),
    "KeyedMap": Case(lambda: KeyedMap(lambda row: (row.k,), TEXT), NOTHING),
    "KeyedProcess": Case(lambda: KeyedProcess(_Last(), TEXT), KEYS),
    "KeyedProcess list": Case(lambda: KeyedProcess(_Last(True), TEXT), ROWS),
    "KeyedProcess ttl": Case(lambda: KeyedProcess(_Last(True, StateTtl(TTL)), TEXT), BOUNDED_BY_TTL),
    "KeyedReduce": Case(lambda: KeyedReduce(lambda a, b: (a.k, b.v, b.at)), KEYS),
    "Limit": Case(lambda: Limit(3), "bounded by 3 rows per key", settings={"key": None}),
    "LookupJoin": Case(lambda: LookupJoin(_found, TEXT), NOTHING),
    "LookupJoin changes": Case(lambda: LookupJoin(_found, TEXT), LEFT, True),
    "LookupJoin ttl": Case(lambda: LookupJoin(_found, TEXT, ttl=TTL), BOUNDED_BY_TTL, True),
    "Match": Case(lambda: Match("A B", {}, {}), "grows with the rows of unfinished matches"),
    "Match within": Case(lambda: Match("A B B B B B B B B", within="2 minutes"), "bounded by within"),
    "Match numbers": Case(lambda: Match("A", measures={"n": match_number()}, within="2 minutes"), KEYS),
    "OverAggregate": Case(lambda: OverAggregate([sum_("v")]), KEYS),
    "OverAggregate ttl": Case(lambda: OverAggregate([sum_("v")], ttl=TTL, time="processing"), BOUNDED_BY_TTL),
    "OverAggregate rows": Case(lambda: OverAggregate([sum_("v")], rows(3)), "bounded by 3 rows per key"),
    "OverAggregate range": Case(lambda: OverAggregate([sum_("v")], range_("2 minutes")), BY_WATERMARK),
    "OverAggregate order": Case(lambda: OverAggregate([sum_("v")], order_by="v"), ROWS),
    "Rank": Case(lambda: Rank(desc("v"), 2), "bounded by 2 rows per key"),
    "Rank one": Case(lambda: Rank(desc("v"), 1), "bounded by 1 row per key"),
    "Rank changes": Case(lambda: Rank(desc("v"), 2), LEFT, True),
    "Rank ttl": Case(lambda: Rank(desc("v"), 2, ttl=TTL), BOUNDED_BY_TTL),
    "Rank ties": Case(
        lambda: Rank(desc("v"), 2, function="rank"), "grows with the rows of the first 2 ranks of each key"
    ),
    "Sort": Case(lambda: Sort("v"), ROWS),
    "SortLimit": Case(lambda: SortLimit(desc("v"), 2), "bounded by 2 rows per key", settings={"key": None}),
    "StatelessLookupJoin": Case(
        lambda: StatelessLookupJoin(_found, TEXT, on=["v"]), NOTHING, settings={"key": None}
    ),
    "TableFunction": Case(lambda: TableFunction(_greet, TEXT), NOTHING),
    "TemporalJoin": Case(TemporalJoin, KEYS),
    "TemporalJoin ttl": Case(lambda: TemporalJoin(time="processing", ttl=TTL), BOUNDED_BY_TTL),
    "TemporalSort": Case(TemporalSort, BY_WATERMARK),
    "TemporalSort processing": Case(lambda: TemporalSort("v", time="processing"), NOTHING),
    "UpsertMaterialize": Case(UpsertMaterialize, LEFT, True),
    "WindowAggregate": Case(lambda: WindowAggregate(tumble("2 minutes"), [count()]), BY_WINDOW),
    "WindowAggregate session": Case(lambda: WindowAggregate(session("10 seconds"), [count()]), BY_WINDOW),
    "WindowApply": Case(lambda: WindowApply(_names, tumble("2 minutes"), TEXT), BY_WINDOW),
    "WindowApply global": Case(
        lambda: WindowApply(
            _names, None, TEXT, assigner=assigners.global_windows(), trigger=triggers.count(2)
        ),
        ROWS,
    ),
    "WindowDeduplicate": Case(lambda: WindowDeduplicate(window=tumble("2 minutes")), BY_WINDOW),
    "WindowJoin": Case(lambda: WindowJoin("left", window=tumble("2 minutes")), BY_WINDOW),
    "WindowProcess": Case(lambda: WindowProcess(_Windowed(), tumble("2 minutes"), TEXT), BY_WINDOW),
    "WindowRank": Case(lambda: WindowRank(desc("v"), 1, window=tumble("2 minutes")), BY_WINDOW),
    "WindowTableFunction": Case(
        lambda: WindowTableFunction(tumble("2 minutes")), NOTHING, settings={"key": None}
    ),
    "WindowTableFunction session": Case(lambda: WindowTableFunction(session("10 seconds")), BY_WINDOW),
}
MEASURED = [name for name in CASES if name not in ("Match", "Rank ties")]


def harness(case: Case, enabled: bool) -> OperatorHarness:
    operator = case.make()
    two = operator.num_inputs == 2
    schema = (
        SCHEMA.append(pa.field("b", pa.int64()))
        if isinstance(operator, IncrementalGroupAggregate)
        else SCHEMA
    )
    times = "at" if case.timed else None
    is_left_final = isinstance(operator, TemporalJoin)
    settings = {
        "key": [["k"], ["k"]] if two else ["k"],
        "event_time": [times, times] if two else times,
        "changelog": [False, True] if is_left_final else case.changelog,
        "async_enabled": enabled,
        "max_parallelism": 2,
        **case.settings,
    }
    key = settings.pop("key")
    if operator.stateless:
        settings.pop("max_parallelism")
    return OperatorHarness(operator, [schema, schema] if two else schema, key, **settings)


def sizes(
    case: Case, enabled: bool, fresh_keys: bool, fresh_values: bool = True, taken_back: bool = False
) -> list[int]:
    """How many bytes are stored after each micro-batch of four rows, a minute later each."""
    found = []
    with harness(case, enabled) as running:
        before: list[tuple[Any, ...]] = []
        for number in range(BATCHES):
            at = number * MINUTE
            rows = [
                (
                    f"key {100 + (number * 4 + row if fresh_keys else row % 2)}",
                    1000 + (number * 4 + row if fresh_values else row),
                    at + row,
                    *([0] if isinstance(running._operator(), IncrementalGroupAggregate) else []),
                )
                for row in range(4)
            ]
            for side in range(running._operator().num_inputs):
                if before and taken_back:
                    running.push(before, side, kind="-D")
                if side and isinstance(running._operator(), DynamicFilter | OneRowJoin):
                    running.push(rows[: 1 - bool(number)], side)  # their second input has one row
                else:
                    running.push(rows, side)
            before = rows
            running.advance_processing_time(MINUTE)
            if case.timed:
                running.advance_watermark(at)
            running.end_batch()
            found.append(sum(len(key) + len(value) for key, value in running.state_entries().items()))
    return found


def grows(found: list[int]) -> bool:
    """Whether the second half of the micro-batches has left much more than the first one."""
    return found[-1] > 1.35 * max(found[BATCHES // 2 - 2 : BATCHES // 2])


def test_every_operator_has_a_case() -> None:
    public = {
        name
        for name in operators.__all__
        if isinstance(found := getattr(operators, name), type) and issubclass(found, Operator)
    }
    assert {name.split()[0] for name in CASES} == public


@pytest.mark.parametrize("name", CASES)
def test_what_operators_say(name: str) -> None:
    with harness(CASES[name], False) as running:
        assert running.growth.text == CASES[name].says


@pytest.mark.long
@pytest.mark.parametrize("name", MEASURED)
def test_what_operators_say_is_what_is_stored(name: str) -> None:
    """One mode stands for both: they store the same bytes, which ``tests/properties`` compares for every operator."""
    case = CASES[name]
    async_enabled = MEASURED.index(name) % 2 == 1
    one_key = sizes(case, async_enabled, fresh_keys=False)
    many_keys = sizes(case, async_enabled, fresh_keys=True)
    if case.says == NOTHING:
        assert one_key == many_keys == [0] * BATCHES
        return
    assert max(one_key) > 0
    per_key = case.says == KEYS or case.says.endswith("per key")
    assert grows(one_key) == (case.says in (VALUES, ROWS, LEFT)), one_key
    has_keys = case.settings.get("key", "k") is not None
    assert grows(many_keys) == ((per_key and has_keys) or case.says in (VALUES, ROWS, LEFT)), many_keys
    if case.says == VALUES:
        again = sizes(case, async_enabled, fresh_keys=False, fresh_values=False)
        assert not grows(again), again
    if case.says == LEFT:
        left = sizes(case, async_enabled, fresh_keys=True, taken_back=True)
        assert not grows(left), left


def test_seen_sequences_grow_with_the_number_of_keys(async_enabled: bool) -> None:
    case = Case(
        lambda: TemporalSort("v", time="processing"), KEYS, settings={"sequence": "v", "drop_stale": True}
    )
    with harness(case, async_enabled) as running:
        assert running.growth.text == KEYS
    assert grows(sizes(case, async_enabled, fresh_keys=True))


def test_behind_final_rows_nothing_is_kept(async_enabled: bool) -> None:
    def flow(rows: Any) -> None:
        over = rows.apply(OverAggregate([sum_("v").alias("total")]), key="k", uid="over")
        over.apply(LookupJoin(_found, TEXT), key="k", uid="found").to(print, name="sink")

    source = PipelineSource(SCHEMA, event_time="at", watermark_delay=0)
    with PipelineHarness(flow, {"rows": source}, async_enabled=async_enabled) as running:
        for number in range(BATCHES):
            running.push("rows", [("a", number, number * MINUTE), ("b", number, number * MINUTE)])
            running.end_batch()
            assert running.operator("found").state_entries() == {}
        assert len(running.rows("sink")) == 2 * (BATCHES - 1)
        over, found = running.explain().splitlines()[1:3]
        assert over.endswith(f"; {KEYS}]")
        assert found.endswith(f"; {NOTHING}]")
