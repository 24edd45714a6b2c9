"""WindowJoin: six kinds, over windows of its own and over those that rows carry, insertions and changelogs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from operators.window.window_join import WindowJoin
from operators.window.windows import SlicedWindow, cumulate, hop, tumble
from tests.properties.examples import MICROSECOND, Entries, Example, nullable, small
from tests.properties.histories import Row, Table, both, changelogs, insertions, on_input
from tests.properties.models import growing, joined, sliding

SECOND = 1_000_000
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")
K, AT, VALUE, START, END = range(5)

_OWN = [("k", pa.int64()), ("at", MICROSECOND)]
_CARRIED = [pa.field("window_start", MICROSECOND), pa.field("window_end", MICROSECOND)]
LEFT, RIGHT = (pa.schema([*_OWN, (name, pa.int64())]) for name in ("v", "w"))
CARRYING_LEFT, CARRYING_RIGHT = (pa.schema([*schema, *_CARRIED]) for schema in (LEFT, RIGHT))

ROW = st.tuples(nullable(small(0, 1)), small(0, 20).map(lambda second: second * SECOND), nullable(small()))


def _carry(row: Row, size: int) -> Row:
    start = row[AT] // size * size
    return (*row, start, start + size)


CARRYING_ROW = st.builds(_carry, ROW, st.sampled_from([5 * SECOND, 10 * SECOND]))

Windows = Callable[[Row], list[tuple[int, int]]]


def of_time(windows: Callable[[int], list[tuple[int, int]]]) -> Windows:
    """Windows by the time of a row."""
    return lambda row: windows(row[AT])


def carried(row: Row) -> list[tuple[int, int]]:
    """The window that a row tells."""
    return [(row[START], row[END])]


WINDOWS: list[tuple[SlicedWindow | None, Windows]] = [
    (None, carried),
    (tumble("10 seconds"), of_time(sliding(10 * SECOND, 10 * SECOND))),
    (hop("9 seconds", "3 seconds"), of_time(sliding(9 * SECOND, 3 * SECOND))),
    (cumulate("12 seconds", "4 seconds"), of_time(growing(12 * SECOND, 4 * SECOND))),
]


def joined_in_windows(
    kind: Any,
    tables: list[Table],
    windows: Windows,
    shown: bool,
    width: int,
    conditional: bool,
    null_safe: bool,
) -> Table:
    """The join of the tables of each window; ``shown``: with the window's columns."""
    by_window: dict[tuple[int, int], list[Table]] = defaultdict(lambda: [Counter(), Counter()])
    for side, table in enumerate(tables):
        for row, times in table.items():
            for window in windows(row):
                by_window[window][side][row] += times
    out: Table = Counter()
    keys: Any = [lambda row: (row[K],)] * 2
    for (start, end), parts in by_window.items():
        found = joined(kind, parts, keys, (width, width), _condition if conditional else None, null_safe)
        for row, times in found.items():
            out[(*row, start, end, end - 1_000) if shown else row] += times
    return out


def _condition(left: Row, right: Row) -> bool:
    return left[VALUE] is not None and right[VALUE] is not None and left[VALUE] <= right[VALUE]


@st.composite
def window_joins(draw: st.DrawFn, kind: Any, changelog: bool) -> Example:
    """With and without a condition and keys of nulls that match."""
    window, windows = draw(st.sampled_from(WINDOWS))
    conditional, null_safe = draw(st.booleans()), draw(st.booleans())
    rows = ROW if window else CARRYING_ROW
    histories = changelogs if changelog else insertions
    return Example(
        make=lambda: WindowJoin(
            kind,
            pc.field("v") <= pc.field("w") if conditional else None,
            window=window,
            null_safe=null_safe,
        ),
        inputs=[LEFT, RIGHT] if window else [CARRYING_LEFT, CARRYING_RIGHT],
        key=[["k"], ["k"]],
        history=draw(both(histories(rows, 9), histories(rows, 9).map(lambda one: on_input(one, 1)))),
        expected=lambda tables: joined_in_windows(
            kind, tables, windows, window is not None, 3 if window else 5, conditional, null_safe
        ),
        settings={"event_time": ["at", "at"], "changelog": changelog},
        times=[AT, AT],
    )


WINDOW_JOINS: Entries = {
    f"{kind} window join over {'changelogs' if changelog else 'insertions'}": window_joins(kind, changelog)
    for kind in KINDS
    for changelog in (False, True)
}
