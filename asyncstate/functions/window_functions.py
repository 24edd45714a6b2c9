"""Window triggers, evictors and assigners: when a window fires, which of its rows a function sees, where a row goes.

Owns: ``Trigger``, ``Evictor``, ``WindowAssigner``, their arguments and results.
Invariant: they see rows, windows and times; nothing of stores or of the engine.
Must not import state, storage, execution, runtime or Spark.

Source: Flink's ``Trigger``, ``Evictor`` and ``WindowAssigner``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from asyncstate.functions.process import TimeWindow
from asyncstate.operator import Row


class TriggerResult(enum.Enum):
    """What a window does next: ``FIRE`` runs the function over its rows, ``PURGE`` removes them."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    PURGE = (False, True)
    FIRE_AND_PURGE = (True, True)

    @property
    def fires(self) -> bool:
        """Whether the function runs."""
        return self.value[0]

    @property
    def purges(self) -> bool:
        """Whether the rows are removed."""
        return self.value[1]


class TriggerContext(Protocol):
    """The context of a trigger: a window of a key. Times are microseconds."""

    state: Any
    """What the trigger stores for the window, of its ``state_type``; None before anything was set."""

    @property
    def watermark(self) -> int:
        """The watermark up to which timers have fired: the previous micro-batch's, until this one's have fired."""

    @property
    def processing_time(self) -> int:
        """When the micro-batch started."""

    def register_event_time(self, time: int) -> None:
        """Call ``on_event_time`` when the watermark passes ``time``; no effect if it already has."""

    def register_processing_time(self, time: int) -> None:
        """Call ``on_processing_time`` in the first micro-batch that starts at ``time`` or later."""

    def delete_event_time(self, time: int) -> None:
        """Delete the registered timer."""

    def delete_processing_time(self, time: int) -> None:
        """Delete the registered timer."""


class Trigger(ABC):
    """When a window fires. All methods may be ``async def`` and may return a StateFuture.

    The object belongs to the operator and is pickled with it; what it must remember of a window goes into
    ``ctx.state``. Timers that are left when the window is removed are deleted.
    """

    state_type: pa.DataType | None = None
    """The Arrow type of ``ctx.state``; None: it has none."""
    merges: bool = False
    """Whether it supports windows that merge, that is, has ``merge_states`` and ``on_merge``."""

    @abstractmethod
    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> Any:
        """Handle a row; return a TriggerResult. ``timestamp``: its event time, or the start of its micro-batch."""

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> Any:
        """Handle an event-time timer that is due; return a TriggerResult."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> Any:
        """Handle a processing-time timer that is due; return a TriggerResult."""
        return TriggerResult.CONTINUE

    def merge_states(self, states: Sequence[Any]) -> Any:
        """The state of a window into which others, with these states, have merged; none of them is None."""
        raise NotImplementedError(f"{type(self).__name__} has no method merge_states")

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> Any:
        """Windows have merged into ``window``, whose timers are gone: register those that it needs. Returns no
        result."""

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> Any:
        """Called when the window is removed."""

    @property
    def text(self) -> str:
        """Its text as stored with the state, which another trigger cannot read."""
        return type(self).__name__


class TimedRow(NamedTuple):
    """A row of a window and its time, microseconds."""

    row: Row
    timestamp: int


class Evictor:
    """Which rows of a window a function sees, and which are kept. Other rows are removed from state.

    Each method gets the rows in the order in which they arrived and returns those to keep.
    """

    def evict_before(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        """Called before the function runs; return the rows that it sees."""
        return rows

    def evict_after(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        """Called after it has run; return the rows to keep for the next time."""
        return rows

    @property
    def text(self) -> str:
        """Its text as stored with the state, from which another evictor has removed other rows."""
        return type(self).__name__


class WindowAssigner(ABC):
    """Assigns rows to windows."""

    merges: bool = False
    """Whether windows of a key that touch are merged, as sessions are; each row is then in one window."""

    @abstractmethod
    def assign(self, row: Row, timestamp: int) -> Iterable[TimeWindow]:
        """The windows of a row; none: it is dropped. May be a generator."""

    @abstractmethod
    def default_trigger(self) -> Trigger:
        """The default trigger; in processing time, ``processing_time()`` replaces one that follows the watermark."""

    @property
    def text(self) -> str:
        """Its text as stored with the state; another assigner cannot read these windows."""
        return type(self).__name__
