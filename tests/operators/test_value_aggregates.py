"""Aggregates that need every value: any split of the rows, with rows taken back, gives what a loop and Spark give."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import (
    Aggregate,
    GroupAggregate,
    GroupWindowAggregate,
    OverAggregate,
    WindowAggregate,
    bit_and,
    bit_or,
    bit_xor,
    collect,
    corr,
    count,
    covar_pop,
    covar_samp,
    cumulate,
    desc,
    hop,
    kurtosis,
    map_agg,
    max_by,
    median,
    min_by,
    mode,
    percentile,
    percentile_disc,
    rows,
    session,
    skewness,
    string_agg,
    tumble,
    unbounded,
)
from tests.examples import at_most
from tests.local_aggregation import in_phases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("v", pa.int32()),
        ("w", pa.float64()),
        ("s", pa.string()),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us")),
    ]
)
K, V, W, S, FLAG, AT = range(6)
MS = 1_000
Row = tuple[Any, ...]
Rows = Sequence[Row]


def _present(held: Rows, *columns: int) -> list[Any]:
    """The values of the rows that have one in all columns; tuples of several."""
    found = [tuple(row[at] for at in columns) for row in held if all(row[at] is not None for at in columns)]
    return [one[0] for one in found] if len(columns) == 1 else found


def _at(fraction: float) -> Callable[[Rows], float | None]:
    def computed(held: Rows) -> float | None:
        values = sorted(_present(held, W))
        if not values:
            return None
        place = fraction * (len(values) - 1)
        low, high = values[math.floor(place)], values[math.ceil(place)]
        return float(low + (high - low) * (place - math.floor(place)))

    return computed


def _discrete(fraction: str, column: int, reverse: bool = False) -> Callable[[Rows], Any]:
    def computed(held: Rows) -> Any:
        values = sorted(_present(held, column), reverse=reverse)
        return values[max(math.ceil(Fraction(fraction) * len(values)), 1) - 1] if values else None

    return computed


def _most(values: list[Any], largest: bool = False) -> Any:
    counts = Counter(values)
    most = max(counts.values(), default=0)
    return (max if largest else min)((one for one in counts if counts[one] == most), default=None)


def _nulls_least(value: Any) -> Any:
    return (value is not None, value if value is not None else 0)


def _by(choose: Callable[..., Any]) -> Callable[[Rows], Any]:
    def computed(held: Rows) -> Any:
        rows_ = [row for row in held if row[W] is not None]
        if not rows_:
            return None
        best = choose(row[W] for row in rows_)
        return max((row[V] for row in rows_ if row[W] == best), key=_nulls_least)

    return computed


def _bits(join: Callable[[int, int], int]) -> Callable[[Rows], int | None]:
    def computed(held: Rows) -> int | None:
        values = _present(held, V)
        total = values[0] if values else None
        for value in values[1:]:
            total = join(total, value)
        return total

    return computed


def _moment(values: list[float], power: int) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** power for value in values)


def _covariance(pairs: list[Any]) -> float:
    first, second = ([float(pair[at]) for pair in pairs] for at in (0, 1))
    means = math.fsum(first) / len(pairs), math.fsum(second) / len(pairs)
    return math.fsum((x - means[0]) * (y - means[1]) for x, y in zip(first, second, strict=True))


def _corr(held: Rows) -> float | None:
    pairs = _present(held, V, W)
    squares = [_moment([float(pair[at]) for pair in pairs], 2) for at in (0, 1)] if pairs else [0]
    return _covariance(pairs) / math.sqrt(squares[0] * squares[1]) if all(squares) else None


def _covar_pop(held: Rows) -> float | None:
    pairs = _present(held, V, W)
    return _covariance(pairs) / len(pairs) if pairs else None


def _covar_samp(held: Rows) -> float | None:
    pairs = _present(held, V, W)
    return _covariance(pairs) / (len(pairs) - 1) if len(pairs) > 1 else None


def _skewness(held: Rows) -> float | None:
    values = [float(value) for value in _present(held, V)]
    squares = _moment(values, 2) if values else 0
    return math.sqrt(len(values)) * _moment(values, 3) / squares**1.5 if squares else None


def _kurtosis(held: Rows) -> float | None:
    values = [float(value) for value in _present(held, V)]
    squares = _moment(values, 2) if values else 0
    return len(values) * _moment(values, 4) / squares**2 - 3 if squares else None


def _list(held: Rows) -> list[Any] | None:
    """Texts by ``v``, the largest first and null last, then by themselves."""
    found = sorted(
        (row for row in held if row[S] is not None),
        key=lambda row: (row[V] is None, -(row[V] or 0), row[S]),
    )
    return [row[S] for row in found] or None


def _map(held: Rows) -> list[Any] | None:
    found: dict[Any, Any] = {}
    for row in held:
        if row[S] is not None:
            found[row[S]] = max(found.get(row[S]), row[V], key=_nulls_least)
    return sorted(found.items()) or None


CASES: dict[str, tuple[Callable[[], Aggregate], Callable[[Rows], Any]]] = {
    "median": (lambda: median("w"), _at(0.5)),
    "percentile": (lambda: percentile("w", 0.9), _at(0.9)),
    "percentile_desc": (lambda: percentile("w", 0.25, descending=True), _at(0.75)),
    "percentile_disc": (lambda: percentile_disc("s", 0.7), _discrete("0.7", S)),
    "disc_desc": (lambda: percentile_disc("v", 0.1, descending=True), _discrete("0.1", V, True)),
    "mode": (lambda: mode("s"), lambda held: _most(_present(held, S))),
    "mode_desc": (
        lambda: mode("s", descending=True),
        lambda held: _most(_present(held, S), largest=True),
    ),
    "max_by": (lambda: max_by("v", "w"), _by(max)),
    "min_by": (lambda: min_by("v", "w"), _by(min)),
    "bit_and": (lambda: bit_and("v"), _bits(int.__and__)),
    "bit_or": (lambda: bit_or("v"), _bits(int.__or__)),
    "bit_xor": (lambda: bit_xor("v"), _bits(int.__xor__)),
    "corr": (lambda: corr("v", "w"), _corr),
    "covar_pop": (lambda: covar_pop("v", "w"), _covar_pop),
    "covar_samp": (lambda: covar_samp("v", "w"), _covar_samp),
    "skewness": (lambda: skewness("v"), _skewness),
    "kurtosis": (lambda: kurtosis("v"), _kurtosis),
    "collect": (lambda: collect("s", [desc("v")]), _list),
    "string_agg": (
        lambda: string_agg("s", "-", order_by=desc("v")),
        lambda held: None if _list(held) is None else "-".join(_list(held) or ()),
    ),
    "map_agg": (lambda: map_agg("s", "v"), _map),
    "count2": (lambda: count("v", "s"), lambda held: len(_present(held, V, S))),
    "count_distinct": (lambda: count("v", "s").distinct(), lambda held: len(set(_present(held, V, S)))),
    "mode_distinct": (lambda: mode("s").distinct(), lambda held: min(_present(held, S), default=None)),
    "xor_distinct": (
        lambda: bit_xor("v").distinct(),
        lambda held: _bits(int.__xor__)(list({row[V]: row for row in held}.values())),
    ),
    "list_distinct": (
        lambda: collect("s", desc("s")).distinct(),
        lambda held: sorted(set(_present(held, S)), reverse=True) or None,
    ),
}
ROW = st.tuples(
    st.sampled_from("ab"),
    st.none() | st.integers(-4, 4),
    st.none() | st.integers(-3, 3).map(lambda eighths: eighths / 8),
    st.none() | st.text("xy", max_size=2),
    st.none() | st.booleans(),
    st.integers(0, 20).map(lambda ms: ms * MS),
)
BATCHES = st.lists(st.lists(ROW, max_size=6), max_size=4)


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.items())
    return round(value, 6) if isinstance(value, float) else value


def aggregates(names: Sequence[str] = tuple(CASES)) -> list[Aggregate]:
    made = []
    for name in names:
        one = CASES[name][0]()
        made += [one.alias(name), one.where("flag").alias(f"{name}_where")]
    return made


def expected(held: Rows, names: Sequence[str] = tuple(CASES)) -> dict[str, Any]:
    wanted = {}
    for name in names:
        compute = CASES[name][1]
        wanted[name] = _shown(compute(held))
        wanted[f"{name}_where"] = _shown(compute([row for row in held if row[FLAG]]))
    return wanted


def found(row: Row, schema: pa.Schema) -> dict[str, Any]:
    return {name: _shown(value) for name, value in zip(schema.names, row, strict=True)}


@settings(deadline=None, max_examples=at_most(8))
@given(
    batches=BATCHES,
    taken=st.lists(st.integers(0, 99), max_size=8),
    changelog=st.booleans(),
    bundle=st.sampled_from(["1", "3", "100"]),
    async_enabled=st.booleans(),
    phases=st.booleans(),
)
def test_groups_are_those_of_a_loop(
    batches: Any, taken: Any, changelog: bool, bundle: str, async_enabled: bool, phases: bool
) -> None:
    shown: dict[str, Any] = {}
    held: list[Any] = []
    options = {"async-state.bundle-size": bundle}
    with OperatorHarness(
        in_phases(GroupAggregate(aggregates()), phases),
        SCHEMA,
        ["k"],
        changelog=changelog,
        async_enabled=async_enabled,
        options=options,
    ) as harness:
        for batch in batches:
            gone = []
            while changelog and taken and held:
                gone.append(held.pop(taken.pop() % len(held)))
            held += batch
            changes = [("-D", row) for row in gone] + [("+I", row) for row in batch]
            harness.push([row for _, row in changes], kinds=[kind for kind, _ in changes])
            for kind, key, *values in harness.end_batch():
                if kind in ("+I", "+U"):
                    shown[key] = found(values, pa.schema(list(harness.output_schema)[1:]))
                elif kind == "-D":
                    del shown[key]
            assert shown == {key: expected([row for row in held if row[K] == key]) for key in shown}
            assert set(shown) == {row[K] for row in held}


_WINDOWED = [name for name in CASES if not name.startswith("count")]
_ENDS: dict[str, Callable[[int], list[int]]] = {
    "tumble": lambda at: [at // 10 * 10 + 10],
    "hop": lambda at: [at // 5 * 5 + 5, at // 5 * 5 + 10],
    "cumulate": lambda at: [end for end in (10, 20, 30, 40) if at < end <= at // 20 * 20 + 20],
}
_SHAPES = {
    "tumble": tumble(10 * MS),
    "hop": hop(10 * MS, 5 * MS),
    "cumulate": cumulate(20 * MS, 10 * MS),
    "session": session(4 * MS),
}


@pytest.mark.long
@pytest.mark.parametrize("changelog", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("shape", _SHAPES)
@settings(deadline=None, max_examples=at_most(8))
@given(
    held=st.lists(ROW, max_size=12),
    cut=st.integers(0, 12),
    gone=st.integers(0, 3),
    async_enabled=st.booleans(),
)
def test_windows_are_those_of_a_loop(
    shape: str, changelog: bool, early: bool, held: Any, cut: int, gone: int, async_enabled: bool
) -> None:
    made = [CASES[name][0]().alias(name) for name in _WINDOWED]
    window = _SHAPES[shape]
    operator = GroupWindowAggregate(window, made, early=0) if early else WindowAggregate(window, made)
    # They come and go at the times of rows that stay: a session keeps the span of a row that is taken back.
    taken = [(row[K], 3, 9.0, "q", True, row[AT]) for row in held[:gone]] if changelog else []
    with OperatorHarness(
        operator,
        SCHEMA,
        ["k"],
        event_time="at",
        watermark_delay=100 * MS,
        changelog=changelog,
        async_enabled=async_enabled,
    ) as harness:
        out = []
        for part, kind in ((held[:cut], "+I"), (held[cut:] + taken, "+I"), (taken, "-D")):
            harness.push(part, kinds=[kind] * len(part))
            out += harness.end_batch()
        out += harness.finish()
        names = harness.output_schema.names
    shown: Counter[str] = Counter()
    for kind, *values in out:
        row = dict(zip(names, values, strict=True))
        results = {name: _shown(row[name]) for name in _WINDOWED}
        shown[repr((row["k"], row["window_end"], results))] += 1 if kind in ("+I", "+U") else -1
    wanted: Counter[str] = Counter()
    for key in {row[K] for row in held}:
        for end, members in _windows([row for row in held if row[K] == key], shape):
            results = {name: _shown(CASES[name][1](members)) for name in _WINDOWED}
            wanted[repr((key, end, results))] += 1
    assert {text: number for text, number in shown.items() if number} == wanted


def _windows(held: Rows, shape: str) -> list[tuple[int, list[Row]]]:
    """The ends of the windows that have rows, each with its rows."""
    if shape == "session":
        groups: list[list[Row]] = []
        for row in sorted(held, key=lambda row: row[AT]):
            if groups and row[AT] - groups[-1][-1][AT] <= 4 * MS:
                groups[-1].append(row)
            else:
                groups.append([row])
        return [(members[-1][AT] + 4 * MS, members) for members in groups]
    ends = sorted({end for row in held for end in _ENDS[shape](row[AT] // MS)})
    return [(end * MS, [row for row in held if end in _ENDS[shape](row[AT] // MS)]) for end in ends]


@pytest.mark.parametrize("frame", ["unbounded", "rows"])
@pytest.mark.parametrize("ordered", [False, True])
@settings(deadline=None, max_examples=at_most(8))
@given(held=st.lists(ROW, max_size=10, unique_by=lambda row: (row[K], row[AT])), async_enabled=st.booleans())
def test_frames_are_those_of_a_loop(frame: str, ordered: bool, held: Any, async_enabled: bool) -> None:
    names = [name for name in CASES if not name.startswith("collect")]
    operator = OverAggregate(
        aggregates(names),
        unbounded() if frame == "unbounded" else rows(2),
        order_by="at" if ordered else None,
    )
    with OperatorHarness(
        operator,
        SCHEMA,
        ["k"],
        event_time="at",
        watermark_delay=0,
        changelog=False,
        async_enabled=async_enabled,
    ) as harness:
        harness.push(held)
        out = harness.end_batch() + harness.finish()
        schema = pa.schema(list(harness.output_schema)[len(SCHEMA) :])
    assert len(out) == len(held)
    for kind, *values in out:
        row = tuple(values[: len(SCHEMA)])
        before = sorted(
            (one for one in held if one[K] == row[K] and one[AT] <= row[AT]), key=lambda one: one[AT]
        )
        wanted = expected(before if frame == "unbounded" else before[-3:], names)
        assert (kind, found(values[len(SCHEMA) :], schema)) == ("+I", wanted)


def test_values_that_do_not_fit_are_refused() -> None:
    for made, what in [
        (percentile("s", 0.5), "percentile_s' needs an integer, float or decimal but column 's'"),
        (corr("v", "s"), "corr_v_s' needs an integer, float or decimal but column 's'"),
        (bit_and("w"), "needs an integer but column 'w'"),
        (collect("s", "v").distinct(), "only 's' itself can order it"),
        (string_agg("v", order_by="v"), "needs a string but column 'v'"),
        (max_by("v", "nothing"), "needs a column 'nothing'"),
    ]:
        with pytest.raises(SchemaError, match=what), OperatorHarness(GroupAggregate([made]), SCHEMA, ["k"]):
            pass
    for fraction in (-0.1, 1.5, "0.5", None, True):
        with pytest.raises(SchemaError, match="give a number from 0 to 1"):
            percentile("v", fraction)  # type: ignore[arg-type]


NUMBERS = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("y", pa.int32()), ("d", pa.decimal128(10, 2))])
SPARK = {
    "median": (median("x"), "median(x)"),
    "percentile": (percentile("x", 0.3), "percentile(x, 0.3)"),
    "percentile_of_decimals": (percentile("d", 0.3), "percentile(d, 0.3)"),
    "descending": (
        percentile("y", 0.3, descending=True),
        "percentile_cont(0.3) WITHIN GROUP (ORDER BY y DESC)",
    ),
    "disc": (percentile_disc("y", 0.3), "CAST(percentile_disc(0.3) WITHIN GROUP (ORDER BY y) AS INT)"),
    "disc_descending": (
        percentile_disc("y", 0.3, descending=True),
        "CAST(percentile_disc(0.3) WITHIN GROUP (ORDER BY y DESC) AS INT)",
    ),
    "mode": (mode("y"), "mode(y, true)"),
    "mode_descending": (mode("y", descending=True), "mode() WITHIN GROUP (ORDER BY y DESC)"),
    "max_by": (max_by("y", "x"), "(max(struct(x, y)) FILTER (WHERE x IS NOT NULL)).y"),
    "bit_and": (bit_and("y"), "bit_and(y)"),
    "bit_or": (bit_or("y"), "bit_or(y)"),
    "bit_xor": (bit_xor("y"), "bit_xor(y)"),
    "corr": (corr("x", "y"), "corr(x, y)"),
    "covar_pop": (covar_pop("x", "y"), "covar_pop(x, y)"),
    "covar_samp": (covar_samp("x", "y"), "covar_samp(x, y)"),
    "skewness": (skewness("x"), "skewness(x)"),
    "kurtosis": (kurtosis("x"), "kurtosis(x)"),
    "counted": (count("x", "y"), "count(x, y)"),
    "distinct": (count("x", "y").distinct(), "count(DISTINCT x, y)"),
    "kurtosis_of_decimals": (kurtosis("d"), "kurtosis(d)"),
}


@pytest.mark.spark
@pytest.mark.since_spark("4.0", "the least of several modes")
@pytest.mark.parametrize("changelog", [False, True])
def test_results_are_those_of_spark(spark: SparkSession, changelog: bool, async_enabled: bool) -> None:
    random_ = random.Random(1)
    specials = [math.nan, math.inf, -math.inf, 0.0, -0.0]
    held: list[Row] = []
    for key in range(120):
        few = [round(random_.uniform(-9, 9), 1) for _ in range(3)]
        for _ in range(random_.choice([1, 1, 2, 3, 9])):
            x = random_.choice([None, *few, *(specials if key % 4 == 0 else [])])
            y = random_.choice([None, *range(-4, 5)])
            held.append((key, x, y, random_.choice([None, Decimal(random_.randrange(-500, 500)) / 100])))
    gone = [(row[0], 7.25, row[2], Decimal("1.25")) for row in held[::3]]
    operator = GroupAggregate([made.alias(name) for name, (made, _) in SPARK.items()])
    with OperatorHarness(
        operator, NUMBERS, ["k"], changelog=changelog, async_enabled=async_enabled
    ) as harness:
        harness.push(held[::2])
        out = harness.end_batch()
        harness.push(held[1::2] + (gone if changelog else []))
        out += harness.end_batch()
        if changelog:
            harness.push(gone, kinds=["-D"] * len(gone))
            out += harness.end_batch()
    shown = {row[1]: row[2:] for row in out if row[0] in ("+I", "+U")}
    frame = spark.createDataFrame(held, "k bigint, x double, y int, d decimal(10, 2)")
    wanted = frame.groupBy("k").agg(*(_expression(text, name) for name, (_, text) in SPARK.items())).collect()
    assert len(shown) == len(wanted) == 120
    different = [
        (name, one, other, [row for row in held if row[0] == key])
        for key, *values in wanted
        for name, one, other in zip(SPARK, shown[key], values, strict=True)
        if (
            one != pytest.approx(other, rel=1e-9, abs=1e-9, nan_ok=True)
            if None not in (one, other)
            else one != other
        )
    ]
    assert not different


def _expression(text: str, name: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text).alias(name)
