"""Columns of state as JSON text, for readers that show states of different types side by side.

Owns: ``json_texts``, ``json_text`` and ``plain``. Invariant: equal values give equal text; whole numbers, decimals and
times lose nothing (the latter two are strings), bytes are base64, NaN and infinities are null, maps are lists of pairs.
Must not import storage, execution, operators or Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa


def json_texts(column: pa.Array) -> pa.Array:
    """The text of each value, null where it is null."""
    texts = [None if value is None else json_text(value) for value in _plain(column).to_pylist()]
    return pa.array(texts, pa.string())


def json_text(value: Any) -> str:
    """The text of one value."""
    return msgspec.json.encode(value, enc_hook=str).decode()


def _plain(column: pa.Array) -> pa.Array:
    # As Python objects nanoseconds would need pandas; their text is that of Arrow.
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.string())
    return column


def plain(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows as dicts of Python values."""
    columns = [_plain(column).to_pylist() for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows.schema.names, values, strict=True))
