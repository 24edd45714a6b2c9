"""The parts aggregates are made of: each keeps one state column and knows how rows and states are combined.

Owns: ``Accumulator`` and its three kinds, ``Count``, ``Sum`` and ``Extreme``.
Invariant: lifting rows and combining them in any grouping and order gives the same state (floats: up to
rounding), so the same parts serve bundles, windows, shared slices and both phases of a two-phase aggregation.
Must not import anything of ``asyncstate`` but ``codec``, ``errors`` and ``local_phase``.

Source: the accumulate, retract and merge functions of Flink's built-in aggregates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.errors import OperatorError
from asyncstate.local_phase import LocalColumn, LocalFunction
from operators.core.arrays import BoolArray, Int8Array
from operators.core.segments import (
    Groups,
    group_extreme,
    group_sum,
    group_sum_decimal,
    group_sum_halves,
    narrow_decimal,
    pair_extreme,
)

_LOCAL_DIGITS = 28
"""Decimals of more digits are not summed by a local phase: ten billion others still fit the 38 digits of a sum."""


class Accumulator(ABC):
    """One state column.

    A *state* is an array of ``field.type``; null stands for nothing accumulated yet, as for a key without
    state. ``column`` is None for a count of rows; only rows whose ``condition`` column is true take part.
    """

    def __init__(
        self, owner: str, label: str, column: str | None, condition: str | None, state: pa.DataType
    ) -> None:
        parts = [label] + ([column] if column else []) + ([f"where.{condition}"] if condition else [])
        self.owner = owner
        self.column = column
        self.condition = condition
        # Only an extreme can be null once there is a row; an aggregate that is added later, to a state that
        # knows nothing of the rows before, must not pass for one that may be null.
        self.field = pa.field(".".join(parts), state, nullable=isinstance(self, Extreme))

    @abstractmethod
    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> pa.Array:
        """The states of n rows alone; ``signs`` (n): +1, -1 (retraction) or 0 (ignored), None for all +1."""

    @abstractmethod
    def combine(self, states: pa.Array, groups: Groups) -> pa.Array:
        """The states (n) of each group as one (u)."""

    @abstractmethod
    def merge(self, state: pa.Array, partial: pa.Array) -> pa.Array:
        """Two states row by row (u)."""

    def local(self) -> tuple[LocalColumn, ...] | None:
        """What a local phase computes for this part; None: it needs the rows themselves."""
        return None

    def gather(self, columns: Sequence[pa.Array], groups: Groups) -> pa.Array:
        """The states of each group (u) from the columns (n each) that ``local`` asks for."""
        return self.combine(columns[0], groups)

    def _local(self, function: LocalFunction, result: pa.DataType) -> LocalColumn:
        return LocalColumn(function, result, self.column, self.condition)

    def chosen(self, batch: pa.RecordBatch) -> BoolArray | None:
        """Rows (n) that take part: value not null and condition true. None for all."""
        mask: BoolArray | None = None
        if self.column is not None:
            values = batch.column(self.column)
            if values.null_count:
                mask = pc.is_valid(values).to_numpy(zero_copy_only=False)
        if self.condition is not None:
            met = batch.column(self.condition)
            met = (met.fill_null(False) if met.null_count else met).to_numpy(zero_copy_only=False)
            mask = met if mask is None else mask & met
        return mask


class Count(Accumulator):
    """Rows, or values that are not null: int64."""

    def __init__(self, owner: str, column: str | None, condition: str | None) -> None:
        super().__init__(owner, "count" if column or condition else "count1", column, condition, pa.int64())

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> pa.Array:
        """See ``Accumulator``."""
        ones = np.ones(batch.num_rows, np.int64) if signs is None else signs.astype(np.int64)
        mask = self.chosen(batch)
        return pa.array(ones if mask is None else ones * mask)

    def combine(self, states: pa.Array, groups: Groups) -> pa.Array:
        """See ``Accumulator``."""
        return pa.array(group_sum(_filled(states).to_numpy(), groups))

    def merge(self, state: pa.Array, partial: pa.Array) -> pa.Array:
        """See ``Accumulator``."""
        return pc.add(_filled(state), _filled(partial))

    def local(self) -> tuple[LocalColumn, ...]:
        """See ``Accumulator``."""
        return (self._local(LocalFunction.COUNT, pa.int64()),)


class Sum(Accumulator):
    """The sum of a column: int64 of integers, float64 of floats, decimal128(38, s) of decimals; no wrap."""

    def __init__(self, owner: str, column: str, condition: str | None, input_type: pa.DataType) -> None:
        super().__init__(owner, "sum", column, condition, sum_type(input_type))
        self._input_type = input_type

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> pa.Array:
        """See ``Accumulator``."""
        values = _filled(batch.column(self.column).cast(self.field.type))
        mask = self.chosen(batch)
        if signs is not None:
            mask = (signs != 0) if mask is None else mask & (signs != 0)
        if mask is not None and not mask.all():
            values = pc.if_else(pa.array(mask), values, pa.scalar(0, pa.int64()).cast(values.type))
        if signs is None or not bool((signs < 0).any()):
            return values
        with _Refusal(self):
            return pc.if_else(pa.array(signs < 0), _negated(values), values)

    def combine(self, states: pa.Array, groups: Groups) -> pa.Array:
        """See ``Accumulator``."""
        states = _filled(states)
        with _Refusal(self):
            if pa.types.is_decimal(states.type):
                return group_sum_decimal(states, groups)
            return pa.array(group_sum(states.to_numpy(), groups))

    def merge(self, state: pa.Array, partial: pa.Array) -> pa.Array:
        """See ``Accumulator``."""
        state, partial = _filled(state), _filled(partial)
        with _Refusal(self):
            if not pa.types.is_decimal(state.type):
                return pc.add_checked(state, partial)
            wide = pa.decimal256(38, state.type.scale)
            return narrow_decimal(pc.add(state.cast(wide), partial.cast(wide)), state.type)

    def local(self) -> tuple[LocalColumn, ...] | None:
        """See ``Accumulator``."""
        if self._input_type == pa.int64():
            halves = (LocalFunction.SUM_HIGH, LocalFunction.SUM_LOW)
            return tuple(self._local(half, pa.int64()) for half in halves)
        if pa.types.is_decimal(self._input_type) and self._input_type.precision > _LOCAL_DIGITS:
            return None
        return (self._local(LocalFunction.SUM, self.field.type),)

    def gather(self, columns: Sequence[pa.Array], groups: Groups) -> pa.Array:
        """See ``Accumulator``."""
        if len(columns) == 1:
            return self.combine(columns[0], groups)
        high, low = (_filled(column).to_numpy() for column in columns)
        with _Refusal(self):
            return pa.array(group_sum_halves(high, low, groups))


class Extreme(Accumulator):
    """The smallest or largest value of a column, of any type that can be a key; NaN is the largest float.

    It cannot give values back: rows that are retracted do not lower it (see ``operators.aggregate.value_log``).
    """

    def __init__(
        self,
        owner: str,
        column: str,
        condition: str | None,
        input_type: pa.DataType,
        largest: bool,
        retract: bool = False,
    ) -> None:
        # Another name where values are kept beside it: a state without them cannot take values back.
        label = ("current_" if retract else "") + ("max" if largest else "min")
        super().__init__(owner, label, column, condition, input_type)
        self.largest = largest
        self._retract = retract

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> pa.Array:
        """See ``Accumulator``."""
        values = batch.column(self.column)
        mask: npt.NDArray[Any] | None = None if self.condition is None else self.chosen(batch)
        if signs is not None:
            mask = signs > 0 if mask is None else mask & (signs > 0)
        if mask is None or mask.all():
            return values
        return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))

    def combine(self, states: pa.Array, groups: Groups) -> pa.Array:
        """See ``Accumulator``."""
        return group_extreme(states, groups, self.largest)

    def merge(self, state: pa.Array, partial: pa.Array) -> pa.Array:
        """See ``Accumulator``."""
        return pair_extreme(state, partial, self.largest)

    def local(self) -> tuple[LocalColumn, ...] | None:
        """See ``Accumulator``."""
        if self._retract:
            return None
        return (self._local(LocalFunction.MAX if self.largest else LocalFunction.MIN, self.field.type),)


def sum_type(input_type: pa.DataType) -> pa.DataType | None:
    """The type of a sum over ``input_type``; None where there is none."""
    if pa.types.is_signed_integer(input_type):
        return pa.int64()
    if input_type in (pa.float32(), pa.float64()):
        return pa.float64()
    return pa.decimal128(38, input_type.scale) if pa.types.is_decimal128(input_type) else None


def _filled(column: pa.Array) -> pa.Array:
    if not column.null_count:
        return column
    return column.fill_null(pa.scalar(0, pa.int64()).cast(column.type))


def _negated(values: pa.Array) -> pa.Array:
    return pc.negate(values) if pa.types.is_decimal(values.type) else pc.negate_checked(values)


class _Refusal:
    """Turns an overflow inside the block into an error that names operator and column."""

    def __init__(self, accumulator: Accumulator) -> None:
        self._accumulator = accumulator

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OverflowError | pa.ArrowInvalid):
            part = self._accumulator
            raise OperatorError(
                f"{part.owner}: the sum of column '{part.column}' does not fit {part.field.type}; "
                "cast the column to decimal(38, 0) or double before the operator, or filter out wrong values"
            ) from error
