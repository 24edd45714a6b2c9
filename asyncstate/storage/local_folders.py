"""Where on a machine's own disk the stores of a checkpoint lie, and who may look at them.

Owns: ``default_local_dir``, ``make_owned``, ``make_private`` and ``folder_name``. Invariant: local stores are the one
thing without a checksum, so nobody else may write where they lie by default: the folder carries the user's number, is
theirs, and open to them alone. Must not know slots or stores.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import xxhash

from asyncstate.errors import StoreError

_PRIVATE = 0o700
_OTHERS = 0o077


def default_local_dir() -> Path:
    """The folder of this user in the temporary directory of this machine."""
    return Path(tempfile.gettempdir()) / f"asyncstate-{os.geteuid()}"


def folder_name(job_id: str, place: str) -> str:
    """The folder of a job's stores; jobs of one name over different checkpoints have different ones."""
    return f"{job_id}-{xxhash.xxh3_64_hexdigest(place.encode())}"


def make_private(folder: Path) -> None:
    """Make a folder, and those above it, open to this user alone; one that is there already stays as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(_PRIVATE, exist_ok=True)


def make_owned(folder: Path) -> None:
    """Make ``folder``, or check that it is this user's alone. Raises StoreError if it is not."""
    folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _not_ours(folder, "is no folder of its own but a link")
    if found.st_uid != os.geteuid():
        raise _not_ours(folder, f"belongs to the user with the number {found.st_uid}, not {os.geteuid()}")
    if found.st_mode & _OTHERS:
        raise _not_ours(folder, f"is open to other users (mode {stat.S_IMODE(found.st_mode):o})")


def _not_ours(folder: Path, what: str) -> StoreError:
    return StoreError(
        f"the local store folder {folder} {what}, so what lies in it may be somebody else's. Delete it, or set "
        "async-state.local-dir to a folder that only this user can write to"
    )
