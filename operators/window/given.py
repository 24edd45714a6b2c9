"""Windows that rows carry with them, as a window table function puts them out.

Owns: ``GivenWindows``: the columns ``window_start`` and ``window_end``, and their windows as a reader of due ones sees
them.
Invariant: two rows are in one window if start and end are equal instants, whatever their time zones.
Must not import anything of ``asyncstate`` but ``codec``, ``errors`` and ``operator``.

Source: the window columns of Flink SQL's window table-valued functions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from asyncstate.codec.times import event_times
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec

from ..core.arrays import BoolArray, Int64Array, valid_rows

START, END = "window_start", "window_end"


class GivenWindows:
    """Windows of any start and end; rows are stored under the end. The methods are those of ``SlicedWindow``."""

    shares_slices = False
    text = f"given by {START} and {END}"

    def next_end(self, time: int) -> int:
        """Windows end anywhere."""
        return time

    def previous_end(self, time: int) -> int:
        """Windows end anywhere."""
        return time

    def first_slice(self, end: int) -> int:
        """The window itself."""
        return end

    def last_over(self, end: int) -> int:
        """The window itself."""
        return end


def check_given(spec: InputSpec, owner: str) -> None:
    """SchemaError if the input has no window columns."""
    for name in (START, END):
        if name not in spec.schema.names:
            raise SchemaError(
                f"{owner}: {spec.name} has no column '{name}'; put a window table function before {owner}, or give "
                f"the operator a window; its columns are: {', '.join(spec.schema.names)}"
            )
        if not pa.types.is_timestamp(spec.schema.field(name).type):
            raise SchemaError(
                f"{owner}: column '{name}' of {spec.name} is {spec.schema.field(name).type}; cast it to a timestamp"
            )


def given_ends(batch: pa.RecordBatch) -> tuple[Int64Array, BoolArray]:
    """The window end of each row (n), and which rows (n) have a window: neither start nor end is null."""
    start, end = batch.column(START), batch.column(END)
    there = valid_rows([start, end])
    return event_times(end), np.ones(batch.num_rows, np.bool_) if there is None else there
