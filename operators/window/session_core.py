"""Merging of rows and stored sessions into sessions.

Owns: ``MergedSessions``, ``merge_sessions`` and ``sessions_at``; pure functions of numpy arrays.
Invariant: the sessions of a key are disjoint. Two that touch are one, unless ``touching`` is false.
Must not import anything of ``asyncstate``.

Source: the merging of Flink's ``TimeWindow.mergeWindows``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from asyncstate.codec.sorting import rows_by

from ..core.arrays import Int64Array, IntArray


class Spans(NamedTuple):
    """m sessions: the index of their key, their starts and ends in microseconds, end exclusive."""

    keys: IntArray
    starts: Int64Array
    ends: Int64Array


class MergedSessions(NamedTuple):
    """s sessions, ascending by (key, start), of i items: the m stored sessions, then the n rows.

    ``order`` (i) has the items session by session, ``firsts`` (s) where each begins, ``session_of`` (i) the
    session of each item.
    """

    spans: Spans
    order: Int64Array
    firsts: Int64Array
    session_of: Int64Array


def merge_sessions(
    stored: Spans, row_keys: IntArray, row_times: Int64Array, gap: int, touching: bool = True
) -> MergedSessions:
    """The sessions of m stored ones and n rows; rows exactly ``gap`` apart are in one session if ``touching``.

    Stored sessions of a key are disjoint and ascend. There must be at least one item.
    """
    count = len(stored.keys)
    keys = np.concatenate([stored.keys, row_keys]).astype(np.int64)
    starts = np.concatenate([stored.starts, row_times])
    ends = np.concatenate([stored.ends, row_times + gap])
    order = rows_by(keys, starts)
    keys, starts, ends = keys[order], starts[order], ends[order]
    is_stored = order < count
    reach = np.maximum(_last_end(keys, ends, is_stored), _last_end(keys, ends, ~is_stored))
    begins = np.ones(len(order), np.bool_)
    is_separate = starts[1:] > reach[:-1] if touching else starts[1:] >= reach[:-1]
    begins[1:] = (keys[1:] != keys[:-1]) | is_separate
    firsts = np.flatnonzero(begins)
    session_of = np.empty(len(order), np.int64)
    session_of[order] = np.cumsum(begins) - 1
    lasts = np.append(firsts[1:], len(order)) - 1
    return MergedSessions(Spans(keys[firsts], starts[firsts], reach[lasts]), order, firsts, session_of)


def _last_end(keys: Int64Array, ends: Int64Array, chosen: npt.NDArray[np.bool_]) -> Int64Array:
    """The end of the last chosen item up to each item of the same key; the int64 minimum where there is none.

    Among stored sessions (disjoint) and among rows (all of one length) the last end is the highest.
    """
    last = np.maximum.accumulate(np.where(chosen, np.arange(len(keys)), -1))
    known = (last >= 0) & (keys[last] == keys)
    return np.where(known, ends[last], np.iinfo(np.int64).min)


def sessions_at(spans: Spans, row_keys: IntArray, row_times: Int64Array, gap: int) -> Int64Array:
    """The session (n) that contains each time at least ``gap`` before its end, -1 where there is none.

    With the gap of the sessions that means between their first and last row.
    """
    count = len(spans.keys)
    if not count:
        return np.full(len(row_keys), -1, np.int64)
    order = rows_by(
        np.concatenate([spans.keys, row_keys]),
        np.concatenate([spans.starts, row_times]),
        np.repeat([False, True], [count, len(row_keys)]),
    )
    last = np.maximum.accumulate(np.where(order < count, order, -1))  # sessions keep their order
    found = np.empty(len(order), np.int64)
    found[order] = last
    found = found[count:]
    inside = (found >= 0) & (spans.keys[found] == row_keys) & (row_times <= spans.ends[found] - gap)
    return np.where(inside, found, -1)
