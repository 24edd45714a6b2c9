"""Single Python values of each type, checked and converted to the stored primitive.

Owns: the primitive (int, float, bool or bytes) of a Python value of a flat Arrow type at record grain. Used by keys,
values and hashing alike, so a value means the same everywhere. ``PlainValues`` says which values may be cached and
shared directly, since they are immutable.
Invariant: a flat type accepts the values that ``from_python`` accepts for a column of it, and stores the same.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.

Python values that reads give: ``int``, ``float``, ``str``, ``bytes``, ``bool``; ``datetime.date`` for date32;
``decimal.Decimal`` for decimal128; for timestamps the raw **int** of the type's unit (time inside the
framework is int64 microseconds). Values of these types are encoded here; any other is converted as a column is."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from asyncstate.codec.arrow_types import is_bytes_type, is_key_type, is_string_type
from asyncstate.codec.from_python import plain_value
from asyncstate.errors import CodecError

_EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()
_INT_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}
_EXACT = decimal.Context(prec=76, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])

# Called for every write of a hot key, so without a Python frame: a class is true, an empty tuple contains nothing.
_ALWAYS: Final[Callable[[Any], Any]] = type
_NEVER: Final[Callable[[Any], Any]] = ().__contains__

CONVERSION_ERRORS = (TypeError, ValueError, OverflowError, ArithmeticError, struct.error)


Other = Callable[[Any], Any]
"""Converts a value of another type to the type that reads give; ValueError if there is no such value."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScalarForm:
    """The Python value and the stored primitive of a flat type.

    ``code`` is the ``struct`` letter of a fixed-width primitive, "16s" for decimal128 (primitive: the unscaled int) and
    None for strings and binary (primitive: bytes). ``direct`` is the Python type whose values are already primitives if
    they are in range, or None. ``to_primitive`` raises one of ``CONVERSION_ERRORS``.
    """

    arrow_type: pa.DataType
    code: str | None
    direct: type | None
    to_primitive: Callable[[Any], Any]
    from_primitive: Callable[[Any], Any]


def mismatch(owner: str, field: str, arrow_type: pa.DataType, value: Any, cause: object) -> CodecError:
    """The error for a value that does not fit its declared type."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return CodecError(
        f"{owner}: field {field!r} of type {arrow_type} cannot hold {shown} ({type(value).__name__}): "
        f"{cause}; convert the value before it is used, or declare another type"
    )


def wrong_arity(owner: str, values: tuple[Any, ...], names: Sequence[str]) -> CodecError:
    """The error for a tuple that does not have one value per field."""
    fields = ", ".join(names)
    return CodecError(
        f"{owner}: {len(values)} values given for {len(names)} fields ({fields}); give one for each"
    )


def scalar_form(arrow_type: pa.DataType) -> ScalarForm:
    """The form of a flat type; the caller has checked that it is supported."""

    def other(value: Any) -> Any:
        """A value of another Python type in the form that reads give."""
        return plain_value(value, arrow_type)

    if pa.types.is_boolean(arrow_type):
        return ScalarForm(arrow_type, "?", bool, _bool_check(other), same)
    if pa.types.is_timestamp(arrow_type):
        return ScalarForm(arrow_type, "q", int, _int_check(64, other), same)
    if pa.types.is_date32(arrow_type):
        return ScalarForm(arrow_type, "i", None, _date_check(other), _from_days)
    if pa.types.is_integer(arrow_type):
        bits = arrow_type.bit_width
        return ScalarForm(arrow_type, _INT_CODES[bits], int, _int_check(bits, other), same)
    if pa.types.is_float32(arrow_type):
        return ScalarForm(arrow_type, "f", float, _float32_check(other), same)
    if pa.types.is_float64(arrow_type):
        return ScalarForm(arrow_type, "d", float, _float_check(other), same)
    if pa.types.is_decimal128(arrow_type):
        scale = arrow_type.scale
        unscaled = _decimal_check(arrow_type.precision, scale, other)
        return ScalarForm(arrow_type, "16s", None, unscaled, lambda value: _EXACT.scaleb(value, -scale))
    if is_string_type(arrow_type):
        return ScalarForm(arrow_type, None, None, _text_check(other), _from_utf8)
    assert is_bytes_type(arrow_type), arrow_type
    return ScalarForm(arrow_type, None, bytes, _bytes_check(other), bytes)


def same(value: Any) -> Any:
    """The value itself, where no conversion is needed."""
    return value


def _bool_check(other: Other) -> Callable[[Any], bool]:
    def to_bool(value: Any) -> bool:
        return bool(value) if isinstance(value, (bool, np.bool_)) else to_bool(other(value))

    return to_bool


def _int_check(bits: int, other: Other) -> Callable[[Any], int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def to_int(value: Any) -> int:
        if type(value) is int:
            number = value
        elif isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
            number = other(value)
        else:
            number = operator.index(value)
        if not low <= number <= high:
            raise ValueError(f"out of range {low}..{high}")
        return number

    return to_int


def _float_check(other: Other) -> Callable[[Any], float]:
    def to_float(value: Any) -> float:
        if type(value) is float:
            return value
        if isinstance(value, (float, np.float64, np.float32, np.float16)):
            return float(value)
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            whole = operator.index(value)
            if float(whole) == whole:
                return float(whole)
        return to_float(other(value))

    return to_float


def _float32_check(other: Other) -> Callable[[Any], float]:
    to_float = _float_check(other)

    def to_float32(value: Any) -> float:
        # Rounded here so that record grain stores the same bits as a float32 column.
        rounded: float = struct.unpack("<f", struct.pack("<f", to_float(value)))[0]
        return rounded

    return to_float32


def _date_check(other: Other) -> Callable[[Any], int]:
    def to_days(value: Any) -> int:
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value.toordinal() - _EPOCH_ORDINAL
        return to_days(other(value))

    return to_days


def _from_days(days: int) -> datetime.date:
    return datetime.date.fromordinal(days + _EPOCH_ORDINAL)


def _decimal_check(precision: int, scale: int, other: Other) -> Callable[[Any], int]:
    limit = 10**precision

    def to_unscaled(value: Any) -> int:
        if not isinstance(value, decimal.Decimal):
            value = other(value)
        if not value.is_finite():
            raise TypeError("a finite decimal.Decimal is expected")
        scaled = _EXACT.scaleb(value, scale)
        # Bound the exponent before int() would produce all digits.
        unscaled = int(scaled) if scaled.adjusted() <= precision else limit
        if unscaled != scaled or not -limit < unscaled < limit:
            raise ValueError(f"more than {precision} digits, or more than {scale} after the point")
        return unscaled

    return to_unscaled


def _text_check(other: Other) -> Callable[[Any], bytes]:
    def to_utf8(value: Any) -> bytes:
        return value.encode() if isinstance(value, str) else to_utf8(other(value))

    return to_utf8


def _from_utf8(raw: bytes) -> str:
    return str(raw, "utf-8")


def _bytes_check(other: Other) -> Callable[[Any], bytes]:
    def to_bytes(value: Any) -> bytes:
        return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else to_bytes(other(value))

    return to_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class PlainValues:
    """The values of one flat type.

    ``type``: the exact type that decoding gives. ``kept``: a value of that type is read from the store unchanged.
    ``fits``: true for values of that type that can certainly be stored and read unchanged, without encoding them.
    ``fixed``: all have about the same size.
    """

    type: type
    kept: bool
    fits: Callable[[Any], Any]
    fixed: bool = True


def plain_values(arrow_type: pa.DataType) -> PlainValues | None:
    """None for lists, structs and maps: their Python values are mutable."""
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
        return PlainValues(decimal.Decimal, False, _NEVER)  # the scale is that of the type
    assert is_string_type(arrow_type) or is_bytes_type(arrow_type), arrow_type
    return PlainValues(str if is_string_type(arrow_type) else bytes, True, _NEVER, fixed=False)


def plain_key(arrow_type: pa.DataType) -> type | None:
    """The Python type whose values are equal exactly if they are the same key; None if there is none.

    Floats have two zeros and values that equal nothing, and equal Decimals may have several forms.
    """
    plain = plain_values(arrow_type)
    return None if plain is None or plain.type in (float, decimal.Decimal) else plain.type
