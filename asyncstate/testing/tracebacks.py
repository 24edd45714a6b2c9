"""What a failing operator shows under a harness: the user's frames, without those of the framework around them.

Owns: ``users_frames``.
Invariant: an error of the framework or the store, and one without a frame of the user's, keeps all of its frames.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

import asyncstate
from asyncstate.errors import AsyncStateError, OperatorError

_OWN: Final = str(Path(asyncstate.__file__).parent) + "/"
_LIBRARIES: Final = ("/site-packages/", "<frozen ")


def users_frames(error: AsyncStateError) -> AsyncStateError:
    """``error``, to be raised anew: its frames begin there, and those of its cause with the user's code."""
    cause = error.__cause__
    if isinstance(error, OperatorError) and cause is not None:
        first = _first_of_user(cause.__traceback__)
        if first is not None:
            cause.__traceback__ = first
            error.__traceback__ = None
    return error


def _first_of_user(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` from the first frame on that is neither the framework's nor a library's."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OWN) and not any(place in file for place in _LIBRARIES):
            return trace
        trace = trace.tb_next
    return None
