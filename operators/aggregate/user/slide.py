"""Frames that move over the rows of keys: what comes into them and what leaves them, from one to the next.

Owns: ``Frames`` and ``Moves``.
Invariant: within a key neither end of a frame ever moves back.
Must not import anything of ``asyncstate``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from asyncstate.codec.sorting import rows_by

from ...core.arrays import BoolArray, Int8Array, Int64Array, count_up, run_begins


class Frames(NamedTuple):
    """m frames over rows that lie key by key: from row ``first`` to row ``last`` (m each), of the key ``owners`` (m,
    ascending)."""

    first: Int64Array
    last: Int64Array
    owners: Int64Array


class Moves(NamedTuple):
    """s moves, frame after frame: the ``rows`` that move, +1 for those that come and -1 for those that leave, and how
    many moves there were when each of the m frames is complete."""

    rows: Int64Array
    signs: Int8Array
    owners: Int64Array
    done: Int64Array

    @staticmethod
    def of(frames: Frames, counted: BoolArray | None) -> Moves:
        """Only of rows (n) that are ``counted``; None: all are."""
        first, last, owners = frames
        begins = run_begins(owners)
        newest = np.where(begins, first - 1, np.append(0, last[:-1])[: len(last)])
        oldest = np.where(begins, first, np.append(0, first[:-1])[: len(first)])
        come, leave = last - newest, first - oldest
        at = np.arange(len(first))
        rows = np.concatenate(
            [np.repeat(newest + 1, come) + count_up(come), np.repeat(oldest, leave) + count_up(leave)]
        )
        signs = np.repeat(np.array([1, -1], np.int8), [int(come.sum()), int(leave.sum())])
        moment = np.concatenate([np.repeat(at, come), np.repeat(at, leave)])
        order = rows_by(moment)
        if counted is not None:
            order = order[counted[rows[order]]]
        done = np.cumsum(np.bincount(moment[order], minlength=len(first)))
        return Moves(rows[order], signs[order], owners[moment[order]], done)
