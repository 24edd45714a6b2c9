"""Converts a row as the author of an operator or function writes it to the values of an output row.

Owns: ``RowShape``.
Invariant: the result has one value per column, in the columns' order.
Must not import anything of the project except ``errors``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from asyncstate.errors import SchemaError

_ROWS: Final = (tuple, dict)
_RETURN: Final = (
    "the function returned",
    "return a tuple with one value per column, or a dict with these names (None for null)",
)
_EMIT: Final = (
    "emit() got",
    "give one value per column, in order or by name (None for null), or one tuple or dict",
)


class RowShape:
    """Rows of ``schema`` as functions return them or pass them to ``emit``.

    ``owner`` is the name of the operator or output in errors; ``emits``: they name ``emit``, not a function's result.

    >>> shape = RowShape(pa.schema([("word", pa.string()), ("count", pa.int64())]), "KeyedMap")
    >>> shape.values(("a", 1)), shape.values({"count": 1, "word": "a"})
    (('a', 1), ('a', 1))
    >>> RowShape(pa.schema([("word", pa.string())]), "KeyedMap").values("a")
    ('a',)
    >>> shape.emitted((), {"count": 1, "word": "a"})
    ('a', 1)
    """

    __slots__ = (
        "_dict_is_value",
        "_emits",
        "_named_alone",
        "_names",
        "_owner",
        "nested",
        "nested_alone",
        "width",
    )

    def __init__(self, schema: pa.Schema, owner: str, emits: bool = False) -> None:
        self._names: list[str] = list(schema.names)
        self.width = len(self._names)
        self._owner = owner
        self._emits = emits
        alone = schema.types[0] if self.width == 1 else None
        self.nested = any(map(pa.types.is_nested, schema.types))
        """Whether a column is a list, map or struct, whose values can be changed later."""
        self.nested_alone = alone is not None and pa.types.is_nested(alone)
        """Whether the only column is a list, map or struct: ``emit`` takes a tuple or dict for its value."""
        # a struct or map alone in its row: a dict is its value, not the row
        self._dict_is_value = self.nested_alone and (pa.types.is_struct(alone) or pa.types.is_map(alone))
        # unless it cannot be one: a list is no dict, and a struct has no field of the column's name
        fields = schema.types[0].names if self._dict_is_value and pa.types.is_struct(alone) else []
        self._named_alone = self.nested_alone and not pa.types.is_map(alone) and self._names[0] not in fields

    def values(self, row: Any) -> tuple[Any, ...]:
        """One value per column; SchemaError for what is no row of the schema."""
        if isinstance(row, tuple):
            if len(row) != self.width:
                raise self._refusal(f"a tuple of {len(row)} values")
            return row
        if isinstance(row, dict) and (not self._dict_is_value or self._is_named(row)):
            return self._by_name(row, "a dict")
        if self.width == 1:
            return (row,)
        raise self._refusal(repr(row))

    def kept(self, values: tuple[Any, ...], columns: Mapping[str, Any]) -> tuple[Any, ...]:
        """As ``emitted``, but one value for one column is accepted as it is. Lists, maps and structs are copied: they
        may change before they become columns."""
        row = values if len(values) == self.width and not columns else self.emitted(values, columns)
        return tuple(map(_copied, row)) if self.nested else row

    def emitted(self, values: tuple[Any, ...], columns: Mapping[str, Any]) -> tuple[Any, ...]:
        """The row that ``emit(*values, **columns)`` means: one value per column, one tuple or dict of them, or columns
        by name. Raises SchemaError for what is none of these."""
        if columns:
            if values:
                raise self._refusal(f"{len(values)} values and {_listed(columns)} by name")
            return self._by_name(columns, "columns by name")
        is_row = len(values) == 1 and isinstance(values[0], _ROWS)
        if is_row and (not self.nested_alone or self._is_named(values[0])):
            return self.values(values[0])
        if len(values) != self.width:
            raise self._refusal(f"{len(values)} values" if len(values) != 1 else repr(values[0]))
        return values

    def _is_named(self, row: Any) -> bool:
        """Whether the value of a single nested column is under the column's name."""
        return self._named_alone and isinstance(row, dict) and list(row) == self._names

    def _by_name(self, row: Mapping[str, Any], what: str) -> tuple[Any, ...]:
        try:
            values = tuple([row[name] for name in self._names])
        except KeyError:
            values = ()
        if len(values) != len(row) or len(values) != self.width:
            raise self._refusal(self._difference(row, what))
        return values

    def _difference(self, row: Mapping[str, Any], what: str) -> str:
        missing = [name for name in self._names if name not in row]
        unknown = [name for name in row if name not in self._names]
        parts = [f"without {_listed(missing)}"] if missing else []
        if unknown:
            parts.append(
                f"with {_listed(unknown)}, which {'are not columns' if unknown[1:] else 'is not a column'},"
            )
        return f"{what} {' and '.join(parts)}"

    def _refusal(self, found: str) -> SchemaError:
        doing, advice = _EMIT if self._emits else _RETURN
        return SchemaError(
            f"{self._owner}: {doing} {found} for a row of {self.width} columns: {', '.join(self._names)}; {advice}"
        )


_CONSTANT: Final = frozenset({bool, bytes, float, int, str, type(None)})


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _CONSTANT:
        return value
    if kind is list:
        return [one if type(one) in _CONSTANT else _copied(one) for one in value]
    if kind is dict:
        return {name: _copied(one) for name, one in value.items()}
    with suppress(Exception):  # what cannot be copied is refused when its column is made
        return copy.deepcopy(value)
    return value


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names)
