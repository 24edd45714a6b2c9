"""``asyncstate sql run``, ``explain`` and ``compile``: jobs that are files of statements."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

from asyncstate.cli.app import app
from asyncstate.offline.inspection import Inspection
from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, NEEDS_COMPILER, pytest.mark.long, pytest.mark.timeout(300)]

JOB = """-- Totals by country.
SET 'async-state.enabled' = '{mode}';
SET 'async-state.parallelism' = 2;
SET 'spark.sql.ansi.enabled' = 'true';

CREATE TABLE orders (id BIGINT NOT NULL, customer BIGINT, amount DECIMAL(10, 2), row_kind STRING, PRIMARY KEY (id))
  USING json OPTIONS (path '{folder}/orders', maxFilesPerTrigger 1);
CREATE OR REPLACE TEMPORARY VIEW countries (customer BIGINT, country STRING)
  USING csv OPTIONS (path '{folder}/countries.csv');
CREATE TABLE totals (country STRING, total DECIMAL(20, 2), PRIMARY KEY (country) NOT ENFORCED)
  WITH ('connector' = 'sqlite', 'path' = '{folder}/out.db', 'table' = 'totals');
CREATE TABLE log (country STRING, total DECIMAL(20, 2)) WITH ('connector' = 'filesystem', 'format' = 'parquet',
  'path' = '{folder}/log', 'changes' = 'true');
CREATE TABLE shown (country STRING) USING console OPTIONS (rows 1);

CREATE VIEW small AS SELECT * FROM orders WHERE amount < 100; -- 'not; the end
CREATE MATERIALIZED VIEW by_country AS
  SELECT country, sum(amount) AS total FROM small o JOIN countries c ON o.customer = c.customer GROUP BY country;
INSERT INTO totals SELECT country, total FROM by_country;
INSERT INTO log SELECT country, total FROM by_country WHERE country <> ';';
INSERT INTO shown SELECT country FROM by_country;
"""
ORDERS: list[list[tuple[Any, ...]]] = [
    [(1, 10, 5, "+I"), (2, 11, 7, "+I"), (3, 10, 500, "+I")],
    [(1, 10, 5, "-U"), (1, 11, 6, "+U")],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders").mkdir()
    (tmp_path / "countries.csv").write_text("10,AT\n11,BE\n")
    with sqlite3.connect(tmp_path / "out.db") as database:
        database.execute("CREATE TABLE totals (country TEXT PRIMARY KEY, total TEXT)")
    return tmp_path


def add_orders(folder: Path, number: int) -> None:
    lines = [
        json.dumps({"id": i, "customer": c, "amount": a, "row_kind": kind})
        for i, c, a, kind in ORDERS[number]
    ]
    (folder / "orders" / f"{number}.json").write_text("\n".join(lines))


def totals(folder: Path) -> dict[str, float]:
    with sqlite3.connect(folder / "out.db") as database:
        return {country: float(total) for country, total in database.execute("SELECT * FROM totals")}


def invoke(*arguments: object, code: int = 0) -> str:
    ran = CliRunner().invoke(app, ["sql", *map(str, arguments)])
    assert ran.exit_code == code, ran.output + ran.stderr
    return ran.output if code == 0 else " ".join(ran.stderr.split())


def test_a_file_is_a_job_that_goes_on(spark: SparkSession, folder: Path, async_enabled: bool) -> None:
    file, state = folder / "job.sql", folder / "state"
    file.write_text(JOB.format(folder=folder, mode=str(async_enabled).lower()))
    add_orders(folder, 0)
    said = invoke("run", file, "--checkpoint", state, "--once")
    assert "micro-batch 0 is committed" in said
    assert re.search("shown, micro-batch 0, the first 1", said)
    assert totals(folder) == {"AT": 5, "BE": 7}
    plan = folder / "plan.json"
    assert "the plans of job.sql" in invoke("compile", file, "-o", plan)
    add_orders(folder, 1)
    invoke("run", file, "--checkpoint", state, "--available-now", "--plan", plan)
    assert totals(folder) == {"BE": 13}
    log = pa.concat_tables([pq.read_table(one) for one in (folder / "log").rglob("*.parquet")])
    assert Counter(log.column("row_kind").to_pylist()) == {"+I": 2, "+U": 1, "-D": 1, "-U": 1}
    explained = invoke("explain", file, "--checkpoint", state)
    assert "by_country.group-1" in explained
    assert "unique" in explained
    file.write_text(file.read_text().replace("sum(amount)", "max(amount)"))
    refused = invoke("run", file, "--checkpoint", state, "--once", "--plan", plan, code=2)
    assert "job.sql:17: the compiled plans do not have this statement" in refused
    refused = invoke("run", file, "--checkpoint", state, "--once", code=2)
    assert "job.sql:17: statement 'by_country' is not the one whose state the checkpoint has" in refused
    assert "by_country.group-1: was Aggregate" in refused
    refused = invoke("run", file, "--checkpoint", state, "--once", "--start-anew", "by_countri", code=2)
    assert "there is no statement 'by_countri'" in refused


def test_state_of_a_statement_that_is_gone(spark: SparkSession, folder: Path, async_enabled: bool) -> None:
    file, state = folder / "job.sql", folder / "state"
    tables = f"""\
SET 'async-state.enabled' = '{str(async_enabled).lower()}';
CREATE TABLE orders (id BIGINT, customer BIGINT) USING json OPTIONS (path '{folder}/orders');
CREATE TABLE counts (customer BIGINT, n BIGINT) USING console;
INSERT INTO counts SELECT customer, count(*) AS n FROM orders GROUP BY customer;
"""
    file.write_text(f"""{tables}
CREATE TABLE highest (customer BIGINT, id BIGINT) USING console;
INSERT INTO highest SELECT customer, max(id) AS id FROM orders GROUP BY customer;
""")
    add_orders(folder, 0)
    invoke("run", file, "--checkpoint", state, "--once")
    file.write_text(tables)
    add_orders(folder, 1)
    refused = invoke("run", file, "--checkpoint", state, "--once", code=2)
    assert "has state of operator 'highest.group-1', which the program does not have" in refused
    refused = invoke("run", file, "--checkpoint", state, "--once", "--unclaimed-state", "lose", code=2)
    assert "unclaimed_state is 'lose'; give 'refuse' or 'keep' or 'drop'" in refused
    assert set(Inspection(str(state)).manifest().operators) == {"counts.group-1", "highest.group-1"}
    invoke("run", file, "--checkpoint", state, "--once", "--unclaimed-state", "drop")
    assert set(Inspection(str(state)).manifest().operators) == {"counts.group-1"}


def test_files_of_another_checkpoint_stay(spark: SparkSession, folder: Path) -> None:
    """Both jobs have a micro-batch 0."""
    file = folder / "job.sql"
    file.write_text(f"""\
CREATE TABLE orders (id BIGINT) USING json OPTIONS (path '{folder}/orders');
CREATE TABLE seen (id BIGINT) USING json OPTIONS (path '{folder}/seen');
INSERT INTO seen SELECT id FROM orders WHERE id > 1;
""")
    add_orders(folder, 0)
    for checkpoint in ("first", "second"):
        invoke("run", file, "--checkpoint", folder / checkpoint, "--once")
    rows = spark.read.json(f"{folder}/seen").collect()
    assert Counter(row.id for row in rows) == {2: 2, 3: 2}
    assert {row.batch for row in rows} == {0}
    assert len({row.checkpoint for row in rows}) == 2


def test_an_error_of_spark_is_said_without_its_frames(spark: SparkSession, folder: Path) -> None:
    """With the exit code of what could not be done."""
    file = folder / "job.sql"
    file.write_text(f"""\
CREATE TABLE orders (id BIGINT) USING json OPTIONS (path '{folder}/orders');
CREATE TABLE seen (id BIGINT) USING console;
INSERT INTO seen SELECT id FROM orders WHERE id > 1;
""")
    (folder / "orders" / "0.json").write_text('{"id": "x')
    said = invoke("run", file, "--checkpoint", folder / "state", "--once", code=2)
    assert "job.sql: the query has failed: " in said
    assert "Malformed records are detected" in said
    assert "it is replayed when the job is started again" in said
    assert not re.search(r"\bat org\.apache|Traceback", said)


def test_two_sinks_of_one_folder_of_files_are_refused(spark: SparkSession, folder: Path) -> None:
    file = folder / "job.sql"
    file.write_text(f"""\
CREATE TABLE orders (id BIGINT) USING json OPTIONS (path '{folder}/orders');
CREATE TABLE one (id BIGINT) USING csv OPTIONS (path '{folder}/seen');
CREATE TABLE two (id BIGINT) USING csv OPTIONS (path '{folder}/seen/');
INSERT INTO one SELECT id FROM orders WHERE id > 1;
INSERT INTO two SELECT id FROM orders WHERE id < 1;
""")
    add_orders(folder, 0)
    said = invoke("run", file, "--checkpoint", folder / "state", "--once", code=2)
    assert "'one'" in said
    assert "'two'" in said
    assert not (folder / "seen").exists()


def test_a_plan_for_other_columns_is_refused_by_their_table(spark: SparkSession, folder: Path) -> None:
    file, plan = folder / "job.sql", folder / "plan.json"
    file.write_text(JOB.format(folder=folder, mode="false"))
    invoke("compile", file, "-o", plan)
    file.write_text(file.read_text().replace("customer BIGINT, amount", "customer INT, amount"))
    refused = invoke("run", file, "--checkpoint", folder / "state", "--once", "--plan", plan, code=2)
    assert "the compiled plan of statement 'by_country' was made from something else" in refused
    assert "table 'orders' was" in refused
    assert "int32" in refused


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM orders", "job.sql:6: nothing reads the rows of this query"),
        ("SELECT* FROM orders", "job.sql:6: nothing reads the rows of this query"),
        ("(SELECT id FROM orders)", "job.sql:6: nothing reads the rows of this query"),
        (
            "INSERT INTO totals\n  SELECT country,\n  nothing FROM orders",
            "job.sql:[678]: .*cannot be resolved",
        ),
        ("INSERT INTO totals\n SELECT 'x' AS country,\n rand() AS total FROM orders", "job.sql:8: .*rand"),
        (
            "INSERT INTO totals SELECT 'x' AS country, count(*) AS n FROM orders",
            "job.sql:6: the query has the columns country, n, and table 'totals' has country, total; name them",
        ),
        (
            "INSERT INTO totals SELECT 'x' AS country, 1 AS total FROM orders LIMIT 1",
            "job.sql:6: column 'total' is int in the query, and BIGINT in table 'totals'; cast it",
        ),
        (
            "INSERT INTO others SELECT id FROM orders",
            "job.sql:6: there is no sink 'others'; there are: totals",
        ),
    ],
)
def test_errors_have_the_line_of_the_file(
    spark: SparkSession, folder: Path, statement: str, message: str
) -> None:
    file = folder / "job.sql"
    file.write_text(f"""\
CREATE TABLE orders (id BIGINT, row_kind STRING) USING json OPTIONS (path '{folder}/orders');

CREATE TABLE totals (country STRING PRIMARY KEY, total BIGINT)
  USING sqlite OPTIONS (path '{folder}/out.db', table 'totals');
INSERT INTO totals SELECT 'x' AS country, count(*) AS total FROM orders;
{statement};
""")
    assert re.search(message, invoke("explain", file, code=2))


def test_ctrl_c_ends_a_job_after_the_running_micro_batch(folder: Path) -> None:
    file, state = folder / "job.sql", folder / "state"
    file.write_text("""\
CREATE TABLE ticks USING rate OPTIONS (rowsPerSecond 5);
CREATE TABLE shown (n BIGINT) USING console;
INSERT INTO shown SELECT count(*) AS n FROM ticks;
""")
    command = [sys.executable, "-m", "asyncstate", "sql", "run", str(file), "--checkpoint", str(state)]
    root = Path(__file__).resolve().parents[2]
    job = subprocess.Popen(
        [*command, "--master", "local[1]"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    lines: list[str] = []
    ends = time.monotonic() + 200
    for line in job.stdout:
        lines.append(line)
        if "micro-batch 1" in line:
            break
        assert time.monotonic() < ends, "".join(lines)
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does
    rest, _ = job.communicate(timeout=100)
    assert job.returncode == 0, "".join(lines) + rest
    committed = re.search(r"job.sql: micro-batch (\d+) is committed", rest)
    assert committed is not None, rest
    assert "Traceback" not in rest
    assert int(committed[1]) in Inspection(str(state)).versions
