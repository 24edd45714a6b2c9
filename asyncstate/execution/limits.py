"""The bounds that the controllers keep to.

Owns: ``AsyncLimits`` and ``CallLimits``; see the configuration keys of the same names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AsyncLimits:
    """The bounds of an AsyncExecutionController."""

    in_flight: int = 6000
    buffer_size: int = 1000
    buffer_timeout_ms: int = 1000
    io_parallelism: int = 32
    watchdog_timeout_ms: int = 60_000
    batch_hot_reads: bool = False
    serial_epochs: bool = True


@dataclass(frozen=True)
class CallLimits:
    """The bounds of OutsideCalls: ``async-state.call-limit``, ``call-timeout`` and ``watchdog-timeout``."""

    in_flight: int = 100
    timeout_ms: int = 60_000
    watchdog_timeout_ms: int = 60_000
