"""Where stores are on a machine's local disk: the folders above the slots, their names and whose they are.

Invariant: local stores are the only files without a checksum, so no other user may write to their default location:
that folder's name contains the user's number, and it is owned by and open to that user alone. Must not know slots.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from pathlib import Path
from typing import Final

import xxhash

from asyncstate.errors import StoreError

_PRIVATE: Final = 0o700
_OTHERS: Final = 0o077
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


def default_local_dir() -> Path:
    """The folder of this user in the temporary directory of this machine."""
    return Path(tempfile.gettempdir()) / f"asyncstate-{os.geteuid()}"


def folder_name(job_id: str, place: str) -> str:
    """The folder of a job's stores; jobs of one name over different checkpoints have different ones."""
    return f"{job_id}-{xxhash.xxh3_64_hexdigest(place.encode())}"


def checked_name(name: str, what: str) -> str:
    """``name``, if it can name a folder; StoreError if not."""
    if not _NAME.fullmatch(name) or set(name) == {"."}:
        raise StoreError(f"{what} {name!r} cannot name a folder; use letters, digits, '_', '.' and '-'")
    return name


def make_private(folder: Path) -> None:
    """Make a folder and its parents, open to this user alone; an existing one stays as it is."""
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(_PRIVATE, exist_ok=True)


def make_owned(folder: Path) -> None:
    """Make ``folder``, or check that only this user can access it. Raises StoreError if not."""
    folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _not_ours(folder, "is a link, not a folder")
    if found.st_uid != os.geteuid():
        raise _not_ours(folder, f"belongs to the user with the number {found.st_uid}, not {os.geteuid()}")
    if found.st_mode & _OTHERS:
        raise _not_ours(folder, f"is open to other users (mode {stat.S_IMODE(found.st_mode):o})")


def _not_ours(folder: Path, what: str) -> StoreError:
    return StoreError(
        f"the local store folder {folder} {what}, so its content may be somebody else's. Delete it, or set "
        "async-state.local-dir to a folder that only this user can write to"
    )
