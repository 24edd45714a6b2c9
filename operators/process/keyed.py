"""Map, flat map, filter and process on one keyed input, with state.

Owns: ``KeyedMap``, ``KeyedFlatMap``, ``KeyedFilter``, ``KeyedProcess``.
Invariant: the rows that a record gives stand where the record stood.
Must not import anything of ``asyncstate`` but ``codec``, ``functions`` and ``operator``.

Source: the operations of Flink's ``KeyedStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from asyncstate.codec import SchemaLike
from asyncstate.errors import SchemaError
from asyncstate.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
)
from asyncstate.operator import OperatorContext, RecordContext, Row, Timer

from .operator import FunctionOperator
from .results import deliver, emit_rows


class _PlainOperator(FunctionOperator):
    """Runs a function of one method, or a plain callable in its place."""

    def open(self, context: OperatorContext) -> None:
        """See ``FunctionOperator``."""
        super().open(context)
        self._apply: Callable[[Row], Any] = self._method()


class KeyedMap(_PlainOperator):
    """One row of ``output`` for each row: ``function`` is a MapFunction or a plain function of the row.

    Rows have the kind of the row they come from; a changelog is accepted if the function's ``accepts_changelog``
    says so: the same row must then always give the same result, so that it can be taken back.

    >>> from asyncstate.testing import OperatorHarness
    >>> lengths = KeyedMap(lambda row: (row.word, len(row.word)), "word string, length bigint")
    >>> with OperatorHarness(lengths, "word string", ["word"]) as harness:
    ...     harness.push([("tree",), ("ox",)])
    ...     harness.end_batch()
    [('+I', 'tree', 4), ('+I', 'ox', 2)]
    """

    function_type: ClassVar[type[Function]] = MapFunction
    plain_method = "map"

    def __init__(self, function: MapFunction | Callable[[Row], Any], output: SchemaLike) -> None:
        super().__init__(function, output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return deliver(self._apply(row), self._emitter(ctx))


class KeyedFlatMap(_PlainOperator):
    """Any number of rows of ``output`` for each row: ``function`` is a FlatMapFunction or a plain function of the row.

    It returns an iterable of rows, a generator, a StateIterator, a future of one, or None. Kinds as with ``KeyedMap``.
    """

    function_type: ClassVar[type[Function]] = FlatMapFunction
    plain_method = "flat_map"

    def __init__(self, function: FlatMapFunction | Callable[[Row], Any], output: SchemaLike) -> None:
        super().__init__(function, output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return emit_rows(self._apply(row), self._emitter(ctx), self.owner)


class KeyedFilter(_PlainOperator):
    """The rows for which ``function``, a FilterFunction or a plain function of the row, gives True.

    Output: the input's columns. Kinds as with ``KeyedMap``.
    """

    function_type: ClassVar[type[Function]] = FilterFunction
    plain_method = "filter"

    def __init__(self, function: FilterFunction | Callable[[Row], Any]) -> None:
        super().__init__(function, None)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""

        def pass_on(stays: Any) -> None:
            if stays is None:
                raise SchemaError(
                    "KeyedFilter: the function returned None; return True for rows that stay, or False"
                )
            if stays:
                ctx.emit(*row, kind=ctx.row_kind)

        return deliver(self._apply(row), pass_on)


class KeyedProcess(FunctionOperator):
    """Runs a KeyedProcessFunction: rows, timers, ``ctx.emit``. ``output`` are the columns of what it emits.

    ``side_outputs``: further outputs by name, for ``ctx.emit(..., output=name)``. ``late_output``, with ``order_by`` of
    the input: the side output for rows that come too late for it, which are dropped otherwise.
    """

    function_type: ClassVar[type[Function]] = KeyedProcessFunction
    emitting_methods = ("process", "on_timer")
    function: KeyedProcessFunction

    def __init__(
        self,
        function: KeyedProcessFunction,
        output: SchemaLike,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        late_output: str | None = None,
    ) -> None:
        super().__init__(function, output, side_outputs, late_output)

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.process(row, ctx)

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """See ``RecordOperator``."""
        return self.function.on_timer(timer, ctx)
