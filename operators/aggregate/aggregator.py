"""The common interface of all aggregates: state columns, and how rows update them.

Owns: ``Aggregator``, ``KeyedRows``, ``Updated``; ``MergingAggregator``, for aggregates where each row has a state;
``key_text``, ``GroupOverflowError``, ``naming`` and ``of_groups``, with which errors name keys.
Invariant: no caller depends on the kind of an aggregator. What it does not support (``retracts``, ``merges``) is
refused before any row is read.
Must not import anything of ``asyncstate`` but ``codec``, ``errors``, ``futures``, ``operator`` and ``state``.

Source: the accumulate, retract and merge functions of Flink's aggregates, as columns: its ``AggsHandleFunction``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.times import python_values
from asyncstate.errors import OperatorError
from asyncstate.futures import StateFuture
from asyncstate.operator import BundleContext, OperatorContext
from asyncstate.partial_aggregation import LocalColumn, LocalFunction
from asyncstate.state.columnar.state_columns import ColumnState

from ..core.arrays import BoolArray, Int8Array, Int64Array, valid_rows
from ..core.segments import Groups

State = list[pa.Array]
"""An array for each of an aggregator's ``fields``; a row of nulls means that the key has no state."""


def key_text(keys: KeyBatch | Sequence[pa.Array] | None, at: int) -> str:
    """``, key ('a',)`` for the key at position ``at``, to append to an operator's name; empty without keys."""
    columns = keys.columns if isinstance(keys, KeyBatch) else keys
    if not columns:
        return ""
    return f", key {tuple(python_values(column.slice(at, 1))[0] for column in columns)!r}"


class GroupOverflowError(OperatorError):
    """A result that does not fit its type; ``at`` is its position among the computed groups or keys."""

    def __init__(self, owner: str, text: str, at: int) -> None:
        super().__init__(f"{owner}: {text}")
        self.owner = owner
        self.text = text
        self.at = at


@contextmanager
def naming(
    keys: KeyBatch | Sequence[pa.Array] | None, owners: npt.NDArray[np.integer] | None = None
) -> Iterator[None]:
    """Add the key to the error of a result that overflows inside the block; ``keys`` are the keys or key columns.

    ``owners``: the key's index for each result; None: results are in the order of the keys.
    """
    try:
        yield
    except GroupOverflowError as error:
        if keys is None:
            raise
        at = error.at if owners is None else int(owners[error.at])
        raise OperatorError(f"{error.owner}{key_text(keys, at)}: {error.text}") from error.__cause__


@contextmanager
def of_groups(groups: Groups) -> Iterator[None]:
    """Convert the error of a row that overflows inside the block: its position becomes that of the row's group."""
    try:
        yield
    except GroupOverflowError as error:
        at = int(groups.ids[error.at])
        raise GroupOverflowError(error.owner, error.text, at) from error.__cause__


class KeyedRows(NamedTuple):
    """n rows of u keys: their groups, and a sign per row: +1 (added), -1 (retracted) or 0 (ignored).

    ``signs`` None: all are added. Within a group rows are in the order of arrival. ``keys``: those of the groups, in
    their order; None if groups are not keys of the store. ``valued``: the caller needs the values before and after.
    ``kinds`` (n): the row kinds, if rows come from an input; None: all +I.
    """

    batch: pa.RecordBatch
    groups: Groups
    signs: Int8Array | None = None
    keys: KeyBatch | None = None
    valued: bool = False
    kinds: Int8Array | None = None


class Updated(NamedTuple):
    """The states (u) after rows; and the values before and after them, if the aggregator has already computed them."""

    state: State
    before: pa.Array | None = None
    after: pa.Array | None = None


class Aggregator(ABC):
    """State columns, ``fields``, and the steps that update them; ``owner`` is the operator's name in errors."""

    owner: str
    fields: tuple[pa.Field, ...]
    retracts: bool = True
    """Whether rows can be retracted."""
    merges: bool = True
    """Whether states of subsets of the rows can be merged into the state of all."""
    keeps_more: bool = False
    """Whether it keeps additional state."""
    may_lack: frozenset[str] = frozenset()
    """Names of fields that states of an older layout do not have: such states read as null, with its usual meaning."""

    def prefix_fields(self, prefix: str) -> None:
        """Add ``prefix`` to the names of the state columns, and allow states of an older layout to lack them."""
        names = [prefix + field.name for field in self.fields]
        pairs = zip(self.fields, names, strict=True)
        self.fields = tuple(field.with_name(name).with_nullable(True) for field, name in pairs)
        self.may_lack = frozenset(names)

    def open(self, context: OperatorContext, time_first: bool = False) -> None:
        """Declare its additional state; ``time_first`` if keys have namespaces."""

    def begin_anew(self) -> None:
        """Replaces ``open`` if no state is kept."""

    def async_read(self, rows: KeyedRows) -> StateFuture[Any] | None:
        """Read the additional state that the rows need; None if they need none."""
        return None

    def remove(self, keys: KeyBatch) -> None:
        """Remove the additional state of ``keys``."""

    def expire_with(self, state: ColumnState) -> None:
        """Expire the additional state together with the rows of the same keys in ``state``."""

    def prepare(self, rows: KeyedRows) -> Any:
        """Do the work on the rows that does not need the states of their keys."""
        return None

    @abstractmethod
    def update(
        self, state: State, rows: KeyedRows, prepared: Any, ctx: BundleContext
    ) -> Updated | StateFuture[Updated]:
        """The states (u) after the rows; ``prepared`` is the result of ``prepare``."""

    @abstractmethod
    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""

    def values(self, state: State, keys: KeyBatch | None = None) -> pa.Array:
        """The results of states (u); only called if the states belong to a single aggregate. ``keys`` (u): the keys of
        the states, needed if there is additional state."""
        raise NotImplementedError

    def local(self) -> tuple[LocalColumn, ...] | None:
        """The columns that a partial aggregation computes for this part; None: it needs the rows themselves."""
        return None

    def gather(self, columns: Sequence[pa.Array], groups: Groups) -> State:
        """The state of each group (u) from the columns (n each) that ``local`` names."""
        return self.combine(list(columns), groups)


class MergingAggregator(Aggregator):
    """An aggregator where each row has a state; these states can be merged in any grouping.

    ``column``: one column, or several of which none may be null; None for a count of rows. Only rows whose
    ``condition`` column is true count. ``distinct``: it receives only the rows that count as the first, or the last,
    of their value.
    """

    def __init__(
        self,
        owner: str,
        label: str,
        column: str | tuple[str, ...] | None,
        condition: str | None,
        distinct: bool = False,
    ) -> None:
        self.columns = (column,) if isinstance(column, str) else column or ()
        names = [",".join(self.columns)] if self.columns else []
        parts = [label, *names, *([f"where.{condition}"] if condition else [])]
        self.owner = owner
        self.column = self.columns[0] if self.columns else None
        self.condition = condition
        self.name = ".".join([*parts, *(["distinct"] if distinct else [])])

    @abstractmethod
    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""

    @abstractmethod
    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""

    def prepare(self, rows: KeyedRows) -> State:
        """The merged state of the rows of each group (u)."""
        with naming(rows.keys):
            with of_groups(rows.groups):
                lifted = self.lift(rows.batch, rows.signs)
            return self.combine(lifted, rows.groups)

    def update(self, state: State, rows: KeyedRows, prepared: State, ctx: BundleContext) -> Updated:
        """The states (u) after the rows; ``prepared`` is the result of ``prepare``."""
        with naming(rows.keys):
            return Updated(self.merge(state, prepared))

    def partial(self, batch: pa.RecordBatch, signs: Int8Array | None, groups: Groups) -> Sequence[pa.Array]:
        """The columns (u) that ``local`` names, computed from n rows; ``signs`` as in ``KeyedRows``."""
        return self.combine(self.lift(batch, signs), groups)

    def chosen(self, batch: pa.RecordBatch) -> BoolArray | None:
        """Rows (n) that count: values not null and condition true. None for all."""
        return chosen_rows(batch, self.columns, self.condition)

    def weights(self, batch: pa.RecordBatch, signs: Int8Array | None) -> Int64Array:
        """The weight of each row (n): its sign, or 0 if it does not count."""
        weights = np.ones(batch.num_rows, np.int64) if signs is None else signs.astype(np.int64)
        mask = self.chosen(batch)
        return weights if mask is None else weights * mask

    def _local(self, function: LocalFunction, result: pa.DataType) -> LocalColumn:
        return LocalColumn(function, result, self.column, self.condition)


def chosen_rows(batch: pa.RecordBatch, columns: Sequence[str], condition: str | None) -> BoolArray | None:
    """Rows (n) where no column of ``columns`` is null and the ``condition`` column is true. None for all."""
    mask = valid_rows([batch.column(name) for name in columns])
    if condition is not None:
        met = batch.column(condition)
        met = (met.fill_null(False) if met.null_count else met).to_numpy(zero_copy_only=False)
        mask = met if mask is None else mask & met
    return mask


def counted_rows(
    batch: pa.RecordBatch, columns: Sequence[str], condition: str | None, signs: Int8Array | None
) -> BoolArray | None:
    """Those of ``chosen_rows`` whose sign is not 0. None for all."""
    mask = chosen_rows(batch, columns, condition)
    if signs is None or bool(signs.all()):
        return mask
    counted: BoolArray = signs != 0
    return counted if mask is None else mask & counted
