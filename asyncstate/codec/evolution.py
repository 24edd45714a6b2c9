"""Which changes of a stored schema keep old values readable.

Owns: the rules of schema evolution and the mapping of an old version's columns to the current schema.
Must not import anything of the project but ``asyncstate.errors`` and its neighbours in ``codec``.

Allowed: a field becomes a wider integer, or float64 instead of float32, or nullable; a nullable field is
added anywhere. Everything else is refused."""

from __future__ import annotations

import pyarrow as pa

from asyncstate.codec.types import type_to_text
from asyncstate.errors import SchemaError

_ADVICE = "keep the old field and add a nullable one, or start from an empty checkpoint"


def check_evolution(old: pa.Schema, new: pa.Schema, owner: str = "value") -> None:
    """Raise ``SchemaError`` naming the field unless values of ``old`` can be read as ``new``."""
    for field in old:
        if new.get_field_index(field.name) < 0:
            raise SchemaError(f"{owner}: field {field.name!r} was removed; {_ADVICE}")
        _check_field(field, new.field(field.name), owner)
    for field in new:
        if old.get_field_index(field.name) < 0 and not field.nullable:
            raise SchemaError(f"{owner}: the added field {field.name!r} is not nullable; declare it nullable")
    kept = [name for name in new.names if name in old.names]
    for before, after in zip(old.names, kept, strict=True):
        if before != after:
            raise SchemaError(
                f"{owner}: field {after!r} has moved to the place of {before!r}; keep the old order"
            )


def _check_field(old: pa.Field, new: pa.Field, owner: str) -> None:
    if old.type != new.type and not _is_widening(old.type, new.type):
        raise SchemaError(
            f"{owner}: field {old.name!r} changed from {type_to_text(old.type)} to {type_to_text(new.type)}, "
            f"which is not a widening; {_ADVICE}"
        )
    if old.nullable and not new.nullable:
        raise SchemaError(
            f"{owner}: field {old.name!r} is no longer nullable, but stored values may be null; {_ADVICE}"
        )


def _is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(old.bit_width < new.bit_width)
    return bool(pa.types.is_float32(old) and pa.types.is_float64(new))


def source_indices(old: pa.Schema, new: pa.Schema) -> list[int]:
    """For each field of ``new`` its index in ``old``, -1 if it was added."""
    return [old.get_field_index(name) for name in new.names]
