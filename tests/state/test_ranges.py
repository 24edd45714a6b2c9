"""Reading everything up to a time against a sorted list: by key group, and merged by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstate.codec import encode_namespace
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.state.ranges import pages_by_group, pages_by_time, up_to_time
from tests.state.fakes import FakeSink

PREFIX = b"\x08"
NEIGHBOURS = (b"\x07", b"\x09")
GROUPS = range(1, 9)
TIMES = st.sampled_from((MIN_WATERMARK, MIN_WATERMARK + 1, -7, 0, 5, MAX_WATERMARK - 1, MAX_WATERMARK))

Stored = tuple[int, int, bytes]  # key group, time, the rest of the key

others = st.one_of(st.just(set(GROUPS)), st.sets(st.sampled_from(GROUPS)))
"""Key groups in which other states have entries."""
entries = st.sets(st.tuples(st.sampled_from(GROUPS), TIMES, st.sampled_from((b"", b"a", b"\xff\xff"))))


def store_key(group: int, time: int, rest: bytes, prefix: bytes = PREFIX) -> bytes:
    return group.to_bytes(2, "big") + prefix + encode_namespace(time) + rest


def by_time(entry: tuple[bytes, bytes]) -> bytes:
    key = entry[0]
    return key[3:11] + key[:2] + key[11:]


@given(entries, others, TIMES, TIMES, st.integers(1, 4), st.integers(1, 3))
def test_both_ways_give_what_is_due_and_nothing_of_others(
    stored: set[Stored], used: set[int], start: int, until: int, page_size: int, range_page_size: int
) -> None:
    sink = FakeSink()
    for entry in stored:
        sink.put(store_key(*entry), b"mine")
    for group in (GROUPS.start - 1, *used, GROUPS.stop):
        for prefix in NEIGHBOURS if group in GROUPS else (*NEIGHBOURS, PREFIX):
            for time in (MIN_WATERMARK, MAX_WATERMARK):
                sink.put(store_key(group, time, b"\xff", prefix), b"of another")
    ranges = up_to_time(PREFIX, GROUPS, until, start)
    assert len(ranges) == len(GROUPS)
    due = [entry for entry in stored if start <= entry[1] <= until]

    pages = list(pages_by_group(sink, ranges, page_size))
    assert [key for page in pages for key, _ in page] == sorted(store_key(*entry) for entry in due)
    assert all(page_size <= len(page) < 2 * page_size for page in pages[:-1])

    pages = list(pages_by_time(sink, ranges, page_size, by_time, range_page_size))
    in_order = sorted(due, key=lambda entry: (entry[1], entry[0], entry[2]))
    assert [key for page in pages for key, _ in page] == [store_key(*entry) for entry in in_order]
    assert all(len(page) == page_size for page in pages[:-1])


@given(entries, st.integers(1, 4))
def test_entries_may_be_removed_and_written_between_pages(stored: set[Stored], page_size: int) -> None:
    """Removed ones that have been read, and ones before the position that a range has reached."""
    sink = FakeSink()
    for entry in stored:
        sink.put(store_key(*entry), b"")
    ranges = up_to_time(PREFIX, GROUPS, MAX_WATERMARK)
    found: list[bytes] = []
    for page in pages_by_time(sink, ranges, page_size, by_time, page_size):
        for key, _ in page:
            found.append(key)
            sink.delete(key)
            sink.put(store_key(GROUPS.start, MIN_WATERMARK, b"\x00"), b"behind")
    ahead = store_key(GROUPS.start, MIN_WATERMARK, b"\x00")
    assert sorted(key for key in found if key != ahead) == sorted(store_key(*entry) for entry in stored)


@pytest.mark.parametrize(
    ("in_group", "in_others", "scans_max"), [(60, False, 5), (None, False, 2), (60, True, 129)]
)
def test_groups_without_entries_cost_no_scan_unless_other_states_have_entries(
    in_group: int | None, in_others: bool, scans_max: int
) -> None:
    sink, groups = FakeSink(), range(128)
    if in_group is not None:
        sink.put(store_key(in_group, 0, b""), b"")
    for group in groups if in_others else ():
        sink.put(store_key(group, 0, b"", NEIGHBOURS[0]), b"")
    pages = list(pages_by_group(sink, up_to_time(PREFIX, groups, 7), 10))
    assert sum(map(len, pages)) == (in_group is not None)
    assert sink.scans <= scans_max
