"""Sums that do not fit their type name the key and the column, wherever they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate.errors import OperatorError
from asyncstate.testing import OperatorHarness
from operators import (
    GroupAggregate,
    GroupWindowAggregate,
    IncrementalGroupAggregate,
    Match,
    OverAggregate,
    WindowAggregate,
    asc,
    avg,
    count_tumble,
    cumulate,
    hop,
    range_,
    rows,
    session,
    sum_,
    tumble,
    unbounded,
)

MS = 1_000
HALF = 1 << 62
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us"))])
DECIMALS = pa.schema([("k", pa.string()), ("v", pa.decimal128(38, 0)), ("at", pa.timestamp("us"))])
IN_INT64 = r"key \('b',\): the sum of column 'v' does not fit int64; cast"

OPERATORS: dict[str, Any] = {
    "tumble": lambda: WindowAggregate(tumble("10 ms"), [sum_("v")]),
    "hop": lambda: WindowAggregate(hop("10 ms", "5 ms"), [sum_("v")]),
    "cumulate": lambda: WindowAggregate(cumulate("10 ms", "5 ms"), [sum_("v")]),
    "distinct": lambda: WindowAggregate(hop("10 ms", "5 ms"), [sum_("v").distinct()]),
    "session": lambda: WindowAggregate(session("5 ms"), [sum_("v")]),
    "session of distinct": lambda: WindowAggregate(session("5 ms"), [sum_("v").distinct()]),
    "early": lambda: GroupWindowAggregate(tumble("10 ms"), [sum_("v")], early="1 second"),
    "early session": lambda: GroupWindowAggregate(session("5 ms"), [sum_("v")], early="1 second"),
    "rows": lambda: GroupWindowAggregate(count_tumble(2), [sum_("v")]),
    "over all": lambda: OverAggregate([sum_("v")], unbounded()),
    "over distinct": lambda: OverAggregate([sum_("v").distinct()], unbounded()),
    "over rows": lambda: OverAggregate([sum_("v")], rows(1)),
    "over distinct rows": lambda: OverAggregate([sum_("v").distinct()], rows(1)),
    "over a range": lambda: OverAggregate([sum_("v")], range_("5 ms")),
    "over an order": lambda: OverAggregate([sum_("v")], unbounded(), order_by=asc("v")),
    "match": lambda: Match("A B", {"A": pc.field("v") > 0}, {"total": sum_("v")}),
}
ROWS = [("a", 1, 1 * MS), ("a", 2, 2 * MS), ("b", HALF, 1 * MS), ("b", HALF + 1, 2 * MS), ("c", 3, 1 * MS)]


def run(operator: Any, batches: Sequence[Sequence[Any]], async_enabled: bool, **more: Any) -> list[Any]:
    settings: Any = {"event_time": "at", "changelog": False, "schema": SCHEMA, "kinds": None} | more
    schema, kinds = settings.pop("schema"), settings.pop("kinds")
    with OperatorHarness(operator, schema, ["k"], async_enabled=async_enabled, **settings) as harness:
        for given in batches:
            harness.push(list(given), kinds=kinds)
            harness.end_batch()
        harness.advance_watermark(1_000 * MS)
        harness.end_batch()
        return list(harness.output)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_sum_beyond_int64_names_its_key(name: str, async_enabled: bool) -> None:
    """The rows come together, and one by one, so that what is stored and what comes do not fit together."""
    for batches in ([ROWS], [[row] for row in ROWS]):
        with pytest.raises(OperatorError, match=IN_INT64):
            run(OPERATORS[name](), batches, async_enabled)


@pytest.mark.parametrize("name", [name for name in OPERATORS if "distinct" not in name])
def test_an_average_beyond_its_type_names_its_key(name: str, async_enabled: bool) -> None:
    """The sum fits decimal(38, 0), the average has four digits more behind the point."""
    operator = OPERATORS[name]()
    if name == "match":
        operator = Match("A B", {"A": pc.field("k") != ""}, {"mean": avg("v")})
    else:
        operator.aggregates = (avg("v"),)
    large = Decimal(10**36)
    given = [("a", Decimal(1), MS), ("b", large, MS), ("b", large + 1, 2 * MS), ("a", Decimal(2), 2 * MS)]
    with pytest.raises(OperatorError, match=r"key \('b',\): the average of column 'v' does not fit decimal"):
        run(operator, [given], async_enabled, schema=DECIMALS)


@pytest.mark.parametrize(
    "window", [tumble("10 ms"), session("5 ms")], ids=lambda window: type(window).__name__
)
def test_the_smallest_number_that_is_taken_back_names_its_key(window: Any, async_enabled: bool) -> None:
    lowest = -(1 << 63)
    given = [("a", 1, MS), ("a", 1, MS), ("b", lowest, MS), ("b", lowest, MS)]
    kinds = ["+I", "-D", "+I", "-D"]
    for operator in (WindowAggregate(window, [sum_("v")]), GroupAggregate([sum_("v")])):
        with pytest.raises(OperatorError, match=r"key \('b',\): the smallest int64 of column 'v' cannot be"):
            run(operator, [given], async_enabled, changelog=True, kinds=kinds)


def test_the_smallest_number_may_be_added_beside_others_that_are_taken_back(async_enabled: bool) -> None:
    lowest = -(1 << 63)
    given = [("a", 1, MS), ("a", 1, MS), ("b", lowest, MS)]
    found = run(GroupAggregate([sum_("v")]), [given], async_enabled, changelog=True, kinds=["+I", "-D", "+I"])
    assert found == [("+I", "b", lowest)]


def test_both_parts_of_an_incremental_aggregate_name_the_key(async_enabled: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("bucket", pa.int64()), ("v", pa.int64())])
    split = IncrementalGroupAggregate([sum_("v")], bucket="bucket")
    for buckets in ((0, 0), (0, 1)):
        with OperatorHarness(
            split, schema, ["k", "bucket"], changelog=False, async_enabled=async_enabled
        ) as first:
            first.push([("a", 0, 1), *(("b", bucket, HALF) for bucket in buckets)])
            with pytest.raises(
                OperatorError, match=r"key \('b'.*\): the sum of column 'v' does not fit int64"
            ):
                first.end_batch()
            between = split.bind(first._specs)
    with OperatorHarness(
        split.final(), between, ["k"], changelog=False, async_enabled=async_enabled
    ) as final:
        part = dict.fromkeys(between.names, 1) | {"k": "b"}
        column = next(name for name in between.names if name.startswith("sum"))
        final.push([tuple((part | {"k": "a"}).values()), *[tuple((part | {column: HALF}).values())] * 2])
        with pytest.raises(OperatorError, match=IN_INT64):
            final.end_batch()


# -- what fits is not refused for what is merged on the way --------------------------------------------------


def sums(found: list[Any]) -> list[tuple[Any, ...]]:
    assert {row[0] for row in found} == {"+I"}
    return sorted((row[1], row[3], row[4]) for row in found)


@pytest.mark.parametrize("aggregate", [sum_("v"), sum_("v").distinct()], ids=["all", "distinct"])
def test_rows_that_no_frame_has_together_need_not_fit(aggregate: Any, async_enabled: bool) -> None:
    """Two large rows of a key that are far from each other, and a key with frames of two rows."""
    far = 100 * MS
    given = [
        ("a", HALF, 1 * MS), ("a", HALF + 1, far), ("b", 1, 1 * MS), ("b", 2, 2 * MS), ("c", HALF, 1 * MS),
    ]  # fmt: skip
    found = run(OverAggregate([aggregate.alias("sum")], range_("5 ms")), [given], async_enabled)
    assert [(key, total) for key, _, total in sums([(*row[:3], row[3], row[4]) for row in found])] == [
        ("a", HALF), ("a", HALF + 1), ("b", 1), ("b", 3), ("c", HALF)
    ]  # fmt: skip


def test_sums_on_the_way_to_a_frame_need_not_fit(async_enabled: bool) -> None:
    """-2**62, 2**62 and 2**62: the last two do not fit, what is before them makes up for it, also if it is stored."""
    given = [("a", -HALF, 1), ("a", HALF, 2), ("a", HALF, 3), ("b", 5, 2), ("b", 6, 3)]
    expected = [("a", -HALF), ("a", 0), ("a", HALF), ("b", 5), ("b", 11)]
    for batches in ([given], [given[:1], given[1:]]):
        operator = OverAggregate([sum_("v").alias("sum")], unbounded())
        with OperatorHarness(
            operator, SCHEMA, ["k"], event_time="at", changelog=False, async_enabled=async_enabled
        ) as harness:
            for number, part in enumerate(batches):
                harness.push(part)
                harness.advance_watermark(10 if number + 1 == len(batches) else part[-1][2])
                harness.end_batch()
            found = sorted((row[3], row[1], row[4]) for row in harness.output)
        assert [(key, total) for _, key, total in sorted(found, key=lambda row: (row[1], row[0]))] == expected
