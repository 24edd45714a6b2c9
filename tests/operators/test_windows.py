"""Windows: durations, the grid of slices, assignment, merging of sessions, all against plain loops."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.durations import microseconds
from asyncstate.errors import SchemaError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from operators.window import windows
from operators.window.session_core import Spans, merge_sessions, sessions_at
from operators.window.slices import window_ends
from operators.window.windows import SlicedWindow, cumulate, due_until, hop, session, tumble

MS = 1_000
WINDOWS = st.one_of(
    st.builds(
        lambda size, offset: tumble(size * MS, offset % size * MS), st.integers(1, 20), st.integers(0, 99)
    ),
    st.builds(
        lambda step, times, offset: cumulate(step * times * MS, step * MS, offset % (step * times) * MS),
        st.integers(1, 9),
        st.integers(1, 5),
        st.integers(-40, 40),
    ),
    st.builds(
        lambda slide, times, offset: hop(slide * times * MS, slide * MS, offset % (slide * times) * MS),
        st.integers(1, 9),
        st.integers(1, 5),
        st.integers(-40, 40),
    ),
)
TIMES = st.lists(st.integers(-50 * MS, 50 * MS), min_size=1, max_size=15)


def windows_of(window: SlicedWindow, time: int) -> set[tuple[int, int]]:
    """Every (start, end) that holds ``time``, found by trying all there could be."""
    found = set()
    for start in range(-200 * MS, 200 * MS, MS):
        if window.kind == "cumulate":
            if (start - window.offset) % window.size == 0:
                ends = range(start + window.step, start + window.size + 1, window.step)
                found |= {(start, end) for end in ends if start <= time < end}
        elif (start - window.offset) % window.step == 0 and start <= time < start + window.size:
            found.add((start, start + window.size))
    return found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10 seconds", 10_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        (" 1 Day ", 86_400_000_000),
        ("250 milliseconds", 250_000),
        ("-2 seconds", -2_000_000),
        ("7microseconds", 7),
        (timedelta(seconds=1, microseconds=5), 1_000_005),
        (42, 42),
    ],
)
def test_durations_are_read_to_the_microsecond(given: str | timedelta | int, expected: int) -> None:
    assert microseconds(given, "tumble", "size") == expected


@pytest.mark.parametrize("wrong", ["", "10", "ten seconds", "10 sec onds", "1 month", 1.5, True, None])
def test_what_is_no_duration_is_refused_by_name(wrong: object) -> None:
    with pytest.raises(SchemaError, match="tumble: size is .*write it like '10 seconds'"):
        microseconds(wrong, "tumble", "size")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tumble(0), "tumble: size is 0; give at least one millisecond"),
        (lambda: tumble("999 microseconds"), "at least one millisecond"),
        (lambda: tumble("-1 second"), "at least one millisecond"),
        (lambda: tumble("1 second", "1 second"), "tumble: offset is '1 second'; it must be shorter"),
        (lambda: hop("10 seconds", "3 seconds"), "hop: size .* is not a multiple of slide"),
        (lambda: hop("10 seconds", "20 seconds"), "hop: size .* is not a multiple of slide"),
        (lambda: hop("10 seconds", 0), "hop: slide is 0"),
        (lambda: cumulate("10 seconds", "4 seconds"), "cumulate: max_size .* is not a multiple of step"),
        (lambda: session("0 seconds"), "session: gap is '0 seconds'"),
    ],
)
def test_wrong_windows_are_refused(make: object, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make()  # type: ignore[operator]


def test_equal_windows_are_equal_however_they_are_written() -> None:
    assert tumble("1 minute", "-10 seconds") == tumble(60_000_000, timedelta(seconds=50))
    assert hop("1 minute", "10 seconds", "25 seconds") == hop("1 minute", "10 seconds", "-5 seconds")
    assert cumulate("1 minute", "10 seconds", "10 seconds") != cumulate("1 minute", "10 seconds")


def test_a_window_ends_before_the_row_at_its_end() -> None:
    assert tumble("10 seconds").slice_of(9_999_999) == 10_000_000
    assert tumble("10 seconds").slice_of(10_000_000) == 20_000_000
    assert tumble("10 seconds").slice_of(-1) == 0
    assert tumble("10 seconds", "3 seconds").slice_of(2_999_999) == 3_000_000


def assigned(window: SlicedWindow, times: Any) -> tuple[Any, Any]:
    parts = [(times[:0], times[:0]), *window.assign(times)]
    rows, ends = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return rows, ends


def test_a_row_in_thousands_of_windows_does_not_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "ASSIGNED_ROWS", 5_000)
    times = np.arange(10_000, dtype=np.int64) * 1_000_000
    sizes = [len(rows) for rows, _ in hop("1 day", "1 minute").assign(times)]
    assert sum(sizes) == 1_440 * len(times)
    assert max(sizes) <= 5_000 + 1_440


@given(WINDOWS, TIMES)
def test_rows_are_in_the_windows_that_hold_their_time(window: SlicedWindow, times: list[int]) -> None:
    rows, ends = assigned(window, np.array(times, np.int64))
    starts = window.window_start(ends)
    assert np.array_equal(rows, np.sort(rows))
    for row, time in enumerate(times):
        mine = list(zip(starts[rows == row].tolist(), ends[rows == row].tolist(), strict=True))
        assert len(mine) == len(set(mine))
        assert set(mine) == windows_of(window, time)


@given(WINDOWS, TIMES)
def test_a_window_is_the_run_of_its_slices(window: SlicedWindow, times: list[int]) -> None:
    array = np.array(times, np.int64)
    slices = window.slice_of(array)
    assert bool(((slices - window.step <= array) & (array < slices)).all())
    rows, ends = assigned(window, array)
    assert bool((window.first_slice(ends) <= slices[rows]).all() and (slices[rows] <= ends).all())
    assert bool((window.last_window(slices[rows]) >= ends).all())
    for time, one in zip(times, slices.tolist(), strict=True):  # ints and arrays agree
        assert window.slice_of(time) == one
        assert max(end for _, end in windows_of(window, time)) == window.last_window(one)


@given(WINDOWS, TIMES, st.integers(-60 * MS, 60 * MS), st.integers(0, 60 * MS))
def test_due_ends_are_those_of_windows_with_slices(
    window: SlicedWindow, times: list[int], low: int, length: int
) -> None:
    first, last = window.next_end(low), window.previous_end(low + length)
    slices = np.unique(window.slice_of(np.array(times, np.int64)))
    slices = slices[(slices >= window.first_slice(first)) & (slices <= last)]
    if first > last or not len(slices):
        return
    expected = {
        end
        for one in slices.tolist()
        for end in range(one, window.last_window(one) + 1, window.step)
        if first <= end <= last
    }
    assert window_ends(slices, window, first, last).tolist() == sorted(expected)


@given(WINDOWS, st.integers(-60 * MS, 60 * MS))
def test_next_and_previous_end_are_on_the_grid(window: SlicedWindow, time: int) -> None:
    following, previous = window.next_end(time), window.previous_end(time)
    assert time <= following < time + window.step
    assert time - window.step < previous <= time
    assert window.slice_of(following - 1) == following
    assert window.slice_of(previous - 1) == previous


def test_the_final_watermark_is_within_int64() -> None:
    assert due_until(MAX_WATERMARK) == MAX_WATERMARK
    assert due_until(9_999_999) == 10_000_000
    assert due_until(MIN_WATERMARK) > MIN_WATERMARK


# -- sessions ---------------------------------------------------------------------------------------


def sessions_of(times: list[int], gap: int) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for time in sorted(times):
        if spans and time <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], time + gap))
        else:
            spans.append((time, time + gap))
    return spans


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=25)


@given(ROWS, ROWS, st.integers(1, 12))
def test_sessions_merge_as_in_a_loop(
    before: list[tuple[int, int]], rows: list[tuple[int, int]], gap: int
) -> None:
    stored = [
        (key, *span)
        for key in range(3)
        for span in sessions_of([time for k, time in before if k == key], gap)
    ]
    spans = Spans(*(np.array(column, np.int64) for column in zip(*stored, strict=True)))
    keys, times = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    merged = merge_sessions(spans, keys, times, gap)
    expected = [
        (key, *span)
        for key in range(3)
        for span in sessions_of([time for k, time in before + rows if k == key], gap)
    ]
    assert list(zip(*(column.tolist() for column in merged.spans), strict=True)) == expected
    items = [(key, start) for key, start, _ in stored] + rows
    for (key, time), number in zip(items, merged.session_of.tolist(), strict=True):
        assert expected[number][0] == key
        assert expected[number][1] <= time < expected[number][2]
    assert np.array_equal(merged.session_of[merged.order], np.sort(merged.session_of))
    assert np.array_equal(np.flatnonzero(np.diff(merged.session_of[merged.order], prepend=-1)), merged.firsts)


@given(ROWS, ROWS, st.integers(1, 12))
def test_sessions_are_found_between_their_first_and_last_row(
    rows: list[tuple[int, int]], asked: list[tuple[int, int]], gap: int
) -> None:
    keys, times = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    empty = np.empty(0, np.int64)
    spans = merge_sessions(Spans(empty, empty, empty), keys, times, gap).spans
    asked_keys, asked_times = (np.array(column, np.int64) for column in zip(*asked, strict=True))
    for (key, time), found in zip(
        asked, sessions_at(spans, asked_keys, asked_times, gap).tolist(), strict=True
    ):
        expected = [
            number
            for number, (k, start, end) in enumerate(zip(*(c.tolist() for c in spans), strict=True))
            if k == key and start <= time <= end - gap
        ]
        assert [found] == (expected or [-1])


def test_rows_a_gap_apart_are_one_session() -> None:
    empty = np.empty(0, np.int64)
    none = Spans(empty, empty, empty)
    together = merge_sessions(none, np.zeros(2, np.int64), np.array([0, 10]), 10)
    apart = merge_sessions(none, np.zeros(2, np.int64), np.array([0, 11]), 10)
    assert together.spans.ends.tolist() == [20]
    assert apart.spans.ends.tolist() == [10, 21]
