"""Which places a job's checkpoint may have. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncstate.config import resolve
from asyncstate.errors import ConfigurationError
from asyncstate.spark.ledger import Ledger


def _ledger(place: str) -> Ledger:
    return Ledger(resolve({"async-state.checkpoint-dir": place}, {}), "job", 0)


def test_a_file_uri_is_the_folder_it_names(tmp_path: Path) -> None:
    assert _ledger(f"file://{tmp_path}/state").folder == str(tmp_path / "state")


def test_other_uris_are_refused_and_make_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="s3://bucket/state.*give a path"):
        _ledger("s3://bucket/state")
    assert list(tmp_path.iterdir()) == []
