"""What decides when a window fires, which of its rows a function sees, and which windows a row is in.

Owns: ``Trigger``, ``Evictor``, ``WindowAssigner``, what they are given and what they give.
Invariant: they see rows, windows and times; nothing of stores or of who runs them.
Must not import state, storage, execution, runtime or Spark.

Source: Flink's ``Trigger``, ``Evictor`` and ``WindowAssigner``.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from asyncstate.functions.process import TimeWindow
from asyncstate.operator import Row


class TriggerResult(enum.Enum):
    """What a window does next: ``FIRE`` runs the function over its rows, ``PURGE`` forgets them."""

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
        """Whether the rows are forgotten."""
        return self.value[1]


class TriggerContext(Protocol):
    """A window of a key, to its trigger. Times are microseconds."""

    state: Any
    """What the trigger keeps for the window, of its ``state_type``; None before anything was set."""

    @property
    def watermark(self) -> int:
        """The watermark up to which timers have run: that of the micro-batch before, until this one's have."""

    @property
    def processing_time(self) -> int:
        """When the micro-batch started."""

    def register_event_time(self, time: int) -> None:
        """Have ``on_event_time`` called when the watermark passes ``time``; nothing if that is so already."""

    def register_processing_time(self, time: int) -> None:
        """Have ``on_processing_time`` called in the first micro-batch that starts at ``time`` or later."""

    def delete_event_time(self, time: int) -> None:
        """Take back what was registered."""

    def delete_processing_time(self, time: int) -> None:
        """Take back what was registered."""


class Trigger(ABC):
    """When a window fires. All methods may be ``async def`` and may return a StateFuture.

    The object belongs to the operator and is pickled with it; what it must remember of a window goes into
    ``ctx.state``. Timers that are left when the window goes are taken back.
    """

    state_type: pa.DataType | None = None
    """The Arrow type of ``ctx.state``; None: it has none."""
    merges: bool = False
    """Whether it can be that of windows that merge: ``merge_states`` and ``on_merge`` are there."""

    @abstractmethod
    def on_element(self, row: Row, timestamp: int, window: TimeWindow, ctx: TriggerContext) -> Any:
        """A row has come: a TriggerResult. ``timestamp``: its event time, or that of its micro-batch's start."""

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> Any:
        """A timer of event time has come due: a TriggerResult."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext) -> Any:
        """A timer of processing time has come due: a TriggerResult."""
        return TriggerResult.CONTINUE

    def merge_states(self, states: Sequence[Any]) -> Any:
        """The state of a window that others, which have these states, have become; none of them is None."""
        raise NotImplementedError(f"{type(self).__name__} has no method merge_states")

    def on_merge(self, window: TimeWindow, ctx: TriggerContext) -> Any:
        """Windows have become ``window``, whose timers are gone: register those that it needs. It gives no result."""

    def clear(self, window: TimeWindow, ctx: TriggerContext) -> Any:
        """The window goes."""

    @property
    def text(self) -> str:
        """As it is noted beside the state, which another trigger cannot read."""
        return type(self).__name__


class TimedRow(NamedTuple):
    """A row of a window and its time, microseconds."""

    row: Row
    timestamp: int


class Evictor:
    """Which rows of a window a function sees, and which stay. Rows that go are gone from state.

    Each method gets the rows in the order in which they came and returns those that stay.
    """

    def evict_before(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        """Before the function runs: those that it sees."""
        return rows

    def evict_after(self, rows: Sequence[TimedRow], window: TimeWindow) -> Sequence[TimedRow]:
        """After it has run: those that stay for the next time."""
        return rows

    @property
    def text(self) -> str:
        """As it is noted beside the state, from which another evictor has taken other rows."""
        return type(self).__name__


class WindowAssigner(ABC):
    """Which windows a row is in."""

    merges: bool = False
    """Whether windows of a key that touch become one, as sessions do; each row is then in one window."""

    @abstractmethod
    def assign(self, row: Row, timestamp: int) -> Sequence[TimeWindow]:
        """The windows of a row; none: it is dropped."""

    @abstractmethod
    def default_trigger(self) -> Trigger:
        """When they fire if nobody says anything else; one that goes by the watermark stands for the clock, too."""

    @property
    def text(self) -> str:
        """As it is noted beside the state, which another assigner's windows cannot read."""
        return type(self).__name__
