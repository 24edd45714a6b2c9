"""The micro-benchmarks run, tiny, and say what they compare; their figures are nobody's business here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app, console


@pytest.mark.timeout(300)
def test_the_micro_benchmarks_run_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", 200)  # wide enough for a name to stand in one line
    done = CliRunner().invoke(app, ["micro", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    written = msgspec.json.decode((tmp_path / "micro.json").read_bytes())
    names = [result["name"] for result in written["results"]]
    assert len(names) == len(set(names)) == 55
    for clock in ("us", "cpu_us"):
        assert all(
            result[f"{side}_{clock}"] > 0 for result in written["results"] for side in ("ours", "floor")
        )
    assert all(name in done.output for name in names)
