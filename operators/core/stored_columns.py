"""The columns of its rows that a keyed state stores, and how to restore the rows.

Owns: ``StoredColumns``.
Invariant: a column of the key is never stored: the key provides it.
Must not import anything of ``asyncstate`` but ``operator``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from asyncstate.operator import InputSpec

T = TypeVar("T")


class StoredColumns:
    """The columns of an input outside the key: ``indices`` in its schema, and ``fields``, all of which may be null.

    ``at_least_one``: where all columns are in the key the first one is stored nevertheless.
    """

    def __init__(self, spec: InputSpec, at_least_one: bool = False) -> None:
        names, key = spec.schema.names, list(spec.key)
        self.indices = [index for index, name in enumerate(names) if name not in key]
        if at_least_one and not self.indices:
            self.indices = [0]
        self.fields = [spec.schema.field(index).with_nullable(True) for index in self.indices]
        stored = {names[index]: len(key) + place for place, index in enumerate(self.indices)}
        self._sources = [key.index(name) if name in key else stored[name] for name in names]

    def of(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """The stored columns of a batch of the input."""
        return [batch.column(index) for index in self.indices]

    def row(self, columns: Sequence[T]) -> list[T]:
        """The input's columns, in its order, from the key columns followed by the stored ones."""
        return [columns[source] for source in self._sources]
