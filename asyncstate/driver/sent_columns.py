"""The format of rows sent to an operator.

Owns: ``sent_schema``, the columns that an input sends, and ``payload_of``, which converts rows from an engine or an
operator to rows as the next operator takes them.
Invariant: an operator's input has the types of its InputSpec, whichever way its rows were sent.
Must not import pyspark: workers import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import ROW_KIND_COLUMN, ROW_KIND_TEXTS
from asyncstate.errors import SchemaError

if TYPE_CHECKING:
    from asyncstate.operator import InputSpec

_KIND_TEXTS: Final = pa.array(ROW_KIND_TEXTS, pa.string())


def sent_schema(spec: InputSpec) -> pa.Schema:
    """The columns that an input sends, in order."""
    schema = spec.row_schema
    return schema.append(pa.field(ROW_KIND_COLUMN, pa.string())) if _sends_kinds(spec) else schema


def _sends_kinds(spec: InputSpec) -> bool:
    """Rows of a partial aggregation carry no row kinds."""
    return spec.changelog and spec.local is None


def payload_of(spec: InputSpec, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.int8] | None]:
    """The payload columns with the declared types, and the row kinds (None if no row can be a retraction)."""
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
    """``column`` as ``wanted``; Spark sends timestamps in the session's time zone, here they are always UTC."""
    return column if column.type.equals(wanted) else column.cast(wanted)
