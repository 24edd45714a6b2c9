"""The layout of one version of a row schema.

Owns: the position of each field in ``[version byte][null bitmap][fixed-width fields, little endian, in schema
order] [u32 length of each variable field][variable bytes]``. Bit i of the bitmap (least significant first)
is set if field i is null; a null field is all zeros or has length 0. The bytes before the variable bytes are the
*header*.
Invariant: ``header`` (struct, for one row) and ``dtype`` (numpy, for columns) describe the same bytes.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec.arrow_types import is_nested_type
from asyncstate.codec.nested import nested_form
from asyncstate.codec.scalars import ScalarForm, scalar_form
from asyncstate.codec.value_columns import storage_dtype
from asyncstate.errors import CodecError


@dataclasses.dataclass(frozen=True, slots=True)
class RowLayout:
    """One schema version: ``fixed`` and ``variable`` are field indices in schema order."""

    schema: pa.Schema
    version: int
    owner: str
    forms: tuple[ScalarForm, ...]
    fixed: tuple[int, ...]
    variable: tuple[int, ...]
    bitmap_bytes: int
    header: struct.Struct
    dtype: np.dtype[Any]

    def corrupt(self, cause: object) -> CodecError:
        """The error for stored bytes that do not have this layout."""
        return CodecError(
            f"{self.owner}: stored bytes are not a value of schema version {self.version} "
            f"({', '.join(self.schema.names)}): {cause}; restore an older version of the checkpoint"
        )

    def missing(self, index: int) -> CodecError:
        """The error for a null in a field that is not nullable."""
        return CodecError(
            f"{self.owner}: field {self.schema.field(index).name!r} is not nullable but None was given; "
            "give a value or declare the field nullable"
        )


def row_layout(schema: pa.Schema, version: int, owner: str) -> RowLayout:
    """The layout of ``schema``; the caller has checked its types."""
    forms = tuple(_row_form(field.type) for field in schema)
    fixed = tuple(index for index, form in enumerate(forms) if form.code is not None)
    variable = tuple(index for index, form in enumerate(forms) if form.code is None)
    bitmap_bytes = (len(schema) + 7) // 8
    codes = "".join(str(forms[index].code) for index in fixed)
    header = struct.Struct(f"<B{bitmap_bytes}s{codes}{'I' * len(variable)}")
    fields: list[tuple[Any, ...]] = [("version", "u1"), ("nulls", "u1", (bitmap_bytes,))]
    fields += [(f"f{index}", storage_dtype(schema.field(index).type)) for index in fixed]
    dtype = np.dtype([*fields, ("lengths", "<u4", (len(variable),))])
    assert dtype.itemsize == header.size, (dtype, header.format)
    return RowLayout(schema, version, owner, forms, fixed, variable, bitmap_bytes, header, dtype)


def _row_form(arrow_type: pa.DataType) -> ScalarForm:
    """As ``scalar_form``, with nested types, and decimals as the 16 bytes that Arrow stores."""
    if is_nested_type(arrow_type):
        return nested_form(arrow_type)
    form = scalar_form(arrow_type)
    if form.code != "16s":
        return form
    return dataclasses.replace(
        form,
        to_primitive=lambda value: form.to_primitive(value).to_bytes(16, "little", signed=True),
        from_primitive=lambda raw: form.from_primitive(int.from_bytes(raw, "little", signed=True)),
    )
