"""State belongs to the thread that runs a micro-batch: use by other threads is refused.

Owns: ``ThreadBound``, the check; ``guarded``, the class that has it; and ``watch``, which notifies when it is needed.
Invariant: a micro-batch without outside calls and without threads of the operator pays nothing, since its controller
becomes ``ThreadBound`` only when another thread may use state.
Must not import storage.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from asyncstate.errors import StateAccessError
from asyncstate.execution.outside_calls import running_call
from asyncstate.futures import current_scope

_OURS: Final = ("asyncstate-", "AnyIO worker thread")  # they read below state, or run outside calls

_OF_NO_KEY: Final = ("get_many", "async_get_many", "put_many", "delete_many", "scan")
"""Methods of the sink that do not begin with the running record."""

Begun = Callable[[], None]
_watching: Final[list[Begun]] = []


class ThreadBound:
    """Refuses state on any thread except that of its micro-batch.

    Every access to state of the current key begins with ``current``, any other with a method of the sink.
    """

    __slots__ = ()

    uid: str

    def require_own_thread(self) -> None:
        """Raise StateAccessError on a thread that does not run the micro-batch."""
        if current_scope() is self:  # type: ignore[comparison-overlap]  # the controller is both
            return
        name = running_call.get()
        where = (
            f"by the thread '{threading.current_thread().name}'"
            if name is None
            else f"inside {name}, a function of ctx.call"
        )
        raise StateAccessError(
            f"operator '{self.uid}': state was used {where}, where it would belong to the keys of other records in "
            "flight. Pass the function what it needs as arguments, and use state in process() or in a callback of "
            "the call's future"
        )


@functools.cache
def guarded(kind: type[Any], slot: Any) -> type[Any]:
    """``kind``, a controller whose running record is in ``slot``, with the check. An object may change over to it."""

    def record_at_work(self: Any) -> Any:
        self.require_own_thread()
        return slot.__get__(self)

    def checked(method: Callable[..., Any]) -> Callable[..., Any]:
        def on_own_thread(self: Any, *arguments: Any) -> Any:
            self.require_own_thread()
            return method(self, *arguments)

        return on_own_thread

    methods = {name: checked(getattr(kind, name)) for name in _OF_NO_KEY}
    current = property(record_at_work, slot.__set__)
    own = {"__slots__": (), "__module__": __name__, "current": current, **methods}
    return type(f"ThreadBound{kind.__name__}", (ThreadBound, kind), own)


def watch(begun: Begun) -> None:
    """Call ``begun`` when a thread that is not the framework's starts, before any of its own code runs.

    If there is one already, ``begun`` is called at once. End it with ``unwatch``.
    """
    if any(
        thread is not threading.current_thread() and not _is_ours(thread) for thread in threading.enumerate()
    ):
        begun()
    _watching.append(begun)
    if len(_watching) == 1:
        threading.setprofile(_Beginning(threading.getprofile()))


def unwatch(begun: Begun) -> None:
    """End ``watch``."""
    _watching.remove(begun)
    installed: Any = threading.getprofile()
    if not _watching and isinstance(installed, _Beginning):
        threading.setprofile(installed.outer)


class _Beginning:
    """Called by Python at the first event of a new thread; a profiler that was installed before runs after it."""

    def __init__(self, outer: Any) -> None:
        self.outer = outer

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        sys.setprofile(self.outer)
        if not _is_ours(threading.current_thread()):
            for begun in _watching.copy():
                begun()
        if self.outer is not None:
            self.outer(frame, event, argument)


def _is_ours(thread: threading.Thread) -> bool:
    return thread.name.startswith(_OURS)
