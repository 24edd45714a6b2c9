"""Tables of a file as sources and sinks: which connector gets what."""

from __future__ import annotations

import re
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from asyncstate.cli.connectors import (
    ConsoleSink,
    FilesSink,
    ShownSink,
    declare_source,
    secrets_of,
    sink_of,
)
from asyncstate.cli.script import Script, read_script
from asyncstate.errors import SqlError
from asyncstate.spark.kafka import Debezium, Json, SchemaRegistry
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


class Recorder:
    """A job that keeps how its sources were declared, and a session whose readers keep their options."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.readStream, self.read = self, dict[str, Any]()

    def kafka(self, *arguments: Any, **named: Any) -> None:
        self.calls.append((arguments, named))

    source = kafka

    def format(self, kind: str) -> Recorder:
        self.read["format"] = kind
        return self

    def schema(self, text: str) -> Recorder:
        self.read["schema"] = text
        return self

    def options(self, **given: str) -> Recorder:
        self.read |= given
        return self

    def load(self) -> Recorder:
        return self


def script(table: str, is_sink: bool) -> Script:
    target = "t" if is_sink else "others"
    return read_script("job.sql", f"CREATE TABLE t {table};\nINSERT INTO {target} SELECT 1 AS a FROM s;")


def declared(table: str) -> Recorder:
    made: Any = Recorder()
    given = script(table, is_sink=False)
    declare_source(made, made, given, given.tables[0])
    recorder: Recorder = made
    return recorder


COLUMNS = "(id BIGINT NOT NULL, at TIMESTAMP, PRIMARY KEY (id), WATERMARK FOR at AS at - INTERVAL 1 MINUTE)"


def test_a_topic_in_the_words_of_flink() -> None:
    made = declared(
        f"""{COLUMNS} WITH ('connector' = 'kafka', 'properties.bootstrap.servers' = 'a:1', 'topic' = 'x,y',
        'scan.startup.mode' = 'earliest-offset', 'properties.sasl.username' = 'u', 'idle-after' = '1 min')"""
    )
    ((arguments, named),) = made.calls
    assert arguments == ("t", "a:1", ["x", "y"], Json("`id` BIGINT NOT NULL, `at` TIMESTAMP"))
    assert named == {
        "registry": None,
        "malformed": "fail",
        "starting": "earliest",
        "max_rows": None,
        "fail_on_data_loss": True,
        "options": {"sasl.username": "u"},
        "event_time": "at",
        "watermark_delay": "1 minute",
        "primary_key": ["id"],
        "mode": None,
        "sequence": None,
        "drop_stale": False,
        "idle_after": "1 min",
    }


def test_captured_upserts_in_the_words_of_spark() -> None:
    made = declared(
        f"""{COLUMNS} USING kafka OPTIONS (kafka.bootstrap.servers 'a:1', subscribePattern 'x.*', max-rows '5',
        format 'debezium-json', changelog-mode 'upsert', database 'postgresql', failOnDataLoss false)"""
    )
    ((arguments, named),) = made.calls
    assert arguments[2] == re.compile("x.*")
    schema = "`id` BIGINT NOT NULL, `at` TIMESTAMP"
    assert arguments[3] == Debezium(schema, upsert_key=["id"], connector="postgresql")
    assert (named["max_rows"], named["fail_on_data_loss"]) == (5, False)
    assert (named["mode"], named["primary_key"]) == (None, None)  # the reader says both


def test_files_and_rates() -> None:
    made = declared("(a INT, row_kind STRING) USING csv OPTIONS (path '/p', header true, sequence 'a')")
    assert made.read == {
        "format": "csv",
        "schema": "`a` INT, `row_kind` STRING",
        "path": "/p",
        "header": "true",
        "mode": "FAILFAST",
    }
    assert made.calls[0][1]["sequence"] == ["a"]
    for columns, more in (("_corrupt_record STRING", ""), ("b STRING", ", columnNameOfCorruptRecord 'b'")):
        kept = declared(f"(a INT, {columns}) USING json OPTIONS (path '/p'{more})")
        assert "mode" not in kept.read
    assert declared("(a INT) USING json OPTIONS (path '/p', mode 'permissive')").read["mode"] == "permissive"
    assert "mode" not in declared("(a INT) USING parquet OPTIONS (path '/p')").read
    assert declared("USING rate OPTIONS (rowsPerSecond 7)").read == {"format": "rate", "rowsPerSecond": "7"}


@pytest.mark.parametrize(
    ("table", "target"),
    [
        ("USING postgresql OPTIONS (conninfo 'host=db', table 'u')", PostgresTarget),
        ("WITH ('connector' = 'mysql', 'host' = 'h', 'password' = 'p', 'table' = 'u')", MySqlTarget),
        ("USING sqlite OPTIONS (path 'p', table 'u')", SqliteTarget),
        ("USING delta OPTIONS (path 'p', storage.key 'k')", DeltaTarget),
        ("USING iceberg OPTIONS (table 'a.b', catalog.type 'rest')", IcebergTarget),
        ("USING kafka OPTIONS (servers 'a:1', topic 'u')", KafkaTarget),
        ("USING parquet OPTIONS (path 'p')", ParquetTarget),
    ],
)
def test_sinks_with_a_primary_key_are_upserts_and_others_append(table: str, target: type) -> None:
    given = script(f"(a INT, b INT, PRIMARY KEY (a, b)) {table}", is_sink=True)
    sink = sink_of(given, given.tables[0])
    assert isinstance(sink, UpsertSink)
    assert sink.keys == ("a", "b")
    assert type(sink.target) is target
    given = script(f"(a INT, b INT) {table}", is_sink=True)
    appends = sink_of(given, given.tables[0])
    assert isinstance(appends, AppendSink)
    assert type(appends.target) is (KafkaAppendTarget if target is KafkaTarget else target)


def test_changes_are_appended_if_that_is_asked_for_and_files_are_folders() -> None:
    given = script("(a INT) USING kafka OPTIONS (servers 'a:1', topic 'u', changes true)", is_sink=True)
    sink = sink_of(given, given.tables[0])
    assert isinstance(sink, AppendSink)
    assert isinstance(sink.target, KafkaAppendTarget)
    assert sink.changes
    given = script("(a INT PRIMARY KEY) USING parquet OPTIONS (path 'p', changes true)", is_sink=True)
    with pytest.raises(SqlError, match="job.sql:1: table 't': with a PRIMARY KEY the newest row of each key"):
        sink_of(given, given.tables[0])
    given = script("(a INT) USING json OPTIONS (path '/p/')", is_sink=True)
    files = sink_of(given, given.tables[0])
    assert isinstance(files, FilesSink)
    assert (files.path, files.kind) == ("/p", "json")
    given = script("(a INT) USING console OPTIONS (rows 3)", is_sink=True)
    console = sink_of(given, given.tables[0])
    assert isinstance(console, ConsoleSink)
    assert console.rows == 3


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("(a INT) USING kafka OPTIONS (topic 'u')", "the connector 'kafka' needs the option 'servers'"),
        ("(a INT) USING json", "the connector 'json' needs the option 'path'"),
        ("USING json OPTIONS (path 'p')", "files need the columns of the table"),
        (
            "USING kafka OPTIONS (servers 'a', topic 'u')",
            "messages need the columns of the table, or the option",
        ),
        (
            "(a INT) USING csv OPTIONS (path 'p',\n mode 'dropMalformed')",
            "job.sql:2: option 'mode' = 'DROPMALFORMED': Spark drops rows that it cannot read, and nothing counts",
        ),
        (
            "(a INT) USING csv OPTIONS (path 'p',\n columnNameOfCorruptRecord 'b')",
            "job.sql:2: option 'columnNameOfCorruptRecord' names a column that table 't' does not have",
        ),
        ("(a INT) USING rate", "a rate has the columns timestamp TIMESTAMP, value BIGINT"),
        (
            "(a INT) USING json OPTIONS (path 'p', changelog-mode 'x')",
            "option 'changelog-mode' is none of insert-only",
        ),
        (
            "(a INT) USING kafka OPTIONS (servers 'a', topic 'u',\n max-rows 'x')",
            "job.sql:2: option 'max-rows' is not a whole number",
        ),
        (
            "(a INT) USING kafka OPTIONS (servers 'a', topic 'u', max-rows 0)",
            "is not a whole number from 1 on",
        ),
        (
            "(a INT) USING kafka OPTIONS (servers 'a', topic 'u',\n decimals 'base64')",
            "job.sql:2: option 'decimals' has no effect on messages of the format 'json'",
        ),
        (
            "USING kafka OPTIONS (servers 'a', topic 'u', value.format 'raw', timestamps 'millis')",
            "option 'timestamps' has no effect on messages of the format 'raw'",
        ),
        ("(a INT) USING filesystem OPTIONS (path 'p')", "give the option 'format'"),
        ("(a INT) USING json OPTIONS (path 'p', path 'q')", "'path' is given as 'path' as well"),
    ],
)
def test_sources_that_cannot_be_are_refused(table: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        declared(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "(a INT PRIMARY KEY) USING csv OPTIONS (path 'p')",
            "csv files only adds rows; leave PRIMARY KEY out",
        ),
        ("(a INT) USING console OPTIONS (rows '-1')", "option 'rows' is not a whole number from 1 on"),
    ],
)
def test_sinks_that_cannot_be_are_refused(table: str, message: str) -> None:
    given = script(table, is_sink=True)
    with pytest.raises(SqlError, match=message):
        sink_of(given, given.tables[0])


def test_secrets_are_values_of_secret_options_parts_of_texts_and_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "one-1")
    given = script(
        r"""(a INT, PRIMARY KEY (a)) WITH ('connector' = 'postgresql', 'table' = '${FROM_OUTSIDE}',
        'conninfo' = 'host=db password=two-2 user=u'); SET 'spark.a.password' = 'three-3';
        CREATE TABLE u USING kafka OPTIONS (registry 'https://me:four-4@host', kafka.sasl.password 'five-5')""",
        is_sink=True,
    )
    assert sorted(secrets_of(given).values()) == ["five-5", "four-4", "one-1", "three-3", "two-2"]


@pytest.mark.parametrize(
    "table",
    ["(a INT PRIMARY KEY) USING parquet OPTIONS (path 'p')", "(a INT) USING parquet OPTIONS (path 'p')"],
    ids=["table", "rows"],
)
def test_a_sink_that_is_shown_is_compared_as_the_sink_itself(table: str) -> None:
    given = script(table, is_sink=True)
    sink = sink_of(given, given.tables[0])
    shown = ShownSink(sink)
    assert shown.keys == getattr(sink, "keys", ())
    assert shown.keeps_table == sink.keeps_table
    assert shown.destination("t") == sink.destination("t")


def test_a_console_that_is_shown_may_be_there_twice() -> None:
    given = script("(a INT) USING console", is_sink=True)
    shown = ShownSink(sink_of(given, given.tables[0]))
    assert not shown.keeps_table
    assert not callable(shown.destination)


def test_options_of_a_schema_registry_go_to_its_client() -> None:
    made = declared(
        f"""{COLUMNS} WITH ('connector' = 'kafka', 'servers' = 'a:1', 'topic' = 'x', 'format' = 'avro',
        'schema.registry.url' = 'https://r', 'properties.schema.registry.basic.auth.user.info' = 'u:p',
        'properties.sasl.username' = 'u')"""
    )
    ((_, named),) = made.calls
    assert named["registry"] == SchemaRegistry("https://r", {"basic.auth.user.info": "u:p"})
    assert named["options"] == {"sasl.username": "u"}
    with pytest.raises(SqlError, match="'schema.registry.basic.auth.user.info' needs the option 'registry'"):
        declared(
            f"""{COLUMNS} WITH ('connector' = 'kafka', 'servers' = 'a:1', 'topic' = 'x',
            'properties.schema.registry.basic.auth.user.info' = 'u:p')"""
        )


def test_raw_messages_have_the_columns_of_kafka() -> None:
    kafka = "kafka OPTIONS (servers 'a:1', topic 'x', format 'raw')"
    made = declared(
        f"(value BINARY, timestamp TIMESTAMP, WATERMARK FOR timestamp AS timestamp) USING {kafka}"
    )
    ((arguments, named),) = made.calls
    assert arguments[3] is None
    assert named["event_time"] == "timestamp"
    for column in ("value STRING", "id BIGINT", "offset INT"):
        with pytest.raises(
            SqlError, match=f"column {column.split()[0]} .*raw messages have the columns key BINARY"
        ):
            declared(f"({column}) USING {kafka}")


def test_the_console_shows_what_json_has_no_form_of(capsys: pytest.CaptureFixture[str]) -> None:
    """Values of rows of Spark."""
    values = [
        float("nan"),
        float("-inf"),
        {Row(a=1): float("nan")},
        [Row(x=float("inf"), y=Decimal("1.50"))],
        b"\xff",
    ]
    shown = Row(*[f"c{number}" for number in range(len(values))])(*values)
    ConsoleSink("t", 3).write(SimpleNamespace(take=lambda _: [shown], columns=list(shown.__fields__)), 0)
    said = re.sub(r"\s*[│┃\n]\s*", " ", capsys.readouterr().out)
    for text in ("NaN", "-Infinity", '[[{"a":1},"NaN"]]', '[{"x":"Infinity","y":"1.50"}]', '"/w=="'):
        assert text in said
