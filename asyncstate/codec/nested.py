"""List, struct and map values as MessagePack.

Owns: the canonical form of a nested value: list -> array, struct -> array of its fields in order, map -> array of [key,
value] in the given order; timestamps and dates as integers, decimals as two's complement bytes of the unscaled value.
Struct field names are in the schema, not in the bytes.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.

Python values: those that ``from_python`` accepts for a column. Reading gives ``list``, ``dict`` and, for maps, ``dict``
(a list of pairs if keys are unhashable)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from asyncstate.codec.arrow_types import is_nested_type, is_string_type
from asyncstate.codec.from_python import MisfitError, as_fields, as_list, as_pairs, other_fields
from asyncstate.codec.hashing import big_integer_bytes
from asyncstate.codec.scalars import ScalarForm, same, scalar_form
from asyncstate.codec.times import with_leaves
from asyncstate.codec.value_columns import LARGE_BINARY

Convert = Callable[[Any], Any]

_pack = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder()


def nested_form(arrow_type: pa.DataType) -> ScalarForm:
    """The form of a nested type: a variable-width primitive of MessagePack bytes."""
    to_wire, from_wire = _to_wire(arrow_type), _from_wire(arrow_type)
    return ScalarForm(
        arrow_type, None, None, lambda value: _pack(to_wire(value)), lambda raw: from_wire(_unpack(raw))
    )


def nested_to_binary(column: pa.Array) -> pa.LargeBinaryArray:
    """MessagePack of each row; nulls stay null."""
    # Times are integers: Python's datetime has neither nanoseconds nor all years of Arrow.
    plain = _plain_type(column.type)
    to_wire = _to_wire(plain)
    rows = [None if value is None else _pack(to_wire(value)) for value in column.cast(plain).to_pylist()]
    return pa.array(rows, LARGE_BINARY)


def nested_from_binary(rows: Sequence[bytes | None], arrow_type: pa.DataType) -> pa.Array:
    """The column of MessagePack rows; ``ValueError`` or ``pa.ArrowInvalid`` if they do not fit the type."""
    plain = _plain_type(arrow_type)
    from_wire = _from_wire(plain, pairs=True)
    values = [None if row is None else from_wire(_unpack(row)) for row in rows]
    return pa.array(values, plain).cast(arrow_type)


def upgrade(old: pa.DataType, new: pa.DataType) -> Convert | None:
    """Converts values stored as ``old`` to ``new``, a type that it evolved to; None: no conversion is needed.

    Added fields are None, at any depth; wider numbers are the same Python values.
    """
    if old == new or not is_nested_type(old):
        return None
    if pa.types.is_list(old):
        item = upgrade(old.value_type, new.value_type)
        return None if item is None else _optional(lambda value: [item(element) for element in value])
    if pa.types.is_map(old):
        return _upgrade_map(old, new)
    before = {field.name: field.type for field in old}
    fields = [
        (field.name, (field.name in before and upgrade(before[field.name], field.type)) or same)
        for field in new
    ]
    return _optional(lambda value: {name: convert(value.get(name)) for name, convert in fields})


def _upgrade_map(old: pa.DataType, new: pa.DataType) -> Convert | None:
    item = upgrade(old.item_type, new.item_type)
    if item is None:
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: item(one) for key, one in value.items()}
        return [(key, item(one)) for key, one in value]

    return _optional(convert)


def upgrade_column(column: pa.Array, new: pa.DataType) -> pa.Array:
    """A column of an older type as ``new``, a type that it evolved to."""
    if not is_nested_type(new) or column.type == new:
        return column.cast(new)
    plain_old, plain_new = _plain_type(column.type), _plain_type(new)
    values = column.cast(plain_old).to_pylist()
    convert = upgrade(plain_old, plain_new)
    return pa.array(values if convert is None else list(map(convert, values)), plain_new).cast(new)


def _unpack(raw: bytes) -> Any:
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise ValueError(f"the bytes are not MessagePack: {error}") from None


def _plain_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type with timestamps as int64 and dates as int32, at any depth."""
    return with_leaves(arrow_type, _plain_leaf)


def _plain_leaf(arrow_type: pa.DataType) -> pa.DataType:
    is_time = pa.types.is_timestamp(arrow_type)
    return pa.int64() if is_time else pa.int32() if pa.types.is_date32(arrow_type) else arrow_type


def _optional(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _to_wire(arrow_type: pa.DataType) -> Convert:
    if pa.types.is_list(arrow_type):
        return _list_to_wire(_part(arrow_type.value_field))
    if pa.types.is_map(arrow_type):
        return _map_to_wire(_part(arrow_type.key_field.with_nullable(False)), _part(arrow_type.item_field))
    if pa.types.is_struct(arrow_type):
        return _struct_to_wire({field.name: _part(field) for field in arrow_type})
    form = scalar_form(arrow_type)
    if pa.types.is_decimal128(arrow_type):
        return lambda value: big_integer_bytes(form.to_primitive(value))
    if is_string_type(arrow_type):
        return lambda value: form.from_primitive(form.to_primitive(value))
    return form.to_primitive


def _part(field: pa.Field) -> Convert:
    """The wire form of the values of ``field``; MisfitError for null if it is not nullable."""
    convert, nullable = _to_wire(field.type), field.nullable

    def part(value: Any) -> Any:
        if value is not None:
            return convert(value)
        if not nullable:
            raise MisfitError(f"for '{field.name}', which is not nullable, a value is expected", None)
        return None

    return part


def _list_to_wire(item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        return [item(element) for element in (value if isinstance(value, (list, tuple)) else as_list(value))]

    return convert


def _map_to_wire(key: Convert, item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        pairs = value.items() if type(value) is dict else as_pairs(value)
        return [[key(one), item(other)] for one, other in pairs]

    return convert


def _struct_to_wire(fields: dict[str, Convert]) -> Convert:
    names = list(fields)

    def convert(value: Any) -> list[Any]:
        given = value if type(value) is dict else as_fields(value, names)
        if len(given) != len(names):
            raise other_fields([given], names)
        try:
            return [field(given[name]) for name, field in fields.items()]
        except KeyError:
            raise other_fields([given], names) from None

    return convert


def _from_wire(arrow_type: pa.DataType, pairs: bool = False) -> Convert:
    """``pairs`` keeps maps as lists of pairs, which pyarrow takes for any key type."""
    if pa.types.is_list(arrow_type):
        item = _optional(_from_wire(arrow_type.value_type, pairs))
        return lambda wire: [item(element) for element in wire]
    if pa.types.is_map(arrow_type):
        key, value = (
            _from_wire(arrow_type.key_type, pairs),
            _optional(_from_wire(arrow_type.item_type, pairs)),
        )
        as_pairs = pairs or is_nested_type(arrow_type.key_type)
        return lambda wire: (list if as_pairs else dict)((key(one), value(other)) for one, other in wire)
    if pa.types.is_struct(arrow_type):
        return _struct_from_wire([(f.name, _optional(_from_wire(f.type, pairs))) for f in arrow_type])
    form = scalar_form(arrow_type)
    if pa.types.is_decimal128(arrow_type):
        return lambda wire: form.from_primitive(int.from_bytes(wire, "big", signed=True))
    return (lambda wire: wire) if is_string_type(arrow_type) else form.from_primitive


def _struct_from_wire(fields: list[tuple[str, Convert]]) -> Convert:
    def convert(wire: Any) -> dict[str, Any]:
        return {name: field(element) for (name, field), element in zip(fields, wire, strict=True)}

    return convert
