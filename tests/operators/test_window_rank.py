"""WindowRank and WindowDeduplicate against a sort of each window's rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import WindowDeduplicate, WindowRank, asc, cumulate, desc, hop, session, tumble
from operators.window.windows import SlicedWindow

SECOND = 1_000_000
ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("id", pa.int64()), ("at", pa.timestamp("us"))])
GIVEN = pa.schema([*ROWS, ("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))])
WINDOWS = [
    tumble("4 seconds"),
    tumble("4 seconds", "1 second"),
    hop("4 seconds", "2 seconds"),
    cumulate("6 seconds", "2 seconds"),
]
Row = tuple[Any, ...]

drawn = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 19)), max_size=8), max_size=5
)


def windows_of(window: SlicedWindow, time: int) -> list[tuple[int, int]]:
    """Start and end of each window that has the time: all ends of the grid, tried one by one."""
    step = window.step
    ends = range(time - 2 * window.size - time % step + window.offset % step, time + 2 * window.size, step)
    spans = [(window.window_start(end), end) for end in ends]
    return [(start, end) for start, end in spans if start <= time < end]


@pytest.fixture(autouse=True)
def parts_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a bundle get their windows in many parts."""
    monkeypatch.setattr("operators.window.windows.ASSIGNED_ROWS", 3)


Spans = Callable[[Row], list[tuple[int, int]]]


def spans_of(window: SlicedWindow, apart: bool) -> Spans:
    """The windows of a row; ``apart``: rows with odd ids are in windows of their own, which begin a second earlier."""
    return lambda row: [
        (start - SECOND * (apart and row[2] % 2), end) for start, end in windows_of(window, row[3])
    ]


def final(rows: list[Row], spans: Spans) -> dict[tuple[int, int, int], list[Row]]:
    """The rows of each (end, key, start), the best first: by value, then by id."""
    found: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        for start, end in spans(row):
            found[end, row[0], start].append(row)
    return {at: sorted(group, key=lambda row: (-row[1], row[2])) for at, group in found.items()}


@given(
    batches=drawn,
    window=st.sampled_from(WINDOWS),
    carried=st.sampled_from([None, "equal starts", "other starts"]),
    n=st.integers(1, 3),
    offset=st.integers(0, 2),
    function=st.sampled_from(["row_number", "rank", "dense_rank"]),
    enabled=st.booleans(),
    size=st.sampled_from(["500000", "1", "3"]),
    restart=st.integers(0, 5),
)
def test_the_first_rows_of_each_window(
    batches: Any,
    window: SlicedWindow,
    carried: str | None,
    n: int,
    offset: int,
    function: Any,
    enabled: bool,
    size: str,
    restart: int,
) -> None:
    spans = spans_of(window, carried == "other starts")
    order = [desc("v"), "id"] if function == "row_number" else [desc("v")]
    operator = WindowRank(
        order, n, window=None if carried else window, offset=offset, function=function, rank_column="place"
    )
    harness = OperatorHarness(
        operator,
        GIVEN if carried else ROWS,
        ["k"],
        event_time="at",
        async_enabled=enabled,
        max_parallelism=4,
        options={"async-state.bundle-size": size},
    )
    everything: list[Row] = []
    out: list[Row] = []
    times = [[time * SECOND for _, _, time in batch] for batch in batches]
    for at, batch in enumerate(batches):
        if at == restart:
            again = harness.restore(harness.snapshot(), parallelism=3)
            harness.close()
            harness = again
        rows = [(k, v, 100 * at + number, time * SECOND) for number, (k, v, time) in enumerate(batch)]
        everything += rows
        if carried:
            rows = [(*row, *span) for row in rows for span in spans(row)]
        harness.push(rows)
        later = [time for batch_times in times[at + 1 :] for time in batch_times]
        harness.advance_watermark(min([*later, 40 * SECOND]) - 1)  # no row is late
        out += harness.end_batch()
    out += harness.finish()
    assert harness.state_entries() == {}
    harness.close()
    expected: Counter[Row] = Counter()
    for (end, _, start), group in final(everything, spans).items():
        values = [row[1] for row in group]
        for number, row in enumerate(group):
            place = {
                "row_number": number + 1,
                "rank": values.index(row[1]) + 1,
                "dense_rank": len(set(values[: number + 1])),
            }[function]
            if offset < place <= offset + n:
                more = (start, end) if carried else (start, end, end - 1_000)
                expected["+I", *row, *more, place] += 1
    assert Counter(out) == expected
    for key in range(3):  # over all keys the order is that of a partition
        ends = [(row[6], row[5]) for row in out if row[1] == key]
        assert ends == sorted(ends)


@given(batches=drawn, keep=st.sampled_from(["first", "last"]), enabled=st.booleans())
def test_the_first_and_last_row_of_each_window(batches: Any, keep: Any, enabled: bool) -> None:
    window = hop("4 seconds", "2 seconds")
    rows = [
        (k, v, 100 * at + number, time * SECOND)
        for at, batch in enumerate(batches)
        for number, (k, v, time) in enumerate(batch)
    ]
    with OperatorHarness(
        WindowDeduplicate(keep, window=window), ROWS, ["k"], event_time="at", async_enabled=enabled
    ) as harness:
        for at, _ in enumerate(batches):
            harness.push([row for row in rows if row[2] // 100 == at])
            assert harness.end_batch() == []
        out = harness.finish()
    best: dict[tuple[int, int], Row] = {}
    for row in rows:  # of equal times the first that came, or the last
        for start, end in windows_of(window, row[3]):
            shown = ("+I", *row, start, end, end - 1_000)
            known = best.setdefault((end, row[0]), shown)
            if row[3] < known[4] if keep == "first" else row[3] >= known[4]:
                best[end, row[0]] = shown
    assert Counter(out) == Counter(best.values())


def test_windows_that_end_together_and_start_apart_are_two(async_enabled: bool) -> None:
    """As behind sessions: each key and window has its first row, whichever of them came first."""
    rows = [
        (0, 5, 1, 0, 0, 9),
        (0, 3, 2, 0, 4, 9),
        (0, 4, 3, 0, 0, 9),
        (0, 8, 4, 0, 4, 9),
        (1, 1, 5, 0, 4, 9),
    ]
    make = WindowDeduplicate("last", order_by="v")
    with OperatorHarness(make, GIVEN, ["k"], event_time="at", async_enabled=async_enabled) as harness:
        for row in rows:  # each finds what the ones before it have left
            harness.push([row])
            assert harness.end_batch() == []
        first, second, other = rows[0], rows[3], rows[4]
        assert sorted(harness.finish()) == [("+I", *row) for row in (first, second, other)]
        assert harness.state_entries() == {}


def test_what_is_late_or_has_no_window(async_enabled: bool) -> None:
    rank = WindowRank("v", 5, window=hop("4 seconds", "2 seconds"))
    with OperatorHarness(rank, ROWS, ["k"], event_time="at", async_enabled=async_enabled) as harness:
        harness.advance_watermark(4 * SECOND)
        assert harness.end_batch() == []
        harness.push([(1, 0, 0, 1 * SECOND), (1, 1, 0, 3 * SECOND), (1, 2, 0, 2**63 - 5)])
        harness.advance_watermark(10 * SECOND)
        found = harness.end_batch()
        assert [(row[2], row[6]) for row in found] == [(1, 6 * SECOND)], "for the other window it is late"
        counted = harness.statistics()
        assert counted["counter.late_rows"] == 1
        assert counted["counter.event_times_out_of_range"] == 1
        assert harness.state_entries() == {}
    with OperatorHarness(WindowRank("v", 5), GIVEN, ["k"], async_enabled=async_enabled) as harness:
        harness.push([(1, 0, 0, 0, None, SECOND), (1, 0, 0, 0, 0, None), (1, 0, 0, 0, 0, SECOND)])
        assert harness.end_batch() == []
        assert harness.statistics()["counter.null_windows"] == 2
        assert len(harness.finish()) == 1


@pytest.mark.parametrize(
    ("make", "settings", "text"),
    [
        (lambda: WindowRank("v", 0), {}, "WindowRank: n is 0; give a number of at least 1"),
        (
            lambda: WindowRank("v", 1, window=session("1 second")),
            {},
            "create one with tumble, hop or cumulate",
        ),
        (lambda: WindowRank("w", 1, window=WINDOWS[0]), {}, "WindowRank: order_by: .*'w'"),
        (lambda: WindowRank("v", 1), {}, "has no column 'window_start'"),
        (lambda: WindowRank("v", 1, window=WINDOWS[0]), {"event_time": None}, "needs an event time"),
        (lambda: WindowRank("v", 1, window=WINDOWS[0]), {"changelog": True}, "does not accept"),
        (lambda: WindowRank(asc("v"), 1, window=WINDOWS[0], rank_column="v"), {}, "name of an output column"),
        (lambda: WindowDeduplicate("any"), {}, "WindowDeduplicate: keep is 'any'; choose 'first' or 'last'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(make: Callable[[], Any], settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        OperatorHarness(make(), ROWS, ["k"], **{"event_time": "at", **settings})
