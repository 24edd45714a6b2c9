"""Files of statements: where a statement ends, what CREATE TABLE declares, and what is refused before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncstate.cli.app import app
from asyncstate.cli.script import ScriptOption, ScriptStatement, read_script
from asyncstate.errors import SqlError

INSERT = "INSERT INTO t SELECT 1 FROM s"


def texts(text: str) -> list[str]:
    return [one.text for one in read_script("job.sql", text).statements if isinstance(one, ScriptStatement)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';' AS a; SELECT 2", ["SELECT ';' AS a", "SELECT 2"]),
        (r"SELECT 'it\';s' AS a; SELECT 2", [r"SELECT 'it\';s' AS a", "SELECT 2"]),
        ("SELECT 'it'';s' AS a; SELECT 2", ["SELECT 'it'';s' AS a", "SELECT 2"]),
        (r"SELECT r'\' AS a; SELECT 2", [r"SELECT r'\' AS a", "SELECT 2"]),
        ('SELECT ";" AS a; SELECT 2', ['SELECT ";" AS a', "SELECT 2"]),
        ("SELECT `a;``b` FROM t; SELECT 2", ["SELECT `a;``b` FROM t", "SELECT 2"]),
        ("-- one; 'two\nSELECT 1 -- ; three\n; SELECT 2", ["SELECT 1", "SELECT 2"]),
        ("/* a; /* b; */ c; ' */ SELECT /* ; */ 1; SELECT 2", ["SELECT /* ; */ 1", "SELECT 2"]),
        (
            "SELECT /*+ BROADCAST(t) */ a - - 1; ;; SELECT 2;",
            ["SELECT /*+ BROADCAST(t) */ a - - 1", "SELECT 2"],
        ),
    ],
)
def test_a_statement_ends_at_a_semicolon_outside_of_texts(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


def test_tables_in_the_words_of_spark_and_of_flink(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "a:9092,b:9092")
    script = read_script(
        "job.sql",
        """
        CREATE TABLE orders (
          id BIGINT NOT NULL COMMENT 'the id', `the amount` DECIMAL(10, 2),
          tags MAP<STRING, ARRAY<INT>>, placed TIMESTAMP,
          PRIMARY KEY (id) NOT ENFORCED,
          WATERMARK FOR placed AS placed - INTERVAL '5' SECOND
        ) WITH ('connector' = 'kafka', 'properties.bootstrap.servers' = '${BROKERS}', 'topic' = 'orders');
        CREATE OR REPLACE TABLE totals (id INT PRIMARY KEY, s STRING)
          USING postgresql OPTIONS (conninfo 'host=db', table = 'totals', kafka.a.b 'c');
        SET trigger = '10 seconds';
        SET 'async-state.enabled' = 'true';
        CREATE TEMPORARY VIEW countries USING csv OPTIONS (path '/data');
        INSERT INTO TABLE `totals` SELECT 1 FROM orders;
        """,
    )
    orders, totals = script.tables
    assert orders.columns == (
        ("id", "BIGINT", False),
        ("the amount", "DECIMAL(10, 2)", True),
        ("tags", "MAP<STRING, ARRAY<INT>>", True),
        ("placed", "TIMESTAMP", True),
    )
    assert orders.schema == (
        "`id` BIGINT NOT NULL, `the amount` DECIMAL(10, 2), `tags` MAP<STRING, ARRAY<INT>>, `placed` TIMESTAMP"
    )
    assert (orders.primary_key, orders.event_time, orders.watermark_delay) == (("id",), "placed", "5 second")
    assert (orders.connector, orders.line) == ("kafka", 2)
    assert [(one.name, one.value) for one in orders.options] == [
        ("properties.bootstrap.servers", "a:9092,b:9092"),
        ("topic", "orders"),
    ]
    assert (totals.primary_key, totals.connector) == (("id",), "postgresql")
    assert [(one.name, one.value) for one in totals.options] == [
        ("conninfo", "host=db"),
        ("table", "totals"),
        ("kafka.a.b", "c"),
    ]
    trigger, enabled, view, insert = script.statements
    assert isinstance(trigger, ScriptOption)
    assert (trigger.name, trigger.value) == ("trigger", "10 seconds")
    assert isinstance(enabled, ScriptOption)
    assert (enabled.name, enabled.value) == ("async-state.enabled", "true")
    assert isinstance(view, ScriptStatement)
    assert view.in_spark
    assert isinstance(insert, ScriptStatement)
    assert (insert.target, insert.line, insert.in_spark) == ("totals", 13, False)
    assert script.targets == {"totals"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("INSERT INTO t SELECT 1; INSERT INTO t SELECT 2", ["t", "t-2"]),
        ("INSERT INTO db.t SELECT 1; INSERT INTO TABLE `a b` SELECT 2", ["t", "a b"]),
        ("CREATE MATERIALIZED /* of */ VIEW v AS SELECT 1", ["v"]),
        ("CREATE MATERIALIZED VIEW IF NOT EXISTS db.`v w` AS SELECT 1", ["v w"]),
        ("CREATE VIEW v AS SELECT 1", [None]),
    ],
)
def test_a_statement_has_the_name_of_its_table_or_view(text: str, names: list[str | None]) -> None:
    found = read_script("job.sql", text).statements
    assert [one.name for one in found if isinstance(one, ScriptStatement)] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 'a", "job.sql:1: the ' that begins here does not end"),
        ("SELECT 1;\n/* a /* b */", r"job.sql:2: the comment that begins here does not end; write \*/"),
        ("SET x;", "job.sql:1: write SET 'key' = 'value'"),
        ("-- nothing\n;", "job.sql: there is no statement"),
        (f"CREATE TABLE s (a INT);{INSERT}", "job.sql:1: table 's' has no connector; add WITH"),
        (
            f"CREATE TABLE s (a INT,\n b) USING rate;{INSERT}",
            "job.sql:2: CREATE TABLE: here is '\\)', expected is the type",
        ),
        (
            f"CREATE TABLE s (a INT AS (1)) USING rate;{INSERT}",
            "values that are computed belong into a CREATE VIEW",
        ),
        (
            f"CREATE TABLE s (a INT, PRIMARY KEY (b)) USING rate;{INSERT}",
            "no column 'b'; the columns so far are a",
        ),
        (f"CREATE TABLE s (a INT, WATERMARK FOR b AS b) USING rate;{INSERT}", "no column 'b'"),
        (
            f"CREATE TABLE s USING rate PARTITIONED BY (a);{INSERT}",
            "here is 'PARTITIONED', expected is USING",
        ),
        (
            f"CREATE TABLE s USING rate;\nCREATE TABLE S USING rate;{INSERT}",
            "job.sql:2: there is a table 'S' already",
        ),
        (
            f"CREATE TABLE s USING rate OPTIONS (a '${{NO_SUCH_NAME}}');{INSERT}",
            "variable 'NO_SUCH_NAME', which is not",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        read_script("job.sql", text)


SECRET = "swordfish7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SET 'async-state.enabld' = 'true'",
            "job.sql:1: there is no setting 'async-state.enabld'; did you mean ",
        ),
        ("SET triger = '1 s'", "job.sql:1: there is no setting 'triger'; did you mean 'trigger'"),
        (
            "CREATE TABLE s USING ratte",
            "job.sql:1: table 's': there is no source 'ratte'; did you mean 'rate'",
        ),
        (
            "CREATE TABLE s USING rate OPTIONS (\n rowPerSecond '1')",
            "job.sql:2: table 's': the source 'rate' has no option 'rowPerSecond'; did you mean 'rowsPerSecond'",
        ),
        (
            "CREATE TABLE s (a INT) USING csv OPTIONS (path 'p', headr 'true')",
            "the source 'csv' has no option 'headr'; did you mean 'header'",
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY) USING postgresql OPTIONS (conninf 'x', table 'u')",
            "the sink 'postgresql' has no option 'conninf'; did you mean 'conninfo'",
        ),
        (
            f"CREATE TABLE s (a INT) USING kafka OPTIONS (kafka.sasl.password '{SECRET}', topic 'a', {SECRET} 'b')",
            r"has no option '\*\*\*\*\*'",
        ),
    ],
)
def test_an_option_that_nobody_knows_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    pytest.importorskip("pyspark")
    import re

    file = tmp_path / "job.sql"
    file.write_text(f"{text};\n{INSERT};")
    ran = CliRunner().invoke(app, ["sql", "run", str(file), "--checkpoint", str(tmp_path / "state")])
    said = " ".join(ran.stderr.split())
    assert ran.exit_code == 2
    assert re.search(message, said), said
    assert SECRET not in ran.output + ran.stderr


JOB = """\
CREATE TABLE s (a INT) USING json OPTIONS (path 'in');
CREATE TABLE t (a INT) USING console;
INSERT INTO t SELECT a FROM s;
"""


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.sql"
    file.write_bytes(JOB.encode("utf-16"))
    for arguments in (["explain"], ["run", "--checkpoint", str(tmp_path / "state")]):
        done = CliRunner().invoke(app, ["sql", *arguments, str(file)])
        assert (done.exit_code, "job.sql is no text in UTF-8" in done.stderr.replace("\n", "")) == (2, True)
    file.write_text(JOB)
    plan = ["--checkpoint", str(tmp_path / "state"), "--plan", str(tmp_path)]
    done = CliRunner().invoke(app, ["sql", "run", str(file), *plan])
    assert (done.exit_code, "cannot be read: Is a directory" in done.stderr) == (2, True)
    assert not (tmp_path / "state").exists()


def test_a_mark_of_the_order_of_bytes_belongs_to_no_statement(tmp_path: Path) -> None:
    """Editors of Windows begin a file with it."""
    file = tmp_path / "job.sql"
    file.write_text(f"SET 'chekpoint' = 'x';\n{JOB}", "utf-8-sig")
    done = CliRunner().invoke(app, ["sql", "explain", str(file)])
    assert "job.sql:1: there is no setting 'chekpoint'; did you mean 'checkpoint'" in done.stderr.replace(
        "\n", " "
    )


def test_a_checkpoint_to_compare_with_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "job.sql"
    file.write_text(JOB)
    done = CliRunner().invoke(app, ["sql", "explain", str(file), "--checkpoint", str(tmp_path / "stat")])
    assert (done.exit_code, "there is no checkpoint folder" in done.stderr) == (2, True)
    assert not (tmp_path / "stat").exists()
