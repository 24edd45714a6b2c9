"""Lists that are put together from a scan, against the lists that were written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.codec.value_columns import LARGE_BINARY, binary_rows
from asyncstate.errors import CodecError
from asyncstate.state import stored_lists
from asyncstate.state.columnar.list_blocks import NewBlocks, empty_heads, read_rows
from asyncstate.state.keyed.chunks import COUNT_BYTES, append_all, chunk_key, elements, framed
from asyncstate.state.stored_lists import (
    BLOCKS,
    ELEMENTS,
    block_lists,
    element_lists,
    list_pieces,
    rows_of,
)
from asyncstate.state_backend import Page

Lists = dict[bytes, list[bytes]]
Stored = dict[bytes, bytes]


@pytest.fixture(scope="module", autouse=True)
def _a_page_at_a_time() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_lists, "_TOGETHER_BYTES", 1)
        yield


def _row(key: bytes, number: int) -> bytes:
    return key + number.to_bytes(4, "big") + b"x" * 60


# Keys are prefix-free, as a key codec's are; 70 rows are sealed, 2,500 are three chunks of rows.
LISTS = st.dictionaries(
    st.sampled_from([b"a\0", b"b\0", b"b\1\0", b"c\0", b"d\0"]),
    st.sampled_from([1, 60, 70, 2_500]),
    max_size=4,
).map(lambda sizes: {key: [_row(key, number) for number in range(size)] for key, size in sizes.items()})
PAGE_SIZES = st.sampled_from([1, 2, 3, 5, 100])


def as_blocks(lists: Lists) -> Stored:
    stored = {}
    for key, rows in lists.items():
        new = NewBlocks(empty_heads([key]), np.array([len(rows)]), pa.array(rows, LARGE_BINARY), True)
        stored |= {key: new.heads[0], **dict(zip(new.chunk_keys, new.chunks, strict=True))}
    return dict(sorted(stored.items()))


def as_elements(lists: Lists) -> Stored:
    stored: Stored = {}
    for key, rows in lists.items():
        head = append_all(
            None,
            map(framed, rows),
            lambda index, chunk, key=key: stored.update({chunk_key(key, index): chunk}),
        )
        assert head is not None
        stored[key] = head
    return dict(sorted(stored.items()))


def pages(stored: Stored, size: int) -> Iterator[Page]:
    """A scan of what is there now, page by page; what is written behind its position is found."""
    start = b""
    while page := [entry for entry in sorted(stored.items()) if entry[0] >= start][:size]:
        yield page
        start = page[-1][0] + b"\0"


@settings(deadline=None)
@given(LISTS, PAGE_SIZES)
def test_rows_come_back_by_list_whatever_the_page(lists: Lists, page_size: int) -> None:
    found: Lists = {}
    for some in block_lists(pages(as_blocks(lists), page_size), "op"):
        rows = rows_of(*some, "op")
        for index, row in zip(rows.key_index.tolist(), binary_rows(rows.rows), strict=True):
            found.setdefault(some.heads.store_keys[index], []).append(row)
    assert list(found.items()) == sorted(lists.items())


@settings(deadline=None)
@given(LISTS, PAGE_SIZES)
def test_lists_may_be_written_anew_while_the_others_are_read(lists: Lists, page_size: int) -> None:
    """With more chunks than they had, which lie behind the place where a scan stands."""
    stored, seen = as_blocks(lists), []
    for some in block_lists(pages(stored, page_size), "op"):
        seen += some.heads.store_keys
        for key in some.heads.store_keys:
            stored |= as_blocks({key: [_row(key, number) for number in range(3_500)]})
    assert seen == sorted(lists)


@settings(deadline=None)
@given(LISTS)
def test_elements_come_back_piece_by_piece(lists: Lists) -> None:
    by_piece: Lists = {}
    for piece in list_pieces(as_elements(lists).items(), ELEMENTS, "op"):
        start = COUNT_BYTES if piece.is_head else 0
        by_piece.setdefault(piece.key, []).extend(elements(piece.data, start, bytes, "op"))
    assert list(by_piece.items()) == sorted(lists.items())
    blocks: Lists = {}
    for piece in list_pieces(as_blocks(lists).items(), BLOCKS, "op"):
        blocks.setdefault(piece.key, []).extend(binary_rows(read_rows([piece.data], "op")[0]))
    assert blocks == by_piece
    whole = {key: (head, chunks) for key, head, chunks in element_lists(as_elements(lists).items(), "op")}
    assert {key: len(chunks) for key, (_, chunks) in whole.items()} == {
        key: int.from_bytes(head[:COUNT_BYTES], "big") for key, (head, _) in whole.items()
    }


@given(st.sampled_from([0, 1, 2]), st.booleans(), PAGE_SIZES)
def test_a_chunk_that_is_missing_is_an_error(lost: int, more: bool, page_size: int) -> None:
    lists = {b"a\0": [_row(b"a\0", number) for number in range(2_500)]}
    lists |= {b"b\0": [b"one"]} if more else {}
    blocks, items = as_blocks(lists), as_elements(lists)
    for stored, layout in ((blocks, BLOCKS), (items, ELEMENTS)):
        del stored[layout.chunk_key(b"a\0", lost)]
        with pytest.raises(CodecError, match="op: a chunk of a list is missing"):
            list(list_pieces(stored.items(), layout, "op"))
    with pytest.raises(CodecError, match="op: a chunk of a list is missing"):
        list(block_lists(pages(blocks, page_size), "op"))
