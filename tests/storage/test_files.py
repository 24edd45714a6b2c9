"""Checkpoint files in every kind of place: whole or not at all, names, lists; what a folder does besides."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from asyncstate.errors import CheckpointCorruptionError, CheckpointError
from asyncstate.storage import CheckpointFiles, LocalFiles, checkpoint_files


@pytest.fixture
def files(place: str) -> CheckpointFiles:
    return checkpoint_files(place)


@pytest.fixture
def folder(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "checkpoint")


def test_bytes_are_replaced(files: CheckpointFiles) -> None:
    files.put_bytes("a/b", b"1")
    files.put_bytes("a/b", b"22")
    assert (files.get_bytes("a/b"), files.size_bytes("a/b")) == (b"22", 2)


def test_file_goes_in_and_out_and_stays(files: CheckpointFiles, tmp_path: Path) -> None:
    local = tmp_path / "x"
    local.write_bytes(b"content")
    files.put_file(local, "state/x")
    files.get_file("state/x", tmp_path / "y")
    assert local.read_bytes() == (tmp_path / "y").read_bytes() == files.get_bytes("state/x") == b"content"


@pytest.mark.parametrize("reflinks", [True, False])
def test_local_files_and_those_of_the_checkpoint_share_nothing(
    folder: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reflinks: bool
) -> None:
    """What a cleaner of temporary folders empties in place must not be the checkpoint's."""
    if not reflinks:
        monkeypatch.setattr(os, "copy_file_range", _not_supported)
    local, fetched = tmp_path / "x", tmp_path / "y"
    local.write_bytes(b"content" * 1_000)
    folder.put_file(local, "x")
    os.truncate(local, 0)
    folder.get_file("x", fetched)
    assert fetched.read_bytes() == b"content" * 1_000
    os.truncate(fetched, 0)
    assert folder.get_bytes("x") == b"content" * 1_000


def _not_supported(*_: object) -> int:
    raise OSError(errno.EXDEV, "not supported")


def test_with_its_last_file_goes_a_folder(folder: LocalFiles, tmp_path: Path) -> None:
    for name in ("state/op/0/snap/1-a/1.sst", "state/op/0/snap/1-a/2.sst", "state/op/0/snap/2-b/1.sst"):
        folder.put_bytes(name, b"x")
    folder.delete("state/op/0/snap/1-a/1.sst")
    assert folder.list("state/") == ["state/op/0/snap/1-a/2.sst", "state/op/0/snap/2-b/1.sst"]
    folder.delete("state/op/0/snap/1-a/2.sst")
    assert [path.name for path in (folder.root / "state/op/0/snap").iterdir()] == ["2-b"]
    folder.delete("state/op/0/snap/2-b/1.sst")
    assert list(folder.root.iterdir()) == []
    folder.delete("state/op/0/snap/2-b/1.sst")  # again
    assert folder.root.is_dir()


def test_a_writer_and_who_deletes_the_last_file_beside_it_meet(folder: LocalFiles) -> None:
    """Each file of the one is whole, whenever the other takes the folder away."""
    ended = threading.Event()

    def delete() -> None:
        while not ended.is_set():
            folder.put_bytes("a/b/c/other", b"x")
            folder.delete("a/b/c/other")

    deleting = threading.Thread(target=delete)
    deleting.start()
    try:
        for number in range(300):
            folder.put_bytes("a/b/c/mine", b"%d" % number)
            assert folder.get_bytes("a/b/c/mine") == b"%d" % number
            folder.delete("a/b/c/mine")
    finally:
        ended.set()
        deleting.join()


def test_a_folder_made_and_deleted_by_another_meanwhile_is_made_again(
    folder: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path.mkdir
    lost: list[Path] = []

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        """As the first call for each folder finds it if another makes it before and deletes it after."""
        if path not in lost:
            lost.append(path)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        made(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    folder.put_bytes("a/b/mine", b"x")
    assert folder.get_bytes("a/b/mine") == b"x"
    assert lost == [folder.root / "a", folder.root / "a/b"]


def test_list_by_prefix_skips_temporaries(files: CheckpointFiles) -> None:
    for name in ("b/2", "a/1", "b/10/x", "bc", "b/1", "b/.tmp-left"):
        files.put_bytes(name, b"x")
    assert files.list("") == ["a/1", "b/1", "b/10/x", "b/2", "bc"]
    assert files.list("b/1") == ["b/1", "b/10/x"]
    assert files.list("nothing/") == []


def test_a_folder_that_cannot_be_read_is_no_empty_one(folder: LocalFiles) -> None:
    """A job that takes it for empty would see no versions."""
    folder.put_bytes("manifests/1", b"x")
    (folder.root / "owners").symlink_to("owners")  # what even root cannot read
    with pytest.raises(CheckpointError, match=r"could not list owners/ in the checkpoint: .*owners"):
        folder.list("owners/")


def test_several_files_go_in_and_away(files: CheckpointFiles, tmp_path: Path) -> None:
    names = [f"state/{number}" for number in range(20)]
    for number in range(20):
        (tmp_path / f"local-{number}").write_bytes(b"%d" % number)
    files.put_files((tmp_path / f"local-{number}", f"state/{number}") for number in range(20))
    assert [files.get_bytes(name) for name in names] == [b"%d" % number for number in range(20)]
    files.delete_files([*names[5:], "state/never"])
    assert files.list("state/") == names[:5]


def test_delete_allows_absent(files: CheckpointFiles) -> None:
    files.put_bytes("a/b", b"x")
    files.delete("a/b")
    files.delete("a/b")
    assert files.size_bytes("a/b") is None


def test_sweep_removes_old_leftovers_only(folder: LocalFiles) -> None:
    folder.put_bytes("a/kept", b"")
    (folder.root / "a" / ".tmp-left").write_bytes(b"half")
    (folder.root / "empty").mkdir()
    assert folder.sweep(older_than_seconds=3600) == 0
    assert folder.sweep(older_than_seconds=-1) == 2
    assert sorted(path.name for path in folder.root.rglob("*")) == ["a", "kept"]


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", ""])
def test_names_stay_inside(files: CheckpointFiles, name: str) -> None:
    with pytest.raises(CheckpointError, match="not a name"):
        files.put_bytes(name, b"")


def test_missing_file_is_named(files: CheckpointFiles, tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorruptionError, match="state/gone is missing"):
        files.get_bytes("state/gone")
    with pytest.raises(CheckpointCorruptionError, match="state/gone is missing"):
        files.get_file("state/gone", tmp_path / "x")


def test_a_local_folder_that_is_gone_is_no_damage(files: CheckpointFiles, tmp_path: Path) -> None:
    """Nobody has to roll back for it."""
    files.put_bytes("state/x", b"content")
    with pytest.raises(CheckpointError, match="could not fetch state/x .*No such file") as raised:
        files.get_file("state/x", tmp_path / "gone" / "x")
    assert not isinstance(raised.value, CheckpointCorruptionError)


def test_every_folder_that_is_made_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    files = LocalFiles(tmp_path / "jobs" / "one")
    assert synced == {str(tmp_path), str(tmp_path / "jobs")}
    synced.clear()
    files.put_bytes("state/op/0/a", b"x")
    # A name is kept once the folder that it stands in is.
    assert {str(files.root / name) for name in (".", "state", "state/op", "state/op/0")} <= synced


def test_a_failed_deletion_does_not_say_that_a_commit_has_failed(
    folder: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old files are deleted once the commit is done."""
    folder.put_bytes("a", b"old")

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(CheckpointError, match=r"could not delete a .*; a later commit tries again$"):
        folder.delete("a")


def test_failed_write_leaves_nothing_and_says_what_to_do(
    folder: LocalFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put_bytes("a", b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"could not write a .*No space.*nothing was committed"):
        folder.put_bytes("a", b"new")
    monkeypatch.undo()
    assert folder.get_bytes("a") == b"old"
    assert [path.name for path in folder.root.iterdir()] == ["a"]


@pytest.mark.parametrize("kind", [PermissionError, FileNotFoundError, NotADirectoryError])
def test_a_folder_that_cannot_be_made_is_named(
    kind: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is missing there: nothing has been written yet."""

    def refuse(path: Path, *arguments: object, **keywords: object) -> None:
        raise kind(1, "no", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CheckpointError) as refused:
        LocalFiles(tmp_path / "new")
    assert not isinstance(refused.value, CheckpointCorruptionError)
    assert f"could not create the folder {tmp_path / 'new'}" in str(refused.value)
    assert "Check the disk's space and permissions" in str(refused.value)
