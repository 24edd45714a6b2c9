"""Lengths of time as users write them.

Owns: ``microseconds`` and its inverse, and ``seconds``. A leaf: imports nothing but ``errors``.
"""

from __future__ import annotations

import re
from datetime import timedelta

from asyncstate.errors import AsyncStateError, SchemaError

Duration = str | timedelta | int
"""A text such as "10 seconds", "1h" or "1 hour 30 minutes", a timedelta, or an int of microseconds."""

Seconds = float | str | timedelta
"""Like ``Duration``, but a number is in seconds: for parameters that have always been numbers of seconds."""

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_SHORT_US = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_PART = re.compile(rf"(\d+)\s*(?:({'|'.join(_UNITS_US)})s?|({'|'.join(_SHORT_US)}))(?![a-z])")


def duration_text(length_us: int) -> str:
    """A length as users write it, in its largest units.

    >>> duration_text(90_000_000)
    '1 minute 30 seconds'
    """
    if length_us < 0:
        return f"-{duration_text(-length_us)}"
    parts, left = [], length_us
    for unit, size in reversed(_UNITS_US.items()):
        amount, left = divmod(left, size)
        parts += [f"{amount} {unit}{'' if amount == 1 else 's'}"] if amount else []
    return " ".join(parts) or "0 seconds"


def microseconds(
    duration: Duration, owner: str, name: str, error: type[AsyncStateError] = SchemaError
) -> int:
    """``duration`` in microseconds; a text may begin with "-".

    Raises ``error`` naming ``owner`` and the parameter ``name`` for anything else.

    >>> microseconds("1 minute 30 seconds", "tumble", "size")
    90000000
    """
    if isinstance(duration, timedelta):
        return duration // timedelta(microseconds=1)
    if isinstance(duration, int) and not isinstance(duration, bool):
        return duration
    if isinstance(duration, str):
        text = duration.strip().lower()
        sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
        parts = _PART.findall(text)
        if parts and not _PART.sub("", text).strip():
            return sign * sum(
                int(amount) * (_UNITS_US[unit] if unit else _SHORT_US[short]) for amount, unit, short in parts
            )
    raise error(
        f"{owner}: {name} is {duration!r}, which is not a duration; write it like '10 seconds' or '1h 30min' "
        f"(units: {', '.join((*_UNITS_US, *_SHORT_US))}), or give a timedelta or microseconds"
    )


def seconds(
    duration: Seconds,
    owner: str,
    name: str,
    error: type[AsyncStateError] = SchemaError,
    above_zero: bool = False,
) -> float:
    """``duration`` in seconds, 0 or more (``above_zero``: more). Raises ``error`` as ``microseconds``.

    >>> seconds("1 minute", "Retry", "delay"), seconds(0.5, "Retry", "delay")
    (60.0, 0.5)
    """
    given: object = duration
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        length = float(given)
    elif isinstance(given, (str, timedelta)):
        length = microseconds(given, owner, name, error) / 1_000_000
    else:
        length = -1.0
    if not length >= 0 or (above_zero and not length):
        least = "more than 0" if above_zero else "0 or more"
        raise error(
            f"{owner}: {name} is {duration!r}; give seconds, {least}, a string such as '10 seconds', or a "
            "timedelta"
        )
    return length
