"""DynamicFilter: rows whose value compares with a single value that changes.

Owns: the operator and ``Comparison``.
Invariant: after every micro-batch the netted output is the rows whose ``column`` compares with the bound. If the bound
changes, only rows between the old and the new one are read and emitted.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``errors``, ``futures``, ``operator`` and
``state``.

Source: RisingWave's ``DynamicFilterExecutor``, which keeps its left rows in the order of the compared value, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog
from asyncstate.codec import check_key_type
from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.key_fields import to_ordered
from asyncstate.codec.value_columns import storage_dtype, to_storage
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec, OperatorContext, OutputSpec

from ..core.arrays import BoolArray, Int64Array, valid_rows
from ..core.operator_checks import check_choice
from ..core.state_meaning import meaning
from .one_row_input import EVERYTHING, OneRow, OneRowInput

Comparison = Literal["<", "<=", ">", ">=", "="]


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

    State: ``rows``, all rows of the first input with a value, in the order of their values; ``bound``.

    Raises SchemaError for columns that do not fit, and OperatorError if the second input has several rows.
    """

    def __init__(self, column: str, comparison: Comparison, bound: str) -> None:
        check_choice(comparison, get_args(Comparison), "comparison", self.owner)
        self.column = column
        self.comparison: Comparison = comparison
        self.bound = bound

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
        return OutputSpec(spec.schema, changes=Changelog.retract(*spec.changes.unique_keys))

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows were emitted."""
        return meaning(self, column=self.column, comparison=self.comparison, bound=self.bound)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        super().open(context)
        self._at = context.inputs[0].schema.get_field_index(self.column)

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
