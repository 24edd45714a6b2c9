"""Errors that end a micro-batch: unhandled failures and requests that are never answered, and their names.

Owns: ``Failures`` and the texts of the errors that leave a controller; where an exception of a callback was raised: in
which step of a chain of futures, over the answer of which state.
Invariant: an error is named once, with operator, state and key as far as they are known, and its cause is the exception
of the user's code or of the store. The lookup happens only after a failure, from the frames, so that chains cost
nothing; what cannot be determined is None.
Must not import runtime or operators.
"""

from __future__ import annotations

import dis
import os
import sys
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from types import CodeType, CoroutineType, FrameType, TracebackType
from typing import Any, Final, NoReturn

import pyarrow as pa

from asyncstate.codec import STATE_ID_AT
from asyncstate.errors import AsyncStateError, FutureStateError, OperatorError, StoreError
from asyncstate.execution.failed_rows import CHANGED_HINT, GuardedRecord
from asyncstate.execution.outside_calls import OutsideCall
from asyncstate.execution.reads import ListGet
from asyncstate.execution.record import Record, SideRow
from asyncstate.futures import StateFuture, settling
from asyncstate.state.keyed.state_context import StateContext
from asyncstate.state.timers import NAMED_TIMERS, TIMERS_BY_TIME, DueTimer

_FIRST_DECLARED: Final = 8  # ids below are the framework's own
_OWN_STATES: Final = {TIMERS_BY_TIME: "timers", NAMED_TIMERS: "timers"}
_REMEMBERED: Final = 16  # failures whose subject is kept; older ones were recovered from
_SHOWN: Final = 3  # of the unanswered requests
_NO_LOOP_ERRORS: Final = frozenset({"AsyncLibraryNotFoundError", "NoEventLoopError"})  # of sniffio and anyio

AWAIT_HINT: Final = (
    "an operator can await only StateFutures, because no event loop runs it; call an external service with `await "
    "ctx.call(function, *arguments)`"
)
_ARRAY_HINT: Final = (
    "A column of a bundle has more than the 2 GiB that an Arrow array of strings or bytes holds; lower "
    "async-state.bundle-size, so that a bundle has fewer rows and keys. "
)


class Failures:
    """The failed futures of one controller, and how its errors are named."""

    def __init__(self, uid: str, state_names: Mapping[int, str]) -> None:
        self.uid = uid
        self.state_names = state_names
        self.unhandled: list[tuple[StateFuture[Any], Record | None]] = []
        """Failed futures from which nothing was derived when they failed, and the record under which they did."""
        self.answering: bytes | None = None
        """The store key of the read whose answer the running callbacks have got; None while there is none."""
        self._subjects: deque[tuple[BaseException, str]] = deque(maxlen=_REMEMBERED)
        self._origins: deque[tuple[BaseException, _CallSite | bytes | None]] = deque(maxlen=_REMEMBERED)
        self._named: AsyncStateError | None = None

    # -- futures ------------------------------------------------------------------------------------------

    def failed(self, future: StateFuture[Any], record: Record | None) -> None:
        """Remember that ``future`` has failed under ``record``, and that nothing was derived from it."""
        self.unhandled.append((future, record))
        error = future._value
        if not any(known is error for known, _ in self._origins):
            self._origins.append((error, _function_given() or self.answering))

    def raise_for(self, record: Record | None) -> None:
        """Raise the first unhandled failure of ``record``; its others are dropped."""
        mine = [future for future, failed in self.unhandled if failed is record]
        self.unhandled[:] = [entry for entry in self.unhandled if entry[1] is not record]
        for future in mine:
            self._raise_unless_handled(future, record)

    def raise_all(self) -> None:
        """Raise the first unhandled failure of any record."""
        failures = self.unhandled.copy()
        self.unhandled.clear()
        for future, record in failures:
            self._raise_unless_handled(future, record)

    def _raise_unless_handled(self, future: StateFuture[Any], record: Record | None) -> None:
        error = future.exception()
        if error is None or future.failure_observed or (record is not None and record.accepts(error)):
            return
        self.raise_named(error, record)

    def failed_row(self, record: GuardedRecord) -> SideRow:
        """The row for the side output of one that failed. Raises OperatorError if it has changed anything."""
        if record.changed and record.error is not None:
            self.raise_named(record.error, record, CHANGED_HINT)
        return record.failed_row()

    # -- names --------------------------------------------------------------------------------------------

    def read_failed(self, error: BaseException, store_key: bytes) -> None:
        """Remember that ``error`` is of the state under ``store_key``, for the message if the error is reported."""
        self._subjects.append((error, state_label(store_key, self.state_names)))

    def call_failed(self, error: BaseException, name: str) -> None:
        """Remember that ``error`` is of the outside call of a function called ``name``."""
        self._subjects.append((error, f"call of {name}"))

    def raise_named(self, error: BaseException, record: Record | None, hint: str = "") -> NoReturn:
        """Raise ``error`` as an OperatorError or StoreError that says where it happened; once named, unchanged.
        ``hint``: a sentence on what to do."""
        if error is self._named:
            raise error
        place = ", ".join(self._place(error, record))
        if isinstance(error, StoreError):
            self._named = StoreError(
                f"{place}: {_sentence(error)} The micro-batch is not committed; check the disk under "
                "async-state.local-dir and restart the query"
            )
        else:
            hint = f"{AWAIT_HINT[0].upper()}{AWAIT_HINT[1:]}. " if _looked_for_a_loop(error) else hint
            hint = _ARRAY_HINT if _beyond_an_array(error) else hint
            self._named = OperatorError(
                f"{place}: {type(error).__name__}: {_sentence(error)} {hint}The micro-batch is not committed; fix the "
                "operator or the input and restart the query"
            )
        raise self._named from error

    def misused(self, record: Record | None, text: str) -> FutureStateError:
        """The error for misused futures or coroutines; named already."""
        key = "" if record is None else f", key {record.key!r}"
        self._named = FutureStateError(f"operator '{self.uid}'{key}: {text}")
        return self._named

    def never(self, record: Record | None, future: str) -> FutureStateError:
        """The error for a future that only the record's own code could complete, and does not."""
        return self.misused(
            record,
            f"{future} a future that nothing completes; derive it from a state request or from ctx.call, or complete "
            "it in one of the record's own callbacks",
        )

    def raise_if_of_store(self, error: BaseException | None) -> None:
        """Raise ``error`` by name if it is the store's and comes from the framework's own reads, e.g. of timers."""
        if isinstance(error, StoreError) and error is not self._named:
            self.raise_named(error, None)

    def named(self, error: AsyncStateError) -> AsyncStateError:
        """``error``, which itself says where it happened."""
        self._named = error
        return error

    def unanswered(self, outstanding: Sequence[tuple[Any, float]]) -> str:
        """The watchdog's report on ``outstanding``, the oldest first: for how long, and what to do."""
        calls = sum(type(ticket) is OutsideCall for ticket, _ in outstanding)
        reads = len(outstanding) - calls
        waiting = " and ".join(
            f"{count} {what}" for count, what in ((reads, "list gets"), (calls, "outside calls")) if count
        )
        oldest = "; ".join(
            f"{_describe(ticket, self.state_names)}, for {seconds:.1f} s"
            for ticket, seconds in outstanding[:_SHOWN]
        )
        remedies = []
        if reads:
            remedies.append("check the disk under the local store")
        if calls:
            remedies.append(
                "in functions of ctx.call, await all waits and react to cancellation, or make them plain functions, "
                "which run on threads"
            )
        return (
            f"operator '{self.uid}': {waiting} have not answered; the oldest: {oldest}. "
            f"To do: {'; '.join(remedies)}"
        )

    def _place(self, error: BaseException, record: Record | None) -> list[str]:
        place = [f"operator '{self.uid}'"]
        subject = next((subject for known, subject in self._subjects if known is error), None)
        if subject is None and (state := _state_in(error.__traceback__)) is not None:
            subject = f"state '{state}'"
        if subject is not None:
            place.append(subject)
        elif record is not None and (step := _step_of(error.__traceback__)) is not None:
            place += [*self._origin(error), f"callback of {step}"]
        if record is not None:
            place.append(f"key {record.key!r}")
            if isinstance(record.item, DueTimer):
                place.append(_timer_text(record.item))
        return place

    def _origin(self, error: BaseException) -> list[str]:
        """The state in whose callback ``error`` was raised, if known."""
        origin = next((origin for known, origin in self._origins if known is error), None)
        if isinstance(origin, tuple):
            name = _state_asked(*origin)
            return [] if name is None else [f"state '{name}'"]
        return [] if origin is None else [state_label(origin, self.state_names)]


def throw_into(coroutine: CoroutineType[Any, Any, Any], error: Exception) -> NoReturn:
    """Raise ``error`` where ``coroutine`` awaits, so that the traceback shows the line, and end it."""
    try:
        coroutine.throw(error)
    except StopIteration:
        pass  # the coroutine ignored the error
    finally:
        coroutine.close()
    raise error


def state_label(store_key: bytes, state_names: Mapping[int, str]) -> str:
    """The name of the state of a store key in messages."""
    state_id = store_key[STATE_ID_AT]
    if state_id < _FIRST_DECLARED:
        return _OWN_STATES.get(state_id, "buffered rows in order")
    return f"state '{state_names.get(state_id, 'unknown')}'"


def _timer_text(timer: DueTimer) -> str:
    name = "" if timer.name is None else f" {timer.name!r}"
    return f"timer{name} at {timer.time}"


def _describe(ticket: Any, state_names: Mapping[int, str]) -> str:
    if isinstance(ticket, OutsideCall):
        return f"call of {ticket.name}" + ("" if ticket.record is None else f", key {ticket.record.key!r}")
    get: ListGet = ticket
    store_key, record = get.wanted.about(get.start)
    state = state_label(store_key, state_names)
    if record is None:
        return f"{state}, store key {store_key.hex()}"
    others = f" and {len(get.keys) - 1} more" if len(get.keys) > 1 else ""
    return f"{state}, key {record.key!r}{others}"


def _state_in(trace: TracebackType | None) -> str | None:
    """The state in whose methods the error was raised. Determined afterwards, so that calls of a state cost nothing."""
    name = None
    for frame, _ in traceback.walk_tb(trace):
        binding = getattr(frame.f_locals.get("self"), "_binding", None)
        if isinstance(binding, StateContext):
            name = binding.name
    return name


def _sentence(error: BaseException) -> str:
    text = str(error)
    return text if text.endswith(".") else f"{text}."


def _looked_for_a_loop(error: BaseException) -> bool:
    """True for errors of asyncio, sniffio and anyio in code that runs on no event loop."""
    if type(error).__name__ in _NO_LOOP_ERRORS:
        return True
    return isinstance(error, RuntimeError) and "no running event loop" in str(error)


def _beyond_an_array(error: BaseException) -> bool:
    """True for Arrow's error where offsets of 32 bits are too small."""
    said = str(error)
    invalid = isinstance(error, pa.ArrowInvalid) and ("overflow" in said or "array too large" in said)
    return invalid or isinstance(error, pa.ArrowCapacityError)


# -- where a callback was given, and which state it is about ----------------------------------------------

_STEPS: Final[dict[CodeType, str]] = {
    settling.apply.__code__: "then_apply",
    settling.accept.__code__: "then_accept",
    settling.compose.__code__: "then_compose",
    settling.recover.__code__: "recover",
    settling.finally_.__code__: "finally_",
    StateFuture.then_apply.__code__: "then_apply",
    StateFuture.then_accept.__code__: "then_accept",
    StateFuture.then_compose.__code__: "then_compose",
}
_FILES: Final = frozenset(code.co_filename for code in _STEPS)
_EXECUTION: Final = os.path.dirname(__file__)
_NAMES: Final = ("LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES: Final = ("LOAD_ATTR", "LOAD_METHOD")
_ENDS: Final = ("STORE_", "POP_TOP", "RETURN_", "POP_JUMP", "JUMP_")  # of a statement, or nearly one
_BETWEEN: Final = ("CACHE", "PUSH_NULL", "RESUME", "COPY_FREE_VARS", "EXTENDED_ARG")

_CallSite = tuple[FrameType, int]
"""The expression that passed a function to an already settled future: the instruction at this offset of a frame."""


def _function_given() -> _CallSite | None:
    """Called while a failure is reported: where the failed function was passed; None if its future was settled later,
    by the controller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _FILES:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename in _FILES:
        frame = frame.f_back
    if frame is None or os.path.dirname(frame.f_code.co_filename) == _EXECUTION:
        return None
    return frame, frame.f_lasti


def _step_of(trace: TracebackType | None) -> str | None:
    """The method to which the innermost function that raised an error was passed; None if it was in none."""
    steps = [_STEPS.get(frame.f_code) for frame, _ in traceback.walk_tb(trace)]
    return next((step for step in reversed(steps[:-1]) if step is not None), None)


def _state_asked(frame: FrameType, stop: int) -> str | None:
    """The state at the beginning of the expression that was evaluated at instruction ``stop``, such as ``self.total``
    in ``self.total.async_value().then_apply(...)``."""
    path: list[str] = []
    found: str | None = None
    for instruction in dis.get_instructions(frame.f_code):
        name = instruction.opname
        if instruction.offset >= stop:
            break
        if name.startswith(_NAMES) and isinstance(instruction.argval, str):
            path = [instruction.argval]
        elif name in _ATTRIBUTES and path:
            path.append(instruction.argval)
        elif name.startswith(_ENDS):
            path, found = [], None
        elif name not in _BETWEEN:
            if found is None and len(path) > 1:
                found = _state_at(frame, path[:-1])
            path = []
    return found


def _state_at(frame: FrameType, path: list[str]) -> str | None:
    try:
        value: Any = frame.f_locals[path[0]] if path[0] in frame.f_locals else frame.f_globals[path[0]]
        for name in path[1:]:
            value = getattr(value, name)
    except Exception:  # any error of a user's property
        return None
    for holder in (value, getattr(value, "_state", None)):  # a view has a state
        binding = getattr(holder, "_binding", None)
        if isinstance(binding, StateContext):
            return binding.name
    return None
