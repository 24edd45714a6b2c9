"""List column state ordered by time: lists under a namespace and a key, read and removed by ranges of time.

Owns: ``TimeFirstListState``, its descriptor, and what its ranges give.
Invariant: a range has whole lists; what ``remove_up_to`` takes away leaves nothing behind, no chunk either.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import pyarrow as pa

from asyncstate.codec import RowCodec
from asyncstate.codec.columns import LARGE_BINARY, BoolArray, Int64Array
from asyncstate.operator import MIN_WATERMARK, BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import Page, StateSink
from asyncstate.state.columnar.columns import TimeRange, row_codec
from asyncstate.state.columnar.list_blocks import numbered_keys
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.namespace_ranges import TIME_FIRST_PREFIX_BYTES, namespace_pages, namespaces_of
from asyncstate.state.ranges import REMOVED_PAGE, remove_pages
from asyncstate.state.stored_lists import FoundLists, block_lists


@dataclass(frozen=True)
class TimeFirstListDescriptor(StateDescriptor["TimeFirstListState"]):
    """Declares a TimeFirstListState: ``schema`` is one row's fields. It is stored as lists with ``time_first`` are."""

    name: str
    schema: pa.Schema
    belongs_to: BelongsTo | None = None
    kind: ClassVar[str] = ListColumnStateDescriptor.kind

    def type_texts(self) -> dict[str, str]:
        """Schema and layout."""
        lists = ListColumnStateDescriptor(self.name, self.schema, time_first=True, belongs_to=self.belongs_to)
        return lists.type_texts()

    def bind(
        self, sink: StateSink, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> TimeFirstListState:
        """See ``StateDescriptor``."""
        codec = row_codec(context.uid, self.name, self.schema, self.type_texts(), stored)
        owner = f"state '{self.name}' of operator '{context.uid}'"
        return TimeFirstListState(sink, state_id, codec, owner, context)


@dataclass(frozen=True)
class ListRange(TimeRange):
    """Whole time-first lists, in order of (key group, namespace, key): u lists of m rows.

    ``store_keys``, ``namespaces``, ``key_columns``, ``counts`` (of rows) and ``chunks`` (their number) are of the lists
    (u each), ``columns`` of their rows (m), list by list and as appended.
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

    def piece(self, start: int, stop: int) -> ListRange:
        """See ``TimeRange``; lists ``start`` to ``stop``."""
        store_keys, namespaces, key_columns, _ = self._piece(start, stop)
        first, rows = int(self.counts[:start].sum()), int(self.counts[start:stop].sum())
        columns = [column.slice(first, rows) for column in self.columns]
        numbers = self.counts[start:stop], self.chunks[start:stop]
        return ListRange(store_keys, namespaces, key_columns, columns, *numbers)

    def followed_by(self, more: Sequence[TimeRange]) -> ListRange:
        """See ``TimeRange``."""
        parts = [self, *cast(Sequence[ListRange], more)]
        return ListRange(
            *self._followed_by(more),
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.chunks for part in parts]),
        )

    def entry_keys(self, chosen: BoolArray | None = None) -> list[bytes]:
        """The store keys of the heads, then of the chunks, of the ``chosen`` lists (u; None: of all)."""
        heads, chunks = super().entry_keys(chosen), self.chunks if chosen is None else self.chunks[chosen]
        return heads + numbered_keys(heads, chunks) if chunks.any() else heads


class TimeFirstListState(ListColumnState):
    """A ListColumnState whose key batches have namespaces (times in microseconds), which stand before the key."""

    def __init__(
        self, sink: StateSink, state_id: int, codec: RowCodec, owner: str, context: OperatorContext
    ) -> None:
        super().__init__(sink, state_id, codec, owner)
        self._groups = context.key_groups
        self._key_codec = context.key_codec
        self._page_size = context.page_size

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[ListRange]:
        """All lists with start <= namespace <= ``until``, page by page.

        Nothing may be appended to the lists before the end; those that have been given may be removed.
        """
        found = block_lists(self._pages(start, until, self._page_size), self._owner)
        return map(self._range, found)

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        """Remove the lists whose ``entry_keys`` these are, as a range has told them."""
        self._sink.delete_many(store_keys)

    def remove_up_to(self, until: int, start: int = MIN_WATERMARK) -> None:
        """Remove all lists with start <= namespace <= ``until``."""
        pages = self._pages(start, until, min(self._page_size, REMOVED_PAGE))
        remove_pages(self._sink.delete_many, pages)

    def _pages(self, start: int, until: int, page_size: int) -> Iterator[Page]:
        return namespace_pages(self._sink, self._id, self._groups, start, until, page_size)

    def _range(self, found: FoundLists) -> ListRange:
        stored = self._stored(*found)
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
