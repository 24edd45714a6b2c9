"""GroupAggregate and Deduplicate: every aggregate over every kind of input, in one phase and in two."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from asyncstate import MapView
from asyncstate.functions import (
    AggregateFunction,
    BundledAggregateFunction,
    KeySegment,
    KeySegmentApplied,
    KeySegments,
    MutableRow,
    map_view,
)
from operators import (
    Aggregate,
    Deduplicate,
    GroupAggregate,
    OverAggregate,
    avg,
    bit_and,
    bit_or,
    bit_xor,
    count,
    max_,
    max_by,
    median,
    min_,
    min_by,
    mode,
    percentile_disc,
    range_,
    string_agg,
    sum_,
    udaf,
    unbounded,
    whole,
)
from operators.over.frames import Frame
from tests.local_aggregation import in_phases
from tests.properties.examples import MICROSECOND, Entries, Example, floats, nullable, small
from tests.properties.histories import (
    Change,
    History,
    Record,
    Row,
    Table,
    changelogs,
    insertions,
    keyed_changelogs,
)
from tests.properties.models import aggregate, chosen, grouped, values
from tests.properties.views import summed_logs, zeros_alike

SALES = pa.schema(
    [
        ("shop", pa.string()),
        ("amount", pa.int64()),
        ("price", pa.float64()),
        ("tax", pa.decimal128(10, 2)),
        ("item", pa.string()),
        ("big", pa.bool_()),
    ]
)
SHOP, AMOUNT, PRICE, TAX, ITEM, BIG = range(6)

# Sums of these numbers are exact in any order, as those of floats in general are not.
SALE = st.tuples(
    nullable(st.sampled_from("abc")),
    nullable(small(-3)),
    nullable(small(-8, 8).map(lambda eighths: eighths / 8)),
    nullable(small(-150, 150).map(lambda hundredths: Decimal(hundredths) / 100)),
    nullable(st.sampled_from(["", "ink", "tea"])),
    nullable(st.booleans()),
)

LOGGED_SALES, SEQUENCE = SALES.append(pa.field("seq", pa.int64())), len(SALES)
LOGGED_SALE = SALE.map(lambda sale: (*sale, 0))

_MAKERS: dict[str, Callable[[str], Aggregate]] = {
    "count": count,
    "sum": sum_,
    "avg": avg,
    "min": min_,
    "max": max_,
}


class OwnCount(AggregateFunction):
    """A count of values, with how often each is there in a view."""

    def create_accumulator(self) -> Any:
        return MutableRow(values=0, seen=MapView())

    def accumulate(self, accumulator: Any, value: Any) -> None:
        if value is not None:
            accumulator["values"] += 1
            accumulator["seen"][value] = (accumulator["seen"][value] or 0) + 1

    def retract(self, accumulator: Any, value: Any) -> None:
        if value is not None:
            accumulator["values"] -= 1
            left = accumulator["seen"][value] - 1
            if left:
                accumulator["seen"][value] = left
            else:
                accumulator["seen"].remove(value)

    def get_value(self, accumulator: Any) -> Any:
        return accumulator["values"]


class OwnSum(BundledAggregateFunction):
    """A sum, segment by segment."""

    def supports_retracting(self) -> bool:
        return True

    def bundled_accumulate_retract(self, segments: KeySegments) -> list[KeySegmentApplied]:
        return [self._applied(segment) for segment in segments]

    def _applied(self, segment: KeySegment) -> KeySegmentApplied:
        total, number = segment.accumulators[0] if segment.accumulators else (0, 0)
        before = total if number else None
        for row in segment.rows:
            if row[0] is not None:
                sign = 1 if row.is_accumulate else -1
                total, number = total + sign * row[0], number + sign
        return KeySegmentApplied([total, number], before, total if number else None)


_LONG = pa.int64()
_OWN: dict[str, Callable[[str], Aggregate]] = {
    "count": udaf(
        OwnCount,
        result_type=_LONG,
        accumulator_type=pa.schema([pa.field("values", _LONG), map_view("seen", _LONG, _LONG)]),
    ),
    "sum": udaf(OwnSum, result_type=_LONG, accumulator_type=pa.schema([("total", _LONG), ("number", _LONG)])),
}
_SUMS = ["count", "sum", "avg"]
_ALL = [*_SUMS, "min", "max"]
Chosen = Sequence[tuple[str, int | None, int | None, bool]]


def _chosen(functions: Sequence[str]) -> st.SearchStrategy[Chosen]:
    """Aggregates: function, column, condition; those of no column count rows."""
    numbers = st.sampled_from([AMOUNT, PRICE, TAX])
    texts = st.tuples(
        st.sampled_from([name for name in functions if name not in ("sum", "avg")]), st.just(ITEM)
    )
    pairs = st.one_of(st.tuples(st.sampled_from(list(functions)), numbers), texts, st.just(("count", None)))
    # Arrow's division of decimals may be wrong in the last digit, and Python's is not.
    pairs = pairs.filter(lambda one: one != ("avg", TAX))
    return _with_options(pairs, distinct=False)


def _with_options(pairs: st.SearchStrategy[Any], distinct: bool) -> st.SearchStrategy[Chosen]:
    """Aggregates with and without a condition; with ``distinct`` some are."""
    options = st.tuples(
        pairs, st.sampled_from([None, None, BIG]), st.booleans() if distinct else st.just(False)
    )
    wanted = options.map(lambda one: (*one[0], one[1], one[2] and one[0][1] is not None))
    return st.lists(wanted, min_size=1, max_size=4, unique=True)


_DISTINCT = _with_options(
    st.tuples(st.sampled_from(["count", "sum", "max"]), st.just(AMOUNT)) | st.just(("count", ITEM)),
    distinct=True,
)
_OF_ONES_OWN = _with_options(st.tuples(st.sampled_from(list(_OWN)), st.just(AMOUNT)), distinct=True)


def _made(
    one: tuple[str, int | None, int | None, bool], number: int, makers: dict[str, Callable[[str], Aggregate]]
) -> Aggregate:
    function, column, condition, distinct = one
    made = count() if column is None else makers[function](SALES.names[column])
    made = made if condition is None else made.where(SALES.names[condition])
    return (made.distinct() if distinct else made).alias(f"out{number}")


@st.composite
def aggregations(
    draw: st.DrawFn,
    histories: Callable[[st.SearchStrategy[Row]], st.SearchStrategy[History]],
    wanted: st.SearchStrategy[Chosen],
    changelog: bool,
    keyed: bool = True,
    two_phases: bool = False,
    makers: dict[str, Callable[[str], Aggregate]] = _MAKERS,
    emit: Any = "net",
    empty_row: bool = False,
) -> Example:
    """A GroupAggregate; without aggregates it is DISTINCT."""
    wanted = draw(wanted)
    key = [SHOP] if keyed else []
    return Example(
        make=lambda: in_phases(
            GroupAggregate(
                [_made(one, number, makers) for number, one in enumerate(wanted)],
                emit=emit,
                empty_row=empty_row,
            ),
            two_phases,
        ),
        inputs=[SALES],
        key=[["shop"] if keyed else []],
        history=draw(histories(SALE)),
        expected=lambda tables: grouped(
            tables[0], key, [aggregate(*one) for one in wanted], always=empty_row
        ),
        settings={"changelog": changelog},
        view=summed_logs,
        output_key=lambda row: row[: len(key)],
    )


_OF_VALUES: dict[str, tuple[Callable[[], Aggregate], Callable[[list[Row]], Any]]] = {
    "median": (lambda: median("price"), lambda rows: _median(values(rows, PRICE))),
    "third": (
        lambda: percentile_disc("item", 0.3),
        lambda rows: _discrete(sorted(values(rows, ITEM)), 3),
    ),
    "mode": (lambda: mode("amount"), lambda rows: _mode(values(rows, AMOUNT))),
    "max_by": (lambda: max_by("item", "amount"), lambda rows: _extreme_by(rows, max)),
    "min_by": (lambda: min_by("item", "amount"), lambda rows: _extreme_by(rows, min)),
    "bit_and": (lambda: bit_and("amount"), lambda rows: _folded(int.__and__, values(rows, AMOUNT))),
    "bit_or": (lambda: bit_or("amount"), lambda rows: _folded(int.__or__, values(rows, AMOUNT))),
    "bit_xor": (lambda: bit_xor("amount"), lambda rows: _folded(int.__xor__, values(rows, AMOUNT))),
    "string_agg": (
        lambda: string_agg("item", order_by="item"),
        lambda rows: ",".join(sorted(values(rows, ITEM))) if values(rows, ITEM) else None,
    ),
    "pairs": (
        lambda: count("amount", "item").distinct(),
        lambda rows: len({(row[AMOUNT], row[ITEM]) for row in rows if None not in (row[AMOUNT], row[ITEM])}),
    ),
}


def _median(found: list[float]) -> float | None:
    return statistics.median(found) if found else None


def _discrete(found: list[Any], tenths: int) -> Any:
    return found[-(-tenths * len(found) // 10) - 1] if found else None


def _mode(found: list[Any]) -> Any:
    counts = Counter(found)
    return min(counts, key=lambda one: (-counts[one], one)) if counts else None


def _extreme_by(rows: list[Row], choose: Callable[..., Any]) -> Any:
    by = choose(values(rows, AMOUNT), default=None)
    items = [row[ITEM] for row in rows if row[AMOUNT] is not None and row[AMOUNT] == by]
    return max((item for item in items if item is not None), default=None)


def _folded(join: Callable[[int, int], int], found: list[int]) -> int | None:
    return functools.reduce(join, found) if found else None


@st.composite
def aggregations_of_values(
    draw: st.DrawFn,
    histories: Callable[[st.SearchStrategy[Row]], st.SearchStrategy[History]],
    changelog: bool,
    empty_row: bool = False,
) -> Example:
    """A GroupAggregate of aggregates that keep values; with ``empty_row`` without a key."""
    wanted = draw(st.lists(st.sampled_from(sorted(_OF_VALUES)), min_size=1, max_size=4, unique=True))
    key = [] if empty_row else [SHOP]
    return Example(
        make=lambda: GroupAggregate(
            [_OF_VALUES[name][0]().alias(name) for name in wanted], empty_row=empty_row
        ),
        inputs=[SALES],
        key=[[] if empty_row else ["shop"]],
        history=draw(histories(SALE)),
        expected=lambda tables: grouped(
            tables[0], key, [_OF_VALUES[name][1] for name in wanted], always=empty_row
        ),
        settings={"changelog": changelog},
        view=summed_logs,
        output_key=lambda row: row[: len(key)],
    )


def _place(row: Row) -> tuple[bool, int]:
    """The place of a row in the order of amounts; null is the smallest."""
    return row[AMOUNT] is not None, row[AMOUNT] or 0


_FRAMES: dict[str, tuple[Frame, Callable[[Row, Row], bool]]] = {
    "in any order": (unbounded(), lambda row, other: _place(other) <= _place(row)),
    "of whole keys": (whole(), lambda row, other: True),
    "of following rows": (range_(0, None), lambda row, other: _place(other) >= _place(row)),
}
"""Frames of rows by their amount, and whether another row of the shop is in that of a row."""


def _over(
    rows_: list[Row],
    inside: Callable[[Row, Row], bool],
    frame_sums: Callable[[list[Row]], tuple[Any, ...]],
) -> list[Row]:
    """Each row with the aggregates of those of its shop that are in its frame."""
    return [
        (*row, *frame_sums([other for other in rows_ if other[SHOP] == row[SHOP] and inside(row, other)]))
        for row in rows_
    ]


@st.composite
def overs(
    draw: st.DrawFn,
    histories: Callable[[st.SearchStrategy[Row]], st.SearchStrategy[History]],
    changelog: bool,
    frame: str = "in any order",
    in_sequence: bool = False,
) -> Example:
    """An OverAggregate in an order of its own, in which equal amounts count for each other."""
    count_of, highest = aggregate("count", ITEM), aggregate("max", PRICE)
    made, inside = _FRAMES[frame]

    def expected(tables: list[Table]) -> Table:
        rows_ = list(tables[0].elements())
        return Counter(_over(rows_, inside, lambda found: (len(found), count_of(found), highest(found))))

    return Example(
        make=lambda: OverAggregate(
            [count().alias("n"), count("item").alias("items"), max_("price").alias("highest")],
            made,
            order_by="amount",
        ),
        inputs=[LOGGED_SALES if in_sequence else SALES],
        key=[["shop"]],
        history=draw(histories(LOGGED_SALE if in_sequence else SALE)),
        expected=expected,
        settings={"changelog": changelog, "sequence": "seq" if in_sequence else None},
        output_key=lambda row: row[:1],
    )


EVENTS = pa.schema([("user", pa.int64()), ("at", MICROSECOND), ("what", pa.int64()), ("seq", pa.int64())])


@st.composite
def deduplications(draw: st.DrawFn, keep: Any, time: Any, in_sequence: bool = False) -> Example:
    """A Deduplicate; no two rows of a key are of one time, and by arrival they keep their order or have a sequence."""
    rows = draw(
        st.lists(
            st.tuples(small(0, 2), small(0, 9), small()), max_size=12, unique_by=lambda row: (row[0], row[1])
        )
    )
    rows = [(*row, number) for number, row in enumerate(rows)]
    by_arrival = time == "processing"

    def order(row: Row) -> Any:
        return row[3] if by_arrival else row[1]

    def expected(tables: list[Table]) -> Table:
        return chosen(tables[0], lambda row: row[0], order, keep == "last")

    return Example(
        make=lambda: Deduplicate(keep, time),
        inputs=[EVENTS],
        key=[["user"]],
        history=History([Change((Record(0, "+I", row),), ("user", row[0])) for row in rows]),
        expected=expected,
        settings={"event_time": "at", "changelog": False, "sequence": "seq" if in_sequence else None},
        shuffle="within keys" if by_arrival and not in_sequence else "any",
        output_key=lambda row: row[0],
    )


def _special_sales(sale: Row, price: float | None) -> Row:
    return (*sale[:PRICE], price, *sale[PRICE + 1 :])


_SPECIAL = st.builds(_special_sales, SALE, nullable(floats()))
_OF_PRICES = _with_options(st.tuples(st.sampled_from(_ALL), st.just(PRICE)), distinct=True)
_SUMS_OF_PRICES = _with_options(st.tuples(st.sampled_from(_SUMS), st.just(PRICE)), distinct=False)


def special(
    histories: Callable[[st.SearchStrategy[Row]], st.SearchStrategy[History]], **settings: Any
) -> st.SearchStrategy[Example]:
    """Prices that are NaN, infinite, or a zero of either sign."""
    made = aggregations(lambda _: histories(_SPECIAL), **settings)
    return made.map(lambda example: replace(example, view=zeros_alike(example.view)))


_NOTHING: st.SearchStrategy[Chosen] = st.just([])
_EXTREMES = ["min", "max"]

AGGREGATES: Entries = {
    "aggregates of insertions": aggregations(insertions, _chosen(_ALL), False),
    "sums of a changelog": aggregations(changelogs, _chosen(_SUMS), True),
    "minima and maxima of a changelog": aggregations(changelogs, _chosen(_EXTREMES), True),
    "all aggregates of a changelog": aggregations(changelogs, _chosen(_ALL), True),
    "aggregates without a key": aggregations(changelogs, _chosen(_ALL), True, keyed=False),
    "aggregates with an empty row": aggregations(
        changelogs, _chosen(_ALL), True, keyed=False, empty_row=True
    ),
    "an empty row in two phases": aggregations(
        insertions, _chosen(_ALL), False, keyed=False, empty_row=True, two_phases=True
    ),
    "values of insertions": aggregations_of_values(insertions, False),
    "values of a changelog": aggregations_of_values(changelogs, True),
    "values with an empty row": aggregations_of_values(changelogs, True, empty_row=True),
    "distinct insertions": aggregations(insertions, _NOTHING, False),
    "distinct rows of a changelog": aggregations(changelogs, _NOTHING, True),
    "aggregates of insertions in two phases": aggregations(insertions, _chosen(_ALL), False, two_phases=True),
    "sums of a changelog in two phases": aggregations(changelogs, _chosen(_SUMS), True, two_phases=True),
    "distinct values of insertions": aggregations(insertions, _DISTINCT, False),
    "distinct values of a changelog": aggregations(changelogs, _DISTINCT, True),
    "special floats of insertions": special(insertions, wanted=_OF_PRICES, changelog=False),
    "special floats of a changelog": special(changelogs, wanted=_OF_PRICES, changelog=True),
    "special floats in two phases": special(
        changelogs, wanted=_SUMS_OF_PRICES, changelog=True, two_phases=True
    ),
    "functions over insertions": aggregations(insertions, _OF_ONES_OWN, False, makers=_OWN),
    "functions over a changelog": aggregations(changelogs, _OF_ONES_OWN, True, makers=_OWN),
}

OVERS: Entries = {
    f"over {what}, {frame}": overs(histories, changelog, frame)
    for what, histories, changelog in (("insertions", insertions, False), ("a changelog", changelogs, True))
    for frame in _FRAMES
} | {
    "over a changelog in sequence": overs(
        lambda rows: keyed_changelogs(rows, lambda sale: (sale[SHOP], sale[ITEM]), sequence_at=SEQUENCE),
        True,
        in_sequence=True,
    )
}

DEDUPLICATIONS: Entries = {
    **{f"{keep} by sequence": deduplications(keep, "processing", True) for keep in ("first", "last")},
    **{
        f"{keep} by {time} time": deduplications(keep, time)
        for keep in ("first", "last")
        for time in ("event", "processing")
    },
}
