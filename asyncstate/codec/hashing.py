"""Key groups: the hash that decides which partition owns a key.

Owns: the hash of key columns, equal bit for bit to Spark SQL's ``xxhash64(col1, col2, ...)`` (seed 42, the hash of one
column seeds the next, null leaves it unchanged), as columns and as one tuple. Spark routes the rows and this project
stores them, so both must agree.
Invariant: the group of a key never changes between versions; stored bytes begin with it.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.

Source: ``XxHash64Function`` and ``XXH64.java`` of Spark; xxHash specification for XXH64. Timestamps hash as their raw
int64, which is Spark's value for microseconds only. Without key columns every row belongs to group 0.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from asyncstate.codec.arrow_types import check_key_type, is_bytes_type, is_string_type
from asyncstate.codec.scalars import CONVERSION_ERRORS, ScalarForm, mismatch, scalar_form, wrong_arity
from asyncstate.codec.value_columns import Array, binary_rows, to_binary, to_storage, valid_mask
from asyncstate.errors import ConfigurationError

SEED = 42
MAX_PARALLELISM_LIMIT = 32768

BROADCAST_GROUP = b"\xff\xff"
"""Replaces the key group in the store keys of broadcast state: above every group, the same in all partitions."""

UInt64Array = npt.NDArray[np.uint64]
HashOne = Callable[[Any, int], int]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
LONG_DIGITS = 18

_xxh64: Callable[[bytes, int], int] = xxhash.xxh64_intdigest


def check_max_parallelism(max_parallelism: int) -> None:
    """Raise ``ConfigurationError`` unless 1 <= max_parallelism <= 32768 (a group is two bytes of a key)."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ConfigurationError(
            f"max parallelism {max_parallelism} is not between 1 and {MAX_PARALLELISM_LIMIT}; choose a value "
            "in this range"
        )


def key_groups(
    columns: Sequence[pa.Array], max_parallelism: int, num_rows: int | None = None
) -> npt.NDArray[np.int32]:
    """The key group of each row, shape (n,); ``num_rows`` is needed only without columns."""
    check_max_parallelism(max_parallelism)
    if not columns:
        return np.zeros(num_rows or 0, np.int32)
    return groups_of(hash_columns(columns), max_parallelism)


def groups_of(hashes: UInt64Array, max_parallelism: int) -> npt.NDArray[np.int32]:
    """The key group of each row, by the hash of its key."""
    signed = hashes.view(np.int64)
    if max_parallelism & (max_parallelism - 1) == 0:
        return (signed & (max_parallelism - 1)).astype(np.int32)
    return (signed % max_parallelism).astype(np.int32)


def partitions_of(
    groups: npt.NDArray[np.int32], parallelism: int, max_parallelism: int
) -> npt.NDArray[np.int64]:
    """The partition of each key group, shape (n,)."""
    partitions: npt.NDArray[np.int64] = groups.astype(np.int64) * parallelism // max_parallelism
    return partitions


def key_group(values: tuple[Any, ...], types: Sequence[pa.DataType], max_parallelism: int) -> int:
    """The key group of one key tuple; equal to ``key_groups`` for the same values."""
    return row_grouper(tuple(types), max_parallelism)(values)


def hash_columns(columns: Sequence[pa.Array]) -> UInt64Array:
    """Spark's ``xxhash64`` of each row as unsigned 64 bits; at least one column."""
    hashes = _hash_column(columns[0], None)
    for column in columns[1:]:
        hashes = _hash_column(column, hashes)
    return hashes


def _hash_column(column: pa.Array, seeds: UInt64Array | None) -> UInt64Array:
    """One step: ``seeds`` are the hashes of the previous columns, None for the first column."""
    check_key_type("key", column.type)
    valid = valid_mask(column)
    if is_string_type(column.type) or is_bytes_type(column.type):
        return _hash_bytes(binary_rows(to_binary(column)), seeds)
    storage = to_storage(column)
    if pa.types.is_decimal128(column.type):
        if column.type.precision > LONG_DIGITS:
            return _hash_bytes(_big_integer_rows(storage, valid), seeds)
        storage = storage[:, 0]
    start = np.full(len(storage), SEED, np.uint64) if seeds is None else seeds
    hashes = _hash_storage(storage, start)
    return hashes if valid is None else np.where(valid, hashes, start)


def _hash_bytes(rows: list[Any], seeds: UInt64Array | None) -> UInt64Array:
    """XXH64 of byte strings, one C call per row; None keeps the seed."""
    seed_of_row = itertools.repeat(SEED) if seeds is None else seeds.tolist()
    if None in rows:
        pairs = zip(rows, seed_of_row, strict=False)
        hashed = (seed if row is None else _xxh64(row, seed) for row, seed in pairs)
        return np.fromiter(hashed, np.uint64, len(rows))
    return np.fromiter(map(_xxh64, rows, seed_of_row), np.uint64, len(rows))


def _hash_storage(storage: Array, seeds: UInt64Array) -> UInt64Array:
    if storage.dtype.kind == "f":
        storage = canonical_floats(storage).view(f"<i{storage.dtype.itemsize}")
    if storage.dtype.itemsize == 8:
        return _hash_long(storage.view(np.uint64), seeds)
    # Narrow integers are widened with their sign to 32 bits first, as Java does.
    return _hash_int(storage.astype(np.int32).view(np.uint32).astype(np.uint64), seeds)


def canonical_floats(values: Array) -> Array:
    """-0.0 becomes 0.0 and every NaN the positive quiet one, so that equal keys have equal bits."""
    canonical: Array = values + values.dtype.type(0)
    canonical[np.isnan(canonical)] = math.nan
    return canonical


def _rotate(values: UInt64Array, bits: int) -> UInt64Array:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _hash_int(values: UInt64Array, seeds: UInt64Array) -> UInt64Array:
    """XXH64 of four bytes per row."""
    hashes = (seeds + (_P5 + np.uint64(4))) ^ (values * _P1)
    return _avalanche(_rotate(hashes, 23) * _P2 + _P3)


def _hash_long(values: UInt64Array, seeds: UInt64Array) -> UInt64Array:
    """XXH64 of eight bytes per row."""
    hashes = (seeds + (_P5 + np.uint64(8))) ^ (_rotate(values * _P2, 31) * _P1)
    return _avalanche(_rotate(hashes, 27) * _P1 + _P4)


def _avalanche(hashes: UInt64Array) -> UInt64Array:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _big_integer_rows(words: Array, valid: Array | None) -> list[bytes | None]:
    """Java's ``BigInteger.toByteArray`` of 128-bit integers given as (n, 2) words."""
    raw = words.tobytes()
    rows: list[bytes | None] = [
        big_integer_bytes(int.from_bytes(raw[at : at + 16], "little", signed=True))
        for at in range(0, len(raw), 16)
    ]
    if valid is not None:
        for index in np.flatnonzero(~valid).tolist():
            rows[index] = None
    return rows


def big_integer_bytes(value: int) -> bytes:
    """The shortest two's complement big-endian form, as ``java.math.BigInteger.toByteArray`` gives."""
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


@functools.lru_cache(maxsize=256)
def row_grouper(
    types: tuple[pa.DataType, ...], max_parallelism: int, names: tuple[str, ...] | None = None
) -> Callable[[tuple[Any, ...]], int]:
    """A function from a key tuple to its key group; raises ``CodecError`` for a value of another type."""
    check_max_parallelism(max_parallelism)
    names = names or tuple(map(str, range(len(types))))
    hashers = [_hasher_of(*field) for field in zip(types, names, strict=True)]
    if not hashers:
        return lambda values: 0
    if len(hashers) == 1:
        return _single_grouper(types[0], hashers[0], max_parallelism, names)

    def group_of(values: tuple[Any, ...]) -> int:
        if len(values) != len(hashers):
            raise wrong_arity("key", values, names)
        hashed = SEED
        for hasher, value in zip(hashers, values):  # noqa: B905  # checked above
            if value is not None:
                hashed = hasher(value, hashed)
        # pmod of the signed hash: Python's % already gives the positive remainder.
        return (hashed - (hashed >> 63 << 64)) % max_parallelism

    return group_of


def _single_grouper(
    arrow_type: pa.DataType, hasher: HashOne, max_parallelism: int, names: tuple[str, ...]
) -> Callable[[tuple[Any, ...]], int]:
    """The grouper of one key column, with special cases of the common types for the record grain."""
    pack = struct.Struct("<q").pack
    fast_int = pa.types.is_int64(arrow_type) or pa.types.is_timestamp(arrow_type)
    fast_type: type[Any] = int if fast_int else str if is_string_type(arrow_type) else type(None)

    def group_of(values: tuple[Any, ...]) -> int:
        if len(values) != 1:
            raise wrong_arity("key", values, names)
        value = values[0]
        if value is None:
            return SEED % max_parallelism
        if type(value) is fast_type:
            try:
                hashed = _xxh64(pack(value) if fast_int else value.encode(), SEED)
            except (struct.error, UnicodeEncodeError):
                hashed = hasher(value, SEED)
        else:
            hashed = hasher(value, SEED)
        return (hashed - (hashed >> 63 << 64)) % max_parallelism

    return group_of


def _hasher_of(arrow_type: pa.DataType, name: str) -> HashOne:
    """The hash step of one non-null value: ``(value, seed) -> unsigned 64-bit hash``."""
    check_key_type(name, arrow_type)
    form = scalar_form(arrow_type)
    to_bytes = _hashed_bytes(form)

    def hash_one(value: Any, seed: int) -> int:
        try:
            return _xxh64(to_bytes(value), seed)
        except CONVERSION_ERRORS as error:
            raise mismatch("key", name, arrow_type, value, error) from None

    if form.direct is not int:
        return hash_one
    # Integers and timestamps: one packing call instead of a chain of conversions.
    pack = struct.Struct("<q" if form.code == "q" else "<i").pack
    limit = 1 << (arrow_type.bit_width - 1)

    def hash_integer(value: Any, seed: int) -> int:
        if type(value) is int and -limit <= value < limit:
            return _xxh64(pack(value), seed)
        return hash_one(value, seed)

    return hash_integer


def _hashed_bytes(form: ScalarForm) -> Callable[[Any], bytes]:
    """The bytes of a non-null value that are hashed."""
    to_primitive = form.to_primitive
    if form.code is None:
        return to_primitive
    if pa.types.is_decimal128(form.arrow_type):
        if form.arrow_type.precision > LONG_DIGITS:
            return lambda value: big_integer_bytes(to_primitive(value))
        return lambda value: to_primitive(value).to_bytes(8, "little", signed=True)
    if form.code in "fd":
        pack = struct.Struct("<" + form.code).pack
        return lambda value: pack(canonical_float(to_primitive(value)))
    pack = struct.Struct("<q" if form.code == "q" else "<i").pack
    return lambda value: pack(to_primitive(value))


def canonical_float(value: float) -> float:
    """``canonical_floats`` for one value."""
    return value + 0.0 if value == value else math.nan
