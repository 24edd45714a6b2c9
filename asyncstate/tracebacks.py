"""Traceback filtering: the user's frames, without those of the framework around them.

Owns: ``users_frames`` and ``from_users_code``.
Invariant: an error of the framework or the store, and one without a user frame, keeps all of its frames.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

from asyncstate.errors import AsyncStateError, OperatorError

_OWN: Final = str(Path(__file__).parent) + "/"
_LIBRARIES: Final = ("/site-packages/", "<frozen ")


def users_frames(error: AsyncStateError) -> AsyncStateError:
    """``error``, to be raised again: its frames begin there, and those of its cause with the user's code."""
    cause = error.__cause__
    if isinstance(error, OperatorError) and cause is not None and _first_of_user(cause.__traceback__):
        from_users_code(cause)
        error.__traceback__ = None
    return error


def from_users_code(error: BaseException) -> None:
    """Make the frames of ``error`` begin with the user's code, if there is any in them."""
    first = _first_of_user(error.__traceback__)
    if first is not None:
        error.__traceback__ = first


def _first_of_user(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` from the first frame on that is neither the framework's nor a library's."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OWN) and not any(place in file for place in _LIBRARIES):
            return trace
        trace = trace.tb_next
    return None
