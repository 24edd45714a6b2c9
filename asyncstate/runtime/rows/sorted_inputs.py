"""Ordered inputs: rows are buffered in state until the watermark has passed them, and are then processed in order.

Owns: the store layout of buffered rows, their declaration in the checkpoint, which rows are late and which are due.
Invariant: rows of an ordered input reach the operator in the order of its sort keys, ties in order of arrival, over
all micro-batches: a row that is too late for this order is dropped and counted, unless the operator accepts late rows.
Must not import Spark or execution.

Layout, where id is 3 for the first input, 4 for the second, 5 for the third:

* ``[key group: 2][id][time: 8][other sort columns][batch id: 8][number: 4]`` -> ``[row kind: 1][row]``

Rows of a broadcast input are stored under ``BROADCAST_GROUP``, in every partition with equal bytes.

Sort columns are in the key codec, descending ones with all bits inverted. Batch id and number (of the row in its
partition, input and micro-batch) are the order of arrival. If rescaling merges rows that two partitions
have numbered, the key group decides last. The row is in the row codec, and the key is decoded from it.

The time is the event time, shifted so that its bytes sort like the time; it is zero if rows are processed at the end of
the micro-batch or of the input.

Source: the ORDER BY clause of Flink's process table functions, and its temporal sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.codec import (
    BROADCAST_GROUP,
    GROUP_BYTES,
    STATE_ID_AT,
    STATE_PREFIX_BYTES,
    KeyCodec,
    RowCodec,
    check_key_type,
    partitions_of,
    schema_from_text,
    schema_to_text,
    type_to_text,
)
from asyncstate.codec.sorting import rows_by
from asyncstate.codec.times import event_times
from asyncstate.codec.value_columns import LARGE_BINARY, binary_parts, matrix_rows, without_prefix
from asyncstate.errors import CodecError, SchemaError, StateDeclarationError
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BundleOperator,
    Counter,
    InputSpec,
    Operator,
    SortKey,
)
from asyncstate.runtime.rows.bundle_size import BundleSize
from asyncstate.runtime.rows.prepared_rows import PreparedBatch
from asyncstate.runtime.task_spec import TaskSpec
from asyncstate.state.columnar.due_parts import Place, align_scans
from asyncstate.state.columnar.results import Entries
from asyncstate.state.ranges import Range, pages_by_time, ranges_with_entries, up_to_time
from asyncstate.state_backend import Page, StateBackend
from asyncstate.storage import StateSpec

ORDERED_ROWS: Final = (3, 4, 5)
"""Reserved state ids, one per input."""

ORDERED_KIND: Final = "ordered"
_TIME_AT: Final = STATE_PREFIX_BYTES
_SORT_AT: Final = _TIME_AT + 8
_ARRIVAL_BYTES: Final = 12
_INVERTED: Final = bytes(range(255, -1, -1))  # a table for bytes.translate
_KIND_BYTES: Final = 1
_KEY_PARTS: Final = np.dtype(
    [("group", ">u2"), ("id", "u1"), ("time", ">u8"), ("batch", ">u8"), ("number", ">u4")]
)
"""The parts of a store key, except the other sort columns."""
_RANGE_PAGE_ROWS: Final = 64  # in memory per key group and input
_PAGE_ROWS: Final = 10_000  # in memory once
_SAMPLE: Final = 100
_BROADCAST: Final = range(int.from_bytes(BROADCAST_GROUP, "big"), int.from_bytes(BROADCAST_GROUP, "big") + 1)
"""The key group of broadcast rows, in the form that ``due`` takes."""
_FIRST: Final = b"\x00"  # the encoding of a null: below
_LAST: Final = b"\xff"  # or above all values

Turns = tuple[list[int], list[PreparedBatch]]
"""The input indices of rows, one per row in the order of delivery; and the rows of each input, in this order."""


def check_ordered(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError for an order that ``operator`` or the input cannot have."""
    for index, spec in enumerate(inputs):
        order = spec.ordering
        if order is None:
            continue
        what = f"operator '{uid}': {spec.name} has {'order_by' if spec.order_by else 'an order'}"
        if spec.order_by and isinstance(operator, BundleOperator):
            raise SchemaError(
                f"{what}, but {type(operator).__name__} works on bundles and declares an order itself if it needs "
                "one; leave order_by out"
            )
        if index == operator.first_input:
            raise SchemaError(
                f"{what}, but it is the first_input of {type(operator).__name__}; ordered rows are processed "
                "after all others, so it cannot have both"
            )
        if index >= len(ORDERED_ROWS):
            raise SchemaError(f"{what}, but only the first {len(ORDERED_ROWS)} inputs can have one")
        if order.time == "event" and spec.event_time is None:
            raise SchemaError(f"{what} of event time, but no event time; name its event time column")
        for sort in order.then:
            try:
                check_key_type(sort.column, spec.column(sort.column).type)
            except SchemaError as error:
                raise SchemaError(f"{what}: {error}") from error


def ordered_states(uid: str, inputs: Sequence[InputSpec], stored: Sequence[StateSpec]) -> list[StateSpec]:
    """The declarations of the buffered rows of ``inputs`` for the checkpoint.

    Columns may have been added since (null in buffered rows). Raises SchemaError for any other change of the
    columns, and StateDeclarationError if the order has changed, since rows may be buffered in the old order.
    """
    before = {spec.id: spec for spec in stored if spec.kind == ORDERED_KIND}
    states = []
    for index, spec in enumerate(inputs):
        known = before.pop(ORDERED_ROWS[index], None) if index < len(ORDERED_ROWS) else None
        if spec.ordering is not None or known is not None:
            _check_same_order(uid, spec, known)
            states.append(_state_spec(uid, index, spec, known))
    return states


class OrderedInputs:
    """The buffered rows of all ordered inputs of one partition."""

    def __init__(
        self,
        sink: StateBackend,
        spec: TaskSpec,
        states: Sequence[StateSpec],
        codecs: Sequence[KeyCodec],
        late: Callable[[], Counter],
    ) -> None:
        """``states``: the result of ``ordered_states``; ``late`` creates the counter of late rows."""
        by_id = {state.id: state for state in states}
        self._sink = sink
        self._previous_watermark = spec.previous_watermark
        self._watermark = spec.watermark
        self._inputs = {
            index: _SortedBuffer(index, given, by_id[ORDERED_ROWS[index]], codecs[index], spec)
            for index, given in enumerate(spec.inputs)
            if given.ordering is not None
        }
        self._late = {index: late() for index, waiting in self._inputs.items() if waiting.drops_late}

    def __bool__(self) -> bool:
        return bool(self._inputs)

    def __contains__(self, input_index: int) -> bool:
        return input_index in self._inputs

    def add(self, prepared: PreparedBatch, counts: bool = True) -> PreparedBatch | None:
        """Buffer rows until the watermark. Rows already late at the previous watermark are counted and returned (None
        if there are none), unless late rows are to be delivered. Only rows ordered by event time can be late.

        ``counts`` is False if another partition counts and returns them.
        """
        index = prepared.input_index
        is_late = self._late_rows(prepared) if index in self._late else None
        late = None
        if is_late is not None:
            if counts:
                self._late[index].add(int(np.count_nonzero(is_late)))
                late = prepared.filter(is_late)
            prepared = prepared.filter(~is_late)
        if prepared.batch.num_rows:
            self._sink.put_many(*self._inputs[index].entries(prepared))
        return late

    def _late_rows(self, prepared: PreparedBatch) -> npt.NDArray[np.bool_] | None:
        """Which rows (n) are late; None if no row is."""
        assert prepared.times is not None, "an ordered input has an event time"
        if self._previous_watermark == MIN_WATERMARK:
            return None
        late: npt.NDArray[np.bool_] = prepared.times <= self._previous_watermark
        return late if late.any() else None

    def due_broadcast(self, index: int, page_size: int) -> Iterator[PreparedBatch]:
        """Remove the due rows of a broadcast input from the store and yield them in order, page by page."""
        waiting = self._inputs[index]
        for page in waiting.pages(self._sink, _BROADCAST, self._watermark, page_size):
            self._sink.delete_many(page.store_keys)
            yield waiting.prepared(page.values)

    def due(self, groups: range, page_size: int) -> Iterator[Turns]:
        """Remove the due rows of other inputs from the store and yield them by (time, input, other sort keys, arrival),
        page by page."""
        ranges = sorted(
            bounds
            for waiting in self._inputs.values()
            if not waiting.is_broadcast
            for bounds in waiting.due(groups, self._watermark)
        )
        for page in pages_by_time(self._sink, ranges, page_size, _delivery_order, _RANGE_PAGE_ROWS):
            self._sink.delete_many([key for key, _ in page])
            yield self._turns(page)

    def _turns(self, page: Page) -> Turns:
        turns = [key[STATE_ID_AT] - ORDERED_ROWS[0] for key, _ in page]
        values: dict[int, list[bytes]] = {}
        for index, (_, value) in zip(turns, page, strict=True):
            values.setdefault(index, []).append(value)
        return turns, [self._inputs[index].prepared(rows) for index, rows in values.items()]

    def due_parts(self, groups: range, size: BundleSize) -> Iterator[list[PreparedBatch | None]]:
        """Remove the due rows from the store and yield them by (key group, time, other sort keys, arrival), in parts
        that are split at the same positions: per input its rows, or None.

        Rows of the same key group and time are in one part. Without a time, rows of a single input need to be together
        only if they are equal in their order, and if the input is insert-only not even then.
        """
        page = min(size.rows_max, _PAGE_ROWS)
        scans = [
            waiting.pages(self._sink, groups, self._watermark, page) for waiting in self._inputs.values()
        ]
        places = [waiting.place for waiting in self._inputs.values()]
        place = places[0] if len(places) == 1 else _time_place
        for pieces in align_scans(scans, place, _Entries([], []), lambda page: size.rows_of(page.bytes_each)):
            parts: list[PreparedBatch | None] = [None] * (max(self._inputs) + 1)
            for (index, waiting), piece in zip(self._inputs.items(), pieces, strict=True):
                if piece.store_keys:
                    self._sink.delete_many(piece.store_keys)
                    parts[index] = waiting.prepared(piece.values)
            yield parts


@dataclass(frozen=True)
class _Entries(Entries):
    """Stored rows (n) with their store keys."""

    values: list[bytes]

    @property
    def bytes_each(self) -> float:
        """Mean length of a value, estimated from the first ones."""
        some = self.values[:_SAMPLE]
        return sum(map(len, some)) / len(some)


def _time_place(key: bytes) -> bytes:
    return key[:STATE_ID_AT] + key[_TIME_AT:_SORT_AT]


def _order_place(key: bytes) -> bytes:
    return key[:-_ARRIVAL_BYTES]


def _own_place(key: bytes) -> bytes:
    return key


class _SortedBuffer:
    """Converts rows of one input to store entries and back."""

    def __init__(
        self,
        index: int,
        spec: InputSpec,
        state: StateSpec,
        key_codec: KeyCodec,
        task: TaskSpec,
    ) -> None:
        assert spec.ordering is not None
        self.order = spec.ordering
        self.drops_late = self.order.time == "event" and self.order.late == "drop"
        without_time = _order_place if spec.changelog else _own_place
        self.place: Place = _time_place if self.order.time == "event" else without_time
        """Maps a store key to a position; rows that must be in the same part share one."""
        self.is_broadcast = spec.broadcast
        self._index = index
        self._spec = spec
        self._id = state.id
        self._key_codec = key_codec
        self._task = task
        self._arrived: dict[int, int] = {}
        self._rows = _row_codec(spec.name, spec, state.types)
        self._sorts = [
            (sort, KeyCodec([spec.column(sort.column).type], [sort.column], 1)) for sort in _fine(spec)
        ]

    def entries(self, prepared: PreparedBatch) -> tuple[list[bytes], list[bytes]]:
        """Store keys and values, nearly sorted; sorting columns here is faster than sorting bytes later."""
        columns = [prepared.batch.column(name) for name in self._spec.key]
        no_key = _BROADCAST.start if self.is_broadcast else 0
        groups = (
            self._key_codec.groups(columns) if columns else np.full(prepared.batch.num_rows, no_key, np.int32)
        )
        times = self._times(prepared)
        order = rows_by(groups, times)
        prepared = prepared.take(order)
        batch = prepared.batch
        parts = np.zeros(len(order), _KEY_PARTS)
        parts["group"], parts["id"], parts["time"] = groups[order], self._id, times[order]
        parts["batch"], parts["number"] = self._task.batch_id, self._arrivals(groups)[order]
        kinds = prepared.kinds.view(np.uint8).reshape(-1, 1)
        values = self._rows.encode(batch.columns, kinds, batch.num_rows)
        matrix = parts.view(np.uint8).reshape(len(order), _KEY_PARTS.itemsize)
        if not self._sorts:
            return matrix_rows(matrix), values
        fields = [_sort_field(sort, codec, batch.column(sort.column)) for sort, codec in self._sorts]
        heads, tails = matrix_rows(matrix[:, :_SORT_AT]), matrix_rows(matrix[:, _SORT_AT:])
        return list(map(b"".join, zip(heads, *fields, tails, strict=True))), values

    def _arrivals(self, groups: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """The numbers of rows (n) by their key groups (n): each partition numbers its own."""
        task = self._task
        owners = partitions_of(groups, task.parallelism, task.max_parallelism)
        counts = np.bincount(owners)
        numbers = np.empty(len(groups), np.int64)
        for owner in np.flatnonzero(counts).tolist():
            first, count = self._arrived.get(owner, task.first_arrival), int(counts[owner])
            numbers[owners == owner] = np.arange(first, first + count)
            self._arrived[owner] = first + count
        return numbers

    def _times(self, prepared: PreparedBatch) -> npt.NDArray[np.uint64]:
        if self.order.time != "event":
            return np.zeros(prepared.batch.num_rows, np.uint64)
        assert prepared.times is not None, "an input in order of event time has one"
        return prepared.times.view(np.uint64) ^ np.uint64(1 << 63)

    def due(self, groups: range, watermark: int) -> list[Range]:
        """The store ranges of the due rows, one per key group."""
        time = self.order.time
        if watermark < MAX_WATERMARK and (time == "end" or (time == "event" and watermark == MIN_WATERMARK)):
            return []
        return up_to_time(bytes([self._id]), groups, watermark if time == "event" else MAX_WATERMARK)

    def pages(self, sink: StateBackend, groups: range, watermark: int, page_size: int) -> Iterator[_Entries]:
        """The due entries, by key group and store key."""
        for pages in ranges_with_entries(sink, self.due(groups, watermark), page_size):
            for page in pages:
                keys, values = zip(*page, strict=True)
                yield _Entries(list(keys), list(values))

    def prepared(self, values: list[bytes]) -> PreparedBatch:
        """Decode stored values to rows."""
        stored = pa.array(values, LARGE_BINARY)
        offsets, data = binary_parts(stored)
        if bool((offsets[1:] == offsets[:-1]).any()):
            raise CodecError(
                f"{self._spec.name}: a stored buffered row is empty; restore the checkpoint from an older version"
            )
        columns, _ = self._rows.decode(without_prefix(stored, _KIND_BYTES))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
        kinds = data[offsets[:-1]].view(np.int8)
        event_time = self._spec.event_time
        times = None if event_time is None else event_times(batch.column(event_time))
        return PreparedBatch(batch, kinds, times, self._index, 0)


def _fine(spec: InputSpec) -> tuple[SortKey, ...]:
    """The sort keys after the time in microseconds: first the event time again if it has a finer unit."""
    order = spec.ordering
    assert order is not None
    if order.time == "event" and spec.column(_event_time(spec)).type.unit == "ns":
        return (SortKey(_event_time(spec)), *order.then)
    return order.then


def _event_time(spec: InputSpec) -> str:
    assert spec.event_time is not None, "an input in order of event time has one"
    return spec.event_time


def _sort_field(sort: SortKey, codec: KeyCodec, column: pa.Array) -> list[bytes]:
    fields = codec.encode([column])
    if sort.descending:
        fields = [field.translate(_INVERTED) for field in fields]
    if column.null_count and sort.nulls_first is not None:
        null = _FIRST if sort.nulls_first else _LAST
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            fields[row] = null
    return fields


def _delivery_order(entry: tuple[bytes, bytes]) -> bytes:
    key = entry[0]
    return key[_TIME_AT:_SORT_AT] + key[STATE_ID_AT:_TIME_AT] + key[_SORT_AT:] + key[:GROUP_BYTES]


# -- declaration ------------------------------------------------------------------------------------------


def _order_text(spec: InputSpec) -> str:
    """The order as text, with types: a wider integer would sort differently among buffered rows."""
    order = spec.ordering
    if order is None:
        return ""
    first = {"processing": "processing time", "end": "the end of the input"}
    times = [first[order.time]] if order.time in first else [_sort_text(SortKey(_event_time(spec)), spec)]
    return ", ".join([*times, *(_sort_text(sort, spec) for sort in order.then)])


def _sort_text(sort: SortKey, spec: InputSpec) -> str:
    nulls = "" if sort.nulls_first is None else f" nulls {'first' if sort.nulls_first else 'last'}"
    kind = type_to_text(spec.column(sort.column).type)
    return f"{sort.column} {kind}{' descending' if sort.descending else ''}{nulls}"


def _check_same_order(uid: str, spec: InputSpec, known: StateSpec | None) -> None:
    if known is not None and known.types["order"] != _order_text(spec):
        raise StateDeclarationError(
            f"operator '{uid}': {spec.name} was ordered by {known.types['order']} and is ordered by "
            f"{_order_text(spec) or 'nothing'}, but buffered rows may be in the old order; restore that order, or "
            "give the operator a new uid to start with empty state"
        )


def _state_spec(uid: str, index: int, spec: InputSpec, known: StateSpec | None) -> StateSpec:
    rows = schema_to_text(_row_schema(spec))
    types = {"order": _order_text(spec), "row": rows}
    if known is not None:
        versions = {name: text for name, text in known.types.items() if name not in types}
        if known.types["row"] != rows:
            versions[_version_name(len(versions))] = known.types["row"]
        types |= versions
    _row_codec(f"operator '{uid}', buffered rows of {spec.name}", spec, types)
    return StateSpec(
        id=ORDERED_ROWS[index], name=f"ordered rows of input {index}", kind=ORDERED_KIND, types=types
    )


def _row_codec(owner: str, spec: InputSpec, types: dict[str, str]) -> RowCodec:
    """A codec that writes the newest row version and reads all; SchemaError if old rows cannot be read as the
    newest."""
    older = [schema_from_text(types[_version_name(number)]) for number in range(len(types) - 2)]
    return RowCodec(_row_schema(spec), older, owner=owner)


def _row_schema(spec: InputSpec) -> pa.Schema:
    """All nullable: whether a column may be null can change from one micro-batch to the next."""
    return pa.schema([field.with_nullable(True) for field in spec.schema])


def _version_name(number: int) -> str:
    return f"row version {number}"
