"""Timestamps inside Arrow types, at any depth, as the integers of stored rows.

Owns: ``in_microseconds``, ``in_utc``, ``has_timestamps``, ``integers``, ``event_times``, ``as_python``,
``python_values`` and ``with_leaves``.
Invariant: only timestamps change, and instants stay: they are the same number in every zone, so that all but ``in_utc``
leave zones as they are.
Must not import anything of the project except errors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.errors import SchemaError


@lru_cache(maxsize=4096)
def has_timestamps(arrow_type: pa.DataType) -> bool:
    """Whether the type is a timestamp or has one inside lists, structs or maps."""
    if pa.types.is_timestamp(arrow_type):
        return True
    return any(has_timestamps(arrow_type.field(index).type) for index in range(arrow_type.num_fields))


@lru_cache(maxsize=4096)
def in_microseconds(arrow_type: pa.DataType) -> pa.DataType:
    """The type with all timestamps in microseconds; the type itself if they already are."""
    if not has_timestamps(arrow_type):
        return arrow_type
    return with_leaves(
        arrow_type, lambda one: pa.timestamp("us", one.tz) if pa.types.is_timestamp(one) else one
    )


@lru_cache(maxsize=4096)
def in_utc(arrow_type: pa.DataType) -> pa.DataType:
    """The type with all timestamps that have a zone in UTC; Spark gives them in the zone of its session."""
    if not has_timestamps(arrow_type):
        return arrow_type
    return with_leaves(
        arrow_type,
        lambda one: (
            pa.timestamp(one.unit, "UTC") if pa.types.is_timestamp(one) and one.tz is not None else one
        ),
    )


@lru_cache(maxsize=4096)
def _as_integers(arrow_type: pa.DataType) -> pa.DataType:
    return with_leaves(arrow_type, lambda one: pa.int64() if pa.types.is_timestamp(one) else one)


def microsecond_struct(schema: pa.Schema) -> pa.DataType:
    """The struct type of rows of ``schema`` as operators see them, for the declaration of a state of whole rows."""
    return in_microseconds(pa.struct(list(schema)))


def integers(column: pa.Array) -> pa.Array:
    """The column with its timestamps as stored int64, in their unit; unchanged without any."""
    return column.cast(_as_integers(column.type)) if has_timestamps(column.type) else column


def event_times(column: pa.Array) -> npt.NDArray[np.int64]:
    """A timestamp column as int64 microseconds; finer units are truncated, nulls are 0."""
    if column.type.unit != "us":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    numbers = column.view(pa.int64())
    times: npt.NDArray[np.int64] = (numbers.fill_null(0) if numbers.null_count else numbers).to_numpy()
    return times


def as_python(column: pa.Array, name: str = "") -> list[Any]:
    """The values of column ``name``, timestamps as integers in their unit; SchemaError for a date beyond Python's."""
    try:
        return integers(column).to_pylist()  # type: ignore[no-any-return]
    except OverflowError as error:
        which = f"column '{name}'" if name else "a column"
        raise SchemaError(
            f"{which} has a date outside the years 1 to 9999, which Python cannot represent; filter such rows "
            "out before the operator, or pass the number of days (unix_date)"
        ) from error


def python_values(column: pa.Array, name: str = "") -> list[Any]:
    """A column's values as functions see them: timestamps, at any depth, are int64 microseconds."""
    plain = in_microseconds(column.type)
    return as_python(column if plain == column.type else column.cast(plain), name)


def with_leaves(arrow_type: pa.DataType, convert: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with ``convert`` applied to each flat type in it, at any depth."""

    def converted(field: pa.Field) -> pa.Field:
        return field.with_type(with_leaves(field.type, convert))

    if pa.types.is_list(arrow_type):
        return pa.list_(converted(arrow_type.value_field))
    if pa.types.is_large_list(arrow_type):
        return pa.large_list(converted(arrow_type.value_field))
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.list_(converted(arrow_type.value_field), arrow_type.list_size)
    if pa.types.is_map(arrow_type):
        return pa.map_(converted(arrow_type.key_field), converted(arrow_type.item_field))
    if pa.types.is_struct(arrow_type):
        return pa.struct([converted(field) for field in arrow_type])
    return convert(arrow_type)
