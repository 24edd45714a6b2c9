"""The two-phase benchmark runs, tiny, and says what it compares; no figure is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_two_phase_runs_tiny(tmp_path: Path) -> None:
    """In a process of its own: its Spark session is not that of the tests."""
    command = [sys.executable, "-m", "bench", "two-phase", "--tiny", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "only what the benchmark itself says"
    results = msgspec.json.decode((tmp_path / "two-phase.json").read_bytes())["results"]
    assert [result["name"] for result in results] == ["few", "windows"]
    for result in results:
        facts = result["facts"]
        assert 0 < facts["rows_operator"] <= facts["rows_exchanged"] <= facts["rows"] == 2_000
        assert facts["two_ratio"] > 0
        assert facts["auto_local"] == 0  # so few rows are left to one phase
        assert result["name"] in done.stdout


def test_an_unknown_case_is_refused() -> None:
    done = CliRunner().invoke(app, ["two-phase", "--cases", "few,p77"])
    assert done.exit_code == 2
    assert "p77" in done.output
