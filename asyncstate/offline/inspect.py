"""Stored entries as rows of typed columns, from the checkpoint's own declaration of a state; no operator is needed.

Owns: ``StateDecoder``, the only module that knows the stored form of every kind of state; ``state_size``.
Invariant: every entry of a state is returned, or an error names the state; nothing is unpickled unless requested.
Must not import execution, operators or Spark.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from asyncstate.changelog import ROW_KIND_TEXTS
from asyncstate.codec import (
    BROADCAST_GROUP,
    GROUP_BYTES,
    STATE_PREFIX_BYTES,
    KeyCodec,
    PickleCodec,
    RowCodec,
    ValueCodec,
    decode_namespace,
    prefix_end,
    schema_from_text,
    type_from_text,
)
from asyncstate.codec.value_columns import Int64Array, binary_rows
from asyncstate.errors import CodecError, StateDeclarationError
from asyncstate.operator import MIN_WATERMARK
from asyncstate.state.columnar.column_maps import BY_ROW
from asyncstate.state.columnar.list_blocks import read_heads, read_rows
from asyncstate.state.expiring.expiry import STAMP_BYTES, UNTIMED
from asyncstate.state.keyed.chunks import COUNT_BYTES, elements
from asyncstate.state.ranges import NAMESPACE_BYTES, TIME_FIRST_PREFIX_BYTES, pages_of
from asyncstate.state.stored_lists import BLOCKS, ELEMENTS, ListPiece, list_pieces
from asyncstate.state.timers import TIMERS_BY_TIME, live_timers
from asyncstate.state.versions import PICKLED
from asyncstate.state_backend import Page
from asyncstate.storage.manifest import StateSpec

TIMERS: Final = "@timers"
"""The name under which the timers of an operator are read; no declared state can have it."""
TIMER_KIND: Final = "timer"
TIMERS_STATE: Final = StateSpec(TIMERS_BY_TIME, TIMERS, TIMER_KIND)
"""Represents an operator's timers, which are not declared, among its states."""

_ARRIVAL_BYTES: Final = 12  # batch id and number, at the end of the key of a buffered row
_FIRST_ORDERED: Final = 3  # state id of the buffered rows of input 0
_PAGE_ENTRIES: Final = 4096
_HASHES_TOGETHER: Final = 1 << 16
_PAGE_PIECES: Final = 256  # of lists: a chunk may have a thousand rows

_MAPS: Final = ("map", "broadcast", "column-map")
_LISTS: Final = ("list", "list-column")
_ROWS: Final = ("column", "list-column", "column-map")
_KINDS: Final = ("value", "reducing", "aggregating", "ordered", TIMER_KIND, "column", *_MAPS, *_LISTS)
_TIMER_TYPE: Final = pa.struct([("time", pa.int64()), ("domain", pa.string()), ("name", pa.string())])
_WAITING: Final = (
    pa.field("time", pa.int64()),
    pa.field("row_kind", pa.string()),
    pa.field("batch_id", pa.int64()),
    pa.field("arrival", pa.int64()),
)


class StoredEntries(Protocol):
    """The store of one partition, limited to the methods used here (``storage.KeyedStore``)."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...
    def iterate(self, start: bytes = ..., end: bytes | None = ...) -> Iterator[tuple[bytes, bytes]]: ...


class StateDecoder:
    """Reads one state of the operator ``uid`` from the store of a partition.

    ``keys`` has the key columns of each input, empty for a broadcast one. With ``unpickle`` values that the state
    declares as pickled are returned as the text of their ``repr``: that runs code chosen by anyone with write access to
    the checkpoint. Without, they are returned as the stored bytes. ``by_row``: the state that has the rows of the
    longest lists of this one, which are returned as those of others.

    ``schema`` has: ``key``, a struct of the key columns (null for broadcast state); ``namespace``, int64; ``user_key``
    of maps and broadcast state, a struct of its columns for column maps; ``position``, int64 from 0 on, of lists;
    ``value``; ``ttl_stamp``, int64 microseconds, null without a time to live and where no time was known yet. The value
    of a timer is a struct of its time (microseconds), domain and name; that of a buffered row has its time, its row
    kind, the batch in which it arrived and its number there, and the row.

    Raises StateDeclarationError for a kind that this release does not know, CodecError for bytes that do not fit.
    """

    def __init__(
        self,
        uid: str,
        state: StateSpec,
        keys: Sequence[pa.Schema],
        *,
        unpickle: bool = False,
        by_row: StateSpec | None = None,
    ) -> None:
        self.owner = f"operator '{uid}', state '{state.name}'"
        if state.kind not in _KINDS:
            raise StateDeclarationError(
                f"{self.owner} is of kind '{state.kind}', which this release cannot read; use the release of "
                "asyncstate that wrote the checkpoint"
            )
        self.state = state
        self._key_schema = next((key for key in keys if len(key)), pa.schema([]))
        self._keys = KeyCodec(self._key_schema.types, self._key_schema.names, 1)
        self._key_type = pa.struct(list(self._key_schema))
        self._namespaced = state.types.get("namespaced") == "yes"
        self._time_first = state.types.get("layout", "").startswith("time-first")
        self._ttl = "ttl" in state.types
        self._pickled = state.types.get("value") == PICKLED
        self._unpickle = unpickle
        self._user_keys = self._user_key_codec()
        if state.kind == "ordered":
            self._row_key = list(keys[state.id - _FIRST_ORDERED].names)
        self._value_type, self._decode = self._value_decoder()
        self.schema = self._schema()
        self._by_row = None if by_row is None else StateDecoder(uid, by_row, keys)

    def read(self, entries: StoredEntries, groups: range, broadcast: bool = True) -> Iterator[pa.RecordBatch]:
        """The rows of a store that has these key groups, in the order of the store; broadcast state, which is the same
        in every partition, only with ``broadcast``."""
        batches = {TIMER_KIND: self._timers, "ordered": self._waiting}.get(self.state.kind, self._entries)
        if self.state.kind in _LISTS:
            batches = self._lists
        try:
            yield from batches(entries, self.stored(entries, groups, broadcast))
        except CodecError as error:
            if self.owner in str(error):
                raise
            raise CodecError(f"{self.owner}: {error}") from error

    def stored(
        self, entries: StoredEntries, groups: range, broadcast: bool = True
    ) -> Iterator[tuple[bytes, bytes]]:
        """The entries as they are stored, in the order of the store."""
        if self.state.kind == "broadcast":
            prefixes = [BROADCAST_GROUP] if broadcast else []
        else:
            prefixes = [group.to_bytes(GROUP_BYTES, "big") for group in groups]
            if self.state.kind == "ordered" and broadcast:  # rows of a broadcast input
                prefixes.append(BROADCAST_GROUP)
        for prefix in prefixes:
            start = prefix + bytes([self.state.id])
            yield from entries.iterate(start, prefix_end(start))

    def key_bytes(self, keys: list[bytes]) -> list[bytes]:
        """The encoded keys in store keys; none for kinds whose store keys do not begin with one."""
        if self.state.kind in ("ordered", "broadcast", TIMER_KIND):
            return []
        start = TIME_FIRST_PREFIX_BYTES if self._time_first else STATE_PREFIX_BYTES
        ends = self._keys.decode_prefix(keys, start)[1]
        return [key[start:end] for key, end in zip(keys, ends.tolist(), strict=True)]

    # -- the kinds ------------------------------------------------------------------------------------

    def _entries(self, _: StoredEntries, found: Iterator[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        for page in pages_of(found, _PAGE_ENTRIES):
            keys = [key for key, _ in page]
            columns, namespaces, ends = self._located(keys)
            more = {}
            if self._user_keys is not None:
                user_keys, ends = self._user_keys.decode_prefix(keys, ends)
                more["user_key"] = self._user_key_column(user_keys)
            self._check_ends(keys, ends)
            yield self._batch(columns, namespaces, [value for _, value in page], **more)

    def _lists(
        self, entries: StoredEntries, found: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[pa.RecordBatch]:
        blocks = self.state.kind == "list-column"
        for keys, heads, positions, values, long in _elements_of(found, blocks, self.owner):
            self._check_ends(keys, self._located(keys)[2])  # a chunk without its head would pass for a head
            if len(positions):
                columns, namespaces = self._located(heads)[:2]
                yield self._batch(columns, namespaces, values, position=pa.array(positions))
            for key in long:
                yield from self._long_list(entries, key)

    def _long_list(self, entries: StoredEntries, key: bytes) -> Iterator[pa.RecordBatch]:
        """The rows of the list under the store key ``key``, which have an entry each in another state."""
        other = self._by_row
        if other is None or list(other.schema.field("value").type)[1:] != list(self._value_type):
            raise CodecError(
                f"{self.owner}: the rows of a key with many rows are in another state (its name and {BY_ROW}), which "
                "is not there or has other columns; read an older checkpoint version"
            )
        start = key[:GROUP_BYTES] + bytes([other.state.id]) + key[STATE_PREFIX_BYTES:]
        position = 0
        for page in pages_of(entries.iterate(start, prefix_end(start)), _PAGE_ENTRIES):
            times, *columns = other._decode([value for _, value in page]).flatten()
            rows = np.repeat(np.arange(len(page)), times.to_numpy())  # each as often as it occurs
            for first in range(0, len(rows), _PAGE_ENTRIES):
                some = pa.array(rows[first : first + _PAGE_ENTRIES])
                taken = [column.take(some) for column in columns]
                value = pa.StructArray.from_arrays(taken, fields=list(self._value_type))
                keys, namespaces, _ = self._located([key] * len(some))
                at = pa.array(np.arange(position, position + len(some)))
                yield self._rows(keys, namespaces, value, None, position=at)
                position += len(some)

    def _timers(
        self, entries: StoredEntries, found: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[pa.RecordBatch]:
        for page in pages_of(found, _PAGE_ENTRIES):
            timers = live_timers(page, entries.get_many)
            values = [
                {"time": timer.time, "domain": timer.domain.name.lower(), "name": timer.name}
                for timer in timers
            ]
            columns = self._keys.decode([timer.key for timer in timers])
            namespaces = pa.array([timer.namespace for timer in timers], pa.int64())
            yield self._rows(columns, namespaces, pa.array(values, _TIMER_TYPE), None)

    def _waiting(self, _: StoredEntries, found: Iterator[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
        for page in pages_of(found, _PAGE_ENTRIES):
            row = self._decode([value[1:] for _, value in page])
            value = pa.StructArray.from_arrays([*self._arrivals(page), row], fields=list(self._value_type))
            columns = [row.field(name) for name in self._row_key]
            yield self._rows(columns, pa.nulls(len(page), pa.int64()), value, None)

    def _arrivals(self, page: Page) -> list[pa.Array]:
        """Time (None for rows ordered without one), row kind, batch and number of buffered rows."""
        try:
            kinds = [ROW_KIND_TEXTS[value[0]] for _, value in page]
        except IndexError:
            raise CodecError(
                f"{self.owner}: a stored row has no row kind; read an older checkpoint version"
            ) from None
        times = [decode_namespace(key, STATE_PREFIX_BYTES) for key, _ in page]
        tails = [key[-_ARRIVAL_BYTES:] for key, _ in page]
        return [
            pa.array([None if time == MIN_WATERMARK else time for time in times], pa.int64()),
            pa.array(kinds, pa.string()),
            pa.array([int.from_bytes(tail[:8], "big") for tail in tails], pa.int64()),
            pa.array([int.from_bytes(tail[8:], "big") for tail in tails], pa.int64()),
        ]

    # -- keys -----------------------------------------------------------------------------------------

    def _located(self, keys: list[bytes]) -> tuple[list[pa.Array] | None, pa.Array, Int64Array]:
        """Key columns and namespaces of store keys, and where each key's own part ends."""
        if self.state.kind == "broadcast":
            return None, pa.nulls(len(keys), pa.int64()), np.full(len(keys), STATE_PREFIX_BYTES, np.int64)
        start = TIME_FIRST_PREFIX_BYTES if self._time_first else STATE_PREFIX_BYTES
        columns, ends = self._keys.decode_prefix(keys, start)
        if self._time_first:
            found = [decode_namespace(key, STATE_PREFIX_BYTES) for key in keys]
            return columns, pa.array(found, pa.int64()), ends
        if not self._namespaced:
            return columns, pa.nulls(len(keys), pa.int64()), ends
        found = [decode_namespace(key, end) for key, end in zip(keys, ends.tolist(), strict=True)]
        return columns, pa.array(found, pa.int64()), ends + NAMESPACE_BYTES

    def _check_ends(self, keys: list[bytes], ends: Int64Array) -> None:
        for key, end in zip(keys, ends.tolist(), strict=True):
            if len(key) != end:
                raise CodecError(
                    f"{self.owner}: the store key {key.hex()} does not end where the declared key does; the entry is "
                    "damaged, or another declaration wrote it; read an older checkpoint version"
                )

    def _user_key_codec(self) -> KeyCodec | None:
        if self.state.kind not in _MAPS:
            return None
        if self.state.kind in _ROWS:
            schema = schema_from_text(self.state.types["key"])
            return KeyCodec(schema.types, [f"{self.state.name}.{name}" for name in schema.names], 1)
        return KeyCodec([type_from_text(self.state.types["key"])], [f"{self.state.name}.key"], 1)

    @property
    def _user_key_type(self) -> pa.DataType:
        assert self._user_keys is not None
        if self.state.kind in _ROWS:
            return pa.struct(list(schema_from_text(self.state.types["key"])))
        return self._user_keys.types[0]

    def _user_key_column(self, columns: list[pa.Array]) -> pa.Array:
        if self.state.kind in _ROWS:
            return pa.StructArray.from_arrays(columns, fields=list(self._user_key_type))
        return columns[0]

    # -- values ---------------------------------------------------------------------------------------

    def _value_decoder(self) -> tuple[pa.DataType, Callable[[Sequence[Any]], Any]]:
        types = self.state.types
        if self.state.kind == TIMER_KIND:
            return _TIMER_TYPE, list
        if self.state.kind == "ordered":
            schema = schema_from_text(types["row"])
            older = [schema_from_text(text) for text in _versions(types, "row")]
            return pa.struct([*_WAITING, pa.field("row", pa.struct(list(schema)))]), self._row_decoder(
                schema, older
            )
        if self.state.kind in _ROWS:
            schema = schema_from_text(types["value"])
            older = [schema_from_text(text) for text in _versions(types, "value")]
            return pa.struct(list(schema)), self._row_decoder(schema, older)
        if self._pickled:
            return (pa.string(), self._unpickled) if self._unpickle else (pa.binary(), pa.array)
        codec = ValueCodec(
            type_from_text(types["value"]),
            [type_from_text(text) for text in _versions(types, "value")],
            owner=self.owner,
        )
        return codec.type, lambda values: codec.decode(values)[0]

    def _row_decoder(self, schema: pa.Schema, older: list[pa.Schema]) -> Callable[[Sequence[Any]], Any]:
        codec = RowCodec(schema, older, owner=self.owner)
        if not len(schema):  # a struct without fields cannot be built from arrays
            return lambda values: pa.array([{} for _ in range(codec.decode(values)[1].size)], pa.struct([]))
        return lambda values: pa.StructArray.from_arrays(codec.decode(values)[0], fields=list(schema))

    def _unpickled(self, values: Sequence[bytes]) -> pa.Array:
        return pa.array(map(self._repr, PickleCodec(owner=self.owner).decode_page(values)), pa.string())

    def _repr(self, value: Any) -> str:
        try:
            text = repr(value)
        except Exception as error:  # the object's own method
            raise CodecError(
                f"{self.owner}: a loaded {type(value).__name__} cannot be shown: its repr raises {error!r}; read the "
                "state without unpickling, which returns the stored bytes"
            ) from error
        return text.encode(
            errors="backslashreplace"
        ).decode()  # a repr may have characters without an encoding

    # -- rows -----------------------------------------------------------------------------------------

    def _batch(
        self, columns: list[pa.Array] | None, namespaces: pa.Array, values: Sequence[bytes], **more: pa.Array
    ) -> pa.RecordBatch:
        stamps = None
        if self._ttl:
            values = [bytes(value) for value in values]
            stamps = pa.array([_stamp(value, self.owner) for value in values], pa.int64())
            values = [value[STAMP_BYTES:] for value in values]
        return self._rows(columns, namespaces, self._decode(values), stamps, **more)

    def _rows(
        self,
        columns: list[pa.Array] | None,
        namespaces: pa.Array,
        values: pa.Array,
        stamps: pa.Array | None,
        **more: pa.Array,
    ) -> pa.RecordBatch:
        count = len(namespaces)
        given = {
            "key": self._key_column(columns, count),
            "namespace": namespaces,
            "value": values,
            "ttl_stamp": pa.nulls(count, pa.int64()) if stamps is None else stamps,
            **more,
        }
        return pa.RecordBatch.from_arrays([given[name] for name in self.schema.names], schema=self.schema)

    def _key_column(self, columns: list[pa.Array] | None, count: int) -> pa.Array:
        if columns is None:
            return pa.nulls(count, self._key_type)
        if not columns:
            return pa.array([{}] * count, self._key_type)
        return pa.StructArray.from_arrays(columns, fields=list(self._key_type))

    def _schema(self) -> pa.Schema:
        fields = [pa.field("key", self._key_type), pa.field("namespace", pa.int64())]
        if self._user_keys is not None:
            fields.append(pa.field("user_key", self._user_key_type))
        if self.state.kind in _LISTS:
            fields.append(pa.field("position", pa.int64()))
        return pa.schema([*fields, pa.field("value", self._value_type), pa.field("ttl_stamp", pa.int64())])


def _versions(types: dict[str, str], part: str) -> list[str]:
    """The previous texts of ``part``, oldest first."""
    found: list[str] = []
    while (name := f"{part} version {len(found)}") in types:
        found.append(types[name])
    return found


def _stamp(value: bytes, owner: str) -> int | None:
    if len(value) < STAMP_BYTES:
        raise CodecError(f"{owner}: a stored value has no time stamp; read an older checkpoint version")
    return None if value.startswith(UNTIMED) else decode_namespace(value)


_Elements = tuple[list[bytes], list[bytes], Int64Array, Sequence[bytes], list[bytes]]
"""The store key of each piece's list; then for each element the index of its list, its position there, and its
bytes; last the store keys of lists whose rows another state has."""


def _elements_of(entries: Iterator[tuple[bytes, bytes]], blocks: bool, owner: str) -> Iterator[_Elements]:
    """Some pieces at a time; ``blocks`` distinguishes list columns from lists. CodecError naming ``owner`` for
    damage."""
    pieces = list_pieces(entries, BLOCKS if blocks else ELEMENTS, owner)
    position = 0
    while page := list(itertools.islice(pieces, _PAGE_PIECES)):
        values, counts = _block_rows(page, owner) if blocks else _list_elements(page, owner)
        heads: list[bytes] = []
        positions = []
        for piece, count in zip(page, counts, strict=True):
            heads += [piece.key] * count
            positions.append(np.arange(position, position + count, dtype=np.int64))
            position = 0 if piece.is_head else position + count
        keys = [piece.key for piece in page]
        yield keys, heads, np.concatenate(positions), values, _long_lists(page, owner) if blocks else []


def _list_elements(pieces: list[ListPiece], owner: str) -> tuple[list[bytes], list[int]]:
    found = [elements(piece.data, COUNT_BYTES if piece.is_head else 0, bytes, owner) for piece in pieces]
    return [element for part in found for element in part], [len(part) for part in found]


def _block_rows(pieces: list[ListPiece], owner: str) -> tuple[list[bytes], list[int]]:
    rows, counts = read_rows([piece.data for piece in pieces], owner)
    return binary_rows(rows), counts.tolist()


def _long_lists(pieces: list[ListPiece], owner: str) -> list[bytes]:
    heads = read_heads([piece.key for piece in pieces], [piece.data for piece in pieces], owner)
    return [heads.store_keys[index] for index in np.flatnonzero(heads.elsewhere).tolist()]


@dataclass(frozen=True)
class StateSize:
    """``keys`` that have an entry (None where the stored key does not show it: rows buffered for ordering, broadcast
    state); ``entries`` of the store, of which a list has several, or timers that are to fire; ``size_bytes`` of keys
    and values, before compression."""

    keys: int | None
    entries: int
    size_bytes: int


class _Distinct:
    """Counts different keys, by a hash of 8 bytes each: a key may occur many times in a state that is ordered by
    time."""

    def __init__(self) -> None:
        self._known = np.empty(0, np.uint64)
        self._new: list[npt.NDArray[np.uint64]] = []
        self._num_new = 0

    def add(self, keys: list[bytes]) -> None:
        found = np.unique(np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, len(keys)))
        self._new.append(found)
        self._num_new += len(found)
        if self._num_new > max(_HASHES_TOGETHER, len(self._known) // 2):
            self.count()

    def count(self) -> int:
        self._known = np.unique(np.concatenate([self._known, *self._new]))
        self._new, self._num_new = [], 0
        return len(self._known)


def state_size(
    decoder: StateDecoder, entries: StoredEntries, groups: range, broadcast: bool = True
) -> StateSize:
    """Count the state of ``decoder`` in the store of a partition that has these key groups."""
    count = size_bytes = 0
    keys = _Distinct()
    for page in pages_of(decoder.stored(entries, groups, broadcast), _PAGE_ENTRIES):
        size_bytes += sum(len(key) + len(value) for key, value in page)
        if decoder.state.kind == TIMER_KIND:
            timers = live_timers(page, entries.get_many)
            count += len(timers)
            keys.add([timer.key for timer in timers])
        else:
            count += len(page)
            keys.add(decoder.key_bytes([key for key, _ in page]))
    known = decoder.state.kind not in ("ordered", "broadcast")
    return StateSize(keys.count() if known else None, count, size_bytes)
