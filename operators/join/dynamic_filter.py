"""DynamicFilter: rows whose value compares with a single value that changes.

Owns: the operator and ``Comparison``.
Invariant: after every micro-batch the netted output is the rows whose ``column`` compares with the bound. If the bound
changes, only rows between the old and the new one are read and emitted.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``durations``, ``errors``, ``futures``,
``growth``, ``operator`` and ``state``.

Source: RisingWave's ``DynamicFilterExecutor``, which keeps its left rows in the order of the compared value, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog, RowKind
from asyncstate.codec import check_key_type
from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.key_fields import to_ordered
from asyncstate.codec.value_columns import storage_dtype, to_storage
from asyncstate.durations import Duration, duration_text, microseconds
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.growth import StateGrowth, bounded_by
from asyncstate.operator import Bundle, BundleContext, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.broadcast_state import BroadcastStateDescriptor

from ..core.arrays import BoolArray, Int64Array, take_rows, valid_rows
from ..core.operator_checks import check_choice
from ..core.state_meaning import meaning
from .one_row_input import EVERYTHING, OneRow, OneRowInput

Comparison = Literal["<", "<=", ">", ">=", "="]

_DAY_US: Final = 86_400_000_000
_HIGHEST: Final = 0
"""The key of the highest bound."""


class DynamicFilter(OneRowInput):
    """The rows of the first input whose ``column`` compares with ``bound``, a column of the second input, which has one
    row at most.

    The filter of a query such as ``WHERE total > (SELECT 0.01 * sum(value) FROM ...)``. The second input is broadcast:
    every partition gets its row, so the first input keeps its key and its partitions::

        DynamicFilter("total", ">", "limit")  # key=["product", None]

    No row of the first input passes while the second one has no row, or null in ``bound``; a null in ``column`` never
    passes. NaN is the largest float, and equals itself. Both columns have the same type.

    Output: the columns of the first input: +I for rows that pass, -D for rows that do so no longer. First come the rows
    that a new bound lets in or out: only those between the old and the new one are read. Then those of the micro-batch.
    Retractions of rows that are not there are dropped and counted (``retractions_without_state``).

    ``falls_max``, for bounds that are times or dates: how far the bound may fall below the highest one there was, such
    as "0 seconds" for a clock. Rows with lower values cannot change any more, so they are not kept: with ``>`` and
    ``>=`` they are gone for good, with ``<`` and ``<=`` they pass for good, and retractions of them pass as they come.

    State: ``rows``, all rows of the first input with a value, in the order of their values; ``one_row``, the bound.
    With ``falls_max`` only the rows that may still change, and ``highest``, the highest bound.

    Raises SchemaError for columns that do not fit, and OperatorError if the second input has several rows, or its bound
    falls by more than ``falls_max``.
    """

    def __init__(
        self, column: str, comparison: Comparison, bound: str, falls_max: Duration | None = None
    ) -> None:
        check_choice(comparison, get_args(Comparison), "comparison", self.owner)
        self.column = column
        self.comparison: Comparison = comparison
        self.bound = bound
        self.falls_max = falls_max
        self._falls_us = None if falls_max is None else microseconds(falls_max, self.owner, "falls_max")
        if self._falls_us is not None and (self._falls_us < 0 or comparison == "="):
            raise SchemaError(
                f"{self.owner}: falls_max is {falls_max!r} and comparison {comparison!r}; give a duration that is not "
                "negative, and a comparison by <, <=, > or >="
            )

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The columns of the first input."""
        spec, other = inputs
        kind, bound = spec.column(self.column).type, other.column(self.bound).type
        if kind != bound:
            raise SchemaError(
                f"{self.owner}: column '{self.column}' of {spec.name} is {kind} but '{self.bound}' of {other.name} is "
                f"{bound}; cast one of them"
            )
        check_key_type(self.column, kind)
        if self._falls_us is not None and not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
            raise SchemaError(
                f"{self.owner}: column '{self.column}' of {spec.name} is {kind}, and falls_max is for timestamps and "
                "dates; leave it out"
            )
        return OutputSpec(spec.schema, changes=Changelog.retract(*spec.changes.unique_keys))

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows were emitted, and which are kept."""
        found = meaning(self, column=self.column, comparison=self.comparison, bound=self.bound)
        return found if self._falls_us is None else {**found, "falls_max": duration_text(self._falls_us)}

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """How the stored state grows, for ``explain()``."""
        ahead = bounded_by("rows ahead of the bound")
        return super().state_growth(inputs) if self._falls_us is None else ahead

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        super().open(context)
        self._at = context.inputs[0].schema.get_field_index(self.column)
        self._kind = context.inputs[0].schema.field(self._at).type
        if self._falls_us is not None:
            self._highest = context.get_state(BroadcastStateDescriptor("highest", pa.int64(), pa.int64()))

    # -- rows that cannot change any more ------------------------------------------------------------------

    def process_broadcast(self, rows: Bundle, ctx: BundleContext) -> Iterator[None] | None:
        passed = self._passed()
        steps = super().process_broadcast(rows, ctx)
        if self._falls_us is None or steps is None:
            return steps
        self._note_highest(self._one_row())
        return self._forgetting(steps, passed)

    def _note_highest(self, one: OneRow) -> None:
        """Remember the highest bound. Raises OperatorError if this one is too low."""
        highest = self._highest.get(_HIGHEST)
        bound = None if one is None else _numbers(one[0])[0]
        lowest = None if highest is None else highest - self._falls()
        if lowest is not None and (bound is None or bound < lowest):
            raise OperatorError(
                f"{self.owner}: the bound '{self.bound}' has fallen by more than falls_max, {self.falls_max!r}, or is "
                "gone, and the rows that this would change are not kept; leave falls_max out, or give a longer one"
            )
        if bound is not None and (highest is None or bound > highest):
            self._highest.put(_HIGHEST, bound)

    def _falls(self) -> int:
        """``falls_max`` in the unit of the column."""
        assert self._falls_us is not None
        return -(-self._falls_us // _DAY_US) if pa.types.is_date(self._kind) else self._falls_us

    def _passed(self) -> int | None:
        """The code below which no row is kept; None: all are."""
        highest = None if self._falls_us is None else self._highest.get(_HIGHEST)
        if highest is None:
            return None
        kind, bits = _number_type(self._kind)
        number = max(highest - self._falls(), -(1 << bits - 1))
        return int(value_codes(pa.array([number], kind).cast(self._kind))[0])

    def _forgetting(self, steps: Iterator[None], before: int | None) -> Iterator[None]:
        """``steps``, after which the rows are removed that the bound has passed."""
        yield from steps
        until, start = self._passed(), EVERYTHING[0][0] if before is None else before
        if until is not None and start < until:
            self._rows.remove_up_to(until - 1, start)

    def without_settled(self, bundle: Bundle, rows: Int64Array, ctx: BundleContext) -> Int64Array:
        """See ``OneRowInput``: rows that the bound has passed do not change any more."""
        passed = self._passed()
        if passed is None:
            return rows
        is_settled = self.codes(take_rows(bundle.batch.columns, rows)) < passed
        settled = rows[is_settled]
        if len(settled) and self.comparison in ("<", "<="):
            kinds = np.where(bundle.accumulate[settled], RowKind.INSERT.value, RowKind.DELETE.value)
            ctx.emit(take_rows(bundle.batch.columns, settled), kinds.astype(np.int8))
        return rows[~is_settled]

    # -- the one row -----------------------------------------------------------------------------------------

    def one_row_columns(self, spec: InputSpec) -> Sequence[str]:
        """The columns of the second input that matter."""
        return [self.bound]

    def counted(self, columns: Sequence[pa.Array]) -> BoolArray | None:
        """Which rows (n) can ever be emitted; None: all."""
        return valid_rows([columns[self._at]])

    def codes(self, columns: Sequence[pa.Array]) -> Int64Array:
        """A number (n) for each row, by which rows are found again."""
        return value_codes(columns[self._at])

    def affected(self, old: OneRow, new: OneRow) -> Sequence[tuple[int, int]]:
        """See ``OneRowInput``: the values that pass one of the bounds alone."""
        bounds = [one[0] for one in (old, new) if one is not None and not one[0].null_count]
        codes = [int(value_codes(bound)[0]) for bound in bounds]
        if not codes:
            return []
        if self.comparison == "=":
            return [(code, code) for code in dict.fromkeys(codes)]
        if len(codes) == 2:
            return [(min(codes), max(codes))]
        ((lowest, highest),) = EVERYTHING
        return [(lowest, codes[0]) if self.comparison in ("<", "<=") else (codes[0], highest)]

    def shown(self, columns: Sequence[pa.Array], one: OneRow) -> tuple[BoolArray | None, list[pa.Array]]:
        """Which rows (n) are emitted, None: all; and the columns of all rows as they are emitted."""
        return self._passes(columns[self._at], pa.nulls(1) if one is None else one[0]), list(columns)

    def _passes(self, values: pa.Array, bound: pa.Array) -> BoolArray:
        """Which values (n, not null) compare with the bound (1)."""
        if bound.null_count:
            return np.zeros(len(values), np.bool_)
        ranks = rank_column(pa.concat_arrays([values, bound.cast(values.type)]))[0]
        own, limit = ranks[:-1], ranks[-1]
        found: dict[Comparison, BoolArray] = {
            "<": own < limit,
            "<=": own <= limit,
            ">": own > limit,
            ">=": own >= limit,
            "=": own == limit,
        }
        return found[self.comparison]


def _numbers(column: pa.Array) -> list[int | None]:
    """Timestamps and dates as numbers of their units."""
    found: list[int | None] = column.cast(_number_type(column.type)[0]).to_pylist()
    return found


def _number_type(kind: pa.DataType) -> tuple[pa.DataType, int]:
    """The type of these numbers, and its bits."""
    return (pa.int32(), 32) if pa.types.is_date(kind) else (pa.int64(), 64)


def value_codes(column: pa.Array) -> Int64Array:
    """Numbers (n) that ascend with the values, which have no null. Different values may have one number: decimals and
    texts whose first digits or bytes are the same."""
    dtype = storage_dtype(column.type)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
        dtype = np.dtype("<f8")
    if dtype is not None and dtype.subdtype is None:
        ordered = to_ordered(to_storage(column)).astype(np.uint64)
    else:
        first = [value.as_buffer().to_pybytes()[:8].ljust(8, b"\0") for value in column]
        ordered = np.frombuffer(b"".join(first), ">u8").astype(np.uint64)
    codes: Int64Array = (ordered ^ np.uint64(1 << 63)).view(np.int64)
    return codes
