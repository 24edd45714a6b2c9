"""The benchmark of growing states runs, tiny, and gives what it measured; no figure is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.growth import Growth


@pytest.mark.long
def test_it_runs_tiny(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["growth", "--tiny", "--folder", str(tmp_path), "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "growth.json").read_bytes())["results"]
    (result,) = msgspec.convert(results, list[Growth])
    assert result.keys == 2_000
    assert len(result.seconds) == len(result.processor_seconds) == len(result.waited_seconds) == 3
    assert 0 < result.rss_bytes <= result.rss_bytes_peak
    assert result.state_bytes > 0
