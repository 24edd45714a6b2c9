"""Time to live: stamps, expiry, renewal and clean-up.

Owns: ``Lifetime``: the clock of a state's ttl, which stamps writes get and which of them are expired. Column states
use it as it is. ``Expiry``, the same for stored values at record grain: also which of them a read returns and renews,
and the clean-up of states with one stamp per entry. States of record grain read their entries from it, if they have a
ttl, as else from their backend.
Invariant: with a ttl each stored value, or row, is ``[stamp: 8 bytes][encoded value]``, the stamp in the
order-preserving form of an int64, so that ages are compared as bytes. Whether an entry is expired depends on the stamp
and the micro-batch only.
Must not import the states, storage, execution or operators.

Source: Flink's ``StateTtlConfig`` and ``TtlStateContext``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from asyncstate.codec import encode_namespace, prefix_end
from asyncstate.codec.value_columns import BoolArray, Int64Array
from asyncstate.errors import StateDeclarationError
from asyncstate.futures import StateFuture
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, OperatorContext
from asyncstate.state.expiring.ttl import StateTtl, TtlTime, TtlUpdate, TtlVisibility
from asyncstate.state.ranges import range_entries
from asyncstate.state_backend import Decoder, Page, StateBackend, T

STAMP_BYTES: Final = 8

UNTIMED: Final = b"\xff" * STAMP_BYTES
"""The stamp of an entry of event time that was written when no time was known; the clean-up gives it the watermark."""

UNTIMED_STAMP: Final = 2**63 - 1
"""``UNTIMED`` as a number."""

STAMP_MAX: Final = MAX_WATERMARK - 1
"""The highest time of a stamp: the next one is ``UNTIMED``. Rows without an end have this time."""


class Lifetime:
    """The time to live of one declared state in one micro-batch, during which time does not change.

    Times and stamps are int64 microseconds. ``now``: see ``time_of``; ``stamp_now``: the stamp of writes at that time;
    ``first_live``: the lowest stamp that is not expired.
    """

    __slots__ = ("event_time", "first_live", "now", "stamp_now")

    def __init__(self, ttl: StateTtl, context: OperatorContext, owner: str) -> None:
        """Raises StateDeclarationError naming ``owner`` for a ttl in event time if no input has an event time."""
        self.event_time = ttl.time is TtlTime.EVENT
        if self.event_time and all(spec.event_time is None for spec in context.inputs):
            raise StateDeclarationError(
                f"{owner}: its ttl is in event time, but no input has an event time; declare event_time (and a "
                "watermark_delay) on an input, or use StateTtl(..., time='processing')"
            )
        self.now = now = time_of(ttl, context)
        self.stamp_now = UNTIMED_STAMP if now == MIN_WATERMARK else min(now, STAMP_MAX)
        self.first_live = max(now - ttl.duration_us + 1, MIN_WATERMARK)

    def stamps(self, times: Int64Array | None, count: int) -> Int64Array:
        """The stamps for writes of ``count`` rows with these event times: in event time the later of row and watermark,
        in processing time that of the micro-batch."""
        if times is None or not self.event_time:
            return np.full(count, self.stamp_now, np.int64)
        return np.where(times > self.now, np.minimum(times, STAMP_MAX), np.int64(self.stamp_now))

    def live(self, stamps: Int64Array) -> BoolArray:
        """Mask of the stamps that are not expired (n)."""
        live: BoolArray = stamps >= self.first_live
        return live

    def due(self, stamps: Int64Array) -> BoolArray:
        """Mask of the stamps (n) whose rows the clean-up changes: it removes expired rows, and stamps rows that have no
        time once a time is known."""
        due = ~self.live(stamps)
        if self.stamp_now != UNTIMED_STAMP:
            due |= stamps == UNTIMED_STAMP
        return due


class Expiry(Lifetime):
    """The lifetime of stored values.

    ``raw`` is always a stored value, prefixed with its stamp. A stamp is shorter than any such value, so comparing the
    two compares the stamps.
    """

    __slots__ = ("_first_live_bytes", "_hidden_below", "_sink", "_stamp_now_bytes", "renews")

    def __init__(self, ttl: StateTtl, context: OperatorContext, owner: str, sink: StateBackend) -> None:
        super().__init__(ttl, context, owner)
        self._sink = sink
        self.renews = ttl.update is TtlUpdate.READ_AND_WRITE
        self._stamp_now_bytes = encode_namespace(self.stamp_now)
        self._first_live_bytes = encode_namespace(self.first_live)
        hides = ttl.visibility is TtlVisibility.NEVER_RETURN_EXPIRED
        self._hidden_below = self._first_live_bytes if hides else b""

    # -- writing --------------------------------------------------------------------------------------

    def stamp(self) -> bytes:
        """The stamp of values that the sink's current record writes."""
        if self.event_time:
            time = getattr(self._sink.current, "timestamp", None)
            if time is not None and time > self.now:
                return encode_namespace(time if time < MAX_WATERMARK else STAMP_MAX)
        return self._stamp_now_bytes

    def stamped(self, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """``encode`` with its result prefixed with the stamp."""
        stamp = self.stamp
        return lambda value: stamp() + encode(value)

    # -- reading --------------------------------------------------------------------------------------

    def expired(self, raw: bytes) -> bool:
        """True when ``raw`` is expired."""
        return raw < self._first_live_bytes

    def shows(self, raw: bytes) -> bool:
        """True when reads return ``raw``."""
        return raw >= self._hidden_below

    def unexpired(self, raw: bytes | None) -> bytes | None:
        """The encoded value in ``raw``, None if there is none or reads do not return it."""
        return None if raw is None or raw < self._hidden_below else raw[STAMP_BYTES:]

    def get(self, key: bytes) -> bytes | None:
        """As ``StateBackend.get``, for the encoded value; renews it."""
        return self._read(key, self._sink.get(key))

    def async_get(self, key: bytes, decode: Decoder[T]) -> StateFuture[T]:
        """As ``StateBackend.async_get``, for the encoded value; renews it."""
        return self._sink.async_get(key, lambda raw: decode(self._read(key, raw)))

    def _read(self, key: bytes, raw: bytes | None) -> bytes | None:
        if self.renews and raw is not None:
            self.renew(key, raw)
        return self.unexpired(raw)

    def renewed(self, raw: bytes, stamp: bytes) -> bytes:
        """``raw`` after a read at ``stamp``: ``raw`` itself unless reads renew and it is live and older."""
        if self.renews and self._first_live_bytes <= raw < stamp:
            return stamp + raw[STAMP_BYTES:]
        return raw

    def renew(self, key: bytes, raw: bytes) -> None:
        """Renew the value read under ``key``, unless the record has written it since the request."""
        after = self.renewed(raw, self.stamp())
        if after is not raw and self._sink.get(key) == raw:
            self._sink.put(key, after)

    def unexpired_page(self, page: Page) -> Page:
        """The entries of ``page`` that reads return, without their stamps; renews them."""
        if self.renews:
            for key, raw in page:
                self.renew(key, raw)
        below = self._hidden_below
        return [(key, raw[STAMP_BYTES:]) for key, raw in page if raw >= below]

    # -- the clean-up ---------------------------------------------------------------------------------

    def restamped(self, raw: bytes) -> bytes:
        """``raw`` with the watermark as its stamp if it was written before any time was known."""
        if raw.startswith(UNTIMED) and self._stamp_now_bytes != UNTIMED:
            return self._stamp_now_bytes + raw[STAMP_BYTES:]
        return raw

    def sweep_entries(self, state: bytes, page_size: int) -> int:
        """Remove the expired entries whose keys begin with ``state`` (key group and state id); their number."""
        sink = self._sink
        removed = 0
        for key, raw in range_entries(sink, state, prefix_end(state), page_size):
            if self.expired(raw):
                sink.delete(key)
                removed += 1
            elif (after := self.restamped(raw)) is not raw:
                sink.put(key, after)
        return removed


def time_of(ttl: StateTtl, context: OperatorContext) -> int:
    """The current time for ``ttl``, microseconds; MIN_WATERMARK as long as no time is known.

    The end of the input does not advance time: the last micro-batch keeps the previous event time, so that the timers
    that fire then find their state.
    """
    if ttl.time is TtlTime.PROCESSING:
        return context.processing_time
    return context.previous_watermark if context.watermark == MAX_WATERMARK else context.watermark
