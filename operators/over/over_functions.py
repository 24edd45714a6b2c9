"""Functions that only OVER has: positions of a row among those of its key, and values of other rows.

Owns: ``row_number``, ``rank_``, ``dense_rank``, ``percent_rank``, ``cume_dist``, ``ntile``, ``lag``, ``lead`` and
``nth_value``; ``PlaceFunction``, their kind; ``Places``, the rows that they are computed for.
Invariant: they depend only on the order of a key's rows and, for ``nth_value``, on the frame.
Must not import anything of ``asyncstate`` but ``errors``.

Source: SQL's window functions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.errors import SchemaError

from ..aggregate.aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from ..core.arrays import BoolArray, Int64Array
from ..core.operator_checks import check_number
from .frames import Frame, Ordered


class Places(NamedTuple):
    """The ``asked`` rows (m) among ``rows`` (n).

    Keys had ``known`` (u) earlier rows in ``groups`` (u) groups of peers. ``first`` and ``last`` (m): the frames of the
    asked rows, empty where first > last. ``column`` (n): that of the function; None: it has none.
    """

    rows: Ordered
    asked: Int64Array
    known: Int64Array
    groups: Int64Array
    first: Int64Array
    last: Int64Array
    column: pa.Array | None = None

    @property
    def first_peers(self) -> Int64Array:
        """The first peer (n) of each row."""
        at = np.arange(len(self.rows.differs))
        first: Int64Array = np.maximum.accumulate(np.where(self.rows.differs, at, 0))
        return first

    @property
    def begins(self) -> Int64Array:
        """The first row (n) of the key of each row."""
        return np.repeat(self.rows.starts[:-1], self.rows.sizes)

    @property
    def sizes(self) -> Int64Array:
        """The number of rows (n) of the key of each row."""
        return np.repeat(self.rows.sizes, self.rows.sizes)


class PlaceFunction(AggregateKind):
    """One such function. ``result``: its type; None: that of its column."""

    result: pa.DataType | None = None
    is_nullable = True

    def bind(self, binding: InputBinding) -> AggregateOutput:
        """Raise SchemaError: other operators have no order of rows."""
        raise binding.refuse("needs an order of rows; use it in OverAggregate")

    @abstractmethod
    def values(self, places: Places) -> pa.Array:
        """The values (m) of the asked rows."""

    def in_time_refusal(self, frame: Frame) -> str | None:
        """What is missing if rows are emitted in order of time, with what to do; None: nothing."""
        return "needs all rows of a key; give order_by, so that rows are kept"

    def field(self, aggregate: Aggregate, schema: pa.Schema, owner: str) -> pa.Field:
        """Its output column. Raises SchemaError for a missing column, a filter or DISTINCT."""
        if aggregate.condition is not None or aggregate.is_distinct:
            raise SchemaError(
                f"{owner}: '{aggregate.name}' does not support where() and distinct(); leave them out"
            )
        if self.result is not None:
            return pa.field(aggregate.name, self.result, nullable=self.is_nullable)
        column = aggregate.column
        if column not in schema.names:
            raise SchemaError(
                f"{owner}: '{aggregate.name}' needs a column '{column}', which the input does not have; its columns "
                f"are: {', '.join(schema.names)}"
            )
        return pa.field(aggregate.name, schema.field(column).type)


@dataclass(frozen=True)
class Numbering(PlaceFunction):
    """Numbers from 1 on."""

    name: Literal["row_number", "rank", "dense_rank"]
    result = pa.int64()
    is_nullable = False

    def values(self, places: Places) -> pa.Array:
        """The values (m) of the asked rows."""
        rows, owners = places.rows, places.rows.owners
        if self.name == "dense_rank":
            passed = np.cumsum(rows.differs)
            begin = np.append(0, passed)[rows.starts[:-1]]
            numbers = passed - begin[owners] + places.groups[owners]
        else:
            first = np.arange(len(owners)) if self.name == "row_number" else places.first_peers
            numbers = first - places.begins + 1 + places.known[owners]
        return pa.array(numbers[places.asked])

    def in_time_refusal(self, frame: Frame) -> str | None:
        """What is missing if rows are emitted in order of time, with what to do; None: nothing."""
        if frame.kind == "unbounded":
            return None
        return "counts all rows of a key; use the frame unbounded(), or give order_by"


@dataclass(frozen=True)
class Share(PlaceFunction):
    """The part of a key's rows before a row, or up to it."""

    name: Literal["percent_rank", "cume_dist"]
    result = pa.float64()
    is_nullable = False

    def values(self, places: Places) -> pa.Array:
        """The values (m) of the asked rows."""
        sizes = places.sizes
        if self.name == "cume_dist":
            shares = (places.rows.last_peers - places.begins + 1) / sizes
        else:
            shares = (places.first_peers - places.begins) / np.maximum(sizes - 1, 1)
        return pa.array(shares[places.asked])


@dataclass(frozen=True)
class Tile(PlaceFunction):
    """The number of a row's part, if the key's rows are divided into ``parts``."""

    parts: int
    name: str = "ntile"
    result = pa.int64()
    is_nullable = False

    def values(self, places: Places) -> pa.Array:
        """See ``PlaceFunction``: the first parts have a row more than the others."""
        at, (size, longer) = (
            np.arange(len(places.begins)) - places.begins,
            np.divmod(places.sizes, self.parts),
        )
        in_longer = longer * (size + 1)
        tiles = np.where(at < in_longer, at // (size + 1), longer + (at - in_longer) // np.maximum(size, 1))
        return pa.array(tiles[places.asked] + 1)


@dataclass(frozen=True)
class Neighbour(PlaceFunction):
    """The value ``distance`` rows before or after, or ``default`` if there is no such row."""

    name: Literal["lag", "lead"]
    distance: int
    default: Any = None
    ignore_nulls: bool = False

    @property
    def text(self) -> str:
        """What it computes from its columns: the name and the other parameters."""
        default = f", default={self.default!r}" if self.default is not None else ""
        return (
            f"{self.name}[distance={self.distance}{default}{', ignore_nulls' if self.ignore_nulls else ''}]"
        )

    def field(self, aggregate: Aggregate, schema: pa.Schema, owner: str) -> pa.Field:
        """See ``PlaceFunction``. Raises SchemaError for a default of another type than the column's."""
        field = super().field(aggregate, schema, owner)
        try:
            pa.scalar(self.default, field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise SchemaError(
                f"{owner}: '{aggregate.name}' has the default {self.default!r}, which is no {field.type}; give a value "
                f"of the type of column '{aggregate.column}'"
            ) from error
        return field

    def values(self, places: Places) -> pa.Array:
        """The values (m) of the asked rows."""
        assert places.column is not None
        at, is_lead = places.asked, self.name == "lead"
        if self.ignore_nulls and self.distance:
            valued = _valued(places.column)
            passed = np.searchsorted(valued, at, "right" if is_lead else "left")
            other = _taken(valued, passed + self.distance - 1 if is_lead else passed - self.distance)
        else:
            other = at + (self.distance if is_lead else -self.distance)
        begins = places.begins[at]
        inside = (other >= begins) & (other < begins + places.sizes[at])
        found = places.column.take(pa.array(other, mask=~inside))
        if self.default is None:
            return found
        return pc.if_else(pa.array(inside), found, pa.scalar(self.default, found.type))

    def in_time_refusal(self, frame: Frame) -> str | None:
        """What is missing if rows are emitted in order of time, with what to do; None: nothing."""
        if self.name == "lead":
            return "needs later rows; give order_by, so that rows are kept"
        if self.ignore_nulls:
            return super().in_time_refusal(frame)
        if frame.kind == "rows" and frame.before is not None and frame.before >= self.distance:
            return None
        return (
            f"needs the row {self.distance} before; use the frame rows({self.distance}) or one of more rows, or give "
            "order_by"
        )


@dataclass(frozen=True)
class InFrame(PlaceFunction):
    """The ``n``-th value of the frame."""

    n: int
    from_last: bool = False
    ignore_nulls: bool = False
    name: str = "nth_value"

    def values(self, places: Places) -> pa.Array:
        """The values (m) of the asked rows."""
        assert places.column is not None
        first, last = places.first, places.last
        if self.ignore_nulls:
            valued = _valued(places.column)
            if self.from_last:
                other = _taken(valued, np.searchsorted(valued, last, "right") - self.n)
            else:
                other = _taken(valued, np.searchsorted(valued, first, "left") + self.n - 1)
        else:
            other = last - self.n + 1 if self.from_last else first + self.n - 1
        return places.column.take(pa.array(other, mask=(other < first) | (other > last)))


def _valued(column: pa.Array) -> Int64Array:
    """The rows (k) that are not null."""
    return np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))


def _taken(rows: Int64Array, indices: Int64Array) -> Int64Array:
    """Those of ``rows`` (k) at ``indices`` (m); -1 where there is none."""
    inside: BoolArray = (indices >= 0) & (indices < len(rows))
    return np.where(inside, np.append(rows, -1)[np.where(inside, indices, len(rows))], -1)


def row_number() -> Aggregate:
    """1 for the first row of a key, 2 for the second, and so on: int64."""
    return Aggregate(Numbering("row_number"))


def rank_() -> Aggregate:
    """As ``row_number``, but rows that are equal in the order have the number of the first of them."""
    return Aggregate(Numbering("rank"))


def dense_rank() -> Aggregate:
    """As ``rank_``, without gaps: the number of distinct ranks up to the row."""
    return Aggregate(Numbering("dense_rank"))


def percent_rank() -> Aggregate:
    """The rank minus 1, divided by the number of other rows of the key: float64, 0 for the only row."""
    return Aggregate(Share("percent_rank"))


def cume_dist() -> Aggregate:
    """The share of the key's rows up to the row, with its peers: float64."""
    return Aggregate(Share("cume_dist"))


def ntile(parts: int) -> Aggregate:
    """The part of the row, from 1 on, if the key's rows are divided into ``parts`` as equal as possible, the first ones
    a row longer: int64."""
    check_number(parts, 1, "parts", "ntile")
    return Aggregate(Tile(parts))


def lag(column: str, distance: int = 1, default: Any = None, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of ``column`` in the row ``distance`` rows before, ``default`` without such a row; with
    ``ignore_nulls`` only rows count in which it is not null."""
    return Aggregate(Neighbour("lag", _distance(distance, "lag"), default, ignore_nulls), (column,))


def lead(column: str, distance: int = 1, default: Any = None, *, ignore_nulls: bool = False) -> Aggregate:
    """The value of ``column`` in the row ``distance`` rows after; otherwise as ``lag``."""
    return Aggregate(Neighbour("lead", _distance(distance, "lead"), default, ignore_nulls), (column,))


def nth_value(column: str, n: int = 1, *, from_last: bool = False, ignore_nulls: bool = False) -> Aggregate:
    """The value of ``column`` in the ``n``-th row of the frame, or ``from_last`` from its end; null without such a row.

    With ``ignore_nulls`` only rows count in which it is not null. SQL's FIRST_VALUE is ``nth_value(column)``, its
    LAST_VALUE ``nth_value(column, from_last=True)``.
    """
    check_number(n, 1, "n", "nth_value")
    return Aggregate(InFrame(n, from_last, ignore_nulls), (column,))


def _distance(given: int, name: str) -> int:
    check_number(given, 0, "distance", name)
    return given
