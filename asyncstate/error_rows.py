"""Rows that could not be processed, in a side output: with which columns, and under which name.

Owns: the name ``ERRORS_OUTPUT``, the columns ``ERROR_COLUMNS``, and their values.
Invariant: the columns of the row come first, unchanged.
Must not import anything but ``errors``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from asyncstate.errors import SchemaError

ERRORS_OUTPUT: Final = "errors"
ERROR_COLUMNS: Final = pa.schema([("error_type", pa.string()), ("error_message", pa.string())])
MESSAGE_CHARACTERS_MAX: Final = 2000


class RowError(NamedTuple):
    """The values of ``ERROR_COLUMNS``."""

    error_type: str
    error_message: str

    @staticmethod
    def of(error: BaseException) -> RowError:
        """The name of the class of ``error``, and its text up to ``MESSAGE_CHARACTERS_MAX``."""
        # Lone surrogates are no text for Arrow.
        text = str(error)[:MESSAGE_CHARACTERS_MAX].encode(errors="replace").decode()
        return RowError(type(error).__name__, text)


def with_error_columns(owner: str, schema: pa.Schema) -> pa.Schema:
    """The columns of a side output for rows of ``schema`` that failed. SchemaError if it has such columns itself."""
    for name in ERROR_COLUMNS.names:
        if name in schema.names:
            raise SchemaError(
                f"{owner}: the input has a column '{name}', which the side output '{ERRORS_OUTPUT}' adds; rename it"
            )
    return pa.schema([*schema, *ERROR_COLUMNS])
