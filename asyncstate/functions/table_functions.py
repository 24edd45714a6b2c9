"""Process table functions, declared by type hints.

Owns: ``ProcessTableFunction``, the hints of its tables (``SetTable``, ``RowTable``, ``BroadcastTable``, ``TableHint``)
and of its states (``StateHint``), and ``table_function``, which declares a plain function. ``asyncstate.operators``
runs them.
Invariant: declarations only; a function sees rows, views and contexts and knows nothing of the engine.
Must not import state, storage, execution, runtime or Spark.

Source: Flink's ``ProcessTableFunction`` (FLIP-440, FLINK-39254), its ``ArgumentTrait`` and ``StateHint``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeVar

from asyncstate.codec import SchemaLike
from asyncstate.functions.process import Function
from asyncstate.operator import RecordContext, Row

F = TypeVar("F", bound=Callable[..., Any])

TableSemantics = Literal["row", "set", "broadcast"]
PassThrough = Literal["key", "all"]

_DECLARED: Final = "__table_function__"


@dataclass(frozen=True)
class TableHint:
    """How the rows of a table reach a function: ``Annotated[Row, TableHint("set", ...)]``.

    ``semantics``: "set": the rows of a key are one set, with its own state and timers. "row": each row is processed by
    itself. "broadcast": every partition gets all rows, which may write broadcast state and nothing else.
    ``changelog``: the function can retract rows; without it an input that is a changelog is refused. ``on_time``: the
    input must have an event time. ``notify_stateful_sets``, of a broadcast table: after each of its rows, every set
    that has state is notified of it. ``pass_through``: columns that precede those of each row that the function emits,
    but not in side outputs. "key": the key columns of the set, under their names in this table. "all": all columns of
    the current row, for a function with no other table except a broadcast one, and without timers.
    """

    semantics: TableSemantics
    changelog: bool = False
    on_time: bool = False
    notify_stateful_sets: bool = False
    pass_through: PassThrough | None = None


SetTable = Annotated[Row, TableHint("set")]
"""A row of a set. ``SetTable | None`` where a function has several tables: all but one argument are None."""
RowTable = Annotated[Row, TableHint("row")]
"""A row that is processed by itself."""
BroadcastTable = Annotated[Row, TableHint("broadcast")]
"""A row that every partition gets."""


@dataclass(frozen=True, init=False)
class StateHint:
    """Further details of a state: ``Annotated[ValueView[list[int]], StateHint(pa.list_(pa.int64()))]``.

    ``types``: Arrow types, or ``int``, ``float``, ``str``, ``bytes``, ``bool``, in place of those in the brackets of
    the hint: one, for a MapView two. ``default``: of a ValueView. ``ttl``: a StateTtl. ``broadcast``: a view that is
    the same for all sets, and written only by rows of the broadcast table. ``pickled``: see the descriptors.
    """

    types: tuple[Any, ...]
    default: Any
    ttl: Any
    broadcast: bool
    pickled: bool

    def __init__(
        self,
        *types: Any,
        default: Any = None,
        ttl: Any = None,
        broadcast: bool = False,
        pickled: bool = False,
    ) -> None:
        given = {"types": types, "default": default, "ttl": ttl, "broadcast": broadcast, "pickled": pickled}
        for name, value in given.items():
            object.__setattr__(self, name, value)


class ProcessTableFunction(Function):
    """Rows of one or several tables, with state and timers that it declares as parameters.

    ``eval`` is called for each row, with the row as the argument of its table and None for the other tables. Its
    parameters are identified by their type hints, in any order:

    * ``SetTable``, ``RowTable``, ``BroadcastTable`` or ``Annotated[Row, TableHint(...)]``: a table, in the order of
      the inputs. There are tables with set semantics, or one with row semantics, and at most one broadcast table.
    * ``ValueView[T]``, ``ListView[T]``, ``MapView[K, V]``: state of the set under the parameter's name, read on
      request. ``Annotated[..., StateHint(...)]`` adds details.
    * a dataclass whose fields all have defaults: a value of the set that is read before each call, and written after
      it if it has changed. A value that equals a new one is not stored.
    * ``RecordContext``: times, the key, timers, ``emit``; or ``TableContext``, which can also clear the set.

    ``eval`` yields rows of ``output``, returns an iterable of them, or emits them with ``ctx.emit``; it may be an
    ``async def``. ``on_timer`` has the same states, by name, and a ``Timer``. For a broadcast row the states of sets
    are None; in a notification they are those of the notified set.
    """

    output: ClassVar[SchemaLike | None] = None
    """The columns of the emitted rows; None: they are passed to the operator."""
    side_outputs: ClassVar[Mapping[str, SchemaLike] | None] = None
    """Further outputs, for ``ctx.emit(..., output=name)``; None: they are passed to the operator."""
    eval: Callable[..., Any]


class TableContext(RecordContext, Protocol):
    """``RecordContext`` with methods for a set as a whole.

    Source: the ``Context`` of Flink's ``ProcessTableFunction``.
    """

    def clear_all_state(self) -> None:
        """Remove all states of the set at the end of the call, including what the call writes."""

    def clear_all_timers(self) -> None:
        """Delete all timers of the set: ``timers.delete_all()``."""

    def clear_all(self) -> None:
        """Clear both state and timers."""


def table_function(
    output: SchemaLike, side_outputs: Mapping[str, SchemaLike] | None = None
) -> Callable[[F], F]:
    """Decorator of a plain function that is the ``eval`` of a process table function; declares its outputs, as pyarrow
    schemas or Spark DDL texts.

    The function is unchanged, and can be called and tested as before.
    """

    def declare(function: F) -> F:
        setattr(function, _DECLARED, (output, side_outputs))
        return function

    return declare


def declared_outputs(function: object) -> tuple[SchemaLike | None, Mapping[str, SchemaLike] | None]:
    """The outputs that a function's class or decorator declares: output and side outputs, None if undeclared."""
    if isinstance(function, ProcessTableFunction):
        return function.output, function.side_outputs
    found: tuple[SchemaLike | None, Mapping[str, SchemaLike] | None] = getattr(
        function, _DECLARED, (None, None)
    )
    return found
