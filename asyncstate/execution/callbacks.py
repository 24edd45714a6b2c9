"""Where an exception of a callback was raised: in which step of a chain of futures, over the answer of which state.

Owns: ``function_given``, ``CallSite`` and ``step_of``.
Invariant: the lookup happens only after a failure, from the frames, so that chains cost nothing. What cannot be
determined is None.
Must not import runtime or operators.
"""

from __future__ import annotations

import dis
import os
import sys
import traceback
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

from asyncstate.futures import StateFuture, settling
from asyncstate.state.keyed.state_context import StateContext

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


class CallSite(NamedTuple):
    """The expression that passed a function to an already settled future: instruction ``at`` of a frame."""

    frame: FrameType
    at: int

    def state_name(self) -> str | None:
        """The state whose future it was."""
        return _state_asked(self.frame, self.at)


def function_given() -> CallSite | None:
    """Called while a failure is reported: where the failed function was passed; None if its future was settled later,
    by the controller."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _FILES:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename in _FILES:
        frame = frame.f_back
    if frame is None or os.path.dirname(frame.f_code.co_filename) == _EXECUTION:
        return None
    return CallSite(frame, frame.f_lasti)


def step_of(trace: TracebackType | None) -> str | None:
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
