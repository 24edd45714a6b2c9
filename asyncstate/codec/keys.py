"""The key codec: key values to bytes that sort like the values.

Owns: ``KeyCodec``, the one place where key tuples and key columns become bytes, and the helpers for namespaces and
prefixes of store keys.
Invariants: bytes compare like the tuples (null first, then by value; NaN last); no key is a prefix of another one of
the same codec; one value and a column of it give the same bytes.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec.arrow_types import check_key_type
from asyncstate.codec.hashing import check_max_parallelism, key_groups, row_grouper
from asyncstate.codec.key_batch import KeyBatch, group_rows
from asyncstate.codec.key_columns import StoredKeys, decode_columns, encode_columns
from asyncstate.codec.key_fields import KeyField, key_field
from asyncstate.codec.pages import DecodeKeys, key_pages
from asyncstate.codec.scalars import wrong_arity
from asyncstate.codec.value_columns import Int64Array, as_rows, plain_columns
from asyncstate.errors import CodecError, SchemaError

EncodeKey = Callable[[tuple[Any, ...]], bytes]
DecodeKey = Callable[..., tuple[tuple[Any, ...], int]]

GROUP_BYTES: Final = 2
"""Length of the key group, with which every store key begins."""
STATE_ID_AT: Final = GROUP_BYTES
"""Position of the state's id in a store key: one byte."""
STATE_PREFIX_BYTES: Final = STATE_ID_AT + 1
"""Length of the prefix of every store key: key group and state id."""

_INT64_BIAS = 1 << 63
_NAMESPACE = struct.Struct(">Q")


@functools.lru_cache(maxsize=64)
def group_prefixes(max_parallelism: int) -> tuple[bytes, ...]:
    """The first two bytes of the store keys of each key group."""
    return tuple(group.to_bytes(GROUP_BYTES, "big") for group in range(max_parallelism))


class KeyCodec:
    """Encodes the key columns ``names`` of ``types`` for ``max_parallelism`` key groups.

    ``route``: the positions of the columns that decide a key's group, in order of hashing; empty: all of them.

    ``SchemaError`` for a type that cannot be a key. Without columns there is one key, empty, of group 0.
    All methods raise ``CodecError`` naming the column if a value or stored bytes do not fit its type.
    """

    __slots__ = (
        "_fields",
        "decode_one",
        "decode_page",
        "encode_one",
        "group_prefix_one",
        "max_parallelism",
        "names",
        "route",
        "types",
    )

    encode_one: EncodeKey
    """Bytes of one key tuple: ``encode_one(values)``. A plain function: use it from a local on hot paths."""
    decode_one: DecodeKey
    """``decode_one(data, offset=0) -> (values, next_offset)``."""
    decode_page: DecodeKeys
    """``decode_page(keys, skip)``: the first column's value of each stored key, after ``skip`` bytes."""
    group_prefix_one: EncodeKey
    """Two big-endian bytes of the key group of one key tuple."""

    def __init__(
        self,
        types: Sequence[pa.DataType],
        names: Sequence[str],
        max_parallelism: int,
        route: Sequence[int] = (),
    ) -> None:
        check_max_parallelism(max_parallelism)
        if len(types) != len(names):
            raise SchemaError(
                f"{len(types)} key types but {len(names)} key names ({', '.join(names)}) are given"
            )
        for name, arrow_type in zip(names, types, strict=True):
            check_key_type(name, arrow_type)
        self.types = tuple(types)
        self.names = tuple(names)
        self.max_parallelism = max_parallelism
        self.route = tuple(route) or tuple(range(len(names)))
        self._fields = tuple(key_field(*field) for field in zip(self.names, self.types, strict=True))
        functions_of = _single_functions if len(self._fields) == 1 else _general_functions
        self.encode_one, self.decode_one = functions_of(self._fields)
        self.decode_page = key_pages(self.types, self.decode_one)
        self.group_prefix_one = self._group_prefixer()

    def _group_prefixer(self) -> EncodeKey:
        names, route = self.names, self.route
        prefixes = group_prefixes(self.max_parallelism)
        routed_types = tuple(self.types[at] for at in route)
        routed_names = tuple(names[at] for at in route)
        group_of = row_grouper(routed_types, self.max_parallelism, routed_names)

        def group_prefix_one(values: tuple[Any, ...]) -> bytes:
            return prefixes[group_of(values)]

        def routed_prefix_one(values: tuple[Any, ...]) -> bytes:
            if len(values) != len(names):
                raise wrong_arity("key", values, names)
            return prefixes[group_of(tuple(values[at] for at in route))]

        return group_prefix_one if route == tuple(range(len(names))) else routed_prefix_one

    def encode(self, columns: Sequence[pa.Array]) -> list[bytes]:
        """The key bytes of each row."""
        plain = self._plain(columns)
        return as_rows(encode_columns(self._fields, plain, len(plain[0]) if plain else 0))

    def groups(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
        """The key group of each row."""
        plain = self._plain(columns)
        return key_groups([plain[at] for at in self.route], self.max_parallelism)

    def decode(self, keys: StoredKeys, skip: int | Int64Array = 0) -> list[pa.Array]:
        """Key columns of stored keys; ``skip`` bytes (one number, or one per key) precede each, nothing may follow."""
        columns, ends, lengths = decode_columns(self._fields, keys, skip)
        wrong = np.flatnonzero(ends != lengths)
        if len(wrong):
            raise CodecError(
                f"key: {_bytes_at(keys, int(wrong[0])).hex()} has bytes after the key columns "
                f"({', '.join(self.names)}); check that the state was written with the same key columns"
            )
        return columns

    def decode_prefix(
        self, keys: StoredKeys, skip: int | Int64Array = 0
    ) -> tuple[list[pa.Array], Int64Array]:
        """Like ``decode`` for keys followed by more; also the offset after the key in each row.

        ``skip`` may be an array, such as the offsets that another codec's ``decode_prefix`` gave.
        """
        columns, ends, _ = decode_columns(self._fields, keys, skip)
        return columns, ends

    def group(
        self, columns: Sequence[pa.Array], namespace: Int64Array | None = None, *, num_rows: int | None = None
    ) -> KeyBatch:
        """The unique keys (per namespace) of a batch in store order.

        ``namespace``: int64 of shape (num_rows,); ``num_rows`` is needed only without key columns.
        """
        plain = self._plain(columns)
        if plain:
            num_rows = len(plain[0])
        elif num_rows is None:
            num_rows = 0 if namespace is None else len(namespace)
        if namespace is not None and (namespace.dtype != np.int64 or namespace.shape != (num_rows,)):
            raise CodecError(
                f"key: namespaces are {namespace.dtype} of shape {namespace.shape}; "
                f"give int64 of shape ({num_rows},)"
            )
        return group_rows(self._fields, plain, namespace, num_rows, self.max_parallelism, self.route)

    def _plain(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        return plain_columns(columns, self.types, self.names, "key")


def _bytes_at(keys: StoredKeys, index: int) -> bytes:
    key: bytes = keys[index].as_py() if isinstance(keys, pa.LargeBinaryArray) else keys[index]
    return key


def _single_functions(fields: tuple[KeyField, ...]) -> tuple[EncodeKey, DecodeKey]:
    """The common single key column without a loop over fields."""
    (field,) = fields
    encode, decode, names = field.encode_one, field.decode_one, (field.name,)

    def encode_one(values: tuple[Any, ...]) -> bytes:
        if len(values) != 1:
            raise wrong_arity("key", values, names)
        return encode(values[0])

    def decode_one(data: bytes, offset: int = 0) -> tuple[tuple[Any, ...], int]:
        value, end = decode(data, offset)
        return (value,), end

    return encode_one, decode_one


def _general_functions(fields: tuple[KeyField, ...]) -> tuple[EncodeKey, DecodeKey]:
    encoders = [field.encode_one for field in fields]
    decoders = [field.decode_one for field in fields]
    names = [field.name for field in fields]

    def encode_one(values: tuple[Any, ...]) -> bytes:
        if len(values) != len(encoders):
            raise wrong_arity("key", values, names)
        return b"".join([encode(value) for encode, value in zip(encoders, values)])  # noqa: B905  # checked above

    def encode_pair(values: tuple[Any, ...]) -> bytes:
        if len(values) != 2:
            raise wrong_arity("key", values, names)
        return encoders[0](values[0]) + encoders[1](values[1])

    def decode_one(data: bytes, offset: int = 0) -> tuple[tuple[Any, ...], int]:
        values = []
        for decode in decoders:
            value, offset = decode(data, offset)
            values.append(value)
        return tuple(values), offset

    return encode_pair if len(encoders) == 2 else encode_one, decode_one


def encode_namespace(namespace: int) -> bytes:
    """Eight bytes that sort like ``namespace``, an int64 such as a window end; ``CodecError`` for any other value."""
    if type(namespace) is not int and isinstance(namespace, np.integer):  # addition may overflow its type
        namespace = int(namespace)
    try:
        return _NAMESPACE.pack(namespace + _INT64_BIAS)
    except (struct.error, TypeError):
        raise CodecError(
            f"namespace {namespace!r} is not an int64; give microseconds since the epoch"
        ) from None


def decode_namespace(data: bytes, offset: int = 0) -> int:
    """The namespace at ``offset`` of a store key."""
    try:
        namespace: int = _NAMESPACE.unpack_from(data, offset)[0] - _INT64_BIAS
    except struct.error:
        raise CodecError(
            f"key {data.hex()} is too short for a namespace at byte {offset}; "
            "check that the state was declared with namespaces when it was written"
        ) from None
    return namespace


def prefix_end(prefix: bytes) -> bytes:
    """The smallest byte string above all that start with ``prefix``; ``CodecError`` if there is none."""
    head = prefix.rstrip(b"\xff")
    if not head:
        raise CodecError(
            f"no key is above all keys with the prefix {prefix.hex()!r}; use a prefix of a key group"
        )
    return head[:-1] + bytes([head[-1] + 1])
