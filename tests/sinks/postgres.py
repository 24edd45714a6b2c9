"""A PostgreSQL server for the tests, where the machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FOLDERS = [*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
_PATH = os.pathsep.join([*_FOLDERS, os.environ.get("PATH", "")])
INITDB, PG_CTL = (shutil.which(name, path=_PATH) for name in ("initdb", "pg_ctl"))
MISSING = "no PostgreSQL server on this machine (Debian: apt-get install postgresql)"


@contextmanager
def server(folder: Path, port: int | None = None) -> Iterator[str]:
    """Gives what to connect with. It listens on a socket in ``folder`` alone. With ``port`` it listens there, too, and
    its log can be decoded, for tools that capture changes."""
    assert INITDB is not None
    assert PG_CTL is not None
    data = folder / "data"
    socket = folder / "s"
    for one in (folder, socket):
        one.mkdir(exist_ok=True)
    user = _owner(folder)
    _run([INITDB, "-D", str(data), "-A", "trust", "-U", "tests", "--no-sync"], user)
    options = f"-k {socket} -c fsync=off "
    captured = f"-c listen_addresses=127.0.0.1 -p {port} -c wal_level=logical"
    options += "-c listen_addresses=''" if port is None else captured
    _run([PG_CTL, "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start"], user)
    try:
        yield f"host={socket} user=tests dbname=postgres" + (f" port={port}" if port else "")
    finally:
        _run([PG_CTL, "-D", str(data), "-m", "immediate", "stop"], user)


def restart(folder: Path) -> None:
    """End the server of ``folder`` as a kill would, with what it was doing, and start it again."""
    assert PG_CTL is not None
    command = [
        PG_CTL,
        "-D",
        str(folder / "data"),
        "-m",
        "immediate",
        "-w",
        "-l",
        str(folder / "log"),
        "restart",
    ]
    _run(command, _owner(folder))


def _owner(folder: Path) -> str | None:
    """The server refuses to run as root: then it is nobody's."""
    if os.geteuid() != 0:
        return None
    for path in [folder, *folder.rglob("*")]:
        shutil.chown(path, "nobody")
    for parent in folder.parents:
        if parent.stat().st_uid == 0 and str(parent) != "/":
            parent.chmod(parent.stat().st_mode | 0o011)
    return "nobody"


def _run(command: list[str], user: str | None) -> None:
    done = subprocess.run(command, user=user, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
