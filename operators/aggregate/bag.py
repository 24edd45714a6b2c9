"""Bags: the distinct values of each key with their counts, for aggregates that need to see every value.

Owns: ``Bag``, the part; ``Contents``, the values in bags; ``retractable``, which makes any part retractable by a bag.
Invariant: the values of a bag are sorted, and none has the count 0: the same rows give the same bag, in any grouping
and order.
Must not import anything of ``asyncstate`` but ``codec``.

Source: the counts that Spark's ``Percentile`` and ``Mode`` keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import check_key_type
from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.sorting import rows_by

from ..core.arrays import BoolArray, Int8Array, Int64Array, run_begins
from ..core.segments import Groups
from .aggregate_calls import InputBinding
from .aggregator import MergingAggregator, State, chosen_rows

Keep = Literal["all", "first", "last"]
"""Which values a bag keeps: all; or only the extreme ones, those with the first or last value of the first column."""

Reader = Callable[[Sequence[State]], State]
"""Reads the states (u) of one part from those of all parts."""


class Contents(NamedTuple):
    """m values in the order of (owner, value), distinct per owner: the index of the owner, one column per part of the
    value, and the count of each."""

    owners: Int64Array
    columns: list[pa.Array]
    counts: Int64Array

    @staticmethod
    def netted(owners: npt.NDArray[np.integer], columns: list[pa.Array], counts: Int64Array) -> Contents:
        """Values in any order, with the counts of equal ones summed, without those whose sum is 0."""
        order, begins = _sorted(owners, columns)
        starts = np.flatnonzero(begins)
        sums = np.add.reduceat(counts[order], starts) if len(starts) else counts
        kept = pa.array(order[starts[sums != 0]])
        return Contents(
            owners[kept.to_numpy()].astype(np.int64),
            [column.take(kept) for column in columns],
            sums[sums != 0],
        )

    def chosen(self, mask: BoolArray) -> Contents:
        """The values where ``mask`` (m) is true."""
        if mask.all():
            return self
        kept = pa.array(mask)
        return Contents(
            self.owners[mask], [column.filter(kept) for column in self.columns], self.counts[mask]
        )

    def extremes(self, keep: Keep) -> Contents:
        """Per owner only the last of the values that have its first (last) value of the first column."""
        if keep == "all":
            return self
        ends = _ends(run_begins(self.owners))
        if keep == "first":
            firsts = run_begins(self.owners, rank_column(self.columns[0])[0])
            ends = _ends(firsts) & (np.cumsum(firsts) - 1 == _first_runs(self.owners, firsts))
        return self.chosen(ends)

    def present(self) -> Contents:
        """The values with a positive count."""
        return self.chosen(self.counts > 0)


def _sorted(owners: npt.NDArray[np.integer], columns: Sequence[pa.Array]) -> tuple[Int64Array, BoolArray]:
    """The rows in the order of owner and values, and where in that order a new value begins."""
    codes = [rank_column(column)[0] for column in columns]
    order = rows_by(owners, *codes)
    return order, run_begins(owners[order], *(code[order] for code in codes))


def _ends(begins: BoolArray) -> BoolArray:
    """Where runs end, from where they begin."""
    return np.append(begins[1:], True)[: len(begins)]


def _first_runs(owners: Int64Array, begins: BoolArray) -> Int64Array:
    """The number (m) of the first run of each row's owner; ``begins`` (m): where runs begin."""
    runs = np.cumsum(begins) - 1
    starts = run_begins(owners)
    return runs[np.flatnonzero(starts)][np.cumsum(starts) - 1] if len(owners) else runs


class Bag(MergingAggregator):
    """The values of ``columns`` with their counts: a list per column, and a list of counts.

    Rows count in which no column of ``needed`` is null (None: none of ``columns``); in the others null is a value.
    ``keep``: only insert-only inputs can have a bag without all values.
    """

    def __init__(
        self,
        binding: InputBinding,
        columns: tuple[str, ...],
        needed: tuple[str, ...] | None = None,
        keep: Keep = "all",
        distinct: bool = False,
    ) -> None:
        label = {"all": "bag", "first": "smallest", "last": "largest"}[keep]
        if needed is not None and set(needed) != set(columns):
            label += f"[{','.join(needed)}]"
        super().__init__(binding.owner, label, columns, binding.condition, distinct)
        self.keep = keep
        self.retracts = keep == "all"
        self._needed = columns if needed is None else needed
        self._types = [binding.type_of(name) for name in columns]
        for name, kind in zip(columns, self._types, strict=True):
            check_key_type(name, kind)
        names = [
            self.name,
            *(f"{self.name}.{place}" for place in range(1, len(columns))),
            f"{self.name}.counts",
        ]
        types = [*self._types, pa.int64()]
        self.fields = tuple(pa.field(name, pa.list_(kind)) for name, kind in zip(names, types, strict=True))

    def chosen(self, batch: pa.RecordBatch) -> BoolArray | None:
        """Rows (n) that count: values not null and condition true."""
        return chosen_rows(batch, self._needed, self.condition)

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        weights, columns = self.weights(batch, signs), [batch.column(name) for name in self.columns]
        counted = weights != 0
        if not counted.all():
            mask = pa.array(counted)
            columns = [column.filter(mask) for column in columns]
        owners = np.flatnonzero(counted)
        return self._stored(Contents(owners, columns, weights[counted]), batch.num_rows)

    def combine(self, state: State, groups: Groups) -> State:
        """The states (n) of each group, in its order, merged into one per group (u)."""
        owners, columns, counts = self._read(state)
        return self._net(groups.ids[owners], columns, counts, len(groups.starts))

    def merge(self, state: State, partial: State) -> State:
        """Two sets of states (u), that of earlier rows first, merged row by row."""
        first, second = self._read(state), self._read(partial)
        columns = [pa.concat_arrays(pair) for pair in zip(first.columns, second.columns, strict=True)]
        owners = np.concatenate([first.owners, second.owners])
        return self._net(owners, columns, np.concatenate([first.counts, second.counts]), len(state[0]))

    def contents(self, state: State) -> Contents:
        """The values of states (u) that have a positive count."""
        return self._read(state).present()

    def _net(
        self, owners: npt.NDArray[np.integer], columns: list[pa.Array], counts: Int64Array, count: int
    ) -> State:
        return self._stored(Contents.netted(owners, columns, counts).extremes(self.keep), count)

    def _read(self, state: State) -> Contents:
        owners = pc.list_parent_indices(state[-1]).to_numpy().astype(np.int64)
        *columns, counts = (column.flatten() for column in state)
        return Contents(owners, columns, counts.to_numpy())

    def _stored(self, contents: Contents, count: int) -> State:
        return as_lists([*contents.columns, pa.array(contents.counts)], contents.owners, count)


def as_lists(columns: Sequence[pa.Array], owners: Int64Array, count: int) -> list[pa.Array]:
    """The values (m, by owner) of each column as a list for each of ``count`` owners."""
    bounds = np.append(0, np.cumsum(np.bincount(owners, minlength=count)))
    offsets = pa.array(bounds, pa.int32())
    return [pa.ListArray.from_arrays(offsets, column) for column in columns]


def of_owners(column: pa.Array, owners: Int64Array, count: int) -> pa.Array:
    """The values (m, one per owner at most) as a column of ``count`` owners; null for owners without one."""
    rows = np.full(count, -1, np.int64)
    rows[owners] = np.arange(len(owners))
    return column.take(pa.array(rows, mask=rows < 0))


class Counted(MergingAggregator):
    """A part whose states follow from values and their counts; it cannot retract values by itself."""

    def lift(self, batch: pa.RecordBatch, signs: Int8Array | None) -> State:
        """The states of n single rows; ``signs`` as in ``KeyedRows``."""
        return self.of_counts([batch.column(name) for name in self.columns], self.weights(batch, signs))

    def of_counts(self, columns: Sequence[pa.Array], counts: Int64Array) -> State:
        """The states of n values that occur ``counts`` (n) times each; 0: no value."""
        raise NotImplementedError


def retractable(binding: InputBinding, part: Counted, distinct: bool) -> Reader:
    """How to read the states (u) of ``part`` from those of all parts. Over a changelog they are computed from a bag;
    ``distinct``: whether DISTINCT makes a difference."""
    put = binding.part if distinct else binding.plain_part
    if not binding.retract:
        index = put(part)
        return lambda states: states[index]
    bag = Bag(binding, part.columns, distinct=distinct and binding.aggregate.is_distinct)
    at = put(bag)

    def computed(states: Sequence[State]) -> State:
        owners, columns, counts = bag.contents(states[at])
        count = len(states[at][0])
        if not len(owners):
            return [pa.nulls(count, field.type) for field in part.fields]
        found, ids = np.unique(owners, return_inverse=True)
        combined = part.combine(part.of_counts(columns, counts), Groups.of_ids(ids, len(found)))
        return [of_owners(column, found, count) for column in combined]

    return computed
