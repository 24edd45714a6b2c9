"""Every command of every page: run as printed, or for a reason that is given here, checked without running it.

Commands are the lines of ``sh`` and ``console`` blocks; in a ``console`` block those after ``$ ``. Names in capitals,
such as ``CHECKPOINT``, are replaced by what a real job has written. ``test_deploy.py`` runs ``ON_MACHINES``.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.sql.tables import NEEDS_COMPILER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#(?:\s.*)?$")
_COMMAND = re.compile(
    r"^(\$ |(\S*/)?(python[0-9.]*|pip|asyncstate|spark-submit|make|git|cp|rm|zip|curl|docker|kubectl) )"
)
_SHELLS = {"sh", "bash", "console", "shell"}
_STATE = "python -m asyncstate state "
_SQL = "python -m asyncstate sql "
_BENCH = re.compile(r"^(\.venv/bin/)?python -m bench ")

ON_MACHINES = ("docs/install.md", "docs/tasks/deploy.md")
"""Pages whose commands make environments and start a cluster, in their order."""

NOT_RUN = {
    r"python3\.11 -m venv flink && flink/bin/pip install": "downloads Flink, a gigabyte that only a comparison needs",
    r"--conf spark\.kubernetes\.": "a part of a command, for a Kubernetes cluster",
}
"""Commands that no test runs, and why. The tests say what they check of ``make`` and ``bench``."""


class Command(NamedTuple):
    """A command of a page, in one line and without its comment."""

    page: str
    line: int
    text: str

    @property
    def is_on_machines(self) -> bool:
        return self.page in ON_MACHINES and self.why_not is None

    @property
    def is_make(self) -> bool:
        return self.text.startswith("make ") and not self.is_on_machines

    @property
    def why_not(self) -> str | None:
        return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, self.text)), None)


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page. What a ``console`` block shows of their output is left out."""
    text = page.read_text("utf-8")
    for block in _BLOCK.finditer(text):
        if block[1] not in _SHELLS:
            continue
        first = text.count("\n", 0, block.start(2)) + 1
        whole = block[2].replace("\\\n", " \0")
        for line in whole.splitlines():
            at, first = first, first + 1 + line.count("\0")
            if block[1] != "console" or line.startswith("$ "):
                # Not by shlex, for which a comment may begin within a word, as in archive.tar.gz#name.
                plain = _COMMENT.sub("", line.removeprefix("$ ").replace("\0", ""))
                words = shlex.split(plain, posix=False)
                if words:
                    yield Command(str(page.relative_to(ROOT)), at, " ".join(words))


COMMANDS = [command for page in PAGES for command in commands(page)]


def _of(*chosen: Command) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "command", chosen, ids=[f"{one.page}:{one.line}: {one.text[:60]}" for one in chosen]
    )


def test_every_command_is_run_or_has_a_reason() -> None:
    ways = {
        command: [
            command.text.startswith((_STATE, _SQL)),
            command.is_make,
            bool(_BENCH.match(command.text)),
            command.is_on_machines,
            command.why_not is not None,
        ]
        for command in COMMANDS
    }
    assert {command: found for command, found in ways.items() if sum(found) != 1} == {}
    assert len(COMMANDS) >= 40
    assert {command.page for command in COMMANDS} >= {*ON_MACHINES, "README.md", "docs/inspecting.md"}


def test_every_reason_is_still_needed() -> None:
    assert {why for why in NOT_RUN.values() if not any(one.why_not == why for one in COMMANDS)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_in_blocks_of_the_shell(page: Path) -> None:
    """So that none is missed above."""
    hidden = [
        line
        for info, body in _BLOCK.findall(page.read_text("utf-8"))
        if info == ""
        for line in body.splitlines()
        if _COMMAND.match(line)
    ]
    assert hidden == []


@_of(*(one for one in COMMANDS if one.is_make))
def test_make_has_such_a_target(command: Command) -> None:
    """Not run: these are this very suite, what CI runs after it, and a benchmark."""
    ran = subprocess.run(
        ["make", "-n", *command.text.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@_of(*(one for one in COMMANDS if _BENCH.match(one.text)))
def test_benchmarks_take_these_options(command: Command) -> None:
    """Not run at their size, which takes up to an hour; ``tests/bench`` runs each of them small."""
    import typer.main

    from bench.__main__ import app

    group = typer.main.get_command(app)
    name, *arguments = shlex.split(_BENCH.sub("", command.text))
    with group.make_context("bench", [name, *arguments], resilient_parsing=False) as outer:
        found = group.get_command(outer, name)  # type: ignore[attr-defined]
        assert found is not None
        assert found.make_context(name, arguments, parent=outer).params


@pytest.fixture(scope="module")
def checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a job of three micro-batches has left: ``checkpoint`` and ``checkpoint-query``."""
    from asyncstate.operators import GroupAggregate, count, sum_
    from asyncstate.spark import StreamingJob

    folder = tmp_path_factory.mktemp("commands")
    rows = spark.range(4, numPartitions=1).selectExpr("CAST(17 + id AS INT) AS customer", "id AS amount")
    for _ in range(3):
        rows.write.mode("append").parquet(f"{folder}/orders")
    job = StreamingJob(spark, f"{folder}/checkpoint", name="orders")
    files = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(f"{folder}/orders")
    orders = job.source("orders", files)
    totals = orders.apply(GroupAggregate([count(), sum_("amount")]), key="customer", uid="totals")
    totals.to(lambda out, batch_id: out.count(), name="report")
    job.await_termination(job.start(trigger="availableNow"))
    return folder


_NAMES = {
    "UID": "totals",
    "NEW_UID": "totals-2",
    "STATE": "accumulators",
    "FIELD": "count1",
    "NAME": "renamed",
    "TYPE": "float64",
    "SINK": "report",
    "1041": "1",
}


@pytest.mark.spark
@pytest.mark.timeout(240)
@_of(*(one for one in COMMANDS if one.text.startswith(_STATE)))
def test_commands_of_state_succeed(command: Command, checkpoints: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoints, tmp_path / "job")
    words = [
        _NAMES.get(word, re.sub(r"^CHECKPOINT", str(tmp_path / "job" / "checkpoint"), word))
        for word in shlex.split(command.text)
    ]
    ran = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=ROOT,
        input="y\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout


@pytest.mark.spark
@NEEDS_COMPILER
@pytest.mark.long
@pytest.mark.timeout(300)
def test_commands_of_sql_succeed_in_their_order(tmp_path: Path) -> None:
    """With the file of statements that the page has."""
    page = (ROOT / "docs" / "sql.md").read_text("utf-8")
    statements, recent = (body for info, body in _BLOCK.findall(page) if info == "sql")
    recent = (
        f"CREATE TABLE recent (customer STRING, total BIGINT) USING console;\nINSERT INTO recent\n{recent};\n"
    )
    (tmp_path / "job.sql").write_text(statements + recent, "utf-8")
    (tmp_path / "orders").mkdir()
    rows = ['{"id": 1, "customer": "ann", "amount": 5}', '{"id": 2, "customer": "bob", "amount": 2}']
    (tmp_path / "orders" / "1.json").write_text("\n".join(rows), "utf-8")
    said = []
    for command in (one for one in COMMANDS if one.text.startswith(_SQL)):
        words = [word.replace("CHECKPOINT", "state") for word in shlex.split(command.text)]
        ran = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        said.append(ran.stdout)
    explained, ran_once, compiled, again = said
    assert "best.group-1" in explained
    assert "ann" in ran_once
    assert "plan.json: the plans of job.sql" in compiled
    assert "no new rows" in again or "is committed" in again
