"""The columns that travel between the driver's plan and the tasks.

Owns: the names of the columns other than the payload, the quoting of names in SQL, and the encoding of ``ROUTE``;
``slots_of``: the positions of the payload in transit.
Must not import pyspark: workers import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from asyncstate.driver.sent_columns import sent_schema

if TYPE_CHECKING:
    from asyncstate.operator import InputSpec

ROUTE: Final = "__asyncstate_route"
"""int32 of every row that goes to a task: ``partition * 4 + tag``."""
COMMIT: Final = "__asyncstate_commit"
"""binary of every row that comes from a task: the attempt's id in its first row, the id and then the CommitRecord in
its last one, null in all others."""
OUTPUT: Final = "__asyncstate_output"
"""array of structs of every row that comes from a task: some rows of the operator's output, null where ``COMMIT`` is
not."""
SIDE: Final = "__asyncstate_side_"
"""Prefix of the name of a side output: an array like ``OUTPUT``, of its rows. A row has one of the arrays."""
REPORTS: Final = "__asyncstate_report"
"""binary, the last column of rows for a task that reads rows of other tasks of its Spark job: the reports of those
tasks (see ``reports``), null in rows with payload."""
ATTEMPT_BYTES: Final = 16
"""Length of an attempt's id."""

TAG_BITS: Final = 2
TAG_MASK: Final = (1 << TAG_BITS) - 1
MARKER_TAG: Final = 3
"""The tag of the one row per partition that has no payload; other tags are the index of the input."""


def quoted(name: str) -> str:
    """A column name in SQL, with dots and backticks escaped."""
    return "`" + name.replace("`", "``") + "`"


def slots_of(inputs: Sequence[InputSpec]) -> list[list[int]]:
    """For each input that shares an exchange: which of its columns each sent column is, by number.

    Columns of one fixed width and type are shared, so that few are null in the rows of another input.
    """
    taken: list[pa.DataType | None] = []
    slots = []
    for spec in inputs:
        own: list[int] = []
        for kind in sent_schema(spec).types:
            free = (at for at, other in enumerate(taken) if other == kind and at not in own)
            is_fixed = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
            at = next(free, len(taken)) if is_fixed else len(taken)
            if at == len(taken):
                taken.append(kind)
            own.append(at)
        slots.append(own)
    return slots
