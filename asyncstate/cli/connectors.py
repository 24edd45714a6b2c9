"""Tables of a file of statements as sources and sinks of a job: the connectors, and their options.

Owns: ``declare_source``, ``sink_of``, ``ShownSink``; ``check_options``, ``secrets_of``.
Invariant: an option that no connector knows is refused, with its line and the nearest name; no value of an option is in
a message.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from asyncstate.cli.output import print_rows
from asyncstate.cli.script import Script, ScriptOption, TableDeclaration
from asyncstate.errors import AsyncStateError, SqlError
from asyncstate.offline.json_text import number
from asyncstate.spark.kafka.client_options import is_secret
from asyncstate.spark.sinks import (
    AppendSink,
    DeltaTarget,
    IcebergTarget,
    KafkaAppendTarget,
    KafkaTarget,
    MySqlTarget,
    ParquetTarget,
    PostgresTarget,
    SqliteTarget,
    UpsertSink,
)

if TYPE_CHECKING:
    from asyncstate.spark import StreamingJob

_SPARK_FILES: Final = ("orc", "json", "csv")
"""Files that Spark writes."""
_FILES: Final = ("parquet", *_SPARK_FILES)
_OF_TEXT: Final = ("json", "csv")
"""Files with records that may not fit their columns."""
_CORRUPT: Final = "_corrupt_record"
"""The column in which Spark keeps such a record, unless an option names another one."""
_SAME: Final = {"postgres": "postgresql", "files": "filesystem", "print": "console", "mariadb": "mysql"}
_CLIENT: Final = ("kafka.", "properties.")
_REGISTRY: Final = "schema.registry."
_SERVERS: Final = ("servers", "kafka.bootstrap.servers", "properties.bootstrap.servers", "bootstrap.servers")
_READER: Final = {
    "path": ("path",),
    "maxFilesPerTrigger": ("maxFilesPerTrigger", "max-files"),
    **{
        name: (name,)
        for name in (
            *("maxBytesPerTrigger", "latestFirst", "maxFileAge", "fileNameOnly", "pathGlobFilter"),
            *("recursiveFileLookup", "modifiedAfter", "modifiedBefore", "cleanSource", "sourceArchiveDir"),
            *("ignoreMissingFiles", "ignoreCorruptFiles"),
        )
    },
}
_TEXT: Final = (
    "mode",
    "dateFormat",
    "timestampFormat",
    "timestampNTZFormat",
    "timeZone",
    "locale",
    "encoding",
)
_FORMATS: Final[Mapping[str, Sequence[str]]] = {
    "parquet": ("mergeSchema", "datetimeRebaseMode", "int96RebaseMode"),
    "orc": ("mergeSchema",),
    "json": (
        *_TEXT,
        *("multiLine", "lineSep", "primitivesAsString", "prefersDecimal", "allowComments"),
        *(
            "allowUnquotedFieldNames",
            "allowSingleQuotes",
            "allowNumericLeadingZeros",
            "allowNonNumericNumbers",
        ),
        *("columnNameOfCorruptRecord", "dropFieldIfAllNull"),
    ),
    "csv": (
        *_TEXT,
        *("header", "sep", "delimiter", "quote", "escape", "comment", "nullValue", "emptyValue", "nanValue"),
        *("positiveInf", "negativeInf", "multiLine", "lineSep", "ignoreLeadingWhiteSpace", "maxColumns"),
        *("ignoreTrailingWhiteSpace", "enforceSchema", "maxCharsPerColumn", "columnNameOfCorruptRecord"),
        *("unescapedQuoteHandling", "charToEscapeQuoteEscaping"),
    ),
}
_DECLARED: Final = {name: (name,) for name in ("changelog-mode", "sequence", "drop-stale", "idle-after")}
_SOURCES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "kafka": {
        "servers": _SERVERS,
        "topic": ("topic", "subscribe"),
        "topic-pattern": ("topic-pattern", "subscribePattern"),
        "format": ("format", "value.format"),
        "starting": ("starting", "startingOffsets", "scan.startup.mode"),
        "max-rows": ("max-rows", "maxOffsetsPerTrigger"),
        "fail-on-data-loss": ("fail-on-data-loss", "failOnDataLoss"),
        "malformed": ("malformed",),
        "timestamps": ("timestamps",),
        "decimals": ("decimals",),
        "database": ("database",),
        "registry": ("registry", "value.format.url", "schema.registry.url"),
    },
    "rate": {name: (name,) for name in ("rowsPerSecond", "numPartitions", "rampUpTime")},
    **{name: {**_READER, **{one: (one,) for one in _FORMATS[name]}} for name in _FILES},
}
_CHANGES: Final = {"changes": ("changes",)}
_SINKS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "kafka": {"servers": _SERVERS, "topic": ("topic",), **_CHANGES},
    "postgresql": {"conninfo": ("conninfo", "url"), "table": ("table", "table-name", "dbtable"), **_CHANGES},
    "mysql": {
        "host": ("host", "hostname"),
        "port": ("port",),
        "user": ("user", "username"),
        "password": ("password",),
        "database": ("database", "database-name"),
        "table": ("table", "table-name", "dbtable"),
        **_CHANGES,
    },
    "sqlite": {"path": ("path",), "table": ("table", "table-name"), **_CHANGES},
    "delta": {"path": ("path",), **_CHANGES},
    "iceberg": {"table": ("table",), "catalog": ("catalog", "catalog-name"), **_CHANGES},
    "console": {"rows": ("rows", "numRows")},
    "parquet": {"path": ("path",), **_CHANGES},
    **{name: {"path": ("path",)} for name in _SPARK_FILES},
}
_PREFIXES: Final = {"kafka": _CLIENT, "delta": ("storage.",), "iceberg": ("catalog.",)}
_OF_FORMATS: Final = {
    "database": ("debezium",),
    "decimals": ("debezium",),
    "timestamps": ("json", "debezium", "avro", "protobuf"),
    "registry": ("json", "debezium", "avro", "protobuf"),
}
"""Options of Kafka's messages, and the formats that use them."""
_RAW: Final = {
    **{"key": "BINARY", "value": "BINARY", "topic": "STRING", "partition": "INT", "offset": "BIGINT"},
    **{"timestamp": "TIMESTAMP", "timestamptype": "INT"},
}
"""The columns of messages as Kafka has them."""
_STARTING: Final = {"earliest-offset": "earliest", "latest-offset": "latest"}
_IN_VALUE: Final = re.compile(r"password\s*=\s*('(?:[^'\\]|\\.)*'|[^\s;&]+)|://[^:/@\s]*:([^@/\s]+)@", re.I)


@dataclass(frozen=True)
class _Options:
    """The options of a table, by the names that this module uses."""

    script: Script
    table: TableDeclaration
    connector: str
    own: Mapping[str, ScriptOption]
    client: Mapping[str, str]

    def text(self, name: str, default: str | None = None) -> Any:
        """The value of an option; None without one and a default."""
        return self.own[name].value if name in self.own else default

    def needed(self, name: str) -> str:
        """The value of an option. Raises SqlError without one."""
        if name not in self.own:
            raise self.error(f"the connector '{self.connector}' needs the option '{name}'")
        return self.own[name].value

    def number(self, name: str) -> int | None:
        """A whole number from 1 on."""
        found: int | None = self._read(name, _positive, "a whole number from 1 on")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        found = self._read(name, lambda text: {"true": True, "false": False}[text.lower()], "true or false")
        return default if found is None else bool(found)

    def _read(self, name: str, convert: Callable[[str], Any], what: str) -> Any:
        if name not in self.own:
            return None
        option = self.own[name]
        try:
            return convert(option.value.strip())
        except (ValueError, KeyError) as error:
            raise self.script.error(option.line, f"option '{option.name}' is not {what}") from error

    def choice(self, name: str, known: Sequence[str], default: str | None = None) -> Any:
        """One of some words."""
        value = self.text(name, default)
        if value is not None and value not in known:
            option = self.own[name]
            raise self.script.error(option.line, f"option '{option.name}' is none of {', '.join(known)}")
        return value

    def error(self, what: str) -> SqlError:
        """An error about the table."""
        return self.script.error(self.table.line, f"table '{self.table.name}': {what}")


def _positive(text: str) -> int:
    found = int(text)
    if found < 1:
        raise ValueError
    return found


def _read_options(script: Script, table: TableDeclaration, is_sink: bool) -> _Options:
    """The options of a table. Raises SqlError for an unknown connector or option."""
    connector, options = _SAME.get(table.connector, table.connector), list(table.options)
    if connector == "filesystem":
        formats = [one for one in options if one.name.lower() == "format"]
        if not formats:
            raise script.error(table.line, f"table '{table.name}': give the option 'format'")
        connector, options = formats[0].value.lower(), [one for one in options if one not in formats]
    kinds, known = ("sink", _SINKS) if is_sink else ("source", _SOURCES)
    if connector not in known:
        near = difflib.get_close_matches(connector, known, n=1)
        meant = f"; did you mean '{near[0]}'" if near else ""
        raise script.error(
            table.line,
            f"table '{table.name}': there is no {kinds} '{connector}'{meant}; there are {', '.join(sorted(known))}",
        )
    names = dict(known[connector]) | ({} if is_sink else _DECLARED)
    by_alias = {alias.lower(): name for name, aliases in names.items() for alias in aliases}
    own: dict[str, ScriptOption] = {}
    client: dict[str, str] = {}
    for one in options:
        name = by_alias.get(one.name.lower())
        prefix = next((p for p in _PREFIXES.get(connector, ()) if one.name.lower().startswith(p)), None)
        if name is None and prefix is not None:
            client[one.name[len(prefix) :]] = one.value
        elif name is None:
            near = difflib.get_close_matches(one.name.lower(), by_alias, n=1, cutoff=0.5)
            shown = {alias.lower(): alias for aliases in names.values() for alias in aliases}
            meant = f"; did you mean '{shown[near[0]]}'" if near else ""
            raise script.error(
                one.line,
                f"table '{table.name}': the {kinds} '{connector}' has no option '{one.name}'{meant}; it has "
                f"{', '.join(sorted(names))}",
            )
        elif name in own:
            raise script.error(
                one.line, f"table '{table.name}': '{one.name}' is given as '{own[name].name}' as well"
            )
        else:
            own[name] = one
    return _Options(script, table, connector, own, client)


def check_options(script: Script) -> None:
    """Raise SqlError for a table with an unknown connector or option."""
    for table in script.tables:
        _read_options(script, table, table.name.lower() in script.targets)


def secrets_of(script: Script) -> dict[str, str]:
    """The values that nobody may see, by names that say so."""
    found = []
    for one in [*script.settings, *(option for table in script.tables for option in table.options)]:
        found += [*one.secret, *([one.value] if is_secret(one.name) else [])]
        found += [part.strip("'") for pair in _IN_VALUE.findall(one.value) for part in pair if part]
    return {f"secret {number}": value for number, value in enumerate(found)}


# -- sources -----------------------------------------------------------------------------------------------


def declare_source(job: StreamingJob, spark: Any, script: Script, table: TableDeclaration) -> None:
    """Declare a table as a source of the job. Raises SqlError, with its line."""
    options = _read_options(script, table, is_sink=False)
    try:
        if options.connector == "kafka":
            _kafka_source(job, options)
        else:
            _file_source(job, spark, options)
    except SqlError:
        raise
    except AsyncStateError as error:
        raise options.error(str(error)) from error
    except Exception as error:  # from Spark's reader
        if not type(error).__module__.startswith("pyspark."):
            raise
        raise options.error(str(error).splitlines()[0]) from error


def _declared(options: _Options) -> dict[str, Any]:
    table = options.table
    sequence = options.text("sequence")
    return {
        "event_time": table.event_time,
        "watermark_delay": table.watermark_delay,
        "primary_key": list(table.primary_key) or None,
        "mode": options.choice("changelog-mode", ("insert-only", "retract", "upsert")),
        "sequence": None if sequence is None else [one.strip() for one in sequence.split(",")],
        "drop_stale": options.flag("drop-stale", False),
        "idle_after": options.text("idle-after"),
    }


def _file_source(job: StreamingJob, spark: Any, options: _Options) -> None:
    table = options.table
    reader = spark.readStream.format(options.connector)
    if options.connector != "rate":
        if not table.columns:
            raise options.error("files need the columns of the table")
        options.needed("path")
        reader = reader.schema(table.schema)
    how = options.own.get("mode")
    if how is not None and how.value.strip().upper() == "DROPMALFORMED":
        raise options.script.error(
            how.line,
            "option 'mode' = 'DROPMALFORMED': Spark drops rows that it cannot read, and nothing counts them; take "
            "'FAILFAST', or 'PERMISSIVE' with 'columnNameOfCorruptRecord'",
        )
    given = {name: one.value for name, one in options.own.items() if name not in _DECLARED}
    if options.connector in _OF_TEXT and how is None and not _keeps_corrupt(options):
        given["mode"] = "FAILFAST"
    df = reader.options(**given).load()
    names = [name.lower() for name, _, _ in table.columns]
    if options.connector == "rate" and names not in ([], ["timestamp", "value"]):
        raise options.error("a rate has the columns timestamp TIMESTAMP, value BIGINT; leave the columns out")
    job.source(table.name, df, **_declared(options))


def _keeps_corrupt(options: _Options) -> bool:
    """Whether the table has a column for the text of a record that cannot be read. Raises SqlError for an option that
    names a column that is not there: such records would become rows of nulls."""
    option = options.own.get("columnNameOfCorruptRecord")
    names = [name.lower() for name, _, _ in options.table.columns]
    if option is None:
        return _CORRUPT in names
    if option.value.lower() not in names:
        raise options.script.error(
            option.line,
            f"option '{option.name}' names a column that table '{options.table.name}' does not have; declare it as "
            "STRING",
        )
    return True


def _kafka_source(job: StreamingJob, options: _Options) -> None:
    from asyncstate.spark.kafka import Debezium, Json, SchemaRegistry

    table, declared = options.table, _declared(options)
    kind = options.choice("format", ("json", "debezium-json", "avro", "protobuf", "raw"), "json").split("-")[
        0
    ]
    if kind != "raw" and not table.columns:
        raise options.error("messages need the columns of the table, or the option 'format' = 'raw'")
    if kind == "raw":
        _check_raw(options)
    for name, formats in _OF_FORMATS.items():
        if name in options.own and kind not in formats:
            option = options.own[name]
            raise options.script.error(
                option.line,
                f"option '{option.name}' has no effect on messages of the format '{kind}'; leave it out",
            )
    made: Any = None
    timestamps = options.text("timestamps", "iso")
    if kind == "debezium":
        upserts = declared["mode"] == "upsert"
        made = Debezium(
            table.schema,
            upsert_key=list(table.primary_key) if upserts else None,
            connector=options.text("database"),
            decimals=options.text("decimals"),
            timestamps=timestamps,
        )
        if upserts:
            declared["mode"] = declared["primary_key"] = None
    elif kind != "raw":
        made = Json(table.schema, timestamps=timestamps)
    registry = options.text("registry")
    if kind in ("avro", "protobuf") and registry is None:
        options.needed("registry")
    client = dict(options.client)
    asked = [name for name in client if name.startswith(_REGISTRY)]
    if asked and registry is None:
        raise options.error(f"the option '{asked[0]}' needs the option 'registry'")
    own = {name.removeprefix(_REGISTRY): client.pop(name) for name in asked}
    pattern = options.text("topic-pattern")
    starting = options.text("starting", "latest")
    job.kafka(
        table.name,
        options.needed("servers"),
        re.compile(pattern) if pattern is not None else options.needed("topic").split(","),
        made,
        registry=None if registry is None else SchemaRegistry(registry, own),
        malformed=options.choice("malformed", ("fail", "drop"), "fail"),
        starting=_STARTING.get(starting, starting),
        max_rows=options.number("max-rows"),
        fail_on_data_loss=options.flag("fail-on-data-loss", True),
        options=client,
        **declared,
    )


def _check_raw(options: _Options) -> None:
    """Raise SqlError for a column that Kafka's own messages do not have as declared: nothing would convert it."""
    for name, kind, _ in options.table.columns:
        if _RAW.get(name.lower()) != kind.upper():
            columns = ", ".join(f"{one} {of}" for one, of in _RAW.items())
            raise options.error(
                f"column {name} is declared as {kind}, and raw messages have the columns {columns}; leave the columns "
                "out, and cast them in a view"
            )


# -- sinks -------------------------------------------------------------------------------------------------


def sink_of(script: Script, table: TableDeclaration) -> Any:
    """The sink that a table is. Raises SqlError, with its line."""
    options = _read_options(script, table, is_sink=True)
    try:
        return _sink(options)
    except SqlError:
        raise
    except AsyncStateError as error:
        raise options.error(str(error)) from error


def _sink(options: _Options) -> Any:
    keys, kind = list(options.table.primary_key), options.connector
    if kind == "console":
        return ConsoleSink(options.table.name, options.number("rows") or 20)
    if kind in _SPARK_FILES:
        if keys:
            raise options.error(f"a sink of {kind} files only adds rows; leave PRIMARY KEY out")
        return FilesSink(options.needed("path"), kind)
    changes = options.flag("changes", False)
    if not keys:
        return AppendSink(_target(options), changes=changes)
    if changes:
        raise options.error("with a PRIMARY KEY the newest row of each key is written; leave 'changes' out")
    return UpsertSink(keys, _target(options))


def _target(options: _Options) -> Any:
    if options.connector == "kafka":
        made: Any = KafkaTarget if options.table.primary_key else KafkaAppendTarget
        return made(options.needed("servers"), options.needed("topic"), dict(options.client))
    if options.connector == "postgresql":
        return PostgresTarget(options.needed("conninfo"), options.needed("table"))
    if options.connector == "mysql":
        connection = {
            name: options.needed(name)
            for name in ("host", "user", "password", "database")
            if name in options.own
        }
        port = options.number("port")
        return MySqlTarget(
            {**connection, **({} if port is None else {"port": port})}, options.needed("table")
        )
    if options.connector == "sqlite":
        return SqliteTarget(options.needed("path"), options.needed("table"))
    if options.connector == "delta":
        return DeltaTarget(options.needed("path"), dict(options.client) or None)
    if options.connector == "iceberg":
        return IcebergTarget(options.needed("table"), options.text("catalog"), dict(options.client))
    return ParquetTarget(options.needed("path"))


class ConsoleSink:
    """Shows the first rows of each micro-batch."""

    def __init__(self, name: str, rows: int) -> None:
        self.name, self.rows = name, rows

    def write(self, rows: Any, batch_id: int) -> None:
        """Show the rows of a micro-batch."""
        found = rows.take(self.rows + 1)
        if found:
            more = f", the first {self.rows}" if len(found) > self.rows else ""
            shown = [dict(zip(rows.columns, map(_plain, row), strict=True)) for row in found[: self.rows]]
            print_rows(f"{self.name}, micro-batch {batch_id}{more}", shown, rows.columns)


def _plain(value: Any) -> Any:
    """A value of a Spark row as ``offline.json_text`` shows those of a state: NaN by its name, structs and maps."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, tuple) and hasattr(value, "__fields__"):  # a struct
        return dict(zip(value.__fields__, map(_plain, value), strict=True))
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return [[_plain(one), _plain(of)] for one, of in value.items()]
    return value


class FilesSink:
    """Adds the rows of each micro-batch to ``path``, as the folder ``checkpoint=<id>/batch=<id>``.

    A micro-batch that is repeated replaces its own folder, so that its rows are there once. A job that begins with a
    new checkpoint replaces nothing: its micro-batches have the same numbers. Changes have their ``row_kind``.
    """

    def __init__(self, path: str, kind: str) -> None:
        self.path, self.kind = path.rstrip("/"), kind

    def destination(self, name: str) -> tuple[str, str]:
        """The folder, which no other sink of the job may have."""
        return self.path, ""

    def write_micro_batch(self, rows: Any, batch: Any, name: str) -> None:
        """Write the rows of a micro-batch."""
        folder = f"{self.path}/checkpoint={batch.origin.checkpoint}/batch={batch.batch_id}"
        rows.write.mode("overwrite").format(self.kind).save(folder)

    def write(self, rows: Any, batch_id: int) -> None:
        """Not called: a graph takes objects with this method as sinks, and writes with ``write_micro_batch``."""
        raise AssertionError("a job writes with write_micro_batch, which knows the checkpoint")


class ShownSink:
    """A sink as ``explain`` needs it, to be checked like the sink itself: nothing is opened."""

    def __init__(self, sink: Any) -> None:
        self.keys, self._check = getattr(sink, "keys", ()), getattr(sink, "check_changes", None)
        self.keeps_table = getattr(sink, "keeps_table", False)
        self.destination = getattr(sink, "destination", None)

    def check_changes(self, changes: Any) -> None:
        """As the sink itself does."""
        if self._check is not None:
            self._check(changes)

    def write(self, rows: Any, batch_id: int) -> None:
        """Nothing runs."""
