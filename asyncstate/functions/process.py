"""Functions of rows, timers and windows.

Owns: ``Function``, its kinds (map, flat map, filter, reduce, process; on one input, two inputs, windows, or with a
broadcast input), ``TimeWindow`` and ``WindowContext``. ``asyncstate.operators`` runs them.
Invariant: abstract classes only; a function sees rows, state and contexts and knows nothing of the engine.
Must not import state, storage, execution, runtime or Spark.

Source: the functions of Flink's DataStream API.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from asyncstate.changelog import RowKind
from asyncstate.flink_names import NameHints
from asyncstate.operator import CallContext, Key, OperatorContext, RecordContext, Row, Timer


class Function(NameHints, ABC):
    """Base of all functions: the life cycle, which is that of an operator.

    A function is pickled for every micro-batch: keep parameters in ``__init__``, and declare state in ``open``. State
    belongs to the key of the current row (or window, or timer). Each method may return its result, return a StateFuture
    of it, or be an ``async def`` that awaits StateFutures.

    A returned *row* is a tuple or Row (one value per column), a dict (one value per column name), or, for an output of
    one column, the value itself. Times are int64 microseconds.
    """

    accepts_changelog: ClassVar[bool] = False
    """True for functions that can retract rows. State that follows the rows it saw is wrong as soon as one of them is
    retracted, so a changelog is refused unless the function declares support for it."""

    def open(self, context: OperatorContext) -> None:
        """Declare state with ``context.get_state``; first on the driver, without a store, then in each task."""

    def close(self) -> None:
        """Release what ``open`` took; called also when the batch fails."""

    async def open_calls(self) -> None:
        """Make what ``ctx.call`` functions share (an HTTP client, a connection pool); on their event loop, before the
        task's first call."""

    async def close_calls(self) -> None:
        """Close what ``open_calls`` made; on the same event loop, when the task ends or fails."""


# -- one input ------------------------------------------------------------------------------------------


class MapFunction(Function):
    """One row out for each row in."""

    @abstractmethod
    def map(self, row: Row) -> Any:
        """The output row. Over a changelog it has the kind of ``row``."""


class FlatMapFunction(Function):
    """Any number of rows out for each row in."""

    @abstractmethod
    def flat_map(self, row: Row) -> Any:
        """An iterable of output rows, a StateIterator of them, or None for no row. May be a generator."""


class FilterFunction(Function):
    """Keeps or drops rows."""

    @abstractmethod
    def filter(self, row: Row) -> Any:
        """True for rows to keep."""


class ReduceFunction(Function):
    """Combines the rows of a key, two at a time."""

    @abstractmethod
    def reduce(self, a: Row, b: Row) -> Any:
        """Combine ``a``, the result of the rows so far, and the next row ``b`` into one row of the same columns."""


class KeyedProcessFunction(Function):
    """Rows and timers, with everything that an operator may do."""

    @abstractmethod
    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a row; emit rows with ``ctx.emit``. ``ctx.row_kind`` is the row's kind."""

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """Handle a timer of ``ctx.key`` that is due."""


# -- two inputs with the same key -----------------------------------------------------------------------


class CoMapFunction(Function):
    """One row out for each row of either input; the two share their state."""

    @abstractmethod
    def map1(self, row: Row) -> Any:
        """The output row for a row of input 0."""

    @abstractmethod
    def map2(self, row: Row) -> Any:
        """The output row for a row of input 1."""


class CoFlatMapFunction(Function):
    """Any number of rows out for each row of either input; the two share their state."""

    @abstractmethod
    def flat_map1(self, row: Row) -> Any:
        """Like ``FlatMapFunction.flat_map``, for a row of input 0."""

    @abstractmethod
    def flat_map2(self, row: Row) -> Any:
        """Like ``FlatMapFunction.flat_map``, for a row of input 1."""


class KeyedCoProcessFunction(Function):
    """Rows of two inputs, and timers; the two inputs share state and timers."""

    @abstractmethod
    def process1(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a row of input 0."""

    @abstractmethod
    def process2(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a row of input 1."""

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """Handle a timer of ``ctx.key`` that is due."""


class KeyedBroadcastProcessFunction(Function):
    """Keyed rows (input 0) with a broadcast input (input 1) that every partition sees in full."""

    notify_stateful_sets: ClassVar[bool] = False
    """True: ``process_notification`` is called for each key with state, for every broadcast row."""

    @abstractmethod
    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a keyed row; broadcast state can be read but not written."""

    @abstractmethod
    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a broadcast row: write broadcast state. There is no key: keyed state, timers and emit are refused."""

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """Handle a timer of ``ctx.key`` that is due."""

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a broadcast row for ``ctx.key``, a key with state; called after ``process_broadcast``."""
        raise NotImplementedError(
            f"{type(self).__name__} sets notify_stateful_sets but has no process_notification method"
        )


# -- windows --------------------------------------------------------------------------------------------


class TimeWindow(NamedTuple):
    """A window [start, end), microseconds."""

    start: int
    end: int


class WindowContext(CallContext, Protocol):
    """A window of a key that fires."""

    @property
    def key(self) -> Key:
        """The values of the key columns: a tuple, whose values are also available by the columns' names (those of the
        first keyed input)."""

    @property
    def window(self) -> TimeWindow:
        """The window."""

    @property
    def window_namespace(self) -> int:
        """The namespace of this window in a state declared with ``namespaced=True``: ``state.at(...)``.

        StateAccessError for session windows: they merge, and such a state would have to merge with them.
        """

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        """Emit one row of the declared output, or of the side output ``output``; see ``RecordContext.emit``."""


class WindowFunction(Function):
    """Computes the result of a window's rows when it fires."""

    @abstractmethod
    def apply(self, key: Key, window: TimeWindow, rows: Sequence[Row]) -> Any:
        """An iterable of output rows, or None for no row, as for ``FlatMapFunction.flat_map``."""


class ProcessWindowFunction(Function):
    """Computes the result of a window's rows, with a context: state of the key and of the window, times, ``emit``."""

    @abstractmethod
    def process(self, key: Key, ctx: WindowContext, rows: Sequence[Row]) -> Any:
        """Handle a window that fires; called again with all rows for each late row that is allowed."""

    def clear(self, ctx: WindowContext) -> Any:
        """Clear the state in ``ctx.window_namespace``: the window will not fire again."""
