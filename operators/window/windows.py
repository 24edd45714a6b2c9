"""Windows of time: their kinds, and the windows that a row belongs to.

Owns: ``tumble``, ``hop``, ``cumulate``, ``session``, the windows they make, and the arithmetic of slices;
``GivenWindows``, those that rows carry.
Invariant: windows are [start, end); all times are int64 microseconds since the epoch, and within ``time_span`` no sum
of them overflows; in event time a window is due when the watermark has reached its end - 1 us.
Two rows that carry their windows are in the same one if start and end are equal instants, whatever their time zones.
Must not import anything of ``asyncstate`` but ``codec``, ``errors`` and ``operator``.

Source: Flink SQL's window table-valued functions and its ``SliceAssigners``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import pyarrow as pa

from asyncstate.display import call_text
from asyncstate.durations import Duration, duration_text, microseconds
from asyncstate.errors import SchemaError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec

from ..core.arrays import Int64Array, count_up, parts_of

T = TypeVar("T", int, Int64Array)

START, END = "window_start", "window_end"
"""The columns of rows that carry their window."""

WINDOW_TIME_US = 1_000
"""``window_time`` is this much before the window's end: the last time inside it, in Flink's milliseconds."""

ASSIGNED_ROWS = 1 << 20
"""A row counts once for each of its windows: about so many are in memory at a time."""

LENGTH_MAX_US = 1 << 60
"""The longest window, 36,000 years."""


@dataclass(frozen=True)
class SlicedWindow:
    """Windows whose ends are on a grid of ``step``; a row belongs to one slice, a window is a run of slices.

    A slice is [end - step, end) and is named by its end. ``size`` is the length of a window, for cumulate that of
    the longest one. Made by ``tumble``, ``hop`` and ``cumulate``. Methods take ints or arrays (microseconds).
    """

    kind: Literal["tumble", "hop", "cumulate"]
    size: int
    step: int
    offset: int

    def slice_of(self, times: T) -> T:
        """The slice of each time."""
        return times + self.step - (times - self.offset) % self.step

    def window_start(self, ends: T) -> T:
        """The start of the windows with these ends."""
        if self.kind != "cumulate":
            return ends - self.size
        return ends - 1 - (ends - 1 - self.offset) % self.size

    def first_slice(self, ends: T) -> T:
        """The earliest slice of the windows with these ends; their last one is ``ends``."""
        return self.window_start(ends) + self.step

    def last_window(self, slices: T) -> T:
        """The end of the last window that a slice belongs to; its first one ends with the slice."""
        if self.kind != "cumulate":
            return slices + self.size - self.step
        return self.window_start(slices) + self.size

    def last_over(self, end: int) -> int:
        """The last slice that is in no window with an end after ``end``, itself a window end."""
        if self.kind != "cumulate":
            return end - self.size + self.step
        return end - (end - self.offset) % self.size

    def next_end(self, time: int) -> int:
        """The first window end that is not before ``time``."""
        return time + (self.offset - time) % self.step

    def previous_end(self, time: int) -> int:
        """The last window end that is not after ``time``."""
        return time - (time - self.offset) % self.step

    def assign(self, times: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Rows (m) of ``times`` (n) and the ends (m) of their windows, row by row, in parts of about ``ASSIGNED_ROWS``;
        a single row may have more."""
        slices = self.slice_of(times)
        counts = (self.last_window(slices) - slices) // self.step + 1
        for part in parts_of(counts, ASSIGNED_ROWS):
            rows = np.repeat(np.arange(part.start, part.stop), counts[part])
            yield rows, slices[rows] + self.step * count_up(counts[part])

    @property
    def shares_slices(self) -> bool:
        """Whether a slice belongs to several windows."""
        return self.step < self.size

    def whole(self) -> SlicedWindow:
        """The same windows without shared slices."""
        return WholeWindow(self.kind, self.size, self.step, self.offset) if self.shares_slices else self

    @property
    def time_span(self) -> tuple[int, int]:
        """The first and the last time whose windows, and all intermediate results, fit int64.

        It covers whole slices, so the last time of a slice's rows is enough to check all of them.
        """
        margin = 2 * self.size
        return self.next_end(MIN_WATERMARK + margin), self.previous_end(MAX_WATERMARK - margin) - 1

    @property
    def text(self) -> str:
        """The window as stored in the state's declaration."""
        return f"{self.kind}(size={self.size}us, step={self.step}us, offset={self.offset}us)"

    def __repr__(self) -> str:
        """The call that makes the window."""
        sizes = [self.size] if self.kind == "tumble" else [self.size, self.step]
        offset = {"offset": duration_text(self.offset)} if self.offset else {}
        return call_text(self.kind, list(map(duration_text, sizes)), offset)


class WholeWindow(SlicedWindow):
    """The same windows, each with its own rows under its end: no slice is shared."""

    def first_slice(self, ends: T) -> T:
        """The window itself."""
        return ends

    def last_window(self, slices: T) -> T:
        """The window itself."""
        return slices

    def last_over(self, end: int) -> int:
        """The window itself."""
        return end

    @property
    def shares_slices(self) -> bool:
        """Whether a slice belongs to several windows."""
        return False

    @property
    def text(self) -> str:
        """The window as stored in the state's declaration."""
        return f"whole {super().text}"


@dataclass(frozen=True)
class SessionWindow:
    """Windows that last as long as the next row follows within ``gap``; made by ``session``."""

    gap: int

    def first_slice(self, ends: T) -> T:
        """A session is stored under its own end."""
        return ends

    def next_end(self, time: int) -> int:
        """Sessions end anywhere."""
        return time

    def previous_end(self, time: int) -> int:
        """Sessions end anywhere."""
        return time

    @property
    def time_span(self) -> tuple[int, int]:
        """The first and the last time whose windows, and all intermediate results, fit int64."""
        return MIN_WATERMARK + 2 * self.gap, MAX_WATERMARK - 2 * self.gap

    @property
    def text(self) -> str:
        """The window as stored in the state's declaration."""
        return f"session(gap={self.gap}us)"

    def __repr__(self) -> str:
        """The call that makes the window."""
        return call_text("session", [duration_text(self.gap)])


class GivenWindows:
    """Windows of any start and end; rows are stored under the end. The methods are those of ``SlicedWindow``."""

    shares_slices = False
    text = f"given by {START} and {END}"

    def next_end(self, time: int) -> int:
        """Windows end anywhere."""
        return time

    def previous_end(self, time: int) -> int:
        """Windows end anywhere."""
        return time

    def slice_of(self, ends: T) -> T:
        """The window itself, as the slice of rows with these ends."""
        return ends

    def first_slice(self, ends: T) -> T:
        """The window itself."""
        return ends

    def last_window(self, slices: T) -> T:
        """The window itself."""
        return slices

    def last_over(self, end: int) -> int:
        """The window itself."""
        return end

    def assign(self, ends: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Rows (n) and the ends (n) of their windows, as one part; ``ends`` (n): those that the rows carry."""
        yield np.arange(len(ends)), ends

    def whole(self) -> GivenWindows:
        """The same windows."""
        return self


Window = SlicedWindow | SessionWindow


def check_window(window: object, owner: str) -> None:
    """SchemaError unless ``window`` is a window."""
    if not isinstance(window, SlicedWindow | SessionWindow):
        raise SchemaError(
            f"{owner}: {window!r} is not a window; create one with tumble, hop, cumulate or session"
        )


def check_sliced(window: object, owner: str) -> None:
    """SchemaError unless ``window`` is one whose ends follow from the time of a row."""
    if not isinstance(window, SlicedWindow):
        raise SchemaError(
            f"{owner}: window is {window!r}; create one with tumble, hop or cumulate, or leave it out for rows that "
            "have window_start and window_end"
        )


def check_given(spec: InputSpec, owner: str) -> None:
    """SchemaError if the input has no window columns."""
    for name in (START, END):
        if name not in spec.schema.names:
            raise SchemaError(
                f"{owner}: {spec.name} has no column '{name}'; put a window table function before {owner}, or give "
                f"the operator a window; its columns are: {', '.join(spec.schema.names)}"
            )
        if not pa.types.is_timestamp(spec.schema.field(name).type):
            raise SchemaError(
                f"{owner}: column '{name}' of {spec.name} is {spec.schema.field(name).type}; cast it to a timestamp"
            )


def tumble(size: Duration, offset: Duration = 0) -> SlicedWindow:
    """Windows of ``size``, one after the other, aligned to the epoch + ``offset``."""
    length = _length(size, "tumble", "size")
    return SlicedWindow("tumble", length, length, _offset(offset, length, length, "tumble"))


def hop(size: Duration, slide: Duration, offset: Duration = 0) -> SlicedWindow:
    """Windows of ``size``, one beginning each ``slide``; ``size`` must be a multiple of ``slide``."""
    length, step = _length(size, "hop", "size"), _length(slide, "hop", "slide")
    _check_multiple(length, step, "hop", "size", "slide")
    return SlicedWindow("hop", length, step, _offset(offset, length, step, "hop"))


def cumulate(max_size: Duration, step: Duration, offset: Duration = 0) -> SlicedWindow:
    """Windows with a common start that grow by ``step`` up to ``max_size``, a multiple of it; then the next start."""
    length, width = _length(max_size, "cumulate", "max_size"), _length(step, "cumulate", "step")
    _check_multiple(length, width, "cumulate", "max_size", "step")
    return SlicedWindow("cumulate", length, width, _offset(offset, length, length, "cumulate"))


def session(gap: Duration) -> SessionWindow:
    """One window for rows of a key that are at most ``gap`` apart; it ends ``gap`` after its last row."""
    return SessionWindow(_length(gap, "session", "gap"))


def due_until(watermark: int) -> int:
    """The latest end of a window that is due at ``watermark``."""
    return min(watermark + 1, MAX_WATERMARK)


def _length(duration: Duration, owner: str, name: str) -> int:
    length = microseconds(duration, owner, name)
    if length < WINDOW_TIME_US:
        raise SchemaError(
            f"{owner}: {name} is {duration!r}; give at least one millisecond, because window_time is one millisecond "
            "before the window's end"
        )
    if length > LENGTH_MAX_US:
        raise SchemaError(f"{owner}: {name} is {duration!r}; give at most {LENGTH_MAX_US} us")
    return length


def _offset(offset: Duration, size: int, period: int, owner: str) -> int:
    """The offset in [0, period): windows repeat, so that equal windows have equal offsets."""
    shift = microseconds(offset, owner, "offset")
    if abs(shift) >= size:
        raise SchemaError(f"{owner}: offset is {offset!r}; it must be shorter than the window, {size} us")
    return shift % period


def _check_multiple(size: int, step: int, owner: str, name: str, step_name: str) -> None:
    if size % step:
        raise SchemaError(
            f"{owner}: {name} ({size} us) is not a multiple of {step_name} ({step} us); choose a multiple, so that "
            "windows can share slices"
        )
