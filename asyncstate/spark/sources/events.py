"""Events with the row before and the row after a change, whatever tool wrote them, as the rows of a changelog.

Owns: ``Event``, the description of a format's events, and ``changelog_of``, which turns them into rows.
Invariant: an event gives all its rows or none: -U and +U of an update are never separated.
Must not import runtime, storage or execution.

Source: ``DebeziumJsonDeserializationSchema`` and its siblings in Flink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    StringType,
    StructField,
    StructType,
)

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog
from asyncstate.errors import SchemaError
from asyncstate.metrics import DROPPED
from asyncstate.spark.column_types import quoted
from asyncstate.spark.compatibility import type_of_ddl
from asyncstate.spark.facts import marked, with_marked
from asyncstate.spark.sources.malformed import (
    MARKED,
    PLACE,
    REASON,
    as_map,
    check_mode,
    mark_of,
    only_malformed,
    raised,
    text,
)
from asyncstate.spark.sources.typed import Typing, check_typing, has_decimals

TEXT: Final = "__asyncstate_text"
EVENT: Final = "__asyncstate_event"
NAMES: Final = "__asyncstate_names"
_CORRUPT: Final = "__asyncstate_corrupt"
_WHOLE: Final = "__asyncstate_whole"
_TEXTS: Final = "__asyncstate_texts"
_PARSED: Final = "__asyncstate_parsed"
_END: Final = "__asyncstate_end"
_OP: Final = "__asyncstate_op"
_RAW: Final = "__asyncstate_raw"
_CHANGES: Final = "__asyncstate_changes"
_POSITION: Final = "__asyncstate_position"
_STATED: Final = "__asyncstate_stated"
_PROBLEM: Final = "__asyncstate_problem"
_ROW: Final = "__asyncstate_row"

_COMMA: Final = "'\"(?=[-+.,eE]*[0-9])[-+.0-9eE]*,[-+.,0-9eE]*\"'"
"""Finds a string that may be a number with a comma."""
_BOTH: Final = {"marked": MARKED, "counted": DROPPED}
"""The modes that return good and malformed rows, and the column that distinguishes them."""

INSERT, UPDATE, DELETE = "I", "U", "D"
DECODED: Final = "__asyncstate_decoded"
"""A column with the events as JSON text, where a decoder has made them of the bytes in ``Asked.value``."""
UNDECODED: Final = "__asyncstate_undecoded"
"""Next to ``DECODED``: why the bytes could not be decoded, null where they could."""
PHASE: Final = "source_phase"
"""The first column of a position: 0 for rows of a snapshot, 1 for changes, which are newer whatever their log
position."""


@dataclass(frozen=True)
class Event:
    """A format, in SQL over the parsed event (``EVENT``, a struct as ``wire``) and its ``TEXT``.

    ``op``: the source's word for the operation; ``ops``: which words are inserts, updates, deletes (``INSERT``,
    ``UPDATE``, ``DELETE``) and ``silent`` which concern no rows. ``changes``: an array of structs ``before`` and
    ``after``, each a struct as ``typing.wire()`` or null. ``position``: columns that order the changes of a row, by
    name; ``is_change``: false for rows of a snapshot, which may have no position. ``names``: a second parse of the
    text, into ``NAMES``: which fields there are. ``doubt``: why a value of the event is ambiguous, null if none is.
    """

    wire: StructType
    op: str
    ops: Mapping[str, str]
    changes: str
    typing: Typing
    silent: Sequence[str] = ()
    position: Mapping[str, str] = field(default_factory=dict)
    is_change: str = "true"
    names: StructType | None = None
    doubt: str = "cast(null as string)"


@dataclass(frozen=True)
class Asked:
    """The arguments of a public source function of this package; see there."""

    source: str
    value: str
    malformed: str
    upsert_key: tuple[str, ...]
    keep: tuple[str, ...]
    skip: tuple[str, ...]


def changelog_of(df: DataFrame, event: Event, asked: Asked) -> DataFrame:
    """The rows of the events in ``df``, or those that are ``malformed``. Nothing runs yet.

    Raises SchemaError and ConfigurationError for invalid columns and settings.
    """
    rows = _changelog_of(df, event, asked)
    if asked.malformed != "drop" or not df.isStreaming:
        return rows
    return with_marked(rows, _changelog_of(df, event, replace(asked, malformed="counted")))


def _changelog_of(df: DataFrame, event: Event, asked: Asked) -> DataFrame:
    _check(df, event, asked)
    given = [name for name in df.columns if name not in (DECODED, UNDECODED)]
    kept = given if asked.malformed in ("only", "marked") else list(asked.keep)
    if asked.malformed == "counted":
        kept += [name for name in PLACE if name in given and name not in kept]
    quoted_kept = [*map(quoted, kept), TEXT]
    judged = (
        _parsed(df, event, asked, kept)
        .selectExpr(*quoted_kept, *_stated(event, asked))
        .selectExpr(*quoted_kept, _OP, _RAW, _POSITION, _STATED, f"{_typed(event, asked)} as {_CHANGES}")
        .selectExpr(*quoted_kept, _OP, _CHANGES, _POSITION, f"{_problem(event, asked)} as {_PROBLEM}")
    )
    if asked.malformed == "only":
        return only_malformed(judged, kept, _PROBLEM)
    rows = _rows(judged, event, asked, given)
    return marked(rows, Changelog.upsert(*asked.upsert_key)) if asked.upsert_key else rows


def _parsed(df: DataFrame, event: Event, asked: Asked, kept: Sequence[str]) -> DataFrame:
    """``kept``, ``TEXT``, ``EVENT``, ``_WHOLE``, ``NAMES`` if the format asks for them, and ``_TEXTS``
    if decimals may be strings.

    Spark's parser stops after the first value of a text. So the text is read as the first element of an array whose
    second element is a mark. With another value, or anything else, after the event the array is invalid, or the mark is
    not in its place.
    """
    element = StructType([*event.wire, StructField(_END, BooleanType())])
    fields = [StructField("e", ArrayType(element)), StructField(_CORRUPT, StringType())]
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    array = f"""concat('{{"e":[', {TEXT}, ',{{"{_END}":true}}]}}')"""
    is_decoded = DECODED in df.columns
    said = df.selectExpr(
        *map(quoted, kept),
        f"cast({quoted(DECODED if is_decoded else asked.value)} as string) as {TEXT}",
        f"{UNDECODED if is_decoded else _not_text(quoted(asked.value))} as {UNDECODED}",
    )
    parsed = said.withColumn(_PARSED, sf.from_json(sf.expr(array), StructType(fields), options))
    ends = f"size({_PARSED}.e) = 2 and {_PARSED}.e[0].{_END} is null and {_PARSED}.e[1].{_END}"
    whole = f"coalesce({_PARSED}.{_CORRUPT} is null and {ends}, false)"
    names = [] if event.names is None else [NAMES]
    if event.names is not None:
        parsed = parsed.withColumn(NAMES, sf.from_json(TEXT, event.names))
    if event.typing.has_text_decimals:
        texts = sf.from_json(TEXT, _as_texts(event.wire))
        parsed = parsed.withColumn(_TEXTS, sf.when(sf.expr(f"{TEXT} rlike {_COMMA}"), texts))
        names = [*names, _TEXTS]
    return parsed.selectExpr(
        *map(quoted, kept),
        TEXT,
        f"get({_PARSED}.e, 0) as {EVENT}",
        f"{whole} as {_WHOLE}",
        UNDECODED,
        *names,
    )


def _not_text(value: str) -> str:
    """In SQL: why the bytes are no text, null if they are. Spark would put U+FFFD in place of what it cannot read."""
    if hasattr(sf, "is_valid_utf8"):
        good = f"is_valid_utf8(cast({value} as string))"
    else:  # before Spark 4.0
        good = f"(encode(decode({value}, 'UTF-8'), 'UTF-8') = cast({value} as binary))"
    return f"if({value} is null or {good}, null, 'the message is not text in UTF-8')"


def _stated(event: Event, asked: Asked) -> list[str]:
    """``_OP``: null where the event concerns no rows; ``_RAW`` changes, ``_POSITION``, and the problem found so far."""
    silent = f"{event.op} in ({', '.join(['null', *map(text, [*event.silent, *asked.skip])])})"
    op = f"try_element_at({as_map(event.ops)}, {event.op})"
    positions = ", ".join(f"{text(name)}, {sql}" for name, sql in _positions(event).items())
    unplaced = " or ".join(f"{place} is null" for place in event.position.values()) or "false"
    quote = text("operation '")
    hint = text("' is not a change of a row; list it in skip= to ignore it")
    typing = event.typing
    decimal = ", or a decimal that does not fit its type" if has_decimals(typing.columns) else ""
    unread = text(
        f"not an event of this format, or more text follows it{decimal if typing.decimals == 'text' else ''}"
    )
    problem = f"""case when {UNDECODED} is not null then {UNDECODED}
        when {TEXT} is null then null
        when {EVENT} is null or not {_WHOLE} then {unread}
        when {event.op} is null then 'the event has no operation'
        when {silent} then null
        when {op} is null then concat({quote}, {event.op}, {hint})
        when {event.is_change} and ({unplaced}) then 'the change has no position; it may be from another connector'
        else coalesce({event.doubt}, {_comma(event, asked)}) end"""
    return [
        f"if({TEXT} is null or {silent}, null, {op}) as {_OP}",
        f"{event.changes} as {_RAW}",
        f"{f'named_struct({positions})' if positions else 'null'} as {_POSITION}",
        f"{problem} as {_STATED}",
    ]


def _comma(event: Event, asked: Asked) -> str:
    """In SQL: the first decimal with a comma, null if there is none. Spark's parser removes commas: "1,5" would be
    15."""
    if not event.typing.has_text_decimals:
        return "cast(null as string)"
    names = event.typing.columns.names
    found = event.typing.comma(event.changes.replace(EVENT, _TEXTS), asked.upsert_key or names, names)
    return f"if({_TEXTS} is null, null, {found})"


def _as_texts(kind: DataType) -> Any:
    """``kind`` with strings in place of decimals."""
    if isinstance(kind, StructType):
        return StructType([StructField(one.name, _as_texts(one.dataType)) for one in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_as_texts(kind.elementType))
    return StringType() if isinstance(kind, DecimalType) else kind


def _typed(event: Event, asked: Asked) -> str:
    """In SQL: the changes with typed rows; upserts have only their key in ``before``."""
    before = event.typing.row("c.before", asked.upsert_key or event.typing.columns.names)
    after = event.typing.row("c.after", event.typing.columns.names)
    return f"transform({_RAW}, c -> named_struct('before', {before}, 'after', {after}))"


def _problem(event: Event, asked: Asked) -> str:
    """In SQL: why the event cannot be read, null if it can."""
    deletes = f"({_OP} = '{DELETE}')" if asked.upsert_key else f"({_OP} <> '{INSERT}')"
    missing = text(
        "no row before the change; configure full row images at the source (REPLICA IDENTITY FULL, "
        "binlog_row_image=FULL), or give upsert_key"
    )
    return f"""coalesce({_STATED}, case when {_OP} is null then null
        when {_RAW} is null then 'the event has no rows'
        when {_OP} <> '{DELETE}' and exists({_RAW}, c -> c.after is null) then 'no row after the change'
        when {deletes} and exists({_RAW}, c -> c.before is null) then {missing}
        else {_misfit(event.typing, asked.upsert_key)} end)"""


def _misfit(typing: Typing, upsert_key: tuple[str, ...]) -> str:
    """In SQL: the first value that does not have the form of its column."""
    names = typing.columns.names
    required = {*upsert_key, *(column.name for column in typing.columns if not column.nullable)}
    before = typing.problem("r.before", "t.before", upsert_key or names, required)
    after = typing.problem("r.after", "t.after", names, required)
    found = f"zip_with({_RAW}, {_CHANGES}, (r, t) -> coalesce({before}, {after}))"
    return f"get(filter({found}, p -> p is not null), 0)"


def _rows(judged: DataFrame, event: Event, asked: Asked, given: Sequence[str]) -> DataFrame:
    """One row per change row; the position belongs to all rows of its event."""
    rows = f"if({_OP} is null, array(), flatten(transform({_CHANGES}, c -> {_changelog(asked.upsert_key)})))"
    if asked.malformed == "fail":
        rows = f"if({_PROBLEM} is null, {rows}, {raised(asked.source, _PROBLEM, TEXT)})"
    elif asked.malformed in _BOTH:
        nothing = f"if(true, null, get({_CHANGES}, 0).after)"  # of the rows' type
        rows = f"if({_PROBLEM} is null, {rows}, array({_row('+I', nothing)}))"
    else:
        judged = judged.where(f"{_PROBLEM} is null")
    kept = list(map(quoted, asked.keep))
    columns = [f"{_ROW}.{quoted(name)}" for name in event.typing.columns.names]
    places = [f"{_POSITION}.{name}" for name in _positions(event)]
    if asked.malformed not in _BOTH:
        exploded = judged.selectExpr(*kept, _POSITION, f"inline({rows})")
        return exploded.selectExpr(*columns, *places, *kept, ROW_KIND_COLUMN)
    fields = [f"{text(name)}, {quoted(name)}" for name in given]
    dead = (
        f"if({_PROBLEM} is null, null, named_struct({', '.join([*fields, f'{text(REASON)}, {_PROBLEM}'])})) "
        f"as {quoted(MARKED)}"
    )
    if asked.malformed == "counted":
        dead = mark_of(given, _PROBLEM, TEXT)
    good = [f"if({_PROBLEM} is null, {quoted(name)}, null) as {quoted(name)}" for name in asked.keep]
    exploded = judged.selectExpr(
        *good,
        f"if({_PROBLEM} is null, {_POSITION}, null) as {_POSITION}",
        dead,
        f"inline({rows})",
    )
    return exploded.selectExpr(*columns, *places, *kept, ROW_KIND_COLUMN, quoted(_BOTH[asked.malformed]))


def _changelog(upsert_key: tuple[str, ...]) -> str:
    """In SQL: the rows of the change ``c``. An upsert that changes the key deletes the row of the old key."""
    come, go = _row("+U", "c.after"), _row("-U", "c.before")
    if upsert_key:
        same = " and ".join(f"c.before.{quoted(name)} <=> c.after.{quoted(name)}" for name in upsert_key)
        gone = _row("-D", "c.before")
        update = f"if(c.before is null or ({same}), array({come}), array({gone}, {come}))"
    else:
        update = f"array({go}, {come})"
    insert, delete = _row("+I", "c.after"), _row("-D", "c.before")
    return f"case {_OP} when '{INSERT}' then array({insert}) when '{DELETE}' then array({delete}) else {update} end"


def _row(kind: str, row: str) -> str:
    return f"named_struct('{ROW_KIND_COLUMN}', '{kind}', '{_ROW}', {row})"


def _positions(event: Event) -> dict[str, str]:
    if not event.position:
        return {}
    return {PHASE: f"cast({event.is_change} as int)", **event.position}


def _check(df: DataFrame, event: Event, asked: Asked) -> None:
    """Raise SchemaError or ConfigurationError for invalid arguments."""
    check_mode(asked.source, asked.malformed)
    check_typing(asked.source, event.typing)
    present = {name: kind for name, kind in df.dtypes}
    for name in (asked.value, *asked.keep):
        if name not in present:
            raise SchemaError(
                f"{asked.source}: the input has no column '{name}'; its columns are: {', '.join(present)}"
            )
    if present[asked.value] not in ("string", "binary"):
        raise SchemaError(
            f"{asked.source}: column '{asked.value}' is of type {present[asked.value]}; events are strings or their "
            "bytes"
        )
    strange = [name for name in asked.upsert_key if name not in event.typing.columns.names]
    if strange:
        raise SchemaError(
            f"{asked.source}: upsert_key names '{strange[0]}', which is not a column of the schema: "
            f"{', '.join(event.typing.columns.names)}"
        )
    _check_names(event, asked)


def _check_names(event: Event, asked: Asked) -> None:
    names = [*event.typing.columns.names, *_positions(event), *asked.keep, ROW_KIND_COLUMN]
    names = [ROW_KIND_COLUMN if name.lower() == ROW_KIND_COLUMN else name for name in names]
    double = [name for name in names if names.count(name) > 1]
    if double:
        raise SchemaError(
            f"{asked.source}: the output would have more than one column '{double[0]}'; rename or leave out the one of "
            "schema= or keep="
        )


def columns_of(source: str, schema: str | StructType) -> StructType:
    """The wanted columns; a text is DDL. Raises SchemaError if it is invalid, or has no columns."""
    try:
        columns = type_of_ddl(schema) if isinstance(schema, str) else schema
    except PySparkException as error:
        raise SchemaError(
            f"{source}: the schema {schema!r} cannot be read ({error}); write it as 'id bigint not null, name string'"
        ) from error
    if not isinstance(columns, StructType) or not columns.fields:
        raise SchemaError(
            f"{source}: the schema has no columns; give those of the table, as 'id bigint, name string' or a StructType"
        )
    return columns


def names_of(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name, several or none."""
    return (given,) if isinstance(given, str) else tuple(given or ())
