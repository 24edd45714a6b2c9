"""The benchmark of checkpoints runs, tiny, and measures what it says; no time is checked."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from asyncstate.storage import Checkpoint, LocalFiles
from asyncstate.storage.manifest import batch_of
from bench.__main__ import app
from bench.checkpoints import command as recoveries
from bench.checkpoints.command import (
    TOTALS,
    Recovered,
    both_jobs,
    checkpoint_bytes,
    commit_row,
    has_snapshot,
    parquet_rows,
    recover,
)
from bench.checkpoints.driven import SNAPSHOT_INTERVAL, settings, without_checkpoint
from bench.frame import CaseError, Report, Row, WrongResult, isolated
from bench.job import Job, batches, count_and_sum
from bench.processor_time import Spent


@pytest.mark.long
@pytest.mark.timeout(300)
def test_checkpoints_run_tiny_and_draw_a_picture(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["checkpoints", "--tiny", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    results = msgspec.json.decode((tmp_path / "checkpoints.json").read_bytes())["results"]
    rows = msgspec.convert(results, list[Row])
    commits, recovered, sizes = rows[:2], rows[2:4], rows[4:]
    assert [(row.name, row.facts["changed_keys"]) for row in commits] == [("sync", 500), ("async", 500)]
    assert all(row.facts["snapshots"] == 1 and row.facts["without_s"] > 0 for row in commits)
    assert [row.name for row in recovered] == ["files linked", "files copied"]
    assert all(row.facts["deltas"] == 20 and row.facts["open_s"] > 0 for row in recovered)
    assert [(row.group, row.facts["changed_keys"], row.facts["state_keys"]) for row in sizes] == [
        ("changed keys", 10, 1_000),
        ("changed keys", 100, 1_000),
        ("state", 100, 1_000),
        ("state", 100, 4_000),
        ("long run", 100, 500),
    ]
    tables = ("Commits", "Recovery of 3,000 keys", "Bytes in the checkpoint")
    assert all(name in done.output for name in tables)
    assert all(len(line) <= 80 for line in done.output.splitlines() if not line.startswith("written"))
    assert (tmp_path / "checkpoints.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_checkpoint_the_state_is_kept_and_nothing_else_is_written(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    job = Job(tmp_path, count_and_sum(), settings(tmp_path, snapshot_interval=1))
    job.on_output = lambda out: rows.extend(out.to_pylist())
    keys = np.arange(5, dtype=np.int64)
    with without_checkpoint():
        for _ in range(3):
            rows.clear()
            job.run(batches(keys))
    assert [row["n"] for row in rows if row["row_kind"] == "+U"] == [3] * 5
    assert not (tmp_path / "checkpoint").exists()
    assert job.base is not None
    partition = job.base.partition(0)
    assert partition.snapshot is None
    assert [delta.file.checksum for delta in partition.deltas] == ["", "", ""]


def test_bytes_are_all_that_is_written(tmp_path: Path) -> None:
    result = checkpoint_bytes(tmp_path, 200, 50, 20, 1)
    assert (result["micro_batches"], result["snapshots"]) == (20, 2)
    checkpoint = LocalFiles(tmp_path / "checkpoint")
    # Micro-batch 0 fills, 10 takes the snapshot that comes before those that count, and retention keeps ten.
    left = {name: batch_of(name) or 0 for name in checkpoint.list("state/")}
    deltas = sum(
        checkpoint.size_bytes(name) or 0 for name, batch in left.items() if batch > 20 and "/delta-" in name
    )
    last = sum(
        checkpoint.size_bytes(name) or 0 for name, batch in left.items() if batch == 30 and "/snap/" in name
    )
    assert result["delta_bytes"] * 20 == pytest.approx(
        2 * deltas, rel=0.05
    )  # ten of them are there, all about as large
    assert 0 < last < result["snapshot_bytes"] * 20
    manifest = checkpoint.size_bytes(checkpoint.list("manifests/")[-1]) or 0
    assert 0 < result["driver_bytes"] < 1.5 * manifest


def test_the_mean_over_a_snapshot_interval_weighs_both_kinds() -> None:
    overs = (0.02, 0.04, 0.06)
    with_it = [*(Spent(1.0 + over, 2.0 + over) for over in overs), Spent(3.0, 3.0)]
    without = [*(Spent(1.0, 2.0) for _ in overs), Spent(2.0, 2.0)]
    snapshots = [False, False, False, True]
    facts = commit_row("x", {"with": with_it, "without": without}, snapshots, {}).facts
    expected = {"cpu": 0.02, "without_cpu_s": 2.0, "plain_cpu_s": 2.04, "plain": 0.04, "snapshot": 0.5}
    expected["every"] = (9 * 0.04 + 0.5) / 10
    assert {name: facts[name] for name in expected} == pytest.approx(expected)


def test_a_recovery_that_gives_other_output_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "recover", lambda *_: Recovered(1.0, 1.0, "other"))
    with pytest.raises(WrongResult, match="files linked: the recovered state gives another output"):
        list(recoveries.recovery(Report("checkpoints", folder=tmp_path, tiny=True), 100, 10, 1, 1))


def test_a_recovery_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"ended with 1(.|\n)*No such file(.|\n)*base\.json"):
        isolated(recover, str(tmp_path), (1, 1, 1), False, False)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_spark_one_job_has_a_checkpoint_and_one_has_none(spark: SparkSession, tmp_path: Path) -> None:
    sides = both_jobs(spark, tmp_path)
    for number, rows_out in enumerate((20, 40, 40)):  # +I, then -U and +U
        rows = parquet_rows(spark, tmp_path, np.arange(20, dtype=np.int64))
        for side in sides.values():
            side(rows)
            assert side.metrics(TOTALS)["rows_out"] == rows_out
        assert not has_snapshot(tmp_path, number)
    assert Checkpoint(LocalFiles(tmp_path / "with" / "checkpoint")).versions() == [0, 1, 2]
    for _ in range(3, SNAPSHOT_INTERVAL + 2):
        sides["with"](parquet_rows(spark, tmp_path, np.arange(20, dtype=np.int64)))
    assert sum(has_snapshot(tmp_path, number) for number in range(SNAPSHOT_INTERVAL + 2)) == 1
    assert not (tmp_path / "without" / "checkpoint").exists()
    assert list((tmp_path / "without" / "local").rglob("*.sst"))
