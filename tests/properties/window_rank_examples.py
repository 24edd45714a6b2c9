"""WindowRank and WindowDeduplicate, over windows of their own and over those that rows carry."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st

from operators import WindowDeduplicate, WindowRank, desc
from tests.properties.examples import Entries, Example, small
from tests.properties.histories import Row, Table, insertions
from tests.properties.models import ranked
from tests.properties.window_join_examples import (
    AT,
    CARRYING_LEFT,
    CARRYING_ROW,
    LEFT,
    ROW,
    VALUE,
    WINDOWS,
    K,
    Windows,
)


def in_windows(table: Table, windows: Windows, own: bool) -> Table:
    """Each row once for each of its windows, with their columns behind it unless it carries them itself."""
    out: Table = Counter()
    for row, times in table.items():
        for start, end in windows(row):
            out[(*row, start, end, end - 1_000) if own else row] += times
    return out


def _place(row: Row) -> Any:
    return row[K], *row[3:5]  # start and end, which the row carries or which stand behind it


def _by_value(row: Row) -> Any:
    return row[VALUE] is None, -(row[VALUE] or 0)  # nulls come last, descending


def _total(row: Row) -> Any:
    return (*_by_value(row), row[AT])


@st.composite
def window_ranks(draw: st.DrawFn) -> Example:
    """Row numbers follow from a total order; the other functions may have ties."""
    window, windows = draw(st.sampled_from(WINDOWS))
    function = draw(st.sampled_from(["row_number", "rank", "dense_rank"]))
    total, numbered = function == "row_number", draw(st.booleans())
    offset, n = draw(small(0, 2)), draw(st.integers(1, 3))

    def expected(tables: list[Table]) -> Table:
        rows = in_windows(tables[0], windows, window is not None)
        by = _total if total else _by_value
        return ranked(rows, _place, by, lambda _: (offset, offset + n), function, numbered)

    return Example(
        make=lambda: WindowRank(
            [desc("v"), "at"] if total else [desc("v")],
            n,
            window=window,
            offset=offset,
            function=function,
            rank_column="place" if numbered else None,
        ),
        inputs=[LEFT if window else CARRYING_LEFT],
        key=[["k"]],
        history=draw(insertions(ROW if window else CARRYING_ROW, 12)),
        expected=expected,
        settings={"event_time": "at", "changelog": False},
        times=[AT],
    )


@st.composite
def window_deduplications(draw: st.DrawFn) -> Example:
    """Rows of a key and time are equal, so that it does not matter which of them came first."""
    window, windows = draw(st.sampled_from(WINDOWS))
    keep: Any = draw(st.sampled_from(["first", "last"]))
    rows = (ROW if window else CARRYING_ROW).map(lambda row: (row[K], row[AT], row[AT] % 7, *row[3:]))

    def expected(tables: list[Table]) -> Table:
        sign = 1 if keep == "first" else -1
        found = in_windows(tables[0], windows, window is not None)
        return ranked(found, _place, lambda row: sign * row[AT], lambda _: (0, 1), "row_number", False)

    return Example(
        make=lambda: WindowDeduplicate(keep, window=window),
        inputs=[LEFT if window else CARRYING_LEFT],
        key=[["k"]],
        history=draw(insertions(rows, 12)),
        expected=expected,
        settings={"event_time": "at", "changelog": False},
        times=[AT],
    )


WINDOW_RANKS: Entries = {
    "first rows of a window": window_ranks(),
    "first or last row of a window": window_deduplications(),
}
