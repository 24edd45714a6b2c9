"""DueReader: each window's entries exactly once, in order of time, never much more than a part at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import KeyCodec
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.state.columnar import due_parts
from asyncstate.state.columnar.due_parts import DueReader
from asyncstate.state.columnar.state_columns import ColumnState, ColumnStateDescriptor
from operators.window.windows import SessionWindow, SlicedWindow, cumulate, hop, tumble
from tests.state.fakes import FakeContext, FakeSink

MS = 1_000
PART_ROWS = 8
PAGE_ROWS = 3
ROW_BYTES = 8
WINDOWS = [tumble(2 * MS), hop(6 * MS, 2 * MS), cumulate(6 * MS, 2 * MS), SessionWindow(MS)]

Entry = tuple[int, int]  # slice end, key


def stored(entries: set[Entry], context: FakeContext | None = None, name: str = "slices") -> ColumnState:
    context = context or FakeContext(FakeSink(), page_size=PAGE_ROWS)
    schema = pa.schema([("key", pa.int64())])
    state = context.get_state(ColumnStateDescriptor(name, schema, time_first=True))
    codec = KeyCodec([pa.int64()], ["k"], context.max_parallelism)
    rows = sorted(entries)
    keys = codec.group(
        [pa.array([key for _, key in rows], pa.int64())], np.array([end for end, _ in rows], np.int64)
    )
    state.put(keys, keys.columns)
    assert isinstance(state, ColumnState)
    return state


@pytest.fixture(params=["rows", "bytes"])
def part_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What a reader of ``PART_ROWS`` rows a part is given: these, or more where as many bytes fit in."""
    if request.param == "rows":
        return PART_ROWS
    monkeypatch.setattr(due_parts, "PART_BYTES", PART_ROWS * ROW_BYTES)
    return due_parts.PART_ROWS


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@given(
    st.sets(st.tuples(st.integers(-8, 12), st.integers(0, 12)), min_size=1, max_size=80),
    st.integers(-9, 12) | st.just(None),
    st.integers(-9, 14) | st.just(None),
)
def test_parts_have_every_entry_of_their_windows_by_time(
    part_rows: int,
    window: SlicedWindow | SessionWindow,
    numbers: set[Entry],
    low: int | None,
    high: int | None,
) -> None:
    entries = {(number * 2 * MS, key) for number, key in numbers}
    first = MIN_WATERMARK if low is None else low * 2 * MS
    last = MAX_WATERMARK if high is None else high * 2 * MS
    parts = list(DueReader(stored(entries), window, range(4), part_rows).parts(first - 1, last))
    ranges = [(part.first, part.last) for part in parts]
    assert all(first <= low <= high <= last for low, high in ranges)
    assert all(one == two or one[1] < two[0] for one, two in pairwise(ranges))
    found: dict[tuple[int, int], list[Entry]] = {}
    for part in parts:
        read = zip(part.entries.namespaces.tolist(), part.entries.columns[0].to_pylist(), strict=True)
        found.setdefault((part.first, part.last), []).extend(read)
        if part.first < part.last:
            assert part.entries.num_rows <= PART_ROWS
        assert part.entries.store_keys == sorted(part.entries.store_keys)
    for (low_end, high_end), read_entries in found.items():
        lowest = window.first_slice(low_end)
        assert sorted(read_entries) == sorted(one for one in entries if lowest <= one[0] <= high_end)
    for end, _ in entries:  # no window is passed over
        if first <= end <= last:
            assert any(low_end <= end <= high_end for low_end, high_end in ranges)


@pytest.mark.parametrize("limits", [{"part_rows": 30}, {"row_bytes": due_parts.PART_BYTES // 30}], ids=str)
def test_a_large_window_comes_in_parts_of_whole_key_groups(limits: dict[str, int]) -> None:
    entries = {(2 * MS, key) for key in range(100)}
    reader = DueReader(stored(entries), tumble(2 * MS), range(4), **limits)
    parts = list(reader.parts(MIN_WATERMARK, MAX_WATERMARK))
    assert len(parts) > 1
    assert sorted(key for part in parts for key in part.entries.columns[0].to_pylist()) == list(range(100))
    groups = [{key[:2] for key in part.entries.store_keys} for part in parts]
    assert sum(map(len, groups)) == len(set().union(*groups))


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.text)
@given(
    st.lists(
        st.sets(st.tuples(st.integers(-8, 12), st.integers(0, 12)), max_size=80), min_size=2, max_size=2
    ),
    st.integers(-9, 12) | st.just(None),
    st.integers(-9, 14) | st.just(None),
)
def test_two_states_are_cut_at_the_same_places(
    window: SlicedWindow | SessionWindow, numbers: list[set[Entry]], low: int | None, high: int | None
) -> None:
    first = MIN_WATERMARK if low is None else low * 2 * MS
    last = MAX_WATERMARK if high is None else high * 2 * MS
    context = FakeContext(FakeSink(), page_size=PAGE_ROWS)
    entries = [{(number * 2 * MS, key) for number, key in some} for some in numbers]
    left, right = (stored(some, context, name) for some, name in zip(entries, ("left", "right"), strict=True))
    parts = list(DueReader((left, right), window, range(4), PART_ROWS).parts(first - 1, last))
    ranges = [(part.first, part.last) for part in parts]
    assert all(first <= low <= high <= last for low, high in ranges)
    assert all(one == two or one[1] < two[0] for one, two in pairwise(ranges))
    groups: dict[tuple[int, int], list[list[bytes]]] = {}
    found: dict[tuple[int, int], list[set[Entry]]] = {}
    for part in parts:
        span = part.first, part.last
        for side, read in enumerate(part.ranges):
            pairs = zip(
                read.namespaces.tolist(), read.columns[0].to_pylist() if read.columns else [], strict=True
            )
            found.setdefault(span, [set(), set()])[side] |= set(pairs)
            if part.first < part.last:
                assert read.num_rows <= PART_ROWS
        own = sorted({key[:2] for read in part.ranges for key in read.store_keys})
        before = groups.setdefault(span, [])
        assert own
        assert not before or before[-1][-1] < own[0]  # no key group is in two parts of a window
        before.append(own)
    for (low_end, high_end), sides in found.items():
        lowest = window.first_slice(low_end)
        assert sides == [{one for one in some if lowest <= one[0] <= high_end} for some in entries]
    for end, _ in entries[0] | entries[1]:
        if first <= end <= last:
            assert any(low_end <= end <= high_end for low_end, high_end in ranges)


def test_a_state_does_not_run_ahead_of_a_larger_one() -> None:
    """The smaller one is read on only when the other has come so far."""
    context = FakeContext(FakeSink(), page_size=PAGE_ROWS)
    large, small = (
        stored({(2 * MS, key) for key in range(keys)}, context, name)
        for keys, name in ((200, "large"), (60, "small"))
    )
    parts = list(DueReader((large, small), tumble(2 * MS), range(4), 8).parts(MIN_WATERMARK, MAX_WATERMARK))
    assert len(parts) == 4  # a key group each
    assert [sum(part.ranges[side].num_rows for part in parts) for side in (0, 1)] == [200, 60]
