"""The events that Debezium, Maxwell and Canal write into a topic or a file, as changelogs.

Owns: one function per format: its envelope, its words for operations, the columns that order its changes.
Invariant: except for what the caller chose nothing is guessed: an ambiguous value is declared or refused.
Must not import runtime, storage or execution.

Source: Flink's formats debezium-json, maxwell-json and canal-json; the documents of the tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.errors import ConfigurationError
from asyncstate.spark.column_types import quoted
from asyncstate.spark.facts import without
from asyncstate.spark.sources.events import (
    DELETE,
    EVENT,
    INSERT,
    NAMES,
    PHASE,
    UPDATE,
    Asked,
    Event,
    changelog_of,
    columns_of,
    names_of,
)
from asyncstate.spark.sources.malformed import Malformed, text
from asyncstate.spark.sources.special import Infinity, Special, ZeroDates, infinity_of, zero_dates_of
from asyncstate.spark.sources.typed import Decimals, Typing, has_decimals

_PLACES: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {"source_lsn": "try_cast({0}.lsn as bigint)"},
    "mysql": {
        "source_file": "try_cast(regexp_extract({0}.file, '[0-9]+$', 0) as bigint)",
        "source_pos": "try_cast({0}.pos as bigint)",
        "source_row": "coalesce(try_cast({0}.row as bigint), 0L)",
    },
    "sqlserver": {
        "source_commit_lsn": "{0}.commit_lsn",
        "source_change_lsn": "{0}.change_lsn",
        "source_event": "coalesce(try_cast({0}.event_serial_no as bigint), 0L)",
    },
    "maxwell": {
        "source_file": "try_cast(regexp_extract({0}, '([0-9]+):', 1) as bigint)",
        "source_pos": "try_cast(regexp_extract({0}, ':([0-9]+)$', 1) as bigint)",
    },
}
_SOURCE: Final = ("lsn", "file", "pos", "row", "commit_lsn", "change_lsn", "event_serial_no")

POSITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    name: (*places, PHASE) if name == "mysql" else (PHASE, *places) for name, places in _PLACES.items()
}
"""The columns that order the changes of a row, by connector: pass them as ``sequence``. The log of MySQL and MariaDB
has whole transactions in the order of their commits, and a snapshot its place among them."""


def debezium_json(
    df: DataFrame,
    schema: str | StructType,
    value: str = "value",
    *,
    upsert_key: str | Sequence[str] | None = None,
    connector: str | None = None,
    decimals: Decimals | None = None,
    timestamps: str | Mapping[str, str] = "iso",
    infinity: Infinity | None = None,
    zero_dates: ZeroDates | None = None,
    keep: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    malformed: Malformed = "fail",
) -> DataFrame:
    """The changelog in Debezium's events, which are in the column ``value`` (text or bytes), with or without their
    ``schema`` and ``payload``.

    ``schema``: the table's columns, as DDL or StructType; a column that an event does not have is null, or makes it
    malformed where it is ``not null``. ``upsert_key``: the primary key, for a source without the row before a change:
    updates are +U alone, and a -D has only this key. ``connector``: "postgresql", "mysql" (MariaDB too) or "sqlserver"
    adds the columns ``POSITIONS[connector]``. ``decimals``: "base64" is Debezium's precise mode, "text" its string and
    double modes; needed if the schema has a decimal. ``timestamps``: the unit of numeric timestamps, "ms", "us" or
    "ns", for all or by column; "iso": none is numeric. ``infinity``: the dates that PostgreSQL's ``-infinity`` and
    ``infinity`` become, such as ``("0001-01-01", "9999-12-31")``, with None for null; by default they are malformed.
    ``zero_dates``: the meaning of 1970-01-01 in the events of MySQL and MariaDB, where Debezium also writes it for
    0000-00-00 in a column that is not null: a date, which all such values become, or "null"; "1970-01-01" keeps them.
    By default they are malformed. ``keep``: columns of ``df`` to keep. ``skip``: operations to ignore, "t" (truncate)
    and "m" (message). ``malformed``: "fail" ends the query with an example, "drop" leaves such rows out, "only" returns
    only them, unchanged, with the reason in the column ``malformed``.

    Rows: the schema's columns, the position's, the kept ones, ``row_kind``. A null value (a tombstone) gives no row.
    Raises SchemaError and ConfigurationError before any row is read.
    """
    source = "debezium_json"
    columns = columns_of(source, schema)
    typing = Typing(
        columns,
        _decimals(source, columns, decimals),
        *_units(timestamps),
        special=Special(infinity_of(source, infinity), zero_dates_of(source, zero_dates)),
    )
    row = typing.wire()
    place = _struct(**dict.fromkeys((*_SOURCE, "connector"), StringType()))
    body = _struct(before=row, after=row, op=StringType(), source=place)
    changes = f"array(named_struct('before', {_in_body('before')}, 'after', {_in_body('after')}))"
    has_zeros = "true" if connector == "mysql" else f"{_in_body('source')}.connector in ('mysql', 'mariadb')"
    doubt = typing.doubt(changes, names_of(upsert_key) or columns.names, columns.names)
    event = Event(
        wire=StructType([StructField("payload", body), *body]),
        op=_in_body("op"),
        ops={"c": INSERT, "r": INSERT, "u": UPDATE, "d": DELETE},
        changes=changes,
        doubt=f"if({has_zeros}, {doubt}, null)",
        typing=typing,
        position=_position(source, connector, _in_body("source"), ("postgresql", "mysql", "sqlserver")),
        is_change=f"({_in_body('op')} <> 'r')",
    )
    given = map(names_of, (upsert_key, keep, skip))
    return changelog_of(df, event, Asked(source, value, malformed, *given))


def json_rows(
    df: DataFrame,
    schema: str | StructType,
    value: str = "value",
    *,
    timestamps: str | Mapping[str, str] = "iso",
    keep: str | Sequence[str] | None = None,
    malformed: Malformed = "fail",
) -> DataFrame:
    """The rows in JSON objects, one each, which are in the column ``value`` (text or bytes).

    The arguments, the types and the errors are those of ``debezium_json``; decimals are numbers or their text. A null
    value gives no row. Rows: the schema's columns and the kept ones, without ``row_kind``.
    """
    source = "json_rows"
    typing = Typing(columns_of(source, schema), "text", *_units(timestamps))
    row = f"if({EVENT} is null, null, named_struct({_fields(EVENT, typing)}))"
    event = Event(
        wire=typing.wire(),
        op=text(INSERT),
        ops={INSERT: INSERT},
        changes=f"array(named_struct('before', if(true, null, {row}), 'after', {row}))",
        typing=typing,
    )
    given = map(names_of, (None, keep, None))
    return without(changelog_of(df, event, Asked(source, value, malformed, *given)), ROW_KIND_COLUMN)


def _fields(row: str, typing: Typing) -> str:
    return ", ".join(f"{text(name)}, {row}.{quoted(name)}" for name in typing.columns.names)


def maxwell_json(
    df: DataFrame,
    schema: str | StructType,
    value: str = "value",
    *,
    upsert_key: str | Sequence[str] | None = None,
    position: bool = False,
    keep: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    malformed: Malformed = "fail",
) -> DataFrame:
    """The changelog in Maxwell's events. ``position``: add the columns ``POSITIONS["maxwell"]``, for which Maxwell must
    run with ``output_binlog_position``.

    The other arguments, the rows and the errors are those of ``debezium_json``. The row before an update is merged from
    ``data`` and ``old``. Rows of a bootstrap are +I; its start and end events give no rows. Changes of tables are
    malformed unless ``skip`` has their type.
    """
    source = "maxwell_json"
    typing = Typing(columns_of(source, schema))
    row = typing.wire()
    op, data = f"{EVENT}.type", f"{EVENT}.data"
    before = f"case {op} when 'delete' then {data} when 'update' then {_before(typing, data, 'old')} end"
    event = Event(
        wire=_struct(type=StringType(), data=row, old=row, position=StringType()),
        names=_struct(old=MapType(StringType(), StringType())),
        op=op,
        ops={"insert": INSERT, "bootstrap-insert": INSERT, "update": UPDATE, "delete": DELETE},
        silent=("bootstrap-start", "bootstrap-complete"),
        changes=f"array(named_struct('before', {before}, 'after', if({op} = 'delete', null, {data})))",
        typing=typing,
        position=_position(source, "maxwell" if position else None, f"{EVENT}.position", ("maxwell",)),
        is_change=f"({op} <> 'bootstrap-insert')",
    )
    given = map(names_of, (upsert_key, keep, skip))
    return changelog_of(df, event, Asked(source, value, malformed, *given))


def canal_json(
    df: DataFrame,
    schema: str | StructType,
    value: str = "value",
    *,
    upsert_key: str | Sequence[str] | None = None,
    keep: str | Sequence[str] | None = None,
    skip: str | Sequence[str] | None = None,
    malformed: Malformed = "fail",
) -> DataFrame:
    """The changelog in Canal's flat events, each of which may have several rows.

    The arguments, the rows and the errors are those of ``debezium_json``. The row before an update is merged from
    ``data`` and ``old``. Canal gives no position: keep Kafka's partition and offset for ``sequence``. Changes of tables
    are malformed unless ``skip`` has their type. Raises SchemaError for binary columns: their text has no single form.
    """
    source = "canal_json"
    typing = Typing(columns_of(source, schema), binary=False)
    row = typing.wire()
    op, data = f"{EVENT}.type", f"{EVENT}.data"
    updated = _before(typing, "d", "old", "i")
    before = f"case {op} when 'DELETE' then d when 'UPDATE' then {updated} end"
    change = f"named_struct('before', {before}, 'after', if({op} = 'DELETE', null, d))"
    event = Event(
        wire=_struct(type=StringType(), data=ArrayType(row), old=ArrayType(row)),
        names=_struct(old=ArrayType(MapType(StringType(), StringType()))),
        op=op,
        ops={"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE},
        changes=f"transform({data}, (d, i) -> {change})",
        typing=typing,
    )
    given = map(names_of, (upsert_key, keep, skip))
    return changelog_of(df, event, Asked(source, value, malformed, *given))


def _in_body(name: str) -> str:
    """A field of Debezium's event, which is inside ``payload`` if it has an envelope."""
    return f"coalesce({EVENT}.payload.{name}, {EVENT}.{name})"


def _before(typing: Typing, data: str, old: str, index: str | None = None) -> str:
    """In SQL: the row before an update: ``data``, with the columns that are named in the object ``old`` replaced by its
    values."""
    at = f"{EVENT}.{old}" if index is None else f"get({EVENT}.{old}, {index})"
    named = f"{NAMES}.{old}" if index is None else f"get({NAMES}.{old}, {index})"
    fields = [
        f"{text(name)}, if(map_contains_key({named}, {text(name)}), {at}.{quoted(name)}, {data}.{quoted(name)})"
        for name in typing.columns.names
    ]
    return f"if({named} is null, null, named_struct({', '.join(fields)}))"


def _struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


def _decimals(source: str, columns: StructType, decimals: Decimals | None) -> Decimals:
    """Raise ConfigurationError where the form of decimals is not declared: their two forms look alike."""
    if decimals not in ("text", "base64") and (decimals is not None or has_decimals(columns)):
        raise ConfigurationError(
            f"{source}: the schema has a decimal, and decimals={decimals!r} does not say how; give 'base64' for "
            "decimal.handling.mode=precise (the connector's default), 'text' for string and double"
        )
    return decimals or "text"


def _units(timestamps: str | Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    return (timestamps, {}) if isinstance(timestamps, str) else ("iso", dict(timestamps))


def _position(source: str, name: str | None, place: str, known: Sequence[str]) -> dict[str, str]:
    """The columns of a position in SQL. Raises ConfigurationError for an unknown connector."""
    if name is None:
        return {}
    if name not in known:
        raise ConfigurationError(
            f"{source}: connector={name!r} is not known; supported are {', '.join(known)}. For others, leave it out "
            "and keep Kafka's partition and offset"
        )
    return {column: sql.format(place) for column, sql in _PLACES[name].items()}
