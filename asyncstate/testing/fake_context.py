"""Call ``process`` of one operator directly, a row at a time.

Owns: ``FakeContext``.
Invariant: states, timers and calls are the real ones, of sync mode over a store in memory; nothing is committed.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from asyncstate.changelog import INSERT_ONLY, RETRACT, RowKind
from asyncstate.codec.times import event_times
from asyncstate.config import resolve
from asyncstate.errors import JobError
from asyncstate.execution import BatchFrame, ExecutionController, Record
from asyncstate.execution.outside_calls import OutsideCalls
from asyncstate.flink_names import hint_for
from asyncstate.futures import StateFuture
from asyncstate.operator import InputSpec, Key, RecordOperator, Row, TimeDomain, Timer, key_type, row_type
from asyncstate.runtime import Keys, check_num_inputs, keys_of_inputs
from asyncstate.runtime.declarations.checks import bound
from asyncstate.runtime.partition.task_context import TaskContext
from asyncstate.runtime.rows.prepared_rows import python_rows, rows_batch
from asyncstate.state import KeyedTimers
from asyncstate.state_backend import StateBackend
from asyncstate.storage import EmptyStore, MemTable
from asyncstate.testing.harness_rows import record_batch, rows_of

_UID = "operator"
_GROUPS = 128


class _Timers(KeyedTimers):
    """The operator's timers, which also records them."""

    def __init__(
        self, sink: StateBackend, uid: str, handled: bool, key: Callable[[], tuple[Any, ...]]
    ) -> None:
        super().__init__(sink, uid, handled)
        self._key = key
        self.noted: list[tuple[tuple[Any, ...], Timer]] = []

    def _register(self, kind: Any, time_us: int, name: str | None, namespace: int | None) -> None:
        super()._register(kind, time_us, name, namespace)
        self._note(Timer(time_us, name, namespace, kind.domain))

    def _delete(self, kind: Any, time_us: int | None, name: str | None, namespace: int | None) -> None:
        super()._delete(kind, time_us, name, namespace)
        self._forget(kind.domain, time_us, name, namespace)

    def delete_all(self) -> None:
        super().delete_all()
        gone = self._key()
        self.noted = [(key, one) for key, one in self.noted if key != gone]

    def _note(self, timer: Timer) -> None:
        self._forget(timer.domain, None if timer.name else timer.time, timer.name, timer.namespace)
        self.noted.append((self._key(), timer))

    def _forget(self, domain: TimeDomain, time: int | None, name: str | None, namespace: int | None) -> None:
        gone = (self._key(), domain, name, namespace)
        self.noted = [
            (key, one)
            for key, one in self.noted
            if (key, one.domain, one.name, one.namespace) != gone or time not in (None, one.time)
        ]


class FakeContext:
    """The context of a record, for tests that call an operator's ``process`` themselves. A context manager.

    ``inputs`` and ``key`` as for ``OperatorHarness``. ``row`` makes a row and makes it the current one; the methods of
    ``RecordContext`` are then those of its record. Futures are settled at once, so an ``async def`` may be awaited in
    any test. ``emitted`` has the emitted rows, ``(row kind, *values)`` with times as integers, ``aside`` those of side
    outputs by name, ``timers_set`` the timers that are registered, as (key, timer), and ``called`` the calls as
    (function, arguments, keywords).
    """

    def __init__(
        self,
        operator: RecordOperator,
        inputs: Any,
        key: Keys,
        *,
        event_time: str | None = None,
        watermark: int = 0,
        processing_time: int = 0,
    ) -> None:
        if not isinstance(operator, RecordOperator):
            raise JobError(f"FakeContext needs a RecordOperator, but got {operator!r}; use OperatorHarness")
        schemas = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        check_num_inputs(_UID, operator, len(schemas))
        keys = keys_of_inputs(_UID, key, len(schemas), operator.broadcast_input)
        changes = RETRACT if operator.accepts_changelog else INSERT_ONLY
        self._specs = [
            InputSpec(schema, keys[i], event_time, changes, f"input {i}") for i, schema in enumerate(schemas)
        ]
        output = bound(_UID, operator, self._specs)
        calls = OutsideCalls(_UID, None, operator.open_calls, operator.close_calls)
        self._controller = ExecutionController(MemTable(EmptyStore(), 0), _UID, {}, calls=calls)
        context = TaskContext(_UID, self._specs, output, resolve({}, {}), self._controller, [])
        operator.open(context)
        self._controller.failures.state_names = {state.id: state.name for state in context.opened()}
        self._operator = operator
        self._output = output
        self.emitted: list[tuple[Any, ...]] = []
        self.aside: dict[str, list[tuple[Any, ...]]] = {name: [] for name in output.side_outputs}
        self.called: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._timers = _Timers(
            self._controller, _UID, operator.handles_timers, lambda: tuple(self._at_hand().key)
        )
        names = key_type(context.key_schema)
        self._frame = BatchFrame(
            watermark,
            processing_time,
            self._timers,
            output.schema,
            self._controller,
            output.side_outputs,
            names,
        )
        self._record: Record | None = None
        self._stack = ExitStack()

    @property
    def timers_set(self) -> list[tuple[tuple[Any, ...], Timer]]:
        """The registered timers, each after its key, in order of registration."""
        return list(self._timers.noted)

    def row(
        self,
        *values: Any,
        input: int = 0,
        kind: RowKind = RowKind.INSERT,
        **columns: Any,
    ) -> Row:
        """A row of an input, by position or by name, which becomes the current one."""
        spec = self._specs[input]
        batch = record_batch([columns if columns else values], spec.schema, spec.name)
        keys = [batch.column(name) for name in spec.key]
        codec = spec.key_codec(_GROUPS)
        group = int(np.asarray(codec.groups(keys))[0]) if keys else 0
        key_values = next(python_rows(batch.select(list(spec.key))))
        time = None if spec.event_time is None else int(event_times(batch.column(spec.event_time))[0])
        encoded = codec.encode(keys)[0] if keys else b""
        made = row_type(spec.schema)(next(python_rows(batch)))
        self._record = Record(
            self._frame,
            group.to_bytes(2, "big"),
            encoded,
            key_values,
            self._operator.process,
            made,
            input,
            kind,
            time,
        )
        self._record.out = []
        self._controller.current = self._record
        return made

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        """See ``RecordContext``. Raises SchemaError for values that do not fit the output, as a job does when it makes
        columns of them."""
        record = self._at_hand()
        record.emit(*values, kind=kind, output=output, **columns)
        assert record.out is not None
        row_kind, row, key = record.out.pop()[:3]
        schema = self._output.schema if output is None else self._output.side_outputs[output]
        changes = self._output.changes_of(output)
        made = rows_batch(_UID, schema, [(row_kind, row, key)], lambda _: tuple(record.key), changes)
        into = self.emitted if output is None else self.aside[output]
        into += rows_of([made])  # as a job sends them downstream

    def call(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        timeout_seconds: Any = None,
        **keywords: Any,
    ) -> StateFuture[Any]:
        """See ``RecordContext``: the function is called at once."""
        self.called.append((function, arguments, keywords))
        return self._at_hand().call(function, *arguments, timeout_seconds=timeout_seconds, **keywords)

    @property
    def key(self) -> Key:
        """The values of the key columns: a tuple, whose values are also available by the columns' names (those of the
        first keyed input)."""
        return self._at_hand().key

    @property
    def input_index(self) -> int:
        """0 or 1: the input the record came from."""
        return self._at_hand().input_index

    @property
    def row_kind(self) -> RowKind:
        """The changelog kind of the record."""
        return self._at_hand().row_kind

    @property
    def timestamp(self) -> int | None:
        """Event time in microseconds; None without an event time column."""
        return self._at_hand().timestamp

    @property
    def watermark(self) -> int:
        """The watermark of this micro-batch, microseconds."""
        return self._frame.watermark

    @property
    def processing_time(self) -> int:
        """The time at which the driver started this micro-batch, microseconds; the same for all partitions."""
        return self._frame.processing_time

    @property
    def timers(self) -> Any:
        """Timers of this record's key."""
        return self._frame.timers

    def _at_hand(self) -> Record:
        if self._record is None:
            raise JobError("FakeContext: there is no current row; create one with row(...)")
        return self._record

    if not TYPE_CHECKING:  # type checkers must see the declarations only

        def __getattr__(self, name):
            raise AttributeError(hint_for("ctx", name))

    def __enter__(self) -> Self:
        self._stack.enter_context(self._controller)
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._stack.__exit__(*error)
        finally:
            self._operator.close()
