"""What operators with a time to live share: the event times that their state is stamped with.

Owns: ``row_times``, ``key_times`` and the stamps of rows.
Invariant: None wherever times do not count, so that operators without a ttl, or with one in processing time, compute
nothing.
Must not import anything of ``asyncstate`` but ``operator`` and ``state``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asyncstate.operator import MIN_WATERMARK, Bundle
from asyncstate.state.columnar.columns import ColumnState
from asyncstate.state.columnar.list_columns import ListColumnState
from asyncstate.state.expiring.ttl import StateTtl, TtlTime

from .arrays import Int64Array


def row_times(bundle: Bundle, ttl: StateTtl | None) -> Int64Array | None:
    """The event times of the rows (n, microseconds) for a ``ttl`` in event time; None if these do not count."""
    return bundle.times if ttl is not None and ttl.time is TtlTime.EVENT else None


def row_stamps(
    state: ColumnState | ListColumnState, bundle: Bundle, ttl: StateTtl | None, rows: Int64Array
) -> Int64Array | None:
    """The stamps that ``rows`` (m) of the bundle get in ``state``; None if they do not expire."""
    times = row_times(bundle, ttl)
    return state.stamps_at(None if times is None else times[rows], len(rows))


def stamps_behind(stored: Int64Array | None, new: Int64Array | None) -> Int64Array | None:
    """The stamps of stored rows, which keep theirs, then those of ``new`` ones; None if rows do not expire."""
    if new is None:
        return None
    assert stored is not None
    return np.concatenate([stored, new])


def key_times(
    bundle: Bundle, ttl: StateTtl | None, row_keys: npt.NDArray[np.integer] | None = None, count: int = 0
) -> Int64Array | None:
    """The latest event time of each key's rows, or None as in ``row_times``.

    The keys are the bundle's own (u), or ``count`` keys of which ``row_keys`` (n) has that of each row, -1 for none.
    """
    times = row_times(bundle, ttl)
    if times is None:
        return None
    if row_keys is None:
        row_keys, count = bundle.keys.inverse, len(bundle.keys)
    latest = np.full(count, MIN_WATERMARK, np.int64)
    known = row_keys >= 0
    np.maximum.at(latest, row_keys[known], times[known])
    return latest
