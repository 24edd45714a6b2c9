"""The backfill benchmark runs, tiny: it finds the same state with and without a bound, and says what was spilled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_backfill_benchmark_runs_tiny(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["backfill", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "backfill.json").read_bytes())["results"]
    assert [(r["grain"], r["mode"]) for r in results[::2]] == [
        (grain, mode) for grain in ("bundle", "record") for mode in ("sync", "async")
    ]
    for unbounded, bounded in zip(results[::2], results[1::2], strict=True):
        assert (unbounded["spills"], unbounded["ratio"]) == (0, 1.0)
        assert bounded["spills"] > 0
        assert bounded["write_cache_bytes"] < unbounded["write_cache_bytes"]
