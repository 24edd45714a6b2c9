"""ORDER BY inside operators: the columns, their direction, and the position of nulls.

Owns: ``OrderColumn``, ``asc``, ``desc``, ``ARRIVAL``, and numbers that sort as the values of ordered columns do.
Invariant: equal values have equal numbers; NaN is the largest float and -0.0 equals 0.0, as in keys.
Must not import anything of ``asyncstate`` but ``operator``, ``codec`` and ``errors``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import check_key_type
from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.key_fields import to_ordered
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.value_columns import storage_dtype, to_storage, valid_mask
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec, SortKey

Codes = list[npt.NDArray[Any]]
"""Arrays (n) of numbers, the most significant first, that sort rows as their ordered columns do."""
Nulls = Literal["first", "last"]


class OrderColumn(SortKey):
    """One column of an order, always with a position for nulls; make it with ``asc`` or ``desc``."""

    __slots__ = ()

    def __new__(cls, column: str, descending: bool = False, nulls_first: bool = True) -> OrderColumn:
        """Create the column of an order; see ``SortKey`` for the fields."""
        return super().__new__(cls, column, descending, nulls_first)

    @property
    def text(self) -> str:
        """The column in the form that a checkpoint stores."""
        direction = "descending" if self.descending else "ascending"
        return f"{self.column} {direction} nulls {'first' if self.nulls_first else 'last'}"

    def __repr__(self) -> str:
        """The call that makes the column."""
        return f"{'desc' if self.descending else 'asc'}({self.column!r}{self._nulls_text})"

    @property
    def _nulls_text(self) -> str:
        usual = self.nulls_first is not self.descending
        return "" if usual else f", nulls={'first' if self.nulls_first else 'last'!r}"


class _Arrival(enum.Enum):
    """The order of arrival."""

    ARRIVAL = "arrival"


ARRIVAL: Final = _Arrival.ARRIVAL
"""Rows in order of arrival, the first one first: an order without columns."""

OrderBy = str | SortKey | OrderColumn | Sequence[str | SortKey | OrderColumn | tuple[str, str]] | _Arrival
"""A column (ascending), ``asc(column)``, ``desc(column)``, a list of these and of ``(column, "desc")``; ``ARRIVAL``."""


def asc(column: str, nulls: Nulls = "first") -> OrderColumn:
    """Smallest first."""
    return OrderColumn(column, False, _nulls_first(column, nulls))


def desc(column: str, nulls: Nulls = "last") -> OrderColumn:
    """Largest first."""
    return OrderColumn(column, True, _nulls_first(column, nulls))


def _nulls_first(column: str, nulls: str) -> bool:
    if nulls not in ("first", "last"):
        raise SchemaError(f"order of column '{column}': nulls is {nulls!r}; choose 'first' or 'last'")
    return nulls == "first"


def order_columns(given: OrderBy, owner: str) -> tuple[OrderColumn, ...]:
    """The columns of an order, as given, none for ``ARRIVAL``; SchemaError for anything that is not an order."""
    if given is ARRIVAL:
        return ()
    single = isinstance(given, str | SortKey | OrderColumn) or not isinstance(given, list | tuple)
    order = tuple(_order_column(one, owner) for one in ([given] if single else given))
    if not order:
        raise SchemaError(f"{owner}: order_by is empty; name at least one column")
    names = [one.column for one in order]
    if len(set(names)) < len(names):
        raise SchemaError(f"{owner}: order_by names a column twice ({', '.join(names)}); name each once")
    return order


def _order_column(given: Any, owner: str) -> OrderColumn:
    if isinstance(given, OrderColumn):
        return given
    if isinstance(given, SortKey):
        return desc(given.column) if given.descending else asc(given.column)
    if isinstance(given, str):
        return asc(given)
    if isinstance(given, list | tuple) and len(given) == 2 and given[1] in ("asc", "desc"):
        return desc(given[0]) if given[1] == "desc" else asc(given[0])
    raise SchemaError(
        f"{owner}: order_by has {given!r}, which is not a column; give a name, asc(name), desc(name) or "
        "(name, 'desc')"
    )


def sort_keys(order: Sequence[OrderColumn]) -> tuple[SortKey, ...]:
    """The order in the form that the engine accepts."""
    return tuple(SortKey(*one) for one in order)


def check_order(order: Sequence[OrderColumn], spec: InputSpec, owner: str) -> None:
    """SchemaError for columns that the input does not have or that have no order."""
    for one in order:
        name, _, direction = str(one.column).rpartition(" ")
        if one.column not in spec.schema.names and direction.lower() in ("asc", "desc"):
            raise SchemaError(
                f"{owner}: order_by: {spec.name} has no column '{one.column}'; a direction is not part of a "
                f"name: write {direction.lower()}('{name.strip()}')"
            )
        try:
            check_key_type(one.column, spec.column(one.column).type)
        except SchemaError as error:
            raise SchemaError(f"{owner}: order_by: {error}") from error


def order_codes(columns: Sequence[pa.Array], order: Sequence[OrderColumn]) -> Codes:
    """Codes of n rows from their ordered columns, one array (n) per column of ``order``."""
    return [code for column, one in zip(columns, order, strict=True) for code in _column_codes(column, one)]


def _column_codes(column: pa.Array, order: OrderColumn) -> Codes:
    dtype = storage_dtype(column.type)
    if dtype is None or dtype.subdtype is not None:
        values = rank_column(column)[0]
    else:
        values = to_ordered(to_storage(column))
    if order.descending:
        values = ~values
    valid = valid_mask(column)
    if valid is None:
        return [values]
    nulls = valid if order.nulls_first else ~valid
    return [nulls.view(np.uint8), np.where(valid, values, values.dtype.type(0))]


def sorted_by(
    codes: Codes, *, major: npt.NDArray[Any], minor: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.int64]:
    """The rows (n) sorted by ``major``, then their codes, then each of ``minor``."""
    return rows_by(major, *codes, *minor)


def differs_from_last(
    arrays: Sequence[npt.NDArray[Any]], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Where one of ``rows`` differs in one of ``arrays`` from the previous one; true for the first."""
    differs = np.zeros(len(rows), np.bool_)
    differs[:1] = True
    for array in arrays:
        values = array[rows]
        differs[1:] |= values[1:] != values[:-1]
    return differs


def order_levels(codes: Codes, num_rows: int) -> npt.NDArray[np.int64]:
    """One number per row that sorts as its codes do."""
    levels = np.zeros(num_rows, np.int64)
    if codes:
        rows = rows_by(*codes)
        levels[rows] = np.cumsum(differs_from_last(codes, rows))
    return levels
