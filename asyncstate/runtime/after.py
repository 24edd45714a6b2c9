"""What is done to an operator's output in its own task, before it leaves it.

Owns: ``After`` and its steps: ``Kept``, ``Renamed``, ``Combined`` and ``Best``.
Invariant: the operator that gets the rows comes to the same results as it would with all of them; a step sees the rows
of one output batch and no others.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, RowKind
from asyncstate.codec import KeyCodec
from asyncstate.local_phase import LocalLimit
from asyncstate.operator import InputSpec
from asyncstate.runtime.put_together import put_together
from asyncstate.runtime.spec import InputBatch

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
    """The rows for which an expression is true; null is not."""

    condition: pc.Expression

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        return rows.filter(self.condition)


@dataclass(frozen=True)
class KeptBy:
    """The rows for which a function of the user's own gives true."""

    condition: Callable[[pa.RecordBatch], pa.Array]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        return rows.filter(self.condition(rows))


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
    """Of each key the first rows in an order, of equal ones those that came first."""

    key: tuple[str, ...]
    limit: LocalLimit

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See ``Step``."""
        columns, order = [_key_numbers(rows, self.key)], [("key", "ascending")]
        names = ["key"]
        for number, one in enumerate(self.limit.order):
            values = rows.column(one.column)
            columns += [values.is_null(), values]
            names += [f"null{number}", f"value{number}"]
            order += [
                (f"null{number}", "descending" if one.nulls_first else "ascending"),
                (f"value{number}", "descending" if one.descending else "ascending"),
            ]
        sorted_rows = pc.sort_indices(pa.RecordBatch.from_arrays(columns, names=names), sort_keys=order)
        at = sorted_rows.to_numpy().astype(np.int64)
        keys = columns[0].to_numpy()[at]
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        place = np.arange(len(at)) - np.repeat(begins, np.diff(begins, append=len(at)))
        return rows.take(pa.array(np.sort(at[place < self.limit.rows])))


def _key_numbers(rows: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """Equal where the keys are."""
    columns = [rows.column(name) for name in key]
    codec = KeyCodec([column.type for column in columns], list(key), 1)
    return pa.array(codec.group(columns, num_rows=rows.num_rows).inverse.astype(np.int64))


_KIND = pa.field(ROW_KIND_COLUMN, pa.string())
_KINDS: Any = pa.array([kind.text for kind in RowKind])
