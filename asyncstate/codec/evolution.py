"""Schema evolution: which changes of a stored schema keep old values readable.

Owns: the rules of schema evolution, by field at any depth. Must not import anything of the project except
``asyncstate.errors`` and other modules of ``codec``.

Allowed: a field becomes a wider integer, or float64 instead of float32, or a decimal of more digits, or nullable; a
nullable field is added anywhere. The same holds inside structs, lists and the values of maps. Everything else is
refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from asyncstate.codec.arrow_types import field_to_text
from asyncstate.errors import SchemaError

_ADVICE = "keep the old field and add a nullable one, or start from an empty checkpoint"


class TypeChange(StrEnum):
    """Why a change of a field is refused."""

    REMOVED = "removed"
    RETYPED = "retyped"
    NOT_NULL = "not null"
    ADDED_NOT_NULL = "added not null"
    ADDED = "added"
    MOVED = "moved"


@dataclass(frozen=True)
class Refusal:
    """One field (dotted inside structs) whose stored values cannot be read; ``was`` and ``now`` are type texts."""

    change: TypeChange
    field: str
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        texts = {
            TypeChange.REMOVED: f"field {self.field!r} was removed (it was {self.was})",
            TypeChange.RETYPED: (
                f"field {self.field!r} changed from {self.was} to {self.now}, which does not widen it"
            ),
            TypeChange.NOT_NULL: f"field {self.field!r} is no longer nullable, but stored values may be null",
            TypeChange.ADDED_NOT_NULL: f"the added field {self.field!r} is not nullable; declare it nullable",
            TypeChange.ADDED: (
                f"field {self.field!r} ({self.now}) was added, but stored values do not have it"
            ),
            TypeChange.MOVED: f"field {self.field!r} has moved to the place of {self.was!r}; keep the old order",
        }
        return texts[self.change]


def check_evolution(old: pa.Schema, new: pa.Schema, owner: str = "value") -> None:
    """Raise ``SchemaError`` naming the field unless values of ``old`` can be read as ``new``."""
    for refusal in refusals(old, new):
        advice = "" if str(refusal).partition("; ")[1] else f"; {_ADVICE}"
        raise SchemaError(f"{owner}: {refusal}{advice}")


def refusals(old: pa.Schema, new: pa.Schema) -> Iterator[Refusal]:
    """Why values of ``old`` cannot be read as ``new``, field by field; nothing if they can."""
    return _of_fields(list(old), list(new), "")


def _of_fields(old: list[pa.Field], new: list[pa.Field], prefix: str) -> Iterator[Refusal]:
    before, after = {field.name: field for field in old}, {field.name: field for field in new}
    for name, field in before.items():
        if name not in after:
            yield Refusal(TypeChange.REMOVED, prefix + name, was=field_to_text(field))
        else:
            yield from _of_field(field, after[name], prefix + name)
    for name, field in after.items():
        if name not in before and not field.nullable:
            yield Refusal(TypeChange.ADDED_NOT_NULL, prefix + name, now=field_to_text(field))
    stayed = [name for name in before if name in after]
    kept = [name for name in after if name in before]
    for was, now in zip(stayed, kept, strict=True):
        if was != now:
            yield Refusal(TypeChange.MOVED, prefix + now, was=was)
            return


def _of_field(old: pa.Field, new: pa.Field, path: str) -> Iterator[Refusal]:
    if old.nullable and not new.nullable:
        yield Refusal(TypeChange.NOT_NULL, path, field_to_text(old), field_to_text(new))
    if old.type == new.type or _is_widening(old.type, new.type):
        return
    if pa.types.is_struct(old.type) and pa.types.is_struct(new.type):
        yield from _of_fields(list(old.type), list(new.type), f"{path}.")
    elif pa.types.is_list(old.type) and pa.types.is_list(new.type):
        yield from _of_field(old.type.value_field, new.type.value_field, f"{path}.item")
    elif pa.types.is_map(old.type) and pa.types.is_map(new.type) and old.type.key_type == new.type.key_type:
        yield from _of_field(old.type.item_field, new.type.item_field, f"{path}.value")
    else:
        yield Refusal(TypeChange.RETYPED, path, field_to_text(old), field_to_text(new))


def _is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(old.bit_width < new.bit_width)
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.precision < new.precision and old.scale == new.scale)
    return bool(pa.types.is_float32(old) and pa.types.is_float64(new))
