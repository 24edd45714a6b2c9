"""One field of a key: order-preserving, prefix-free bytes.

Owns: the byte form of every key type, for one value and for a column. A field is ``00`` (null, first in order) or
``01`` and a payload; fixed-width payloads compare as unsigned bytes like their values, variable ones escape ``00`` as
``00 FF`` and end with ``00 01``.
Invariant: no encoded field is a prefix of another of the same type, so concatenated fields compare field by
field.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.

Source: the total-order trick for IEEE floats and the escaped terminator are those of FoundationDB's tuple
layer."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec.hashing import canonical_float, canonical_floats
from asyncstate.codec.scalars import CONVERSION_ERRORS, ScalarForm, mismatch, scalar_form
from asyncstate.codec.value_columns import (
    EMPTY,
    LARGE_BINARY,
    Array,
    ByteArray,
    binary_from,
    contains_zero,
    storage_dtype,
    to_binary,
)
from asyncstate.errors import CodecError

NULL_FIELD = b"\x00"
VALUE_MARK = b"\x01"
TERMINATOR = b"\x00\x01"
ZERO, ESCAPED_ZERO = b"\x00", b"\x00\xff"

_UNSIGNED_CODES = {"b": "B", "h": "H", "i": "I", "q": "Q"}
_TERMINATOR_SCALAR = pa.scalar(TERMINATOR, LARGE_BINARY)
_MARK_SCALAR = pa.scalar(VALUE_MARK, LARGE_BINARY)

EncodeField = Callable[[Any], bytes]
DecodeField = Callable[[bytes, int], tuple[Any, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class KeyField:
    """The codec of one key column. ``width`` is the payload size in bytes, None if it varies."""

    name: str
    arrow_type: pa.DataType
    width: int | None
    encode_one: EncodeField
    decode_one: DecodeField


def key_field(name: str, arrow_type: pa.DataType) -> KeyField:
    """The field codec of a supported key type."""
    form = scalar_form(arrow_type)
    dtype = storage_dtype(arrow_type)
    if form.direct is int:
        return _integer_field(name, form)
    if form.arrow_type in (pa.string(), pa.large_string()):
        return _string_field(name, form)
    if dtype is None:
        return KeyField(
            name,
            arrow_type,
            None,
            _encoder(name, form, _encode_bytes),
            _decoder(name, form, decode_bytes),
        )
    width = dtype.itemsize
    payload_encoder, unpack = _fixed_payload(form, width)

    def decode_fixed(data: bytes, start: int) -> tuple[Any, int]:
        end = start + width
        if end > len(data):
            raise ValueError("the bytes end too early")
        return unpack(data[start:end]), end

    return KeyField(
        name, arrow_type, width, _encoder(name, form, payload_encoder), _decoder(name, form, decode_fixed)
    )


def _integer_field(name: str, form: ScalarForm) -> KeyField:
    """Integers and timestamps, the most frequent keys: mark and payload in one ``struct`` call."""
    assert form.code is not None
    packer = struct.Struct(">B" + _UNSIGNED_CODES[form.code])
    pack, unpack_from, size = packer.pack, packer.unpack_from, packer.size
    bias = 1 << ((size - 1) * 8 - 1)
    slow_encode = _encoder(name, form, lambda value: pack(1, value + bias)[1:])

    def encode(value: Any) -> bytes:
        if type(value) is int and -bias <= value < bias:
            return pack(1, value + bias)
        return slow_encode(value)

    def decode(data: bytes, offset: int) -> tuple[Any, int]:
        if len(data) - offset >= size:
            mark, raw = unpack_from(data, offset)
            if mark == 1:
                return raw - bias, offset + size
        return decode_slow(data, offset)

    def too_short(data: bytes, start: int) -> tuple[Any, int]:
        raise ValueError("the bytes end too early")

    decode_slow = _decoder(name, form, too_short)
    return KeyField(name, form.arrow_type, size - 1, encode, decode)


def _string_field(name: str, form: ScalarForm) -> KeyField:
    """Strings without zero bytes, as nearly all are, need no escaping."""
    slow_encode = _encoder(name, form, _encode_bytes)
    slow_decode = _decoder(name, form, decode_bytes)

    def encode(value: Any) -> bytes:
        if type(value) is str and "\x00" not in value:
            try:
                return b"\x01%b\x00\x01" % value.encode()
            except UnicodeEncodeError:
                pass  # a lone surrogate; the slow path raises
        return slow_encode(value)

    def decode(data: bytes, offset: int) -> tuple[Any, int]:
        end = data.find(0, offset)
        # The first zero byte is the null field, an escaped zero, or (nearly always) the terminator.
        if end > offset and data[offset] == 1 and data[end + 1 : end + 2] == b"\x01":
            try:
                return data[offset + 1 : end].decode(), end + 2
            except UnicodeDecodeError as error:
                raise corrupt_key(name, form.arrow_type, error) from None
        return slow_decode(data, offset)

    return KeyField(name, form.arrow_type, None, encode, decode)


def _encoder(name: str, form: ScalarForm, payload: Callable[[Any], bytes]) -> EncodeField:
    to_primitive = form.to_primitive

    def encode(value: Any) -> bytes:
        if value is None:
            return NULL_FIELD
        try:
            return VALUE_MARK + payload(to_primitive(value))
        except CONVERSION_ERRORS as error:
            raise mismatch("key", name, form.arrow_type, value, error) from None

    return encode


def _decoder(name: str, form: ScalarForm, payload: DecodeField) -> DecodeField:
    from_primitive = form.from_primitive

    def decode(data: bytes, offset: int) -> tuple[Any, int]:
        mark = data[offset : offset + 1]
        if mark == NULL_FIELD:
            return None, offset + 1
        try:
            if mark != VALUE_MARK:
                raise ValueError(f"neither a null nor a value starts at byte {offset}")
            primitive, end = payload(data, offset + 1)
            return from_primitive(primitive), end
        except CONVERSION_ERRORS as error:
            raise corrupt_key(name, form.arrow_type, error) from None

    return decode


def corrupt_key(name: str, arrow_type: pa.DataType, cause: object) -> CodecError:
    """The error for stored bytes that are not a key of the declared type."""
    return CodecError(
        f"key: stored bytes of column {name!r} are not a {arrow_type}: {cause}; "
        "check that the state was written with the same key columns, else restore an older version"
    )


def _fixed_payload(form: ScalarForm, width: int) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Primitive to payload bytes and back for fixed-width types."""
    if form.code == "?":
        return lambda value: VALUE_MARK if value else ZERO, _bool_of
    if form.code in ("f", "d"):
        return _float_payload(form.code)
    bias = 1 << (8 * width - 1)
    return (
        lambda value: (value + bias).to_bytes(width, "big"),
        lambda raw: int.from_bytes(raw, "big") - bias,
    )


def _bool_of(raw: bytes) -> bool:
    if raw not in (ZERO, VALUE_MARK):
        raise ValueError(f"{raw.hex()} is not a bool")
    return raw == VALUE_MARK


def _float_payload(code: str) -> tuple[Callable[[float], bytes], Callable[[bytes], float]]:
    packer = struct.Struct(">" + code)
    bits = packer.size * 8
    sign, mask = 1 << (bits - 1), (1 << bits) - 1

    def encode(value: float) -> bytes:
        raw = int.from_bytes(packer.pack(canonical_float(value)), "big")
        return (raw ^ (mask if raw & sign else sign)).to_bytes(packer.size, "big")

    def decode(payload: bytes) -> float:
        ordered = int.from_bytes(payload, "big")
        value: float = packer.unpack(
            (ordered ^ (sign if ordered & sign else mask)).to_bytes(packer.size, "big")
        )[0]
        return value

    return encode, decode


def _encode_bytes(raw: bytes) -> bytes:
    return raw.replace(ZERO, ESCAPED_ZERO) + TERMINATOR


def decode_bytes(data: bytes, start: int) -> tuple[bytes, int]:
    """The unescaped bytes from ``start`` and the offset after them; ``ValueError`` if malformed."""
    # An escaped zero is always followed by FF, so the first 00 01 is the terminator.
    end = data.find(TERMINATOR, start)
    if end < 0:
        raise ValueError("the terminator is missing")
    raw = data[start:end]
    if ZERO in raw:
        if ZERO in raw.replace(ESCAPED_ZERO, b""):
            raise ValueError("a zero byte is not escaped")
        raw = raw.replace(ESCAPED_ZERO, ZERO)
    return raw, end + 2


def to_ordered(storage: Array) -> Array:
    """Storage values, except decimals, as unsigned integers of the same width in the same order."""
    dtype = storage.dtype
    if dtype.kind == "b":
        return storage.view(np.uint8)
    unsigned = np.dtype(f"<u{dtype.itemsize}").type
    sign = unsigned(1 << (dtype.itemsize * 8 - 1))
    if dtype.kind == "i":
        integers: Array = storage.view(unsigned) ^ sign
        return integers
    bits = canonical_floats(storage).view(unsigned)
    ordered: Array = np.where(bits & sign != 0, ~bits, bits ^ sign)
    return ordered


def from_ordered(ordered: Array, dtype: np.dtype[Any]) -> Array:
    """The inverse of ``to_ordered``; floats come back canonical."""
    if dtype.kind == "b":
        return ordered.astype(np.bool_)
    sign = ordered.dtype.type(1 << (dtype.itemsize * 8 - 1))
    bits: Array = ordered ^ sign
    if dtype.kind == "f":
        bits = np.where(ordered & sign != 0, bits, ~ordered)
    return bits.view(dtype)


def payload_matrix(storage: Array) -> ByteArray:
    """The fixed-width payloads of storage values, shape (n, width)."""
    if storage.ndim == 2:
        words = np.empty((len(storage), 2), ">u8")
        words[:, 0] = storage[:, 1].view(np.uint64) ^ np.uint64(1 << 63)
        words[:, 1] = storage[:, 0].view(np.uint64)
        return words.view(np.uint8).reshape(-1, 16)
    ordered = to_ordered(storage)
    width = ordered.dtype.itemsize
    return ordered.astype(f">u{width}").view(np.uint8).reshape(-1, width)


def payload_storage(payloads: ByteArray, dtype: np.dtype[Any]) -> Array:
    """The inverse of ``payload_matrix``; ``ValueError`` for a byte that is not a bool."""
    payloads = np.ascontiguousarray(payloads)
    if dtype.subdtype is not None:
        words = payloads.view(">u8").reshape(-1, 2)
        storage = np.empty((len(payloads), 2), np.int64)
        storage[:, 0] = words[:, 1].astype(np.uint64).view(np.int64)
        storage[:, 1] = (words[:, 0].astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
        return storage
    width = dtype.itemsize
    ordered = payloads.view(f">u{width}").reshape(-1).astype(f"<u{width}")
    if dtype.kind == "b" and bool((ordered > 1).any()):
        raise ValueError("a byte is not a bool")
    return from_ordered(ordered, dtype)


def encode_variable(column: pa.Array) -> pa.LargeBinaryArray:
    """The encoded fields of a string or binary column, without nulls in the result."""
    raw = to_binary(column)
    if contains_zero(raw):
        raw = pc.replace_substring(raw, pattern=ZERO, replacement=ESCAPED_ZERO)
    encoded = pc.binary_join_element_wise(_MARK_SCALAR, raw, _TERMINATOR_SCALAR, EMPTY)
    return encoded.fill_null(NULL_FIELD) if encoded.null_count else encoded


def encode_fixed(payloads: ByteArray, valid: Array | None) -> pa.LargeBinaryArray:
    """The encoded fields of a fixed-width column from its payloads, without nulls in the result."""
    rows, width = payloads.shape
    matrix = np.empty((rows, width + 1), np.uint8)
    matrix[:, 0] = 1
    matrix[:, 1:] = payloads
    lengths = np.full(rows, width + 1, np.int64)
    data = matrix.reshape(-1)
    if valid is not None:
        matrix[~valid, 0] = 0
        lengths[~valid] = 1
        keep = np.ones(matrix.shape, np.bool_)
        keep[:, 1:] = valid[:, None]
        data = matrix[keep]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    return binary_from(offsets, pa.py_buffer(data))


def unescape(column: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """The raw bytes of escaped payloads (terminator already removed); ``ValueError`` if malformed."""
    if not contains_zero(column):
        return column
    if contains_zero(pc.replace_substring(column, pattern=ESCAPED_ZERO, replacement=b"")):
        raise ValueError("a zero byte is not escaped")
    return pc.replace_substring(column, pattern=ESCAPED_ZERO, replacement=ZERO)
