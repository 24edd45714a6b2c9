"""Column map state: rows of typed columns by key and user key, read and written for many pairs at once.

Owns: ``ColumnMapState``, its descriptor, and the results of its reads of many entries.
Invariant: an entry is stored under ``[store key of the key][user key]``, as in a ``MapState`` without namespaces, so
the entries of a key are one range of the store, in the order of the user keys.
Must not import storage, execution or operators.

Source: FLIP-424's ``MapState``, at bundle grain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from asyncstate.codec import (
    KeyBatch,
    KeyCodec,
    UserKeyBatch,
    check_key_type,
    prefix_end,
    read_schema,
    schema_to_text,
)
from asyncstate.codec.value_columns import LARGE_BINARY, Int64Array
from asyncstate.errors import StateDeclarationError
from asyncstate.futures import StateFuture, completed_future
from asyncstate.operator import MIN_WATERMARK, BelongsTo
from asyncstate.state.columnar.results import TimeRange
from asyncstate.state.columnar.state_columns import ColumnsDescriptor, ColumnState
from asyncstate.state.expiring.ttl import Ttl
from asyncstate.state.ranges import (
    REMOVED_PAGE,
    TIME_FIRST_PREFIX_BYTES,
    namespaces_of,
    of_state,
    range_pages,
    remove_pages,
)
from asyncstate.state.versions import COMPUTED_KEY
from asyncstate.state_backend import Page

BY_ROW: Final = "_by_row"
"""What the name of such a map ends with if it has the long lists of the list columns whose name is before that."""


@dataclass(frozen=True)
class MapEntries:
    """Entries of some of the u keys of a KeyBatch, in order of (key, user key): m rows.

    ``key_index`` (m, ascending) is the index of each entry's key; ``user_columns`` has an array (m) per part of the
    user key, ``columns`` one per field.
    """

    store_keys: list[bytes]
    key_index: Int64Array
    user_columns: list[pa.Array]
    columns: list[pa.Array]

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.store_keys)


@dataclass(frozen=True)
class MapTimeRange(TimeRange):
    """Entries of a time-first map, in order of (key group, namespace, key, user key): m rows."""

    user_columns: list[pa.Array]


@dataclass
class _Page:
    """Entries (m), each with the index of its key and the offset of its user key."""

    entries: Page = field(default_factory=list)
    key_index: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, entries: Page, index: int, offset: int) -> None:
        """Add entries of one key."""
        self.entries += entries
        self.key_index += [index] * len(entries)
        self.offsets += [offset] * len(entries)


class ColumnMapState(ColumnState):
    """Rows by key (and namespace) and user key.

    Methods for single entries take the pairs that ``KeyBatch.with_user_keys`` gives; methods for all entries of a key
    take the KeyBatch itself. Raises StateAccessError for the other one, for user keys of other types and for keys that
    do not have namespaces as declared.
    """

    def __init__(self, user_keys: KeyCodec, *bound: Any) -> None:
        """``bound``: the arguments of a ColumnState."""
        super().__init__(*bound)
        self._user_keys = user_keys

    # -- all entries of keys ------------------------------------------------------------------------

    def async_entries(self, keys: KeyBatch) -> StateFuture[MapEntries]:
        """A future of all current entries of ``keys``. One scan per key, read page by page; all entries are in
        memory."""
        return completed_future(self._entries(next(self._pages_of(keys, math.inf), _Page())))

    def entries(self, keys: KeyBatch) -> Iterator[MapEntries]:
        """All entries of ``keys``, page by page: ``iterate-response-batch-size`` at a time, never twice as many.

        Entries may be written or removed between pages; later pages include what is written after their start.
        """
        return (
            found for found in map(self._entries, self._pages_of(keys, self._page_size)) if found.num_rows
        )

    def remove_all(self, keys: KeyBatch) -> None:
        """Remove all entries of ``keys``. Finds them with one scan per key."""
        self._remove_ranges(self._ranges(keys))

    def remove_with(self, owners: Sequence[bytes]) -> None:
        self._remove_ranges([(start, prefix_end(start)) for start in of_state(owners, self._id)])

    def _remove_ranges(self, ranges: Iterable[tuple[bytes, bytes]]) -> None:
        limit = min(self._page_size, REMOVED_PAGE)
        scans = (range_pages(self._sink, *bounds, limit) for bounds in ranges)
        remove_pages(self.remove_entries, (page for scan in scans for page in scan))

    def _pages_of(self, keys: KeyBatch, held_max: float) -> Iterator[_Page]:
        held = _Page()
        for index, (start, end) in enumerate(self._ranges(keys)):
            for page in range_pages(self._sink, start, end, self._page_size):
                held.add(page, index, len(start))
                if len(held.entries) >= held_max:
                    yield held
                    held = _Page()
        if held.entries:
            yield held

    def _ranges(self, keys: KeyBatch) -> list[tuple[bytes, bytes]]:
        if isinstance(keys, UserKeyBatch):
            self._misused("was read for all entries of keys, but with user keys; pass the KeyBatch itself")
        self._check_namespaces(keys)
        return [(start, prefix_end(start)) for start in keys.store_keys(self._id)]

    def _entries(self, page: _Page) -> MapEntries:
        store_keys, columns, chosen = self._visible_entries(page.entries)
        return MapEntries(
            store_keys=store_keys,
            key_index=np.array(page.key_index, np.int64)[chosen],
            user_columns=self._user_keys.decode(store_keys, np.array(page.offsets, np.int64)[chosen]),
            columns=columns,
        )

    # -- ranges of time -----------------------------------------------------------------------------

    def up_to(
        self, until: int, start: int = MIN_WATERMARK, page_size: int | None = None
    ) -> Iterator[MapTimeRange]:
        """See ``ColumnState``. Order: key group, namespace, key, user key."""
        return super().up_to(until, start, page_size)  # type: ignore[return-value]  # _time_range gives them

    def _time_range(self, entries: Page) -> MapTimeRange:
        store_keys, columns, _ = self._visible_entries(entries)
        packed = pa.array(store_keys, LARGE_BINARY)
        key_columns, ends = self._key_codec.decode_prefix(packed, TIME_FIRST_PREFIX_BYTES)
        return MapTimeRange(
            store_keys=store_keys,
            namespaces=namespaces_of(packed),
            key_columns=key_columns,
            columns=columns,
            user_columns=self._user_keys.decode(packed, ends),
        )

    # -- checks ----------------------------------------------------------------------------

    def _check_keys(self, keys: KeyBatch) -> None:
        if not isinstance(keys, UserKeyBatch):
            self._misused("was used without user keys; pass keys.with_user_keys(columns, index)")
        if keys.user_types != self._user_keys.types:
            given, declared = (
                ", ".join(map(str, types)) for types in (keys.user_types, self._user_keys.types)
            )
            self._misused(
                f"was used with user keys of type ({given}), but is declared with ({declared}); cast them"
            )
        self._check_namespaces(keys)


@dataclass(frozen=True)
class ColumnMapStateDescriptor(ColumnsDescriptor[ColumnMapState]):
    """Declares a ColumnMapState: ``key_schema`` has the parts of the user key, ``schema`` the fields of a row.

    A schema without fields makes a set of user keys. ``time_first``, ``fixed_fields``, ``ttl`` and ``belongs_to`` are
    as in ``ColumnStateDescriptor``; each entry expires separately. The user key of a stored state cannot change.
    ``computed_key``: of what columns of the row the user key is computed, in words. Such rows cannot be migrated, and
    are not found by keys of other columns.
    Raises SchemaError for a user key of a type that cannot be a key.
    """

    name: str
    key_schema: pa.Schema
    schema: pa.Schema
    time_first: bool = False
    fixed_fields: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    computed_key: str = ""
    kind: ClassVar[str] = "column-map"

    def __post_init__(self) -> None:
        super().__post_init__()
        key_schema = read_schema(self.key_schema, f"state '{self.name}', key_schema")
        object.__setattr__(self, "key_schema", key_schema)
        if not len(key_schema):
            raise StateDeclarationError(
                f"state '{self.name}' is declared with a user key without columns; give the columns of the user key, "
                "or use a ColumnState"
            )
        for part in key_schema:
            check_key_type(f"{self.name}.{part.name}", part.type)

    def type_texts(self) -> dict[str, str]:
        """User key, schema, layout and the time domain of the ttl."""
        computed = {COMPUTED_KEY: self.computed_key} if self.computed_key else {}
        return {"key": schema_to_text(self.key_schema), **super().type_texts(), **computed}

    def _state(self, *bound: Any) -> ColumnMapState:
        names = [f"{self.name}.{name}" for name in self.key_schema.names]
        user_keys = KeyCodec(self.key_schema.types, names, 1)
        return ColumnMapState(user_keys, *bound)
