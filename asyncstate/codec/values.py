"""The value codecs: typed, versioned rows and single values to bytes.

Owns: ``RowCodec``, ``ValueCodec`` and ``PickleCodec``. Each stored value begins with a version byte: the number of
schemas declared before the one that wrote it.
Invariants: one row and a column of rows give the same bytes; every version once written stays readable; nothing is
unpickled unless the state was declared as pickled.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``."""

from __future__ import annotations

import itertools
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from asyncstate.codec.arrow_types import check_value_schema, is_string_type
from asyncstate.codec.evolution import check_evolution
from asyncstate.codec.nested import upgrade, upgrade_column
from asyncstate.codec.pages import DecodePacked, DecodeValues, value_pages
from asyncstate.codec.row_columns import decode_rows, encode_rows
from asyncstate.codec.row_layout import RowLayout, row_layout
from asyncstate.codec.row_scalars import DecodeRow, EncodeRow, row_decoder, row_encoder
from asyncstate.codec.scalars import PlainValues, plain_values
from asyncstate.codec.value_columns import (
    LARGE_BINARY,
    BoolArray,
    ByteArray,
    ByteRows,
    as_binary,
    as_rows,
    binary_parts,
    plain_columns,
    spread,
    valid_mask,
)
from asyncstate.errors import CodecError, SchemaError

MAX_VERSIONS = 250
PICKLE_MARK = b"\xfe"


class RowCodec:
    """Codec of rows of ``schema``; also reads rows written with the ``older`` schemas, the first of them version 0.

    ``owner`` names the state in messages. ``SchemaError`` for unsupported types, too many versions, or an older schema
    that cannot be read as the newer one (see ``check_evolution``). Added fields read as null.
    """

    __slots__ = ("_layouts", "_sources", "decode_one", "encode_one", "owner", "schema")

    encode_one: EncodeRow
    """Bytes of one tuple. A plain function, fast from a local; ``CodecError`` for a bad value."""
    decode_one: DecodeRow
    """The tuple of one stored row, of any version; ``CodecError`` if the bytes are not one."""

    def __init__(self, schema: pa.Schema, older: Sequence[pa.Schema] = (), *, owner: str = "value") -> None:
        schemas = [*older, schema]
        if len(schemas) > MAX_VERSIONS:
            raise SchemaError(
                f"{owner}: {len(schemas)} schema versions; at most {MAX_VERSIONS} fit the version byte"
            )
        for one in schemas:
            check_value_schema(one)
        for old, new in itertools.pairwise(schemas):
            check_evolution(old, new, owner)
        self.schema = schema
        self.owner = owner
        self._layouts = [row_layout(one, version, owner) for version, one in enumerate(schemas)]
        # The index of each field in the older schema, -1 if it was added.
        self._sources = [[one.get_field_index(name) for name in schema.names] for one in older]
        self.encode_one = row_encoder(self._layouts[-1])
        self.decode_one = _versioned_decoder(self._layouts, self._sources)

    @property
    def version(self) -> int:
        """The version byte of written rows."""
        return len(self._layouts) - 1

    @property
    def width(self) -> int | None:
        """Bytes of each encoded row; None if they differ."""
        return None if self._layouts[-1].variable else self._layouts[-1].dtype.itemsize

    def encode(
        self, columns: Sequence[pa.Array], prefix: ByteArray | None = None, num_rows: int = 0
    ) -> list[bytes]:
        """The bytes of each row, after those of ``prefix`` (n, width) if given; ``CodecError`` if the columns do not
        have exactly the schema's types. ``num_rows`` is the number of rows for a schema without fields."""
        return as_rows(self._encoded(columns, prefix, num_rows))

    def checked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The columns as ``encode`` takes them; raises the errors of ``encode``, for columns that are encoded later."""
        plain = plain_columns(columns, self.schema.types, self.schema.names, self.owner)
        for index, column in enumerate(plain):
            if column.null_count and not self.schema.field(index).nullable:
                raise self._layouts[-1].missing(index)
        return plain

    def encode_column(
        self, columns: Sequence[pa.Array], prefix: ByteArray | None = None
    ) -> pa.LargeBinaryArray:
        """As ``encode``, but returns a binary column, for values with many rows each."""
        return as_binary(self._encoded(columns, prefix))

    def _encoded(self, columns: Sequence[pa.Array], prefix: ByteArray | None, num_rows: int = 0) -> ByteRows:
        plain = plain_columns(columns, self.schema.types, self.schema.names, self.owner)
        return encode_rows(self._layouts[-1], plain, len(plain[0]) if plain else num_rows, prefix)

    def decode(self, values: Sequence[bytes | None]) -> tuple[list[pa.Array], BoolArray]:
        """Columns of n rows, null in all columns where ``values`` is None, and the mask of present rows.

        ``CodecError`` if a value is truncated, damaged, or of a version this codec does not know.
        """
        rows = pa.array(values, LARGE_BINARY)
        present = valid_mask(rows)
        if present is None:
            return self._decode_present(rows), np.ones(len(rows), np.bool_)
        return spread(self._decode_present(rows.drop_null()), present), present

    def _decode_present(self, rows: pa.LargeBinaryArray) -> list[pa.Array]:
        if len(rows) == 0:
            return [pa.array([], field.type) for field in self.schema]
        offsets, data = binary_parts(rows)
        if bool((offsets[1:] == offsets[:-1]).any()):
            raise self._layouts[-1].corrupt("0 bytes are too few")
        versions = data[offsets[:-1]]
        if bool((versions == self.version).all()):
            return decode_rows(self._layouts[-1], rows)
        parts, positions = [], []
        for version in np.unique(versions).tolist():
            chosen = np.flatnonzero(versions == version)
            parts.append(self._decode_version(version, rows.take(pa.array(chosen))))
            positions.append(chosen)
        order = pa.array(np.argsort(np.concatenate(positions)))
        return [pa.concat_arrays(pieces).take(order) for pieces in zip(*parts, strict=True)]

    def _decode_version(self, version: int, rows: pa.LargeBinaryArray) -> list[pa.Array]:
        if version > self.version:
            raise self._layouts[-1].corrupt(f"the version byte is {version}")
        columns = decode_rows(self._layouts[version], rows)
        if version == self.version:
            return columns
        fields = zip(self._sources[version], self.schema, strict=True)
        return [
            pa.nulls(len(rows), field.type) if source < 0 else upgrade_column(columns[source], field.type)
            for source, field in fields
        ]


def _versioned_decoder(layouts: Sequence[RowLayout], sources: Sequence[list[int]]) -> DecodeRow:
    """Decodes rows of the last layout, and of the others through the ``sources`` of their fields."""
    current = row_decoder(layouts[-1])
    older = [row_decoder(layout) for layout in layouts[:-1]]
    if not older:
        return current
    # The position of each field in the older row, and its conversion to the new value.
    plans = [
        [
            (source, None if source < 0 else upgrade(layout.schema.field(source).type, field.type))
            for source, field in zip(of_layout, layouts[-1].schema, strict=True)
        ]
        for layout, of_layout in zip(layouts, sources, strict=False)
    ]

    def decode_one(data: bytes) -> tuple[Any, ...]:
        if not data or data[0] >= len(older):
            return current(data)
        version = data[0]
        row = older[version](data)
        return tuple(
            [
                None if source < 0 else row[source] if convert is None else convert(row[source])
                for source, convert in plans[version]
            ]
        )

    return decode_one


class ValueCodec:
    """Single values of one type: a row of one nullable field, with values instead of tuples.

    ``older`` are the earlier types, for widening. None is a value here (a stored null); "nothing stored" is the absence
    of bytes.
    """

    __slots__ = ("_row", "decode_one", "decode_packed", "decode_page", "encode_one", "plain", "type")

    encode_one: Callable[[Any], bytes]
    """Bytes of one value. A plain function, fast from a local; ``CodecError`` for a bad value."""
    decode_one: Callable[[bytes], Any]
    """The value of stored bytes; ``CodecError`` if they are not one."""
    decode_page: DecodeValues
    """The values of many stored bytes; ``CodecError`` as for one."""
    decode_packed: DecodePacked
    """``decode_packed(data, start, stride, count)``: the values in ``data`` from ``start`` on, at every ``stride``
    bytes, where each value fills its bytes except for a few at the end. None unless all are fixed-width and plain."""

    def __init__(self, type: pa.DataType, older: Sequence[pa.DataType] = (), *, owner: str = "value") -> None:
        self.type = type
        self.plain: PlainValues | None = plain_values(type)
        self._row = RowCodec(_one_field(type), [_one_field(one) for one in older], owner=owner)
        self.encode_one, self.decode_one = _value_functions(self._row, self._row._layouts[-1])
        self.decode_page, self.decode_packed = value_pages(self._row._layouts[-1], self.decode_one)

    def encode(self, column: pa.Array) -> list[bytes]:
        """The bytes of each value."""
        return self._row.encode([column])

    def decode(self, values: Sequence[bytes | None]) -> tuple[pa.Array, BoolArray]:
        """The column of n values, null where ``values`` is None, and the mask of present values."""
        columns, present = self._row.decode(values)
        return columns[0], present


def _one_field(arrow_type: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("value", arrow_type)])


def _value_functions(
    row: RowCodec, layout: RowLayout
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    form = layout.forms[0]
    encode_row, decode_row = row.encode_one, row.decode_one

    def encode_general(value: Any) -> bytes:
        return encode_row((value,))

    def decode_general(data: bytes) -> Any:
        return decode_row(data)[0]

    if form.code is not None and form.direct is not None:
        return _number_functions(form.code, form.direct, layout.version, encode_general, decode_general)
    if is_string_type(form.arrow_type):
        return _string_functions(layout.version, encode_general, decode_general)
    return encode_general, decode_general


def _number_functions(
    code: str, direct: type, version: int, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Numbers in one ``struct`` call; unusual values use the general functions."""
    packer = struct.Struct("<BB" + code)
    pack, unpack, size = packer.pack, packer.unpack, packer.size

    def encode_one(value: Any) -> bytes:
        if type(value) is direct:
            try:
                return pack(version, 0, value)
            except (struct.error, OverflowError):
                pass  # out of range; the general function raises
        return encode(value)

    def decode_one(data: bytes) -> Any:
        if len(data) == size:
            found, null, value = unpack(data)
            if found == version and null == 0:
                return value
        return decode(data)

    return encode_one, decode_one


def _string_functions(
    version: int, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Strings with a header of version, bitmap and length; unusual values use the general functions."""
    header = struct.Struct("<BBI")
    pack, unpack_from, size = header.pack, header.unpack_from, header.size

    def encode_one(value: Any) -> bytes:
        if type(value) is str:
            try:
                raw = value.encode()
                return pack(version, 0, len(raw)) + raw
            except (struct.error, UnicodeEncodeError):
                pass  # a lone surrogate; the general function raises
        return encode(value)

    def decode_one(data: bytes) -> Any:
        if len(data) >= size:
            found, null, length = unpack_from(data)
            if found == version and null == 0 and length == len(data) - size:
                try:
                    return data[size:].decode()
                except UnicodeDecodeError:
                    pass
        return decode(data)

    return encode_one, decode_one


class PickleCodec:
    """Any picklable Python object, for states that declare a pickled type explicitly.

    Anyone who can write the checkpoint can run code in the job; the typed codecs have no such risk.
    """

    __slots__ = ("_owner", "plain")

    def __init__(self, *, owner: str = "value") -> None:
        self._owner = owner
        self.plain: PlainValues | None = None  # any holder of an object may change it

    def encode_one(self, value: Any) -> bytes:
        """The mark byte and the pickle; ``CodecError`` if the object cannot be pickled."""
        try:
            return PICKLE_MARK + pickle.dumps(value, protocol=5)
        except Exception as error:  # pickle raises whatever the object's own methods raise
            raise CodecError(
                f"{self._owner}: a {type(value).__name__} cannot be pickled: {error}; "
                "store plain data, or declare a typed state"
            ) from error

    def decode_one(self, data: bytes) -> Any:
        """The object; ``CodecError`` if the bytes were not written by this codec or cannot be loaded."""
        if data[:1] != PICKLE_MARK:
            raise CodecError(
                f"{self._owner}: stored bytes are not a pickled value; "
                "declare the type the state was written with"
            )
        try:
            return pickle.loads(data[1:])
        except Exception as error:  # unpickling raises whatever the object's own methods raise
            raise CodecError(
                f"{self._owner}: a pickled value cannot be loaded: {error}; "
                "make its class importable under the name it had when it was written"
            ) from error

    def decode_page(self, values: Sequence[bytes]) -> list[Any]:
        """The objects of many stored bytes."""
        return [self.decode_one(value) for value in values]

    def decode_packed(self, data: bytes, start: int, stride: int, count: int) -> None:
        """See ``ValueCodec``; pickles vary in size."""

    def encode(self, values: Sequence[Any]) -> list[bytes]:
        """The bytes of each object."""
        return [self.encode_one(value) for value in values]

    def decode(self, values: Sequence[bytes | None]) -> tuple[list[Any], BoolArray]:
        """The objects, None where nothing is stored, and the mask of present objects."""
        present = np.array([value is not None for value in values], np.bool_)
        return [None if value is None else self.decode_one(value) for value in values], present
