"""List column state ordered by time: lists under a namespace and a key, read and removed by ranges of time.

Owns: ``TimeFirstListState`` and its descriptor.
Invariant: a range has whole lists; what ``remove_up_to`` takes away leaves nothing behind, no chunk either.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import RowCodec
from asyncstate.errors import CodecError
from asyncstate.operator import MIN_WATERMARK, BelongsTo, OperatorContext, StateDescriptor
from asyncstate.requests import Page, StateSink
from asyncstate.state.columns import TimeRange, row_codec
from asyncstate.state.list_blocks import are_heads, chunk_keys, read_heads, read_rows
from asyncstate.state.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.namespace_ranges import TIME_FIRST_PREFIX_BYTES, namespace_pages, namespaces_of
from asyncstate.state.ranges import REMOVED_PAGE, remove_pages


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


class TimeFirstListState(ListColumnState):
    """A ListColumnState whose key batches have namespaces (times in microseconds), which stand before the key."""

    def __init__(
        self, sink: StateSink, state_id: int, codec: RowCodec, owner: str, context: OperatorContext
    ) -> None:
        super().__init__(sink, state_id, codec, owner)
        self._groups = context.key_groups
        self._key_codec = context.key_codec
        self._page_size = context.page_size

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[TimeRange]:
        """The rows of all lists with start <= namespace <= ``until``, page by page.

        An entry of a range is a row here, and ``store_keys`` has the key of its list; a long list may come in parts.
        Order: key group, namespace, key, then as appended. Nothing may be written or removed before the end.
        """
        held: Page = []  # the list that may go on in the next page
        for page in self._pages(start, until, self._page_size):
            held += page
            is_head = are_heads(held, self._owner)
            last = int(np.flatnonzero(is_head)[-1:].sum())
            if last:
                yield self._range(held[:last], is_head[:last])
                held = held[last:]
        if held:
            yield self._range(held, are_heads(held, self._owner))

    def remove_up_to(self, until: int, start: int = MIN_WATERMARK) -> None:
        """Remove all lists with start <= namespace <= ``until``."""
        pages = self._pages(start, until, min(self._page_size, REMOVED_PAGE))
        remove_pages(self._sink.delete_many, pages)

    def _pages(self, start: int, until: int, page_size: int) -> Iterator[Page]:
        return namespace_pages(self._sink, self._id, self._groups, start, until, page_size)

    def _range(self, entries: Page, is_head: npt.NDArray[np.bool_]) -> TimeRange:
        """The rows of whole lists."""
        owner = np.cumsum(is_head) - 1
        heads = [entries[index] for index in np.flatnonzero(is_head).tolist()]
        store_keys = [key for key, _ in heads]
        found = read_heads(store_keys, [block for _, block in heads], self._owner)
        chunks, _ = chunk_keys(found)
        if chunks != [entries[index][0] for index in np.flatnonzero(~is_head).tolist()]:
            raise CodecError(
                f"{self._owner}: the chunks of a list are not those that its head tells of; restore the checkpoint "
                "from an older version"
            )
        blocks = [block for _, block in entries]
        if chunks:
            order = np.lexsort((is_head, owner))  # the rows of chunks stand before those of the head
            blocks, owner = [blocks[index] for index in order.tolist()], owner[order]
        rows, per_block = read_rows(blocks, self._owner)
        columns, _ = self._codec.decode(rows)
        lists = np.repeat(owner, per_block)
        keys = self._key_codec.decode(store_keys, TIME_FIRST_PREFIX_BYTES)
        return TimeRange(
            store_keys=[store_keys[index] for index in lists.tolist()],
            namespaces=namespaces_of(store_keys)[lists],
            key_columns=[column.take(pa.array(lists)) for column in keys],
            columns=columns,
        )
