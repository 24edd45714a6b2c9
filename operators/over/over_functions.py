"""Functions that only OVER has: the position of a row among those of its key, and values of neighbouring rows.

Owns: ``row_number``, ``rank_``, ``dense_rank``, ``lag`` and ``lead``; ``PlaceFunction``, their kind.
Invariant: they depend only on the order of a key's rows, not on the frame.
Must not import anything of ``asyncstate`` but ``errors``.

Source: SQL's window functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from asyncstate.errors import SchemaError

from ..aggregate.aggregate_calls import Aggregate, AggregateKind, AggregateOutput, InputBinding
from ..core.operator_checks import check_number

PlaceName = Literal["row_number", "rank", "dense_rank", "lag", "lead"]


@dataclass(frozen=True)
class PlaceFunction(AggregateKind):
    """One such function; ``distance``: of ``lag`` and ``lead``, in rows."""

    name: PlaceName
    distance: int = 0

    def bind(self, binding: InputBinding) -> AggregateOutput:
        """Raise SchemaError: other operators have no order of rows."""
        raise binding.refuse("needs an order of rows; use it in OverAggregate")

    @property
    def is_offset(self) -> bool:
        """Whether its result is the value of another row."""
        return self.name in ("lag", "lead")

    def field(self, aggregate: Aggregate, schema: pa.Schema, owner: str) -> pa.Field:
        """Its output column. Raises SchemaError for a missing column, a filter or DISTINCT."""
        if aggregate.condition is not None or aggregate.is_distinct:
            raise SchemaError(
                f"{owner}: '{aggregate.name}' does not support where() and distinct(); leave them out"
            )
        if not self.is_offset:
            return pa.field(aggregate.name, pa.int64(), nullable=False)
        column = aggregate.column
        if column not in schema.names:
            raise SchemaError(
                f"{owner}: '{aggregate.name}' needs a column '{column}', which the input does not have; its columns "
                f"are: {', '.join(schema.names)}"
            )
        return pa.field(aggregate.name, schema.field(column).type)


def row_number() -> Aggregate:
    """1 for the first row of a key, 2 for the second, and so on: int64."""
    return Aggregate(PlaceFunction("row_number"))


def rank_() -> Aggregate:
    """As ``row_number``, but rows that are equal in the order have the number of the first of them."""
    return Aggregate(PlaceFunction("rank"))


def dense_rank() -> Aggregate:
    """As ``rank_``, without gaps: the number of distinct ranks up to the row."""
    return Aggregate(PlaceFunction("dense_rank"))


def lag(column: str, distance: int = 1) -> Aggregate:
    """The value of ``column`` in the row ``distance`` rows before, null without such a row."""
    return Aggregate(PlaceFunction("lag", _distance(distance, "lag")), (column,))


def lead(column: str, distance: int = 1) -> Aggregate:
    """The value of ``column`` in the row ``distance`` rows after, null without such a row."""
    return Aggregate(PlaceFunction("lead", _distance(distance, "lead")), (column,))


def _distance(given: int, name: str) -> int:
    check_number(given, 1, "distance", name)
    return given
