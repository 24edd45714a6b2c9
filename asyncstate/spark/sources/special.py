"""Special values in Debezium's events: placeholders of values that the log does not have, infinities, and 1970-01-01
for MySQL's and MariaDB's 0000-00-00.

Owns: ``Special``.
Invariant: none of these passes for an ordinary value: it is malformed, or becomes what the caller declares.
Must not import runtime, storage or execution.

Source: events of Debezium 3.6 for all types of PostgreSQL 15, with both replica identities, from snapshots and from
changes, in JVMs of five time zones; the fallback values of its MySQL and MariaDB connectors.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DecimalType,
    StringType,
    StructField,
    TimestampType,
)

from asyncstate.errors import ConfigurationError
from asyncstate.spark.sources.malformed import text

_PLACEHOLDER: Final = "__debezium_unavailable_value"
_IN_BASE64: Final = base64.b64encode(_PLACEHOLDER.encode()).decode()
_PLACEHOLDERS: Final = (
    _PLACEHOLDER,
    _IN_BASE64,
    *(
        json.dumps(one, separators=(",", ":"))
        for one in (
            [_PLACEHOLDER],
            [_IN_BASE64],
            list(_PLACEHOLDER.encode()),
            [
                "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
            ],  # of arrays of UUIDs: the name-based UUID of the placeholder
            {_PLACEHOLDER: _PLACEHOLDER},
        )
    ),
)
"""A placeholder in the form of each type: text, bytes, arrays of both, of numbers and dates, of UUIDs, hstore."""

# Days since 1970. The driver's milliseconds of infinity are more days than an int holds, and where they are cut depends
# on the origin (snapshot or change) and on the time zone of the JVM.
_DAYS: Final = {
    1: (2_147_483_647, -622_191_234, -622_191_233, -2_147_472_692),
    -1: (-2_147_483_648, -625_821_272, -625_821_271, -2_147_472_691),
}
_DAY_MIN, _DAY_MAX = -2_440_588, 2_145_042_905  # 4713 BC to 5874897: PostgreSQL's range, the widest
_MICROS_MIN, _MICROS_MAX = (
    -211_000_000_000_000_000,
    9_223_372_036_000_000_000,
)  # beyond 4713 BC, and in the year 294247
_DAY: Final = 86_400_000_000
_EPOCH: Final = dt.date(1970, 1, 1)

Infinity = tuple[dt.date | str | None, dt.date | str | None]
"""The values that ``-infinity`` and ``infinity`` become: dates, or null for None."""


ZeroDates = dt.date | str
"""The meaning of 1970-01-01: a date, as one or as text, or ``"null"``."""
_NULL: Final = "null"


@dataclass(frozen=True)
class Special:
    """``infinity``: the values that the infinities of dates and timestamps become; None: they are malformed. ``zero``:
    the value that 1970-01-01 becomes, a date or ``"null"``; None: ``doubt`` reports it."""

    infinity: tuple[dt.date | None, dt.date | None] | None = None
    zero: dt.date | str | None = None

    def value(self, kind: DataType, raw: str, value: str) -> str:
        """In SQL: ``value``, made of the text ``raw``, or its replacement."""
        if isinstance(kind, StringType | BinaryType):
            return f"if({_is_placeholder(raw)}, null, {value})"
        if not isinstance(kind, DateType | TimestampType):
            return value
        sign = _sign(kind, raw, value)
        if self.zero is not None and self.zero != _EPOCH:
            zero = _literal(kind, None if isinstance(self.zero, str) else self.zero)
            value = f"if({_is_epoch(kind, value)}, {zero}, {value})"
        if self.infinity is None:
            return f"if({sign} is null, {value}, null)"
        low, high = (_literal(kind, one) for one in self.infinity)
        return f"case {sign} when 1 then {high} when -1 then {low} when 0 then null else {value} end"

    def problems(self, column: StructField, raw: str, value: str) -> str:
        """In SQL: the cases of problems, each ``when ... then ...``; ``value`` as for ``value``."""
        kind, name = column.dataType, column.name
        if isinstance(kind, DecimalType):
            return ""
        missing = text(
            f"column '{name}' has a value that is not in the log (a large unchanged one, TOAST); set REPLICA IDENTITY "
            "FULL on the table"
        )
        cases = f"when {_is_placeholder(raw)} then {missing}"
        if not isinstance(kind, DateType | TimestampType):
            return cases
        sign = _sign(kind, raw, value)
        none = text(f"column '{name}' has a time that no database can have")
        if self.infinity is None:
            infinite = text(f"infinity; set its replacement with infinity=, or leave '{name}' out")
            head = f"concat({text(f'column {name!r} is ')}, if({sign} < 0, '-', ''), {infinite})"
            cases = f"{cases} when {sign} <> 0 then {head}"
        return f"{cases} when {sign} = 0 then {none}"

    def passes(self, column: StructField, raw: str, value: str) -> str:
        """In SQL: whether the value may be null although ``raw`` is not."""
        kind = column.dataType
        if not isinstance(kind, DateType | TimestampType):
            return "false"
        infinite = "false" if self.infinity is None else f"coalesce({_sign(kind, raw, value)} <> 0, false)"
        return f"({infinite} or {_is_epoch(kind, value)})" if self.zero == _NULL else infinite

    def doubt(self, column: StructField, value: str) -> str:
        """In SQL: the case of an ambiguous value; empty if there is none."""
        kind, name = column.dataType, column.name
        if self.zero is not None or not isinstance(kind, DateType | TimestampType):
            return ""
        either = text(
            f"column '{name}' is 1970-01-01, which Debezium also writes for 0000-00-00; set its meaning with "
            "zero_dates='1970-01-01', another date, or 'null'"
        )
        return f"when {_is_epoch(kind, value)} then {either}"


def zero_dates_of(source: str, given: object) -> dt.date | str | None:
    """``zero_dates=`` as a date or "null"; raises ConfigurationError for other values."""
    if given is None or given == _NULL or type(given) is dt.date:
        return given
    try:
        if isinstance(given, str):
            return dt.date.fromisoformat(given)
    except ValueError:
        pass
    raise ConfigurationError(
        f"{source}: zero_dates={given!r} is not a date; give the replacement of 0000-00-00: a date such as "
        "'0001-01-01', 'null', or '1970-01-01', which keeps the dates of the events"
    )


def infinity_of(source: str, given: object) -> tuple[dt.date | None, dt.date | None] | None:
    """The two dates of ``infinity=``; raises ConfigurationError for invalid ones."""
    if given is None:
        return None
    try:
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise TypeError
        low, high = (dt.date.fromisoformat(one) if isinstance(one, str) else one for one in given)
        for one in (low, high):
            if not (one is None or type(one) is dt.date):
                raise TypeError
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{source}: infinity={given!r} is not a pair of dates; give replacements of -infinity and infinity, such "
            "as ('0001-01-01', '9999-12-31'), with None for null"
        ) from error
    return low, high


def _is_placeholder(raw: str) -> str:
    return f"coalesce({raw} in ({', '.join(map(text, _PLACEHOLDERS))}), false)"


def _sign(kind: DataType, raw: str, value: str) -> str:
    """In SQL: 1 and -1 for the infinities, 0 for a value out of the range of times, else null."""
    if isinstance(kind, DateType):
        number = f"unix_date({value})"
        high, low = (f"{number} in ({', '.join(map(str, _DAYS[sign]))})" for sign in (1, -1))
        beyond = f" when {number} not between {_DAY_MIN} and {_DAY_MAX} then 0"
    else:
        number = f"unix_micros({value})"
        high, low, beyond = f"{number} >= {_MICROS_MAX}L", f"{number} <= {_MICROS_MIN}L", ""
    return f"(case when {raw} = 'infinity' or {high} then 1 when {raw} = '-infinity' or {low} then -1{beyond} end)"


def _is_epoch(kind: DataType, value: str) -> str:
    number = "unix_date" if isinstance(kind, DateType) else "unix_micros"
    return f"coalesce({number}({value}) = 0, false)"


def _literal(kind: DataType, date: dt.date | None) -> str:
    if date is None:
        return f"cast(null as {kind.simpleString()})"
    days = (date - _EPOCH).days
    return (
        f"date_from_unix_date({days})" if isinstance(kind, DateType) else f"timestamp_micros({days * _DAY}L)"
    )
