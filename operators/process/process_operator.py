"""The common base of the operators that run functions.

Owns: ``FunctionOperator``: the function's checks and its life cycle; ``deliver`` and ``emit_rows``, which pass on what
functions return: plain results, futures and coroutines alike.
Invariant: the function is opened once, before any row, and closed as often as it was opened. Rows are emitted in the
order in which the function returned them.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``errors``, ``functions``, ``futures``,
``operator``, ``row_shape``.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from types import CoroutineType
from typing import Any, ClassVar, get_args

import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog
from asyncstate.codec import SchemaLike, read_schema, read_schemas
from asyncstate.errors import SchemaError
from asyncstate.functions import Function
from asyncstate.futures import StateFuture
from asyncstate.operator import (
    InputSpec,
    OnError,
    OperatorContext,
    OutputSpec,
    RecordContext,
    RecordOperator,
)
from asyncstate.row_shape import RowShape

from ..core.late_rows import check_late_output, check_not_own
from ..core.operator_checks import Named, check_choice

Emit = Callable[[Any], None]
"""Emits one row as a function returned it."""


class FunctionOperator(Named, RecordOperator):
    """Runs one function. ``output``: the columns of the rows that it returns; None: those of the input.

    A function whose rows are not all +I, over inputs whose rows are, needs an ``OutputSpec`` as ``output``, which
    declares their changes: ``OutputSpec("id long, n long", changes=Changelog.retract("id"))``.
    """

    function_type: ClassVar[type[Function]]
    plain_method: ClassVar[str | None] = None
    """The method that a plain callable replaces; None where only a function object is accepted."""
    emitting_methods: ClassVar[tuple[str, ...]] = ()
    """Methods that emit rows with ``ctx.emit``; a generator there would never run."""
    takes_rows_back: ClassVar[bool] = True
    """False where no function could retract a row, because its effect is no longer known."""

    def __init__(
        self,
        function: Any,
        output: SchemaLike | OutputSpec | None,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        late_output: str | None = None,
        errors: OnError = "fail",
    ) -> None:
        """``side_outputs``: the names for ``ctx.emit(..., output=name)`` in the function, with their columns.
        ``late_output``: see ``late_outputs``; ``errors``: see ``RecordOperator``."""
        check_choice(errors, get_args(OnError), "errors", self.owner)
        self.errors = errors
        self.function = function
        self.declared = output if isinstance(output, OutputSpec) else None
        if isinstance(output, OutputSpec):
            side_outputs = {**output.side_outputs, **(side_outputs or {})}
            output = output.schema
        output = read_schema(output, f"{self.owner}: output")
        self.output = output
        self.side_outputs = _checked(side_outputs, self.owner)
        check_late_output(late_output, "event", self.owner)
        check_not_own(late_output, self.side_outputs, self.owner)
        self.late_output = late_output
        self._check_function()
        if output is not None:
            self._check_output(output)
        accepts = self.takes_rows_back and getattr(function, "accepts_changelog", False)
        self.accepts_changelog = accepts  # type: ignore[misc]  # set per object: its function decides

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The declared outputs."""
        return self._outputs(inputs[0].schema if self.output is None else self.output, inputs)

    def _outputs(self, schema: pa.Schema, inputs: Sequence[InputSpec]) -> OutputSpec:
        """``schema``, the side outputs, and that of late rows of the first input, if requested."""
        return self._spec_of(schema, inputs).with_late_rows(self.late_output, inputs[0])

    def _spec_of(self, schema: pa.Schema, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The output with the declared changes; by default a function over a changelog is assumed to emit one."""
        if self.declared is not None:
            sides = self.declared.side_changes
            return OutputSpec(schema, self.side_outputs, self.declared.changes, sides)
        changes = self._changes(inputs)
        return OutputSpec(schema, self.side_outputs, changes, dict.fromkeys(self.side_outputs, changes))

    def _changes(self, inputs: Sequence[InputSpec]) -> Changelog:
        return Changelog.retract() if any(spec.changelog for spec in inputs) else Changelog.insert_only()

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """See ``Operator``: for the first input."""
        return [self.late_output, *[None] * (len(inputs) - 1)]

    def open(self, context: OperatorContext) -> None:
        """Open the function; it may declare state."""
        self._shape = RowShape(context.output_schema, self.owner)
        if isinstance(self.function, Function):
            self.function.open(context)

    def close(self) -> None:
        """Close the function."""
        if isinstance(self.function, Function):
            self.function.close()

    async def open_calls(self) -> None:
        """Make what ``ctx.call`` functions share (an HTTP client, a connection pool); on their event loop, before the
        task's first call."""
        if isinstance(self.function, Function):
            await self.function.open_calls()

    async def close_calls(self) -> None:
        """Close what ``open_calls`` made; on the same event loop, when the task ends or fails."""
        if isinstance(self.function, Function):
            await self.function.close_calls()

    @property
    def handles_timers(self) -> bool:
        """See ``RecordOperator``: it is the function's own method that counts."""
        own, base = (
            getattr(type(self.function), "on_timer", None),
            getattr(self.function_type, "on_timer", None),
        )
        return super().handles_timers and (base is None or own is not base)

    def _method(self) -> Any:
        """The function's only method, or the plain callable itself."""
        if self.plain_method is None or not isinstance(self.function, Function):
            return self.function
        return getattr(self.function, self.plain_method)

    def _emitter(self, ctx: RecordContext) -> Emit:
        """Emits rows as the function returned them, with the kind of the record."""
        values, emit, kind = self._shape.values, ctx.emit, ctx.row_kind
        return lambda row: emit(*values(row), kind=kind)

    def _check_function(self) -> None:
        function, wanted = self.function, self.function_type.__name__
        if isinstance(function, type):
            raise SchemaError(
                f"{self.owner}: {function.__name__} is a class; give an instance: {function.__name__}()"
            )
        plain = self.plain_method is not None and callable(function) and not isinstance(function, Function)
        if not plain and not isinstance(function, self.function_type):
            also = "" if self.plain_method is None else " or a plain function"
            raise SchemaError(f"{self.owner}: {function!r} is not a function for it; give a {wanted}{also}")
        for name in self.emitting_methods:
            method = getattr(function, name)
            if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
                raise SchemaError(
                    f"{self.owner}: {type(function).__name__}.{name} is a generator, whose rows would be ignored; "
                    "call ctx.emit(...) instead of yield"
                )

    def _check_output(self, output: Any) -> None:
        if not isinstance(output, pa.Schema):
            raise SchemaError(
                f"{self.owner}: output is {output!r}; give a schema, such as pa.schema([('count', "
                "pa.int64())]), or a string such as 'count long'"
            )
        if ROW_KIND_COLUMN in output.names:
            raise SchemaError(
                f"{self.owner}: output has a column '{ROW_KIND_COLUMN}', which is reserved; leave it out"
            )
        twice = sorted({name for name in output.names if output.names.count(name) > 1})
        if twice:
            raise SchemaError(f"{self.owner}: output has column '{twice[0]}' twice; rename one of the two")


def _checked(side_outputs: Any, owner: str) -> Mapping[str, pa.Schema]:
    if side_outputs is None:
        return {}
    if not isinstance(side_outputs, Mapping):
        raise SchemaError(
            f"{owner}: side_outputs is {side_outputs!r}; give a dict of their names and schemas, such as "
            "{'late': schema}"
        )
    return dict(read_schemas(side_outputs, f"{owner}: side output"))


# -- results -----------------------------------------------------------------------------------------------


def deliver(result: Any, take: Callable[[Any], object]) -> Any:
    """Call ``take`` with the value of ``result``, now or when it is available; returns what ``process`` may return."""
    if isinstance(result, StateFuture):
        return result.then_accept(take)
    if type(result) is CoroutineType:
        return _deliver_later(result, take)
    take(result)
    return None


async def _deliver_later(coroutine: Any, take: Callable[[Any], object]) -> None:
    take(await coroutine)


async def resolved(result: Any) -> Any:
    """The value of ``result``: itself, or the result of a future or coroutine."""
    if isinstance(result, StateFuture) or type(result) is CoroutineType:
        return await result
    return result


def emit_rows(result: Any, emit: Emit, owner: str) -> Any:
    """Emit the rows of an iterable (or a future of one, or None); returns what ``process`` may return."""
    if result is None:
        return None
    if isinstance(result, Iterable) and not isinstance(result, AsyncIterable):
        _emit_all(result, emit, owner)
        return None
    return _emit_later(result, emit, owner)


async def _emit_later(result: Any, emit: Emit, owner: str) -> None:
    rows = await resolved(result)
    if isinstance(rows, AsyncIterable):  # a StateIterator or an asynchronous generator: page by page
        async for row in rows:
            emit(row)
    elif rows is not None:
        _emit_all(rows, emit, owner)


def _emit_all(rows: Any, emit: Emit, owner: str) -> None:
    if isinstance(rows, str | bytes | dict) or not isinstance(rows, Iterable):
        raise SchemaError(
            f"{owner}: the function returned {rows!r}, which is not an iterable of rows; return a list of rows, even "
            "for a single row, or None for no rows"
        )
    for row in rows:
        emit(row)
