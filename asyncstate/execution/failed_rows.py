"""Rows whose failure goes to a side output instead of failing the micro-batch.

Owns: ``GuardedRecord``; ``keeping_errors``, which catches the exceptions of the operator's code; ``note_changes``,
which makes a state note that the current record or bundle has changed it; ``is_of_row``, which exceptions are of a row.
Invariant: a row that failed has changed neither state nor timers, and has emitted nothing, or the micro-batch fails.
Must not import storage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import CoroutineType
from typing import Any, Final

from asyncstate.changelog import RowKind
from asyncstate.errors import AsyncStateError
from asyncstate.execution.record import Record, SideRow
from asyncstate.operator import Timers
from asyncstate.specs import ERRORS_OUTPUT, RowError
from asyncstate.state.columnar.state_columns import BundleState
from asyncstate.state.keyed.state_context import KeyedState

CHANGED_HINT: Final = (
    f"The row cannot go to the side output '{ERRORS_OUTPUT}', because it had already changed state or used timers; let "
    "the operator check the row before its first change. "
)
CHANGED_BY_BUNDLE_HINT: Final = (
    f"Its rows cannot go to the side output '{ERRORS_OUTPUT}', because the operator had already changed state; let it "
    "compute all that can fail before its first change. "
)
BUNDLE_WRITES: Final = frozenset(
    {
        "append",
        "put",
        "put_counts",
        "remove",
        "remove_all",
        "remove_entries",
        "remove_up_to",
        "remove_with",
        "write",
    }
)
"""The methods that change column states."""
_READS: Final = frozenset(
    {
        "at",
        "async_contains",
        "async_entries",
        "async_get",
        "async_is_empty",
        "async_items",
        "async_keys",
        "async_value",
        "async_values",
        "contains",
        "entries",
        "get",
        "is_empty",
        "items",
        "keys",
        "name",
        "value",
        "values",
    }
)
_WRITING_OPERATORS: Final = ("__setitem__", "__delitem__")


class GuardedRecord(Record):
    """A row whose exception is kept in ``error`` until it has ended. ``changed``: it changed state or used timers."""

    __slots__ = ("changed", "error")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.changed = False
        self.error: BaseException | None = None

    @property
    def timers(self) -> Timers:
        """See ``RecordContext``; nothing but a change is possible with them."""
        self.changed = True
        return self.frame.timers

    def accepts(self, error: BaseException) -> bool:
        """Keep the first exception of the user's code."""
        if not is_of_row(error):
            return False
        if self.error is None:
            self.error = error
        return True

    def failed_row(self) -> SideRow:
        """The row for the side output, which replaces all that the record has emitted."""
        assert self.error is not None
        values = (*self.item, *RowError.of(self.error))
        return SideRow(RowKind.INSERT, values, self.encoded_key, ERRORS_OUTPUT)


def is_of_row(error: BaseException | None) -> bool:
    """Whether an exception may be due to a row: errors of this package say that the program or the store is wrong."""
    return isinstance(error, Exception) and not isinstance(error, AsyncStateError)


def keeping_errors(process: Callable[[Any, Any], Any]) -> Callable[[Any, Record], Any]:
    """``process`` of an operator, for GuardedRecords."""

    def run(row: Any, record: Record) -> Any:
        try:
            result = process(row, record)
        except Exception as error:
            if not record.accepts(error):
                raise
            return None
        return _steps(result, record) if type(result) is CoroutineType else result

    return run


async def _steps(coroutine: CoroutineType[Any, Any, Any], record: Record) -> Any:
    try:
        return await coroutine
    except Exception as error:
        if not record.accepts(error):
            raise
        return None


def note_changes(state: object) -> None:
    """Let ``state`` note from now on, in the current record or of the bundle, that it was changed; other states than
    those of keys can be changed by neither."""
    if isinstance(state, KeyedState | BundleState):
        kind: Any = type(state)  # mypy takes the hash of the class for that of its objects
        state.__class__ = _noting(kind)


@functools.cache
def _noting(kind: Any) -> Any:
    if issubclass(kind, BundleState):
        names, note = [*BUNDLE_WRITES], _note_bundle
    else:
        names = [name for name in dir(kind) if not name.startswith("_") and name not in _READS]
        names, note = [*names, *_WRITING_OPERATORS], _note_record
    known = {name: getattr(kind, name) for name in names if hasattr(kind, name)}
    methods = {name: _noted(method, note) for name, method in known.items() if callable(method)}
    return type(kind.__name__, (kind,), {"__slots__": (), "__module__": kind.__module__, **methods})


def _note_record(state: Any) -> None:
    record = state._sink.current
    if type(record) is GuardedRecord:
        record.changed = True


def _note_bundle(state: Any) -> None:
    state._sink.changed = True


def _noted(method: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def noted(self: Any, *given: Any, **named: Any) -> Any:
        note(self)
        return method(self, *given, **named)

    return noted
