"""GroupAggregate and Deduplicate: every aggregate over every kind of input, in one phase and in two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from operators import Aggregate, Deduplicate, GroupAggregate, avg, count, max_, min_, sum_
from tests.properties.examples import MICROSECOND, Entries, Example, nullable, small
from tests.properties.histories import Change, History, Record, Row, Table, changelogs, insertions
from tests.properties.models import aggregate, chosen, grouped
from tests.properties.views import summed_logs

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

_MAKERS: dict[str, Callable[[str], Aggregate]] = {
    "count": count,
    "sum": sum_,
    "avg": avg,
    "min": min_,
    "max": max_,
}
_SUMS = ["count", "sum", "avg"]
_ALL = [*_SUMS, "min", "max"]
Chosen = Sequence[tuple[str, int | None, int | None]]


def _chosen(functions: Sequence[str]) -> st.SearchStrategy[Chosen]:
    """Aggregates: function, column, condition; those of no column count rows."""
    numbers = st.sampled_from([AMOUNT, PRICE, TAX])
    texts = st.tuples(
        st.sampled_from([name for name in functions if name not in ("sum", "avg")]), st.just(ITEM)
    )
    pairs = st.one_of(st.tuples(st.sampled_from(list(functions)), numbers), texts, st.just(("count", None)))
    # Arrow's division of decimals may be wrong in the last digit, and Python's is not.
    pairs = pairs.filter(lambda one: one != ("avg", TAX))
    with_condition = st.tuples(pairs, st.sampled_from([None, None, BIG])).map(lambda one: (*one[0], one[1]))
    return st.lists(with_condition, min_size=1, max_size=4, unique=True)


def _made(one: tuple[str, int | None, int | None], number: int) -> Aggregate:
    function, column, condition = one
    made = count() if column is None else _MAKERS[function](SALES.names[column])
    made = made if condition is None else made.where(SALES.names[condition])
    return made.alias(f"out{number}")


@st.composite
def aggregations(
    draw: st.DrawFn,
    histories: Callable[[st.SearchStrategy[Row]], st.SearchStrategy[History]],
    functions: Sequence[str],
    changelog: bool,
    keyed: bool = True,
    two_phases: bool = False,
) -> Example:
    """A GroupAggregate; without ``functions`` it is DISTINCT."""
    wanted = draw(_chosen(functions)) if functions else []
    key = [SHOP] if keyed else []
    return Example(
        make=lambda: GroupAggregate([_made(one, number) for number, one in enumerate(wanted)]),
        inputs=[SALES],
        key=[["shop"] if keyed else []],
        history=draw(histories(SALE)),
        expected=lambda tables: grouped(tables[0], key, [aggregate(*one) for one in wanted]),
        settings={
            "changelog": changelog,
            "options": {"async-state.local-aggregation": str(two_phases).lower()},
        },
        view=summed_logs,
        output_key=lambda row: row[: len(key)],
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


AGGREGATES: Entries = {
    "aggregates of insertions": aggregations(insertions, _ALL, False),
    "sums of a changelog": aggregations(changelogs, _SUMS, True),
    "minima and maxima of a changelog": aggregations(changelogs, ["min", "max"], True),
    "all aggregates of a changelog": aggregations(changelogs, _ALL, True),
    "aggregates without a key": aggregations(changelogs, _ALL, True, keyed=False),
    "distinct insertions": aggregations(insertions, [], False),
    "distinct rows of a changelog": aggregations(changelogs, [], True),
    "aggregates of insertions in two phases": aggregations(insertions, _ALL, False, two_phases=True),
    "sums of a changelog in two phases": aggregations(changelogs, _SUMS, True, two_phases=True),
}

DEDUPLICATIONS: Entries = {
    **{f"{keep} by sequence": deduplications(keep, "processing", True) for keep in ("first", "last")},
    **{
        f"{keep} by {time} time": deduplications(keep, time)
        for keep in ("first", "last")
        for time in ("event", "processing")
    },
}
