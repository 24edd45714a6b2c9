"""The command line of Nexmark: turns, the median run, what is wrong or fails."""

from __future__ import annotations

import re
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.frame import Report, Row
from bench.frame.report import table
from bench.nexmark import command
from bench.nexmark.command import RunSettings, row_of


def result(query: str, mode: str, rate: float, wrong: tuple[str, ...] = ()) -> Row:
    facts = {
        "seconds": 1_000_000 / rate,
        "events_per_second": rate,
        "batch_ms_p50": 1234.4,
        "batch_ms_p95": 2000.6,
        "cpu_us": 4.567,
        "state_reads": 123_456,
        "read_batches": 42,
        "cache_hits": 999_600,
        "state_bytes": 3 << 20,
    }
    return row_of(query, mode, facts, wrong)


class _Runs:
    """A runner whose runs take a second longer each time."""

    def __init__(self, wrong: int = -1, fails: int = -1) -> None:
        self.modes: list[bool] = []
        self._wrong, self._fails = wrong, fails

    def prepare(self) -> None:
        """Nothing to write."""

    def warm_up(self, query: str, async_enabled: bool) -> None:
        """Nothing to warm."""

    def run(self, query: str, async_enabled: bool) -> Row:
        self.modes.append(async_enabled)
        number = len(self.modes)
        if number == self._fails:
            raise RuntimeError("the store is gone")
        wrong = ("3 rows are missing",) if number == self._wrong else ()
        return result(query, "async" if async_enabled else "sync", 1_000_000 / number, wrong)


def _rows(runner: _Runs) -> list[Row]:
    report = Report("nexmark")
    command.run_modes(report, runner, "q4", (False, True), 3)  # type: ignore[arg-type]
    report.folder.rmdir()
    return report.rows


def test_modes_take_turns_and_the_median_run_is_shown() -> None:
    runner = _Runs()
    rows = _rows(runner)
    assert runner.modes == [False, True, True, False, False, True]
    assert [row.facts["seconds"] for row in rows] == [4.0, 3.0]
    assert rows[1].facts["speedup"] == 4.0 / 3.0
    assert list(rows[0].figures) == ["q4 sync, events/s"]
    assert rows[0].figures["q4 sync, events/s"].absolute


def test_a_wrong_run_is_shown_before_all_others() -> None:
    rows = _rows(_Runs(wrong=6))
    assert [row.facts["result"] for row in rows] == ["right", "WRONG"]
    assert rows[1].wrong[1:] == ["3 rows are missing"]
    assert rows[1].figures == {}


def test_a_run_that_fails_takes_nothing_from_the_other_mode() -> None:
    sync, mine = _rows(_Runs(fails=2))
    assert (mine.failed, mine.facts) == ("RuntimeError: the store is gone", {})
    assert sync.facts["seconds"] == 3.0
    assert not sync.failed


def test_the_table_fits_80_columns() -> None:
    rates = {"sync": 9_990_000, "async": 1_000_000}
    rows = [result("window_rank", mode, rate) for mode, rate in rates.items()]
    for row in rows:
        row.facts["speedup"] = 1.5
    lines = table(rows, command._COLUMNS)
    assert all(len(line) <= 80 for line in lines), lines
    expected = ["async", "1M", "4.57", "1,234", "2,001", "123k", "42", "1M", "3.00", "1.50x", "right"]
    assert lines[-1].split() == expected


@pytest.fixture(autouse=True)
def temporary_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the command line makes its folders, so that those of wrong results go with the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def invoke(monkeypatch: pytest.MonkeyPatch, runner: _Runs, *options: str) -> tuple[int, str, Any]:
    seen: list[Any] = []

    def started(settings: RunSettings) -> nullcontext[_Runs]:
        seen.append(settings)
        return nullcontext(runner)

    monkeypatch.setattr(command, "started", started)
    outcome = CliRunner().invoke(app, ["nexmark", *options])
    return outcome.exit_code, outcome.output, seen[0]


def test_the_command_line_takes_the_options_as_documented(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner = _Runs()
    options = ["--queries", "q4,q18", "--events", "1000000", "--async-state.enabled", "both"]
    code, output, settings = invoke(monkeypatch, runner, *options, "--output", str(tmp_path))
    assert code == 0, output
    assert runner.modes == [False, True] * 2
    assert (settings.events, settings.micro_batch_events, settings.cores, settings.seed) == (
        1_000_000,
        100_000,
        2,
        0,
    )
    results = msgspec.json.decode((tmp_path / "nexmark.json").read_bytes())["results"]
    assert [(row["group"], row["name"]) for row in results[::3]] == [("q4", "sync"), ("q18", "async")]
    assert (tmp_path / "nexmark.png").exists()
    for value, modes in (("true", [True]), ("false", [False])):
        runner = _Runs()
        invoke(monkeypatch, runner, "--queries", "q4", "--async-state.enabled", value)
        assert runner.modes == modes


def test_a_wrong_result_is_told_plainly_fails_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, temporary_folders: Path
) -> None:
    code, output, _ = invoke(monkeypatch, _Runs())
    assert (code, list(temporary_folders.iterdir())) == (0, [])
    code, output, _ = invoke(monkeypatch, _Runs(wrong=3))
    assert code == 1
    (kept,) = temporary_folders.iterdir()
    assert str(kept) in output
    assert re.search(
        r"q18, sync: WRONG result:\n.*DuckDB's result for the same events:\n  3 rows are missing", output
    )


def test_a_query_that_fails_is_told_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output, _ = invoke(monkeypatch, _Runs(fails=1))
    assert code == 2
    assert "sync: FAILED: RuntimeError: the store is gone" in output
    assert "Traceback" not in output


def test_an_unknown_query_stops_before_spark_starts(temporary_folders: Path) -> None:
    outcome = CliRunner().invoke(app, ["nexmark", "--queries", "q4,q99"])
    assert outcome.exit_code == 2
    assert list(temporary_folders.iterdir()) == []
    assert "q99: choose from q0, q1," in outcome.output
