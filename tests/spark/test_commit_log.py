"""Which places a job's checkpoint may have. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncstate.config import resolve
from asyncstate.driver.commit_log import CommitLog
from asyncstate.errors import ConfigurationError


def _ledger(place: str) -> CommitLog:
    return CommitLog(resolve({"async-state.checkpoint-dir": place}, {}), "job", 0)


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
