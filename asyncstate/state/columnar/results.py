"""Results of reads of column states with one row per key.

Owns: ``Columns``, the rows of given keys; ``TimeRange``, entries in the order of the store.
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

from asyncstate.codec.value_columns import BoolArray, Int64Array


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
