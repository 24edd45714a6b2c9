"""The columns that travel between the driver's plan and the tasks.

Owns: the names of those beside the payload, how SQL spells a name, and the encoding of ``ROUTE``; ``slots_of``: where
the payload is on its way; ``payload_of``: rows as Spark or an operator gives them to rows as an operator takes them.
Invariant: what an operator gets has the types of its InputSpec, whichever way its rows came.
Must not import pyspark: workers import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS
from asyncstate.errors import SchemaError

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
"""Before the name of a side output: an array like ``OUTPUT``, of the rows of that one. A row has one of the arrays."""
REPORTS: Final = "__asyncstate_report"
"""binary, last of the columns that go to a task which has rows of other tasks of its Spark job: what those report (see
``reports``), null in rows with payload."""
ATTEMPT_BYTES: Final = 16
"""Length of an attempt's id."""

TAG_BITS: Final = 2
TAG_MASK: Final = (1 << TAG_BITS) - 1
MARKER_TAG: Final = 3
"""The tag of the one row a partition that has no payload; other tags are the index of the input."""

_KIND_TEXTS: Final = pa.array(ROW_KIND_TEXTS, pa.string())


def quoted(name: str) -> str:
    """A column name in SQL, dots and backticks taken literally."""
    return "`" + name.replace("`", "``") + "`"


def slots_of(inputs: Sequence[InputSpec]) -> list[list[int]]:
    """Of each input that shares an exchange, which of its columns each of the columns that it sends is, by number.

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


def sent_schema(spec: InputSpec) -> pa.Schema:
    """The columns that an input sends, in their order."""
    schema = spec.row_schema
    return schema.append(pa.field(ROW_KIND_COLUMN, pa.string())) if _sends_kinds(spec) else schema


def _sends_kinds(spec: InputSpec) -> bool:
    """What a local phase has put together carries no kinds."""
    return spec.changelog and spec.local is None


def payload_of(spec: InputSpec, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int8] | None]:
    """The payload columns with the declared types, and the kinds (None where no row can be taken back)."""
    named = dict(zip(rows.schema.names, rows.columns, strict=True))
    schema = spec.row_schema
    columns = [cast(named[field.name], field.type) for field in schema]
    payload = (
        pa.RecordBatch.from_arrays(columns, schema=schema)
        if columns
        else pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
    )
    return payload, _kinds(spec, named[ROW_KIND_COLUMN]) if _sends_kinds(spec) else None


def _kinds(spec: InputSpec, texts: pa.Array) -> npt.NDArray[np.int8]:
    codes = pc.index_in(texts, value_set=_KIND_TEXTS)
    if codes.null_count:
        wrong = texts.filter(pc.is_null(codes))[0].as_py()
        raise SchemaError(
            f"{spec.name}: column '{ROW_KIND_COLUMN}' has the value {wrong!r}; "
            f"write one of {', '.join(ROW_KIND_TEXTS)}, or drop the column if every row is an insert"
        )
    kinds: npt.NDArray[np.int8] = codes.to_numpy().astype(np.int8)
    return kinds


def cast(column: Any, wanted: pa.DataType) -> Any:
    """``column`` as ``wanted``; Spark sends timestamps in the session's zone, for us they are always UTC."""
    return column if column.type.equals(wanted) else column.cast(wanted)
