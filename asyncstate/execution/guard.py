"""State belongs to the thread that runs the records: a guard for while functions run on others.

Owns: ``guard``.
Invariant: from its first outside call on, a controller shows the record at work to its own thread only, so that state
used elsewhere is refused instead of written under whatever key is at work. Before, it costs nothing.
Must not import runtime or operators.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from asyncstate.errors import StateAccessError


def guard(controller: Any) -> None:
    """Have a controller, used by this thread, refuse state accesses of all others; twice is allowed."""
    kind = type(controller)
    if not getattr(kind, "guarded", False):
        controller.thread = threading.get_ident()
        controller.__class__ = _guarded(kind)  # type: ignore[arg-type]  # a class is hashable


@functools.cache
def _guarded(kind: type) -> type:
    slot: Any = kind.current  # type: ignore[attr-defined]  # the slot's descriptor

    def current(self: Any) -> Any:
        if threading.get_ident() != self.thread:
            raise StateAccessError(
                "state was used in a function of ctx.call or on a thread of the operator's own, where no record is at "
                "work; let the function return what is to be stored, and use the state in a callback of the future"
            )
        return slot.__get__(self)

    return type(
        kind.__name__,
        (kind,),
        {"__slots__": (), "guarded": True, "current": property(current, slot.__set__)},
    )
