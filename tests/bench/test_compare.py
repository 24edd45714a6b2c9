"""``bench compare``: which changes count, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from bench import compare
from bench.__main__ import app
from bench.processor_time import spent_seconds, tree_seconds


def _micro(**ratios: tuple[float, float, float]) -> dict[str, Any]:
    """Costs: less is better."""
    return {
        "machine": "m",
        "results": [
            {"name": name, "figures": {name: {"value": value, "low": low, "high": high}}}
            for name, (value, low, high) in ratios.items()
        ],
    }


def _rate(value: float, low: float, high: float, absolute: bool = False) -> dict[str, Any]:
    figure = {"value": value, "low": low, "high": high, "rate": True, "absolute": absolute}
    return {"results": [{"name": "spark", "work": "a", "figures": {"a: ours by spark": figure}}]}


def _run(tmp_path: Path, before: object, after: object, *more: str) -> tuple[int, str]:
    paths = [tmp_path / "before.json", tmp_path / "after.json"]
    for path, document in zip(paths, (before, after), strict=True):
        path.write_bytes(document if isinstance(document, bytes) else msgspec.json.encode(document))
    done = CliRunner().invoke(app, ["compare", *map(str, paths), *more], env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("after", "code", "said"),
    [
        ((2.0, 1.9, 2.1), 1, "1 worse, 0 better"),  # a cost: more is worse
        ((1.2, 1.1, 1.3), 0, "0 worse, 1 better"),
        ((1.55, 1.51, 1.6), 0, "0 worse, 0 better"),  # apart, but within the threshold
        ((2.0, 1.3, 2.9), 0, "0 worse, 0 better"),  # the spreads overlap
    ],
)
def test_a_cost_counts_if_it_is_apart_and_beyond_the_threshold(
    after: tuple[float, float, float], code: int, said: str, tmp_path: Path
) -> None:
    exit_code, output = _run(tmp_path, _micro(x=(1.5, 1.45, 1.5)), _micro(x=after))
    assert (exit_code, said in output) == (code, True), output


def test_a_rate_is_worse_when_it_falls(tmp_path: Path) -> None:
    assert _run(tmp_path, _rate(3.0, 2.9, 3.1), _rate(2.0, 1.9, 2.1))[0] == 1
    assert _run(tmp_path, _rate(2.0, 1.9, 2.1), _rate(3.0, 2.9, 3.1))[0] == 0


def test_figures_that_come_and_go_are_shown_and_count_as_nothing(tmp_path: Path) -> None:
    code, output = _run(tmp_path, _micro(a=(1, 1, 1), b=(1, 1, 1)), _micro(a=(1, 1, 1), c=(1, 1, 1)))
    assert code == 0
    assert "gone" in output
    assert "new" in output


def test_rates_of_other_machines_are_not_compared(tmp_path: Path) -> None:
    fast, slow = (_rate(rate, rate, rate, absolute=True) for rate in (200_000, 100_000))
    code, output = _run(tmp_path, fast, slow)
    assert (code, "--same-machine" in output) == (2, True)
    assert _run(tmp_path, fast, slow, "--same-machine")[0] == 1


@pytest.mark.parametrize("content", [b"no json", b"[]", b"{}"])
def test_what_is_no_result_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    code, output = _run(tmp_path, _micro(x=(1, 1, 1)), content)
    assert code == 2
    assert "after.json" in output
    assert "--output" in output


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of the test's own for the baseline."""
    monkeypatch.setattr(compare, "FOLDER", tmp_path / "kept")
    return tmp_path / "kept"


def _results(folder: Path, **documents: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for benchmark, document in documents.items():
        (folder / f"{benchmark}.json").write_bytes(msgspec.json.encode(document))
    return folder


def _against_baseline(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["compare", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def _paradigms(speedup: float) -> dict[str, Any]:
    return _rate(speedup, speedup - 0.01, speedup + 0.01)


def test_results_are_held_against_the_baseline_of_their_benchmark(tmp_path: Path, kept: Path) -> None:
    first = _results(tmp_path / "first", micro=_micro(x=(1.0, 0.98, 1.02)), paradigms=_paradigms(1.0))
    assert _against_baseline("--results", str(first), "--update")[0] == 0
    assert sorted(path.name for path in kept.iterdir()) == ["micro.json", "paradigms.json"]
    code, output = _against_baseline("--results", str(first))
    assert (code, "2 figures: 0 worse, 0 better" in output) == (0, True), output
    slower = _results(tmp_path / "slower", paradigms=_paradigms(0.8))
    code, output = _against_baseline("--results", str(slower))
    assert (code, "1 figures: 1 worse, 0 better" in output) == (1, True), output
    assert compare.read_baseline("paradigms").commit in output
    assert _against_baseline("--results", str(slower), "--threshold", "0.3")[0] == 0


def test_an_update_replaces_what_was_measured_and_nothing_else(tmp_path: Path, kept: Path) -> None:
    first = _results(tmp_path / "first", micro=_micro(x=(1, 1, 1), gone=(1, 1, 1)), paradigms=_paradigms(1.0))
    _against_baseline("--results", str(first), "--update")
    paradigms = (kept / "paradigms.json").read_bytes()
    _against_baseline("--results", str(_results(tmp_path / "second", micro=_micro(x=(2, 2, 2)))), "--update")
    figures = compare.read_baseline("micro").figures
    assert {name: figure.value for name, figure in figures.items()} == {"x": 2.0}
    assert (kept / "paradigms.json").read_bytes() == paradigms


def test_without_a_baseline_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    monkeypatch.setattr(compare, "_measured", lambda *_: pytest.fail("minutes for nothing"))
    code, output = _against_baseline()
    assert (code, "--update" in output) == (2, True)


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "micro.json"), ('{"figures": {}}', "commit"), ('{"commit": 1}', "commit")],
)
def test_a_baseline_that_cannot_be_read_is_named(content: str, said: str, tmp_path: Path, kept: Path) -> None:
    kept.mkdir()
    (kept / "micro.json").write_text(content)
    results = _results(tmp_path / "results", micro=_micro(x=(1, 1, 1)))
    code, output = _against_baseline("--results", str(results))
    assert (code, said in output, "version control" in output) == (2, True, True), output


def test_a_folder_without_results_and_half_a_pair_are_refused(tmp_path: Path, kept: Path) -> None:
    code, output = _against_baseline("--results", str(tmp_path))
    assert (code, "micro.json" in output) == (2, True)
    code, output = _against_baseline(str(tmp_path / "micro.json"))
    assert (code, "give two files" in output) == (2, True)


def test_without_results_the_benchmarks_run_and_one_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    monkeypatch.setattr(compare, "MEASURED", {"micro": ("--state-keys", "1")})  # refused: too few
    code, output = _against_baseline("--update")
    assert (code, "bench micro ended with 2" in output, "state-keys" in output) == (2, True, True), output
    assert not kept.exists()


def test_the_stored_baseline_can_be_read() -> None:
    for path in compare.FOLDER.glob("*.json"):
        assert path.stem in compare.MEASURED
        figures = compare.read_baseline(path.stem).figures
        assert figures
        assert all(0 < each.low <= each.value <= each.high for each in figures.values())


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processor time is read from /proc")
def test_processor_time_counts_children_that_run_and_that_have_ended() -> None:
    before = tree_seconds(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    after = tree_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert after - before >= 0.25
    waits = "print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", burn + "\n" + waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running = tree_seconds(os.getpid())
        child.communicate(b"\n")
    assert running is not None
    assert running - after >= 0.25


def test_a_process_that_has_ended_gives_no_time_back() -> None:
    before = {1: 5.0, 2: 100.0}
    assert spent_seconds(before, {1: 6.5, 3: 0.5}) == 2.0  # 2 has ended, 3 is new
    assert spent_seconds(before, None) is spent_seconds(None, before) is None
