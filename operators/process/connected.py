"""Map, flat map and process on two inputs with the same key, which share their state.

Owns: ``CoMap``, ``CoFlatMap``, ``CoProcess``.
Invariant: rows of one key run one at a time, of whichever input they are.
Must not import anything of ``asyncstate`` but ``codec``, ``functions`` and ``operator``.

Source: the operations of Flink's ``ConnectedStreams``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncstate.codec import SchemaLike
from asyncstate.functions import CoFlatMapFunction, CoMapFunction, Function, KeyedCoProcessFunction
from asyncstate.operator import RecordContext, Row, Timer

from .operator import FunctionOperator
from .results import deliver, emit_rows


class CoMap(FunctionOperator):
    """One row of ``output`` for each row of either input: ``map1`` or ``map2`` of a CoMapFunction.

    The keys of the inputs must agree in type. Kinds as with ``KeyedMap``.
    """

    num_inputs: ClassVar[int] = 2
    function_type: ClassVar[type[Function]] = CoMapFunction
    function: CoMapFunction

    def __init__(self, function: CoMapFunction, output: SchemaLike) -> None:
        super().__init__(function, output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        function = self.function
        result = function.map2(row) if ctx.input_index else function.map1(row)
        return deliver(result, self._emitter(ctx))


class CoFlatMap(FunctionOperator):
    """Any number of rows of ``output`` for each row of either input: ``flat_map1`` or ``flat_map2``.

    As ``CoMap``; what may be returned is said with ``KeyedFlatMap``.
    """

    num_inputs: ClassVar[int] = 2
    function_type: ClassVar[type[Function]] = CoFlatMapFunction
    function: CoFlatMapFunction

    def __init__(self, function: CoFlatMapFunction, output: SchemaLike) -> None:
        super().__init__(function, output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        function = self.function
        result = function.flat_map2(row) if ctx.input_index else function.flat_map1(row)
        return emit_rows(result, self._emitter(ctx), self.owner)


class CoProcess(FunctionOperator):
    """Runs a KeyedCoProcessFunction: rows of two inputs, timers, ``ctx.emit``. ``side_outputs`` as ``KeyedProcess``."""

    num_inputs: ClassVar[int] = 2
    function_type: ClassVar[type[Function]] = KeyedCoProcessFunction
    emitting_methods = ("process1", "process2", "on_timer")
    function: KeyedCoProcessFunction

    def __init__(
        self,
        function: KeyedCoProcessFunction,
        output: SchemaLike,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
    ) -> None:
        super().__init__(function, output, side_outputs)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        function = self.function
        return function.process2(row, ctx) if ctx.input_index else function.process1(row, ctx)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.on_timer(timer, ctx)
