"""Functions over all rows of a window, once the window is over.

Owns: ``WindowApply`` and ``WindowProcess``; ``operators.process.windows.window_rows`` stores the rows.
Invariant: without allowed lateness each key and window fires once, and none of its state is stored afterwards.
Must not import anything of ``asyncstate`` but ``changelog``, ``durations``, ``errors``, ``functions``, ``operator``,
``row_shape``.

Source: ``apply`` and ``process`` of Flink's ``WindowedStream``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import SchemaLike
from asyncstate.durations import Duration, microseconds
from asyncstate.errors import SchemaError, StateAccessError
from asyncstate.flink_names import hint_for
from asyncstate.functions import (
    Evictor,
    Function,
    ProcessWindowFunction,
    TimeWindow,
    Trigger,
    WindowAssigner,
    WindowFunction,
)
from asyncstate.futures import StateFuture
from asyncstate.growth import WITH_ROWS, StateGrowth, bounded_by
from asyncstate.operator import (
    MAX_WATERMARK,
    InputSpec,
    Key,
    OperatorContext,
    OutputSpec,
    RecordContext,
    Row,
    Timer,
)
from asyncstate.row_shape import RowShape

from ...core.late_rows import check_late_output
from ...core.operator_checks import TimeDomain, check_distinct_names, check_has_time, check_time_domain
from ...core.state_meaning import meaning
from ...window.window_plan import window_fields
from ...window.window_time import WindowTime
from ...window.windows import WINDOW_TIME_US, SessionWindow, Window, check_window
from ..process_operator import FunctionOperator, emit_rows, resolved
from .assigners import assigner_of
from .triggered import TriggeredRows
from .triggers import fires_by_watermark, processing_time
from .window_rows import AlignedRows, ProcessSessionRows, WindowCallbacks, WindowRows


class _WindowOperator(FunctionOperator):
    """Stores the rows of windows and runs a function over them."""

    takes_rows_back = False
    output: pa.Schema

    def __init__(
        self,
        function: Any,
        window: Window | None,
        output: SchemaLike | OutputSpec,
        allowed_lateness: Duration,
        time: TimeDomain,
        window_columns: bool,
        late_output: str | None,
        chosen: ChosenElements,
        side_outputs: Mapping[str, SchemaLike] | None = None,
    ) -> None:
        super().__init__(function, output, side_outputs, late_output)
        chosen.check(window, self.owner)
        if window is not None:
            check_window(window, self.owner)
        check_time_domain(time, self.owner)
        check_late_output(late_output, time, self.owner)
        self.window = window
        self.chosen = chosen
        self.allowed_lateness = microseconds(allowed_lateness, self.owner, "allowed_lateness")
        self.time: TimeDomain = time
        self.window_columns = window_columns
        self._check_lateness()
        self.waits_for_watermark = fires_by_watermark(self._trigger())
        self._merges = self.assigner.merges

    def _trigger(self) -> Trigger:
        """The trigger of the windows. Raises SchemaError for one that does not fit them."""
        trigger = self.chosen.trigger or self._default_trigger()
        if self.assigner.merges and not trigger.merges:
            raise SchemaError(
                f"{self.owner}: the trigger {type(trigger).__name__} does not support merging windows; give it merges "
                "= True, merge_states and on_merge, or use another window"
            )
        return trigger

    def _default_trigger(self) -> Trigger:
        trigger = self.assigner.default_trigger()
        return processing_time() if self.time == "processing" and fires_by_watermark(trigger) else trigger

    def _check_lateness(self) -> None:
        if self.allowed_lateness < 0:
            raise SchemaError(f"{self.owner}: allowed_lateness is negative; give 0 or more")
        if self.allowed_lateness and self.time == "processing":
            raise SchemaError(
                f"{self.owner}: allowed_lateness has no effect in processing time, where no row is late; leave it out"
            )

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """See ``Operator``: windows detect late rows themselves."""
        return [None]

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The declared output, after the key and window columns if requested."""
        spec = inputs[0]
        check_has_time(spec, self.time, self.owner)
        if not self.window_columns:
            return self._outputs(self.output, inputs)
        fields = [*spec.key_schema, *window_fields(spec), *self.output]
        check_distinct_names([column.name for column in fields], self.owner)
        return self._outputs(pa.schema(fields), inputs)

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """See ``Operator``: user-defined windows may never be over, and functions may have their own states."""
        if isinstance(self.function, Function) and type(self.function).open is not Function.open:
            return None
        is_own = self.window is None and not self.assigner.merges
        return WITH_ROWS if is_own else bounded_by("window")

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """See ``Operator``: the windows of rows, which of them have expired, and the state of the trigger."""
        return meaning(
            self,
            window=self.assigner if self.window is None else self.window,
            time=self.time,
            allowed_lateness=f"{self.allowed_lateness}us",
            trigger=self._trigger(),
            evictor=self.chosen.evictor,
        )

    def open(self, context: OperatorContext) -> None:
        """Declare the windows' rows, then open the function."""
        time = WindowTime.of(self.time, self.allowed_lateness, context)
        callbacks = WindowCallbacks(self._fire, self._expire, self.late_output)
        self._windows: WindowRows
        if self.chosen.any or self.window is None:
            span = () if self.window is None else (self.window.time_span,)
            evictor = self.chosen.evictor
            self._windows = TriggeredRows(
                self.assigner, self._trigger(), evictor, time, context, callbacks, *span
            )
        elif isinstance(self.window, SessionWindow):
            self._windows = ProcessSessionRows(self.window, time, context, callbacks)
        else:
            self._windows = AlignedRows(self.window, time, context, callbacks)
        super().open(context)
        self._shape = RowShape(self.output, self.owner)
        self._emitted = RowShape(self.output, "the window's function", emits=True)

    @property
    def assigner(self) -> WindowAssigner:
        """Assigns windows to rows."""
        if self.chosen.assigner is not None:
            return self.chosen.assigner
        assert self.window is not None
        return assigner_of(self.window)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        return self._windows.add(row, ctx)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        return self._windows.on_timer(timer, ctx)

    @abstractmethod
    async def _fire(
        self, ctx: RecordContext, window: TimeWindow, namespace: int, rows: Sequence[Row]
    ) -> None:
        """Run the function over ``rows``."""

    async def _expire(self, ctx: RecordContext, window: TimeWindow, namespace: int) -> None:
        """Called when the window has expired."""

    def _leading(self, ctx: RecordContext, window: TimeWindow) -> tuple[Any, ...]:
        """The values before the function's own."""
        if not self.window_columns:
            return ()
        return (*ctx.key, window.start, window.end, window.end - WINDOW_TIME_US)


class ChosenElements(NamedTuple):
    """The user's choice of a window's trigger, evictor and assigner."""

    trigger: Trigger | None
    evictor: Evictor | None
    assigner: WindowAssigner | None

    @property
    def any(self) -> bool:
        """Whether any of them is set."""
        return any(one is not None for one in self)

    def check(self, window: object, owner: str) -> None:
        """SchemaError for values of other types, or unless there is exactly one of window and assigner."""
        if (window is None) == (self.assigner is None):
            raise SchemaError(f"{owner}: give either a window or an assigner")
        kinds = {"trigger": Trigger, "evictor": Evictor, "assigner": WindowAssigner}
        for name, kind in kinds.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise SchemaError(f"{owner}: {name} is {given!r}; give a {kind.__name__}")


class WindowApply(_WindowOperator):
    """``function(key, window, rows)`` for each key and window: a WindowFunction or a plain function.

    It returns an iterable of rows of ``output`` (or anything else that ``KeyedFlatMap`` accepts). ``rows`` are in order
    of arrival; those of merged sessions follow session by session. With ``window_columns`` the key columns,
    ``window_start``, ``window_end`` and ``window_time`` precede the function's, as with WindowAggregate.

    ``window``: tumble, hop, cumulate or session, over event time or, with ``time="processing"``, over the times at
    which micro-batches start. Event-time windows fire as WindowAggregate's: at the end of the micro-batch whose
    watermark reaches the window's end - 1 us. Their rows are kept for ``allowed_lateness`` longer, and a late row fires
    its window at once, again with all rows; the function's consumer must then overwrite the previous result. Rows for
    windows that have expired are counted (``late_rows_dropped``) and dropped, or go to the side output that
    ``late_output`` names, with the input's columns. The input must be insert-only.

    ``trigger`` decides when a window fires (one of ``asyncstate.operators.triggers``, or your own ``Trigger``),
    ``evictor`` which rows the function receives and which stay (one of ``evictors`` there), ``assigner``, in place of
    ``window``, the windows of a row (one of ``assigners`` there). Late rows within the allowed lateness go to the
    trigger.

    State: all rows of open windows, in ``_rows``; a row is stored for each of its windows, and read as a whole when a
    window fires. Where aggregates are enough use WindowAggregate, which stores one row per slice.

    >>> from asyncstate.testing import OperatorHarness
    >>> from asyncstate.operators import tumble
    >>> sales = pa.schema([("shop", pa.string()), ("amount", pa.int64()), ("time", pa.timestamp("us"))])
    >>> largest = WindowApply(
    ...     lambda key, window, rows: [(*key, window.end, max(row.amount for row in rows))],
    ...     tumble("1 second"),
    ...     pa.schema([("shop", pa.string()), ("until", pa.timestamp("us")), ("largest", pa.int64())]),
    ... )
    >>> with OperatorHarness(largest, sales, ["shop"], event_time="time") as harness:
    ...     harness.push([("ann", 3, 100), ("ann", 5, 200), ("ann", 4, 1_000_000)])
    ...     harness.finish()
    [('+I', 'ann', 1000000, 5), ('+I', 'ann', 2000000, 4)]
    """

    function_type: ClassVar[type[Function]] = WindowFunction
    plain_method = "apply"

    def __init__(
        self,
        function: WindowFunction | Callable[[tuple[Any, ...], TimeWindow, Sequence[Row]], Any],
        window: Window | None,
        output: SchemaLike | OutputSpec,
        *,
        allowed_lateness: Duration = 0,
        time: TimeDomain = "event",
        window_columns: bool = False,
        late_output: str | None = None,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        assigner: WindowAssigner | None = None,
    ) -> None:
        chosen = ChosenElements(trigger, evictor, assigner)
        super().__init__(
            function, window, output, allowed_lateness, time, window_columns, late_output, chosen
        )

    async def _fire(
        self, ctx: RecordContext, window: TimeWindow, namespace: int, rows: Sequence[Row]
    ) -> None:
        values, leading = self._shape.values, self._leading(ctx, window)
        result = self._method()(ctx.key, window, rows)
        later = emit_rows(result, lambda row: ctx.emit(*leading, *values(row)), self.owner)
        if later is not None:
            await later


class WindowProcess(_WindowOperator):
    """Runs a ProcessWindowFunction for each key and window: rows as in ``WindowApply``, with a context.

    The states it declares belong to the key, across windows. One that is declared with ``namespaced=True`` belongs to a
    window: use it as ``state.at(ctx.window_namespace)`` and clear it in ``clear``, which is called once the window
    will not fire again. ``side_outputs`` as ``KeyedProcess``; only the main output has window columns. The other
    parameters, the times and the state are those of ``WindowApply``.
    """

    function_type: ClassVar[type[Function]] = ProcessWindowFunction
    emitting_methods = ("process", "clear")
    function: ProcessWindowFunction

    def __init__(
        self,
        function: ProcessWindowFunction,
        window: Window | None,
        output: SchemaLike | OutputSpec,
        *,
        allowed_lateness: Duration = 0,
        time: TimeDomain = "event",
        window_columns: bool = False,
        late_output: str | None = None,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        trigger: Trigger | None = None,
        evictor: Evictor | None = None,
        assigner: WindowAssigner | None = None,
    ) -> None:
        chosen = ChosenElements(trigger, evictor, assigner)
        super().__init__(
            function,
            window,
            output,
            allowed_lateness,
            time,
            window_columns,
            late_output,
            chosen,
            side_outputs,
        )

    async def _fire(
        self, ctx: RecordContext, window: TimeWindow, namespace: int, rows: Sequence[Row]
    ) -> None:
        await resolved(self.function.process(ctx.key, self._context(ctx, window, namespace), rows))

    async def _expire(self, ctx: RecordContext, window: TimeWindow, namespace: int) -> None:
        await resolved(self.function.clear(self._context(ctx, window, namespace)))

    def _context(self, ctx: RecordContext, window: TimeWindow, namespace: int) -> _FiringWindow:
        namespaced = None if self._merges else namespace
        return _FiringWindow(
            ctx, window, namespaced, self._is_reused(window), self._leading(ctx, window), self._emitted
        )

    def _is_reused(self, window: TimeWindow) -> bool:
        """Whether a later window would find what the function leaves in the namespace of this one."""
        never_clears = type(self.function).clear is ProcessWindowFunction.clear
        ends = window.end != MAX_WATERMARK
        return never_clears and ends and isinstance(self._windows, TriggeredRows)


class _FiringWindow:
    """The implementation of ``functions.WindowContext``; without a namespace for windows that merge."""

    __slots__ = ("_leading", "_namespace", "_record", "_reused", "_shape", "window")

    def __init__(
        self,
        record: RecordContext,
        window: TimeWindow,
        namespace: int | None,
        reused: bool,
        leading: tuple[Any, ...],
        shape: RowShape,
    ) -> None:
        self._record = record
        self.window = window
        self._namespace = namespace
        self._reused = reused
        self._leading = leading
        self._shape = shape

    if not TYPE_CHECKING:  # type checkers must report missing attributes

        def __getattr__(self, name):
            raise AttributeError(hint_for("ctx", name))

    @property
    def key(self) -> Key:
        return self._record.key

    @property
    def watermark(self) -> int:
        return self._record.watermark

    @property
    def processing_time(self) -> int:
        return self._record.processing_time

    @property
    def window_namespace(self) -> int:
        if self._namespace is None:
            raise StateAccessError(
                "a session window cannot have its own state, because it may merge with another one; use a state of "
                "the key without namespaces"
            )
        if self._reused:
            raise StateAccessError(
                "the state of a window must be cleared when the window is over, because another window of the key then "
                "gets its namespace; give the ProcessWindowFunction a method clear"
            )
        return self._namespace

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        if output is not None:
            self._record.emit(*values, kind=kind, output=output, **columns)
            return
        self._record.emit(*self._leading, *self._shape.emitted(values, columns), kind=kind)

    def call(
        self,
        function: Callable[..., Any],
        /,
        *arguments: Any,
        timeout_seconds: Any = None,
        **keywords: Any,
    ) -> StateFuture[Any]:
        return self._record.call(function, *arguments, timeout_seconds=timeout_seconds, **keywords)
