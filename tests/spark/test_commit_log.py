"""Which places a job's checkpoint may have, and which micro-batches may run over it. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncstate.config import resolve
from asyncstate.driver.commit_log import CommitLog
from asyncstate.errors import CheckpointError, ConfigurationError, JobError
from asyncstate.runtime import SourceTimes


def _ledger(place: str, job: str = "job", groups: int = 128) -> CommitLog:
    options = {"async-state.checkpoint-dir": place, "async-state.max-parallelism": groups}
    return CommitLog(resolve(options, {}), job, 0)


@pytest.mark.parametrize("start", ["file://", "file:", "FILE://localhost"])
def test_a_file_uri_is_the_folder_it_names(tmp_path: Path, start: str) -> None:
    assert _ledger(f"{start}{tmp_path}/my%20state").folder == str(tmp_path / "my state")


def test_uris_of_no_store_are_refused_and_make_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, message in (
        ("gopher://ann:secret@host/state", r"gopher://\*\*\*@host/state.*s3://bucket/folder"),
        ("s3://key:secret@bucket/state?speed=secret", r"s3://\*\*\*@bucket/state\?speed=\*\*\*.*'speed'"),
        ("file://host/state", "on the host 'host'"),
    ):
        with pytest.raises(ConfigurationError, match=message) as raised:
            _ledger(place)
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is None
    assert list(tmp_path.iterdir()) == []


def run(ledger: CommitLog, batch_id: int, final: bool = False) -> None:
    """Commit a micro-batch without operators."""
    base = ledger.base_of(batch_id)
    ledger.commit(batch_id, base, 0, 0, SourceTimes({}, {}, []), {}, final)


def test_a_batch_that_cannot_run_does_not_fence_off_the_driver_that_can(tmp_path: Path) -> None:
    """As of a query that was started by mistake, with another checkpoint of Spark's."""
    place = str(tmp_path)
    ledger = _ledger(place)
    run(ledger, 0)
    for wrong in (2, 5):
        with pytest.raises(JobError, match=f"Spark runs batch {wrong}, but the checkpoint .* is at batch 0"):
            _ledger(place).base_of(wrong)
    run(ledger, 1)
    with pytest.raises(JobError, match="Spark runs batch 0, but the checkpoint .* is at batch 1"):
        _ledger(place).base_of(0)
    run(ledger, 2, final=True)
    for number in (2, 3):
        with pytest.raises(CheckpointError, match="was finished at batch 2"):
            _ledger(place).base_of(number)


def test_a_checkpoint_that_another_job_has_begun_meanwhile_is_refused(tmp_path: Path) -> None:
    """Its first micro-batch would be replaced, as if it were repeated."""
    place = str(tmp_path)
    mine, other, more_groups = _ledger(place), _ledger(place, "other"), _ledger(place, groups=256)
    run(mine, 0)
    with pytest.raises(CheckpointError, match="belongs to job 'job', not to 'other'"):
        other.base_of(0)
    with pytest.raises(ConfigurationError, match="has 128 key groups, but .* is 256"):
        more_groups.base_of(0)
    run(mine, 1)
