"""A MySQL or MariaDB server for the tests, where the machine has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
MARIADBD, INSTALL = (shutil.which(name, path=_PATH) for name in ("mariadbd", "mariadb-install-db"))
MISSING = "no MariaDB server on this machine (Debian: apt-get install mariadb-server)"


@contextmanager
def server(folder: Path, port: int | None = None) -> Iterator[dict[str, Any]]:
    """Gives what to connect with. It listens on a socket in ``folder`` alone. With ``port`` it listens there, too, for
    the user tests, and writes a log of its rows' changes, for tools that capture them."""
    assert MARIADBD is not None
    assert INSTALL is not None
    import pymysql

    user = ["--user=root"] if os.geteuid() == 0 else []
    common = ["--no-defaults", f"--datadir={folder / 'data'}", *user]
    made = subprocess.run(
        [INSTALL, *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    place = {"unix_socket": str(folder / "s"), "user": "root", "database": "tests"}
    fast = ["--innodb-flush-log-at-trx-commit=0", f"--pid-file={folder / 'pid'}"]
    if port is None:
        fast += ["--skip-networking"]
    else:
        fast += ["--bind-address=127.0.0.1", f"--port={port}", "--server-id=1", "--log-bin=binlog"]
        fast += ["--binlog-format=ROW", "--binlog-row-image=FULL"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [MARIADBD, *common, *fast, f"--socket={folder / 's'}"], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while "ready for connections" not in (folder / "log").read_text():
            assert running.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)  # it says so nowhere else, and an attempt that fails leaves a socket behind
        with (
            pymysql.connect(unix_socket=str(folder / "s"), user="root") as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("CREATE DATABASE tests CHARACTER SET utf8mb4")
            if port is not None:
                cursor.execute("CREATE USER tests@'127.0.0.1' IDENTIFIED BY 'none'")
                cursor.execute("GRANT ALL ON *.* TO tests@'127.0.0.1'")
        yield place
    finally:
        running.kill()
        running.wait(30)
