"""A changed program over old state: each parameter of each operator either is part of what its state means, and is then
refused, or may change, and then goes on as if it had always been what it is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import operators
from asyncstate import AsyncStateError
from asyncstate.changelog import Changelog
from asyncstate.functions import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    TableAggregateFunction,
)
from asyncstate.functions.table_functions import SetTable
from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import (
    asc,
    assigners,
    avg,
    count,
    desc,
    evictors,
    last,
    rows,
    session,
    skip_to_next,
    sum_,
    triggers,
    tumble,
    udaf,
    udtaf,
)
from operators.join.one_row_input import OneRowInput

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("w", pa.int64()),
        ("p", pa.bool_()),
        ("at", pa.timestamp("us")),
        ("since", pa.timestamp("us")),
    ]
)
SECOND = 1_000_000
FIRST = [
    ("x", 1, 100, True, 1 * SECOND, 1 * SECOND),
    ("x", 2, 200, False, 2 * SECOND, 1 * SECOND),
    ("y", 3, 300, True, 3 * SECOND, 1 * SECOND),
]
THEN = [
    ("x", 10, 50, True, 4 * SECOND, 5 * SECOND),
    ("y", 20, 60, False, 5 * SECOND, 5 * SECOND),
    ("z", 30, 70, True, 6 * SECOND, 5 * SECOND),
]
FIRST_OTHER = [("x", 5, 500, True, 2 * SECOND, SECOND), ("y", 6, 600, True, 2 * SECOND, SECOND)]
THEN_OTHER = [("x", 7, 700, True, 5 * SECOND, SECOND), ("z", 8, 800, True, 5 * SECOND, SECOND)]


@dataclass(frozen=True)
class Change:
    """A parameter, before and after: ``refused``, or ``then`` is what the second micro-batch and the end put out (None:
    what they put out where the parameter had always been what it is now). ``others``: more arguments."""

    before: Any
    after: Any
    refused: bool
    others: Mapping[str, Any] = field(default_factory=dict)
    then: Sequence[tuple[Any, ...]] | None = None
    harness: Mapping[str, Any] = field(default_factory=dict)


def meaning(before: Any, after: Any, harness: Mapping[str, Any] | None = None, **others: Any) -> Change:
    """Part of what the state means."""
    return Change(before, after, True, others, harness=harness or {})


def free(
    before: Any,
    after: Any,
    then: Sequence[tuple[Any, ...]] | None = None,
    harness: Mapping[str, Any] | None = None,
    **others: Any,
) -> Change:
    """May change."""
    return Change(before, after, False, others, then, harness or {})


class _Total(AggregateFunction):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator[0] += value

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator[0] * self.factor


class _Both(TableAggregateFunction):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator: list[int], value: int) -> None:
        accumulator[0] += value

    def emit_value(self, accumulator: list[int]) -> Any:
        yield (accumulator[0] * self.factor,)


def total(factor: int = 1) -> Any:
    return udaf(_Total(factor), result_type=pa.int64(), accumulator_type=pa.list_(pa.int64()), name="total")(
        "v"
    )


def both(factor: int = 1) -> Any:
    row = pa.schema([("n", pa.int64())])
    return udtaf(_Both(factor), result_type=row, accumulator_type=pa.list_(pa.int64()), name="both")("v")


class _Windowed(ProcessWindowFunction):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def process(self, key: Any, ctx: Any, rows: Any) -> None:
        ctx.emit(f"{self.text}{key[0]}{len(rows)}")


class _Process(KeyedProcessFunction):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def process(self, row: Any, ctx: Any) -> None:
        ctx.emit(f"{self.text}{row.k}")


class _CoProcess(KeyedCoProcessFunction):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def process1(self, row: Any, ctx: Any) -> None:
        ctx.emit(f"{self.text}1{row.k}")

    def process2(self, row: Any, ctx: Any) -> None:
        ctx.emit(f"{self.text}2{row.k}")


class _Broadcast(KeyedBroadcastProcessFunction):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def process(self, row: Any, ctx: Any) -> None:
        ctx.emit(f"{self.text}{row.k}")

    def process_broadcast(self, row: Any, ctx: Any) -> None:
        return None


class _CoMap(CoMapFunction):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def map1(self, row: Any) -> Any:
        return (f"{self.text}1{row.k}",)

    def map2(self, row: Any) -> Any:
        return (f"{self.text}2{row.k}",)


class _CoFlatMap(CoFlatMapFunction):
    def __init__(self, text: str = "") -> None:
        self.text = text

    def flat_map1(self, row: Any) -> Any:
        return [(f"{self.text}1{row.k}",)]

    def flat_map2(self, row: Any) -> Any:
        return [(f"{self.text}2{row.k}",)]


def _greet(guest: SetTable) -> Any:
    yield (f"hello {guest.k}",)


def _greet_anew(guest: SetTable) -> Any:
    yield (f"ahoy {guest.k}",)


def _of_w(keys: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
    return [[(key[0] * 2,)] for key in keys]


def _of_w_anew(keys: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
    return [[(key[0] * 3,)] for key in keys]


TEXT = pa.schema([("text", pa.string())])
OTHER_NAME = pa.schema([("words", pa.string())])
LONG = pa.schema([("text", pa.large_string())])
V5, V9 = pc.field("v") > 5, pc.field("v") > 9
R5, R9 = pc.field("v_right") > 5, pc.field("v_right") > 6
LATE = (None, "late")
MIN = "1 minute"
TTL = ("1 hour", "2 hours")
AGGREGATES = ([sum_("v")], [sum_("v"), count()])
CHANGES_INPUT = {"changelog": True}
IN_EVENT_TIME = {"event_time": "at", "watermark_delay": 0}
ONE_INPUT: Mapping[str, Any] = {"event_time": "at"}

_WINDOWED_JOIN = {"event_time": ["at", "at"], "watermark_delay": [0, 0]}
_LOOKUP = {"lookup": _of_w, "columns": pa.schema([("twice", pa.int64())]), "on": ["w"]}

DECISIONS: Mapping[str, Mapping[str, Change]] = {
    "BroadcastProcess": {
        "function": free(_Broadcast(), _Broadcast("new"), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_Broadcast()),
        "side_outputs": free(None, {"aside": TEXT}, function=_Broadcast(), output=TEXT),
        "late_output": free(*LATE, function=_Broadcast(), output=TEXT, harness={"order_by": ["at", None]}),
        "errors": free("fail", "output", function=_Broadcast(), output=TEXT),
    },
    "ChangelogNormalize": {
        # What is stored has been put out: "another condition after a restart holds from then on".
        "condition": free(
            None,
            V9,
            [("-U", *FIRST[1]), ("+U", *THEN[0]), ("-U", *FIRST[2]), ("+U", *THEN[1]), ("+I", *THEN[2])],
        ),
        "emit_update_before": free(True, False),
        "ttl": free(*TTL),
    },
    "CoFlatMap": {
        "function": free(_CoFlatMap(), _CoFlatMap("new"), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_CoFlatMap()),
    },
    "CoMap": {
        "function": free(_CoMap(), _CoMap("new"), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_CoMap()),
    },
    "CoProcess": {
        "function": free(_CoProcess(), _CoProcess("new"), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_CoProcess()),
        "side_outputs": free(None, {"aside": TEXT}, function=_CoProcess(), output=TEXT),
    },
    "Deduplicate": {
        "keep": meaning("first", "last"),
        "time": meaning("event", "processing", keep="last"),
        "emit_update_before": free(True, False, keep="last"),
        "ttl": free(*TTL, keep="last"),
    },
    "DynamicFilter": {
        "column": meaning("v", "w", comparison=">", bound="v"),
        "comparison": meaning(">", "<", column="v", bound="v"),
        "bound": meaning("v", "w", column="v", comparison=">"),
        "falls_max": meaning(None, "1 day", column="at", comparison=">", bound="at"),
    },
    "OneRowJoin": {
        "kind": meaning("left", "inner"),
        "suffixes": free(("", "_right"), ("", "_r")),
    },
    "GroupAggregate": {
        "aggregates": meaning(*AGGREGATES),
        "emit_update_before": free(True, False, aggregates=AGGREGATES[0]),
        "ttl": free(*TTL, aggregates=AGGREGATES[0]),
        "emit": free("net", "each", aggregates=AGGREGATES[0]),
        "empty_row": meaning(False, True, aggregates=AGGREGATES[0], harness={"key": None}),
    },
    "GroupTableAggregate": {
        "aggregate": meaning(both(), both(2)),
        "ttl": free(*TTL, aggregate=both()),
    },
    "GroupWindowAggregate": {
        "window": meaning(tumble("10 seconds"), tumble("20 seconds"), aggregates=[count()]),
        "aggregates": meaning(*AGGREGATES, window=tumble("10 seconds"), early=MIN),
        "time": meaning("event", "processing", window=tumble("10 seconds"), aggregates=[count()]),
        "early": meaning(MIN, None, window=tumble("10 seconds"), aggregates=[count()]),
        "late": free(0, MIN, window=tumble("10 seconds"), aggregates=[count()], allowed_lateness=MIN),
        "allowed_lateness": meaning(0, MIN, window=tumble("10 seconds"), aggregates=[count()]),
        "emit_update_before": free(True, False, window=tumble("10 seconds"), aggregates=[count()], early=0),
        "late_output": free(*LATE, window=tumble("10 seconds"), aggregates=[count()]),
    },
    "IncrementalGroupAggregate": {
        "aggregates": meaning([sum_("v")], [sum_("v"), avg("v")], bucket="w"),
        "bucket": meaning("w", "k", aggregates=[sum_("v")]),
    },
    "IntervalJoin": {
        "kind": meaning("inner", "left", lower="-5 seconds", upper="5 seconds"),
        "lower": meaning("-5 seconds", "-6 seconds", upper="5 seconds"),
        "upper": meaning("5 seconds", "6 seconds", lower="-5 seconds"),
        "condition": meaning(None, R5, lower="-5 seconds", upper="5 seconds"),
        "time": meaning("event", "processing", lower="-5 seconds", upper="5 seconds"),
        "suffixes": free(("", "_right"), ("", "_r"), lower="-5 seconds", upper="5 seconds"),
        "null_safe": meaning(False, True, lower="-5 seconds", upper="5 seconds"),
        "allowed_lateness": meaning(0, MIN, lower="-5 seconds", upper="5 seconds"),
    },
    "Join": {
        "kind": meaning("left", "inner"),
        "condition": meaning(R5, R9),
        "left_unique": meaning(None, ["v"]),
        "right_unique": meaning(["v"], ["w"]),
        "suffixes": free(("", "_right"), ("", "_r")),
        "null_safe": meaning(False, True),
        "left_ttl": free(*TTL),
        "right_ttl": free(*TTL),
        "mark": free("mark", "found", kind="mark"),
        "null_aware": meaning(False, True, kind="mark", condition=R5),
    },
    "KeyedFilter": {
        "function": free(lambda row: row.v > 10, lambda row: row.v < 100),
        "errors": free("fail", "output", function=lambda row: row.v > 10),
    },
    "KeyedFlatMap": {
        "function": free(lambda row: [(row.k,)], lambda row: [(row.k * 2,)], output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=lambda row: [(row.k,)]),
        "errors": free("fail", "output", function=lambda row: [(row.k,)], output=TEXT),
    },
    "KeyedMap": {
        "function": free(lambda row: (row.k,), lambda row: (row.k * 2,), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=lambda row: (row.k,)),
        "errors": free("fail", "output", function=lambda row: (row.k,), output=TEXT),
    },
    "KeyedProcess": {
        "function": free(_Process(), _Process("new"), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_Process()),
        "side_outputs": free(None, {"aside": TEXT}, function=_Process(), output=TEXT),
        "late_output": free(*LATE, function=_Process(), output=TEXT, harness={"order_by": "at"}),
        "errors": free("fail", "output", function=_Process(), output=TEXT),
    },
    "KeyedReduce": {
        # The function goes on from what the one before it has stored.
        "function": free(
            lambda one, other: one,
            lambda one, other: other,
            [("+I", *THEN[0]), ("+I", *THEN[1]), ("+I", *THEN[2])],
        ),
        "changelog": free(False, True, function=lambda one, other: other),
        "errors": free("fail", "output", function=lambda one, other: other),
    },
    "Limit": {"n": meaning(2, 3), "offset": meaning(0, 1, n=2)},
    "LookupJoin": {
        # Rows that were put out are taken back with the answer of then.
        "lookup": free(_of_w, _of_w_anew, **{k: v for k, v in _LOOKUP.items() if k != "lookup"}),
        "columns": free(
            pa.schema([("twice", pa.int64())]),
            pa.schema([("double", pa.int64())]),
            lookup=_of_w,
            on=["w"],
        ),
        "on": meaning(["w"], ["v"], CHANGES_INPUT, **{k: v for k, v in _LOOKUP.items() if k != "on"}),
        "how": meaning("left", "inner", CHANGES_INPUT, **_LOOKUP),
        "ordered": free(True, False, **_LOOKUP),
        "where": meaning(None, V9, CHANGES_INPUT, **_LOOKUP),
        "batch": free(1, 2, harness=CHANGES_INPUT, **_LOOKUP),
        "call_limit": free(100, 2, harness=CHANGES_INPUT, **_LOOKUP),
        "retry": free(None, operators.Retry(), harness=CHANGES_INPUT, **_LOOKUP),
        "retry_empty": free(None, operators.Retry(1), harness=CHANGES_INPUT, **_LOOKUP),
        "timeout": free(None, "10 seconds", harness=CHANGES_INPUT, **_LOOKUP),
        "cache": free(None, operators.LookupCache(), harness=CHANGES_INPUT, **_LOOKUP),
        "on_failure": free("fail", "null", harness=CHANGES_INPUT, **_LOOKUP),
        "suffixes": free(("", "_right"), ("", "_r"), harness=CHANGES_INPUT, **_LOOKUP),
        "ttl": free(*TTL, harness=CHANGES_INPUT, **_LOOKUP),
    },
    "Match": {
        "pattern": meaning("A B", "A B+ A", within=MIN),
        "define": meaning({"A": V5}, {"A": V9}, pattern="A B"),
        "measures": free({"n": last("v")}, {"m": last("v", "A")}, pattern="A B"),
        "within": meaning(MIN, "2 minutes", pattern="A B"),
        "after_match": meaning(None, skip_to_next(), pattern="A B"),
        "then": meaning(None, "v", pattern="A B"),
        "time": meaning("event", "processing", pattern="A B"),
        "late_output": free(*LATE, pattern="A B"),
        "budget": free(1_000_000, 1_000, pattern="A B"),
    },
    "OverAggregate": {
        "aggregates": meaning(*AGGREGATES, frame=rows(3)),
        "frame": meaning(rows(1), rows(3), aggregates=[sum_("v")]),
        "order_by": meaning(None, "v", aggregates=[sum_("v")], frame=rows(3)),
        "time": meaning("event", "processing", aggregates=[sum_("v")]),
        "ttl": free(*TTL, aggregates=[sum_("v")]),
        "emit_update_before": free(
            True,
            False,
            harness={"changelog": [Changelog.insert_only("k", "v")]},
            aggregates=[sum_("v")],
            order_by=desc("at"),
            frame=rows(3),
        ),
        "late_output": free(*LATE, aggregates=[sum_("v")]),
    },
    "Rank": {
        "order_by": meaning("v", desc("v"), n=1),
        "n": meaning(1, 2, order_by="v"),
        "offset": meaning(0, 1, order_by="v", n=2),
        "function": meaning("row_number", "rank", order_by="v", n=1),
        "rank_column": free("place", "number", order_by=desc("v"), n=2),
        "unique": meaning(None, ["w"], order_by="v", n=1),
        "monotonic": meaning(False, True, order_by="v", n=1, unique=["w"]),
        "emit_update_before": free(True, False, order_by=desc("v"), n=1, rank_column="place"),
        "ttl": free(*TTL, order_by=desc("v"), n=1),
    },
    "Sort": {"order_by": meaning("v", desc("v"))},
    "SortLimit": {
        "order_by": meaning("v", desc("v"), n=1),
        "n": meaning(1, 2, order_by="v"),
        "offset": meaning(0, 1, order_by="v", n=2),
    },
    "TableFunction": {
        "function": free(_greet, _greet_anew, output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_greet),
        "side_outputs": free(None, {"aside": TEXT}, function=_greet, output=TEXT),
        "late_outputs": free(
            None, {"guest": "late"}, function=_greet, output=TEXT, harness={"order_by": "at"}
        ),
    },
    "TemporalJoin": {
        "kind": meaning("inner", "left", {"changelog": [True, False]}),
        "condition": meaning(None, R5, {"changelog": [True, False]}),
        "time": meaning("event", "processing"),
        "suffixes": free(("", "_right"), ("", "_r")),
        "null_safe": meaning(False, True),
        "ttl": free(*TTL),
        "late_output": free(*LATE),
    },
    "TemporalSort": {
        "then": meaning("v", desc("v")),
        "time": meaning("event", "processing"),
        "late_output": free(*LATE),
    },
    "UpsertMaterialize": {
        "upsert_key": meaning(None, ["v"]),
        "emit_update_before": free(True, False),
        "ttl": free(*TTL),
    },
    "WindowAggregate": {
        "window": meaning(tumble("10 seconds"), tumble("10 seconds", "1 second"), aggregates=[count()]),
        # A window is put out once: what its states have is enough.
        "aggregates": free([avg("v"), count()], [sum_("v").alias("all")], window=tumble("10 seconds")),
        "time": meaning("event", "processing", window=tumble("10 seconds"), aggregates=[count()]),
        "late_output": free(*LATE, window=tumble("10 seconds"), aggregates=[count()]),
    },
    "WindowApply": {
        "function": free(
            lambda key, window, rows: [(f"{key[0]}{len(rows)}",)],
            lambda key, window, rows: [(f"new {key[0]}{len(rows)}",)],
            window=tumble("10 seconds"),
            output=TEXT,
        ),
        "window": meaning(session("10 seconds"), session("20 seconds"), function=lambda *_: [], output=TEXT),
        "output": free(
            TEXT, OTHER_NAME, function=lambda key, window, rows: [key], window=tumble("10 seconds")
        ),
        "allowed_lateness": meaning(0, MIN, function=lambda *_: [], window=tumble(MIN), output=TEXT),
        "time": meaning("event", "processing", function=lambda *_: [], window=tumble(MIN), output=TEXT),
        "window_columns": free(
            False, True, function=lambda key, window, rows: [("text",)], window=tumble(MIN), output=TEXT
        ),
        "late_output": free(*LATE, function=lambda key, *_: [key], window=tumble(MIN), output=TEXT),
        "trigger": meaning(
            triggers.count(2), triggers.count(3), function=lambda *_: [], window=tumble(MIN), output=TEXT
        ),
        "evictor": meaning(
            evictors.count(2), evictors.count(3), function=lambda *_: [], window=tumble(MIN), output=TEXT
        ),
        "assigner": meaning(
            assigners.global_windows(),
            assigners.dynamic_session(lambda row: row.v),
            function=lambda *_: [],
            window=None,
            output=TEXT,
        ),
    },
    "WindowDeduplicate": {
        "keep": meaning("first", "last", window=tumble(MIN)),
        "order_by": meaning(None, "since", window=tumble(MIN)),
        "window": meaning(tumble(MIN), tumble("2 minutes")),
        "late_output": free(*LATE, window=tumble(MIN)),
    },
    "WindowJoin": {
        "kind": meaning("inner", "left", window=tumble(MIN)),
        "condition": free(None, R5, window=tumble(MIN)),
        "window": meaning(tumble(MIN), tumble("2 minutes")),
        "suffixes": free(("", "_right"), ("", "_r"), window=tumble(MIN)),
        "null_safe": meaning(False, True, window=tumble(MIN)),
        "late_outputs": free((None, None), ("a", "b"), window=tumble(MIN)),
    },
    "WindowProcess": {
        "function": free(_Windowed(), _Windowed("new"), window=tumble(MIN), output=TEXT),
        "window": meaning(tumble(MIN), tumble("2 minutes"), function=_Windowed(), output=TEXT),
        "output": free(TEXT, OTHER_NAME, function=_Windowed(), window=tumble(MIN)),
        "allowed_lateness": meaning(0, MIN, function=_Windowed(), window=tumble(MIN), output=TEXT),
        "time": meaning("event", "processing", function=_Windowed(), window=tumble(MIN), output=TEXT),
        "window_columns": free(False, True, function=_Windowed(), window=tumble(MIN), output=TEXT),
        "late_output": free(*LATE, function=_Windowed(), window=tumble(MIN), output=TEXT),
        "side_outputs": free(None, {"aside": TEXT}, function=_Windowed(), window=tumble(MIN), output=TEXT),
        "trigger": meaning(
            triggers.count(2), triggers.count(3), function=_Windowed(), window=tumble(MIN), output=TEXT
        ),
        "evictor": meaning(None, evictors.count(3), function=_Windowed(), window=tumble(MIN), output=TEXT),
        "assigner": meaning(
            assigners.global_windows(),
            assigners.dynamic_session(lambda row: row.v),
            function=_Windowed(),
            window=None,
            output=TEXT,
        ),
    },
    "WindowRank": {
        "order_by": meaning(asc("v"), desc("v"), n=1, window=tumble(MIN)),
        "n": meaning(1, 2, order_by="v", window=tumble(MIN)),
        "window": meaning(tumble(MIN), tumble("2 minutes"), order_by="v", n=1),
        "offset": meaning(0, 1, order_by="v", n=1, window=tumble(MIN)),
        "function": meaning("row_number", "rank", order_by="v", n=1, window=tumble(MIN)),
        "rank_column": free(None, "place", order_by="v", n=1, window=tumble(MIN)),
        "late_output": free(*LATE, order_by="v", n=1, window=tumble(MIN)),
    },
}
REFUSED = (
    "another program wrote its state|disagrees with the checkpoint|buffered rows may be in the old order"
)
STATELESS = {"StatelessLookupJoin", "WindowTableFunction"}

PUBLIC: Mapping[str, type[Operator]] = {
    name: found
    for name in operators.__all__
    if isinstance(found := getattr(operators, name), type) and issubclass(found, Operator)
}
EVERY = [(name, parameter) for name, changes in DECISIONS.items() for parameter in changes]


def test_every_parameter_of_every_operator_is_decided() -> None:
    stateless = {name for name, found in PUBLIC.items() if found.stateless}
    assert stateless == STATELESS
    for name in PUBLIC.keys() - stateless:
        assert set(DECISIONS[name]) == set(inspect.signature(PUBLIC[name]).parameters), name


def _harness(name: str, change: Change, operator: Operator, enabled: bool) -> OperatorHarness:
    two = operator.num_inputs == 2
    key: Any = [["k"], ["k"]] if two else ["k"]
    if operator.broadcast_input is not None:
        key = [["k"], None]
    elif name in ("Limit", "SortLimit"):
        key = None
    elif name == "IncrementalGroupAggregate":
        key = ["k", "w"]
    given: dict[str, Any] = {"changelog": [False] * operator.num_inputs, "async_enabled": enabled}
    if name not in ("ChangelogNormalize", "Limit", "SortLimit"):
        given["event_time"] = ["at", "at" if operator.broadcast_input is None else None][
            : operator.num_inputs
        ]
    if name in ("Join", "UpsertMaterialize"):
        given["changelog"] = [True] * operator.num_inputs
    for what, value in change.harness.items():
        given[what] = [value] if what == "changelog" and value is True else value
    key = given.pop("key", key)
    return OperatorHarness(operator, [SCHEMA] * operator.num_inputs, key, **given)


def _made(name: str, parameter: str, value: Any, change: Change) -> Operator:
    return PUBLIC[name](**{parameter: value, **change.others})


def _has_one_row(harness: OperatorHarness) -> bool:
    """Whether the second input may have one row only."""
    return isinstance(harness._operator(), OneRowInput)


def _first(harness: OperatorHarness) -> None:
    harness.push(FIRST)
    if len(harness._specs) == 2:
        harness.push(FIRST_OTHER[:1] if _has_one_row(harness) else FIRST_OTHER, input=1)
    harness.advance_watermark(2 * SECOND)
    harness.end_batch()


def _rest(harness: OperatorHarness) -> list[tuple[Any, ...]]:
    harness.push(THEN)
    if len(harness._specs) == 2 and not _has_one_row(harness):
        harness.push(THEN_OTHER, input=1)
    return [*harness.end_batch(), *harness.finish()]


@pytest.mark.parametrize(("name", "parameter"), EVERY, ids=[f"{name}-{one}" for name, one in EVERY])
@pytest.mark.parametrize("enabled", [False, True], ids=["sync", "async"])
def test_a_changed_parameter(name: str, parameter: str, enabled: bool) -> None:
    change = DECISIONS[name][parameter]
    old, new = (_made(name, parameter, value, change) for value in (change.before, change.after))
    with _harness(name, change, old, enabled) as harness:
        _first(harness)
        snapshot = harness.snapshot()
    if change.refused:
        with pytest.raises(AsyncStateError, match=REFUSED):
            harness.restore(snapshot, operator=new)
        with harness.restore(snapshot, operator=_made(name, parameter, change.before, change)) as same:
            _rest(same)
        return
    then = change.then
    if then is None:
        with _harness(name, change, new, enabled) as always:
            _first(always)
            then = _rest(always)
        assert then, "the change must be seen in what is put out"
    with harness.restore(snapshot, operator=_made(name, parameter, change.after, change)) as restored:
        found = _rest(restored)
    if parameter == "ordered":  # rows come as the answers do
        found, then = sorted(found, key=repr), sorted(then, key=repr)
    assert found == then
