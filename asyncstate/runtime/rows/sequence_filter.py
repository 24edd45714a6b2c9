"""The ``sequence`` of inputs: its checks, and the highest sequence seen per key.

Owns: ``check_sequences`` and ``SequenceFilter``.
Invariant: with ``drop_stale`` a row reaches the operator only if its sequence is higher than all that its key had in
previous micro-batches, and no row of a micro-batch reaches it twice.
Must not import Spark or execution.

A key's highest sequence is a column state called ``sequence of input N``: its columns in the key codec, so that bytes
compare as the values do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.codec import KeyBatch, KeyCodec, RowCodec, check_key_type
from asyncstate.errors import SchemaError
from asyncstate.operator import Counter, InputSpec, OperatorContext
from asyncstate.runtime.rows.prepared_rows import PreparedBatch
from asyncstate.state import ColumnStateDescriptor
from asyncstate.state.columnar.state_columns import Columns

STALE_ROWS = "stale_rows_dropped"


def check_sequences(uid: str, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError for a sequence that an input cannot have."""
    for spec in inputs:
        if spec.drop_stale and not spec.sequence:
            raise SchemaError(
                f"operator '{uid}': {spec.name} has drop_stale but no sequence, by which stale rows are recognized; "
                "name its columns, or leave drop_stale out"
            )
        if not spec.sequence:
            continue
        what = f"operator '{uid}': {spec.name} has a sequence"
        if spec.broadcast:
            raise SchemaError(
                f"{what}, but it is the broadcast input, whose rows keep their order; leave it out"
            )
        if spec.order_by:
            raise SchemaError(
                f"{what} and order_by; put the columns of the sequence after the event time in order_by, which orders "
                "rows across micro-batches"
            )
        for name in spec.sequence:
            try:
                check_key_type(name, spec.column(name).type)
            except SchemaError as error:
                raise SchemaError(f"{what}: {error}") from error


class SequenceFilter:
    """The highest sequence of each key of one input."""

    def __init__(self, context: OperatorContext, spec: InputSpec, index: int) -> None:
        name = f"sequence of input {index}"
        types = [spec.column(column).type for column in spec.sequence]
        self._state = context.get_state(
            ColumnStateDescriptor(name, pa.schema([pa.field("highest", pa.binary(), nullable=False)]))
        )
        self._sequence = spec.sequence
        self._codec = KeyCodec(types, list(spec.sequence), 1)
        self._rows = RowCodec(pa.schema([field.with_nullable(True) for field in spec.schema]))
        self._stale: Counter = context.counter(STALE_ROWS)

    def newer(
        self, rows: PreparedBatch, keys: KeyBatch, run: Callable[[Callable[[], Any]], None]
    ) -> PreparedBatch:
        """The rows that are not stale. ``rows``: all rows of some keys in this micro-batch, in order of the sequence.

        ``run`` calls a function that returns a future and waits for the future.
        """
        sequences = pa.array(
            self._codec.encode([rows.batch.column(name) for name in self._sequence]), pa.binary()
        )
        kept = np.zeros(rows.batch.num_rows, np.bool_)

        def compare(known: Columns) -> None:
            kept[:] = self._is_newer(sequences, known, keys) & self._is_first(rows)
            self._remember(sequences, keys, kept)

        run(lambda: self._state.async_get(keys).then_accept(compare))
        self._stale.add(len(kept) - int(np.count_nonzero(kept)))
        return rows if kept.all() else rows.filter(kept)

    def _is_newer(self, sequences: pa.Array, known: Columns, keys: KeyBatch) -> npt.NDArray[np.bool_]:
        before = known.columns[0].take(pa.array(keys.inverse))
        newer: npt.NDArray[np.bool_] = (
            pc.fill_null(pc.greater(sequences, before), True).to_numpy(zero_copy_only=False).astype(np.bool_)
        )
        return newer

    def _is_first(self, rows: PreparedBatch) -> npt.NDArray[np.bool_]:
        """False for repeated rows, which are equal to an earlier row in all columns and in kind."""
        encoded = pa.array(self._rows.encode(rows.batch.columns), pa.large_binary())
        codes = encoded.dictionary_encode().indices.to_numpy().astype(np.int64) * 4 + rows.kinds
        first = np.zeros(len(codes), np.bool_)
        first[np.unique(codes, return_index=True)[1]] = True
        return first

    def _remember(self, sequences: pa.Array, keys: KeyBatch, kept: npt.NDArray[np.bool_]) -> None:
        highest = np.full(len(keys), -1, np.int64)
        chosen = np.flatnonzero(kept)
        highest[keys.inverse[chosen]] = chosen  # for repeated indices the last assignment wins
        touched = highest >= 0
        if touched.any():
            self._state.put(keys.select(touched), [sequences.take(pa.array(highest[touched]))])
