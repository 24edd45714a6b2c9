"""What operators with a time to live share: the event times that their state is stamped with.

Owns: ``row_times`` and ``key_times``.
Invariant: None wherever times do not count, so that operators without a ttl, or with one in processing time, compute
nothing.
Must not import anything of ``asyncstate`` but ``operator`` and ``state``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from asyncstate.operator import MIN_WATERMARK, Bundle
from asyncstate.state.expiring.ttl import StateTtl, TtlTime

from .arrays import Int64Array


def row_times(bundle: Bundle, ttl: StateTtl | None) -> Int64Array | None:
    """The event times of the rows (n, microseconds) for a ``ttl`` in event time; None if these do not count."""
    return bundle.times if ttl is not None and ttl.time is TtlTime.EVENT else None


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
