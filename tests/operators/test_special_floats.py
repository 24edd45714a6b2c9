"""NaN, infinities and both zeros over a changelog: what is left counts, as if nothing else had ever been there."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import (
    Aggregate,
    ChangelogNormalize,
    GroupAggregate,
    IncrementalGroupAggregate,
    KeyedReduce,
    OverAggregate,
    Rank,
    UpsertMaterialize,
    avg,
    collect,
    count,
    first_value,
    last_value,
    max_,
    min_,
    nth_value,
    stddev_samp,
    sum_,
    var_pop,
    whole,
)
from operators.aggregate import aggregate_calls, moments
from operators.aggregate.accumulators import Sum

VALUES = pa.schema([("k", pa.int64()), ("x", pa.float64())])
SPECIAL = [math.nan, math.inf, -math.inf]
SQL: dict[str, tuple[Aggregate, str]] = {
    "sum": (sum_("x"), "sum(x)"),
    "avg": (avg("x"), "avg(x)"),
    "distinct sum": (sum_("x").distinct(), "sum(distinct x)"),
    "variance": (var_pop("x"), "var_pop(x)"),
    "deviation": (stddev_samp("x"), "stddev_samp(x)"),
    "min": (min_("x"), "min(x)"),
    "max": (max_("x"), "max(x)"),
    "distinct count": (count("x").distinct(), "count(distinct x)"),
    "first": (first_value("x"), "first(x)"),
    "last": (last_value("x"), "last(x)"),
    "list": (collect("x"), "list(x)"),
}

Changes = Sequence[tuple[str, float]]


def run(aggregate: Aggregate, batches: Sequence[Changes], **settings: Any) -> list[Any]:
    """The newest value of the aggregate after each micro-batch."""
    return run_keys(aggregate, [batches], **settings)[0]


def run_keys(aggregate: Aggregate, keys: Sequence[Sequence[Changes]], **settings: Any) -> list[list[Any]]:
    """The same for several keys: each has micro-batches of its own, as many as the others."""
    values: list[list[Any]] = [[] for _ in keys]
    with OperatorHarness(
        GroupAggregate([aggregate.alias("out")]), VALUES, ["k"], changelog=True, **settings
    ) as harness:
        for together in zip(*keys, strict=True):
            for key, batch in enumerate(together):
                harness.push([(key, value) for _, value in batch], kinds=[kind for kind, _ in batch])
            newest = {key: value for _, key, value in harness.end_batch()}
            for key, found in enumerate(values):
                found.append(newest[key] if key in newest else found[-1])
        assert harness.statistics().get("counter.retractions_without_state", 0) == 0
    return values


def in_sql(expression: str, *left: float) -> Any:
    """What DuckDB makes of the values that are left."""
    rows = ", ".join(f"('{value}'::double)" for value in left)
    (value,) = duckdb.connect().execute(f"select {expression} from (values {rows}) as t(x)").fetchone() or ()
    return value


@pytest.mark.parametrize("name", SQL)
def test_a_value_that_is_taken_back_leaves_no_trace(name: str, async_enabled: bool) -> None:
    """A key for each special value."""
    aggregate, expression = SQL[name]
    expected = in_sql(expression, 5.0, 2.5)
    for cut in ([4], [2, 2], [1, 1, 1, 1]):
        ends = list(accumulate(cut))
        keys = []
        for special in SPECIAL:
            changes = [("+I", 5.0), ("+I", special), ("-D", special), ("+I", 2.5)]
            keys.append([changes[end - size : end] for size, end in zip(cut, ends, strict=True)])
        for size in ("1", "500000"):
            options = {"async-state.bundle-size": size}
            found = run_keys(aggregate, keys, async_enabled=async_enabled, options=options)
            assert [values[-1] for values in found] == [expected] * len(SPECIAL), cut


@pytest.mark.parametrize("name", ["sum", "avg", "distinct sum", "min", "max"])
def test_while_special_values_are_there_they_count(name: str, async_enabled: bool) -> None:
    """A key for each pair of values that are left."""
    aggregate, expression = SQL[name]
    pairs = [*combinations(SPECIAL, 2), *((one, 1.5) for one in SPECIAL)]
    added = [[("+I", value) for value in (*SPECIAL, *left)] for left in pairs]
    taken = [("-D", value) for value in SPECIAL]
    expected = [repr(in_sql(expression, *left)) for left in pairs]
    for keys in ([[changes, taken] for changes in added], [[[*taken, *changes]] for changes in added]):
        found = run_keys(aggregate, keys, async_enabled=async_enabled)
        assert [repr(values[-1]) for values in found] == expected


@pytest.mark.parametrize("special", SPECIAL)
def test_a_variance_is_nan_while_a_value_is_not_finite(special: float, async_enabled: bool) -> None:
    changes = [[("+I", 5.0), ("+I", special)], [("-D", 5.0)], [("-D", special), ("+I", 4.0)]]
    found = run(var_pop("x"), changes, async_enabled=async_enabled)
    assert [repr(value) for value in found] == ["nan", "nan", "0.0"]


@pytest.mark.parametrize(
    ("row", "retraction"),
    [(0.0, -0.0), (-0.0, 0.0), (math.nan, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0])],
    ids=["zero", "negative zero", "another nan"],
)
@pytest.mark.parametrize("bundle_size", ["1", "500000"])
def test_a_row_is_taken_back_by_an_equal_one(
    row: float, retraction: float, bundle_size: str, async_enabled: bool
) -> None:
    """Though their bits differ."""
    options = {"async-state.bundle-size": bundle_size}
    for batches in (
        [[("-D", retraction), ("+I", row), ("+I", 3.0)]],
        [[("+I", row), ("+I", 3.0)], [("-D", retraction)]],
    ):
        for aggregate in (count(), max_("x"), collect("x")):
            found = run(aggregate, batches, async_enabled=async_enabled, options=options)
            assert found[-1] == {"count": 1, "max_x": 3.0, "collect_x": [3.0]}[aggregate.name]


@pytest.mark.parametrize("special", SPECIAL)
def test_parts_of_a_split_aggregation_forget_them_too(special: float, async_enabled: bool) -> None:
    split = IncrementalGroupAggregate([sum_("x").alias("total"), avg("x").alias("mean")], bucket="bucket")
    schema = pa.schema([("k", pa.int64()), ("bucket", pa.int64()), ("x", pa.float64())])
    batches = [[("+I", 0, 5.0), ("+I", 1, special)], [("-D", 1, special), ("+I", 0, 2.0)]]
    with OperatorHarness(
        split, schema, ["k", "bucket"], changelog=True, async_enabled=async_enabled
    ) as first:
        parts = first.output_schema
        with OperatorHarness(
            split.final(), parts, ["k"], changelog=False, async_enabled=async_enabled
        ) as final:
            for batch in batches:
                first.push([(1, *row) for _, *row in batch], kinds=[kind for kind, *_ in batch])
                final.push([row[1:] for row in first.end_batch()])
                final.end_batch()
            assert final.output[-1] == ("+U", 1, 7.0, 3.5)


def test_states_without_counts_of_them_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, async_enabled: bool
) -> None:
    """As an older version has written them."""
    aggregates = [sum_("x").alias("total"), var_pop("x").alias("variance")]
    settings: dict[str, Any] = {"changelog": True, "folder": str(tmp_path), "async_enabled": async_enabled}
    with monkeypatch.context() as older:
        older.setattr(aggregate_calls, "RetractableSum", Sum)
        older.setattr(moments, "RetractableMoments", moments.Moments)
        with OperatorHarness(GroupAggregate(aggregates), VALUES, ["k"], **settings) as harness:
            harness.push([(1, 5.0), (1, 3.0)])
            assert harness.end_batch() == [("+I", 1, 8.0, 1.0)]
    with OperatorHarness(GroupAggregate(aggregates), VALUES, ["k"], **settings) as harness:
        harness.push([(1, math.inf)])
        assert repr(harness.end_batch()[-1]) == "('+U', 1, inf, nan)"
        harness.push([(1, math.inf), (1, 3.0)], kinds=["-D", "-D"])
        assert harness.end_batch()[-1] == ("+U", 1, 5.0, 0.0)


@pytest.mark.parametrize("aggregate", [first_value, last_value, collect])
def test_nested_values_with_nan_are_taken_back(aggregate: Any, async_enabled: bool) -> None:
    """Floats inside of other values are compared by their bits."""
    kind = pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float64()))])
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    gone, stays = {"x": math.nan, "y": [math.nan, None]}, {"x": 0.0, "y": [1.0]}
    operator = GroupAggregate([aggregate("v").alias("found")])
    with OperatorHarness(operator, schema, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, gone), (1, stays), (1, gone)])
        harness.end_batch()
        for _ in range(2):
            harness.push([(1, gone)], kind="-D")
            harness.end_batch()
        found = harness.output[-1][-1]
    assert (found if aggregate is collect else [found]) == [stays]


LISTS = pa.schema([("k", pa.int64()), ("u", pa.int64()), ("x", pa.list_(pa.float64()))])


@pytest.mark.parametrize(
    "make",
    [
        lambda: GroupAggregate([last_value("x").alias("x")]),
        lambda: Rank("u", 1, unique=["u"]),
        lambda: UpsertMaterialize(["u"]),
        ChangelogNormalize,
        lambda: OverAggregate([nth_value("x", from_last=True).alias("last")], whole(), order_by="u"),
    ],
    ids=["GroupAggregate", "Rank", "UpsertMaterialize", "ChangelogNormalize", "OverAggregate"],
)
def test_floats_inside_of_lists_are_updated_by_their_bits(
    make: Callable[[], Operator], async_enabled: bool
) -> None:
    """As they are compared when they are taken back: a zero of the other sign is an update, the same NaN is none."""
    operator = make()
    with OperatorHarness(operator, LISTS, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 7, [0.0])])
        harness.end_batch()
        number = 7
        for value in (-0.0, math.nan, math.nan):
            number += isinstance(operator, OverAggregate)
            harness.push([(1, number, [value])], kind="+U")
            harness.end_batch()
        texts = [(row[0], repr(row[-1])) for row in harness.output]
    if isinstance(operator, OverAggregate):  # the rows stay, and each has the last list
        assert [text for kind, text in texts if kind == "-U"] == ["[0.0]", *["[-0.0]"] * 2]
        return
    assert texts == [
        ("+I", "[0.0]"),
        ("-U", "[0.0]"),
        ("+U", "[-0.0]"),
        ("-U", "[-0.0]"),
        ("+U", "[nan]"),
    ]


def test_a_reduced_nan_is_no_update_of_itself(async_enabled: bool) -> None:
    operator = KeyedReduce(lambda one, other: (one.k, one.x + other.x), changelog=True)
    with OperatorHarness(operator, VALUES, ["k"], async_enabled=async_enabled) as harness:
        for values in ([1.0, math.nan], [2.0, 3.0], [4.0]):
            harness.push([(1, value) for value in values])
            harness.end_batch()
        assert [(kind, repr(value)) for kind, _, value in harness.output] == [
            ("+I", "1.0"),
            ("-U", "1.0"),
            ("+U", "nan"),
        ]
