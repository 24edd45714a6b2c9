"""Which values may be kept and shared as Python objects, and which of them need no encoding to be known as storable.

Owns: ``PlainValues``, ``plain_values`` and ``plain_key``.
Invariant: a plain value cannot be changed by whoever gets it.
Must not import anything of the project but its neighbours in ``codec``.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from asyncstate.codec.types import is_bytes_type, is_key_type, is_string_type

# Asked for every write of a hot key, so without a Python frame: a class is true, an empty tuple contains nothing.
_ALWAYS: Final[Callable[[Any], Any]] = type
_NEVER: Final[Callable[[Any], Any]] = ().__contains__


@dataclass(frozen=True, slots=True)
class PlainValues:
    """The values of one flat type.

    ``type``: what decoding gives, exactly. ``kept``: a value of that type comes back from the store as it is.
    ``fits``: true for values of that type that are certain to be stored and to come back as they are, without encoding
    them. ``fixed``: all take about the same room.
    """

    type: type
    kept: bool
    fits: Callable[[Any], Any]
    fixed: bool = True


def plain_values(arrow_type: pa.DataType) -> PlainValues | None:
    """None for lists, structs and maps: their Python values can be changed by whoever has read them."""
    if not is_key_type(arrow_type):
        return None
    if pa.types.is_boolean(arrow_type):
        return PlainValues(bool, True, _ALWAYS)
    if pa.types.is_integer(arrow_type) or pa.types.is_timestamp(arrow_type):
        bound = 1 << arrow_type.bit_width - 1
        return PlainValues(int, True, range(-bound, bound).__contains__)
    if pa.types.is_date32(arrow_type):
        return PlainValues(datetime.date, True, _ALWAYS)
    if pa.types.is_floating(arrow_type):
        exact = bool(pa.types.is_float64(arrow_type))
        return PlainValues(float, exact, _ALWAYS if exact else _NEVER)
    if pa.types.is_decimal128(arrow_type):
        return PlainValues(decimal.Decimal, False, _NEVER)  # the scale is the type's
    assert is_string_type(arrow_type) or is_bytes_type(arrow_type), arrow_type
    return PlainValues(str if is_string_type(arrow_type) else bytes, True, _NEVER, fixed=False)


def plain_key(arrow_type: pa.DataType) -> type | None:
    """The Python type whose values are equal exactly if they are the same key; None if there is none.

    Floats have two zeros and values that equal nothing, and a Decimal's equal may be written in several ways.
    """
    plain = plain_values(arrow_type)
    return None if plain is None or plain.type in (float, decimal.Decimal) else plain.type
