"""Checkpoints that were written by an older version open, and go on as if nothing had happened."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.operators.stored import CASES, begin, go_on, harness

ARCHIVES = sorted((Path(__file__).parent / "stored_checkpoints").glob("*.tar.gz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
@pytest.mark.parametrize("name", CASES)
def test_an_old_checkpoint_goes_on(archive: Path, name: str, tmp_path: Path, async_enabled: bool) -> None:
    with tarfile.open(archive) as stored:
        stored.extractall(tmp_path, filter="data")
    case = CASES[name]
    with harness(case, tmp_path / "new", async_enabled=async_enabled) as running:
        begin(case, running)
        before = running.state_entries()
        expected, entries = go_on(case, running), running.state_entries()
    assert before
    with harness(case, tmp_path / name, async_enabled=async_enabled) as running:
        assert running.state_entries() == before
        assert go_on(case, running) == expected
        assert running.state_entries() == entries
