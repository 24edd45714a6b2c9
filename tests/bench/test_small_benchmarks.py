"""The benchmarks of one operator without Spark run, tiny, and have a row a case; no figure is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from bench import compare
from bench.__main__ import app
from bench.frame import Row
from bench.large_states import batch_costs
from bench.modes import CASES, interval_of_median
from bench.processor_time import Spent


def rows_of(tmp_path: Path, bench: str, *options: str) -> list[Row]:
    """The rows that a good run has written, all of which its table shows."""
    done = CliRunner().invoke(app, [bench, *options, "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = msgspec.convert(
        msgspec.json.decode((tmp_path / f"{bench}.json").read_bytes())["results"], list[Row]
    )
    assert all(row.name in done.output and row.group in done.output for row in rows)
    assert all(len(line) <= 80 for line in done.output.splitlines() if not line.startswith("written")), (
        done.output
    )
    return rows


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_micro_benchmarks_run_tiny(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "micro", "--tiny")
    assert len({row.title for row in rows}) == len(rows) == 55
    assert {row.title for row in rows} == set(compare.read_baseline("micro").figures)
    for row in rows:
        assert list(row.figures) == [row.title]
        clocks = ("floor_us", "floor_cpu_us", "ours_us", "ours_cpu_us")
        assert all(row.facts[clock] > 0 for clock in clocks)


def test_aggregates_run_tiny(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "aggregates", "--tiny")
    assert len({row.title for row in rows}) == len(rows) == 2 * (6 + 4)
    assert all(row.facts["cost"] > 0 and row.facts["ratio"] > 0 for row in rows)


def test_lookup_runs_tiny(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "lookup", "--keys", "5", "--latency", "1", "--rounds", "1")
    assert [row.name for row in rows] == ["sync", "async"]
    assert all(row.facts["ratio"] > 0 for row in rows)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_built_in_operator_runs_in_both_modes(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "modes", "--tiny")
    assert [row.name for row in rows] == list(CASES)
    assert all(row.facts["ratio"] > 0 and row.facts["sync"] > 0 and row.facts["async"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("count", "rank"),
    # the critical value of the sign test (two-sided, 5%), as tables have it, and one
    [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (60, 22)],
)
def test_the_interval_of_a_median_goes_by_ranks(count: int, rank: int) -> None:
    values = [float(number) for number in range(1, count + 1)]
    assert interval_of_median(values[::-1]) == (rank, count + 1 - rank)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_backfill_benchmark_finds_the_same_state_with_and_without_a_bound(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "backfill", "--tiny")
    assert [row.group for row in rows[::2]] == [
        f"{grain} grain, {mode}" for grain in ("bundle", "record") for mode in ("sync", "async")
    ]
    for unbounded, bounded in zip(rows[::2], rows[1::2], strict=True):
        assert (unbounded.facts["spills"], unbounded.facts["ratio"]) == (0, 1.0)
        assert bounded.facts["spills"] > 0
        assert bounded.facts["write_cache_bytes"] < unbounded.facts["write_cache_bytes"]


@pytest.mark.long
def test_the_caches_of_a_growing_state_have_room_for_the_share_that_was_asked_for(tmp_path: Path) -> None:
    peaks = []
    for share in ("0.1", "1.0"):
        size = ("--keys", "60000", "--rows", "5000", "--micro-batches", "2", "--cache-share", share)
        (row,) = rows_of(tmp_path, "growth", *size)
        assert len(row.facts["seconds"]) == len(row.facts["waited_seconds"]) == 2
        assert 0 < row.facts["rss_bytes"] <= row.facts["rss_bytes_peak"]
        assert row.facts["state_bytes"] > 0
        peaks.append(row.facts["parts"]["column_cache_bytes_peak"])
    assert peaks[0] < peaks[1] / 2


def test_what_a_row_costs_as_a_state_grows_is_of_the_median_micro_batch() -> None:
    found = batch_costs([Spent(0.002, 0.001), Spent(9.0, 0.002), Spent(0.0, 0.003)], 1_000)
    assert (found["wall_us"], found["cpu_us"]) == (2.0, 2.0)
    assert (found["wall_max"], found["cpu_max"], found["cpu_mean"]) == (4500.0, 1.5, 1.0)
