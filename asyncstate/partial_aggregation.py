"""Partial aggregation before the exchange, described for any engine.

Owns: ``LocalFunction``, ``LocalColumn``, ``LocalValues``, ``PartialAggregation``: which rows are aggregated and what is
computed over them; ``PartialLimit``: which rows need not be sent; ``PartialStep``: the step that an operator itself
applies to them.
Invariant: partially aggregated rows can be merged in any grouping and any order; if no rows can be combined, each row
yields one row.
Must not import anything of the project.

Source: the local half of Flink's two-phase aggregation (``MiniBatchLocalGroupAggFunction``, ``LocalSlicingWindowAgg``);
for distinct values Spark's ``RewriteDistinctAggregates``, which gives each set of them rows of its own, too.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_PREFIX = "__asyncstate_local"
LOCAL_ROWS = f"{_PREFIX}_rows"
"""The column of a local row with the number of input rows in it: int64, at least 1; 0 for a row that only has values of
another set than the first."""
LOCAL_SET = f"{_PREFIX}_set"
"""For distinct values: the index of the set of columns to which the values of a local row belong, int32."""
LOCAL_MET = f"{_PREFIX}_met"
"""For distinct values: bit c is set if any row with the values meets condition c, int64."""
CONDITIONS_MAX = 63
"""As many conditions as ``LOCAL_MET`` has bits for."""

PartialStep: TypeAlias = Callable[[pa.RecordBatch, npt.NDArray[np.int8] | None], pa.RecordBatch]
"""Maps some rows (n) of an input, and their row kinds (n; None: all +I), to the rows sent to the operator."""

LOW_BITS = 32
"""How many bits of an int64 ``SUM_LOW`` adds up; ``SUM_HIGH`` adds the others."""


class LocalFunction(enum.Enum):
    """The content of a local column. Retracted rows (-U, -D) count negative in counts and sums, 0 without a row.

    An int64 sum is sent in two halves, ``sum(v >> 32)`` and ``sum(v & 0xFFFFFFFF)``: they cannot overflow, so an
    overflow is detected where the total is known. A float sum over retracted rows is sent as that of the finite values
    and as counts of the others, which do not cancel out in a sum. NaN is the largest float; extremes of nothing are
    null, and so may sums and counts be.
    """

    COUNT = "count"
    SUM = "sum"
    SUM_HIGH = "sum of high halves"
    SUM_LOW = "sum of low halves"
    SUM_FINITE = "sum of finite values"
    COUNT_NAN = "count of NaN"
    COUNT_POSITIVE_INFINITY = "count of infinity"
    COUNT_NEGATIVE_INFINITY = "count of -infinity"
    MIN = "min"
    MAX = "max"


NOT_FINITE = {
    LocalFunction.COUNT_NAN: math.nan,
    LocalFunction.COUNT_POSITIVE_INFINITY: math.inf,
    LocalFunction.COUNT_NEGATIVE_INFINITY: -math.inf,
}
"""The functions that count one value each."""


@dataclass(frozen=True)
class LocalColumn:
    """One function over the rows whose ``column`` is not null and whose boolean column ``condition`` is true.

    ``column`` None: over all rows (only COUNT); ``condition`` None: no further condition. ``type``: of the result.
    """

    function: LocalFunction
    type: pa.DataType
    column: str | None = None
    condition: str | None = None


@dataclass(frozen=True)
class LocalSlices:
    """Slices of event time [end - step, end), whose ends are on a grid; all in microseconds."""

    step: int
    offset: int


@dataclass(frozen=True)
class LocalValues:
    """The distinct values of rows: for each of ``sets`` of columns, and which of the boolean ``conditions`` any row
    with them meets."""

    sets: tuple[tuple[str, ...], ...]
    conditions: tuple[str, ...] = ()

    def column(self, index: int, place: int) -> str:
        """The column of local rows that has the values of ``sets[index][place]``."""
        return f"{_PREFIX}_value_{index}_{place}"

    @property
    def columns(self) -> list[tuple[str, str]]:
        """All columns of distinct values, each with the input's column that its values come from."""
        return [
            (self.column(index, place), name)
            for index, names in enumerate(self.sets)
            for place, name in enumerate(names)
        ]


@dataclass(frozen=True)
class PartialAggregation:
    """Combines rows of one input with equal keys into one row of ``columns``, in each part of the input separately.

    With an event time the row has the highest one under the input's own column name, and rows without an event time are
    aggregated separately; with ``slices`` only rows of the same slice are aggregated together.

    With ``values`` there is a row for each combination of values instead, for each set separately. Those of the first
    set have ``columns`` and the number of rows; those of the others have nothing but values, all else is 0 or null: an
    input row is in one row of each set.
    """

    columns: tuple[LocalColumn, ...]
    slices: LocalSlices | None = None
    values: LocalValues | None = None

    def row_schema(self, schema: pa.Schema, key: Sequence[str], event_time: str | None) -> pa.Schema:
        """The columns of the resulting rows: key columns, event time, their number, ``columns``."""
        names = [*key, *([event_time] if event_time and event_time not in key else [])]
        fields = [schema.field(name).with_nullable(True) for name in names]
        columns = [pa.field(local_name(index), column.type) for index, column in enumerate(self.columns)]
        return pa.schema([*fields, pa.field(LOCAL_ROWS, pa.int64()), *columns, *self._value_fields(schema)])

    def _value_fields(self, schema: pa.Schema) -> list[pa.Field]:
        if self.values is None:
            return []
        fields = [pa.field(LOCAL_SET, pa.int32()), pa.field(LOCAL_MET, pa.int64())]
        return fields + [pa.field(name, schema.field(of).type) for name, of in self.values.columns]


class LimitColumn(NamedTuple):
    """A column of a ``PartialLimit``'s order."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class PartialLimit:
    """Of an insert-only input the rows numbered up to ``rows`` in ``order`` are enough, per key and combination of the
    columns ``within``, in each part of the input separately: no other row of the part can be within the limit of the
    whole.

    ``function``: how rows of equal order are numbered, as by SQL's functions of these names; for ``row_number`` any of
    them qualify. Without an order any rows qualify. Rows with a null in ``within`` are all sent.
    """

    order: tuple[LimitColumn, ...]
    rows: int
    function: Literal["row_number", "rank", "dense_rank"] = "row_number"
    within: tuple[str, ...] = ()


def local_name(index: int) -> str:
    """The name of the column ``PartialAggregation.columns[index]``."""
    return f"{_PREFIX}_{index}"


def local_columns(batch: pa.RecordBatch, indices: Sequence[int]) -> list[pa.Array]:
    """The columns ``PartialAggregation.columns[index]`` of local rows (n)."""
    return [batch.column(local_name(index)) for index in indices]


def local_rows(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The number of input rows in each local row (n)."""
    rows: npt.NDArray[np.int64] = batch.column(LOCAL_ROWS).to_numpy()
    return rows
