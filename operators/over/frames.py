"""Frames: the rows that count for a row, and the merged states of those rows.

Owns: ``Frame`` with ``unbounded``, ``whole``, ``rows`` and ``range_``; ``Ordered``, rows in an order; ``scan`` and
``reduce``; ``first_in_rows``, ``rows_in_range`` and ``last_peers``. Pure functions over numpy and Arrow.
Invariant: states are only merged, earlier rows first, never subtracted: sums of floats do not drift, however long a
frame is, and extremes need no log of values.
Must not import anything of ``asyncstate`` but ``durations`` and ``errors``.

Source: SQL's window frames. ``scan`` is Hillis' and Steele's, ``reduce`` merges runs of 1, 2, 4, ... rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from asyncstate.codec import KeyBatch
from asyncstate.codec.sorting import rows_by
from asyncstate.durations import Duration, duration_text, microseconds
from asyncstate.errors import SchemaError

from ..core.arrays import BoolArray, Int64Array, take_rows
from ..core.operator_checks import check_number

MAX_ROWS: Final = 1 << 31
"""The largest distance in rows."""
States = list[pa.Array]
Merge = Callable[[States, States], States]
"""Merges two sets of states row by row, those of earlier rows first; a null state adds nothing."""


@dataclass(frozen=True)
class Frame:
    """The rows of a key from ``before`` the current one up to ``after`` it, in ``unit``: rows, or the values of the
    ordered column (microseconds if it is a time). None: from the first row of the key on, or up to the last.

    In a range, rows that are equal in the order count for each other.
    """

    unit: Literal["rows", "range"]
    before: int | None = None
    after: int | None = 0

    @property
    def kind(self) -> Literal["unbounded", "rows", "range"]:
        """How its first row moves: not at all if it is unbounded."""
        return "unbounded" if self.before is None else self.unit

    @property
    def peers(self) -> bool:
        """Whether rows that are equal in the order count for each other."""
        return self.unit == "range"

    @property
    def reaches_ahead(self) -> bool:
        """Whether rows that come later in the order can change it."""
        return self.after != 0

    @property
    def by_value(self) -> bool:
        """Whether it is limited by distances of the ordered column."""
        return self.unit == "range" and not {self.before, self.after} <= {None, 0}

    @property
    def text(self) -> str:
        """The text that is stored with its state."""
        if self.after == 0:
            return f"{self.kind}({self.before})" if self.kind != "unbounded" else self.kind
        return f"{self.unit}({_end_text(self.before)}, {_end_text(self.after)})"

    def __repr__(self) -> str:
        """The call that makes it."""
        if self.before is None and not self.reaches_ahead:
            return "unbounded()" if self.peers else "unbounded(peers=False)"
        if self == whole():
            return "whole()"
        ends = [self.before] if self.after == 0 else [self.before, self.after]
        if self.unit == "rows":
            return f"rows({', '.join(map(repr, ends))})"
        return f"range_({', '.join(repr(_duration(end)) for end in ends)})"


def _end_text(end: int | None) -> str:
    return "unbounded" if end is None else str(end)


def _duration(end: int | None) -> str | int | None:
    return duration_text(end) if end is not None and end > 0 else end


def unbounded(*, peers: bool = True) -> Frame:
    """All rows of the key up to the current one: SQL's RANGE UNBOUNDED PRECEDING, where rows of the same time count for
    each other; without ``peers``, SQL's ROWS UNBOUNDED PRECEDING."""
    return Frame("range" if peers else "rows")


def whole() -> Frame:
    """All rows of the key: SQL's frame without an order."""
    return Frame("rows", None, None)


def rows(before: int | None, after: int | None = 0) -> Frame:
    """From ``before`` rows of the key before the current one to ``after`` rows after it: SQL's ROWS BETWEEN before
    PRECEDING AND after FOLLOWING.

    None: UNBOUNDED. Negative: ``rows(-1, 3)`` starts with the next row, ``rows(3, -1)`` ends with the one before.
    Raises SchemaError if no row can be in it.
    """
    for name, end in (("before", before), ("after", after)):
        if end is not None:
            check_number(end, -MAX_ROWS, name, "rows")
    return _checked(Frame("rows", before, after), "rows")


def range_(before: Duration | None, after: Duration | None = 0) -> Frame:
    """The rows of the key whose time is at most ``before`` earlier and ``after`` later, both included: SQL's RANGE.

    None: UNBOUNDED; 0: the current row and its peers; numbers are microseconds, and may be negative as for ``rows``.
    Ordered by a column of integers, both are numbers in its unit. Raises SchemaError if no row can be in it.
    """
    ends = [_distance(name, end) for name, end in (("before", before), ("after", after))]
    return _checked(Frame("range", *ends), "range_")


def _distance(name: str, end: Duration | None) -> int | None:
    if end is None or (isinstance(end, int) and not isinstance(end, bool)):
        return end
    return microseconds(end, "range_", name)


def _checked(frame: Frame, name: str) -> Frame:
    if frame.before is not None and frame.after is not None and frame.before + frame.after < 0:
        raise SchemaError(
            f"{name}: the frame starts {-frame.before} after its row and ends {frame.after} after it; let it end where "
            "it starts, or later"
        )
    return frame


class Ordered(NamedTuple):
    """n rows of u keys, key by key, each key's rows in their order.

    ``starts`` (u + 1): the first row of each key, and n. ``differs`` (n): the row is not a peer of the previous row.
    ``keys``: those of the store, if views of functions are stored. ``names``: the columns of the keys, for errors.
    """

    batch: pa.RecordBatch
    starts: Int64Array
    differs: BoolArray
    names: Sequence[pa.Array]
    keys: KeyBatch | None = None

    @property
    def sizes(self) -> Int64Array:
        """The number of rows of each key (u)."""
        return np.diff(self.starts)

    @property
    def owners(self) -> Int64Array:
        """The key of each row (n)."""
        return np.repeat(np.arange(len(self.starts) - 1), self.sizes)

    @property
    def last_peers(self) -> Int64Array:
        """The last peer of each row (n)."""
        return last_peers(self.starts, self.differs)


def check_frame(frame: object, owner: str) -> None:
    """Raise SchemaError unless ``frame`` is a frame."""
    if not isinstance(frame, Frame):
        raise SchemaError(f"{owner}: {frame!r} is not a frame; create one with unbounded, rows or range_")


# -- which rows -----------------------------------------------------------------------------------------


def first_in_rows(starts: Int64Array, before: int) -> Int64Array:
    """The first row (n) of each row's frame of ``before`` rows; ``starts`` (u + 1): first row of each key, and n."""
    begins = np.repeat(starts[:-1], np.diff(starts))
    first: Int64Array = np.maximum(np.arange(starts[-1]) - before, begins)
    return first


def first_in_range(starts: Int64Array, times: Int64Array, before: int) -> Int64Array:
    """For each row, the first row (n) of its key at most ``before`` earlier; ``times`` (n) ascend within a key."""
    return rows_in_range(starts, times, -before, inclusive=False)


def rows_in_range(starts: Int64Array, values: Int64Array, shift: int, inclusive: bool) -> Int64Array:
    """For each row, the number (n) of rows before its key, and of those of its key whose value is lower than its own
    plus ``shift``; ``inclusive``: or equal. ``values`` (n) ascend within a key; the smallest and the largest int64 are
    no numbers, and stay what they are."""
    count, ends = len(values), np.iinfo(np.int64)
    limits = np.minimum(values, ends.max - shift) if shift > 0 else np.maximum(values, ends.min - shift)
    limits = np.where((values == ends.min) | (values == ends.max), values, limits + shift)
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    # All values and all limits in one order: a limit comes directly before, or after, the rows that equal it.
    keys, is_row = np.tile(owners, 2), np.repeat([False, True], count)
    order = rows_by(keys, np.concatenate([limits, values]), ~is_row if inclusive else is_row)
    passed = np.cumsum(order >= count)
    found = np.empty(count, np.int64)
    is_limit = order < count
    found[order[is_limit]] = passed[is_limit]
    return found


def last_peers(starts: Int64Array, differs: BoolArray) -> Int64Array:
    """The last peer (n) of each row; ``differs`` (n): the row is not a peer of the previous row."""
    begins = differs.copy()
    begins[starts[:-1][np.diff(starts) > 0]] = True
    firsts = np.flatnonzero(begins)
    ends = np.append(firsts[1:], len(differs)) - 1
    last: Int64Array = ends[np.cumsum(begins) - 1]
    return last


# -- their states ---------------------------------------------------------------------------------------


def scan(states: States, starts: Int64Array, merge: Merge) -> States:
    """For each row, the merged state (n) of all rows of its key up to it."""
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], np.diff(starts))
    shift, longest = 1, int(np.diff(starts).max(initial=0))
    while shift < longest:
        at = np.flatnonzero(place >= shift)
        states = replaced(states, at, merge(take_rows(states, at - shift), take_rows(states, at)))
        shift *= 2
    return states


def reduce(states: States, starts: Int64Array, first: Int64Array, last: Int64Array, merge: Merge) -> States:
    """The merged states (m) of the rows from ``first`` (m) to ``last`` (m), each range within one key."""
    levels, left = _levels(states, starts, int((last - first).max(initial=0)) + 1, merge), last - first + 1
    total = [pa.nulls(len(first), column.type) for column in states]
    at = first.copy()
    for level in range(len(levels) - 1, -1, -1):
        chosen = np.flatnonzero(left >> level & 1)
        if len(chosen):
            more = take_rows(levels[level], at[chosen])
            total = replaced(total, chosen, merge(take_rows(total, chosen), more))
            at[chosen] += 1 << level
    return total


def rows_before(ids: Int64Array, counted: BoolArray | None) -> Int64Array:
    """The previous row (n) with the same id as each row; -1 if there is none, n for rows that are not ``counted``."""
    rows = np.arange(len(ids)) if counted is None else np.flatnonzero(counted)
    ordered = rows[rows_by(ids[rows])]
    before = np.full(len(ids), len(ids))
    before[ordered] = -1
    again = np.flatnonzero(ids[ordered][1:] == ids[ordered][:-1])
    before[ordered[again + 1]] = ordered[again]
    return before


def reduce_distinct(
    states: States, before: Int64Array, first: Int64Array, last: Int64Array, merge: Merge
) -> States:
    """As ``reduce``, only for rows that are the first of their value in the frame: their row in ``before`` (n, see
    ``rows_before``) is outside of it. The order in which states are merged does not matter here.

    Blocks of 1, 2, 4, ... rows, each sorted by ``before``, have the merged states of their first row, first two rows,
    and so on. A frame consists of blocks; in each, the rows count whose row in ``before`` precedes the frame.
    Source: the merge sort trees of Wesley and Xu, "Incremental Computation of Common Windowed Holistic Aggregates".
    """
    count, level = len(before), 0
    total = [pa.nulls(len(first), column.type) for column in states]
    low, high = first.copy(), last + 1
    while bool((low < high).any()):
        asked = low < high
        takes_low, takes_high = asked & (low & 1 == 1), asked & (high & 1 == 1)
        blocks = np.arange(count) >> level
        order = rows_by(blocks, before)
        bounds = np.append(np.arange(0, count, 1 << level), count)
        running = scan(take_rows(states, order), bounds, merge)
        codes = blocks * (count + 2) + before[order] + 1  # the sort moves no row to another block
        for takes, taken in ((takes_low, low), (takes_high, high - 1)):
            chosen = np.flatnonzero(takes)
            block = taken[chosen]
            stop = np.searchsorted(codes, block * (count + 2) + first[chosen], "right")
            some = stop > block << level
            chosen = chosen[some]
            if len(chosen):
                more = take_rows(running, stop[some] - 1)
                total = replaced(total, chosen, merge(take_rows(total, chosen), more))
        low, high = (low + takes_low) >> 1, (high - takes_high) >> 1
        level += 1
    return total


def _levels(states: States, starts: Int64Array, longest: int, merge: Merge) -> list[States]:
    """The merged states of runs of 1, 2, 4, ... rows of a key, starting at each row, up to ``longest`` rows."""
    ends = np.repeat(starts[1:], np.diff(starts))
    levels, width = [states], 1
    while width * 2 <= longest:
        at = np.flatnonzero(np.arange(len(ends)) + 2 * width <= ends)
        last = levels[-1]
        levels.append(replaced(last, at, merge(take_rows(last, at), take_rows(last, at + width))))
        width *= 2
    return levels


def replaced(states: States, at: Int64Array, new: States) -> States:
    """``states`` (n) with the rows ``at`` replaced by ``new``."""
    count = len(states[0])
    if len(at) == count:
        return new
    places = np.arange(count)
    places[at] = count + np.arange(len(at))
    indices = pa.array(places)
    return [pa.concat_arrays(pair).take(indices) for pair in zip(states, new, strict=True)]
