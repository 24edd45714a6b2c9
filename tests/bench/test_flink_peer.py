"""What the comparison does around Flink; with Flink itself where ``ASYNCSTATE_FLINK_PYTHON`` names it (slow)."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import duckdb
import pytest
import typer

from asyncstate.errors import StoreError
from bench.frame import Report
from bench.nexmark.generator import write_events
from bench.nexmark.oracle import QUERIES
from bench.peers.flink.nexmark import NexmarkPlan, keyed, nexmark
from bench.peers.flink.run import (
    FLINK_QUERIES,
    LAST_COUNTS,
    PYTHON_VARIABLE,
    Flink,
    changes_as_parquet,
    dropping,
    find_flink,
    keeping,
    reading,
    statements,
)
from bench.peers.results import Throughput
from bench.peers.works import Scale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_python_without_flink_is_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_flink(Path(sys.executable)) == f"{sys.executable} does not have apache-flink"
    monkeypatch.setenv(PYTHON_VARIABLE, "/nowhere/python")
    assert str(find_flink(None)).startswith("/nowhere/python cannot be run")


def test_without_flink_the_peers_are_left_out_and_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    plan = NexmarkPlan(tmp_path, events=10, cores=1, repeat=1, seed=0, python=Path(sys.executable))
    with Report("peers") as report:
        nexmark(["ours-sync", "flink-sql", "flink-sql-async"], plan, report)
    results = [*report.rows, keyed("d", "d", "counter", Scale(10, 10, 0, 1), plan, lambda _: None)]
    assert [getattr(result, "peer", None) for result in results] == [
        "flink-sql",
        "flink-sql-async",
        "pyflink",
    ]
    assert all("does not have apache-flink" in result.skipped for result in results)
    assert not any(result.wrong for result in results)


class Fails:
    """A runner of which one query fails, checked or timed."""

    def __init__(self, when: str) -> None:
        self.when = when

    def prepare(self) -> SimpleNamespace:
        return SimpleNamespace(path=Path("events"), micro_batch_events=10)

    def run(self, query: str, async_enabled: bool) -> SimpleNamespace:
        if (query, self.when) == ("q3", "checked"):
            raise StoreError("the folder is gone")
        return SimpleNamespace(facts={"expected_rows": 1}, wrong=[])

    def dropped(self, query: str, async_enabled: bool) -> tuple[list[float], float]:
        if (query, self.when) == ("q3", "timed"):
            raise StoreError("the folder is gone")
        return [2_000.0], 1.0


@pytest.mark.parametrize("when", ["checked", "timed"])
def test_a_query_that_fails_leaves_the_figures_of_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    monkeypatch.setattr("bench.peers.flink.nexmark.find_flink", lambda _: Path(sys.executable))
    monkeypatch.setattr("bench.peers.flink.nexmark.started", lambda _: nullcontext(Fails(when)))
    plan = NexmarkPlan(
        tmp_path, events=10, cores=1, repeat=1, seed=0, python=None, queries=("q2", "q3", "q4")
    )
    with pytest.raises(typer.Exit), Report("peers") as report:
        nexmark(["ours-sync"], plan, report)
    found = {row.work: row for row in report.rows if isinstance(row, Throughput)}
    assert [found[work].seconds for work in ("f q2", "f q3", "f q4")] == [[2.0], [], [2.0]]
    assert found["f q3"].failed == "StoreError: the folder is gone"
    assert not found["f q2"].failed
    assert not found["f q4"].failed


@pytest.mark.parametrize("query", FLINK_QUERIES)
def test_every_query_has_its_tables_and_a_sink_of_its_columns(query: str) -> None:
    *made, sink = statements(QUERIES[query], "file:///events")
    views = {match[1] for text in made if (match := re.match(r"CREATE VIEW (\w+)", text))}
    assert views - {"auction_versions"} == set(QUERIES[query].needs)
    assert re.findall(r"`(\w+)`", sink) == list(QUERIES[query].columns)
    assert not re.search(r"[^`]\bdateTime\b", FLINK_QUERIES[query])
    assert "{" not in FLINK_QUERIES[query]  # each name of what queries share has its text
    _, kept = made_to_keep = keeping(QUERIES[query], "file:///kept")[0]
    assert re.findall(r"`(\w+)`", kept) == list(QUERIES[query].columns)
    (read,), insert = reading(QUERIES[query])
    source = next(text for text in made if text.startswith("CREATE TABLE events"))
    columns = ["event_type", "event_time", *re.findall(r"`(\w+)`", source)]
    assert re.findall(r"`(\w+)`", read) == re.findall(r"`(\w+)`", insert) == columns
    assert all(FLINK_QUERIES[query] in text for text in (dropping(QUERIES[query]), made_to_keep[0]))


def test_changes_are_in_the_order_of_their_files_where_the_last_counts(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    changes = [("+I", 1, "one"), ("-U", 1, "one"), ("+U", 1, "a\"b,c'd"), ("+I", 2, None), ("+U", 1, "last")]
    lines = [json.dumps({"row_kind": kind, "id": key, "text": text}) + "\n" for kind, key, text in changes]
    for number, part in ((9, lines[:2]), (10, lines[2:])):
        (rows / f"part-a1b2-c3-0-{number}").write_text("".join(part))
    (rows / ".part-a1b2-c3-0-11.inprogress").write_text("half a li")
    columns = {"id": "BIGINT", "text": "VARCHAR"}
    with duckdb.connect() as connection:
        last = changes_as_parquet(connection, rows, columns, "id")
        assert connection.execute(f"SELECT id, text FROM '{last}/*.parquet' ORDER BY id").fetchall() == [
            (1, "last"),
            (2, None),
        ]
        (last / "rows.parquet").unlink()
        last.rmdir()
        every = changes_as_parquet(connection, rows, columns)
        found = connection.execute(f"SELECT row_kind, id, text FROM '{every}/*.parquet'").fetchall()
    assert sorted(found, key=str) == sorted(changes, key=str)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(PYTHON_VARIABLE not in os.environ, reason=f"{PYTHON_VARIABLE} names no Python with Flink")
@pytest.mark.parametrize("backend", ["rocksdb", "forst", "hashmap"])
@pytest.mark.parametrize("query", FLINK_QUERIES)
def test_flink_does_the_query_right(query: str, backend: str, spark: SparkSession, tmp_path: Path) -> None:
    python = find_flink(None)
    assert isinstance(python, Path), python
    events = write_events(spark, tmp_path / "events", 20_000, 20_000)
    flink = Flink(python, tmp_path, cores=2)
    outcome = flink.check_query(QUERIES[query], events.path, 15_000, backend)
    assert outcome.ok, (outcome.problems, outcome.examples)


@pytest.mark.slow
@pytest.mark.skipif(PYTHON_VARIABLE not in os.environ, reason=f"{PYTHON_VARIABLE} names no Python with Flink")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["counter", "mean"])
def test_pyflink_does_its_work_right(kind: str, tmp_path: Path) -> None:
    python = find_flink(None)
    assert isinstance(python, Path), python
    outcome = Flink(python, tmp_path, cores=2).check_keyed(kind, [number * 7 % 40 for number in range(500)])
    assert outcome.ok, (outcome.problems, outcome.examples)


def test_the_queries_whose_last_row_counts_are_known() -> None:
    assert set(LAST_COUNTS) <= set(FLINK_QUERIES)
    assert all(key in QUERIES[query].columns for query, key in LAST_COUNTS.items())
