"""DynamicFilter: rows whose value compares with a single value that changes.

Owns: the operator and ``Comparison``.
Invariant: after every micro-batch the netted output is the rows whose ``column`` compares with the bound. If the bound
changes, only rows between the old and the new one are read and emitted.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``errors``, ``futures``, ``operator`` and
``state``.

Source: RisingWave's ``DynamicFilterExecutor``, which keeps its left rows in the order of the compared value, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal, get_args

import numpy as np
import pyarrow as pa

from asyncstate.changelog import Changelog, RowKind
from asyncstate.codec import KeyBatch, RowCodec, check_key_type
from asyncstate.codec.hashing import canonical_floats
from asyncstate.codec.key_batch import rank_column
from asyncstate.codec.key_fields import to_ordered
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.value_columns import storage_dtype, to_storage
from asyncstate.errors import OperatorError, SchemaError
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth, with_rows
from asyncstate.operator import Bundle, BundleContext, BundleOperator, InputSpec, OperatorContext, OutputSpec
from asyncstate.state.broadcast_state import BroadcastStateDescriptor
from asyncstate.state.columnar.list_blocks import ListHeads
from asyncstate.state.columnar.list_columns import ListColumns
from asyncstate.state.columnar.time_first_lists import TimeFirstListDescriptor

from ..core.arrays import BoolArray, Int64Array, concat_rows, row_ids, take_rows, valid_rows
from ..core.consolidation import net_by_content
from ..core.operator_checks import KeepsKey, check_choice
from ..core.state_meaning import meaning
from ..core.stored_columns import StoredColumns

Comparison = Literal["<", "<=", ">", ">=", "="]
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class DynamicFilter(KeepsKey, BundleOperator):
    """The rows of the first input whose ``column`` compares with ``bound``, a column of the second input, which has one
    row at most.

    The filter of a query such as ``WHERE total > (SELECT 0.01 * sum(value) FROM ...)``. The second input is broadcast:
    every partition gets its row, so the first input keeps its key and its partitions::

        DynamicFilter("total", ">", "limit")  # key=["product", None]

    No row of the first input passes while the second one has no row, or null in ``bound``; a null in ``column`` never
    passes. NaN is the largest float, and equals itself. Both columns have the same type.

    Output: the columns of the first input: +I for rows that pass, -D for rows that do so no longer. First come the rows
    that a new bound lets in or out: only those between the old and the new one are read. Then those of the micro-batch.
    Retractions of rows that are not there are dropped and counted (``retractions_without_state``).

    State: ``rows``, all rows of the first input with a value, in the order of their values; ``bound``.

    Raises SchemaError for columns that do not fit, and OperatorError if the second input has several rows.
    """

    num_inputs: ClassVar[int] = 2
    broadcast_input: ClassVar[int | None] = 1

    def __init__(self, column: str, comparison: Comparison, bound: str) -> None:
        check_choice(comparison, get_args(Comparison), "comparison", self.owner)
        self.column = column
        self.comparison: Comparison = comparison
        self.bound = bound

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The columns of the first input."""
        spec, other = inputs
        kind, bound = spec.column(self.column).type, other.column(self.bound).type
        if kind != bound:
            raise SchemaError(
                f"{self.owner}: column '{self.column}' of {spec.name} is {kind} but '{self.bound}' of {other.name} is "
                f"{bound}; cast one of them"
            )
        check_key_type(self.column, kind)
        return OutputSpec(spec.schema, changes=Changelog.retract(*spec.changes.unique_keys))

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: which rows were emitted."""
        return meaning(self, column=self.column, comparison=self.comparison, bound=self.bound)

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``."""
        return with_rows(inputs[0].changelog)

    def open(self, context: OperatorContext) -> None:
        """Declare the state."""
        spec = context.inputs[0]
        self._schema = spec.schema
        self._at = spec.schema.get_field_index(self.column)
        self._content = [at for at, name in enumerate(spec.schema.names) if name not in spec.sequence]
        self._payload = StoredColumns(spec, at_least_one=True)
        self._missing = context.missing_rows()
        self._rows = context.get_state(
            TimeFirstListDescriptor("rows", pa.schema(self._payload.fields), ("values of", self.column))
        )
        self._codec = RowCodec(pa.schema([spec.schema.field(self._at).with_nullable(True)]))
        self._stored_bound = context.get_state(BroadcastStateDescriptor("bound", pa.binary(), pa.int64()))

    # -- the bound ---------------------------------------------------------------------------------------

    def process_broadcast(self, rows: Bundle, ctx: BundleContext) -> Iterator[None] | None:
        """See ``BundleOperator``."""
        old = self._bound()
        values = self._codec.encode([_canonical(rows.batch.column(self.bound))])
        net: Counter[bytes] = Counter(dict(self._stored_bound.entries()))
        for value, added in zip(values, rows.accumulate.tolist(), strict=True):
            net[value] += 1 if added else -1
        left = {value: number for value, number in net.items() if number > 0}
        if sum(left.values()) > 1:
            raise OperatorError(
                f"{self.owner}: the second input has {sum(left.values())} rows, but there is one bound; aggregate them "
                "without a key, or use Join"
            )
        self._stored_bound.clear()
        self._stored_bound.put_all(left)
        new = self._bound()
        return None if old.equals(new) else self._move(old, new, ctx)

    def _bound(self) -> pa.Array:
        """The bound (1); null if there is none."""
        (column,), _ = self._codec.decode(list(self._stored_bound.keys()) or [None])
        return column

    def _move(self, old: pa.Array, new: pa.Array, ctx: BundleContext) -> Iterator[None]:
        """Emit the rows that pass one of the bounds alone, range by range."""
        for first, last in self._between(old, new):
            for found in self._rows.up_to(last, first):
                columns = self._payload.row([*take_rows(found.key_columns, found.lists), *found.columns])
                before, after = (self._passes(columns[self._at], bound) for bound in (old, new))
                changed = np.flatnonzero(before != after)
                if len(changed):
                    kinds = np.where(after[changed], RowKind.INSERT, RowKind.DELETE).astype(np.int8)
                    ctx.emit(take_rows(columns, changed), kinds)
                yield None

    def _between(self, old: pa.Array, new: pa.Array) -> list[tuple[int, int]]:
        """Ranges of codes with all values that pass one of the bounds alone."""
        codes = [int(value_codes(bound)[0]) for bound in (old, new) if not bound.null_count]
        if self.comparison == "=":
            return [(code, code) for code in dict.fromkeys(codes)]
        if len(codes) == 2:
            return [(min(codes), max(codes))]
        return [(_LOWEST, codes[0]) if self.comparison in ("<", "<=") else (codes[0], _HIGHEST)]

    def _passes(self, values: pa.Array, bound: pa.Array) -> BoolArray:
        """Which values (n, not null) compare with the bound (1)."""
        if bound.null_count:
            return np.zeros(len(values), np.bool_)
        ranks = rank_column(pa.concat_arrays([values, bound.cast(values.type)]))[0]
        own, limit = ranks[:-1], ranks[-1]
        found: dict[Comparison, BoolArray] = {
            "<": own < limit,
            "<=": own <= limit,
            ">": own > limit,
            ">=": own >= limit,
            "=": own == limit,
        }
        return found[self.comparison]

    # -- rows --------------------------------------------------------------------------------------------

    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> StateFuture[None] | None:
        """See ``BundleOperator``."""
        valued = valid_rows([bundle.batch.column(self._at)])
        rows = np.arange(bundle.num_rows) if valued is None else np.flatnonzero(valued)
        if not len(rows):
            return None
        columns = take_rows(bundle.batch.columns, rows)
        owners = bundle.keys.inverse[rows]
        pairs = bundle.keys.in_namespaces(value_codes(columns[self._at]), owners)
        read = self._rows.async_read(pairs)
        return read.then_accept(lambda found: self._change(bundle, rows, columns, pairs, *found, ctx))

    def _change(
        self,
        bundle: Bundle,
        rows: Int64Array,
        columns: list[pa.Array],
        pairs: KeyBatch,
        heads: ListHeads,
        stored: ListColumns,
        ctx: BundleContext,
    ) -> None:
        """Store the rows (m), and emit those that pass."""
        keys, owners = take_rows(pairs.columns, stored.key_index), stored.key_index.astype(np.int64)
        old = self._payload.row([*keys, *stored.columns])
        content = [concat_rows([old[at]], [columns[at]])[0] for at in self._content]
        ids = row_ids(content, np.concatenate([owners, pairs.inverse]))
        net = net_by_content(ids[: len(owners)], ids[len(owners) :], bundle.accumulate[rows])
        self._missing.add(rows[net.missing], bundle)
        come, gone = take_rows(columns, net.added), take_rows(old, np.flatnonzero(net.removed))
        added_owners = pairs.inverse[net.added].astype(np.int64)
        if net.removed.any():
            kept = np.flatnonzero(~net.removed)
            all_owners = np.concatenate([owners[kept], added_owners])
            order = rows_by(all_owners)
            left = take_rows(concat_rows(take_rows(old, kept), come), order)
            self._rows.put(pairs, [left[at] for at in self._payload.indices], all_owners[order], heads)
        elif len(net.added):
            order = rows_by(added_owners)
            new = take_rows([come[at] for at in self._payload.indices], order)
            self._rows.append(pairs, new, added_owners[order], heads)
        bound = self._bound()
        for part, kind in ((gone, RowKind.DELETE), (come, RowKind.INSERT)):
            passing = np.flatnonzero(self._passes(part[self._at], bound))
            if len(passing):
                ctx.emit(take_rows(part, passing), kind)


def _canonical(column: pa.Array) -> pa.Array:
    """The column with the same bytes for equal floats."""
    if not pa.types.is_floating(column.type):
        return column
    values = canonical_floats(to_storage(column))
    return pa.array(values, column.type, mask=column.is_null().to_numpy(False))


def value_codes(column: pa.Array) -> Int64Array:
    """Numbers (n) that ascend with the values, which have no null. Different values may have one number: decimals and
    texts whose first digits or bytes are the same."""
    dtype = storage_dtype(column.type)
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64(), safe=False)
        dtype = np.dtype("<f8")
    if dtype is not None and dtype.subdtype is None:
        ordered = to_ordered(to_storage(column)).astype(np.uint64)
    else:
        first = [value.as_buffer().to_pybytes()[:8].ljust(8, b"\0") for value in column]
        ordered = np.frombuffer(b"".join(first), ">u8").astype(np.uint64)
    codes: Int64Array = (ordered ^ np.uint64(1 << 63)).view(np.int64)
    return codes
