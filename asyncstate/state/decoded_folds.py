"""The reducing and the aggregating state that keep decoded values.

Owns: ``DecodedReducingState``, ``DecodedAggregatingState`` and ``plain_fold``.
Invariant: what it shows and stores is what the plain state shows and stores.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Generic, TypeVar

from asyncstate.futures import StateFuture, completed_future, completed_void_future, failed_future
from asyncstate.state.aggregating import AggregatingState
from asyncstate.state.binding import Binding
from asyncstate.state.decoded import UNKNOWN
from asyncstate.state.decoded_common import level_of, plain
from asyncstate.state.reducing import FoldingState, ReducingState

T = TypeVar("T")
IN = TypeVar("IN")
OUT = TypeVar("OUT")

_VOID: Final = completed_void_future()


class _DecodedFolding(FoldingState):
    """A folded value that is known; it goes by the store key, as the operations that wait do.

    What is known does not wait: whoever reads the bytes makes it unknown, and writing them makes it known.
    """

    __slots__ = ()

    def __init__(self, binding: Binding, suffix: bytes | None) -> None:
        super().__init__(binding, suffix)
        self._level = level = level_of(binding)
        self._get = level.get
        self._async_get = level.async_get
        self._delete = level.delete

    def get(self) -> Any:
        """See ``FoldingState``."""
        prefix = self._prefix()
        stored = self._level.look(prefix)
        if stored is UNKNOWN:
            stored = self._value_of(self._stored(prefix))
            _keep(self, prefix, stored)
        return None if stored is None else self._shown(stored)

    def async_get(self) -> StateFuture[Any]:
        """See ``FoldingState``."""
        stored = self._level.look(self._prefix())
        if stored is UNKNOWN:
            return FoldingState.async_get(self)
        try:
            return completed_future(None if stored is None else self._shown(stored))
        except Exception as error:
            return failed_future(error)

    def add(self, value: Any) -> None:
        """See ``FoldingState``."""
        value = self._given(value)
        prefix = self._prefix()
        stored = self._level.look(prefix)
        if stored is UNKNOWN:
            self._do(prefix, self._add, value)
        else:
            _fold_in(self, prefix, stored, value)

    def async_add(self, value: Any) -> StateFuture[None]:
        """See ``FoldingState``."""
        value = self._given(value)
        prefix = self._prefix()
        stored = self._level.look(prefix)
        if stored is UNKNOWN:
            return self._when_read(self._add, value)
        try:
            _fold_in(self, prefix, stored, value)
        except Exception as error:
            return failed_future(error)
        return _VOID

    def _write(self, prefix: bytes, before: bytes | None, after: bytes | None) -> None:
        if after is not before:
            self._level.drop(prefix)  # a plain call that overtook what waited knows what that left
        super()._write(prefix, before, after)
        _keep(self, prefix, self._value_of(after))


def _fold_in(state: FoldingState, prefix: bytes, stored: Any, value: Any) -> None:
    level = state._level
    after = state._folded(stored, value)
    if prefix in level.held and type(after) is level.type and level.fits(after):
        level.values[prefix] = after
    elif after is None:
        state._bytes_of(after)  # refuses it
    else:
        level.write(prefix, prefix, after)


def _keep(state: FoldingState, prefix: bytes, stored: Any) -> None:
    """``stored`` is what is stored."""
    level = state._level
    if level.resting:
        plain_fold(state)
    elif prefix not in level.values and prefix not in state._waiting:
        level.add(prefix, stored)


class DecodedReducingState(_DecodedFolding, ReducingState[T], Generic[T]):
    """A ReducingState that knows its values."""

    __slots__ = ()
    _plain_kind: ClassVar[type] = ReducingState


class DecodedAggregatingState(_DecodedFolding, AggregatingState[IN, OUT], Generic[IN, OUT]):
    """An AggregatingState that knows its accumulators; they are numbers or texts, which functions cannot change."""

    __slots__ = ()
    _plain_kind: ClassVar[type] = AggregatingState


def plain_fold(state: FoldingState) -> None:
    """``plain``; the state goes to the sink itself again."""
    sink = state._sink
    state._get, state._async_get, state._delete = sink.get, sink.async_get, sink.delete
    plain(state)
