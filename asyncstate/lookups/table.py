"""A table in memory as the place that a lookup join asks.

Owns: ``TableLookup``.
Invariant: the table is indexed once an ``open`` and never changed.
Must not import anything of ``asyncstate`` but ``errors`` and ``lookups.base``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncstate.errors import SchemaError
from asyncstate.lookups.base import Key, Lookup, Rows, rows_by_key


class TableLookup(Lookup):
    """A bounded table: an Arrow table, a pandas DataFrame, or a list of dicts. It travels with the operator.

    ``key``: the columns that are compared with what is sent; ``columns``: those of an answer, in the order of the
    operator's schema. SchemaError for columns that are not there.

    >>> table = TableLookup([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], ["id"], ["name"])
    >>> table.lookup([(1,), (2,)])
    [[('a',), ('b',)], []]
    """

    def __init__(self, table: Any, key: Sequence[str], columns: Sequence[str]) -> None:
        self.table = _arrow(table)
        self.key = tuple(key)
        self.columns = tuple(columns)
        self._index: Mapping[Key, Rows] | None = None
        for name in (*self.key, *self.columns):
            if name not in self.table.column_names:
                raise SchemaError(
                    f"TableLookup: the table has no column '{name}'; its columns are: "
                    f"{', '.join(self.table.column_names)}"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None}

    def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """See ``Lookup``."""
        if self._index is None:
            values = [self.table.column(name).to_pylist() for name in (*self.key, *self.columns)]
            rows = list(zip(*values, strict=True))
            distinct = list(dict.fromkeys(row[: len(self.key)] for row in rows))
            self._index = dict(zip(distinct, rows_by_key(distinct, rows), strict=True))
        return [self._index.get(key, ()) or [] for key in keys]


def _arrow(table: Any) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, list):
        return pa.Table.from_pylist(table)
    if hasattr(table, "columns") and hasattr(table, "iloc"):
        return pa.Table.from_pandas(table, preserve_index=False)
    raise SchemaError(
        f"TableLookup: the table is a {type(table).__name__}; give an Arrow table, a DataFrame of pandas or dicts"
    )
