"""Layout of a list's elements in store values.

Owns: the bytes of a list's *head* and *chunks*. The head, under the list's own key, is
``[number of sealed chunks: 4 bytes][tail]``; chunk i, under the key followed by i in 8 bytes, is the former tail,
sealed when it had grown to ``CHUNK_BYTES``. Tail and chunks hold elements, each prefixed with its length: one byte, or
FF and four bytes. All integers are big endian.
Invariant: the bytes depend on the elements and their order only, not on how many one call adds.
Must not import anything of the project except ``errors``.

So a small list, as most are, is one value that a point read answers; appending to a long one rewrites its tail only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from asyncstate.errors import CodecError

CHUNK_BYTES: Final = 4096
COUNT_BYTES: Final = 4
INDEX_BYTES: Final = 8

_NONE_SEALED: Final = bytes(COUNT_BYTES)
_LONG: Final = 255
_LENGTHS: Final = [bytes([length]) for length in range(_LONG)]

PutChunk = Callable[[int, bytes], None]


def framed(element: bytes) -> bytes:
    """An encoded element, prefixed with its length."""
    length = len(element)
    return (_LENGTHS[length] if length < _LONG else b"\xff" + length.to_bytes(4, "big")) + element


def elements(data: bytes, start: int, decode: Callable[[bytes], Any], label: str) -> list[Any]:
    """The decoded elements in ``data`` from ``start``; CodecError naming ``label`` if bytes are damaged."""
    found = []
    end = len(data)
    while start < end:
        length = data[start]
        start += 1
        if length == _LONG:
            length = int.from_bytes(data[start : start + 4], "big")
            start += 4
        stop = start + length
        if stop > end:
            raise CodecError(
                f"{label}: a stored list ends inside an element; restore an older checkpoint version"
            )
        found.append(decode(data[start:stop]))
        start = stop
    return found


def whole(chunk: bytes | None, label: str) -> bytes:
    """The chunk; CodecError naming ``label`` if it is missing."""
    if chunk is None:
        raise CodecError(f"{label}: a part of a stored list is missing; restore an older checkpoint version")
    return chunk


def elements_of_one_type(
    data: bytes,
    start: int,
    decode_page: Callable[[list[bytes]], list[Any]],
    decode_packed: Callable[[bytes, int, int, int], list[Any] | None],
    label: str,
) -> list[Any]:
    """As ``elements``, with the decoders for many of a value codec.

    If all elements are as long as the first one, as numbers are, their length bytes are at equal distances.
    """
    if start < len(data) and data[start] < _LONG:
        stride = 1 + data[start]
        count, rest = divmod(len(data) - start, stride)
        if not rest and data[start::stride].count(data[start]) == count:
            found = decode_packed(data, start + 1, stride, count)
            if found is not None:
                return found
    return decode_page(elements(data, start, bytes, label))


def chunk_key(prefix: bytes, index: int) -> bytes:
    """The store key of chunk ``index`` of the list under ``prefix``."""
    return prefix + index.to_bytes(INDEX_BYTES, "big")


def sealed_chunks(head: bytes | None) -> int:
    """The number of sealed chunks, not counting the head's tail."""
    return 0 if head is None else int.from_bytes(head[:COUNT_BYTES], "big")


def append_one(head: bytes | None, frame: bytes, put_chunk: PutChunk) -> bytes:
    """The head with one more framed element."""
    if head is None:
        return _NONE_SEALED + frame
    if len(head) < CHUNK_BYTES + COUNT_BYTES:
        return head + frame
    sealed = sealed_chunks(head)
    put_chunk(sealed, head[COUNT_BYTES:])
    return (sealed + 1).to_bytes(COUNT_BYTES, "big") + frame


def append_all(head: bytes | None, frames: Iterable[bytes], put_chunk: PutChunk) -> bytes | None:
    """The head with all framed elements appended; unchanged if there are none."""
    sealed = sealed_chunks(head)
    tail = bytearray() if head is None else bytearray(head[COUNT_BYTES:])
    for frame in frames:
        if len(tail) >= CHUNK_BYTES:
            put_chunk(sealed, bytes(tail))
            sealed += 1
            tail = bytearray()
        tail += frame
    return sealed.to_bytes(COUNT_BYTES, "big") + tail if tail else head
