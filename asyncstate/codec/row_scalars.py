"""One row to bytes and back: the record grain of the row codec.

Owns: the functions compiled for one layout. Rows of plain numbers without nulls take one ``struct`` call; all
other rows take the general path, which also makes the error messages.
Must not import anything of the project but ``asyncstate.errors`` and its neighbours in ``codec``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from asyncstate.codec.row_layout import RowLayout
from asyncstate.codec.scalars import CONVERSION_ERRORS, mismatch, wrong_arity

EncodeRow = Callable[[tuple[Any, ...]], bytes]
DecodeRow = Callable[[bytes], tuple[Any, ...]]

_ZERO_DECIMAL = bytes(16)


def row_encoder(layout: RowLayout) -> EncodeRow:
    """``encode_one(values) -> bytes``; ``CodecError`` for a value that does not fit."""
    general = _general_encoder(layout)
    # Exact types: bool is an int to struct, and must not become one silently.
    expected = tuple(form.direct for form in layout.forms)
    if layout.variable or None in expected:
        return general
    pack, version, no_nulls = layout.header.pack, layout.version, bytes(layout.bitmap_bytes)

    def encode_one(values: tuple[Any, ...]) -> bytes:
        if tuple(map(type, values)) == expected:
            try:
                return pack(version, no_nulls, *values)
            except (struct.error, OverflowError):
                pass  # out of range; the general path says of which field
        return general(values)

    return encode_one


def _general_encoder(layout: RowLayout) -> EncodeRow:
    fields = list(zip(layout.schema, layout.forms, strict=True))
    pack, version, bitmap_bytes = layout.header.pack, layout.version, layout.bitmap_bytes
    order = (*layout.fixed, *layout.variable)
    fixed_count = len(layout.fixed)

    def encode_one(values: tuple[Any, ...]) -> bytes:
        if len(values) != len(fields):
            raise wrong_arity(layout.owner, values, layout.schema.names)
        nulls = 0
        primitives: list[Any] = []
        for index in order:
            value = values[index]
            field, form = fields[index]
            if value is None:
                if not field.nullable:
                    raise layout.missing(index)
                nulls |= 1 << index
                primitives.append(b"" if form.code is None else _ZERO_DECIMAL if form.code == "16s" else 0)
                continue
            try:
                primitives.append(form.to_primitive(value))
            except CONVERSION_ERRORS as error:
                raise mismatch(layout.owner, field.name, field.type, value, error) from None
        blobs = primitives[fixed_count:]
        bitmap = nulls.to_bytes(bitmap_bytes, "little")
        return b"".join([pack(version, bitmap, *primitives[:fixed_count], *map(len, blobs)), *blobs])

    return encode_one


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
    header, fixed_count = layout.header, len(layout.fixed)

    def decode_one(data: bytes) -> tuple[Any, ...]:
        if len(data) < header.size:
            raise layout.corrupt(f"{len(data)} bytes are too few")
        version, bitmap, *primitives = header.unpack_from(data)
        if version != layout.version:
            raise layout.corrupt(f"the version byte is {version}")
        end = header.size
        for at in range(fixed_count, len(order)):
            start, end = end, end + primitives[at]
            primitives[at] = data[start:end]
        if end != len(data):
            raise layout.corrupt(f"{len(data)} bytes where {end} are expected")
        nulls = int.from_bytes(bitmap, "little")
        values: list[Any] = [None] * len(order)
        for index, primitive in zip(order, primitives, strict=True):
            if nulls >> index & 1 == 0:
                values[index] = _from_primitive(layout, index, primitive)
        return tuple(values)

    return decode_one


def _from_primitive(layout: RowLayout, index: int, primitive: Any) -> Any:
    try:
        return layout.forms[index].from_primitive(primitive)
    except CONVERSION_ERRORS as error:
        raise layout.corrupt(f"field {layout.schema.field(index).name!r}: {error}") from None
