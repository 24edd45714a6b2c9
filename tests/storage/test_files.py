"""LocalFiles: whole or not at all, exclusive creation, names, what interrupted writers leave."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.storage import LocalFiles


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "checkpoint")


def test_bytes_are_replaced(files: LocalFiles) -> None:
    files.put_bytes("a/b", b"1")
    files.put_bytes("a/b", b"22")
    assert (files.get_bytes("a/b"), files.size_bytes("a/b")) == (b"22", 2)


def test_file_goes_in_and_out_and_stays(files: LocalFiles, tmp_path: Path) -> None:
    local = tmp_path / "x"
    local.write_bytes(b"content")
    files.put_file(local, "state/x")
    files.get_file("state/x", tmp_path / "y")
    assert local.read_bytes() == (tmp_path / "y").read_bytes() == files.get_bytes("state/x") == b"content"


def test_without_hard_links_files_are_copied(
    files: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    local = tmp_path / "x"
    local.write_bytes(b"content")
    files.put_file(local, "x")
    files.get_file("x", tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == b"content"
    assert os.stat(tmp_path / "y").st_nlink == 1


def test_exclusive_creation_has_one_winner(files: LocalFiles) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def create(number: int) -> None:
        start.wait()
        if files.create_exclusive("one", b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert files.get_bytes("one") == b"%d" % won[0]


def test_list_by_prefix_skips_temporaries(files: LocalFiles) -> None:
    for name in ("b/2", "a/1", "b/10/x", "bc", "b/1"):
        files.put_bytes(name, b"")
    (files.root / "b" / ".tmp-left").write_bytes(b"half")
    assert files.list("") == ["a/1", "b/1", "b/10/x", "b/2", "bc"]
    assert files.list("b/1") == ["b/1", "b/10/x"]
    assert files.list("nothing/") == []


def test_delete_allows_absent(files: LocalFiles) -> None:
    files.put_bytes("a/b", b"")
    files.delete("a/b")
    files.delete("a/b")
    assert not files.exists("a/b")


def test_sweep_removes_old_leftovers_only(files: LocalFiles) -> None:
    files.put_bytes("a/kept", b"")
    (files.root / "a" / ".tmp-left").write_bytes(b"half")
    (files.root / "empty").mkdir()
    assert files.sweep(older_than_seconds=3600) == 0
    assert files.sweep(older_than_seconds=-1) == 2
    assert sorted(path.name for path in files.root.rglob("*")) == ["a", "kept"]


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", ""])
def test_names_stay_inside(files: LocalFiles, name: str) -> None:
    with pytest.raises(CheckpointError, match="not a name"):
        files.put_bytes(name, b"")


def test_missing_file_is_named(files: LocalFiles, tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorruptionError, match="state/gone is missing"):
        files.get_bytes("state/gone")
    with pytest.raises(CheckpointCorruptionError, match="state/gone is missing"):
        files.get_file("state/gone", tmp_path / "x")


def test_failed_write_leaves_nothing_and_says_what_to_do(
    files: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put_bytes("a", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"could not write a .*No space.*nothing was committed"):
        files.put_bytes("a", b"new")
    monkeypatch.undo()
    assert files.get_bytes("a") == b"old"
    assert [path.name for path in files.root.iterdir()] == ["a"]
