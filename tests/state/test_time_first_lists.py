"""ListColumnState by ranges of time against a dict of lists: ranges have whole lists, removed ranges leave nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.codec import KeyBatch, KeyCodec
from asyncstate.errors import CodecError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.state.columnar.list_blocks import TAIL_ROWS
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor
from tests.examples import at_most
from tests.state.fakes import FakeContext, FakeSink

KEYS = KeyCodec([pa.int64()], ["k"], 4)
SCHEMA = pa.schema([("number", pa.int64()), ("text", pa.string())])
TIMES = (MIN_WATERMARK, -7, 0, 5, 1_000_000, MAX_WATERMARK)

Lists = dict[tuple[int, int], list[int]]  # by time and key


@pytest.fixture(autouse=True, scope="module")
def each_page_is_decoded_alone() -> Iterator[None]:
    """So that few lists lie in many parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncstate.state.stored_lists._TOGETHER_BYTES", 1)
        yield


def opened(page_size: int) -> tuple[FakeSink, ListColumnState]:
    """A state between two others, which its ranges must not reach into."""
    sink = FakeSink()
    context = FakeContext(sink, page_size=page_size)
    before, state, behind = (
        context.get_state(ListColumnStateDescriptor(name, SCHEMA, time_first=True))
        for name in ("before", "lists", "behind")
    )
    for neighbour in (before, behind):
        append(neighbour, {(time, key): [0] for time in (MIN_WATERMARK, MAX_WATERMARK) for key in range(8)})
    return sink, state


def append(state: ListColumnState, lists: Lists) -> None:
    pairs = [(time, key, number) for (time, key), numbers in lists.items() for number in numbers]
    keys = KEYS.group(
        [pa.array([key for _, key, _ in pairs], pa.int64())], np.array([time for time, *_ in pairs], np.int64)
    )
    order = np.argsort(keys.inverse, kind="stable")
    numbers = pa.array([number for *_, number in pairs], pa.int64()).take(pa.array(order))
    state.append(keys, [numbers, numbers.cast(pa.string())], keys.inverse[order])


def read(state: ListColumnState, until: int, start: int) -> Lists:
    """What the range has, checked for its order."""
    found: Lists = {}
    groups = []
    for part in state.up_to(until, start):
        keys, (numbers, texts) = (
            part.key_columns[0].to_pylist(),
            (column.to_pylist() for column in part.columns),
        )
        assert texts == [str(number) for number in numbers]
        assert part.num_rows == len(numbers)
        for store_key, time, key, start_at, count in zip(
            part.store_keys,
            part.namespaces.tolist(),
            keys,
            part.starts.tolist(),
            part.counts.tolist(),
            strict=True,
        ):
            groups.append((store_key[:2], time, key))
            found.setdefault((time, key), []).extend(numbers[start_at : start_at + count])
    assert groups == sorted(groups)
    return found


steps = st.lists(
    st.dictionaries(
        st.tuples(st.sampled_from(TIMES), st.integers(0, 6)),
        st.sampled_from([1, 2, TAIL_ROWS + 1, 200]),
        max_size=6,
    ),
    max_size=4,
)


@settings(max_examples=at_most(40), deadline=None)
@given(steps, st.sampled_from(TIMES), st.sampled_from(TIMES), st.sampled_from([1, 3, 100]), st.booleans())
def test_ranges_have_whole_lists_and_nothing_of_what_was_removed(
    appended: list[dict[tuple[int, int], int]], start: int, until: int, page_size: int, as_read: bool
) -> None:
    sink, state = opened(page_size)
    neighbours = sink.contents()
    model: Lists = {}
    number = 0
    for sizes in appended:
        new = {}
        for place, size in sizes.items():
            new[place] = list(range(number, number + size))
            number += size
        append(state, new)
        model = {**model, **{place: model.get(place, []) + numbers for place, numbers in new.items()}}
    chosen = {place: numbers for place, numbers in model.items() if start <= place[0] <= until}
    assert read(state, until, start) == chosen
    if as_read:
        for part in state.up_to(until, start):
            state.remove_entries(part.entry_keys())
    else:
        state.remove_up_to(until, start)
    rest = {place: numbers for place, numbers in model.items() if place not in chosen}
    assert read(state, MAX_WATERMARK, MIN_WATERMARK) == rest
    state.remove_up_to(MAX_WATERMARK)
    assert sink.contents() == neighbours


def test_a_missing_chunk_is_an_error() -> None:
    sink, state = opened(100)
    append(state, {(5, 1): list(range(TAIL_ROWS + 1))})
    keys = KEYS.group([pa.array([1])], np.array([5], np.int64))
    assert isinstance(keys, KeyBatch)
    sink.delete(keys.store_keys(9)[0] + bytes(4))
    with pytest.raises(CodecError, match="state 'lists' of operator 'op': a chunk of a list is missing"):
        list(state.up_to(5))
