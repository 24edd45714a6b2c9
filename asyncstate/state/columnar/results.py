"""Results of reads of column states.

Owns: ``Columns`` and ``ListColumns``, the rows of given keys; ``Entries``, what a scan gives; ``TimeRange`` and
``ListRange``, entries of time-first states in the order of the store.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec.key_batch import Int32Array
from asyncstate.codec.value_columns import BoolArray, Int64Array
from asyncstate.state.columnar.list_blocks import numbered_keys


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
class Entries:
    """Entries of a scan (m), in its order. Fields are lists or arrays (m); those whose names end in ``columns`` are
    lists of arrays."""

    store_keys: list[bytes]

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.store_keys)

    def piece(self, start: int, stop: int) -> Self:
        """Entries ``start`` to ``stop``."""

        def cut(name: str, values: Any) -> Any:
            if name.endswith("columns"):
                return [column.slice(start, stop - start) for column in values]
            return values[start:stop]

        return replace(self, **{name: cut(name, values) for name, values in vars(self).items()})

    def followed_by(self, more: Sequence[Self]) -> Self:
        """These entries, then those that follow in the same scan."""
        if not more:
            return self

        def joined(name: str, parts: list[Any]) -> Any:
            if name.endswith("columns"):
                return [pa.concat_arrays(pieces) for pieces in zip(*parts, strict=True)]
            return list(chain(*parts)) if isinstance(parts[0], list) else np.concatenate(parts)

        parts = [self, *more]
        return replace(
            self, **{name: joined(name, [getattr(part, name) for part in parts]) for name in vars(self)}
        )


@dataclass(frozen=True)
class TimeRange(Entries):
    """Entries of a time-first state, in order of (key group, namespace, key): m rows."""

    namespaces: Int64Array
    key_columns: list[pa.Array]
    columns: list[pa.Array]

    @property
    def row_bytes(self) -> float:
        """Average bytes of a row's columns."""
        return float(sum(column.nbytes for column in self.columns) / max(self.num_rows, 1))

    @property
    def row_namespaces(self) -> Int64Array:
        """The namespace of each row."""
        return self.namespaces

    def entry_keys(self, chosen: BoolArray | None = None) -> list[bytes]:
        """All store keys of the ``chosen`` entries (m; None: of all), for ``remove_entries``."""
        return self.store_keys if chosen is None else chosen_keys(self.store_keys, chosen)


@dataclass(frozen=True)
class ListColumns:
    """Rows of the u keys of a KeyBatch, concatenated key by key: m rows.

    ``columns`` has an array (m) per field; ``key_index`` (m, ascending) is the index of each row's key, ``counts`` (u)
    the number of rows of each key. Rows of a key are in the order in which they were appended. ``stamps`` (m,
    microseconds) is the time at which each was written, None without a ttl.
    """

    columns: list[pa.Array]
    key_index: Int32Array
    counts: Int64Array
    stamps: Int64Array | None = None

    @property
    def num_rows(self) -> int:
        """m."""
        return len(self.key_index)

    @property
    def starts(self) -> Int64Array:
        """Index of the first row of each key (u)."""
        return np.cumsum(self.counts) - self.counts


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


def chosen_keys(store_keys: list[bytes], chosen: BoolArray) -> list[bytes]:
    """Those of ``store_keys`` (m) that the mask ``chosen`` (m) has."""
    return list(compress(store_keys, chosen.tolist()))
