"""TableFunction: runs a process table function over one or several inputs.

Owns: the operator: its inputs, its states and how the parameters of a call are filled. ``operators.process.signature``
reads the declarations.
Invariant: a state that a call does not request is neither read nor written; a dataclass is read before the call and
written after it, if it has changed.
Must not import anything of ``asyncstate`` but ``changelog``, ``codec``, ``errors``, ``functions``, ``futures``,
``operator``, ``row_shape``, ``state``.

Source: Flink's process table functions (FLIP-440, FLINK-39254).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import CoroutineType
from typing import Any, ClassVar

import pyarrow as pa

from asyncstate.changelog import RowKind
from asyncstate.codec import SchemaLike
from asyncstate.errors import SchemaError, StateAccessError
from asyncstate.functions import Function
from asyncstate.functions.table_functions import ProcessTableFunction, declared_outputs
from asyncstate.futures import combine_all
from asyncstate.operator import InputSpec, OperatorContext, OutputSpec, RecordContext, Row, Timer
from asyncstate.row_shape import RowShape
from asyncstate.state import ValueState

from ..core.late_rows import check_late_output, check_not_own
from ..core.operator_checks import check_distinct_names, check_insert_only
from .process_operator import FunctionOperator, emit_rows, resolved
from .signature import Signature, StateParameter, read_signature

Given = dict[str, Any]
"""Arguments by parameter."""


class TableFunction(FunctionOperator):
    """Runs a ProcessTableFunction, or a plain function with the hints of its ``eval``.

    The inputs are its tables, in the order of its parameters. ``key`` in ``apply`` defines the sets (for a table with
    row semantics it only distributes the rows), ``order_by`` the order of a table's rows. Without an order late rows
    are processed like any others; with one they are dropped, or go to the side output that ``late_outputs`` names for
    the parameter. ``output`` and ``side_outputs``, unless the function declares them: the columns of the emitted rows,
    after those that a table passes through (``TableHint.pass_through``).

    >>> import pyarrow as pa
    >>> from asyncstate import ValueView
    >>> from asyncstate.functions.table_functions import SetTable
    >>> from asyncstate.testing import OperatorHarness
    >>> def greet(times: ValueView[int], guest: SetTable):
    ...     times.update((times.value() or 0) + 1)
    ...     yield f"Hello {guest.name}, your {times.value()} time?"
    >>> guests = pa.schema([("name", pa.string())])
    >>> greeting = TableFunction(greet, pa.schema([("greeting", pa.string())]))
    >>> with OperatorHarness(greeting, guests, ["name"]) as harness:
    ...     harness.push([("Bob",), ("Bob",)])
    ...     harness.end_batch()
    [('+I', 'Hello Bob, your 1 time?'), ('+I', 'Hello Bob, your 2 time?')]

    Raises SchemaError for hints that declare nothing, and for tables that do not fit the inputs.
    """

    function_type: ClassVar[type[Function]] = ProcessTableFunction
    plain_method = "eval"

    def __init__(
        self,
        function: ProcessTableFunction | Callable[..., Any],
        output: SchemaLike | OutputSpec | None = None,
        *,
        side_outputs: Mapping[str, SchemaLike] | None = None,
        late_outputs: Mapping[str, str] | None = None,
    ) -> None:
        declared, more = declared_outputs(function)
        super().__init__(
            function, declared if output is None else output, more if side_outputs is None else side_outputs
        )
        if self.output is None:
            raise SchemaError(
                f"{self.owner}: the output of {self._name} is not known; give output, or declare it in the class or "
                "with @table_function"
            )
        self.signature = read_signature(self._eval(), f"{self.owner}, {self._name}")
        self.timer_signature = self._read_timer()
        tables = [parameter.table for parameter in self.signature.tables]
        # Set per object: its function decides.
        self.num_inputs = len(tables)  # type: ignore[misc]
        self.broadcast_input = self.signature.broadcast  # type: ignore[misc]
        self.accepts_changelog = any(table.changelog for table in tables)  # type: ignore[misc]
        self.notify_stateful_sets = any(table.notify_stateful_sets for table in tables)
        self._late_names = self._checked_late(late_outputs)

    @property
    def _name(self) -> str:
        function = self.function
        return type(function).__name__ if isinstance(function, Function) else str(function.__name__)

    def _eval(self) -> Callable[..., Any]:
        is_plain = not isinstance(self.function, Function)
        method: Any = self.function if is_plain else getattr(self.function, "eval", None)
        if method is None:
            raise SchemaError(f"{self.owner}: {self._name} has no method eval; write one")
        return method  # type: ignore[no-any-return]  # ``_check_function`` has checked that it is callable

    def _read_timer(self) -> Signature | None:
        method = getattr(self.function, "on_timer", None) if isinstance(self.function, Function) else None
        if method is None:
            return None
        what = f"{self.owner}, {self._name}.on_timer"
        if not self.signature.of_sets:
            raise SchemaError(f"{what}: timers belong to sets, but the table has row semantics; leave it out")
        if any(one.table.pass_through == "all" for one in self.signature.passing):
            raise SchemaError(
                f"{what}: a timer has no row to pass columns through from; choose pass_through='key'"
            )
        found = read_signature(method, what, timer=True)
        for state in found.states:
            if state not in self.signature.states:
                raise SchemaError(
                    f"{what}: state '{state.name}' is declared differently by eval; use the same name and hint"
                )
        return found

    def _checked_late(self, given: Any) -> dict[str, str]:
        names = {} if given is None else given
        tables = [parameter.name for parameter in self.signature.tables]
        if not isinstance(names, Mapping) or not names.keys() <= set(tables):
            raise SchemaError(
                f"{self.owner}: late_outputs is {given!r}; give a dict from tables of {self._name} "
                f"({', '.join(tables)}) to the names of side outputs"
            )
        for name in names.values():
            check_late_output(name, "event", self.owner)
            check_not_own(name, self.side_outputs, self.owner)
        return dict(names)

    # -- inputs and states ----------------------------------------------------------------------------

    def bind(self, inputs: Sequence[InputSpec]) -> OutputSpec:
        """The declared outputs, and those of late rows."""
        assert self.output is not None
        fields = [*self._passed_fields(inputs), *pa.schema(self.output)]
        check_distinct_names([field.name for field in fields], self.owner)
        output = self._spec_of(pa.schema(fields), inputs)
        for parameter, spec in zip(self.signature.tables, inputs, strict=True):
            owner = f"{self.owner}, table '{parameter.name}'"
            if parameter.table.on_time and spec.event_time is None:
                raise SchemaError(
                    f"{owner}: on_time=True needs an event time but {spec.name} declares none; name its event time "
                    "column, or leave on_time out"
                )
            if not parameter.table.changelog:
                check_insert_only(
                    spec, owner, "TableHint(..., changelog=True) if the function accepts retractions"
                )
            output = output.with_late_rows(self._late_names.get(parameter.name), spec)
        return output

    def _passed_fields(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        """The columns that precede those of the function."""
        passing = self.signature.passing
        if not passing:
            return pa.schema([])
        spec = inputs[self.signature.tables.index(passing[0])]
        if passing[0].table.pass_through == "all":
            return spec.schema
        if not spec.key:
            raise SchemaError(
                f"{self.owner}, table '{passing[0].name}': pass_through='key', but {spec.name} has no key; give it "
                "one, or leave pass_through out"
            )
        return spec.key_schema

    def late_outputs(self, inputs: Sequence[InputSpec]) -> Sequence[str | None]:
        """For each input in order of event time, the side output for rows that are too late for it; None: dropped."""
        return [self._late_names.get(parameter.name) for parameter in self.signature.tables]

    def open(self, context: OperatorContext) -> None:
        """Declare the states in the order of the parameters, then open the function."""
        self._views: Given = {}
        self._values: dict[str, _Value] = {}
        for parameter in self.signature.states:
            state = context.get_state(parameter.descriptor())
            if parameter.is_view:
                self._views[parameter.name] = parameter.view_of(state)
            else:
                self._values[parameter.name] = _Value(parameter, state)
        in_broadcast = {one.name for one in self.signature.states if one.state.broadcast}
        tables: Given = {parameter.name: None for parameter in self.signature.tables}
        self._in_set = tables | self._views
        self._outside = {
            **tables,
            **dict.fromkeys(self._values),
            **{name: view if name in in_broadcast else None for name, view in self._views.items()},
        }
        self._of_set = [name for name in self._views if name not in in_broadcast]
        self._call = self._eval()
        super().open(context)
        passing = self.signature.passing
        self._pass_through = passing[0].table.pass_through if passing else None
        if passing:
            assert self.output is not None
            self._shape = RowShape(self.output, self.owner)
            self._emitted = RowShape(self.output, self.owner, emits=True)

    # -- rows and timers ------------------------------------------------------------------------------

    def process(self, row: Row, ctx: RecordContext) -> Any:
        """Handle one row."""
        given = {**self._in_set, self._table(ctx): row}
        return self._evaluate(given, self._values, self._passing(row, ctx))

    def process_broadcast(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``: there is no set, so the states of sets are None."""
        given = {**self._outside, self._table(ctx): row}
        try:
            result = self._evaluate(given, {}, ctx)
        except (AttributeError, TypeError) as error:
            raise self._of_no_set(error) from error
        return self._of_no_set_later(result) if type(result) is CoroutineType else result

    async def _of_no_set_later(self, result: Any) -> None:
        try:
            await result
        except (AttributeError, TypeError) as error:
            raise self._of_no_set(error) from error

    def _of_no_set(self, error: Exception) -> Exception:
        """``error``, or an explanation if it comes from a state that is None."""
        states = [one.name for one in self.signature.states if not one.state.broadcast]
        if not states or "NoneType" not in str(error):
            return error
        tables = ", ".join(one.name for one in self.signature.tables if one.table.semantics == "broadcast")
        return StateAccessError(
            f"{self.owner}, {self._name}: {error}. A row of the broadcast table '{tables}' has no set, so the other "
            f"tables and the states of sets ({', '.join(states)}) are None; write a state with "
            "StateHint(broadcast=True), or set notify_stateful_sets and use them in the notification"
        )

    def process_notification(self, row: Row, ctx: RecordContext) -> Any:
        """See ``RecordOperator``: the row again, for a set."""
        return self.process(row, ctx)

    @property
    def handles_timers(self) -> bool:
        """Whether timers may be registered: there is an ``on_timer`` for them."""
        return self.timer_signature is not None

    def on_timer(self, timer: Timer, ctx: RecordContext) -> Any:
        """Handle a timer of ``ctx.key`` that is due."""
        signature = self.timer_signature
        assert signature is not None  # else no timer can be registered
        asked = {state.name for state in signature.states}
        given = {name: view for name, view in self._views.items() if name in asked}
        if signature.timer is not None:
            given[signature.timer] = timer
        values = {name: value for name, value in self._values.items() if name in asked}
        return self._run(self.function.on_timer, given, values, self._passing(None, ctx), signature)

    def _passing(self, row: Row | None, ctx: RecordContext) -> Any:
        """``ctx``, extended by the passed-through columns of emitted rows."""
        if self._pass_through is None:
            return ctx
        if self._pass_through == "key":
            return _PassingContext(ctx, ctx.key, self._emitted)
        assert row is not None  # the signature allows no timers and no other tables
        return _PassingContext(ctx, tuple(row), self._emitted)

    def _table(self, ctx: RecordContext) -> str:
        return self.signature.tables[ctx.input_index].name

    def _evaluate(self, given: Given, values: Mapping[str, _Value], ctx: RecordContext) -> Any:
        return self._run(self._call, given, values, ctx, self.signature)

    def _run(
        self,
        call: Callable[..., Any],
        given: Given,
        values: Mapping[str, _Value],
        ctx: RecordContext,
        signature: Signature,
    ) -> Any:
        name = signature.context
        if name is None:
            return self._called(call, given, values, ctx)
        if not signature.may_clear:
            given[name] = ctx
            return self._called(call, given, values, ctx)
        set_context = given[name] = _SetContext(ctx)
        result = self._called(call, given, values, ctx)
        if result is not None:
            return self._clear_later(result, set_context)
        self._clear(set_context)
        return None

    def _called(
        self, call: Callable[..., Any], given: Given, values: Mapping[str, _Value], ctx: RecordContext
    ) -> Any:
        if values:
            return self._with_values(call, given, values, ctx)
        return self._emit(call(**given), ctx)

    async def _clear_later(self, result: Any, context: _SetContext) -> None:
        await resolved(result)
        self._clear(context)

    def _clear(self, context: _SetContext) -> None:
        """Remove the states of the set if the call has requested it."""
        if not context.clears_state:
            return
        for name in self._of_set:
            self._views[name].clear()
        for value in self._values.values():
            value.state.clear()

    async def _with_values(
        self, call: Callable[..., Any], given: Given, values: Mapping[str, _Value], ctx: RecordContext
    ) -> None:
        stored = await combine_all([value.state.async_value() for value in values.values()])
        held = [value.made(found) for value, found in zip(values.values(), stored, strict=True)]
        before = list(map(dataclasses.asdict, held))
        given.update(zip(values, held, strict=True))
        await resolved(self._emit(call(**given), ctx))
        for value, old, now in zip(values.values(), before, held, strict=True):
            value.keep(old, dataclasses.asdict(now))

    def _emit(self, result: Any, ctx: RecordContext) -> Any:
        """Emit the rows that a call has returned, as +I; ``ctx.emit`` emits other kinds."""
        if result is None:
            return None
        values = self._shape.values
        if isinstance(ctx, _PassingContext):
            put = ctx.put
            return emit_rows(result, lambda row: put(values(row)), self.owner)
        return emit_rows(result, lambda row: ctx.emit(*values(row)), self.owner)


class _Context:
    """``ctx``, and what a subclass adds to it."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: RecordContext) -> None:
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


class _PassingContext(_Context):
    """``ctx``, but emitted rows have the values ``passed`` before those of the function.

    ``shape``: that of the function's values.
    """

    __slots__ = ("_passed", "_shape")

    def __init__(self, ctx: RecordContext, passed: tuple[Any, ...], shape: RowShape) -> None:
        super().__init__(ctx)
        self._passed = passed
        self._shape = shape

    def emit(
        self, *values: Any, kind: RowKind = RowKind.INSERT, output: str | None = None, **columns: Any
    ) -> None:
        if output is not None:
            self._ctx.emit(*values, kind=kind, output=output, **columns)
        else:
            self.put(self._shape.emitted(values, columns), kind)

    def put(self, values: tuple[Any, ...], kind: RowKind = RowKind.INSERT) -> None:
        """Emit a row with one value per column."""
        self._ctx.emit(*self._passed, *values, kind=kind)


class _SetContext(_Context):
    """See ``TableContext``: ``ctx``, and whether to clear the set when the call has ended."""

    __slots__ = ("clears_state",)

    def __init__(self, ctx: RecordContext) -> None:
        super().__init__(ctx)
        self.clears_state = False

    def clear_all_state(self) -> None:
        self.clears_state = True

    def clear_all_timers(self) -> None:
        self._ctx.timers.delete_all()

    def clear_all(self) -> None:
        self.clear_all_state()
        self.clear_all_timers()


class _Value:
    """A dataclass of a set and the state that stores it."""

    def __init__(self, parameter: StateParameter, state: ValueState[dict[str, Any]]) -> None:
        self.state = state
        self._kind: Callable[..., Any] = parameter.kind
        self._new = dataclasses.asdict(parameter.kind())

    def made(self, stored: dict[str, Any] | None) -> Any:
        """The stored value, or a new one."""
        return self._kind() if stored is None else self._kind(**stored)

    def keep(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Write the value if it has changed; a value equal to a new one is cleared."""
        if now != before:
            self.state.update(None if now == self._new else now)
