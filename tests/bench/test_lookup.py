"""The benchmark of lookups runs, tiny; no figure is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
from typer.testing import CliRunner

from bench.__main__ import app


def test_lookup_runs_tiny(tmp_path: Path) -> None:
    options = ["--keys", "5", "--latency", "1", "--rounds", "1", "--output", str(tmp_path)]
    done = CliRunner().invoke(app, ["lookup", *options])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "lookup.json").read_bytes())["results"]
    assert [result["name"] for result in results] == ["sync", "async"]
    assert all(result["ratio"] > 0 for result in results)
