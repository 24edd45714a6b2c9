"""Column state: one row of typed columns per key, read and written for many keys at once.

Owns: ``ColumnState`` and its declaration ``ColumnStateDescriptor``; ``BundleState`` and ``ColumnsDescriptor``, the
bases of these and of lists and maps.
Invariant: the stored bytes equal those that ``RowCodec`` gives row by row, each after its stamp if there is a ttl.
Results do not depend on whether rows are cached.
Must not import storage, execution or operators.

With a ttl, the stamp of a row is its first column from the store up to ``_visible``, which removes it and hides expired
rows. Whether there is a ttl is decided once per call, never per row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from asyncstate.codec import (
    KeyBatch,
    RowCodec,
    UserKeyBatch,
    prefix_end,
    read_schema,
    schema_from_text,
    schema_to_text,
)
from asyncstate.codec.value_columns import LARGE_BINARY, BoolArray, Int64Array, binary_rows
from asyncstate.errors import StateAccessError
from asyncstate.futures import StateFuture
from asyncstate.operator import MIN_WATERMARK, BelongsTo, OperatorContext, StateDescriptor
from asyncstate.state.column_cache.cache import ColumnCache
from asyncstate.state.column_cache.column_front import ColumnFront
from asyncstate.state.columnar.results import Columns, TimeRange, chosen_keys
from asyncstate.state.expiring.expiry import Lifetime
from asyncstate.state.expiring.stamped_codec import StampedCodec, restamped, stamps_of
from asyncstate.state.expiring.ttl import StateTtl, Ttl, as_bundle_ttl, ttl_texts
from asyncstate.state.ranges import (
    REMOVED_PAGE,
    TIME_FIRST_PREFIX_BYTES,
    namespaces_of,
    of_state,
    pages_by_group,
    range_pages,
    remove_pages,
    up_to_time,
)
from asyncstate.state.versions import evolved, older_values
from asyncstate.state_backend import Page, StateBackend

__all__ = ["BundleState", "ColumnState", "ColumnStateDescriptor", "Columns", "ColumnsDescriptor", "TimeRange"]

S_co = TypeVar("S_co", covariant=True)


class DependentState(Protocol):
    """A state that has the same keys as another one and is removed with it."""

    def remove_with(self, owners: Sequence[bytes]) -> None:
        """Remove all data of the keys of ``owners``: ascending store keys of the other state."""


class BundleState:
    """A state of all keys of a bundle at once, bound to the sink of a partition.

    ``codec`` is a StampedCodec if there is a ``lifetime``. Raises StateAccessError for keys that do not have namespaces
    as declared (``time_first``), or that have user keys where none are declared.
    """

    def __init__(
        self,
        sink: StateBackend,
        state_id: int,
        codec: RowCodec,
        context: OperatorContext,
        time_first: bool = False,
        lifetime: Lifetime | None = None,
    ) -> None:
        self._sink = sink
        self._id = state_id
        self._codec = codec
        self._time_first = time_first
        self._lifetime = lifetime
        self._groups = context.key_groups
        self._key_codec = context.key_codec
        self._page_size = context.page_size

    def stamps_at(self, times: Int64Array | None, count: int) -> Int64Array | None:
        """The argument ``stamps`` for ``count`` keys, or for rows with the event times ``times`` (``count``
        microseconds; None: there are none). None without a ttl."""
        return None if self._lifetime is None else self._lifetime.stamps(times, count)

    def prefetch(self, keys: KeyBatch) -> None:
        """Start loading the stored data of ``keys`` in the background."""
        self._sink.prefetch(self._store_keys(keys))

    def _store_keys(self, keys: KeyBatch) -> list[bytes]:
        self._check_keys(keys)
        return keys.store_keys(self._id)

    def _check_keys(self, keys: KeyBatch) -> None:
        if isinstance(keys, UserKeyBatch):
            self._misused("was used with user keys; pass the KeyBatch itself, or use a ColumnMapState")
        self._check_namespaces(keys)

    def _check_namespaces(self, keys: KeyBatch) -> None:
        if self._time_first and keys.namespaces is None:
            self._misused(
                "is time-first but was used with keys without namespaces; use keys.in_namespaces(times)"
            )
        if not self._time_first and keys.namespaces is not None:
            self._misused("was used with keys in namespaces; declare it with time_first=True")

    def _misused(self, what: str) -> NoReturn:
        raise StateAccessError(f"{self._codec.owner} {what}")

    def _with_stamps(
        self, columns: Sequence[pa.Array], stamps: Int64Array | None, count: int
    ) -> Sequence[pa.Array]:
        """The columns of ``count`` rows as the codec takes them: after ``stamps`` (None: of this micro-batch) if there
        is a ttl."""
        if self._lifetime is None:
            return columns
        return [pa.array(self._lifetime.stamps(None, count) if stamps is None else stamps), *columns]

    # -- ranges -------------------------------------------------------------------------------------

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        """Remove entries by their store keys, as a range gives them."""
        self._sink.delete_many(store_keys)

    def remove_up_to(self, until: int, start: int = MIN_WATERMARK) -> None:
        """Remove all data with start <= namespace <= ``until``; time-first states only."""
        remove_pages(self.remove_entries, self._time_pages(start, until, min(self._page_size, REMOVED_PAGE)))

    def _time_pages(self, start: int, until: int, page_size: int) -> Iterator[Page]:
        if not self._time_first:
            self._misused("was read by a range of namespaces; declare it with time_first=True")
        ranges = up_to_time(bytes([self._id]), self._groups, until, start)
        return pages_by_group(self._sink, ranges, page_size)

    def _namespaces_and_keys(self, store_keys: list[bytes]) -> tuple[Int64Array, list[pa.Array]]:
        """The namespaces and the key columns in time-first store keys (m)."""
        packed = pa.array(store_keys, LARGE_BINARY)
        return namespaces_of(packed), self._key_codec.decode(packed, TIME_FIRST_PREFIX_BYTES)

    def _stored_pages(self, group: bytes) -> Iterator[Page]:
        """All entries of a key group (2 bytes)."""
        state = group + bytes([self._id])
        return range_pages(self._sink, state, prefix_end(state), self._page_size)


class ColumnState(BundleState):
    """One row per key (and namespace). Keys come as a ``KeyBatch`` of u sorted unique keys. With a ttl, each row
    expires separately."""

    _front: ColumnFront | None = None
    _dependents: tuple[DependentState, ...] = ()

    def use_cache(self, cache: ColumnCache, is_new: bool) -> None:
        """Serve rows from ``cache`` from now on. Not for states that are read by ranges. ``is_new``: the store has no
        data of this state."""
        self._front = ColumnFront(self._sink, self._id, self._codec, self._key_codec, cache, is_new)

    # -- reading ----------------------------------------------------------------------------------

    def get(self, keys: KeyBatch) -> Columns:
        """The rows of ``keys``."""
        front = self._front_for(keys)
        if front is None:
            return self._decode(self._sink.get_many(self._store_keys(keys)))
        return self._visible(front.get(keys))

    def async_get(self, keys: KeyBatch) -> StateFuture[Columns]:
        """A future of the same."""
        front = self._front_for(keys)
        if front is None:
            return self._sink.async_get_many(self._store_keys(keys)).then_apply(self._decode)
        rows = front.async_get(keys)
        return rows if self._lifetime is None else rows.then_apply(self._visible)

    def prefetch(self, keys: KeyBatch) -> None:
        front = self._front_for(keys)
        if front is None:
            super().prefetch(keys)
        else:
            front.prefetch(keys)

    def _front_for(self, keys: KeyBatch) -> ColumnFront | None:
        """The cache, which takes ``keys`` as they are; None if there is none."""
        if self._front is not None:
            self._check_keys(keys)
        return self._front

    def _decode(self, values: Sequence[bytes | None]) -> Columns:
        return self._visible(Columns(*self._codec.decode(values)))

    def _visible(self, stored: Columns) -> Columns:
        """The rows that reads return, without their stamps."""
        if self._lifetime is None:
            return stored
        live = stored.present & self._lifetime.live(stored.numpy(0).astype(np.int64, copy=False))
        columns = stored.columns[1:]
        if not np.array_equal(live, stored.present):
            at = pa.array(np.arange(len(live)), mask=~live)
            columns = [column.take(at) for column in columns]
        return Columns(columns, live)

    # -- writing ----------------------------------------------------------------------------------

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], stamps: Int64Array | None = None) -> None:
        """Write one row per key: an array (u) per field; ``stamps`` (u, from ``stamps_at``; None: of this
        micro-batch)."""
        columns = self._with_stamps(columns, stamps, len(keys))
        front = self._front_for(keys)
        if front is None:
            self._sink.put_many(self._store_keys(keys), self._codec.encode(columns, num_rows=len(keys)))
        else:
            front.put(keys, columns)

    def remove(self, keys: KeyBatch) -> None:
        """Remove the rows of ``keys``."""
        front = self._front_for(keys)
        if front is None:
            self._sink.delete_many(self._store_keys(keys))
        else:
            front.remove(keys)

    def write(
        self,
        keys: KeyBatch,
        columns: Sequence[pa.Array],
        keep: BoolArray,
        stamps: Int64Array | None = None,
    ) -> None:
        """Write the rows where ``keep`` (u) is true, and remove the others."""
        if keep.all():
            self.put(keys, columns, stamps)
            return
        mask = pa.array(keep)
        self.put(
            keys.select(keep),
            [column.filter(mask) for column in columns],
            None if stamps is None else stamps[keep],
        )
        self.remove(keys.select(~keep))

    def remove_with(self, owners: Sequence[bytes]) -> None:
        """Remove all data of the keys of ``owners``: ascending store keys of the other state."""
        if self._front is None:
            self.remove_entries(of_state(owners, self._id))
        else:
            self._front.remove(self._front.keys_of(owners))

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        if self._front is not None:
            self._front.forget()
        super().remove_entries(store_keys)

    # -- ranges of time -----------------------------------------------------------------------------

    def up_to(
        self, until: int, start: int = MIN_WATERMARK, page_size: int | None = None
    ) -> Iterator[TimeRange]:
        """All entries with start <= namespace <= ``until``, page by page; time-first states only.

        ``page_size``: entries of a page, which may have slightly more; None: ``iterate-response-batch-size``.

        Entries may be written or removed between pages. Order: key group, namespace, key.
        """
        pages = self._time_pages(start, until, page_size or self._page_size)
        return filter(attrgetter("num_rows"), map(self._time_range, pages))

    def _time_range(self, entries: Page) -> TimeRange:
        store_keys, columns, _ = self._visible_entries(entries)
        return TimeRange(store_keys, *self._namespaces_and_keys(store_keys), columns)

    def _visible_entries(self, entries: Page) -> tuple[list[bytes], list[pa.Array], BoolArray]:
        """The store keys and columns of those of ``entries`` (m) that reads return, and the mask of them (m)."""
        store_keys = [key for key, _ in entries]
        rows = self._decode([value for _, value in entries])
        if rows.present.all():
            return store_keys, rows.columns, rows.present
        mask = pa.array(rows.present)
        columns = [column.filter(mask) for column in rows.columns]
        return chosen_keys(store_keys, rows.present), columns, rows.present

    # -- the clean-up -----------------------------------------------------------------------------

    def cascade_expiry(self, dependent: DependentState) -> None:
        """Make the clean-up also remove the data in ``dependent`` of every key whose row expires; no effect without a
        ttl."""
        self._dependents = (*self._dependents, dependent)

    def sweep(self, group: bytes) -> int:
        """Remove the expired rows of a key group (2 bytes), and the data that depends on them; the number of rows. Only
        for states with a ttl."""
        assert self._lifetime is not None
        front, lifetime = self._front, self._lifetime
        removed = 0
        if front is None or not front.whole:
            removed = sum(self._sweep_page(page, lifetime) for page in self._stored_pages(group))
        expired = None if front is None else front.sweep(int.from_bytes(group, "big"), lifetime)
        if expired is not None:
            self._remove_dependents(self._store_keys(expired))
            removed += len(expired)
        return removed

    def _sweep_page(self, page: Page, lifetime: Lifetime) -> int:
        rows = pa.array([value for _, value in page], LARGE_BINARY)
        stamps = stamps_of(rows, self._codec.owner)
        due = lifetime.due(stamps)
        if not due.any():
            return 0
        keys = [key for key, _ in page]
        if self._front is not None:
            due[due] = self._front.unknown(chosen_keys(keys, due))
        live = lifetime.live(stamps)
        expired = chosen_keys(keys, due & ~live)
        if expired:
            self._sink.delete_many(expired)
            self._remove_dependents(expired)
        untimed = due & live
        if untimed.any():
            timed = restamped(rows, untimed, lifetime.stamps(None, int(untimed.sum())))
            self._sink.put_many(chosen_keys(keys, untimed), binary_rows(timed.filter(pa.array(untimed))))
        return len(expired)

    def _remove_dependents(self, keys: list[bytes]) -> None:
        for dependent in self._dependents:
            dependent.remove_with(keys)


@functools.lru_cache(maxsize=1_000)  # each micro-batch asks for the same ones
def _row_codec(schema: pa.Schema, older: tuple[str, ...], owner: str) -> RowCodec:
    return RowCodec(schema, list(map(schema_from_text, older)), owner=owner)


class ColumnsDescriptor(StateDescriptor[S_co]):
    """Base of the declarations of column states. ``_state``: makes the state of the arguments of a BundleState;
    ``_layouts``: not time-first, and time-first."""

    schema: pa.Schema
    time_first: bool
    ttl: Ttl
    belongs_to: BelongsTo | None
    _state: ClassVar[Any]
    _layouts: ClassVar[tuple[str, str]] = "key", "time-first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", read_schema(self.schema, f"state '{self.name}'"))
        if self.ttl is not None:
            object.__setattr__(self, "ttl", as_bundle_ttl(f"state '{self.name}'", self.ttl))

    def type_texts(self) -> dict[str, str]:
        """Schema, layout and the time domain of the ttl."""
        return {
            "value": schema_to_text(self.schema),
            "layout": self._layouts[self.time_first],
            **({} if self.ttl is None else ttl_texts(self.ttl)),
            **dict([self.belongs_to] if self.belongs_to else []),
        }

    def bind(
        self, sink: StateBackend, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> S_co:
        types, uid = self.type_texts(), context.uid
        older: tuple[str, ...] = ()
        if stored is not None and stored != types:
            older = tuple(older_values(evolved(uid, self.name, types, stored)))
        codec: RowCodec = _row_codec(self.schema, older, f"state '{self.name}' of operator '{uid}'")
        lifetime = None
        if isinstance(self.ttl, StateTtl):
            lifetime = Lifetime(self.ttl, context, f"operator '{uid}', state '{self.name}'")
            codec = StampedCodec(codec)
        state: S_co = self._state(sink, state_id, codec, context, self.time_first, lifetime)
        return state


@dataclass(frozen=True)
class ColumnStateDescriptor(ColumnsDescriptor[ColumnState]):
    """Declares a ColumnState: ``schema`` has the fields of a row.

    ``time_first``: the state has a namespace (int64, a window end or a time in microseconds) that is ordered before the
    key, so that all entries up to a time can be read as ranges. ``fixed_fields``: no field may be added to a stored
    state, not even a nullable one, because a row written without it would mean something else. Those of ``may_lack``
    are the exception: their null has no other meaning. ``ttl``: rows expire separately. ``belongs_to``: see
    ``BelongsTo``.
    """

    name: str
    schema: pa.Schema
    time_first: bool = False
    fixed_fields: bool = False
    ttl: Ttl = None
    belongs_to: BelongsTo | None = None
    may_lack: frozenset[str] = frozenset()
    kind: ClassVar[str] = "column"
    _state = ColumnState
