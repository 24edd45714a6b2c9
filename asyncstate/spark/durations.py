"""Watermark delays as Spark writes them: ``"4 seconds"``, ``"1 hour 30 minutes"``.

Owns: the reading of a delay into microseconds.
"""

from __future__ import annotations

import re
from datetime import timedelta

from asyncstate.errors import ConfigurationError

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(rf"(\d+)\s*({'|'.join(_UNITS_US)})s?")


def delay_us(delay: str | timedelta) -> int:
    """Microseconds of a delay. Raises ConfigurationError for a text that is no delay, and below zero."""
    if isinstance(delay, timedelta):
        microseconds = delay // timedelta(microseconds=1)
        if microseconds < 0:
            raise ConfigurationError(f"watermark delay {delay} is below zero; give zero or more")
        return microseconds
    text = delay.strip().lower()
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ConfigurationError(
            f"watermark delay {delay!r} cannot be read; write it like '4 seconds' or '1 hour 30 minutes' "
            f"(units: {', '.join(_UNITS_US)})"
        )
    return sum(int(amount) * _UNITS_US[unit] for amount, unit in parts)
