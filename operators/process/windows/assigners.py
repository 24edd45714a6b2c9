"""Built-in assigners, in addition to the windows that are the same for all rows.

Owns: ``global_windows``, ``dynamic_session``, and ``assigner_of`` a window.
Invariant: a window begins before it ends.
Must not import anything of ``asyncstate`` but ``durations``, ``errors``, ``functions``, ``operator``.

Source: Flink's ``GlobalWindows`` and ``DynamicEventTimeSessionWindows``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncstate.durations import Duration, microseconds
from asyncstate.functions import TimeWindow, Trigger, WindowAssigner
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, Row
from asyncstate.program_text import said

from ...window.windows import SessionWindow, Window
from .triggers import event_time, never


class _Global(WindowAssigner):
    def assign(self, row: Row, timestamp: int) -> Sequence[TimeWindow]:
        return [TimeWindow(MIN_WATERMARK, MAX_WATERMARK)]

    def default_trigger(self) -> Trigger:
        return never()

    @property
    def text(self) -> str:
        return "global"


class _DynamicSession(WindowAssigner):
    merges = True

    def __init__(self, gap: Callable[[Row], Duration]) -> None:
        self._gap = gap

    def assign(self, row: Row, timestamp: int) -> Sequence[TimeWindow]:
        gap = microseconds(self._gap(row), "assigners.dynamic_session", "gap")
        return [TimeWindow(timestamp, timestamp + gap)]

    def default_trigger(self) -> Trigger:
        return event_time()

    @property
    def text(self) -> str:
        return f"dynamic session({said(self._gap)})"


class _Given(WindowAssigner):
    """The windows of ``tumble``, ``hop``, ``cumulate`` and ``session``."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self.merges = isinstance(window, SessionWindow)

    def assign(self, row: Row, timestamp: int) -> Sequence[TimeWindow]:
        window = self._window
        if isinstance(window, SessionWindow):
            return [TimeWindow(timestamp, timestamp + window.gap)]
        first = window.slice_of(timestamp)
        ends = range(first, window.last_window(first) + 1, window.step)
        return [TimeWindow(window.window_start(end), end) for end in ends]

    def default_trigger(self) -> Trigger:
        return event_time()

    @property
    def text(self) -> str:
        return self._window.text


def assigner_of(window: Window) -> WindowAssigner:
    """The assigner for a window of ``tumble``, ``hop``, ``cumulate`` or ``session``."""
    return _Given(window)


def global_windows() -> WindowAssigner:
    """One window for all rows of a key, which never ends: it fires by its trigger alone."""
    return _Global()


def dynamic_session(gap: Callable[[Row], Duration]) -> WindowAssigner:
    """Sessions in which each row determines its own gap."""
    return _DynamicSession(gap)
