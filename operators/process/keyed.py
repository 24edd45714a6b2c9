"""Map, flat map, filter, reduce and process: on one keyed input, on two with the same key, with a broadcast input.

Owns: ``KeyedMap``, ``KeyedFlatMap``, ``KeyedFilter``, ``KeyedReduce``, ``KeyedProcess``; ``CoMap``, ``CoFlatMap``,
``CoProcess``, whose two inputs share their state; ``BroadcastProcess``.
Invariant: the output rows of a record take the record's place in the order. Rows of one key run one at a time,
whichever input they come from, and only rows of the broadcast input write broadcast state. The value that
``KeyedReduce`` stores for a key is the function's result for all its rows, in order of arrival.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``functions``, ``operator`` and ``state``.

Source: the operations of Flink's ``KeyedStream`` and ``ConnectedStreams``, and its broadcast state pattern.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from asyncstate.changelog import Changelog, RowKind
from asyncstate.codec import SchemaLike
from asyncstate.codec.times import microsecond_struct
from asyncstate.errors import SchemaError
from asyncstate.functions import (
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
)
from asyncstate.operator import (
    InputSpec,
    OnError,
    OperatorContext,
    OutputSpec,
    RecordContext,
    Row,
    Timer,
    row_type,
)
from asyncstate.state import ValueState, ValueStateDescriptor

from .process_operator import FunctionOperator, deliver, emit_rows, resolved

REDUCED_STATE = "_reduced"


class _PlainOperator(FunctionOperator):
    """Runs a function with one method, or a plain callable in its place."""

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._apply: Callable[[Row], Any] = self._method()


class KeyedMap(_PlainOperator):
    """One row of ``output`` for each row: ``function`` is a MapFunction or a plain function of the row.

    Rows have the kind of the row they come from; a changelog is accepted if the function's ``accepts_changelog``
    is True: the same row must then always give the same result, so that it can be retracted.

    ``errors="output"``: rows for which the function raises go to the side output ``errors``; see ``RecordOperator``.

    >>> from asyncstate.testing import OperatorHarness
    >>> lengths = KeyedMap(lambda row: (row.word, len(row.word)), "word string, length bigint")
    >>> with OperatorHarness(lengths, "word string", ["word"]) as harness:
    ...     harness.push([("tree",), ("ox",)])
    ...     harness.end_batch()
    [('+I', 'tree', 4), ('+I', 'ox', 2)]
    """

    function_type: ClassVar[type[Function]] = MapFunction
    plain_method = "map"

    def __init__(
        self,
        function: MapFunction | Callable[[Row], Any],
        output: SchemaLike | OutputSpec,
        *,
        errors: OnError = "fail",
    ) -> None:
        super().__init__(function, output, errors=errors)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        return deliver(self._apply(row), self._emitter(ctx))


class KeyedFlatMap(_PlainOperator):
    """Any number of rows of ``output`` for each row: ``function`` is a FlatMapFunction or a plain function of the row.

    It returns an iterable of rows, a generator, a StateIterator, a future of one, or None. Kinds and ``errors`` as with
    ``KeyedMap``.
    """

    function_type: ClassVar[type[Function]] = FlatMapFunction
    plain_method = "flat_map"

    def __init__(
        self,
        function: FlatMapFunction | Callable[[Row], Any],
        output: SchemaLike | OutputSpec,
        *,
        errors: OnError = "fail",
    ) -> None:
        super().__init__(function, output, errors=errors)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        return emit_rows(self._apply(row), self._emitter(ctx), self.owner)


class KeyedFilter(_PlainOperator):
    """The rows for which ``function``, a FilterFunction or a plain function of the row, returns True.

    Output: the input's columns. Kinds and ``errors`` as with ``KeyedMap``.
    """

    function_type: ClassVar[type[Function]] = FilterFunction
    plain_method = "filter"

    def __init__(self, function: FilterFunction | Callable[[Row], Any], *, errors: OnError = "fail") -> None:
        super().__init__(function, None, errors=errors)

    def _changes(self, inputs: Sequence[InputSpec]) -> Changelog:
        return inputs[0].changes.filtered(None)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""

        def pass_on(stays: Any) -> None:
            if stays is None:
                raise SchemaError(
                    "KeyedFilter: the function returned None; return True to keep a row, or False"
                )
            if stays:
                ctx.emit(*row, kind=ctx.row_kind)

        return deliver(self._apply(row), pass_on)


class KeyedReduce(FunctionOperator):
    """The first row of a key as it is, then ``function(the result so far, next row)`` for each further row.

    ``function`` is a ReduceFunction or a plain function of two rows. Output: the input's columns, and for each row of
    the input one row ``+I`` with the current value. With ``changelog=True`` the value is updated instead: ``+I`` first,
    then ``-U`` of the old and ``+U`` of the new value; nothing when they are equal. The input must be insert-only: a
    reduced row cannot be retracted. ``errors`` as with ``KeyedMap``.

    State: ``_reduced``, a row of the input's columns for each key, kept forever.

    >>> import pyarrow as pa
    >>> from asyncstate.testing import OperatorHarness
    >>> sales = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
    >>> totals = KeyedReduce(lambda a, b: (a.shop, a.amount + b.amount))
    >>> with OperatorHarness(totals, sales, ["shop"]) as harness:
    ...     harness.push([("ann", 3), ("bob", 1), ("ann", 4)])
    ...     harness.end_batch()
    [('+I', 'ann', 3), ('+I', 'bob', 1), ('+I', 'ann', 7)]
    """

    function_type: ClassVar[type[Function]] = ReduceFunction
    plain_method = "reduce"
    takes_rows_back = False

    def __init__(
        self,
        function: ReduceFunction | Callable[[Row, Row], Any],
        *,
        changelog: bool = False,
        errors: OnError = "fail",
    ) -> None:
        super().__init__(function, None, errors=errors)
        self.changelog = changelog

    def _changes(self, inputs: Sequence[InputSpec]) -> Changelog:
        return Changelog.retract() if self.changelog else Changelog.insert_only()

    def open(self, context: OperatorContext) -> None:
        """Open the function; it may declare state."""
        super().open(context)
        schema = context.inputs[0].schema
        self._names: Sequence[str] = schema.names
        self._row = row_type(schema)
        self._reduce: Callable[[Row, Row], Any] = self._method()
        self._reduced: ValueState[dict[str, Any]] = context.get_state(
            ValueStateDescriptor(REDUCED_STATE, microsecond_struct(schema))
        )

    async def process(self, row: Row, ctx: RecordContext) -> None:
        """Handle one row."""
        stored = await self._reduced.async_value()
        if stored is None:
            before, after = None, tuple(row)
        else:
            before = self._row(stored.values())
            given = before
            if self.changelog and self._shape.nested:  # the function may change the lists of its arguments
                given = self._row(copy.deepcopy(list(before)))
            after = self._shape.values(await resolved(self._reduce(given, row)))
        self._reduced.update(dict(zip(self._names, after, strict=True)))
        if before is None or not self.changelog:
            ctx.emit(*after)
        elif _differ(before, after):
            ctx.emit(*before, kind=RowKind.UPDATE_BEFORE)
            ctx.emit(*after, kind=RowKind.UPDATE_AFTER)


def _differ(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Whether two rows differ; NaN equals NaN, as in keys and retractions."""
    pairs = zip(before, after, strict=True)
    return any(one != other and (one == one or other == other) for one, other in pairs)


class _TimedOperator(FunctionOperator):
    """Runs a function with timers, which emits its rows with the context."""

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """Handle a timer of ``ctx.key`` that is due."""
        return self.function.on_timer(timer, ctx)


class KeyedProcess(_TimedOperator):
    """Runs a KeyedProcessFunction: rows, timers, ``ctx.emit``. ``output``: the columns of the emitted rows.

    ``side_outputs``: further outputs by name, for ``ctx.emit(..., output=name)``. ``late_output``, with ``order_by`` of
    the input: the side output for rows that arrive too late for the order, which are dropped otherwise. ``errors`` as
    with ``KeyedMap``; a failing ``on_timer`` fails the micro-batch.
    """

    function_type: ClassVar[type[Function]] = KeyedProcessFunction
    emitting_methods = ("process", "on_timer")
    function: KeyedProcessFunction

    def __init__(
        self,
        function: KeyedProcessFunction,
        output: SchemaLike | OutputSpec,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        late_output: str | None = None,
        errors: OnError = "fail",
    ) -> None:
        super().__init__(function, output, side_outputs, late_output, errors)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        return self.function.process(row, ctx)


class CoMap(FunctionOperator):
    """One row of ``output`` for each row of either input: ``map1`` or ``map2`` of a CoMapFunction.

    The keys of the inputs must agree in type. Kinds as with ``KeyedMap``.
    """

    num_inputs: ClassVar[int] = 2
    function_type: ClassVar[type[Function]] = CoMapFunction
    function: CoMapFunction

    def __init__(self, function: CoMapFunction, output: SchemaLike | OutputSpec) -> None:
        super().__init__(function, output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        function = self.function
        result = function.map2(row) if ctx.input_index else function.map1(row)
        return deliver(result, self._emitter(ctx))


class CoFlatMap(FunctionOperator):
    """Any number of rows of ``output`` for each row of either input: ``flat_map1`` or ``flat_map2``.

    As ``CoMap``; the methods may return the same as in ``KeyedFlatMap``.
    """

    num_inputs: ClassVar[int] = 2
    function_type: ClassVar[type[Function]] = CoFlatMapFunction
    function: CoFlatMapFunction

    def __init__(self, function: CoFlatMapFunction, output: SchemaLike | OutputSpec) -> None:
        super().__init__(function, output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        function = self.function
        result = function.flat_map2(row) if ctx.input_index else function.flat_map1(row)
        return emit_rows(result, self._emitter(ctx), self.owner)


class CoProcess(_TimedOperator):
    """Runs a KeyedCoProcessFunction: rows of two inputs, timers, ``ctx.emit``. ``side_outputs`` as ``KeyedProcess``."""

    num_inputs: ClassVar[int] = 2
    function_type: ClassVar[type[Function]] = KeyedCoProcessFunction
    emitting_methods = ("process1", "process2", "on_timer")
    function: KeyedCoProcessFunction

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        output: SchemaLike | OutputSpec,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
    ) -> None:
        super().__init__(function, output, side_outputs)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        function = self.function
        return function.process2(row, ctx) if ctx.input_index else function.process1(row, ctx)


class BroadcastProcess(_TimedOperator):
    """Runs a KeyedBroadcastProcessFunction over a keyed input (0) and a broadcast input (1, without a key).

    ``side_outputs``, ``late_output`` and ``errors``, for the keyed input, as ``KeyedProcess``.
    """

    num_inputs: ClassVar[int] = 2
    broadcast_input: ClassVar[int | None] = 1
    function_type: ClassVar[type[Function]] = KeyedBroadcastProcessFunction
    emitting_methods = ("process", "process_broadcast", "process_notification", "on_timer")
    function: KeyedBroadcastProcessFunction

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        output: SchemaLike | OutputSpec,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        late_output: str | None = None,
        errors: OnError = "fail",
    ) -> None:
        super().__init__(function, output, side_outputs, late_output, errors)
        self.notify_stateful_sets = function.notify_stateful_sets

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        return self.function.process(row, ctx)

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row of the broadcast input, once per partition, before the other rows of the micro-batch."""
        return self.function.process_broadcast(row, ctx)

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        """Handle a broadcast row for ``ctx.key``, a key with state; called after ``process_broadcast``."""
        return self.function.process_notification(row, ctx)
