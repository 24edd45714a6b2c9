"""Ordered inputs: rows wait in state until the watermark has passed them, and come in the order asked for.

Owns: the store layout of waiting rows, their declaration in the checkpoint, what is late.
Invariant: rows of an ordered input reach the operator in the order of its sort keys, ties in order of arrival,
over all micro-batches: a row that can no longer come in order is dropped and counted.
Must not import Spark or execution.

Layout, where id is 3 for the first input, 4 for the second, 5 for the third:

* ``[key group: 2][id][time: 8][other sort columns][batch id: 8][number: 4]`` -> ``[row kind: 1][row]``

Sort columns are in the key codec, descending ones with all bits inverted. Batch id and number (of the row in its
partition, input and micro-batch) are the order of arrival; where rescaling brings together rows that two partitions
have numbered, the key group is last. The row is in the row codec; the key is read from it.

Source: the ORDER BY clause of Flink's process table functions, and its temporal sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import (
    KeyCodec,
    RowCodec,
    check_key_type,
    encode_namespace,
    prefix_end,
    schema_from_text,
    schema_to_text,
    type_to_text,
)
from asyncstate.errors import SchemaError, StateDeclarationError
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BundleOperator,
    Counter,
    InputSpec,
    Operator,
    SortKey,
)
from asyncstate.requests import Page, StateSink
from asyncstate.runtime.rows import PreparedBatch, microseconds
from asyncstate.state import merged_entries, pages_of
from asyncstate.storage import StateSpec

ORDERED_ROWS: Final = (3, 4, 5)
"""Reserved state ids, one an input."""

_KIND: Final = "ordered"
_GROUP_BYTES: Final = 2
_ID_AT: Final = _GROUP_BYTES
_TIME_AT: Final = _ID_AT + 1
_SORT_AT: Final = _TIME_AT + 8
_INVERTED: Final = bytes(range(255, -1, -1))  # a table for bytes.translate
_KIND_BYTES: Final = tuple(bytes([kind]) for kind in range(4))
_RANGE_PAGE_ROWS: Final = 64  # held for each key group and input

Turns = tuple[list[int], list[PreparedBatch]]
"""The inputs of rows, one entry a row in the order of delivery; and the rows of each input, in this order."""


def check_ordered(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError for an order that ``operator`` or the input cannot have."""
    for index, spec in enumerate(inputs):
        if not spec.order_by:
            continue
        what = f"operator '{uid}': {spec.name} has order_by"
        if isinstance(operator, BundleOperator):
            raise SchemaError(
                f"{what}, but {type(operator).__name__} works on bundles of rows; only a RecordOperator takes rows in "
                "order, so leave order_by out"
            )
        if spec.broadcast:
            raise SchemaError(
                f"{what}, but it is the broadcast input; its rows come first, leave order_by out"
            )
        if index == operator.first_input:
            raise SchemaError(
                f"{what}, but it is the first_input of {type(operator).__name__}; rows that wait for their order come "
                "behind all others, so leave order_by out"
            )
        if index >= len(ORDERED_ROWS):
            raise SchemaError(f"{what}, but only the first {len(ORDERED_ROWS)} inputs can have one")
        for sort in spec.order_by:
            try:
                check_key_type(sort.column, spec.column(sort.column).type)
            except SchemaError as error:
                raise SchemaError(f"{what}: {error}") from error


def ordered_states(uid: str, inputs: Sequence[InputSpec], stored: Sequence[StateSpec]) -> list[StateSpec]:
    """How the waiting rows of ``inputs`` are declared in the checkpoint.

    Columns may have been added since (null in rows that wait). Raises SchemaError for any other change of the
    columns, and StateDeclarationError where the order was another one, for rows may wait in that order.
    """
    before = {spec.id: spec for spec in stored if spec.kind == _KIND}
    states = []
    for index, spec in enumerate(inputs):
        known = before.pop(ORDERED_ROWS[index], None) if index < len(ORDERED_ROWS) else None
        if spec.order_by or known is not None:
            _check_same_order(uid, spec, known)
            states.append(_state_spec(uid, index, spec, known))
    return states


class OrderedInputs:
    """The waiting rows of one partition: what the rows of ordered inputs go through."""

    def __init__(
        self,
        sink: StateSink,
        inputs: Sequence[InputSpec],
        states: Sequence[StateSpec],
        codecs: Sequence[KeyCodec],
        batch_id: int,
        previous_watermark: int,
        late: Counter,
    ) -> None:
        by_id = {spec.id: spec for spec in states}
        self._sink = sink
        self._previous_watermark = previous_watermark
        self._late = late
        self._inputs = {
            index: _OrderedInput(index, spec, by_id[ORDERED_ROWS[index]], codecs[index], batch_id)
            for index, spec in enumerate(inputs)
            if spec.order_by
        }

    def __bool__(self) -> bool:
        return bool(self._inputs)

    def __contains__(self, input_index: int) -> bool:
        return input_index in self._inputs

    def add(self, prepared: PreparedBatch) -> None:
        """Let rows wait; those that the watermark had passed before this micro-batch are dropped and counted."""
        assert prepared.times is not None, "an ordered input has an event time"
        if self._previous_watermark != MIN_WATERMARK:
            in_time = prepared.times > self._previous_watermark
            if not in_time.all():
                self._late.add(int(np.count_nonzero(~in_time)))
                prepared = prepared.filter(in_time)
        if prepared.batch.num_rows:
            self._sink.put_many(*self._inputs[prepared.input_index].entries(prepared))

    def due(self, groups: range, until: int, page_size: int) -> Iterator[Turns]:
        """Take out rows with time <= ``until``, by (time, input, other sort keys, arrival), some at a time."""
        ranges = [
            waiting.range(group.to_bytes(_GROUP_BYTES, "big"), until)
            for waiting in self._inputs.values()
            for group in groups
        ]
        entries = merged_entries(self._sink, ranges, _RANGE_PAGE_ROWS, _delivery_order)
        for page in pages_of(entries, page_size):
            self._sink.delete_many([key for key, _ in page])
            yield self._turns(page)

    def _turns(self, page: Page) -> Turns:
        turns = [key[_ID_AT] - ORDERED_ROWS[0] for key, _ in page]
        values: dict[int, list[bytes]] = {}
        for index, (_, value) in zip(turns, page, strict=True):
            values.setdefault(index, []).append(value)
        return turns, [self._inputs[index].prepared(rows) for index, rows in values.items()]


class _OrderedInput:
    """Rows of one input as entries of the store and back."""

    def __init__(
        self, index: int, spec: InputSpec, state: StateSpec, key_codec: KeyCodec, batch_id: int
    ) -> None:
        self._index = index
        self._spec = spec
        self._id = state.id
        self._key_codec = key_codec
        self._batch_id = batch_id
        self._arrived = 0
        self._rows = _row_codec(spec.name, spec, state.types)
        self._sorts = [
            (sort, KeyCodec([spec.column(sort.column).type], [sort.column], 1)) for sort in _fine(spec)
        ]

    def entries(self, prepared: PreparedBatch) -> tuple[list[bytes], list[bytes]]:
        """Store keys and values."""
        batch = prepared.batch
        columns = [batch.column(name) for name in self._spec.key]
        groups = self._key_codec.groups(columns) if columns else np.zeros(batch.num_rows, np.int32)
        assert prepared.times is not None
        heads = _packed(batch.num_rows, {"group": ">u2", "id": "u1", "time": ">u8"})
        heads["group"], heads["id"] = groups, self._id
        heads["time"] = prepared.times.view(np.uint64) ^ np.uint64(1 << 63)
        tails = _packed(batch.num_rows, {"batch": ">u8", "number": ">u4"})
        tails["batch"] = self._batch_id
        tails["number"] = np.arange(self._arrived, self._arrived + batch.num_rows)
        self._arrived += batch.num_rows
        fields = [_sort_field(sort, codec, batch.column(sort.column)) for sort, codec in self._sorts]
        keys = list(map(b"".join, zip(_items(heads), *fields, _items(tails), strict=True)))
        kinds = map(_KIND_BYTES.__getitem__, prepared.kinds.tolist())
        rows = self._rows.encode(batch.columns)
        return keys, [kind + row for kind, row in zip(kinds, rows, strict=True)]

    def range(self, group: bytes, until: int) -> tuple[bytes, bytes]:
        """Where the rows of a key group with time <= ``until`` lie."""
        start = group + bytes([self._id])
        return start, prefix_end(start) if until >= MAX_WATERMARK else start + encode_namespace(until + 1)

    def prepared(self, values: list[bytes]) -> PreparedBatch:
        """The rows of stored values."""
        columns, _ = self._rows.decode([value[1:] for value in values])
        batch = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
        kinds = np.fromiter((value[0] for value in values), np.int8, len(values))
        times = microseconds(batch.column(self._spec.event_time))
        return PreparedBatch(batch, kinds, times, self._index, 0)


def _fine(spec: InputSpec) -> tuple[SortKey, ...]:
    """The sort keys behind the time in microseconds: the event time once more if it is finer than that."""
    return spec.order_by if spec.column(spec.order_by[0].column).type.unit == "ns" else spec.order_by[1:]


def _sort_field(sort: SortKey, codec: KeyCodec, column: pa.Array) -> list[bytes]:
    fields = codec.encode([column])
    return [field.translate(_INVERTED) for field in fields] if sort.descending else fields


def _packed(num_rows: int, fields: dict[str, str]) -> npt.NDArray[np.void]:
    return np.zeros(num_rows, np.dtype(list(fields.items())))


def _items(packed: npt.NDArray[np.void]) -> list[bytes]:
    items: list[bytes] = packed.view(f"V{packed.dtype.itemsize}").tolist()
    return items


def _delivery_order(entry: tuple[bytes, bytes]) -> bytes:
    key = entry[0]
    return key[_TIME_AT:_SORT_AT] + key[_ID_AT:_TIME_AT] + key[_SORT_AT:] + key[:_GROUP_BYTES]


# -- declaration ------------------------------------------------------------------------------------------


def _order_text(spec: InputSpec) -> str:
    """With the types: a wider integer would sort differently among the rows that wait."""
    return ", ".join(
        f"{sort.column} {type_to_text(spec.column(sort.column).type)}{' descending' if sort.descending else ''}"
        for sort in spec.order_by
    )


def _check_same_order(uid: str, spec: InputSpec, known: StateSpec | None) -> None:
    if known is not None and known.types["order"] != _order_text(spec):
        raise StateDeclarationError(
            f"operator '{uid}': {spec.name} was ordered by {known.types['order']} and is ordered by "
            f"{_order_text(spec) or 'nothing'}, but rows may wait in the old order; ask for that order again, or give "
            "the operator a new uid to start with empty state"
        )


def _state_spec(uid: str, index: int, spec: InputSpec, known: StateSpec | None) -> StateSpec:
    rows = schema_to_text(_row_schema(spec))
    types = {"order": _order_text(spec), "row": rows}
    if known is not None:
        versions = {name: text for name, text in known.types.items() if name not in types}
        if known.types["row"] != rows:
            versions[_version_name(len(versions))] = known.types["row"]
        types |= versions
    _row_codec(f"operator '{uid}', rows that wait in the order of {spec.name}", spec, types)
    return StateSpec(id=ORDERED_ROWS[index], name=f"ordered rows of input {index}", kind=_KIND, types=types)


def _row_codec(owner: str, spec: InputSpec, types: dict[str, str]) -> RowCodec:
    """Writes the newest version of the rows and reads all; SchemaError if they cannot be read as the newest."""
    older = [schema_from_text(types[_version_name(number)]) for number in range(len(types) - 2)]
    return RowCodec(_row_schema(spec), older, owner=owner)


def _row_schema(spec: InputSpec) -> pa.Schema:
    """All nullable: whether a column may be null can change from one micro-batch to the next."""
    return pa.schema([field.with_nullable(True) for field in spec.schema])


def _version_name(number: int) -> str:
    return f"row version {number}"
