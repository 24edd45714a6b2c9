"""Conversion of the values in a JSON event to the declared types.

Owns: ``Typing``: how each wanted column is read from JSON, and the SQL that converts that to its type.
Invariant: a value that does not fit gives null, never an error and never another value; so null where there was a value
means malformed. No conversion depends on the session's time zone or on the clock.
Must not import runtime, storage or execution.

Source: the temporal and decimal types of Debezium's connectors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from asyncstate.errors import ConfigurationError, SchemaError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.sources.malformed import text
from asyncstate.spark.sources.special import Special

Decimals = Literal["text", "base64"]

UNITS: Final = ("iso", "ms", "us", "ns")
_PLAIN: Final = (ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType)
_KNOWN: Final = (
    *_PLAIN, StringType, BooleanType, DateType, TimestampType, DecimalType, BinaryType,
)  # fmt: skip
_NUMBER: Final = "'^-?[0-9]+$'"
_DATE: Final = "'^[+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2}Z?$'"  # with Z: io.debezium.time.IsoDate
# Without a day Spark takes today's, without a zone the session's.
_TIMESTAMP: Final = "'^[+-]?[0-9]{4,}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:'"
_INFINITE: Final = "'^ *[+-]?inf(inity)? *$'"
_ZONE: Final = "'(Z|[+-][0-9]{2}:[0-9]{2})$'"
_SHOWN_CHARS: Final = 50


@dataclass(frozen=True)
class Typing:
    """How the ``columns`` of a source are read from JSON. ``decimals``: "text" for numbers and their text, "base64" for
    the bytes of the unscaled number. ``unit`` is that of numeric timestamps, ``units`` those of columns by name; "iso"
    has no numbers. ``binary``: base64 text may be declared as binary. ``special``: special values that may replace a
    value."""

    columns: StructType
    decimals: Decimals = "text"
    unit: str = "iso"
    units: Mapping[str, str] = field(default_factory=dict)
    binary: bool = True
    special: Special | None = None

    def wire(self) -> StructType:
        """The row as ``from_json`` reads it: text, except for numeric decimals, which as text would pass through a
        double."""
        exact = self.decimals == "text"
        return StructType(
            [
                StructField(
                    column.name,
                    column.dataType if exact and isinstance(column.dataType, DecimalType) else StringType(),
                )
                for column in self.columns
            ]
        )

    def row(self, raw: str, names: Collection[str]) -> str:
        """In SQL: the typed struct of ``raw``, a struct as ``wire()``; null for null. Only ``names`` have a value."""
        fields = [
            f"{text(column.name)}, {self._value(column, raw) if column.name in names else _null(column)}"
            for column in self.columns
        ]
        return f"if({raw} is null, null, named_struct({', '.join(fields)}))"

    def problem(self, raw: str, typed: str, names: Collection[str], required: Collection[str]) -> str:
        """In SQL: the problem in the columns ``names``, or null. Those ``required`` must have a value."""
        found = " ".join(
            self._misfit(column, raw, typed, column.name in required)
            for column in self.columns
            if column.name in names
        )
        return f"case when {raw} is null then null {found} end"

    def doubt(self, changes: str, before: Collection[str], after: Collection[str]) -> str:
        """In SQL: why a value in ``changes``, structs of the wire, is ambiguous; null if none is."""
        if not self._doubts("c.after", self.columns.names):
            return "cast(null as string)"
        cases = f"{self._doubts('c.before', before)} {self._doubts('c.after', after)}"
        return f"get(filter(transform({changes}, c -> case {cases} end), p -> p is not null), 0)"

    @property
    def has_text_decimals(self) -> bool:
        """Whether decimals may be strings in the event."""
        return self.decimals == "text" and has_decimals(self.columns)

    def comma(self, changes: str, before: Collection[str], after: Collection[str]) -> str:
        """In SQL: the problem of the first decimal with a comma in ``changes``, structs of the wire with strings in
        place of decimals; null if there is none."""
        cases = " ".join(
            f"when contains({row}.{quoted(column.name)}, ',') then {_unfit(column, f'{row}.{quoted(column.name)}')}"
            for row, names in (("c.before", before), ("c.after", after))
            for column in self.columns
            if isinstance(column.dataType, DecimalType) and column.name in names
        )
        return f"get(filter(transform({changes}, c -> case {cases} end), p -> p is not null), 0)"

    def _doubts(self, row: str, names: Collection[str]) -> str:
        cases = [
            self.special.doubt(column, self._plain(column, f"{row}.{quoted(column.name)}"))
            for column in self.columns
            if self.special is not None and column.name in names
        ]
        return " ".join(filter(None, cases))

    def _value(self, column: StructField, row: str) -> str:
        raw = f"{row}.{quoted(column.name)}"
        value = self._plain(column, raw)
        return value if self.special is None else self.special.value(column.dataType, raw, value)

    def _plain(self, column: StructField, raw: str) -> str:
        kind = column.dataType
        if isinstance(kind, StringType):
            return raw
        if isinstance(kind, DecimalType):
            return _decimal(kind, raw) if self.decimals == "base64" else raw
        if isinstance(kind, TimestampType):
            return _timestamp(raw, self.units.get(column.name, self.unit))
        return _simple(kind, raw)

    def _misfit(self, column: StructField, raw: str, typed: str, required: bool) -> str:
        """In SQL: the cases of problems with ``column``."""
        given, made = f"{raw}.{quoted(column.name)}", f"{typed}.{quoted(column.name)}"
        first, fits = "", "false"
        if self.special is not None:
            value = self._plain(column, given)
            first, fits = (
                self.special.problems(column, given, value),
                self.special.passes(column, given, value),
            )
        unfit = f"{given} is not null and {made} is null and not {fits}"
        misfit = f"{first} when {unfit} then {_unfit(column, given)}"
        if not required:
            return misfit
        empty = text(f"column '{column.name}' has no value")
        return f"{misfit} when {made} is null then {empty}"


def check_typing(source: str, typing: Typing) -> None:
    """Raise SchemaError or ConfigurationError for columns and settings that cannot be read."""
    for column in typing.columns:
        kind = column.dataType
        if not isinstance(kind, _KNOWN) or (isinstance(kind, BinaryType) and not typing.binary):
            raise SchemaError(
                f"{source}: column '{column.name}' is of type {kind.simpleString()}, which cannot be read from such "
                "events; declare it as string, which gives its text or JSON, and convert that downstream of the "
                "source"
            )
    for name, unit in {"timestamps": typing.unit, **typing.units}.items():
        if unit not in UNITS:
            raise ConfigurationError(
                f"{source}: timestamps has the unit {unit!r} for '{name}'; the units are {', '.join(UNITS)}"
            )
    times = [column.name for column in typing.columns if isinstance(column.dataType, TimestampType)]
    strange = sorted(set(typing.units) - set(times))
    if strange:
        raise SchemaError(
            f"{source}: timestamps names '{strange[0]}', which is not a timestamp of the schema; its timestamps are: "
            f"{', '.join(times) or 'none'}"
        )


def has_decimals(columns: StructType) -> bool:
    """Whether a column is a decimal."""
    return any(isinstance(column.dataType, DecimalType) for column in columns)


def _null(column: StructField) -> str:
    return f"cast(null as {column.dataType.simpleString()})"


def _unfit(column: StructField, given: str) -> str:
    """In SQL: that the value ``given`` does not fit the column."""
    shown = f"substr(cast({given} as string), 1, {_SHOWN_CHARS})"
    kind = column.dataType.simpleString()
    head, tail = text(f"column '{column.name}': '"), text(f"' is not of type {kind} in the declared form")
    return f"concat({head}, {shown}, {tail})"


def _simple(kind: DataType, raw: str) -> str:
    if isinstance(kind, BooleanType):
        lower = f"lower({raw})"
        return f"case when {lower} in ('true', '1') then true when {lower} in ('false', '0') then false end"
    if isinstance(kind, DateType):
        days = f"date_from_unix_date(try_cast({raw} as int))"
        parsed = f"if({raw} rlike {_DATE}, try_cast(trim(TRAILING 'Z' FROM {raw}) as date), null)"
        return f"if({raw} rlike {_NUMBER}, {days}, {parsed})"
    if isinstance(kind, BinaryType):
        return f"try_to_binary({raw}, 'base64')"
    number = f"try_cast({raw} as {kind.simpleString()})"
    if isinstance(kind, FloatType | DoubleType):  # a number beyond the largest one is cast to infinity
        return (
            f"if(abs({number}) = double('Infinity') and not lower({raw}) rlike {_INFINITE}, null, {number})"
        )
    return number


def _timestamp(raw: str, unit: str) -> str:
    zoned = f"if({raw} rlike {_ZONE}, {raw}, concat({raw}, 'Z'))"
    parsed = f"if({raw} rlike {_TIMESTAMP}, try_cast({zoned} as timestamp), null)"
    if unit == "iso":
        return parsed
    number = f"try_cast({raw} as bigint)"
    micros = {
        "ms": f"try_multiply({number}, 1000L)",
        "us": number,
        "ns": f"try_subtract({number}, pmod({number}, 1000L)) div 1000L",
    }[unit]
    return f"if({raw} rlike {_NUMBER}, timestamp_micros({micros}), {parsed})"


def _decimal(kind: DecimalType, raw: str) -> str:
    """Two's complement, big endian, at most 16 bytes: in two halves, since ``conv`` is limited to 64 bits."""
    digits = f"hex(try_to_binary({raw}, 'base64'))"
    sign = f"if(substr({digits}, 1, 1) >= '8', 'F', '0')"
    wide = f"if(length({digits}) between 2 and 32, lpad({digits}, 32, {sign}), null)"
    high = f"cast(conv(substr({wide}, 1, 16), 16, -10) as decimal(19, 0))"
    low = f"cast(conv(substr({wide}, 17), 16, 10) as decimal(20, 0))"
    unscaled = f"try_add(try_multiply({high}, 18446744073709551616BD), {low})"
    return f"try_cast(concat(cast({unscaled} as string), 'E-{kind.scale}') as {kind.simpleString()})"
