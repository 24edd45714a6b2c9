"""The benchmark of growing states runs, tiny, and gives what it measured; no figure is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.growth import Growth, row_costs


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
    assert result.parts["column_cache_bytes_peak"] > 0


@pytest.mark.long
def test_the_caches_have_room_for_the_share_that_was_asked_for(tmp_path: Path) -> None:
    peaks = []
    for share in ("0.1", "1.0"):
        size = ("--keys", "60000", "--rows", "5000", "--micro-batches", "2", "--cache-share", share)
        done = CliRunner().invoke(app, ["growth", *size, "--output", str(tmp_path)])
        assert done.exit_code == 0, done.output
        (result,) = msgspec.json.decode((tmp_path / "growth.json").read_bytes())["results"]
        assert result["cache_share"] == float(share)
        peaks.append(result["parts"]["column_cache_bytes_peak"])
    assert peaks[0] < peaks[1] / 2


def test_what_a_row_costs_stands_beside_the_first_size() -> None:
    def grown(keys: int, seconds: float) -> Growth:
        return Growth(keys, 1_000, [seconds, 9.0, 0.0], [0.001, 0.002, 0.003], [0.0], 1, 1, 1, {})

    first, second = row_costs([grown(10, 0.002), grown(2_000, 0.003)])
    assert first == "a row at 10 keys: 2.00 us, 1.00x; of processors 2.00 us, 1.00x"
    assert second.startswith("a row at 2,000 keys: 3.00 us, 1.50x; of processors 2.00 us, 1.00x")
