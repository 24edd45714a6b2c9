"""Built-in aggregates beyond counts, sums and extremes: any split of the rows gives what a loop gives."""

from __future__ import annotations

import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.testing import OperatorHarness, Tuning
from operators import (
    Aggregate,
    GroupAggregate,
    GroupWindowAggregate,
    OverAggregate,
    WindowAggregate,
    approx_count_distinct,
    bool_and,
    bool_or,
    collect,
    count,
    count_tumble,
    first_value,
    hop,
    last_value,
    rows,
    session,
    stddev_pop,
    stddev_samp,
    string_agg,
    sum_,
    tumble,
    var_pop,
    var_samp,
)
from operators.aggregate.sketch import Registers

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int64()),
        ("s", pa.string()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)
Values = Sequence[Any]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


CASES: dict[str, tuple[Callable[[], Aggregate], int, Callable[[Values], Any]]] = {
    "first_value": (lambda: first_value("v"), 1, lambda found: found[0] if found else None),
    "last_value": (lambda: last_value("v"), 1, lambda found: found[-1] if found else None),
    "collect": (lambda: collect("v"), 1, lambda found: list(found) or None),
    "string_agg": (lambda: string_agg("s", "; "), 2, lambda found: "; ".join(found) if found else None),
    "var_pop": (lambda: var_pop("v"), 1, lambda found: statistics.pvariance(found) if found else None),
    "var_samp": (
        lambda: var_samp("v"),
        1,
        lambda found: statistics.variance(found) if len(found) > 1 else None,
    ),
    "stddev_pop": (lambda: stddev_pop("v"), 1, lambda found: statistics.pstdev(found) if found else None),
    "stddev_samp": (
        lambda: stddev_samp("v"),
        1,
        lambda found: statistics.stdev(found) if len(found) > 1 else None,
    ),
    "bool_and": (lambda: bool_and("flag"), 3, lambda found: all(found) if found else None),
    "bool_or": (lambda: bool_or("flag"), 3, lambda found: any(found) if found else None),
}
ROW = st.tuples(
    st.sampled_from("ab"),
    st.none() | st.integers(-4, 4),
    st.none() | st.text("xy", max_size=2),
    st.none() | st.booleans(),
    st.integers(0, 20),
)
BATCHES = st.lists(st.lists(ROW, max_size=6), max_size=4)


def same(found: Sequence[Any], wanted: Sequence[Any]) -> bool:
    return [_shown(one) for one in found] == [_shown(one) for one in wanted]


def _shown(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float | int) and not isinstance(value, bool) else value


def expected(held: Sequence[Any], distinct: bool = False) -> list[Any]:
    wanted = []
    for _, column, compute in CASES.values():
        for where in (False, True):
            found = [row[column] for row in held if row[column] is not None and (row[3] or not where)]
            wanted.append(compute(list(dict.fromkeys(found)) if distinct else found))
    return wanted


def aggregates(distinct: bool = False) -> list[Aggregate]:
    made = []
    for name, (make, _, _) in CASES.items():
        one = make().distinct() if distinct else make()
        made += [one.alias(name), one.where("flag").alias(f"{name}_where")]
    return made


@settings(deadline=None)
@given(
    batches=BATCHES,
    bundle=st.sampled_from(["1", "3", "100"]),
    distinct=st.booleans(),
    async_enabled=st.booleans(),
)
def test_insertions_are_those_of_a_loop(
    batches: Any, bundle: str, distinct: bool, async_enabled: bool
) -> None:
    shown: dict[str, Any] = {}
    held: list[Any] = []
    options = {"async-state.bundle-size": bundle}
    operator = GroupAggregate(aggregates(distinct))
    with OperatorHarness(
        operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled, options=options
    ) as harness:
        for batch in batches:
            held += batch
            harness.push(batch)
            for kind, key, *values in harness.end_batch():
                if kind in ("+I", "+U"):
                    shown[key] = values
            for key in {row[0] for row in held}:
                assert same(shown[key], expected([row for row in held if row[0] == key], distinct))


@settings(deadline=None)
@given(batches=BATCHES, taken=st.lists(st.integers(0, 99), max_size=8), async_enabled=st.booleans())
def test_changelogs_are_those_of_a_loop(batches: Any, taken: Any, async_enabled: bool) -> None:
    """Of equal values the first one goes, so that the order of those that are left is known."""
    shown: dict[str, Any] = {}
    held: list[Any] = []
    with OperatorHarness(GroupAggregate(aggregates()), SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        for batch in batches:
            gone = []
            while taken and held:
                gone.append(held.pop(held.index(held[taken.pop() % len(held)])))
            held += batch
            harness.push(gone, kinds=["-D"] * len(gone))
            for kind, key, *values in harness.end_batch():
                shown[key] = values if kind in ("+I", "+U") else shown.get(key)
                if kind == "-D":
                    del shown[key]
            harness.push(batch)
            for kind, key, *values in harness.end_batch():
                if kind in ("+I", "+U"):
                    shown[key] = values
            assert set(shown) == {row[0] for row in held}
            for key, values in shown.items():
                wanted = expected([row for row in held if row[0] == key])
                unordered = [name for name in CASES for _ in range(2)]
                for name, found, want in zip(unordered, values, wanted, strict=True):
                    if name in ("collect", "string_agg"):
                        assert sorted(found or ()) == sorted(want or ()), name
                    elif name not in ("first_value", "last_value"):
                        assert _shown(found) == _shown(want), name


def test_values_that_are_taken_back_give_way_to_those_left(async_enabled: bool) -> None:
    operator = GroupAggregate([first_value("v"), last_value("v"), collect("v"), string_agg("s")])
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        one, two, three = ("a", 1, "x", None, 0), ("a", 2, "y", None, 0), ("a", 3, "z", None, 0)
        harness.push([one, two, three])
        assert harness.end_batch() == [("+I", "a", 1, 3, [1, 2, 3], "x,y,z")]
        harness.push([one], kinds=["-D"])
        assert harness.end_batch()[-1] == ("+U", "a", 2, 3, [2, 3], "y,z")
        harness.push([three], kinds=["-D"])
        assert harness.end_batch()[-1] == ("+U", "a", 2, 2, [2], "y")


def test_large_values_of_little_variance_keep_their_digits(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("x", pa.float64())])
    values = 1e9 + np.random.default_rng(1).normal(0, 0.01, 1000)
    with OperatorHarness(
        GroupAggregate([var_pop("x"), stddev_samp("x")]), schema, ["k"], async_enabled=async_enabled
    ) as harness:
        harness.push([("a", float(value)) for value in values])
        (_, _, variance, deviation) = harness.end_batch()[0]
        assert variance == pytest.approx(np.var(values), rel=1e-4)
        assert deviation == pytest.approx(np.std(values, ddof=1), rel=1e-4)
        harness.push([("a", float(value)) for value in values[:900]], kinds=["-D"] * 900)
        assert harness.end_batch()[-1][2] == pytest.approx(np.var(values[900:]), rel=1e-3)


@pytest.mark.parametrize("number", [0, 1, 10, 1_000, 50_000])
def test_estimates_are_near(number: int, async_enabled: bool) -> None:
    operator = GroupAggregate([approx_count_distinct("v"), approx_count_distinct("s").where("flag"), count()])
    with OperatorHarness(operator, SCHEMA, ["k"], changelog=False, async_enabled=async_enabled) as harness:
        values = [("a", value, str(value), value % 2 == 0, 0) for value in range(number)] or [
            ("a", None, None, True, 0)
        ]
        shown: Any = None
        for part in (values[::3], values, values[1::2]):
            harness.push(part)
            shown = (harness.end_batch() or [shown])[-1]
        (_, _, all_values, chosen, _) = shown
    assert all_values == pytest.approx(number, rel=0.15)
    assert chosen == pytest.approx((number + 1) // 2, rel=0.15)


WIDENED = {
    "group": GroupAggregate([approx_count_distinct("v").alias("n")]),
    "tumble": WindowAggregate(tumble(10_000), [approx_count_distinct("v").alias("n")]),
    "session": WindowAggregate(session(10_000), [approx_count_distinct("v").alias("n")]),
    "early": GroupWindowAggregate(tumble(10_000), [approx_count_distinct("v").alias("n")], early=0),
    "counted": GroupWindowAggregate(count_tumble(9), [approx_count_distinct("v").alias("n")]),
    "over": OverAggregate([approx_count_distinct("v").alias("n")]),
}


@pytest.mark.parametrize(
    ("was", "now", "fits"),
    [
        (pa.int8(), pa.int32(), True),
        (pa.int32(), pa.int64(), False),
        (pa.float32(), pa.float64(), False),
        (pa.decimal128(10, 2), pa.decimal128(18, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(19, 2), False),
    ],
)
@pytest.mark.parametrize("name", WIDENED)
def test_a_wider_column_is_refused_where_its_values_have_other_hashes(
    name: str, was: pa.DataType, now: pa.DataType, fits: bool, async_enabled: bool
) -> None:
    def harness(kind: pa.DataType) -> OperatorHarness:
        schema = pa.schema([("k", pa.string()), ("v", kind), ("at", pa.timestamp("us"))])
        settings: Any = {"event_time": "at", "watermark_delay": 0, "changelog": False}
        return OperatorHarness(WIDENED[name], schema, ["k"], async_enabled=async_enabled, **settings)

    rows = [("a", Decimal(value) if pa.types.is_decimal(was) else value, value) for value in (1, 2, 3)]
    with harness(was) as before:
        before.push(rows)
        before.end_batch()
        snapshot = before.snapshot()
    with harness(now) if fits else pytest.raises(StateDeclarationError, match="column type is") as refused:
        after = harness(now).restore(snapshot)
        after.push([*rows, *((key, 2 * value, 9) for key, value, _ in rows)])
        after.end_batch()
        after.finish()
        assert after.output[-1][-1] == 5
    if not fits:
        assert "drop-state" not in str(refused.value)


MANY_KEYS = 2_000
ONE_PERCENT = [approx_count_distinct("v", 0.01).alias("n")]
MANY = {
    "group": GroupAggregate(ONE_PERCENT),
    "hop": WindowAggregate(hop(20_000_000, 10_000_000), ONE_PERCENT),
    "session": WindowAggregate(session(10_000_000), ONE_PERCENT),
    "over": OverAggregate(ONE_PERCENT),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MANY)
def test_registers_of_many_keys_take_no_more_memory_than_bundles_may(name: str) -> None:
    """Keys at 16 KiB each, 31 MiB in all, in the first micro-batch, of which nothing is known yet; twice each, with two
    values, a tenth of them with one."""
    numbers = np.arange(2 * MANY_KEYS)
    keys = numbers % MANY_KEYS
    columns = [pa.array(keys), pa.array(np.where(keys % 10 == 0, keys, numbers)), pa.array(numbers)]
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
    batch = pa.RecordBatch.from_arrays([*columns[:2], columns[2].cast(pa.timestamp("us"))], schema=schema)
    timed: Any = {} if name == "group" else {"event_time": "at", "watermark_delay": 0}
    tuning = Tuning(bundle_bytes=8 << 20, columns_bytes=0)
    with OperatorHarness(MANY[name], schema, ["k"], changelog=False, tuning=tuning, **timed) as harness:
        harness.push(batch)
        tracemalloc.start()
        harness.end_batch()
        harness.finish()
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    shown = {row[1]: row[-1] for row in harness.output if row[0] != "-U"}  # the last that was put out
    assert shown == {key: 1 if key % 10 == 0 else 2 for key in range(MANY_KEYS)}
    assert peak_bytes < 350 << 20


def test_registers_beyond_an_array_are_refused() -> None:
    registers = Registers("GroupAggregate", "v", None, 14, pa.int64())
    with pytest.raises(OperatorError, match="131,072 keys in one bundle.*lower async-state.bundle-size"):
        registers._stored(np.broadcast_to(np.zeros(1, np.uint8), (1 << 17, 1 << 14)))


def test_windows_and_frames(async_enabled: bool) -> None:
    some = [collect("v"), last_value("v").alias("l"), var_pop("v").alias("var"), bool_or("flag").alias("any")]
    options: Any = {
        "event_time": "at",
        "watermark_delay": 0,
        "changelog": False,
        "async_enabled": async_enabled,
    }
    rows_ = [("a", 1, "", False, 1), ("a", 3, "", True, 2), ("a", 5, "", False, 12_000)]
    with OperatorHarness(WindowAggregate(tumble(10_000), some), SCHEMA, ["k"], **options) as harness:
        harness.push(rows_)
        found = [row[5:] for row in harness.finish()]
        assert found == [([1, 3], 3, 1.0, True), ([5], 5, 0.0, False)]
    frames = [first_value("v").alias("f"), *some]
    with OperatorHarness(OverAggregate(frames, rows(1)), SCHEMA, ["k"], **options) as harness:
        harness.push(rows_)
        assert [row[6:] for row in harness.finish()] == [
            (1, [1], 1, 0.0, False),
            (1, [1, 3], 3, 1.0, True),
            (3, [3, 5], 5, 1.0, True),
        ]


@pytest.mark.parametrize(
    ("aggregate", "changelog", "text"),
    [
        (lambda: var_pop("s"), False, "needs an integer, float or decimal"),
        (lambda: bool_and("v"), False, "needs a boolean"),
        (lambda: string_agg("v"), False, "needs a string"),
        (lambda: approx_count_distinct("v"), True, "use count\\('v'\\).distinct"),
        (lambda: first_value("missing"), False, "needs a column 'missing'"),
    ],
)
def test_wrong_columns_are_refused(aggregate: Any, changelog: bool, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        OperatorHarness(GroupAggregate([aggregate()]), SCHEMA, ["k"], changelog=changelog)


def test_wrong_parameters_are_refused() -> None:
    with pytest.raises(SchemaError, match="relative_error is 2"):
        approx_count_distinct("v", 2)
    with pytest.raises(SchemaError, match="separator is 3"):
        string_agg("s", 3)  # type: ignore[arg-type]


def test_distinct_aggregates_with_different_filters_share_nothing(async_enabled: bool) -> None:
    operator = GroupAggregate(
        [
            count("v").distinct().alias("all"),
            count("v").distinct().where("flag").alias("flagged"),
            sum_("v").distinct(),
        ]
    )
    with OperatorHarness(operator, SCHEMA, ["k"], async_enabled=async_enabled) as harness:
        harness.push([("a", 1, "", False, 0), ("a", 1, "", True, 0), ("a", 2, "", True, 0)])
        assert harness.end_batch() == [("+I", "a", 2, 2, 3)]
        harness.push([("a", 1, "", True, 0), ("a", 2, "", True, 0)], kinds=["-D", "-D"])
        assert harness.end_batch() == [("-U", "a", 2, 2, 3), ("+U", "a", 1, 0, 1)]
