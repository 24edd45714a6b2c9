"""The interface for authors of operators.

Owns: ``Operator`` and its two grains, the contexts they are called with, ``Bundle``. ``InputSpec``, ``OutputSpec`` and
``Row`` can be imported from here, too.
Invariant: nothing here knows of sync or async, of Spark or of RocksDB; an operator that uses only this and the
state objects produces the same output and the same stored bytes in both modes.
Must not import state, storage, execution, runtime or Spark.

Source: Flink's ``KeyedProcessFunction`` and ``AbstractAsyncStateStreamOperator``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    overload,
)

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from asyncstate.changelog import RowKind, accumulates
from asyncstate.codec import KeyBatch, KeyCodec, SchemaLike
from asyncstate.display import Constructed, constructor_text, html_table, settings_of
from asyncstate.durations import Seconds
from asyncstate.flink_names import NameHints
from asyncstate.futures import StateFuture
from asyncstate.growth import StateGrowth
from asyncstate.partial_aggregation import PartialAggregation, PartialLimit, PartialStep
from asyncstate.row import Key, Row, key_type, row_type
from asyncstate.specs import (
    RESERVED_PREFIX,
    InputOrder,
    InputSpec,
    OrderTime,
    OutputSpec,
    SortKey,
    unknown_output,
)
from asyncstate.state_backend import StateBackend

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "RESERVED_PREFIX",
    "BelongsTo",
    "Bundle",
    "BundleContext",
    "BundleOperator",
    "CallContext",
    "Counter",
    "InputOrder",
    "InputSpec",
    "Key",
    "MissingRows",
    "OnError",
    "Operator",
    "OperatorContext",
    "OrderTime",
    "OutputSpec",
    "RecordContext",
    "RecordOperator",
    "Row",
    "SortKey",
    "StateDescriptor",
    "TimeDomain",
    "Timer",
    "Timers",
    "key_type",
    "row_type",
    "unknown_output",
]

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")
S_co = TypeVar("S_co", covariant=True)

MIN_WATERMARK = -(2**63)
"""No watermark yet (microseconds)."""
MAX_WATERMARK = 2**63 - 1
"""The end of the input: every timer and window is due (microseconds)."""


class TimeDomain(enum.Enum):
    """What a timer's time is compared with."""

    EVENT_TIME = "event time"
    PROCESSING_TIME = "processing time"


OnError = Literal["fail", "output"]

BelongsTo = tuple[str, str]
"""What a state was made for, as a name and a text: ``("window", "tumble(...)")``. A checkpoint that was written for
another meaning is refused."""


class StateDescriptor(ABC, Generic[S_co]):
    """Declares one state: its name, kind and types. ``OperatorContext.get_state`` turns it into the state."""

    name: str
    kind: ClassVar[str]

    @abstractmethod
    def type_texts(self) -> dict[str, str]:
        """The stored types and options that must agree with the checkpoint, as text."""

    @abstractmethod
    def bind(
        self, sink: StateBackend, state_id: int, context: OperatorContext, stored: dict[str, str] | None
    ) -> S_co:
        """The state object; ``stored`` has the texts of the state in the checkpoint, None for a new state."""


class OperatorContext(Protocol):
    """The context of ``open``: declares state, and describes the operator's inputs and options."""

    @property
    def uid(self) -> str:
        """The operator's unique id in its job."""

    @property
    def inputs(self) -> Sequence[InputSpec]:
        """The declared inputs."""

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of the main output, as ``bind`` returned them."""

    @property
    def page_size(self) -> int:
        """Entries per page when a state is iterated (``async-state.iterate-response-batch-size``)."""

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""

    @property
    def key_groups(self) -> range:
        """The key groups of this partition."""

    @property
    def key_schema(self) -> pa.Schema:
        """Names (of the first keyed input) and types of the key."""

    @property
    def key_codec(self) -> KeyCodec:
        """The codec for keys of ``key_schema``."""

    @property
    def watermark(self) -> int:
        """The watermark of this micro-batch, microseconds."""

    @property
    def previous_watermark(self) -> int:
        """The watermark of the previous micro-batch, microseconds: the timers up to it have fired."""

    @property
    def processing_time(self) -> int:
        """The time at which the driver started this micro-batch, microseconds."""

    def get_state(self, descriptor: StateDescriptor[S]) -> S:
        """The state that ``descriptor`` declares. Only in ``open``; each name once."""

    def counter(self, name: str) -> Counter:
        """A counter that is summed over partitions and shown in the batch's statistics."""

    def missing_rows(self) -> MissingRows:
        """Reports retractions whose row does not exist."""


@dataclass(slots=True)
class Counter:
    """A named metric of an operator, for example rows dropped."""

    name: str
    value: int = 0

    def add(self, amount: int = 1) -> None:
        """Add ``amount``."""
        self.value += amount


class MissingRows(Protocol):
    """Retractions of rows that do not exist: counts them in ``retractions_without_state`` and applies
    ``async-state.on-missing-row``."""

    def add(self, rows: npt.NDArray[np.int64], bundle: Bundle) -> None:
        """Rows of a bundle. Raises OperatorError if they are to fail the micro-batch."""

    def count(self, number: int) -> None:
        """Report a number of them if the rows themselves are not known. Raises OperatorError as ``add``."""


class Timer(NamedTuple):
    """A timer that is due: its time in microseconds, its name (None: unnamed), namespace and domain."""

    time: int
    name: str | None = None
    namespace: int | None = None
    domain: TimeDomain = TimeDomain.EVENT_TIME


class Timers(Protocol):
    """Timers of the current key, stored with the state."""

    def register_event_time(
        self, time_us: int, name: str | None = None, namespace: int | None = None
    ) -> None:
        """Call ``on_timer`` once the watermark has passed ``time_us``; a named timer replaces the earlier one."""

    def delete_event_time(
        self, time_us: int | None = None, name: str | None = None, namespace: int | None = None
    ) -> None:
        """Delete the unnamed timer at ``time_us``, or the timer called ``name``; no effect if there is none."""

    def register_processing_time(
        self, time_us: int, name: str | None = None, namespace: int | None = None
    ) -> None:
        """Call ``on_timer`` in the first micro-batch that starts at ``time_us`` or later; names are independent of
        those of event time."""

    def delete_processing_time(
        self, time_us: int | None = None, name: str | None = None, namespace: int | None = None
    ) -> None:
        """Like ``delete_event_time``, for processing time."""

    def delete_all(self) -> None:
        """Delete all timers of the key: of both times, named or not, of every namespace. It reads the timers of all
        keys of the key's group, to find those without a name."""


class CallContext(Protocol):
    """Part of the contexts of both grains: the times of the micro-batch, and calls to the outside."""

    @property
    def watermark(self) -> int:
        """The watermark of this micro-batch, microseconds."""

    @property
    def processing_time(self) -> int:
        """The time at which the driver started this micro-batch, microseconds; the same for all partitions."""

    # To type checkers the call has the parameters and the result of its function. With a timeout, which is no parameter
    # of the function, it has the result alone: PEP 612 allows nothing between arguments and keywords.

    @overload
    def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], /, *arguments: P.args, **keywords: P.kwargs
    ) -> StateFuture[T]: ...
    @overload
    def call(
        self, function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs
    ) -> StateFuture[T]: ...
    @overload
    def call(  # type: ignore[overload-cannot-match]  # it does, where there is a timeout_seconds
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        /,
        *arguments: Any,
        timeout_seconds: Seconds | None,
        **keywords: Any,
    ) -> StateFuture[T]: ...
    @overload
    def call(  # type: ignore[overload-cannot-match]
        self,
        function: Callable[..., T],
        /,
        *arguments: Any,
        timeout_seconds: Seconds | None,
        **keywords: Any,
    ) -> StateFuture[T]: ...
    def call(
        self, function: Callable[..., Any], /, *arguments: Any, timeout_seconds: Any = None, **keywords: Any
    ) -> StateFuture[Any]:
        """A future of ``function(*arguments, **keywords)``, a call to the outside: HTTP, a database.

        A coroutine function runs on an event loop (anyio), any other on a thread; at most the operator's
        ``call_limit`` run at once. Neither may touch state or the context. A call that takes longer than the timeout
        (seconds, a string such as "2 minutes" or a timedelta; by default the operator's ``call_timeout``) is cancelled
        and fails with TimeoutError.
        ``timeout_seconds`` is never passed on: for a function with a keyword of that name, use a lambda.

        At record grain the record stays in flight until the call has ended, so the next record of its key waits. At
        bundle grain calls are made in ``process_bundle``, ``process_due``, ``on_watermark`` and callbacks of their
        futures; a bundle ends when all its calls have ended, including those whose futures it did not return. Calls of
        a bundle overlap; in async mode their callbacks run as the answers arrive (``combine_all`` has them in the given
        order).
        """


class RecordContext(CallContext, Protocol):
    """One record (or timer) in flight: its key and time, and its output."""

    @property
    def key(self) -> Key:
        """The values of the key columns: a tuple, whose values are also available by the columns' names (those of the
        first keyed input)."""

    @property
    def input_index(self) -> int:
        """The input the record came from, counted from 0."""

    @property
    def row_kind(self) -> RowKind:
        """The changelog kind of the record."""

    @property
    def timestamp(self) -> int | None:
        """Event time in microseconds; None without an event time column."""

    @property
    def timers(self) -> Timers:
        """Timers of this record's key."""

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        """Emit one row of the output schema, or of that of the side output ``output``.

        Pass one value per column in their order, or all columns by name, or one tuple, Row or dict with a value for
        each column (``emit(1, "a")``, ``emit(id=1, name="a")``, ``emit({"id": 1, "name": "a"})``). Columns called
        ``kind`` or ``output`` cannot be passed by name, except in a dict. If the only column is a list, map or struct,
        a tuple or dict is its value. Raises SchemaError for missing and unknown columns.
        """


@dataclass(frozen=True)
class Bundle:
    """Rows of one input, as columns, with their unique keys.

    ``batch`` has the payload columns of ``InputSpec.row_schema`` (n rows). ``kinds`` is int8 (n), ``times`` int64
    microseconds (n) or None without an event time. ``keys`` has the u unique keys and ``keys.inverse`` (n) maps
    a row to its key. Rows are in arrival order.
    """

    batch: pa.RecordBatch
    keys: KeyBatch
    kinds: npt.NDArray[np.int8]
    times: npt.NDArray[np.int64] | None
    input_index: int = 0

    @property
    def num_rows(self) -> int:
        """n."""
        return int(self.batch.num_rows)

    @property
    def accumulate(self) -> npt.NDArray[np.bool_]:
        """True (n) where the row is added (+I, +U), False where it is retracted (-U, -D)."""
        return accumulates(self.kinds)

    @property
    def insert_only(self) -> bool:
        """True when no row is retracted."""
        return bool(self.accumulate.all())


class BundleContext(CallContext, Protocol):
    """The context of a bundle-grain operator's methods."""

    @property
    def previous_watermark(self) -> int:
        """The watermark of the previous micro-batch, microseconds."""

    @property
    def previous_processing_time(self) -> int:
        """The processing time of the previous micro-batch, microseconds; MIN_WATERMARK in the first one."""

    def emit(
        self,
        columns: Sequence[pa.Array] | dict[str, pa.Array],
        kinds: npt.NDArray[np.int8] | RowKind = RowKind.INSERT,
        output: str | None = None,
    ) -> None:
        """Emit rows: one array per column of the output schema, in their order or by name in a dict, and one kind per
        row or one for all. ``output`` names a side output instead. Raises SchemaError for missing and unknown
        columns."""


class Operator(NameHints, ABC, metaclass=Constructed):
    """Base of all operators. Subclass ``RecordOperator`` or ``BundleOperator``.

    An operator is pickled on the driver and unpickled in the workers for every micro-batch: keep only its
    parameters in ``__init__`` and make everything else in ``open``.
    """

    num_inputs: ClassVar[int] = 1
    accepts_changelog: ClassVar[bool] = True
    """False for operators that cannot retract rows; such an input is refused before the batch runs. Upserts, which do
    not contain the row before a change, are refused unless ``takes_upserts`` accepts them."""
    nets_output: ClassVar[bool] = False
    """Whether one call of ``emit`` of an operator whose output is upserts has at most one row of each upsert key."""
    broadcast_input: ClassVar[int | None] = None
    """The index of the input whose rows go to every partition; there is at least one other input."""
    first_input: int | None = None
    """The index of the input of which a partition handles all rows of a micro-batch before those of the others, which
    wait for them; it has no order. An attribute of the class, or set in ``__init__``."""
    waits_for_watermark: bool = False
    """Whether rows have no result until the watermark has passed them, as for windows in event time: a job without any
    ``watermark_delay`` is refused then. An attribute of the class, or set in ``__init__``."""
    call_limit: int = 100
    """Calls (``ctx.call``) that a partition makes at once, 1 to 10,000. An attribute of the class or of an object."""
    call_timeout: Seconds = "1 minute"
    """How long a call may take that names no timeout, and ``open_calls`` and ``close_calls``: seconds, a text or a
    timedelta, at most a day. An attribute of the class or of an object."""
    stateless: ClassVar[bool] = False
    """True for operators without state: rows are not exchanged, no store is opened, nothing is committed.

    The result of a row must depend on that row alone: there is no key, rows come in any parts, and Spark may run the
    operator on them more than once, or not at all, as it does with a ``map``.
    """

    @abstractmethod
    def bind(self, inputs: Sequence[InputSpec]) -> SchemaLike | OutputSpec:
        """Check the inputs (SchemaError) and return the output's schema, without ``row_kind``: a pyarrow schema or
        Spark DDL text, "account string, amount long". With side outputs, and if rows of other kinds than +I are
        emitted, return an ``OutputSpec``: without its ``changes`` all rows are +I."""

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """For each input in order of event time, the side output for rows that are too late for it; None: dropped.

        Called after ``bind``, which declares them with the input's columns. The framework emits these rows, with their
        kinds, and counts them all the same; the operator cannot emit there.
        """
        return [None] * len(inputs)

    def required_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """For each input, the columns that are needed in addition to key and event time; None: all of them.

        Called on the driver, after ``bind``. Other columns are not sent: in the tasks ``bind``, ``open`` and the rows
        have only these, in the input's order. Output and states must not depend on the others. A broadcast input and
        one with ``order_by`` are sent with all columns.
        """
        return [None] * len(inputs)

    def keyed_output(self, inputs: Sequence[InputSpec]) -> Sequence[tuple[str, ...]]:
        """The output columns that contain, in each row, the values of the key for which it was emitted, in the key's
        order: none, or several where columns are equal. An operator of a graph with these columns as its key can run in
        the same task. Called on the driver, after ``bind``."""
        return ()

    def unique_columns(self, inputs: Sequence[InputSpec]) -> Sequence[Collection[str] | None]:
        """For each input, the columns that identify a row within a key; None: rows are identified by their content.

        Rows of a key whose changes need each other are passed to ``process_bundle`` together; this says which do.
        """
        return [None] * len(inputs)

    def takes_upserts(self, inputs: Sequence[InputSpec]) -> Sequence[bool]:
        """For each input, whether its rows may be upserts (``ChangelogMode.UPSERT``): +U without the -U of the previous
        row, -D of which only the upsert key counts, at most one change of a key in a micro-batch. Called on the driver,
        after ``bind``; any other input of upserts is refused."""
        return [False] * len(inputs)

    def state_meaning(self, inputs: Sequence[InputSpec]) -> Mapping[str, str]:
        """What the stored state depends on in addition to its types, as names and texts: ``{"kind": "left"}``.

        Called on the driver, after ``bind``, and stored with the operator. After a restart each text must be unchanged,
        unless ``change_refusal`` allows otherwise; a parameter that is not named here may change freely.
        """
        return {}

    def state_growth(self, inputs: Sequence[InputSpec]) -> StateGrowth | None:
        """How the stored state grows, for ``explain()``. None: derived from ``ttl`` and the states that ``open``
        declares: lists with every row, maps with their keys, others with the number of keys.

        Called on the driver, after ``bind``. Rows that wait in order of time are counted separately.
        """
        return None

    def change_refusal(
        self, name: str, was: str | None, now: str | None, inputs: Sequence[InputSpec]
    ) -> str | None:
        """What to do about a text of ``state_meaning`` that differs from the stored one, in words that end the error;
        None if the stored state is right for it, too. ``was`` or ``now`` is None where there is no such text."""
        return ""

    def open(self, context: OperatorContext) -> None:
        """Declare state with ``context.get_state``.

        Called on the driver first, with a context that has no store, to check the declarations before any data
        is touched; then in each task.
        """

    def __repr__(self) -> str:
        """The call that makes it; for a copy, as in tasks, only the name."""
        return constructor_text(self)

    def _repr_html_(self) -> str:
        """Its settings, for notebooks."""
        return html_table(type(self).__name__, settings_of(self))

    async def open_calls(self) -> None:
        """Make what ``ctx.call`` functions share (an HTTP client, a connection pool); on their event loop, before the
        task's first call."""

    async def close_calls(self) -> None:
        """Close what ``open_calls`` made; on the same event loop, when the task ends or fails."""

    def close(self) -> None:
        """Release what ``open`` took; called also when the batch fails."""


class RecordOperator(Operator):
    """Record grain: one call per row, chains of StateFutures, any logic."""

    errors: OnError = "fail"
    """What happens to a row for which ``process`` raises an exception, also in a callback or in ``ctx.call``. "fail":
    the micro-batch fails. "output" (one insert-only input, besides a broadcast one): the row goes to the side output
    ``errors``, with the columns ``error_type`` and ``error_message`` after its own, and what it has emitted is dropped;
    a row that has changed state or used timers before fails the micro-batch all the same. The counter ``rows_failed``
    counts them. An attribute of the class or of an object."""

    @abstractmethod
    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row. Return None, a StateFuture, or write it as ``async def``; ``ctx.input_index`` is the input.
        Rows of one key come in arrival order, one at a time, each chain to its end."""

    notify_stateful_sets: bool = False
    """True: every key that has state is notified of each broadcast row, by ``process_notification``."""

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row of the broadcast input, once per partition, before the other rows of the micro-batch.

        Broadcast state may be written only here. There is no key: keyed state, timers and ``emit`` are refused.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has a broadcast input but no process_broadcast method"
        )

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a broadcast row for ``ctx.key``, a key with state; called after ``process_broadcast``.

        Everything that ``process`` may do is allowed.
        """
        raise NotImplementedError(
            f"{type(self).__name__} sets notify_stateful_sets but has no process_notification method"
        )

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """Handle a timer of ``ctx.key`` that is due."""

    @property
    def handles_timers(self) -> bool:
        """Whether timers may be registered: there is an ``on_timer`` for them."""
        return type(self).on_timer is not RecordOperator.on_timer

    def on_watermark(self, watermark: int, ctx: RecordContext) -> Any:
        """Called once per micro-batch and partition after all records and timers; there is no current key."""


class BundleOperator(Operator):
    """Bundle grain: one call per Arrow batch, state as columns, no loop over rows."""

    errors: OnError = "fail"
    """What happens if ``process_bundle`` raises an exception, also in a step, a callback or in ``ctx.call``. "fail":
    the micro-batch fails. "output" (one insert-only input, besides a broadcast one, whose rows do not wait for the
    watermark): what the call has emitted and counted is dropped, and the bundle is processed again in halves, down to
    the single rows that fail. These go to the side output ``errors``, with the columns ``error_type`` and
    ``error_message`` after their own. A call that has changed state before it raises fails the micro-batch all the
    same. Rows arrive whole, without partial aggregation, and are not prefetched. The counter ``rows_failed`` counts
    them. An attribute of the class or of an object."""

    local_aggregation: Literal["auto", "always", "never"] = "auto"
    """Whether what ``partial_aggregation`` and ``partial_limit`` return runs before the exchange: "auto" where the
    previous micro-batches show that it pays. An attribute of the class or of an object."""

    @property
    def is_bundled(self) -> bool:
        """Whether it runs a BundledAggregateFunction, for which ``async-state.bundled-agg`` bounds its bundles."""
        return False

    @property
    def row_bytes(self) -> int:
        """Bytes of state that each row of a bundle reads and writes, if they are many and known beforehand. 0:
        estimated from the previous micro-batch; the memory of a bundle bounds both."""
        return 0

    @property
    def key_bytes(self) -> int:
        """The same per key, however many rows of it a bundle has. Rows of a key may then come in several bundles, so
        this is for insert-only inputs."""
        return 0

    @abstractmethod
    def process_bundle(self, bundle: Bundle, ctx: BundleContext) -> Any:
        """Handle the rows of one input. Return None or a StateFuture, or be a generator of them; the next bundle starts
        when all is done. A generator continues when what it yielded is done and its output has been sent."""

    def process_broadcast(self, rows: Bundle, ctx: BundleContext) -> Any:
        """Handle all rows of the broadcast input in a micro-batch at once, in every partition, before the other rows.

        Broadcast state may be written only here, before it returns, and must depend on nothing but these rows and on
        broadcast state. The rows have no key. May return what ``process_bundle`` may return: keyed state is read, and
        rows are emitted, by the steps of a generator.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has a broadcast input but no process_broadcast method"
        )

    def partial_aggregation(self, inputs: Sequence[InputSpec]) -> PartialAggregation | None:
        """The aggregation of the only input's rows that is possible before the exchange; None: none.

        Called on the driver, after ``bind``. If the job makes use of it, ``inputs[0].local`` is what was returned, in
        ``bind`` and ``open`` of the tasks. State must not depend on it: it may change from one micro-batch to the next.
        An operator that has a partial aggregation also has ``partial_step``.
        """
        return None

    def partial_limit(self, inputs: Sequence[InputSpec]) -> PartialLimit | None:
        """Which rows of the only input are enough, called if it is insert-only; None: all.

        Called on the driver, after ``bind``. Without a key Spark selects them; a single partition then gets all rows,
        so this saves it most. Rows of another operator in the same graph are selected in its task, per key, if there is
        a ``partial_step``.
        """
        return None

    def partial_step(self, given: InputSpec) -> PartialStep:
        """The step that makes the rows of ``given.row_schema`` from some rows of the input, if ``given.local`` is what
        ``partial_aggregation`` returned; or selects those that ``given.limit``, what ``partial_limit`` returned, lets
        through.

        Called where the rows are: in the task of the operator that emits them, and in the harness. The operator is not
        open there, and the same step gets many parts of the rows, each by itself.
        """
        raise NotImplementedError(f"{type(self).__name__} has no partial_step method")

    def ordered_inputs(self, inputs: Sequence[InputSpec]) -> Sequence[InputOrder | None]:
        """For each input, the required order of its rows; None: as they arrive.

        Called on the driver, after ``bind``. Rows of an ordered input wait in the operator's state and go to
        ``process_due``, those of the others to ``process_bundle``.
        """
        return [None] * len(inputs)

    def process_due(self, bundles: Sequence[Bundle | None], ctx: BundleContext) -> Any:
        """Handle rows of ordered inputs that are due: one bundle per input, None where there are none.

        Called after the micro-batch's bundles and before ``on_watermark``, once per part of the rows: by key group, and
        within it in the requested order. Parts are of bounded size and cut at the same points in all inputs: rows of a
        key group and event time are in one part, and without an event time those of a changelog that are equal in their
        order. Returns what ``process_bundle`` may return.
        """
        raise NotImplementedError(f"{type(self).__name__} has ordered inputs but no process_due method")

    def prefetch(self, bundle: Bundle) -> None:
        """Hint which state the bundle will need (``state.prefetch(bundle.keys)``), while another one is processed."""

    def on_watermark(self, watermark: int, ctx: BundleContext) -> Any:
        """Called once per micro-batch and partition, after all bundles (also when there was none).

        Returns what ``process_bundle`` may return. An operator that emits much here is best a generator, which holds
        one part of it at a time.
        """
