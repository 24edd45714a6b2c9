"""Merging namespaces: what several of them hold becomes the content of one, as when session windows meet.

Owns: ``MergingState``, the base of the kinds whose contents can be combined.
Invariant: a merge takes effect between the operations asked for before it and those asked for after it, on all
namespaces it names; one that fails changes nothing.
Must not import storage, execution or operators.

Only lists and reductions merge. Of two values, or of two values under one user key of a map, nothing but the
operator knows which one is to stay, so ``ValueState`` and ``MapState`` do not have the methods.

Source: Flink's ``InternalMergingState``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from asyncstate.codec import encode_namespace
from asyncstate.errors import StateAccessError
from asyncstate.futures import StateFuture, combine_all, completed_void_future
from asyncstate.state.keyed.pending import JointOperation, OrderedState

_VOID: Final = completed_void_future()


class Source(NamedTuple):
    """A namespace that is merged into another: its store key, what is stored there, and its ``_contents``."""

    prefix: bytes
    stored: bytes | None
    contents: Any


class MergingState(OrderedState):
    """A state whose namespaces can be merged."""

    __slots__ = ()

    def merge_namespaces(self, target: int, sources: Iterable[int]) -> None:
        """Combine what ``sources`` hold, in the order given and behind what ``target`` holds, into ``target``.

        The sources are empty afterwards. Without sources, or if they hold nothing, nothing happens. It does not
        matter which namespace this object is ``at``. Raises StateAccessError if a namespace is given twice, or if the
        state is not declared with ``namespaced=True``; OperatorError if the operator's function fails.
        """
        prefixes = self._namespace_prefixes(target, list(sources))
        if len(prefixes) > 1:
            self._do_jointly(_Merge(self, prefixes))

    def async_merge_namespaces(self, target: int, sources: Iterable[int]) -> StateFuture[None]:
        """``merge_namespaces``; every operation that is asked for later, on any of the namespaces, sees it."""
        prefixes = self._namespace_prefixes(target, list(sources))
        return self._when_all_read(_Merge(self, prefixes)) if len(prefixes) > 1 else _VOID

    def _contents(self, prefix: bytes, stored: bytes | None, blocking: bool) -> StateFuture[Any]:
        """Read, and only read, what ``_merged`` has to know of a source beside the stored value."""
        return _VOID

    @abstractmethod
    def _merged(self, prefix: bytes, stored: bytes | None, sources: list[Source]) -> bytes | None:
        """The value under the target's ``prefix`` afterwards; removes what sources have under other store keys."""

    def _namespace_prefixes(self, target: int, sources: list[int]) -> list[bytes]:
        label = self._binding.label
        if not self._binding.namespaced:
            raise StateAccessError(f"{label} has no namespaces to merge; declare it with namespaced=True")
        if target in sources or len(set(sources)) != len(sources):
            raise StateAccessError(
                f"{label}: namespaces {sources!r} cannot be merged into {target!r}; give each namespace once, and the "
                "target not among the sources"
            )
        context: Any = self._sink.current
        try:
            prefix = context.group + self._id + context.encoded_key
        except (AttributeError, TypeError):
            raise self.at(target)._misuse() from None
        return [prefix + encode_namespace(namespace) for namespace in (target, *sources)]


class _Merge(JointOperation):
    """The first of ``prefixes`` is the target."""

    __slots__ = ("_state",)

    def __init__(self, state: MergingState, prefixes: list[bytes]) -> None:
        super().__init__(prefixes)
        self._state = state

    def ask(self, stored: list[bytes | None], blocking: bool) -> StateFuture[Any]:
        """See ``JointOperation``."""
        contents = self._state._contents
        sources = zip(self.prefixes[1:], stored[1:], strict=True)
        return combine_all([contents(prefix, value, blocking) for prefix, value in sources])

    def apply(self, stored: list[bytes | None], details: Any) -> list[bytes | None]:
        """See ``JointOperation``."""
        sources = [
            Source(prefix, value, contents)
            for prefix, value, contents in zip(self.prefixes[1:], stored[1:], details, strict=True)
        ]
        target = self._state._merged(self.prefixes[0], stored[0], sources)
        return [target, *(None for _ in sources)]
