"""The unique keys of an Arrow batch, alone or each with user keys, in the order of the store.

Owns: how the rows of a batch map to unique keys, and the store keys of these.
Invariant: the unique keys ascend strictly by (key group, namespace if there is one, key bytes), so a batch of store
keys is sorted and its reads and writes access the store in order.
Must not import anything of the project except ``asyncstate.errors`` and other modules of ``codec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec.arrow_types import check_key_type
from asyncstate.codec.hashing import UInt64Array, check_max_parallelism, groups_of, hash_columns
from asyncstate.codec.key_columns import encode_columns, joined_keys
from asyncstate.codec.key_fields import KeyField, from_ordered, key_field, payload_matrix, to_ordered
from asyncstate.codec.sorting import stable_order
from asyncstate.codec.value_columns import (
    BoolArray,
    ByteRows,
    Int64Array,
    as_rows,
    binary_parts,
    from_storage,
    plain_columns,
    storage_dtype,
    to_storage,
    valid_mask,
)
from asyncstate.errors import CodecError

Int32Array = npt.NDArray[np.int32]
UInt16Array = npt.NDArray[np.uint16]

_CODE_LIMIT = 1 << 62


class KeyBatch:
    """Unique keys of a batch of ``num_rows`` rows; ``len(batch)`` is their number u.

    ``columns``: the unique keys as Arrow columns of u rows (floats canonical: no -0.0, one NaN);
    ``groups``: their key groups; ``namespaces``: int64 of each unique key, or None. Treat as immutable.
    """

    __slots__ = (
        "_encoded",
        "_fields",
        "_hashes",
        "_inverse",
        "_store_keys",
        "columns",
        "groups",
        "namespaces",
        "num_rows",
    )

    def __init__(
        self,
        fields: Sequence[KeyField],
        columns: list[pa.Array],
        groups: UInt16Array,
        namespaces: Int64Array | None,
        inverse: Int32Array | None,
        num_rows: int,
    ) -> None:
        self._fields = fields
        self._inverse = inverse
        self._encoded: ByteRows | None = None
        self._hashes: UInt64Array | None = None
        self._store_keys: tuple[int, list[bytes]] | None = None
        self.columns = columns
        self.groups = groups
        self.namespaces = namespaces
        self.num_rows = num_rows

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def inverse(self) -> Int32Array:
        """Index of the unique key of each row, shape (num_rows,); ``CodecError`` after ``select``."""
        if self._inverse is None:
            raise CodecError("key batch: a selection of keys has no rows; use the batch it was selected from")
        return self._inverse

    @property
    def hashes(self) -> UInt64Array:
        """The hash of each unique key's columns (u), as ``hash_columns`` gives it; 0 without columns."""
        if self._hashes is None:
            self._hashes = hash_columns(self.columns) if self.columns else np.zeros(len(self), np.uint64)
        return self._hashes

    def with_columns(self, columns: list[pa.Array], groups: UInt16Array) -> KeyBatch:
        """Other keys (u) of the same fields, without namespaces, in the given order: a caller that needs them sorted
        sorts their store keys."""
        return KeyBatch(self._fields, columns, groups, None, None, len(groups))

    def keys(self) -> list[bytes]:
        """The encoded keys without prefixes."""
        return as_rows(self._encoded_keys())

    @property
    def store_key_bytes(self) -> int:
        """Total bytes of all store keys."""
        prefix = len(self) * (3 if self.namespaces is None else 11)
        encoded = self._encoded_keys()
        if isinstance(encoded, np.ndarray):
            return prefix + encoded.size
        offsets = binary_parts(encoded)[0]
        return prefix + int(offsets[-1] - offsets[0])

    def store_keys(self, state_id: int) -> list[bytes]:
        """``[group][state id: 1 byte][key]`` or ``[group][state id][namespace: 8 bytes][key]``, ascending.

        The caller must not change the list: later calls for the same state, as by a write after a read, return the same
        one.
        """
        if self._store_keys is None or self._store_keys[0] != state_id:
            self._store_keys = state_id, self._keys_of(state_id)
        return self._store_keys[1]

    def _keys_of(self, state_id: int) -> list[bytes]:
        if not 0 <= state_id <= 255:
            raise CodecError(f"state id {state_id} does not fit one byte; declare fewer states")
        width = 3 if self.namespaces is None else 11
        prefix = np.empty((len(self), width), np.uint8)
        prefix[:, :2] = self.groups.astype(">u2").view(np.uint8).reshape(-1, 2)
        prefix[:, 2] = state_id
        if self.namespaces is not None:
            prefix[:, 3:] = payload_matrix(self.namespaces)
        return as_rows(joined_keys(prefix, self._encoded_keys()))

    def first_rows(self) -> Int64Array:
        """Row index of the first row of each unique key, shape (u,)."""
        rows = np.empty(len(self), np.int64)
        # The last assignment to a repeated index wins, so assign backwards.
        rows[self.inverse[::-1]] = np.arange(self.num_rows - 1, -1, -1)
        return rows

    def last_rows(self) -> Int64Array:
        """Row index of the last row of each unique key, shape (u,)."""
        rows = np.empty(len(self), np.int64)
        rows[self.inverse] = np.arange(self.num_rows)
        return rows

    def rows_sorted(self) -> tuple[Int64Array, Int64Array]:
        """``(order, starts)``: rows ordered by unique key, then by arrival, and where each key starts.

        ``np.add.reduceat(values[order], starts)`` is the sum per unique key. Shapes (num_rows,) and (u,).
        """
        if len(self) == self.num_rows:  # one row per key: nothing to sort
            order = np.empty(self.num_rows, np.int64)
            order[self.inverse] = np.arange(self.num_rows)
            return order, np.arange(self.num_rows)
        counts = np.bincount(self.inverse, minlength=len(self))
        starts = np.cumsum(counts) - counts
        return stable_order(self.inverse, len(self)), starts

    def select(self, chosen: BoolArray | npt.NDArray[np.integer]) -> KeyBatch:
        """The batch of some unique keys: a mask of u, or ascending indices. It has no ``inverse``."""
        indices = _ascending(chosen)
        taken = pa.array(indices)
        batch = KeyBatch(
            self._fields,
            [column.take(taken) for column in self.columns],
            self.groups[indices],
            None if self.namespaces is None else self.namespaces[indices],
            None,
            self.num_rows,
        )
        batch._encoded = _take_encoded(self._encoded, indices)
        batch._hashes = None if self._hashes is None else self._hashes[indices]
        return batch

    def in_namespaces(self, namespaces: Int64Array, index: npt.NDArray[np.integer] | None = None) -> KeyBatch:
        """The unique pairs of a key and a namespace of m other rows, as ``KeyCodec.group`` gives them.

        ``namespaces`` (m, int64) and ``index`` (m), the key of each row as an index into this batch's unique
        keys; without it the rows are this batch's own. Cheaper than grouping again: keys are ranked already.
        """
        index = self.inverse if index is None else index
        batch, taken = _pairs(self._fields, self.columns, self.groups, index, namespaces)
        batch._encoded = _take_encoded(self._encoded, taken)
        return batch

    def with_user_keys(
        self, columns: Sequence[pa.Array], index: npt.NDArray[np.integer] | None = None
    ) -> UserKeyBatch:
        """The unique pairs of a key and a user key of m rows, for a ``ColumnMapState``.

        ``columns`` (an array (m) per part of the user key) and ``index`` (m), the key of each row as an index into
        this batch's unique keys; without it the rows are this batch's own. Raises SchemaError for types that cannot be
        keys, CodecError for columns of another length.
        """
        index = self.inverse if index is None else index
        fields, columns = _user_columns(columns, len(index))
        codes, unique = _unique_keys(columns, len(index))
        bound = max(len(unique[0]), 1)
        pairs, inverse = _distinct_codes(index.astype(np.int64) * bound + codes, len(self) * bound)
        of_key, of_user_key = np.divmod(pairs, bound)
        taken = pa.array(of_user_key)
        return UserKeyBatch(
            self,
            fields,
            of_key,
            [column.take(taken) for column in unique],
            inverse.astype(np.int32),
            len(index),
        )

    def _encoded_keys(self) -> ByteRows:
        # Several states are often read for the same keys; the key bytes are built once.
        if self._encoded is None:
            self._encoded = encode_columns(self._fields, self.columns, len(self))
        return self._encoded


class UserKeyBatch(KeyBatch):
    """Unique pairs of a key of ``base`` and a user key, in the order of the store: by key, then by user key.

    Attributes of the unique keys of a KeyBatch apply to the pairs. ``key_index`` (u, ascending): the key of each as an
    index into ``base``; ``user_columns``: the user keys (u each). ``columns`` has the key columns, then these.
    """

    __slots__ = ("_user_fields", "base", "key_index", "user_columns")

    def __init__(
        self,
        base: KeyBatch,
        user_fields: Sequence[KeyField],
        key_index: Int64Array,
        user_columns: list[pa.Array],
        inverse: Int32Array | None,
        num_rows: int,
    ) -> None:
        taken = pa.array(key_index)
        super().__init__(
            [*base._fields, *user_fields],
            [*(column.take(taken) for column in base.columns), *user_columns],
            base.groups[key_index],
            None if base.namespaces is None else base.namespaces[key_index],
            inverse,
            num_rows,
        )
        self._user_fields = user_fields
        self.base = base
        self.key_index = key_index
        self.user_columns = user_columns

    @property
    def user_types(self) -> tuple[pa.DataType, ...]:
        """The types of the user key's parts."""
        return tuple(column.type for column in self.user_columns)

    def select(self, chosen: BoolArray | npt.NDArray[np.integer]) -> UserKeyBatch:
        """See ``KeyBatch``; ``base`` stays the same."""
        indices = _ascending(chosen)
        taken = pa.array(indices)
        user_columns = [column.take(taken) for column in self.user_columns]
        batch = UserKeyBatch(
            self.base, self._user_fields, self.key_index[indices], user_columns, None, self.num_rows
        )
        batch._encoded = _take_encoded(self._encoded, indices)
        return batch

    def _encoded_keys(self) -> ByteRows:
        if self._encoded is None:  # a key with many user keys is encoded once
            keys = _take_encoded(self.base._encoded_keys(), self.key_index)
            assert keys is not None
            self._encoded = joined_keys(keys, encode_columns(self._user_fields, self.user_columns, len(self)))
        return self._encoded


def _ascending(chosen: BoolArray | npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    indices: npt.NDArray[Any] = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
    if bool((np.diff(indices) <= 0).any()):
        raise CodecError("key batch: the selected indices must ascend without repetition; sort them first")
    return indices


def _user_columns(columns: Sequence[pa.Array], num_rows: int) -> tuple[list[KeyField], list[pa.Array]]:
    """Fields and columns of user keys, checked."""
    if not columns:
        raise CodecError("user key: no columns are given; give at least one")
    names = [f"user key {number}" for number in range(len(columns))]
    types = [column.type for column in columns]
    for name, arrow_type in zip(names, types, strict=True):
        check_key_type(name, arrow_type)
    plain = plain_columns(columns, types, names, "user key")
    if len(plain[0]) != num_rows:
        raise CodecError(
            f"user key: columns of {len(plain[0])} rows are given for {num_rows} rows; give one per row of "
            "the keys"
        )
    return [key_field(*field) for field in zip(names, types, strict=True)], plain


def _take_encoded(encoded: ByteRows | None, indices: npt.NDArray[Any]) -> ByteRows | None:
    if encoded is None or isinstance(encoded, np.ndarray):
        return None if encoded is None else encoded[indices]
    return encoded.take(pa.array(indices))


def _distinct_ticks(namespaces: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The distinct namespaces, ascending, and the rank of each row's. Equal namespaces are often adjacent."""
    starts = np.flatnonzero(np.concatenate([[True], namespaces[1:] != namespaces[:-1]]))[: len(namespaces)]
    ticks, codes = np.unique(namespaces[starts], return_inverse=True)
    return ticks, np.repeat(codes, np.diff(starts, append=len(namespaces)))


def _distinct_codes(codes: Int64Array, bound: int) -> tuple[Int64Array, Int64Array]:
    """The distinct codes, ascending, and the rank of each row's; codes are in [0, bound)."""
    if bound > 4 * len(codes) + 1024:
        distinct, ranks = np.unique(codes, return_inverse=True)
        return distinct, ranks
    present = np.zeros(bound, np.bool_)
    present[codes] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[codes]


def group_rows(
    fields: Sequence[KeyField],
    columns: Sequence[pa.Array],
    namespace: Int64Array | None,
    num_rows: int,
    max_parallelism: int,
    route: Sequence[int],
) -> KeyBatch:
    """Find the unique keys of the rows (and namespaces), in store order; the columns ``route`` decide the key
    groups."""
    check_max_parallelism(max_parallelism)
    if num_rows == 0:
        empty = np.empty(0, np.int64)
        none = None if namespace is None else empty
        return KeyBatch(fields, list(columns), empty.astype(np.uint16), none, empty.astype(np.int32), 0)
    codes, unique = _unique_keys(columns, num_rows)
    routed = [unique[at] for at in route]
    hashes = hash_columns(routed) if routed else np.zeros(int(codes.max()) + 1, np.uint64)
    groups = groups_of(hashes, max_parallelism).astype(np.uint16)
    if namespace is not None:
        return _pairs(fields, unique, groups, codes, namespace)[0]
    order = np.argsort(groups, kind="stable")
    batch = _ordered_batch(fields, unique, groups[order], order, None, codes, order)
    if tuple(route) == tuple(range(len(columns))):
        batch._hashes = hashes[order]
    return batch


def _pairs(
    fields: Sequence[KeyField],
    unique: list[pa.Array],
    groups: UInt16Array,
    codes: npt.NDArray[np.integer],
    namespaces: Int64Array,
) -> tuple[KeyBatch, Int64Array]:
    """The unique pairs of a key and a namespace, and the key of each pair, from the ranked keys ``codes`` of the
    rows."""
    ticks, tick_codes = _distinct_ticks(namespaces)
    count = max(len(groups), 1)
    pairs, pair_codes = _distinct_codes(tick_codes * count + codes, len(ticks) * count)
    keys = pairs % count
    order = np.argsort(groups[keys], kind="stable")
    taken = keys[order]
    batch = _ordered_batch(
        fields, unique, groups[taken], taken, ticks[pairs[order] // count], pair_codes, order
    )
    return batch, taken


def _ordered_batch(
    fields: Sequence[KeyField],
    unique: list[pa.Array],
    groups: UInt16Array,
    taken: Int64Array,
    namespaces: Int64Array | None,
    codes: npt.NDArray[np.integer],
    order: Int64Array,
) -> KeyBatch:
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order), dtype=np.int32)
    indices = pa.array(taken)
    columns = [column.take(indices) for column in unique]
    return KeyBatch(fields, columns, groups, namespaces, position[codes], len(codes))


def _unique_keys(columns: Sequence[pa.Array], num_rows: int) -> tuple[Int64Array, list[pa.Array]]:
    """Rank of each row's key among the unique keys (in key order), and the unique keys as columns."""
    if not columns:
        return np.zeros(num_rows, np.int64), []
    ranked = [rank_column(column) for column in columns]
    if len(ranked) == 1:
        return ranked[0][0], [ranked[0][1]]
    codes, bound = ranked[0][0], len(ranked[0][1])
    for more, dictionary in ranked[1:]:
        if bound * len(dictionary) >= _CODE_LIMIT:
            compact, codes = np.unique(codes, return_inverse=True)
            bound = len(compact)
        codes, bound = codes * len(dictionary) + more, bound * len(dictionary)
    unique, codes = np.unique(codes, return_inverse=True)
    sample = np.empty(len(unique), np.int64)
    sample[codes] = np.arange(num_rows)
    return codes, [dictionary.take(pa.array(ranks[sample])) for ranks, dictionary in ranked]


def rank_column(column: pa.Array) -> tuple[Int64Array, pa.Array]:
    """Rank of each row's value among the distinct values, and the distinct values, ascending with null first."""
    dtype = storage_dtype(column.type)
    if dtype is None or dtype.subdtype is not None:
        return _rank_by_dictionary(column)
    storage = to_storage(column)
    valid = valid_mask(column)
    ordered = to_ordered(storage if valid is None else storage[valid])
    distinct, codes = np.unique(ordered, return_inverse=True)
    if valid is None:
        return codes, from_storage(from_ordered(distinct, dtype), column.type, None)
    ranks = np.zeros(len(column), np.int64)
    ranks[valid] = codes + 1
    padded = np.concatenate([np.zeros(1, distinct.dtype), distinct])
    present = np.arange(len(padded)) > 0
    return ranks, from_storage(from_ordered(padded, dtype), column.type, present)


def _rank_by_dictionary(column: pa.Array) -> tuple[Int64Array, pa.Array]:
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    if encoded.dictionary.null_count:
        order = np.roll(order, 1)  # the one null is sorted last but is the first key
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[encoded.indices.to_numpy()], encoded.dictionary.take(pa.array(order))
