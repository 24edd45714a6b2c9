"""One row to bytes and back: the record grain of the row codec.

Owns: the functions compiled for one layout. Rows of plain numbers without nulls need one ``struct`` call; all other
rows take the general path, which also creates the error messages.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from asyncstate.codec.row_layout import RowLayout
from asyncstate.codec.scalars import CONVERSION_ERRORS, mismatch, wrong_arity
from asyncstate.errors import CodecError

EncodeRow = Callable[[tuple[Any, ...]], bytes]
DecodeRow = Callable[[bytes], tuple[Any, ...]]

_ZERO_DECIMAL = bytes(16)


def row_encoder(layout: RowLayout) -> EncodeRow:
    """``encode_one(values) -> bytes``; ``CodecError`` for a value that does not fit."""
    general = _general_encoder(layout)
    # Exact types: struct accepts bool as int, but it must not become one silently.
    expected = tuple(form.direct for form in layout.forms)
    if layout.variable or None in expected:
        return general
    pack, version, no_nulls = layout.header.pack, layout.version, bytes(layout.bitmap_bytes)

    def encode_one(values: tuple[Any, ...]) -> bytes:
        if tuple(map(type, values)) == expected:
            try:
                return pack(version, no_nulls, *values)
            except (struct.error, OverflowError):
                pass  # out of range; the general path names the field
        return general(values)

    return encode_one


def _general_encoder(layout: RowLayout) -> EncodeRow:
    order = (*layout.fixed, *layout.variable)
    plan = [
        (index, layout.forms[index].direct, layout.forms[index].to_primitive, _zero(layout, index))
        for index in order
    ]
    required = sum(1 << index for index in order if not layout.schema.field(index).nullable)
    pack, version, bitmap_bytes = layout.header.pack, layout.version, layout.bitmap_bytes
    fixed_count = len(layout.fixed)

    def encode_one(values: tuple[Any, ...]) -> bytes:
        if len(values) != len(plan):
            raise wrong_arity(layout.owner, values, layout.schema.names)
        nulls = 0
        primitives: list[Any] = []
        try:
            for index, direct, to_primitive, zero in plan:
                value = values[index]
                if value is None:
                    nulls |= 1 << index
                    primitives.append(zero)
                else:
                    primitives.append(value if type(value) is direct else to_primitive(value))
            bitmap = nulls.to_bytes(bitmap_bytes, "little")
            blobs = primitives[fixed_count:]
            row = pack(version, bitmap, *primitives[:fixed_count], *map(len, blobs))
        except CONVERSION_ERRORS as error:
            raise _refusal(layout, values, error) from None
        if nulls & required:
            raise layout.missing((nulls & required).bit_length() - 1)
        return b"".join([row, *blobs])

    return encode_one


def _zero(layout: RowLayout, index: int) -> Any:
    """The stored value of a null field."""
    code = layout.forms[index].code
    return b"" if code is None else _ZERO_DECIMAL if code == "16s" else 0


def _refusal(layout: RowLayout, values: tuple[Any, ...], cause: Exception) -> CodecError:
    """Find the field whose value could not be encoded."""
    for field, form, value in zip(layout.schema, layout.forms, values, strict=True):
        try:
            if value is not None:
                form.to_primitive(value)
        except CONVERSION_ERRORS as error:
            return mismatch(layout.owner, field.name, field.type, value, error)
    return CodecError(f"{layout.owner}: a row cannot be encoded: {cause}; a field holds at most 4 GiB")


def row_decoder(layout: RowLayout) -> DecodeRow:
    """``decode_one(data) -> values``; ``CodecError`` for bytes that are not a row of this layout."""
    general = _general_decoder(layout)
    if layout.variable or None in [form.direct for form in layout.forms]:
        return general
    unpack, size, version = layout.header.unpack, layout.header.size, layout.version
    no_nulls = bytes(layout.bitmap_bytes)

    def decode_one(data: bytes) -> tuple[Any, ...]:
        if len(data) == size:
            row = unpack(data)
            if row[0] == version and row[1] == no_nulls:
                return row[2:]
        return general(data)

    return decode_one


def _general_decoder(layout: RowLayout) -> DecodeRow:
    order = (*layout.fixed, *layout.variable)
    unpack_from, size, version = layout.header.unpack_from, layout.header.size, layout.version
    variable = range(len(layout.fixed), len(order))
    # The position of each field's primitive, and its conversion to a value (None: it is one already).
    plan = [
        (order.index(index), None if form.direct is not None else form.from_primitive)
        for index, form in enumerate(layout.forms)
    ]
    no_nulls = bytes(layout.bitmap_bytes)

    def decode_one(data: bytes) -> tuple[Any, ...]:
        if len(data) < size:
            raise layout.corrupt(f"{len(data)} bytes are too few")
        found, bitmap, *primitives = unpack_from(data)
        if found != version:
            raise layout.corrupt(f"the version byte is {found}")
        end = size
        for at in variable:
            start, end = end, end + primitives[at]
            primitives[at] = data[start:end]
        if end != len(data):
            raise layout.corrupt(f"{len(data)} bytes where {end} are expected")
        nulls = 0 if bitmap == no_nulls else int.from_bytes(bitmap, "little")
        values: list[Any] = []
        try:
            for at, read in plan:
                if nulls >> len(values) & 1:
                    values.append(None)
                else:
                    values.append(primitives[at] if read is None else read(primitives[at]))
        except CONVERSION_ERRORS as error:
            raise layout.corrupt(f"field {layout.schema.field(len(values)).name!r}: {error}") from None
        return tuple(values)

    return decode_one
