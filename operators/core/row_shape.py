"""A row as a function of the user's own returns it, made into the values of an output row.

Owns: ``RowShape``.
Must not import anything of ``asyncstate`` but ``errors``.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from asyncstate.errors import SchemaError


class RowShape:
    """Rows of ``schema`` as functions return them; ``owner`` is how errors name the operator.

    >>> shape = RowShape(pa.schema([("word", pa.string()), ("count", pa.int64())]), "KeyedMap")
    >>> shape.values(("a", 1)), shape.values({"count": 1, "word": "a"})
    (('a', 1), ('a', 1))
    >>> RowShape(pa.schema([("word", pa.string())]), "KeyedMap").values("a")
    ('a',)
    """

    __slots__ = ("_dict_is_value", "_names", "_owner", "_width")

    def __init__(self, schema: pa.Schema, owner: str) -> None:
        self._names: list[str] = list(schema.names)
        self._width = len(self._names)
        self._owner = owner
        # a struct or map alone in its row: a dict is its value, not the row
        self._dict_is_value = self._width == 1 and (
            pa.types.is_struct(schema.types[0]) or pa.types.is_map(schema.types[0])
        )

    def values(self, row: Any) -> tuple[Any, ...]:
        """A value a column; SchemaError for what is no row of the schema."""
        if isinstance(row, tuple):
            if len(row) != self._width:
                raise self._refusal(f"a tuple of {len(row)} values")
            return row
        if isinstance(row, dict) and not self._dict_is_value:
            if len(row) != self._width or not row.keys() <= set(self._names):
                raise self._refusal(f"a dict of {', '.join(map(str, row)) or 'nothing'}")
            return tuple([row[name] for name in self._names])
        if self._width == 1:
            return (row,)
        raise self._refusal(repr(row))

    def _refusal(self, found: str) -> SchemaError:
        return SchemaError(
            f"{self._owner}: the function returned {found} for a row of {self._width} columns: "
            f"{', '.join(self._names)}; return a tuple with a value a column, or a dict with these names"
        )
