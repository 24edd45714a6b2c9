"""Are the database servers there that tests write into? With `--install`, install those that are missing.

Owns: the check of PostgreSQL and MariaDB, which the tests start for themselves, each in a folder of its own. Uses the
standard library only. Installs as root, where apt-get is the package manager; elsewhere it says what tests will miss.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = {"postgresql": "initdb", "mariadb-server": "mariadbd"}
"""By Debian's package, the program that tests start. Debian keeps those of PostgreSQL off the path."""
FOLDERS = ("/usr/sbin", "/usr/local/sbin")


def missing() -> list[str]:
    """The packages whose programs are not there."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS, *map(str, postgres_folders())])
    return [package for package, program in PROGRAMS.items() if shutil.which(program, path=path) is None]


def postgres_folders() -> list[Path]:
    """Where Debian puts PostgreSQL's programs, also those that were installed just now."""
    return list(Path("/usr/lib/postgresql").glob("*/bin"))


def install(packages: list[str]) -> None:
    """Install the packages without starting their servers: tests have their own."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", **os.environ}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(command, env=quiet, check=False)


def main(arguments: list[str]) -> int:
    lacking = missing()
    if lacking and "--install" in arguments and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"database servers: installing {', '.join(lacking)} with apt-get", flush=True)
        install(lacking)
        lacking = missing()
    if lacking:
        print(
            f"database servers: {', '.join(lacking)} not found; tests that need them cannot run",
            file=sys.stderr,
        )
        return 1
    print("database servers: all there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
