"""A record in flight: its key, its row and its output.

Owns: ``Record``, the implementation of ``operator.RecordContext``, its kind ``BroadcastRecord``, and ``BatchFrame``,
what all records of a micro-batch share.
Invariant: a record emits, and calls to the outside, only while its own chain runs.
Must not import storage.

Source: Flink's ``RecordContext``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.errors import SchemaError, StateAccessError
from asyncstate.flink_names import hint_for
from asyncstate.futures import StateFuture
from asyncstate.operator import Key, Timers, unknown_output
from asyncstate.row_shape import RowShape

if TYPE_CHECKING:
    from asyncstate.execution.controller import ExecutionController

OutputRow = tuple[RowKind, tuple[Any, ...], bytes]
"""A row's kind, its values, and the encoded key under which it was emitted."""


class SideRow(NamedTuple):
    """A row for a side output, among the rows of the main one."""

    kind: RowKind
    values: tuple[Any, ...]
    key: bytes
    output: str


AnyRow = OutputRow | SideRow

_INSERT = RowKind.INSERT


class BatchFrame:
    """The data common to all records of a micro-batch: times in microseconds, timers, the names of the key columns, the
    output and the side outputs that may be written."""

    __slots__ = (
        "caller",
        "key_type",
        "output",
        "processing_time",
        "side_outputs",
        "timers",
        "watermark",
        "width",
    )

    def __init__(
        self,
        watermark: int,
        processing_time: int,
        timers: Timers,
        output: pa.Schema,
        caller: ExecutionController | None = None,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        key_type: type[Key] = Key,
    ) -> None:
        self.caller = caller
        self.key_type = key_type
        self.side_outputs = {
            name: RowShape(schema, f"side output '{name}'", emits=True)
            for name, schema in (side_outputs or {}).items()
        }
        self.watermark = watermark
        self.processing_time = processing_time
        self.timers = timers
        self.output = RowShape(output, "the output", emits=True)
        self.width = -1 if self.output.nested else self.output.width
        """How many values ``emit`` takes as they are; below 0: it has to copy them."""


class Record:
    """One row, timer or watermark on its way through an operator."""

    may_write_broadcast: ClassVar[bool] = False
    error: BaseException | None = None
    """Why the row goes to the side output of rows that failed; None: it does not."""

    __slots__ = (
        "coroutine",
        "emitted",
        "encoded_key",
        "following",
        "frame",
        "group",
        "input_index",
        "item",
        "key_values",
        "out",
        "pending",
        "returned",
        "row_kind",
        "timestamp",
        "work",
    )

    def __init__(
        self,
        frame: BatchFrame,
        group: bytes,
        encoded_key: bytes,
        key: tuple[Any, ...],
        work: Callable[[Any, Record], Any],
        item: Any,
        input_index: int = 0,
        row_kind: RowKind = RowKind.INSERT,
        timestamp: int | None = None,
    ) -> None:
        self.frame = frame
        self.group = group
        self.encoded_key = encoded_key
        self.key_values = key
        self.work = work
        self.item = item
        self.input_index = input_index
        self.row_kind = row_kind
        self.timestamp = timestamp
        self.out: list[AnyRow] | None = None
        # The asynchronous controller's own; set by it, because most records of a sync batch need none of them.
        self.pending: int
        self.emitted: list[AnyRow]
        self.following: Record | None
        self.returned: StateFuture[Any] | None
        self.coroutine: CoroutineType[Any, Any, Any] | None

    if not TYPE_CHECKING:  # type checkers must see the declarations only

        def __getattr__(self, name):
            raise AttributeError(hint_for("ctx", name))

    @property
    def key(self) -> Key:
        """See ``RecordContext``: made when it is asked for first, which most records never do."""
        key = self.key_values
        if type(key) is tuple:
            key = self.key_values = self.frame.key_type(key)
        return key  # type: ignore[return-value]

    @property
    def watermark(self) -> int:
        """The watermark of this micro-batch, microseconds."""
        return self.frame.watermark

    @property
    def processing_time(self) -> int:
        """The time at which the driver started this micro-batch, microseconds; the same for all partitions."""
        return self.frame.processing_time

    @property
    def timers(self) -> Timers:
        """Timers of this record's key."""
        return self.frame.timers

    def accepts(self, error: BaseException) -> bool:
        """Whether ``error`` is kept in ``error`` and does not fail the micro-batch."""
        return False

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        """Emit one row of the output schema, or of that of the side output ``output``."""
        out = self.out
        if out is None:
            raise StateAccessError(
                f"the record with key {self.key!r} emitted a row after it had ended; "
                "emit inside process() or in a callback chained to its state futures"
            )
        if kind is not _INSERT and type(kind) is not RowKind:
            raise SchemaError(
                f"emit() got the kind {kind!r}; give one of RowKind.INSERT (+I), UPDATE_BEFORE (-U), UPDATE_AFTER "
                "(+U) and DELETE (-D). To emit a column named kind, pass a dict: emit({...})"
            )
        if output is not None:
            out.append(SideRow(kind, self._side(output).kept(values, columns), self.encoded_key, output))
            return
        # One value for one column is accepted as it is: whether it is a row shows when its column is made.
        if columns or len(values) != self.frame.width:
            values = self.frame.output.kept(values, columns)
        out.append((kind, values, self.encoded_key))  # bytes: no work for the garbage collector

    def _side(self, output: str) -> RowShape:
        shape = self.frame.side_outputs.get(output)
        if shape is None:
            raise unknown_output(output, self.frame.side_outputs)
        return shape

    def call(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        timeout_seconds: Any = None,
        **keywords: Any,
    ) -> StateFuture[Any]:
        """A future of ``function(*arguments, **keywords)``, a call to the outside: HTTP, a database."""
        caller = self.frame.caller
        if caller is None:
            raise StateAccessError(f"the record with key {self.key!r} has no controller for outside calls")
        return caller.call(self, function, arguments, timeout_seconds, keywords)


class BroadcastRecord(Record):
    """A row of the broadcast input: it has no key, emits nothing, and alone may write broadcast state."""

    may_write_broadcast: ClassVar[bool] = True

    __slots__ = ()

    def __init__(
        self,
        frame: BatchFrame,
        work: Callable[[Any, Record], Any],
        item: Any,
        input_index: int,
        row_kind: RowKind,
        timestamp: int | None,
    ) -> None:
        super().__init__(frame, b"", b"", (), work, item, input_index, row_kind, timestamp)
        self.group = self.encoded_key = None  # type: ignore[assignment]  # no store key can be built with them

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        """Refused: every partition would emit the row."""
        raise StateAccessError(
            "a row of the broadcast input emitted a row, which every partition would emit; keep it in a "
            "BroadcastState and emit in process(), or set notify_stateful_sets and emit in process_notification()"
        )
