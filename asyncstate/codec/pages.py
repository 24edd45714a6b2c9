"""Page decoders: many stored values, list elements or user keys at once, as Python objects.

Owns: the page decoders of value and key codecs.
Invariant: decoding a page gives the same objects and errors as decoding its entries one by one; unusual entries of a
page (an older version, a null, damage) are left to the function for one entry.
Must not import anything of the project except other modules of ``codec``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from asyncstate.codec.arrow_types import is_string_type
from asyncstate.codec.key_fields import TERMINATOR, VALUE_MARK
from asyncstate.codec.row_layout import RowLayout
from asyncstate.codec.scalars import scalar_form

DecodeValues = Callable[[Sequence[bytes]], list[Any]]
DecodeKeys = Callable[[Sequence[bytes], int], list[Any]]
DecodePacked = Callable[[bytes, int, int, int], list[Any] | None]

_PAGE_MIN: Final = 24  # below, calling numpy costs more than it saves
_TEXT_HEADER: Final = 6  # version, bitmap, length
_BETWEEN_TEXTS: Final = (TERMINATOR + VALUE_MARK).decode("ascii")


def value_pages(layout: RowLayout, decode_one: Callable[[bytes], Any]) -> tuple[DecodeValues, DecodePacked]:
    """The decoders for ``ValueCodec.decode_page`` and ``ValueCodec.decode_packed`` of one layout with one field."""
    form = layout.forms[0]
    if form.code is not None and form.direct is not None:
        packed = _packed_numbers(form.code, layout.version)
        return _numbers(packed, layout.header.size, decode_one), packed
    if is_string_type(form.arrow_type):
        return _texts(layout.version, decode_one), _never_packed
    return lambda values: [decode_one(value) for value in values], _never_packed


def _never_packed(data: bytes, start: int, stride: int, count: int) -> None:
    return None


def _packed_numbers(code: str, version: int) -> DecodePacked:
    # the version byte, then the null bitmap's, which is 0
    row = np.dtype([("head", "<u2"), ("value", f"<{code}")])

    def decode_packed(data: bytes, start: int, stride: int, count: int) -> list[Any] | None:
        # Shorter values have an older version; the last of them would extend beyond the data.
        if stride < row.itemsize or start + (count - 1) * stride + row.itemsize > len(data):
            return None
        rows = np.ndarray((count,), row, data, start, (stride,))
        if (rows["head"] != version).any():
            return None
        found: list[Any] = rows["value"].tolist()
        return found

    return decode_packed


def _numbers(packed: DecodePacked, size: int, decode_one: Callable[[bytes], Any]) -> DecodeValues:
    def decode_values(values: Sequence[bytes]) -> list[Any]:
        if len(values) >= _PAGE_MIN:
            data = b"".join(values)
            # no version has longer values, so if the total is that of full lengths, each has it
            if len(data) == size * len(values):
                found = packed(data, 0, size, len(values))
                if found is not None:
                    return found
        return [decode_one(value) for value in values]

    return decode_values


def _texts(version: int, decode_one: Callable[[bytes], Any]) -> DecodeValues:
    """Slices ASCII texts out of one decoded text, at half the cost of decoding each."""

    def decode_values(values: Sequence[bytes]) -> list[Any]:
        data = b"".join(values)
        if len(values) >= _PAGE_MIN and data.isascii():
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            ends = np.cumsum(lengths)
            starts = ends - lengths
            if lengths.min() >= _TEXT_HEADER and _headers_fit(data, starts, lengths, version):
                text = data.decode("ascii")
                starts += _TEXT_HEADER
                return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return [decode_one(value) for value in values]

    return decode_values


def _headers_fit(data: bytes, starts: Any, lengths: Any, version: int) -> bool:
    """Whether there is the header of a present text of that length at each start."""
    raw = np.frombuffer(data, np.uint8)
    said = sum(raw[starts + 2 + byte].astype(np.int64) << 8 * byte for byte in range(4))
    plain = (raw[starts] == version) & (raw[starts + 1] == 0) & (said == lengths - _TEXT_HEADER)
    return bool(plain.all())


def key_pages(types: Sequence[pa.DataType], decode_one: Callable[..., Any]) -> DecodeKeys:
    """The decoder of ``KeyCodec.decode_page``: the first column of each key after ``skip`` bytes."""

    def general(keys: Sequence[bytes], skip: int) -> list[Any]:
        return [decode_one(key, skip)[0][0] for key in keys]

    if len(types) == 1:
        form = scalar_form(types[0])
        if form.direct is int:
            return _integer_keys(np.dtype(f"<{form.code}").itemsize, general)
        if is_string_type(form.arrow_type):
            return _text_keys(general)
    return general


def _integer_keys(width: int, general: DecodeKeys) -> DecodeKeys:
    row = np.dtype([("mark", "u1"), ("value", f">u{width}")])
    sign = np.array(1 << (8 * width - 1), f"<u{width}")

    def decode_keys(keys: Sequence[bytes], skip: int) -> list[Any]:
        size = skip + row.itemsize
        data = b"".join(keys) if len(keys) >= _PAGE_MIN else b""
        if data and len(data) == size * len(keys):  # none is longer, a null is shorter
            rows = np.ndarray((len(keys),), row, data, skip, (size,))
            if (rows["mark"] == 1).all():
                biased = rows["value"].astype(sign.dtype)
                found: list[Any] = (biased ^ sign).view(f"<i{width}").tolist()
                return found
        return general(keys, skip)

    return decode_keys


def _text_keys(general: DecodeKeys) -> DecodeKeys:
    """ASCII texts without zero bytes: joined, the keys are one text with separators, each a terminator and a mark."""

    def decode_keys(keys: Sequence[bytes], skip: int) -> list[Any]:
        fields = [key[skip:] for key in keys]
        data = b"".join(fields)
        if data.isascii() and data.startswith(VALUE_MARK) and data.endswith(TERMINATOR):
            found = data[1:-2].decode("ascii").split(_BETWEEN_TEXTS)
            if [len(text) + 3 for text in found] == list(map(len, fields)) and data.count(0) == len(fields):
                return found
        return general(keys, skip)

    return decode_keys
