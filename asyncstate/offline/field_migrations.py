"""Field changes of a migration: to the schema of stored rows and to their columns at once.

Owns: ``DropField``, ``RenameField``, ``CastField`` and how they are applied.
Invariant: a value that a cast would change is refused with the row that has it, never altered.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import check_value_schema, field_from_text, field_to_text
from asyncstate.codec.arrow_types import KEY_TYPES_TEXT, is_string_type
from asyncstate.errors import SchemaError
from asyncstate.offline.json_text import plain_values

_ARROW_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError)


@dataclass(frozen=True)
class DropField:
    """Forget ``field``, a name or a dotted path through structs."""

    field: str


@dataclass(frozen=True)
class RenameField:
    """Rename ``field`` to ``to``, which is a name without a path."""

    field: str
    to: str


@dataclass(frozen=True)
class CastField:
    """Give ``field`` the type whose text is ``to``, as in the checkpoint's own, with the suffix " not null" if it is
    so."""

    field: str
    to: str


FieldEdit = DropField | RenameField | CastField


class LossyCastError(Exception):
    """Raised for a value that the new type cannot hold; ``row`` is its index."""

    def __init__(self, row: int, value: object) -> None:
        super().__init__(f"{value!r} does not fit")
        self.row = row
        self.value = value


def edited_schema(schema: pa.Schema, edit: FieldEdit) -> pa.Schema:
    """The schema after ``edit``; raises SchemaError for a missing field or an impossible change."""
    fields, _ = edited(list(schema), [pa.array([], field.type) for field in schema], edit)
    changed = pa.schema(fields)
    check_value_schema(changed)
    return changed


def edited(
    fields: Sequence[pa.Field], columns: Sequence[pa.Array], edit: FieldEdit
) -> tuple[list[pa.Field], list[pa.Array]]:
    """``fields`` and their ``columns`` (n rows each) after ``edit``. Raises SchemaError, and LossyCastError with the
    row."""
    alive = np.ones(len(columns[0]) if columns else 0, np.bool_)
    return _edited(list(fields), list(columns), edit.field, edit, alive)


def _edited(
    fields: list[pa.Field],
    columns: list[pa.Array],
    path: str,
    edit: FieldEdit,
    alive: npt.NDArray[np.bool_],
) -> tuple[list[pa.Field], list[pa.Array]]:
    at, rest = _located(fields, path, edit)
    if rest:
        fields[at], columns[at] = _inside(fields[at], columns[at], rest, edit, alive)
    elif isinstance(edit, DropField):
        if len(fields) == 1:
            raise SchemaError(f"field {edit.field!r} is the only one; drop the state instead")
        del fields[at], columns[at]
    elif isinstance(edit, RenameField):
        if any(field.name == edit.to for field in fields):
            raise SchemaError(
                f"there is already a field {edit.to!r}; choose another name, or drop that field first"
            )
        fields[at] = fields[at].with_name(edit.to)
    else:
        wanted = _wanted(fields[at].name, edit.to)
        columns[at] = _cast(fields[at], columns[at], wanted, alive)
        fields[at] = wanted
    return fields, columns


def _wanted(name: str, text: str) -> pa.Field:
    try:
        return field_from_text(name, text)
    except SchemaError as error:
        raise SchemaError(
            f"{text!r} is not a type; write one of {KEY_TYPES_TEXT} as `state list` shows types, followed by ' not "
            "null' if it must not be null"
        ) from error


def _located(fields: list[pa.Field], path: str, edit: FieldEdit) -> tuple[int, str]:
    """The index of the field that ``path`` begins with, and the rest of the path."""
    found = [
        (len(field.name), index)
        for index, field in enumerate(fields)
        if path == field.name or path.startswith(f"{field.name}.")
    ]
    if not found:
        names = ", ".join(repr(field.name) for field in fields)
        raise SchemaError(f"there is no field {edit.field!r}; the fields are {names}")
    length, index = max(found)
    return index, path[length + 1 :]


def _inside(
    field: pa.Field, column: pa.Array, path: str, edit: FieldEdit, alive: npt.NDArray[np.bool_]
) -> tuple[pa.Field, pa.Array]:
    if not pa.types.is_struct(field.type):
        raise SchemaError(
            f"field {edit.field!r} goes through {field.name!r}, which is a {field.type}; only fields of structs can "
            "be named"
        )
    null = column.is_null()
    alive = alive & ~null.to_numpy(zero_copy_only=False)
    fields, columns = _edited(list(field.type), column.flatten(), path, edit, alive)
    return field.with_type(pa.struct(fields)), pa.StructArray.from_arrays(columns, fields=fields, mask=null)


def _cast(field: pa.Field, column: pa.Array, wanted: pa.Field, alive: npt.NDArray[np.bool_]) -> pa.Array:
    if pa.types.is_nested(field.type) or pa.types.is_nested(wanted.type):
        raise SchemaError(
            f"field {field.name!r} cannot be cast from {field_to_text(field)} to {field_to_text(wanted)}; only flat "
            "types can be cast; name a field inside it"
        )
    if not wanted.nullable:
        _refuse(column.is_null().to_numpy(zero_copy_only=False) & alive, column)
    try:
        changed = column.cast(wanted.type)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"field {field.name!r} of {field.type} cannot be cast to {wanted.type}: {error}"
        ) from error
    except _ARROW_ERRORS:
        _refuse(
            np.array([not _fits(column[row], wanted.type) for row in range(len(column))], np.bool_), column
        )
        raise
    if is_string_type(column.type):
        # A text may spell a number in several ways: it is enough that it can be read.
        _refuse(_beyond(column, changed), column)
        return changed
    try:
        same = _same(column, changed)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"field {field.name!r} of {field.type} cannot be cast to {wanted.type} and back: {error}"
        ) from error
    except _ARROW_ERRORS:
        rows = range(len(column))
        same = np.array([_is_same(column.slice(row, 1), changed.slice(row, 1)) for row in rows], np.bool_)
    _refuse(~same, column)
    return changed


def _fits(value: pa.Scalar, arrow_type: pa.DataType) -> bool:
    try:
        value.cast(arrow_type)
    except _ARROW_ERRORS:
        return False
    return True


def _same(column: pa.Array, changed: pa.Array) -> npt.NDArray[np.bool_]:
    """Whether casting back gives the original values."""
    kind = column.type
    if pa.types.is_decimal(kind) and pa.types.is_integer(changed.type):  # Arrow asks for room for any integer
        kind = pa.decimal128(38, kind.scale)
    back = changed.cast(kind, safe=False)
    same = pc.equal(back, column).fill_null(True)
    if pa.types.is_floating(column.type):
        same = pc.or_(same, pc.and_(pc.is_nan(back), pc.is_nan(column)).fill_null(False))
    found: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return found


def _is_same(value: pa.Array, changed: pa.Array) -> bool:
    """Of one value. What cannot be cast back is not the same."""
    try:
        return bool(_same(value, changed)[0])
    except _ARROW_ERRORS:
        return not value[0].is_valid


def _beyond(texts: pa.Array, changed: pa.Array) -> npt.NDArray[np.bool_]:
    """Which texts are numbers that are too large for a float, which would be infinite."""
    if not pa.types.is_floating(changed.type):
        return np.zeros(len(texts), np.bool_)
    named = pc.match_substring(texts, "inf", ignore_case=True)
    found: npt.NDArray[np.bool_] = pc.and_not(pc.is_inf(changed), named).fill_null(False).to_numpy(False)
    return found


def _refuse(wrong: npt.NDArray[np.bool_], column: pa.Array) -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        row = int(rows[0])
        raise LossyCastError(row, plain_values(column.slice(row, 1))[0])
