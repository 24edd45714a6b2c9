"""What a Rank operator ranks: its parameters, bound to the columns of its input.

Owns: ``RankSettings``, ``RankPlan`` and ``RankRows`` (a bundle's rows as they are ranked); ``partial_top_n``.
Invariant: a state belongs to its ranking, so that a checkpoint is never read with another one.
Must not import anything of ``asyncstate`` but ``operator``, ``state``, ``codec``, ``errors``, ``partial_aggregation``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from asyncstate.changelog import accumulates
from asyncstate.codec import KeyCodec, RowCodec, check_key_type, hash_columns, type_to_text
from asyncstate.codec.times import event_times
from asyncstate.errors import SchemaError
from asyncstate.operator import BelongsTo, Bundle, InputSpec
from asyncstate.partial_aggregation import LimitColumn, PartialLimit, PartialStep

from ..core.arrays import BoolArray, Int8Array, Int64Array, row_ids
from ..core.consolidation import Identified
from ..core.sort_orders import Codes, OrderColumn, check_order, order_codes, sorted_by
from ..core.stored_columns import StoredColumns
from .row_numbers import Outcome, RankFunction, RankTable, by_content, by_unique, rank_numbers


@dataclass(frozen=True)
class RankSettings:
    """The parameters of a Rank operator, as ``Rank`` describes them."""

    order: tuple[OrderColumn, ...]
    n: int | str
    offset: int
    function: RankFunction
    unique: tuple[str, ...] | None = None
    monotonic: bool = False
    newest_first: bool = False
    """Of rows of equal order the newest one is first; only where just the best rows are stored."""
    separate_by: str | None = None
    """A column of timestamps, without nulls: rows of a key that differ in it are ranked separately; only where just the
    best rows are stored."""

    def partial_limit(self, within: tuple[str, ...] = ()) -> PartialLimit | None:
        """The rows that can be among those with numbers up to offset + n; None where the operator needs all."""
        if isinstance(self.n, str) or self.newest_first:
            return None
        order = tuple(LimitColumn(one.column, one.descending, bool(one.nulls_first)) for one in self.order)
        return PartialLimit(order, self.offset + self.n, self.function, within)


@dataclass(frozen=True)
class RankRows:
    """The n rows of a bundle that are ranked: their stored columns and keys, and their indices in the ``bundle``."""

    table: RankTable
    bundle: Bundle
    rows: Int64Array

    @property
    def kinds(self) -> Int8Array:
        """The row kinds (n)."""
        return self.bundle.kinds[self.rows]

    @property
    def accumulate(self) -> BoolArray:
        """Whether each row is added (n)."""
        return accumulates(self.kinds)

    def with_table(self, table: RankTable) -> RankRows:
        """The same rows with other arrivals."""
        return replace(self, table=table)

    def take(self, chosen: Int64Array) -> RankRows:
        """Some of the rows."""
        return RankRows(self.table.take(chosen), self.bundle, self.rows[chosen])


class RankPlan:
    """Settings bound to an input. Raises SchemaError that names ``owner`` for settings that do not fit.

    A *table* below has exactly the columns of ``payload``. ``keeps_all``: rows may be retracted or get worse, so that
    all are stored.
    """

    def __init__(self, settings: RankSettings, spec: InputSpec, owner: str) -> None:
        self.settings = settings
        self.owner = owner
        names, key = spec.schema.names, set(spec.key)
        check_order(settings.order, spec, owner)
        for name in settings.unique or ():
            spec.column(name)
        self.payload = StoredColumns(spec, at_least_one=True)
        self.fields = self.payload.fields
        place = {names[index]: position for position, index in enumerate(self.payload.indices)}
        # Within a key the key columns are all equal: they order and identify nothing.
        self._order = [one for one in settings.order if one.column not in key]
        self.order_at = [place[one.column] for one in self._order]
        self.unique_at = [place[name] for name in settings.unique or () if name not in key]
        self._separate_at = None if settings.separate_by is None else place[settings.separate_by]
        self.has_unique = settings.unique is not None
        self.keeps_all = not settings.monotonic if self.has_unique else spec.changelog
        # The position in the log is not part of a row: a retraction has its own.
        self._content_at = [at for at, field in enumerate(self.fields) if field.name not in spec.sequence]
        self._in_order = bool(spec.sequence)
        self._identity_at = self.unique_at if self.has_unique else self._content_at
        self._packed = [
            None if _is_flat(self.fields[index]) else RowCodec(pa.schema([self.fields[index]]))
            for index in self._identity_at
        ]
        self.text = self._text()
        self.belongs_to: BelongsTo = ("ranking", self.text)

    @property
    def order_fields(self) -> list[pa.Field]:
        """The fields that rows are ordered by."""
        return [self.fields[index] for index in self.order_at]

    def codes(self, columns: Sequence[pa.Array]) -> Codes:
        """Order codes of rows, from the columns of a table."""
        return self.codes_of([columns[index] for index in self.order_at])

    def codes_of(self, order_columns: Sequence[pa.Array]) -> Codes:
        """Order codes of rows, from the columns of ``order_fields``."""
        return order_codes(order_columns, self._order)

    def numbers(self, key: Int64Array, codes: Codes, rows: Int64Array) -> Int64Array:
        """The number of each of ``rows``, which are in rank order."""
        return rank_numbers(self.settings.function, key, codes, rows)

    def rankings(self, table: RankTable, num_keys: int) -> tuple[Int64Array, Int64Array]:
        """The ranking of each row (m), numbered by key and then by ``separate_by``; and the key of each ranking (r)."""
        if self._separate_at is None:
            return table.key, np.arange(num_keys)
        starts = self.starts(table.columns)
        assert starts is not None
        values, ranks = np.unique(starts, return_inverse=True)
        codes, rankings = np.unique(table.key * len(values) + ranks, return_inverse=True)
        return rankings, codes // max(len(values), 1)

    def starts(self, columns: Sequence[pa.Array]) -> Int64Array | None:
        """The instants, int64 microseconds, in ``separate_by`` of rows with the columns of a table; None without it."""
        return None if self._separate_at is None else event_times(columns[self._separate_at])

    def next_number(self, table: RankTable, last: Int64Array, num_keys: int) -> Int64Array:
        """The number that a row after all others of its key would get (u); the rows of ``table`` are in rank order and
        ``last`` (u) is the last one of each key, -1 if it has none."""
        if self.settings.function != "dense_rank":
            return np.bincount(table.key, minlength=num_keys) + 1
        numbers = self.numbers(table.key, self.codes(table.columns), np.arange(len(table)))
        return np.where(last < 0, 0, numbers[last]) + 1

    def outcome(self, table: RankTable, codes: Codes, kinds: Int8Array) -> Outcome:
        """The effect of bundle rows of these ``kinds``, the last of ``table``, on the stored ones before them."""
        insert_only = bool(accumulates(kinds).all())
        if not self.has_unique:
            if insert_only:
                return Outcome(np.ones(len(table), np.bool_), table.arrival, np.empty(0, np.int64))
            return by_content(self.identities(table), kinds, table.arrival)
        # A retraction removes a row of equal content.
        content = np.arange(len(table)) if insert_only else self._content_ids(table)
        rows = Identified(self.identities(table), content)
        return by_unique(rows, kinds, table.arrival, codes, self.settings.monotonic, self._in_order)

    def identities(self, table: RankTable) -> Int64Array:
        """Numbers that are equal for rows of one key with equal identity: the unique columns, or all."""
        return row_ids([table.columns[index] for index in self._identity_at], table.key)

    def _content_ids(self, table: RankTable) -> Int64Array:
        return row_ids([table.columns[index] for index in self._content_at], table.key)

    def hashes(self, columns: Sequence[pa.Array]) -> Int64Array:
        """Hashes: equal for rows of equal identity and almost never otherwise; the same in every run."""
        parts = [
            columns[index] if codec is None else pa.array(codec.encode([columns[index]]), pa.binary())
            for index, codec in zip(self._identity_at, self._packed, strict=True)
        ]
        return hash_columns(parts).view(np.int64) if parts else np.zeros(len(columns[0]), np.int64)

    def _text(self) -> str:
        settings = self.settings
        order = ", ".join(one.text for one in settings.order) or "arrival"
        last = f"{settings.n} from {settings.offset + 1}"
        text = f"{settings.function} {last} by {order}{', the newest first' if settings.newest_first else ''}"
        if self.has_unique:
            text += f"; unique {', '.join(settings.unique or ())}"
        if not self.keeps_all:
            return f"{text}; the best rows"
        # Rows are found by the hash of their identity, which depends on its types.
        types = ", ".join(type_to_text(self.fields[index].type) for index in self._identity_at)
        return f"{text}; all rows, identified by {types}"


def partial_top_n(given: InputSpec) -> PartialStep:
    """A step that keeps the rows of an input that are within its ``limit``, in order of arrival. Rows may have more
    columns than the input."""
    assert given.limit is not None
    key = [*given.key, *given.limit.within]
    codec = KeyCodec([given.column(name).type for name in key], key, 1)
    return functools.partial(_best_rows, given.limit, codec)


def _best_rows(
    limit: PartialLimit, codec: KeyCodec, batch: pa.RecordBatch, kinds: Int8Array | None
) -> pa.RecordBatch:
    keys = codec.group([batch.column(name) for name in codec.names], num_rows=batch.num_rows)
    if len(keys) == batch.num_rows:
        return batch
    order = [OrderColumn(*one) for one in limit.order]
    codes = order_codes([batch.column(one.column) for one in order], order)
    owners = keys.inverse.astype(np.int64)
    rows = sorted_by(codes, major=owners, minor=())
    chosen = np.zeros(batch.num_rows, np.bool_)
    chosen[rows[rank_numbers(limit.function, owners, codes, rows) <= limit.rows]] = True
    for name in limit.within:
        chosen |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return batch.filter(pa.array(chosen))


def _is_flat(field: pa.Field) -> bool:
    try:
        check_key_type(field.name, field.type)
    except SchemaError:
        return False
    return True
