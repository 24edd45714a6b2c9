"""List column state ordered by time: lists under a namespace and a key, read and removed by ranges of time.

Owns: ``TimeFirstListState`` and its descriptor.
Invariant: a range has whole lists; what ``remove_up_to`` takes away leaves nothing behind, no chunk either.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyCodec, RowCodec
from asyncstate.operator import MIN_WATERMARK, OperatorContext, StateDescriptor
from asyncstate.requests import Page, StateSink
from asyncstate.state.columns import TimeRange, row_codec
from asyncstate.state.inspect_lists import ListPieces, Read
from asyncstate.state.list_columns import ListColumnState, ListColumnStateDescriptor
from asyncstate.state.namespace_ranges import TIME_FIRST_PREFIX_BYTES, namespace_pages, namespaces_of

_REMOVED_PAGE: Final = 256
"""Entries that are read at a time only to be removed: a chunk of rows may be large."""


@dataclass(frozen=True)
class TimeFirstListDescriptor(StateDescriptor["TimeFirstListState"]):
    """Declares a TimeFirstListState: ``schema`` is one row's fields. It is stored as lists with ``time_first`` are."""

    name: str
    schema: pa.Schema
    kind: ClassVar[str] = ListColumnStateDescriptor.kind

    def type_texts(self) -> dict[str, str]:
        """Schema and layout."""
        return ListColumnStateDescriptor(self.name, self.schema, time_first=True).type_texts()

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
        key = context.key_schema
        self._groups = context.key_groups
        self._key_codec = KeyCodec([field.type for field in key], list(key.names), context.max_parallelism)
        self._page_size = context.page_size

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[TimeRange]:
        """The rows of all lists with start <= namespace <= ``until``, page by page.

        An entry of a range is a row here, and ``store_keys`` has the key of its list; a long list may come in parts.
        Order: key group, namespace, key, then as appended. Nothing may be written or removed before the end.
        """
        pieces = ListPieces(True, self._owner)
        for page in self._pages(start, until, self._page_size):
            yield from self._range(pieces.add(page, self._ends(page)))
        yield from self._range(pieces.end())

    def remove_up_to(self, until: int, start: int = MIN_WATERMARK) -> None:
        """Remove all lists with start <= namespace <= ``until``."""
        for page in self._pages(start, until, min(self._page_size, _REMOVED_PAGE)):
            self._sink.delete_many([key for key, _ in page])

    def _pages(self, start: int, until: int, page_size: int) -> Iterator[Page]:
        return namespace_pages(self._sink, self._id, self._groups, start, until, page_size)

    def _ends(self, page: Page) -> npt.NDArray[np.int64]:
        return self._key_codec.decode_prefix([key for key, _ in page], TIME_FIRST_PREFIX_BYTES)[1]

    def _range(self, read: Read) -> Iterator[TimeRange]:
        store_keys, _, rows = read
        if store_keys:
            columns, _ = self._codec.decode(rows)
            keys = self._key_codec.decode(store_keys, TIME_FIRST_PREFIX_BYTES)
            yield TimeRange(store_keys, namespaces_of(store_keys), keys, columns)
