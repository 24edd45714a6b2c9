"""Watermark delays as Spark writes them: ``"4 seconds"``, ``"1 hour 30 minutes"``.

Owns: the check of a delay.
"""

from __future__ import annotations

from datetime import timedelta

from asyncstate.durations import microseconds
from asyncstate.errors import ConfigurationError


def delay_us(delay: str | timedelta) -> int:
    """Microseconds of a delay. Raises ConfigurationError for a text that is no delay, and below zero."""
    length = microseconds(delay, "input", "watermark delay", ConfigurationError)
    if length < 0:
        raise ConfigurationError(f"input: watermark delay {delay!r} is below zero; give zero or more")
    return length
