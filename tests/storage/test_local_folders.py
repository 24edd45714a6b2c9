"""Folders of local stores: whose they are, which jobs share them, and when they go."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from asyncstate.errors import StoreError
from asyncstate.storage import Lease, LocalStores, RestorePlan
from tests.storage.minijob import SMALL, MiniJob, key

OLD_SECONDS = 8 * 24 * 3600


@pytest.fixture
def default_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stores lie unless another folder is configured."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"asyncstate-{os.geteuid()}"


def lease(stores: LocalStores) -> Lease:
    return stores.acquire("op", 0, RestorePlan(), SMALL)


def test_the_default_folder_is_the_users_own(job: MiniJob, default_folder: Path) -> None:
    with lease(LocalStores(None, "job", job.files)) as leased:
        path = Path(leased.store.path)
        assert path.is_relative_to(default_folder)
        (made,) = default_folder.iterdir()
        for folder in (default_folder, made, made / "op" / "0"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o701])
def test_a_default_folder_open_to_others_is_refused(job: MiniJob, default_folder: Path, mode: int) -> None:
    default_folder.mkdir(parents=True)
    default_folder.chmod(mode)
    with pytest.raises(StoreError, match=rf"is open to other users \(mode {mode:o}\).*async-state.local-dir"):
        lease(LocalStores(None, "job", job.files))


def test_a_default_folder_of_somebody_else_is_refused(
    job: MiniJob, default_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default_folder.mkdir(parents=True, mode=0o700)
    stores = LocalStores(None, "job", job.files)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(StoreError, match=rf"belongs to the user with the number {own}, not {own + 1}"):
        lease(stores)


def test_a_link_in_place_of_the_default_folder_is_refused(
    job: MiniJob, default_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    default_folder.parent.mkdir()
    default_folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link.*Delete it, or set async-state.local-dir"):
        lease(LocalStores(None, "job", job.files))


def test_what_is_made_below_a_configured_folder_is_private(job: MiniJob, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o755)
    with lease(LocalStores(tmp_path / "disk", "job", job.files)):
        (made,) = (tmp_path / "disk").iterdir()
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o755


def test_jobs_of_one_name_over_several_checkpoints_do_not_wait_for_each_other(tmp_path: Path) -> None:
    leases = []
    for number in range(5):
        other = MiniJob(tmp_path / str(number))
        stores = LocalStores(tmp_path / "local", "asyncstate", other.files, slots_max=1, wait_seconds_max=0.0)
        leases.append(lease(stores))
    for leased in leases:
        leased.release()


def test_stores_of_abandoned_checkpoints_go(tmp_path: Path) -> None:
    def used(name: str) -> Path:
        made = MiniJob(tmp_path / name)
        with lease(LocalStores(tmp_path / "local", "job", made.files)) as leased:
            leased.store.apply([(key(0, "a"), b"1")], 0)
            return Path(leased.store.path).parent

    first, second, running = used("first"), used("second"), MiniJob(tmp_path / "running")
    with lease(LocalStores(tmp_path / "local", "job", running.files)) as leased:
        third = Path(leased.store.path).parent
        for slot in (first, third):
            os.utime(slot / "VERSION", (time.time() - OLD_SECONDS,) * 2)
        used("newest")
        assert not first.exists()
        assert second.exists()  # used a moment ago
        assert third.exists()  # in use
