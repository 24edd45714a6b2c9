"""Keyed rows beside a broadcast input.

Owns: ``BroadcastProcess``.
Invariant: only rows of the broadcast input write broadcast state.
Must not import anything of ``asyncstate`` but ``codec``, ``functions`` and ``operator``.

Source: the broadcast state pattern of Flink's DataStream API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from asyncstate.codec import SchemaLike
from asyncstate.functions import Function, KeyedBroadcastProcessFunction
from asyncstate.operator import RecordContext, Row, Timer

from .operator import FunctionOperator


class BroadcastProcess(FunctionOperator):
    """Runs a KeyedBroadcastProcessFunction over a keyed input (0) and a broadcast input (1, without a key).

    ``side_outputs`` and ``late_output``, of the keyed input, as ``KeyedProcess``.
    """

    num_inputs: ClassVar[int] = 2
    broadcast_input: ClassVar[int | None] = 1
    function_type: ClassVar[type[Function]] = KeyedBroadcastProcessFunction
    emitting_methods = ("process", "process_broadcast", "process_notification", "on_timer")
    function: KeyedBroadcastProcessFunction

    def __init__(
        self,
        function: KeyedBroadcastProcessFunction,
        output: SchemaLike,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        late_output: str | None = None,
    ) -> None:
        super().__init__(function, output, side_outputs, late_output)
        self.notify_stateful_sets = function.notify_stateful_sets

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.process(row, ctx)

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.process_broadcast(row, ctx)

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.process_notification(row, ctx)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.on_timer(timer, ctx)
