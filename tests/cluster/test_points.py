"""The points at which faults happen are those of the product, so that the kills cannot go past them unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from asyncstate.storage import LocalFiles
from tests.cluster.points import _writes


def test_each_write_of_the_checkpoint_reaches_its_points(tmp_path: Path) -> None:
    files, told = LocalFiles(tmp_path), list[tuple[str, str]]()
    with _writes(lambda when, name: told.append((when, name))):
        files.put_bytes("manifests/1.json", b"one")
        (tmp_path / "local").write_bytes(b"two")
        files.put_file(tmp_path / "local", "state/delta-2")
    files.put_bytes("manifests/2.json", b"not told of")
    assert told == [
        ("before", "manifests/1.json"),
        ("after", "manifests/1.json"),
        ("before", "state/delta-2"),
        ("after", "state/delta-2"),
    ]


def test_a_fault_there_keeps_the_file_away(tmp_path: Path) -> None:
    def full(when: str, _: str) -> None:
        if when == "after":
            raise ZeroDivisionError

    files = LocalFiles(tmp_path)
    with _writes(full), pytest.raises(ZeroDivisionError):
        files.put_bytes("manifests/1.json", b"one")
    assert files.list("manifests/") == ["manifests/1.json"]  # its write had ended
