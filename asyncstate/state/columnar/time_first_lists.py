"""List column state ordered by time: lists under a namespace and a key, read and removed by ranges of time.

Owns: ``TimeFirstListState``, its descriptor, and what its ranges give.
Invariant: a range has whole lists; what ``remove_up_to`` takes away leaves nothing behind, no chunk either.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import RowCodec
from asyncstate.operator import MIN_WATERMARK, BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import Page, StateSink
from asyncstate.state.columnar.columns import TimeRange, row_codec
from asyncstate.state.columnar.list_blocks import numbered_keys
from asyncstate.state.columnar.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.namespace_ranges import TIME_FIRST_PREFIX_BYTES, namespace_pages, namespaces_of
from asyncstate.state.ranges import REMOVED_PAGE, remove_pages
from asyncstate.state.stored_lists import FoundLists, block_lists

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]


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
    """Rows of time-first lists, in order of (key group, namespace, key), then as appended: m rows.

    ``store_keys`` (m) has the key of each row's list. ``begins`` (m) marks the first row of each list, ``chunks`` (m)
    counts the sealed chunks of the row's list. No list is in part in a range.
    """

    begins: BoolArray
    chunks: Int64Array

    def piece(self, start: int, stop: int) -> ListRange:
        """See ``TimeRange``; whole lists."""
        return ListRange(*self._piece(start, stop), self.begins[start:stop], self.chunks[start:stop])

    def followed_by(self, more: Sequence[TimeRange]) -> ListRange:
        """See ``TimeRange``."""
        parts = [self, *cast(Sequence[ListRange], more)]
        return ListRange(
            *self._followed_by(more),
            np.concatenate([part.begins for part in parts]),
            np.concatenate([part.chunks for part in parts]),
        )

    def entry_keys(self, chosen: BoolArray | None = None) -> list[bytes]:
        """The store keys of the heads, then of the chunks, of the lists whose rows are ``chosen`` (m; None: all)."""
        begins = self.begins if chosen is None else self.begins & chosen
        heads = list(compress(self.store_keys, begins.tolist()))
        return heads + numbered_keys(heads, self.chunks[begins])


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
        """The rows of all lists with start <= namespace <= ``until``, page by page.

        An entry of a range is a row here. Nothing may be appended to the lists before the end; those that have been
        given may be removed.
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
        lists, store_keys = stored.key_index, found.heads.store_keys
        begins = np.ones(len(lists), np.bool_)
        begins[1:] = lists[1:] != lists[:-1]
        keys = self._key_codec.decode(store_keys, TIME_FIRST_PREFIX_BYTES)
        return ListRange(
            store_keys=list(map(store_keys.__getitem__, lists.tolist())),
            namespaces=namespaces_of(store_keys)[lists],
            key_columns=[column.take(pa.array(lists)) for column in keys],
            columns=columns,
            begins=begins,
            chunks=found.heads.chunks[lists],
        )
