"""What a time to live means for the stored bytes of many rows at once.

Owns: ``ColumnExpiry``, the vectorised form of ``Expiry``, and ``WrittenKeys``, by which a renewal spares later writes.
Invariant: stored rows have the layout that ``expiry`` gives single values, ``[stamp: 8 bytes][encoded row]``; what is
expired, shown and renewed is the same as there.
Must not import the states, storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from asyncstate.codec.columns import (
    BoolArray,
    ByteArray,
    Int64Array,
    binary_parts,
    gather_bytes,
    without_prefix,
)
from asyncstate.codec.key_fields import payload_matrix, payload_storage
from asyncstate.errors import CodecError
from asyncstate.operator import MIN_WATERMARK, OperatorContext
from asyncstate.state.expiring.expiry import STAMP_BYTES, STAMP_MAX, checked_time
from asyncstate.state.expiring.ttl import StateTtl, TtlTime, TtlUpdate, TtlVisibility

UNTIMED_STAMP: Final = 2**63 - 1
"""``UNTIMED`` as a number: written in event time when no time was known."""


class ColumnExpiry:
    """The time to live of one declared column state in one micro-batch. Stamps are int64 microseconds (n)."""

    __slots__ = ("_event_time", "_first_live", "_hidden_below", "_now", "_owner", "_stamp_now", "renews")

    def __init__(self, ttl: StateTtl, now: int, owner: str) -> None:
        """``now``: see ``time_of``, microseconds; ``owner`` names the state in messages."""
        self._owner = owner
        self._event_time = ttl.time is TtlTime.EVENT
        self._now = now
        self._stamp_now = UNTIMED_STAMP if now == MIN_WATERMARK else min(now, STAMP_MAX)
        self.renews = ttl.update is TtlUpdate.READ_AND_WRITE
        self._first_live = max(now - ttl.duration_us + 1, MIN_WATERMARK)
        hides = ttl.visibility is TtlVisibility.NEVER_RETURN_EXPIRED
        self._hidden_below = self._first_live if hides else MIN_WATERMARK

    def stamps(self, times: Int64Array | None, count: int) -> Int64Array:
        """The stamps of what ``count`` rows of these event times write: of event time the later of row and watermark,
        of processing time that of the micro-batch."""
        if times is None or not self._event_time:
            return np.full(count, self._stamp_now, np.int64)
        return np.where(times > self._now, np.minimum(times, STAMP_MAX), np.int64(self._stamp_now))

    def prefix(self, stamps: Int64Array | None, count: int) -> ByteArray:
        """The bytes of ``stamps`` (None: of this micro-batch), shape (count, 8)."""
        return payload_matrix(self.stamps(None, count) if stamps is None else stamps)

    def expired(self, stamps: Int64Array) -> BoolArray:
        """Whose time is over."""
        expired: BoolArray = stamps < self._first_live
        return expired

    def shown(self, stamps: Int64Array) -> BoolArray:
        """What reads show."""
        shown: BoolArray = stamps >= self._hidden_below
        return shown

    def due(self, stamps: Int64Array, at: Int64Array) -> BoolArray:
        """What a read that stamps ``at`` renews: what is live and older."""
        due: BoolArray = (stamps >= self._first_live) & (stamps < at)
        return due

    def untimed(self, stamps: Int64Array) -> BoolArray:
        """What the clean-up gives a time because it has none and one is known now."""
        if self._stamp_now == UNTIMED_STAMP:
            return np.zeros(len(stamps), np.bool_)
        untimed: BoolArray = stamps == UNTIMED_STAMP
        return untimed

    def read(self, rows: pa.LargeBinaryArray) -> Int64Array:
        """The stamps of stored rows (n, no nulls); CodecError if one is shorter than its stamp."""
        offsets, data = binary_parts(rows)
        if bool((np.diff(offsets) < STAMP_BYTES).any()):
            raise CodecError(
                f"{self._owner}: a stored row has no time stamp; restore the checkpoint from an older version"
            )
        return payload_storage(gather_bytes(data, offsets[:-1], STAMP_BYTES), np.dtype(np.int64))


def column_expiry_of(ttl: StateTtl, context: OperatorContext, owner: str) -> ColumnExpiry:
    """The ColumnExpiry of a state in the micro-batch of ``context``; see ``checked_time``."""
    return ColumnExpiry(ttl, checked_time(ttl, context, owner), owner)


def without_stamps(rows: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Stored rows (n, no nulls, each with a stamp) without their stamps."""
    return without_prefix(rows, STAMP_BYTES)


class WrittenKeys:
    """The store keys that were written in this micro-batch, and in what order; at most about ``KEYS_MAX`` of them are
    held. When they are more they are forgotten, and any key may have been written until then."""

    KEYS_MAX: ClassVar[int] = 1 << 18

    __slots__ = ("_forgotten", "_last", "moment")

    def __init__(self) -> None:
        self.moment = 0
        """How many writes there have been; a read notes it when it is asked for."""
        self._last: dict[bytes, int] = {}
        self._forgotten = 0

    def note(self, keys: Iterable[bytes]) -> None:
        """``keys`` are written now."""
        self.moment += 1
        if len(self._last) > self.KEYS_MAX:
            self._last.clear()
            self._forgotten = self.moment - 1
        self._last.update(dict.fromkeys(keys, self.moment))

    def since(self, keys: Sequence[bytes], moment: int) -> BoolArray:
        """Which of the keys have been written behind ``moment``."""
        if moment == self.moment:
            return np.zeros(len(keys), np.bool_)
        last, otherwise = self._last, self._forgotten
        return np.fromiter((last.get(key, otherwise) > moment for key in keys), np.bool_, len(keys))
