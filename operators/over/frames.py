"""Frames: the rows that count for a row, and the merged states of those rows.

Owns: ``Frame`` with ``unbounded``, ``rows`` and ``range_``; ``scan`` and ``reduce``; ``first_in_rows``,
``first_in_range`` and ``last_peers``. Pure functions over numpy and Arrow.
Invariant: states are only merged, earlier rows first, never subtracted: sums of floats do not drift, however long a
frame is, and extremes need no log of values.
Must not import anything of ``asyncstate`` but ``durations`` and ``errors``.

Source: SQL's window frames. ``scan`` is Hillis' and Steele's, ``reduce`` merges runs of 1, 2, 4, ... rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from asyncstate.codec.sorting import rows_by
from asyncstate.durations import Duration, duration_text, microseconds
from asyncstate.errors import SchemaError

from ..core.arrays import BoolArray, Int64Array, take_rows
from ..core.operator_checks import check_number

States = list[pa.Array]
Merge = Callable[[States, States], States]
"""Merges two sets of states row by row, those of earlier rows first; a null state adds nothing."""


@dataclass(frozen=True)
class Frame:
    """The current row and earlier ones: all earlier rows of its key, or up to ``before`` (rows, or microseconds).

    ``peers``: rows that are equal in the order count for each other.
    """

    kind: Literal["unbounded", "rows", "range"]
    before: int = 0
    peers: bool = False

    @property
    def text(self) -> str:
        """The text that is stored with its state."""
        return f"{self.kind}({self.before})" if self.kind != "unbounded" else self.kind

    def __repr__(self) -> str:
        """The call that makes it."""
        if self.kind == "unbounded":
            return "unbounded()" if self.peers else "unbounded(peers=False)"
        return f"rows({self.before})" if self.kind == "rows" else f"range_({duration_text(self.before)!r})"


def unbounded(*, peers: bool = True) -> Frame:
    """All rows of the key up to the current one: SQL's RANGE UNBOUNDED PRECEDING, where rows of the same time count for
    each other; without ``peers``, SQL's ROWS UNBOUNDED PRECEDING."""
    return Frame("unbounded", peers=peers)


def rows(before: int) -> Frame:
    """The current row and ``before`` rows of its key before it: SQL's ROWS n PRECEDING."""
    check_number(before, 0, "before", "rows")
    return Frame("rows", before)


def range_(before: Duration) -> Frame:
    """The rows of the key whose time is at most ``before`` earlier, both ends included: SQL's RANGE."""
    span = microseconds(before, "range_", "before")
    if span < 1:
        raise SchemaError(f"range_: before is {before!r}; give a duration of at least a microsecond")
    return Frame("range", span, peers=True)


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
    count = len(times)
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    # All times and all lower ends in one order: an end comes directly before the first row that is not before it.
    keys, asked = np.tile(owners, 2), np.repeat([True, False], count)
    earliest = np.maximum(times, np.iinfo(np.int64).min + before) - before
    values = np.concatenate([earliest, times])
    order = rows_by(keys, values, ~asked)
    ended_before = np.cumsum(order >= count)  # rows before it, over all keys
    first = np.empty(count, np.int64)
    is_asked = order < count
    first[order[is_asked]] = ended_before[is_asked]
    return first


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
