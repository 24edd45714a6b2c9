"""The benchmark of what is spared runs, tiny, and says what it compares; no figure is checked."""

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
def test_it_runs_tiny(tmp_path: Path) -> None:
    """In a process of its own: its Spark session is not that of the tests."""
    command = [sys.executable, "-m", "bench", "sparing", "--tiny", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = msgspec.json.decode((tmp_path / "sparing.json").read_bytes())["results"]
    assert [result["case"] for result in results] == ["windows", "chain", "batch"]
    assert all(result["ratio"] > 0 and result["title"] in done.stdout for result in results)


def test_an_unknown_case_is_refused() -> None:
    done = CliRunner().invoke(app, ["sparing", "--cases", "batch,p77"])
    assert done.exit_code == 2
    assert "p77" in done.output
