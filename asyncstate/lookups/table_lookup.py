"""A table in memory as the source of a lookup join.

Owns: ``TableLookup``.
Invariant: the table is indexed once per ``open`` and never changed.
Must not import anything of ``asyncstate`` but ``codec``, ``errors`` and ``lookups.lookup_source``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from asyncstate.codec.from_python import UnfitValueError, arrow_column
from asyncstate.errors import SchemaError
from asyncstate.lookups.lookup_source import Key, Lookup, Rows, rows_by_key


class TableLookup(Lookup):
    """A bounded table: an Arrow table, a pandas DataFrame, or a list of dicts. It travels with the operator.

    ``key``: the columns that are compared with the sent values; ``columns``: those of an answer, in the order of the
    operator's schema. Raises SchemaError for missing columns, and for a key whose types differ from those sent.

    >>> table = TableLookup([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], ["id"], ["name"])
    >>> table.lookup([(1,), (2,)])
    [[('a',), ('b',)], []]
    """

    def __init__(self, table: Any, key: Sequence[str], columns: Sequence[str]) -> None:
        self.table = _arrow(table)
        self.key = _names("key", key)
        self.columns = _names("columns", columns)
        self._index: Mapping[Key, Rows] | None = None
        for name in (*self.key, *self.columns):
            if name not in self.table.column_names:
                raise SchemaError(
                    f"TableLookup: the table has no column '{name}'; its columns are: "
                    f"{', '.join(self.table.column_names)}"
                )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None}

    def check(self, keys: pa.Schema, columns: pa.Schema) -> None:
        """Raise SchemaError if it does not support such ``keys``, or has no such ``columns``; called once, before
        rows."""
        for what, own, other in (("key", self.key, keys), ("columns", self.columns, columns)):
            if len(own) != len(other):
                raise SchemaError(
                    f"TableLookup: {what}={list(own)} names {len(own)} columns, but the join has {len(other)}: "
                    f"{', '.join(other.names)}. Name one column of the table for each, in that order"
                )
        for name, sent in zip(self.key, keys, strict=True):
            kind = self.table.schema.field(name).type
            if _is_float_and_decimal(kind, sent.type):
                raise SchemaError(
                    f"TableLookup: the table's column '{name}' is of type {kind}, and '{sent.name}' of type "
                    f"{sent.type}: 0.1 as a float is not the decimal 0.1, so most rows would find nothing; cast one of "
                    "them"
                )
            if _family(kind) != _family(sent.type):
                raise SchemaError(
                    f"TableLookup: the table's column '{name}' is of type {kind} and can never equal a value of "
                    f"'{sent.name}' of type {sent.type}; cast one of them"
                )

    def lookup(self, keys: Sequence[Key]) -> list[Rows]:
        """The rows of each key, in the order of ``keys``; None means no rows."""
        if self._index is None:
            values = [self.table.column(name).to_pylist() for name in (*self.key, *self.columns)]
            rows = list(zip(*values, strict=True))
            distinct = list(dict.fromkeys(row[: len(self.key)] for row in rows))
            self._index = dict(zip(distinct, rows_by_key(distinct, rows), strict=True))
        return [self._index.get(key, ()) or [] for key in keys]


def _names(what: str, given: object) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise SchemaError(f"TableLookup: {what} is {given!r}; give a list of the names of columns")
    return tuple(str(name) for name in names)


def _is_float_and_decimal(one: pa.DataType, other: pa.DataType) -> bool:
    kinds = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other)]
    return any(map(pa.types.is_floating, kinds)) and any(map(pa.types.is_decimal, kinds))


def _family(kind: pa.DataType) -> object:
    """The same result for two types whose values can be equal in Python."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_timestamp(kind):
        return "timestamp", kind.tz is None
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_time(kind):
        return "time"
    if pa.types.is_duration(kind):
        return "duration"
    return pa.date32() if pa.types.is_date64(kind) else kind


def _inferred(name: str, values: list[Any]) -> pa.Array:
    """A column of values of one type, kept as they are: without a type Arrow turns mixed dates and datetimes into
    dates."""
    try:
        return arrow_column(values, pa.infer_type(values))
    except UnfitValueError as error:
        found = f"row {error.row} has, in column '{name}', {error}"
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        found = f"column '{name}': {error}"
    raise SchemaError(
        f"TableLookup: the rows cannot be made into a table: {found}; give each column "
        "values of one type, or an Arrow table"
    )


def _arrow(table: Any) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, list) and all(isinstance(row, Mapping) for row in table):
        names = list(dict.fromkeys(name for row in table for name in row))
        return pa.table({name: _inferred(name, [row.get(name) for row in table]) for name in names})
    if hasattr(table, "columns") and hasattr(table, "iloc"):
        return pa.Table.from_pandas(table, preserve_index=False)
    raise SchemaError(
        f"TableLookup: the table is a {type(table).__name__}; give an Arrow table, a pandas DataFrame or a list of "
        "dicts, one per row"
    )
