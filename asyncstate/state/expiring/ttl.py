"""Time to live: how an operator declares that its state expires.

Owns: ``StateTtl``, its options, and the interface between the clean-up and a state that has one.
Invariant: a declaration that exists is valid: a positive duration and known options.
Must not import the states, storage, execution or operators.

Source: Flink's ``StateTtlConfig``; event time is an addition.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol

from asyncstate.durations import Duration, microseconds
from asyncstate.errors import StateDeclarationError

_LONGEST_US: Final = 2**62  # a stamp and a duration together stay within 64 bits


class TtlTime(StrEnum):
    """The time domain of an entry's age."""

    PROCESSING = "processing"
    EVENT = "event"


class TtlUpdate(StrEnum):
    """Which accesses renew an entry's time to live."""

    CREATE_AND_WRITE = "create-and-write"
    READ_AND_WRITE = "read-and-write"


class TtlVisibility(StrEnum):
    """Whether a read returns an entry that is expired and still stored."""

    NEVER_RETURN_EXPIRED = "never-return-expired"
    RETURN_IF_NOT_CLEANED = "return-if-not-cleaned"


@dataclass(frozen=True)
class StateTtl:
    """The time to live of a state's values, of each map entry and of each list element.

    ``duration``: a string such as "10 minutes", a timedelta or microseconds; stored as microseconds. An entry that was
    stamped at t has expired when t + duration <= now. With ``time="processing"`` both are the time at which the driver
    started a micro-batch; with ``time="event"`` the stamp is the record's event time, or the watermark if that is
    higher, and now is the watermark. ``update`` says whether reads renew the stamp, ``visibility`` whether reads return
    expired entries until the clean-up has removed them; both are for states of record grain. The options are texts or
    members of ``TtlTime``, ``TtlUpdate`` and ``TtlVisibility``. Raises StateDeclarationError for any other value.

    A stored state keeps its ``time``; the others may change at any restart.

    >>> StateTtl("10 minutes").duration_us
    600000000
    """

    duration: Duration
    time: TtlTime | str = TtlTime.PROCESSING
    update: TtlUpdate | str = TtlUpdate.CREATE_AND_WRITE
    visibility: TtlVisibility | str = TtlVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        duration_us = microseconds(self.duration, "StateTtl", "duration", StateDeclarationError)
        if not 0 < duration_us <= _LONGEST_US:
            raise StateDeclarationError(
                f"StateTtl: duration is {self.duration!r}; give at least one microsecond (and at most 2**62), or "
                "leave the ttl out for state that never expires"
            )
        object.__setattr__(self, "duration", duration_us)
        for name, options in (("time", TtlTime), ("update", TtlUpdate), ("visibility", TtlVisibility)):
            given = getattr(self, name)
            try:
                object.__setattr__(self, name, options(given))
            except ValueError:
                raise StateDeclarationError(
                    f"StateTtl: {name} is {given!r}; give one of: {', '.join(repr(str(option)) for option in options)}"
                ) from None

    @property
    def duration_us(self) -> int:
        """The duration in microseconds."""
        duration = self.duration
        assert isinstance(duration, int)
        return duration


class ExpiringState(Protocol):
    """A state with a time to live, as the clean-up sees it."""

    def sweep(self, group: bytes) -> int:
        """Remove the expired data of a key group (2 bytes); the number of values, map entries or elements."""


Ttl = StateTtl | Duration | None
"""A time to live as declared: a duration alone is ``StateTtl(duration)``; None: forever."""


def as_ttl(owner: str, ttl: Ttl, name: str = "ttl") -> StateTtl | None:
    """``ttl``, the argument ``name`` of ``owner``, as a StateTtl. Raises StateDeclarationError if it is not one."""
    if ttl is None or isinstance(ttl, StateTtl):
        return ttl
    given: object = ttl
    if not isinstance(given, (str, timedelta, int)) or isinstance(given, bool):
        raise StateDeclarationError(
            f"{owner}: {name}={ttl!r} is not a time to live; give a duration such as '10 minutes', or "
            "StateTtl('10 minutes', ...) with options"
        )
    try:
        return StateTtl(ttl)
    except StateDeclarationError as error:
        raise StateDeclarationError(f"{owner}: {name}={ttl!r} is not a time to live. {error}") from None


def as_bundle_ttl(owner: str, ttl: Ttl, name: str = "ttl") -> StateTtl | None:
    """``as_ttl`` for states of bundle grain, which only writes renew and which never return expired data."""
    checked = as_ttl(owner, ttl, name)
    usual = StateTtl(1)
    for option in ("update", "visibility"):
        given = getattr(checked, option, None)
        if given not in (None, getattr(usual, option)):
            raise StateDeclarationError(
                f"{owner}: {name} has {option}='{given}', which only states of a RecordOperator support; leave "
                f"{option} out (it is '{getattr(usual, option)}' here)"
            )
    return checked


def ttl_texts(ttl: Ttl) -> dict[str, str]:
    """The entries that a declaration with ``ttl`` adds to the type texts of a stored state."""
    # Only with a ttl: the texts of states without one stay the same in every checkpoint.
    return {"ttl": str(ttl.time)} if isinstance(ttl, StateTtl) else {}
