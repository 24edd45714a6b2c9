"""The declarations of a process table function: the type hints of its parameters.

Owns: ``Signature``, ``read_signature`` and the checks of a signature.
Invariant: a signature that exists can be run: its tables can be combined, and each of its states can be declared.
Must not import anything of ``asyncstate`` but ``errors``, ``functions``, ``operator``, ``state``.

Source: the signatures of Flink's ``ProcessTableFunction``.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NoReturn, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from asyncstate.errors import AsyncStateError, SchemaError
from asyncstate.functions.table_functions import StateHint, TableContext, TableHint
from asyncstate.operator import RecordContext, Row, StateDescriptor, Timer
from asyncstate.state import (
    BroadcastStateDescriptor,
    BroadcastValue,
    ListStateDescriptor,
    ListView,
    MapStateDescriptor,
    MapView,
    ValueStateDescriptor,
    ValueView,
)

_SEMANTICS: Final = ("row", "set", "broadcast")
_REGULAR_MAX: Final = 3
_VIEWS: Final = {ValueView: 1, ListView: 1, MapView: 2}
_UNIONS: Final = (Union, types.UnionType)
_EXPECTED: Final = (
    "SetTable, RowTable, BroadcastTable or Annotated[Row, TableHint(...)] for a table; ValueView[...], ListView[...], "
    "MapView[...] or a dataclass for state; RecordContext"
)


@dataclass(frozen=True)
class TableParameter:
    """A parameter that receives the rows of a table."""

    name: str
    table: TableHint


@dataclass(frozen=True)
class StateParameter:
    """A parameter that receives a state: a view (its class), or a dataclass whose fields are stored as a struct."""

    name: str
    kind: type
    types: tuple[Any, ...]
    state: StateHint

    @property
    def is_view(self) -> bool:
        """Whether the function reads and writes the state itself."""
        return self.kind in _VIEWS

    def view_of(self, state: Any) -> Any:
        """The view over ``state``, which was declared with ``descriptor``."""
        if self.state.broadcast and self.kind is ValueView:
            return ValueView(BroadcastValue(state, self.state.default))
        return self.kind(state)

    def descriptor(self) -> StateDescriptor[Any]:
        """The declaration of the state. Raises SchemaError or StateDeclarationError for types it cannot have."""
        more: dict[str, Any] = {"ttl": self.state.ttl, "pickled": self.state.pickled}
        if self.state.broadcast:
            keys = () if self.kind is MapView else (int,)
            return BroadcastStateDescriptor(self.name, *keys, *self.types, **more)
        if self.kind is MapView:
            return MapStateDescriptor(self.name, *self.types, **more)
        if self.kind is ListView:
            return ListStateDescriptor(self.name, *self.types, **more)
        kind = self.types[0] if self.types else None
        return ValueStateDescriptor(self.name, kind, self.state.default, **more)


@dataclass(frozen=True)
class Signature:
    """The parameters of a method. ``context`` and ``timer`` name the parameters that receive them; ``may_clear``: the
    context is a ``TableContext``."""

    tables: tuple[TableParameter, ...]
    states: tuple[StateParameter, ...]
    context: str | None
    timer: str | None
    may_clear: bool = False

    @property
    def broadcast(self) -> int | None:
        """The index of the broadcast table."""
        semantics = [parameter.table.semantics for parameter in self.tables]
        return semantics.index("broadcast") if "broadcast" in semantics else None

    @property
    def passing(self) -> list[TableParameter]:
        """The tables with columns that are passed through."""
        return [parameter for parameter in self.tables if parameter.table.pass_through is not None]

    @property
    def of_sets(self) -> bool:
        """Whether rows belong to sets, which have state and timers."""
        return any(parameter.table.semantics == "set" for parameter in self.tables)


def read_signature(method: Callable[..., Any], owner: str, timer: bool = False) -> Signature:
    """The declarations in the hints of ``method``; ``owner`` names it in errors. ``timer``: it is called for timers.

    Raises SchemaError for a parameter of a kind that a method cannot have, and for tables and states that cannot be
    combined.
    """
    hints = _hints(method, owner)
    kinds: tuple[type, ...] = (TableParameter, StateParameter, RecordContext, TableContext, Timer)
    found: dict[type, list[Any]] = {kind: [] for kind in kinds}
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise SchemaError(f"{owner}: parameter '{parameter}' is variadic; name each parameter")
        kind, value = _parameter(name, hints.get(name), owner)
        found[kind].append(value)
    signature = Signature(
        tuple(found[TableParameter]),
        tuple(found[StateParameter]),
        _only([*found[RecordContext], *found[TableContext]], "RecordContext", owner),
        _only(found[Timer], "Timer", owner),
        bool(found[TableContext]),
    )
    if timer:
        _check_timer(signature, owner)
    else:
        _check_tables(signature, owner)
        _check_states(signature, owner)
    return signature


def _only(names: list[str], what: str, owner: str) -> str | None:
    if len(names) > 1:
        raise SchemaError(f"{owner}: parameters {_named(names)} are all {what}; keep one")
    return names[0] if names else None


def _hints(method: Callable[..., Any], owner: str) -> Mapping[str, Any]:
    try:
        return get_type_hints(method, include_extras=True)
    except Exception as error:  # evaluating a name in a hint can raise anything
        raise SchemaError(
            f"{owner}: its type hints cannot be read: {type(error).__name__}: {error}. Define the names of hints at "
            "the top of the function's module"
        ) from error


def _parameter(name: str, hint: Any, owner: str) -> tuple[type, Any]:
    """The kind of a parameter, and its name or its declaration."""
    kind, more = _unwrapped(hint)
    if kind in (RecordContext, TableContext, Timer):
        return kind, name
    table = next((one for one in more if isinstance(one, TableHint)), None)
    if table is not None and kind is Row:
        return TableParameter, TableParameter(name, table)
    state = next((one for one in more if isinstance(one, StateHint)), StateHint())
    if get_origin(kind) in _VIEWS or kind in _VIEWS:
        return StateParameter, _view(name, kind, state, owner)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        types = state.types or (_struct(name, kind, owner),)
        return StateParameter, StateParameter(name, kind, types, state)
    shown = "no type hint" if hint is None else f"the hint {hint!r}"
    raise SchemaError(f"{owner}: parameter '{name}' has {shown}; give {_EXPECTED}")


def _unwrapped(hint: Any) -> tuple[Any, list[Any]]:
    """A hint without ``| None`` and ``Annotated``, and its annotations."""
    more: list[Any] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *others = get_args(hint)
            more += others
        elif get_origin(hint) in _UNIONS:
            left = [one for one in get_args(hint) if one is not type(None)]
            if len(left) != 1:
                return hint, more
            (hint,) = left
        else:
            return hint, more


def _view(name: str, hint: Any, state: StateHint, owner: str) -> StateParameter:
    kind = get_origin(hint) or hint
    hinted = get_args(hint)[
        : _VIEWS[kind]
    ]  # the second one of a ValueView is the type of reads, for type checkers
    declared = () if state.pickled and kind is not MapView else state.types or hinted
    if state.pickled:
        declared = declared[:1]  # the keys of a map, which are never pickled
    wanted = _VIEWS[kind] - state.pickled
    if len(declared) != wanted:
        raise SchemaError(
            f"{owner}: state '{name}' needs {wanted} types and has {len(declared)}; write them in brackets, such as "
            f"{kind.__name__}[{', '.join(['str'] * _VIEWS[kind])}], or give StateHint(pa...)"
        )
    return StateParameter(name, kind, tuple(declared), state)


def _struct(name: str, kind: type, owner: str) -> pa.StructType:
    """The stored type of a dataclass."""
    hints = _hints(kind, f"{owner}, state '{name}'")
    return pa.struct(
        [pa.field(one.name, _field_type(one.name, hints, owner, kind)) for one in dataclasses.fields(kind)]
    )


def _field_type(name: str, hints: Mapping[str, Any], owner: str, kind: type) -> pa.DataType:
    hint, more = _unwrapped(hints[name])
    arrow = next((one for one in more if isinstance(one, (pa.DataType, str))), hint)
    try:
        return ValueStateDescriptor(name, arrow).type
    except AsyncStateError as error:
        raise SchemaError(
            f"{owner}: field '{name}' of {kind.__name__} has the hint {hints[name]!r}, which is not a state type; "
            "give int, float, str, bytes, bool or Annotated[list[int], 'array<bigint>']"
        ) from error


# -- combinations -------------------------------------------------------------------------------------------


def _check_tables(signature: Signature, owner: str) -> None:
    tables = signature.tables
    of = {
        semantics: [one.name for one in tables if one.table.semantics == semantics]
        for semantics in _SEMANTICS
    }

    def refuse(what: str) -> NoReturn:
        raise SchemaError(f"{owner}: {what}")

    unknown = next((one for one in tables if one.table.semantics not in _SEMANTICS), None)
    if unknown is not None:
        refuse(
            f"table '{unknown.name}' has {unknown.table.semantics!r} semantics; choose 'row', 'set' or 'broadcast'"
        )
    if signature.timer is not None:
        refuse(f"parameter '{signature.timer}' is a Timer; those are for on_timer")
    if len(of["broadcast"]) > 1:
        refuse(f"tables {_named(of['broadcast'])} are broadcast; only one can be")
    if not of["row"] and not of["set"]:
        refuse("it has no table with row or set semantics; give a parameter the hint SetTable or RowTable")
    if of["row"] and len(of["row"]) + len(of["set"]) > 1:
        others = _named(of["set"] or of["row"][1:])
        refuse(
            f"table '{of['row'][0]}' has row semantics, which cannot be combined with {others}; give all tables set "
            "semantics, so that rows meet by key"
        )
    if len(of["set"]) > _REGULAR_MAX:
        refuse(f"tables {_named(of['set'])} are too many; at most {_REGULAR_MAX} can have set semantics")
    _check_passed(signature, refuse)
    for one in tables:
        if one.table.notify_stateful_sets and (one.table.semantics != "broadcast" or not of["set"]):
            refuse(
                f"table '{one.name}' has notify_stateful_sets, which needs another table with set semantics"
            )


def _check_passed(signature: Signature, refuse: Callable[[str], NoReturn]) -> None:
    passing = signature.passing
    if len(passing) > 1:
        refuse(
            f"tables {_named([one.name for one in passing])} have pass_through; a row has the columns of one"
        )
    for one in passing:
        what, given = (
            f"table '{one.name}' has pass_through={one.table.pass_through!r}",
            one.table.pass_through,
        )
        if given not in ("key", "all"):
            refuse(f"{what}; choose 'key' or 'all', or leave it out")
        if one.table.semantics == "broadcast":
            refuse(f"{what}, but its rows emit nothing; leave it out")
        if given == "key" and one.table.semantics == "row":
            refuse(f"{what}, but row semantics, which have no key; choose 'all'")
        others = [other for other in signature.tables if other is not one]
        if given == "all" and any(
            other.table.semantics != "broadcast" or other.table.notify_stateful_sets for other in others
        ):
            refuse(f"{what}, but rows are also emitted without a row of it; choose 'key'")


def _check_states(signature: Signature, owner: str) -> None:
    for parameter in signature.states:
        what = f"{owner}: state '{parameter.name}'"
        broadcast = parameter.state.broadcast
        if broadcast and not parameter.is_view:
            raise SchemaError(
                f"{what} is broadcast, but a dataclass belongs to a set; declare a ValueView, a ListView or a MapView"
            )
        if parameter.is_view and parameter.state.default is not None and parameter.kind is not ValueView:
            raise SchemaError(
                f"{what} has a default, which only a ValueView supports; leave it out of StateHint"
            )
        if broadcast and signature.broadcast is None:
            raise SchemaError(f"{what} is broadcast, but there is no broadcast table to write it; add one")
        if not broadcast and not signature.of_sets:
            raise SchemaError(
                f"{what} belongs to a set, but the table has row semantics; give it the hint SetTable, or "
                "StateHint(broadcast=True)"
            )
        if not parameter.is_view:
            _check_value(what, parameter)
        try:
            parameter.descriptor()
        except AsyncStateError as error:
            raise SchemaError(f"{owner}: {error}") from error


def _check_value(what: str, parameter: StateParameter) -> None:
    if parameter.state.default is not None or parameter.state.pickled:
        raise SchemaError(
            f"{what} is a dataclass, which has defaults and types of its own; leave them out of StateHint"
        )
    try:
        parameter.kind()
    except TypeError as error:
        raise SchemaError(
            f"{what}: cannot create a {parameter.kind.__name__}: {error}; give all fields defaults"
        ) from error


def _check_timer(signature: Signature, owner: str) -> None:
    if signature.tables:
        raise SchemaError(
            f"{owner}: parameter '{signature.tables[0].name}' is a table, but a timer has no row; leave it out"
        )


def _named(names: list[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
