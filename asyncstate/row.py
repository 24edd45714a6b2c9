"""The rows of record-grain operators: tuples whose values have the names of their columns.

Owns: ``Row``, ``Key``, and the classes for the columns of an input.
Invariant: a row is a plain tuple for comparing, hashing and unpacking; names cost nothing where they are not used.
Must not import anything of the project except ``errors``.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa

from asyncstate.errors import SchemaError

_SHOWN: Final = frozenset({"count", "index", "datetime"})
"""Methods of a row that columns of these names replace."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Row(tuple[Any, ...]):
    """A record's values: by position, by column name (``row["price"]``) or as an attribute (``row.price``).

    Columns called ``count``, ``index`` and ``datetime`` are also available as attributes, in place of the methods.
    """

    __slots__ = ()
    _fields: ClassVar[dict[str, int]] = {}
    _column_types: ClassVar[dict[str, pa.DataType]] = {}
    _what: ClassVar[str] = "row"

    def __getitem__(self, item: Any) -> Any:
        if type(item) is str:
            try:
                item = self._fields[item]
            except KeyError:
                raise SchemaError(self._unknown(item)) from None
        return tuple.__getitem__(self, item)

    def __getattr__(self, name: str) -> Any:
        # Columns are attributes; ``as_dict`` and the like keep their meaning in every row.
        raise AttributeError(self._unknown(name))

    def _unknown(self, name: str) -> str:
        return f"the {self._what} has no column '{name}'; its columns are: {', '.join(self._fields)}"

    def as_dict(self) -> dict[str, Any]:
        """Column name to value."""
        return dict(zip(self._fields, self, strict=True))

    def datetime(self, column: str) -> dt.datetime | None:
        """The value of a timestamp column, int64 microseconds, as an aware datetime in UTC; None for null.

        The clock of a timestamp without a time zone is read as UTC. Raises SchemaError for a column that does not exist
        or is no timestamp, and for a time before the year 1 or after 9999, which a datetime cannot be.
        """
        time_us = self[column]
        kind = self._column_types[column]
        if not pa.types.is_timestamp(kind):
            raise SchemaError(
                f"the {self._what}'s column '{column}' is of type {kind}, not a timestamp; declare or cast it as one, "
                "or read its value directly"
            )
        try:
            return None if time_us is None else _EPOCH + dt.timedelta(microseconds=time_us)
        except OverflowError:
            raise SchemaError(
                f"the {self._what}'s column '{column}' is {time_us} microseconds from 1970, outside the years 1 to "
                "9999 of a datetime; read the number directly"
            ) from None

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"


class Key(Row):
    """A record's key: a tuple of the values of the key columns, equal to a plain one, shown and pickled as one."""

    __slots__ = ()
    _what: ClassVar[str] = "key"

    def __getitem__(self, item: Any, _at: Callable[[Any, Any], Any] = tuple.__getitem__) -> Any:
        try:
            return _at(self, item)  # nearly always the requested one
        except TypeError:
            return super().__getitem__(item)

    def __repr__(self) -> str:
        return tuple.__repr__(self)

    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[list[Any]]]:
        return tuple, (list(self),)


R = TypeVar("R", bound=Row)


def row_type(schema: pa.Schema) -> type[Row]:
    """The Row class for ``schema``'s columns."""
    return _named(Row, schema)


def key_type(schema: pa.Schema) -> type[Key]:
    """The Key class for the key columns of ``schema``."""
    return _named(Key, schema)


@functools.lru_cache(maxsize=1_000)  # a class takes 0.1 ms, and each micro-batch asks for the same ones
def _named(base: type[R], schema: pa.Schema) -> type[R]:
    columns = {name: i for i, name in enumerate(schema.names)}
    # The descriptors by which a named tuple finds its fields: several times as fast as __getattr__, which is left for
    # errors.
    names: Any = [f"f{i}" for i in range(len(columns))]
    make: Callable[..., Any] = namedtuple
    named = make("named", names)
    found = {
        name: getattr(named, f"f{i}")
        for name, i in columns.items()
        if name in _SHOWN or not hasattr(base, name)
    }
    types = dict(zip(schema.names, schema.types, strict=True))
    known = {"__slots__": (), "_fields": columns, "_column_types": types}
    return type(base.__name__, (base,), {**found, **known})
