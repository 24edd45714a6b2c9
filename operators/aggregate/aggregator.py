"""What every aggregate is made of, however it was written: state columns, and what rows make of them.

Owns: ``Aggregator``, ``KeyedRows``, ``Updated``; ``MergingAggregator``, those whose rows have states of their own;
``key_text``, ``GroupOverflowError``, ``naming`` and ``of_groups``, with which errors name keys.
Invariant: nobody asks which kind an aggregator is. What it cannot do (``retracts``, ``merges``) is refused before any
row is read.
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
"""An array for each of an aggregator's ``fields``; a row of nulls stands for a key of which nothing is known."""


def key_text(keys: KeyBatch | Sequence[pa.Array] | None, at: int) -> str:
    """``, key ('a',)`` for the key at a place of ``keys``, to stand behind the name of an operator; empty without."""
    columns = keys.columns if isinstance(keys, KeyBatch) else keys
    if not columns:
        return ""
    return f", key {tuple(python_values(column.slice(at, 1))[0] for column in columns)!r}"


class GroupOverflowError(OperatorError):
    """A result that does not fit its type; ``at`` is its place among the groups, or keys, that were computed."""

    def __init__(self, owner: str, text: str, at: int) -> None:
        super().__init__(f"{owner}: {text}")
        self.owner = owner
        self.text = text
        self.at = at


@contextmanager
def naming(
    keys: KeyBatch | Sequence[pa.Array] | None, owners: npt.NDArray[np.integer] | None = None
) -> Iterator[None]:
    """Results that overflow inside the block are of these keys, or key columns: their error names the key.

    ``owners``: the key of each result; None: results are in the order of the keys.
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
    """What overflows inside the block are rows: their error has the place of their group."""
    try:
        yield
    except GroupOverflowError as error:
        at = int(groups.ids[error.at])
        raise GroupOverflowError(error.owner, error.text, at) from error.__cause__


class KeyedRows(NamedTuple):
    """n rows of u keys: whose they are, and +1 (added), -1 (taken back) or 0 (not to be counted) a row.

    ``signs`` None: all are added. Within a group rows are in the order in which they came. ``keys``: of the groups, in
    their order; None where groups are no keys of the store. ``valued``: the values before and after are asked for.
    ``kinds`` (n): the row kinds, where rows are those of an input; None: all +I.
    """

    batch: pa.RecordBatch
    groups: Groups
    signs: Int8Array | None = None
    keys: KeyBatch | None = None
    valued: bool = False
    kinds: Int8Array | None = None


class Updated(NamedTuple):
    """The states (u) after rows; and the values before and after them, from an aggregator that has them at hand."""

    state: State
    before: pa.Array | None = None
    after: pa.Array | None = None


class Aggregator(ABC):
    """Some state columns, ``fields``, and what becomes of them; ``owner`` is the operator as errors name it."""

    owner: str
    fields: tuple[pa.Field, ...]
    retracts: bool = True
    """Whether rows can be taken back."""
    merges: bool = True
    """Whether states of parts of the rows make the state of all."""
    keeps_more: bool = False
    """Whether it keeps anything beside its states."""
    may_lack: frozenset[str] = frozenset()
    """Names of fields that states of an older layout do not have: null there means what it means elsewhere."""

    def call_apart(self, prefix: str) -> None:
        """Put ``prefix`` before the names of the state columns, which states of an older layout need not have."""
        names = [prefix + field.name for field in self.fields]
        pairs = zip(self.fields, names, strict=True)
        self.fields = tuple(field.with_name(name).with_nullable(True) for field, name in pairs)
        self.may_lack = frozenset(names)

    def open(self, context: OperatorContext, time_first: bool = False) -> None:
        """Declare what it keeps beside its states; ``time_first`` where keys have namespaces."""

    def begin_anew(self) -> None:
        """In place of ``open``, where no state is kept."""

    def async_read(self, rows: KeyedRows) -> StateFuture[Any] | None:
        """Read what the rows will need of that; None: nothing."""
        return None

    def remove(self, keys: KeyBatch) -> None:
        """Remove what it keeps beside the states of ``keys``."""

    def expire_with(self, state: ColumnState) -> None:
        """Have that go when the rows of the same keys in ``state`` expire."""

    def prepare(self, rows: KeyedRows) -> Any:
        """What can be done with the rows before the states of their keys are known."""
        return None

    @abstractmethod
    def update(
        self, state: State, rows: KeyedRows, prepared: Any, ctx: BundleContext
    ) -> Updated | StateFuture[Updated]:
        """The states (u) after the rows; ``prepared`` is what ``prepare`` made of them."""

    @abstractmethod
    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, as one (u)."""

    def values(self, state: State, keys: KeyBatch | None = None) -> pa.Array:
        """What states (u) amount to; asked of those whose states are of one aggregate alone. ``keys`` (u): those that
        the states are of, where something is kept beside them."""
        raise NotImplementedError

    def local(self) -> tuple[LocalColumn, ...] | None:
        """What a local phase computes for this part; None: it needs the rows themselves."""
        return None

    def gather(self, columns: Sequence[pa.Array], groups: Groups) -> State:
        """The states of each group (u) from the columns (n each) that ``local`` asks for."""
        return self.combine(list(columns), groups)


class MergingAggregator(Aggregator):
    """An aggregator whose rows have states of their own, which are put together in any grouping.

    ``column`` is None for a count of rows; only rows whose ``condition`` column is true take part. ``distinct``: only
    those that count as the first, or the last, of their value are given to it.
    """

    def __init__(
        self, owner: str, label: str, column: str | None, condition: str | None, distinct: bool = False
    ) -> None:
        parts = [label, *([column] if column else []), *([f"where.{condition}"] if condition else [])]
        self.owner = owner
        self.column = column
        self.condition = condition
        self.name = ".".join([*parts, *(["distinct"] if distinct else [])])

    @abstractmethod
    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n rows alone; ``signs`` as in ``KeyedRows``."""

    @abstractmethod
    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, as one, row by row."""

    def prepare(self, rows: KeyedRows) -> State:
        """The states of the rows of each group (u)."""
        with naming(rows.keys):
            with of_groups(rows.groups):
                lifted = self.lift(rows.batch, rows.signs)
            return self.combine(lifted, rows.groups)

    def update(self, state: State, rows: KeyedRows, prepared: State, ctx: BundleContext) -> Updated:
        """See ``Aggregator``."""
        with naming(rows.keys):
            return Updated(self.merge(state, prepared))

    def partial(self, batch: pa.RecordBatch, signs: Int8Array | None, groups: Groups) -> Sequence[pa.Array]:
        """The columns that ``local`` names (u), of n rows; ``signs`` as in ``KeyedRows``."""
        return self.combine(self.lift(batch, signs), groups)

    def chosen(self, batch: pa.RecordBatch) -> BoolArray | None:
        """Rows (n) that take part: value not null and condition true. None for all."""
        return chosen_rows(batch, () if self.column is None else (self.column,), self.condition)

    def weights(self, batch: pa.RecordBatch, signs: Int8Array | None) -> Int64Array:
        """How often each row (n) counts: its sign, 0 for one that takes no part."""
        weights = np.ones(batch.num_rows, np.int64) if signs is None else signs.astype(np.int64)
        mask = self.chosen(batch)
        return weights if mask is None else weights * mask

    def _local(self, function: LocalFunction, result: pa.DataType) -> LocalColumn:
        return LocalColumn(function, result, self.column, self.condition)


def chosen_rows(batch: pa.RecordBatch, columns: Sequence[str], condition: str | None) -> BoolArray | None:
    """Rows (n) of which all ``columns`` are known and the ``condition`` column is true. None for all."""
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
