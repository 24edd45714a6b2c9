"""The benchmark of aggregate functions runs, tiny, and has a line a way and mode; no figure is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from bench.__main__ import app


def test_aggregates_run_tiny(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["aggregates", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "aggregates.json").read_bytes())["results"]
    assert len({result["name"] for result in results}) == len(results) == 2 * (6 + 4)
    for result in results:
        assert result["wall_us"] > 0
        assert result["ratio"] > 0
        assert result["name"].removesuffix(", sync").removesuffix(", async") in done.stdout
