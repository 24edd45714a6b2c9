"""Column state: one row of typed columns per key, read and written for many keys at once.

Owns: ``ColumnState``, the state of bundle-grain operators, and the results of its reads; ``state_columns`` declares it.
Invariant: the stored bytes equal those that ``RowCodec`` gives row by row.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch, RowCodec
from asyncstate.codec.value_columns import LARGE_BINARY, BoolArray, Int64Array
from asyncstate.futures import StateFuture
from asyncstate.operator import MIN_WATERMARK, OperatorContext
from asyncstate.state.ranges import TIME_FIRST_PREFIX_BYTES, namespace_pages, namespaces_of, of_state
from asyncstate.state_backend import Page, StateBackend


@dataclass(frozen=True)
class Columns:
    """State rows for the u keys of a KeyBatch.

    ``columns`` has an array (u) per field of the state's schema, null where there is no row; ``present`` (u) says which
    keys have one.
    """

    columns: list[pa.Array]
    present: BoolArray

    def numpy(self, index: int, fill: float = 0) -> npt.NDArray[np.generic]:
        """Field ``index`` as a numpy array (u), with ``fill`` for missing rows and nulls."""
        column = self.columns[index]
        if column.null_count:
            column = column.fill_null(pa.scalar(fill, column.type))
        values: npt.NDArray[np.generic] = column.to_numpy(zero_copy_only=False)
        return values


@dataclass(frozen=True)
class TimeRange:
    """Entries of a time-first state, in order of (key group, namespace, key): m rows."""

    store_keys: list[bytes]
    namespaces: Int64Array
    key_columns: list[pa.Array]
    columns: list[pa.Array]

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.store_keys)

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row's columns."""
        return float(sum(column.nbytes for column in self.columns) / max(self.num_rows, 1))

    @property
    def row_namespaces(self) -> Int64Array:
        """The namespace of each row."""
        return self.namespaces

    def piece(self, start: int, stop: int) -> Self:
        """Entries ``start`` to ``stop``."""

        def cut(name: str, values: Any) -> Any:
            if name.endswith("columns"):
                return [column.slice(start, stop - start) for column in values]
            return values[start:stop]

        return replace(self, **{name: cut(name, values) for name, values in vars(self).items()})

    def followed_by(self, more: Sequence[Self]) -> Self:
        """These entries, then those of the following ranges of the same state."""

        def joined(name: str, parts: list[Any]) -> Any:
            if name.endswith("columns"):
                return [pa.concat_arrays(pieces) for pieces in zip(*parts, strict=True)]
            return list(chain(*parts)) if name == "store_keys" else np.concatenate(parts)

        parts = [self, *more]
        return replace(
            self, **{name: joined(name, [getattr(part, name) for part in parts]) for name in vars(self)}
        )

    def entry_keys(self, chosen: BoolArray | None = None) -> list[bytes]:
        """All store keys of the ``chosen`` entries (m; None: of all), for ``remove_entries``."""
        return self.store_keys if chosen is None else list(compress(self.store_keys, chosen.tolist()))


class DependentState(Protocol):
    """A state that has the same keys as another one and is removed with it."""

    def remove_with(self, owners: Sequence[bytes]) -> None:
        """Remove all data of the keys of ``owners``: ascending store keys of the other state."""


class BundleState:
    """A state of all keys of a bundle at once, bound to the sink of a partition."""

    def __init__(self, sink: StateBackend, state_id: int, codec: RowCodec, context: OperatorContext) -> None:
        self._sink = sink
        self._id = state_id
        self._codec = codec
        self._groups = context.key_groups
        self._key_codec = context.key_codec
        self._page_size = context.page_size

    def stamps_at(self, times: Int64Array | None, count: int) -> Int64Array | None:
        """The argument ``stamps`` for ``count`` keys, or for rows with the event times ``times`` (``count``
        microseconds; None: there are none). None without a ttl."""
        return None

    def prefetch(self, keys: KeyBatch) -> None:
        """Start loading the stored data of ``keys`` in the background."""
        self._sink.prefetch(self._store_keys(keys))

    def _store_keys(self, keys: KeyBatch) -> list[bytes]:
        return keys.store_keys(self._id)


class ColumnState(BundleState):
    """One row per key (and namespace). Keys come as a ``KeyBatch`` of u sorted unique keys."""

    def get(self, keys: KeyBatch) -> Columns:
        """The rows of ``keys``."""
        return self._decode(self._sink.get_many(self._store_keys(keys)))

    def async_get(self, keys: KeyBatch) -> StateFuture[Columns]:
        """A future of the same."""
        return self._sink.async_get_many(self._store_keys(keys)).then_apply(self._decode)

    def put(self, keys: KeyBatch, columns: Sequence[pa.Array], stamps: Int64Array | None = None) -> None:
        """Write one row per key: an array (u) per field; ``stamps`` (u, from ``stamps_at``; None: of this
        micro-batch)."""
        self._sink.put_many(self._store_keys(keys), self._codec.encode(columns, num_rows=len(keys)))

    def remove(self, keys: KeyBatch) -> None:
        """Remove the rows of ``keys``."""
        self._sink.delete_many(self._store_keys(keys))

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

    def cascade_expiry(self, dependent: DependentState) -> None:
        """Make the clean-up also remove the data in ``dependent`` of every key whose row expires; no effect without a
        ttl."""

    def remove_with(self, owners: Sequence[bytes]) -> None:
        """Remove all data of the keys of ``owners``: ascending store keys of the other state."""
        self.remove_entries(of_state(owners, self._id))

    def remove_entries(self, store_keys: Sequence[bytes]) -> None:
        """Remove entries by their store keys, as ``up_to`` gives them."""
        self._sink.delete_many(store_keys)

    def up_to(self, until: int, start: int = MIN_WATERMARK) -> Iterator[TimeRange]:
        """All entries with start <= namespace <= ``until``, page by page; time-first states only.

        Entries may be written or removed between pages. Order: key group, namespace, key.
        """
        return map(self._time_range, self._time_pages(start, until))

    def _time_pages(self, start: int, until: int) -> Iterator[Page]:
        """The visible entries of a range of namespaces; no page is empty."""
        for page in namespace_pages(self._sink, self._id, self._groups, start, until, self._page_size):
            unexpired, _ = self._unexpired(page)
            if unexpired:
                yield unexpired

    def _unexpired(self, entries: Page) -> tuple[Page, BoolArray]:
        """The entries of ``entries`` (m) that a range read returns, each with its bare row, and the mask of them
        (m)."""
        return entries, np.ones(len(entries), np.bool_)

    def _time_range(self, entries: Page) -> TimeRange:
        store_keys = [key for key, _ in entries]
        values: list[bytes | None] = [value for _, value in entries]
        columns, _ = self._codec.decode(values)
        packed = pa.array(store_keys, LARGE_BINARY)
        return TimeRange(
            store_keys=store_keys,
            namespaces=namespaces_of(packed),
            key_columns=self._key_codec.decode(packed, TIME_FIRST_PREFIX_BYTES),
            columns=columns,
        )

    def _decode(self, values: list[bytes | None]) -> Columns:
        columns, present = self._codec.decode(values)
        return Columns(columns, present)
