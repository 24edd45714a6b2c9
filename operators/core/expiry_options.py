"""Shared code of operators with a time to live: the event times that stamp their state.

Owns: ``row_times``, ``key_times`` and the stamps of rows.
Invariant: None wherever times are not used, so that operators without a ttl, or with one in processing time, compute
nothing.
Must not import anything of ``asyncstate`` but ``operator`` and ``state``.
"""

from __future__ import annotations

import numpy as np

from asyncstate.operator import MIN_WATERMARK, Bundle
from asyncstate.state.columnar.list_columns import ListColumnState
from asyncstate.state.columnar.state_columns import ColumnState
from asyncstate.state.expiring.ttl import StateTtl, TtlTime

from .arrays import Int64Array


def row_times(bundle: Bundle, ttl: StateTtl | None) -> Int64Array | None:
    """The event times of the rows (n, microseconds) for a ``ttl`` in event time; None for any other ttl."""
    return bundle.times if ttl is not None and ttl.time is TtlTime.EVENT else None


def row_stamps(
    state: ColumnState | ListColumnState, bundle: Bundle, ttl: StateTtl | None, rows: Int64Array
) -> Int64Array | None:
    """The stamps of ``rows`` (m) of the bundle in ``state``; None if they do not expire."""
    times = row_times(bundle, ttl)
    return state.stamps_at(None if times is None else times[rows], len(rows))


def concat_stamps(stored: Int64Array | None, new: Int64Array | None) -> Int64Array | None:
    """The stamps of stored rows, which keep theirs, followed by those of ``new`` ones; None if rows do not expire."""
    if new is None:
        return None
    assert stored is not None
    return np.concatenate([stored, new])


def key_times(bundle: Bundle, ttl: StateTtl | None) -> Int64Array | None:
    """The latest event time of the rows of each of the bundle's keys (u), or None as in ``row_times``."""
    times = row_times(bundle, ttl)
    if times is None:
        return None
    latest = np.full(len(bundle.keys), MIN_WATERMARK, np.int64)
    np.maximum.at(latest, bundle.keys.inverse, times)
    return latest
