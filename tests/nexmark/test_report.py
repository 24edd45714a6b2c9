"""The three forms of a result, the command line, and the count of the workers' memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn
from typer.testing import CliRunner

from bench import __main__ as command_line
from bench.__main__ import app
from bench.nexmark.memory import descendants
from bench.report import QueryResult, read_json, results_table, write_json, write_plot


def result(query: str, mode: str, rate: float = 1000.0, problems: tuple[str, ...] = ()) -> QueryResult:
    return QueryResult(
        query=query,
        description="text",
        mode=mode,
        events=1_000_000,
        micro_batch_events=100_000,
        seconds=1_000_000 / rate,
        cpu_seconds=None if query == "q18" else 4.567,
        events_per_second=rate,
        batch_ms_p50=1234.4,
        batch_ms_p95=2000.6,
        state_reads=123_456,
        store_reads=100_000,
        read_batches=42,
        cache_hits=999_600,
        state_bytes=3 << 20,
        state_entries_estimate=7,
        worker_peak_rss_bytes=100 << 20,
        expected_rows=5,
        changelog_rows=6,
        checked=not problems,
        problems=problems,
    )


RESULTS = [
    result("q4", "sync", 200_000),
    result("q4", "async", 300_000),
    result("q18", "async", 9.0, ("bad",)),
]


def text_of(results: list[QueryResult], width: int = 80) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - recorded, not written
    console.print(results_table(results))
    console.file.close()
    return console.export_text()


def test_the_table_sets_sync_over_async_in_80_characters() -> None:
    lines = [line.split() for line in text_of(RESULTS).splitlines()]
    same = ["1,234", "2,001", "123k", "42", "1M", "3.0"]
    assert ["q4", "sync", "200k", "4.57", *same, "right", "1.50x"] in lines
    assert ["async", "300k", "4.57", *same, "right"] in lines
    assert ["q18", "async", "9", *same, "WRONG"] in lines
    widest = [result("window_rank", "sync", 9_990_000), result("window_rank", "async", 1_000_000)]
    assert "…" not in text_of(widest)


def test_json_keeps_every_figure(tmp_path: Path) -> None:
    write_json(RESULTS, tmp_path / "new" / "nexmark.json", events=1_000_000)
    assert read_json(tmp_path / "new" / "nexmark.json") == RESULTS


def test_the_picture_is_a_png_of_readable_size(tmp_path: Path) -> None:
    write_plot(RESULTS, tmp_path / "new" / "nexmark.png")
    data = (tmp_path / "new" / "nexmark.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(data[16:20]) >= 1000


@pytest.fixture(autouse=True)
def temporary_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the command line makes its folders, so that those of wrong results go with the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def invoke(
    monkeypatch: pytest.MonkeyPatch, results: list[QueryResult], *options: str
) -> tuple[int, str, str]:
    seen = ""

    def run(queries: str, enabled: command_line.Enabled, settings: object, repeat: int) -> list[QueryResult]:
        nonlocal seen
        seen = f"{queries} {enabled.modes} {settings} repeat={repeat}"
        return results

    monkeypatch.setattr(command_line, "_run", run)
    monkeypatch.setattr(command_line, "console", Console(width=200))
    outcome = CliRunner().invoke(app, ["nexmark", *options])
    return outcome.exit_code, outcome.output, seen


def test_the_command_line_takes_the_options_as_documented(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = [
        "--queries",
        "q4,q18",
        "--events",
        "1000000",
        "--async-state.enabled",
        "both",
        "--output",
        str(tmp_path),
    ]
    code, _, seen = invoke(monkeypatch, RESULTS[:2], *options)
    assert code == 0
    assert seen.startswith("q4,q18 (False, True)")
    assert "events=1000000, micro_batch_events=100000, cores=2, seed=0" in seen
    assert seen.endswith("repeat=1")
    assert invoke(monkeypatch, RESULTS[:2], "--repeat", "3")[2].endswith("repeat=3")
    assert (tmp_path / "nexmark.json").exists()
    assert (tmp_path / "nexmark.png").exists()
    for value, modes in (("true", "(True,)"), ("false", "(False,)")):
        assert modes in invoke(monkeypatch, RESULTS[:2], "--async-state.enabled", value)[2]


class _Runs:
    """A runner whose runs take a second longer each time."""

    def __init__(self, wrong: int = -1) -> None:
        self.micro_batches = 1
        self.modes: list[bool] = []
        self._wrong = wrong

    def warm_up(self, query: str, async_enabled: bool) -> None:
        """Nothing to warm."""

    def run(self, query: str, async_enabled: bool, on_batch: Callable[[int], None]) -> QueryResult:
        self.modes.append(async_enabled)
        number = len(self.modes)
        problems = ("bad",) if number == self._wrong else ()
        return result(query, "async" if async_enabled else "sync", 1_000_000 / number, problems)


def _shown(runner: _Runs) -> list[QueryResult]:
    with Progress(TextColumn("{task.fields[outcome]}"), console=Console(quiet=True)) as bars:
        return command_line._run_modes(runner, bars, "q4", (False, True), 3)  # type: ignore[arg-type]


def test_modes_take_turns_and_the_median_run_is_shown() -> None:
    runner = _Runs()
    results = _shown(runner)
    assert runner.modes == [False, True, True, False, False, True]
    assert [run.seconds for run in results] == [4.0, 3.0]


def test_a_wrong_run_is_shown_before_all_others() -> None:
    assert [run.checked for run in _shown(_Runs(wrong=6))] == [True, False]


def test_a_wrong_result_is_told_plainly_fails_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, temporary_folders: Path
) -> None:
    code, output, _ = invoke(monkeypatch, RESULTS[:2])
    assert (code, list(temporary_folders.iterdir())) == (0, [])
    code, output, _ = invoke(monkeypatch, RESULTS)
    assert code == 1
    (kept,) = temporary_folders.iterdir()
    assert str(kept) in output
    assert "q18 async: the result differs from DuckDB's on the same events:\n  bad" in output


def test_an_unknown_query_stops_before_spark_starts(temporary_folders: Path) -> None:
    outcome = CliRunner().invoke(app, ["nexmark", "--queries", "q4,q99"])
    assert outcome.exit_code == 2
    assert list(temporary_folders.iterdir()) == []
    assert re.search(r"ConfigurationError: Nexmark: no query .*q99", outcome.output)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_descendants_finds_grandchildren() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert len(descendants(child.pid)) == 1
        assert child.pid in descendants(os.getpid())
        child.communicate(b"\n")
