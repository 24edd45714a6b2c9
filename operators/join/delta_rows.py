"""The delta rows of one join input, with the row kinds that they drive the join with.

Owns: ``DeltaRows``, made from the net change that ``consolidation`` computes.
Invariant: only the net change drives the join: a row that is added and retracted within the bundle is not part of it.
Pure functions over numpy; must not know of state or of the join's type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncstate.changelog import RowKind, accumulates

from ..core.arrays import BoolArray, Int8Array, Int64Array
from ..core.consolidation import ConsolidatedRows


@dataclass(frozen=True)
class DeltaRows:
    """The net change of n bundle rows against m stored rows.

    ``rows`` are the driving rows: an index below n is a bundle row, n + i is stored row i (retracted). ``at`` is the
    bundle row that causes each, ``kinds`` the kind of each. ``removed`` (m) marks the stored rows to remove,
    ``added`` are the bundle rows to add, in arrival order, ``missing`` the retractions of rows that are not there.
    ``believed`` are those of ``missing`` that drive nevertheless.
    """

    rows: Int64Array
    at: Int64Array
    kinds: Int8Array
    removed: BoolArray
    added: Int64Array
    missing: Int64Array
    believed: Int64Array


_NONE: Int64Array = np.empty(0, np.int64)


def insertions(kinds: Int8Array, stored: int) -> DeltaRows:
    """The changes of a bundle without retractions whose rows replace nothing."""
    rows = np.arange(len(kinds), dtype=np.int64)
    return DeltaRows(rows, rows, kinds, np.zeros(stored, np.bool_), rows, _NONE, _NONE)


def changes_of(net: ConsolidatedRows, kinds: Int8Array, replaces: bool, believes: bool) -> DeltaRows:
    """The delta rows of a ``net`` change.

    ``replaces``: a row that replaces a stored row is not equal to it, so the stored row itself drives.
    ``believes``: a retraction whose row is not there drives, since its row may have expired.
    """
    gone = len(kinds) + np.flatnonzero(net.removed) if replaces else net.cause
    kinds_of_gone = np.where(accumulates(kinds[net.cause]), RowKind.UPDATE_BEFORE, kinds[net.cause])
    believed = net.missing if believes else _NONE
    return DeltaRows(
        rows=np.concatenate([gone, believed, net.added]),
        at=np.concatenate([net.cause, believed, net.added]),
        kinds=np.concatenate([kinds_of_gone, kinds[believed], kinds[net.added]]).astype(np.int8),
        removed=net.removed,
        added=net.added,
        missing=net.missing,
        believed=believed,
    )
