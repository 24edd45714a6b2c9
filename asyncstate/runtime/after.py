"""What is done to an operator's output in its own task, before it leaves it.

Owns: ``After`` and its steps: ``Kept``, ``Renamed``, ``Combined`` and ``Best``.
Invariant: the operator that gets the rows comes to the same results as it would with all of them; a step sees the rows
of one output batch and no others.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, RowKind
from asyncstate.codec import KeyCodec
from asyncstate.codec.sorting import rows_by
from asyncstate.local_phase import LimitColumn, LocalLimit
from asyncstate.operator import InputSpec
from asyncstate.runtime.put_together import put_together
from asyncstate.runtime.spec import InputBatch

Int64Array = npt.NDArray[np.int64]
Step = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Some rows, with ``row_kind``, to those that leave."""


class After(NamedTuple):
    """Steps, and the columns of what leaves them, without ``row_kind``."""

    steps: tuple[Step, ...]
    schema: pa.Schema

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """All steps, one after the other."""
        for step in self.steps:
            if not rows.num_rows:
                break
            rows = step(rows)
        return rows


@dataclass(frozen=True)
class Kept:
    """The rows for which a condition is true; null is not."""

    condition: Callable[[pa.RecordBatch], pa.Array]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        mask = self.condition(rows)
        return rows if mask.true_count == len(mask) else rows.filter(mask)


@dataclass(frozen=True)
class Renamed:
    """Some of the columns, with other names: pairs of both."""

    columns: tuple[tuple[str, str], ...]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        found = rows.select([name for name, _ in self.columns] + [ROW_KIND_COLUMN])
        return found.rename_columns([name for _, name in self.columns] + [ROW_KIND_COLUMN])


@dataclass(frozen=True)
class Combined:
    """The local phase of the operator that gets the rows: ``spec`` is its input, with ``local``."""

    spec: InputSpec
    max_parallelism: int

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        kinds = None
        if self.spec.changelog:
            codes = pc.index_in(rows.column(ROW_KIND_COLUMN), value_set=_KINDS)
            kinds = codes.to_numpy(zero_copy_only=False).astype(np.int8)
        payload = rows.select(self.spec.schema.names).cast(self.spec.schema)
        made = put_together(InputBatch(payload, kinds), self.spec, self.max_parallelism).batch
        return made.append_column(_KIND, pa.array([RowKind.INSERT.text] * made.num_rows, pa.string()))


@dataclass(frozen=True)
class Best:
    """Of each key the rows of a limit: of equal ones those that came first, or all where they share a number."""

    key: tuple[str, ...]
    limit: LocalLimit

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        columns = [rows.column(name) for name in (*self.key, *self.limit.within)]
        codec = KeyCodec([column.type for column in columns], [*self.key, *self.limit.within], 1)
        order, starts = codec.group(columns, num_rows=rows.num_rows).rows_sorted()
        if len(starts) == rows.num_rows:
            return rows
        codes = [_codes(rows.column(one.column), one)[order] for one in self.limit.order]
        groups = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
        chosen = np.zeros(rows.num_rows, np.bool_)
        chosen[order[self._chosen(groups, codes)]] = True
        for name in self.limit.within:
            chosen |= rows.column(name).is_null().to_numpy(zero_copy_only=False)
        return rows.filter(pa.array(chosen))

    def _chosen(self, groups: Int64Array, codes: list[Int64Array]) -> Int64Array:
        """Which rows (n), ordered by group (n) and arrival, the limit lets pass."""
        if self.limit.rows > 1:
            at, numbers = _numbered(groups, codes, self.limit.function)
            return at[numbers <= self.limit.rows]
        best = _best_of_each(groups, codes)
        return best if self.limit.function != "row_number" else best[_begins(groups[best])]


def _numbered(groups: Int64Array, codes: list[Int64Array], function: str) -> tuple[Int64Array, Int64Array]:
    """The rows (n) group by group in order, equal ones as they came, and their numbers (n) from 1."""
    at = rows_by(groups, *codes)
    begins = _begins(groups)
    sizes = np.diff(begins, append=len(at))
    places = np.arange(len(at)) - np.repeat(begins, sizes)
    if function == "row_number":
        return at, places + 1
    first = places == 0  # of equal ones
    for column in codes:
        first[1:] |= column[at[1:]] != column[at[:-1]]
    if function == "rank":
        return at, np.maximum.accumulate(np.where(first, np.arange(len(at)), 0)) - np.repeat(
            begins, sizes
        ) + 1
    dense = np.cumsum(first)
    return at, dense - np.repeat(dense[begins], sizes) + 1


def _best_of_each(groups: Int64Array, codes: list[Int64Array]) -> Int64Array:
    """The best rows of each group: column by column those that are left."""
    left = np.arange(len(groups))
    for column in codes:
        here = groups[left]
        begins = _begins(here)
        best = np.minimum.reduceat(column[left], begins)
        left = left[column[left] == np.repeat(best, np.diff(begins, append=len(left)))]
    return left


def _begins(groups: Int64Array) -> Int64Array:
    """Where each of the groups, which ascend, begins."""
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _codes(column: pa.Array, one: LimitColumn) -> Int64Array:
    """Numbers (n) that ascend as the column is ordered."""
    kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_int64(kind):
        numbers = column.view(pa.int64())
    elif pa.types.is_signed_integer(kind):
        numbers = column.cast(pa.int64())
    else:
        numbers = pc.rank(column, tiebreaker="dense").cast(pa.int64())
    codes: Int64Array = numbers.fill_null(0).to_numpy(zero_copy_only=False)
    codes = ~codes if one.descending else codes
    if not column.null_count:
        return codes
    # Where nulls go is told apart from the values, whose range they may not share: one more bit by ranks.
    ranks = np.unique(codes, return_inverse=True)[1].astype(np.int64) + 1
    ranks[column.is_null().to_numpy(zero_copy_only=False)] = 0 if one.nulls_first else len(ranks) + 1
    return ranks


_KIND = pa.field(ROW_KIND_COLUMN, pa.string())
_KINDS: Any = pa.array([kind.text for kind in RowKind])
