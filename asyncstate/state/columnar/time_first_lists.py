"""List column state ordered by time: lists under a namespace and a key, read and removed by ranges of time.

Owns: ``TimeFirstListState``, its descriptor, and the results of its range reads.
Invariant: a range has whole lists; ``remove_up_to`` removes lists completely, including their chunks.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from asyncstate.codec.value_columns import LARGE_BINARY, BoolArray, Int64Array
from asyncstate.operator import MIN_WATERMARK, BelongsTo
from asyncstate.state.columnar.list_blocks import numbered_keys
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.columnar.state_columns import ColumnsDescriptor, TimeRange
from asyncstate.state.ranges import (
    REMOVED_PAGE,
    TIME_FIRST_PREFIX_BYTES,
    namespace_pages,
    namespaces_of,
    remove_pages,
)
from asyncstate.state.stored_lists import FoundLists, block_lists, rows_of
from asyncstate.state_backend import Page


@dataclass(frozen=True)
class TimeFirstListDescriptor(ColumnsDescriptor["TimeFirstListState"]):
    """Declares a TimeFirstListState: ``schema`` has the fields of a row. The layout is that of lists with
    ``time_first``."""

    name: str
    schema: pa.Schema
    belongs_to: BelongsTo | None = None
    kind: ClassVar[str] = ListColumnStateDescriptor.kind
    time_first = True
    ttl = None
    _layouts = ListColumnStateDescriptor._layouts

    def _state(self, *bound: Any) -> TimeFirstListState:
        return TimeFirstListState(*bound)


@dataclass(frozen=True)
class ListRange(TimeRange):
    """Whole time-first lists, in order of (key group, namespace, key): u lists of m rows.

    ``store_keys``, ``namespaces``, ``key_columns``, ``counts`` (of rows) and ``chunks`` (their number) describe the
    lists (u each), ``columns`` their rows (m), list by list in the order in which they were appended.
    """

    counts: Int64Array
    chunks: Int64Array

    @property
    def num_rows(self) -> int:
        """m."""
        return int(self.counts.sum())

    @property
    def row_namespaces(self) -> Int64Array:
        """See ``TimeRange`` (m)."""
        return np.repeat(self.namespaces, self.counts)

    @property
    def lists(self) -> Int64Array:
        """The index of each row's list (m)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def starts(self) -> Int64Array:
        """The index of the first row of each list (u)."""
        return np.cumsum(self.counts) - self.counts

    def piece(self, start: int, stop: int) -> Self:
        """See ``TimeRange``; lists ``start`` to ``stop``."""
        first, rows = int(self.counts[:start].sum()), int(self.counts[start:stop].sum())
        columns = [column.slice(first, rows) for column in self.columns]
        return replace(super().piece(start, stop), columns=columns)

    def entry_keys(self, chosen: BoolArray | None = None) -> list[bytes]:
        """The store keys of the heads, then of the chunks, of the ``chosen`` lists (u; None: of all)."""
        heads, chunks = super().entry_keys(chosen), self.chunks if chosen is None else self.chunks[chosen]
        return heads + numbered_keys(heads, chunks) if chunks.any() else heads


class TimeFirstListState(ListColumnState):
    """A ListColumnState whose key batches have namespaces (times in microseconds), which precede the key."""

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[ListRange]:
        """All lists with start <= namespace <= ``until``, page by page.

        Nothing may be appended to the lists before the iteration ends; lists already yielded may be removed.
        """
        found = block_lists(self._pages(start, until, self._page_size), self._owner)
        return map(self._range, found)

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        """Remove the lists with these ``entry_keys``, taken from a range."""
        self._sink.delete_many(store_keys)

    def remove_up_to(self, until: int, start: int = MIN_WATERMARK) -> None:
        """Remove all lists with start <= namespace <= ``until``."""
        pages = self._pages(start, until, min(self._page_size, REMOVED_PAGE))
        remove_pages(self._sink.delete_many, pages)

    def _pages(self, start: int, until: int, page_size: int) -> Iterator[Page]:
        return namespace_pages(self._sink, self._id, self._groups, start, until, page_size)

    def _range(self, found: FoundLists) -> ListRange:
        stored = rows_of(*found, self._owner)
        columns, _ = self._codec.decode(stored.rows)
        store_keys = found.heads.store_keys
        packed = pa.array(store_keys, LARGE_BINARY)
        return ListRange(
            store_keys=store_keys,
            namespaces=namespaces_of(packed),
            key_columns=self._key_codec.decode(packed, TIME_FIRST_PREFIX_BYTES),
            columns=columns,
            counts=np.bincount(stored.key_index, minlength=len(store_keys)),
            chunks=found.heads.chunks,
        )
