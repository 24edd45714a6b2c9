"""WindowAggregate over its four windows and IntervalJoin: rows with event times, none of them late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from operators import (
    GroupWindowAggregate,
    IntervalJoin,
    WindowAggregate,
    avg,
    count,
    cumulate,
    hop,
    max_,
    min_,
    session,
    sum_,
    tumble,
)
from tests.properties.examples import MICROSECOND, Entries, Example, floats, nullable, small
from tests.properties.histories import (
    Change,
    History,
    Record,
    Row,
    Table,
    both,
    changelogs,
    insertions,
    on_input,
)
from tests.properties.models import aggregate, close_by, growing, joined, sessions, sliding, windowed
from tests.properties.views import interval_rows, summed_logs, zeros_alike

SECOND = 1_000_000
READINGS = pa.schema([("sensor", pa.int64()), ("at", MICROSECOND), ("value", pa.int64())])
SENSOR, AT, VALUE = range(3)
READING = st.tuples(small(0, 1), small(0, 30).map(lambda second: second * SECOND), nullable(small(0, 3)))

_SUMS = [("count", None), ("count", VALUE), ("sum", VALUE), ("avg", VALUE)]
_EXTREMES = [("min", VALUE), ("max", VALUE)]
_MADE = {
    ("count", None): count().alias("rows"),
    ("count", VALUE): count("value"),
    ("sum", VALUE): sum_("value"),
    ("avg", VALUE): avg("value"),
    ("min", VALUE): min_("value"),
    ("max", VALUE): max_("value"),
}
Grouped = Callable[[Table], dict[tuple[Any, int, int], list[Row]]]


def _by(windows: Any) -> Grouped:
    return lambda table: windowed(table, lambda row: row[SENSOR], AT, windows)


WINDOWS_OF: dict[str, tuple[Any, Grouped]] = {
    "tumbling": (tumble("10 seconds"), _by(sliding(10 * SECOND, 10 * SECOND))),
    "hopping": (hop("9 seconds", "3 seconds"), _by(sliding(9 * SECOND, 3 * SECOND))),
    "cumulating": (cumulate("12 seconds", "4 seconds"), _by(growing(12 * SECOND, 4 * SECOND))),
    "session": (
        session("3 seconds"),
        lambda table: sessions(table, lambda row: row[SENSOR], AT, 3 * SECOND),
    ),
}


@st.composite
def window_aggregations(
    draw: st.DrawFn, name: str, changelog: bool, reading: st.SearchStrategy[Row] = READING
) -> Example:
    """Some aggregates over one kind of window."""
    window, groups = WINDOWS_OF[name]
    possible = _SUMS if changelog and name == "session" else [*_SUMS, *_EXTREMES]
    wanted = draw(st.lists(st.sampled_from(possible), max_size=3, unique=True))
    histories = insertions if not changelog else (readings_replaced if name == "session" else changelogs)

    def expected(tables: list[Table]) -> Table:
        return Table(
            (key, start, end, end - 1_000, *(aggregate(*one)(rows) for one in wanted))
            for (key, start, end), rows in groups(tables[0]).items()
        )

    return Example(
        make=lambda: WindowAggregate(window, [_MADE[one] for one in wanted]),
        inputs=[READINGS],
        key=[["sensor"]],
        history=draw(histories(reading)),
        expected=expected,
        settings={"event_time": "at", "changelog": changelog},
        times=[AT],
        view=summed_logs,
    )


def special_windows(name: str) -> st.SearchStrategy[Example]:
    """Over a changelog of values that are NaN, infinite, or a zero of either sign."""
    readings = st.tuples(READING, nullable(floats())).map(lambda two: (*two[0][:VALUE], two[1]))
    return window_aggregations(name, True, readings).map(
        lambda example: replace(
            example,
            inputs=[READINGS.set(VALUE, pa.field("value", pa.float64()))],
            view=zeros_alike(example.view),
        )
    )


@st.composite
def group_windows(draw: st.DrawFn, name: str, changelog: bool) -> Example:
    """The same, shown in every micro-batch in which a window changes."""
    example = draw(window_aggregations(name, changelog))

    def make() -> GroupWindowAggregate:
        plain = example.make()
        assert isinstance(plain, WindowAggregate)
        return GroupWindowAggregate(plain.window, plain.aggregates, early=0, allowed_lateness="1 second")

    return replace(example, make=make)


@st.composite
def readings_replaced(draw: st.DrawFn, rows: st.SearchStrategy[Row], size: int = 14) -> History:
    """Rows that come and get other values; one goes only while another one of its sensor and time is there.

    So sessions reach as far as the rows that are left, which a session that loses a row at its edge does not.
    """
    history, there = History(), []
    for _ in range(draw(st.integers(0, size))):
        old = draw(st.sampled_from([*there, None])) if there else None
        new = draw(rows)
        if old is None:
            records = (Record(0, "+I", new),)
            there.append(new)
        elif draw(st.booleans()) and sum(row[:VALUE] == old[:VALUE] for row in there) > 1:
            records = (Record(0, "-D", old),)
            there.remove(old)
        else:
            new = (*old[:VALUE], new[VALUE])
            records = (Record(0, "-U", old), Record(0, "+U", new))
            there[there.index(old)] = new
        history.changes.append(Change(records))
    return history


WINDOWS: Entries = {
    f"{name} windows over {'a changelog' if changelog else 'insertions'}": window_aggregations(
        name, changelog
    )
    for name in WINDOWS_OF
    for changelog in (False, True)
}

WINDOWS |= {
    f"{name} windows shown early over {'a changelog' if changelog else 'insertions'}": group_windows(
        name, changelog
    )
    for name in WINDOWS_OF
    for changelog in (False, True)
}

WINDOWS |= {f"special floats in {name} windows": special_windows(name) for name in WINDOWS_OF}

LEFT = pa.schema([("k", pa.int64()), ("at", MICROSECOND), ("v", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("at", MICROSECOND), ("w", pa.int64())])
_ROW = st.tuples(nullable(small(0, 1)), small(0, 20).map(lambda second: second * SECOND), nullable(small()))
_KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")


def _condition(left: Row, right: Row) -> bool:
    return left[2] is not None and right[2] is not None and left[2] <= right[2]


@st.composite
def interval_joins(draw: st.DrawFn, kind: Any) -> Example:
    """With and without a condition and keys of nulls that match, over an interval of up to eight seconds."""
    lower = draw(small(-4, 4)) * SECOND
    upper = lower + draw(small(0, 4)) * SECOND
    conditional, null_safe = draw(st.booleans()), draw(st.booleans())
    reach = close_by(1, 1, lower, upper)

    def expected(tables: list[Table]) -> Table:
        keys: Any = [lambda row: (row[0],)] * 2

        def meets(left: Row, right: Row) -> bool:
            return reach(left, right) and (not conditional or _condition(left, right))

        return joined(kind, tables, keys, (3, 3), meets, null_safe)

    return Example(
        make=lambda: IntervalJoin(
            kind,
            lower=lower,
            upper=upper,
            condition=pc.field("v") <= pc.field("w") if conditional else None,
            null_safe=null_safe,
        ),
        inputs=[LEFT, RIGHT],
        key=[["k"], ["k"]],
        history=draw(both(insertions(_ROW, 9), insertions(_ROW, 9).map(lambda one: on_input(one, 1)))),
        expected=expected,
        settings={"event_time": ["at", "at"], "changelog": False},
        times=[1, 1],
        view=interval_rows("at", {"left": -upper, "right": lower}, once=kind in ("semi", "anti")),
    )


INTERVAL_JOINS: Entries = {f"{kind} interval join": interval_joins(kind) for kind in _KINDS}
