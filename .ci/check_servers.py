"""Are the servers there that tests write into and read from? With `--install`, install those that are missing.

Owns: the check of PostgreSQL and MariaDB, of Debian's packages, and of the jars of Kafka, which the poms in
`.ci/servers` pin. Tests start each for themselves, in a folder of its own. Uses the standard library only. Installs
packages as root, where apt-get is the package manager; elsewhere it says what tests will miss.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
POMS = ROOT / ".ci" / "servers"
JARS = ROOT / "build" / "servers"
"""Each pom has a folder of its name here, with its jars and a copy of the pom that they are from."""
PROGRAMS = {"postgresql": "initdb", "mariadb-server": "mariadbd"}
"""By Debian's package, the program that tests start. Debian keeps those of PostgreSQL off the path."""
FOLDERS = ("/usr/sbin", "/usr/local/sbin")


def missing() -> list[str]:
    """The packages whose programs are not there."""
    path = os.pathsep.join([os.environ.get("PATH", ""), *FOLDERS, *map(str, postgres_folders())])
    return [package for package, program in PROGRAMS.items() if shutil.which(program, path=path) is None]


def missing_jars() -> list[str]:
    """The poms whose jars are not there, or are from another version of the pom."""
    poms = {pom.parent.name: pom.read_bytes() for pom in sorted(POMS.glob("*/pom.xml"))}
    copied = {name: JARS / name / "pom.xml" for name in poms}
    return [name for name in poms if not copied[name].exists() or copied[name].read_bytes() != poms[name]]


def postgres_folders() -> list[Path]:
    """Where Debian puts PostgreSQL's programs, also those that were installed just now."""
    return list(Path("/usr/lib/postgresql").glob("*/bin"))


def install(packages: list[str]) -> None:
    """Install the packages without starting their servers: tests have their own."""
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    print(f"servers: installing {', '.join(packages)} with apt-get", flush=True)
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", **os.environ}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(command, env=quiet, check=False)


def copy_jars(names: list[str]) -> None:
    """Let Maven copy the jars of the poms; without Maven nothing happens."""
    maven = shutil.which("mvn")
    for name in names if maven else []:
        print(f"servers: copying the jars of {name} with Maven", flush=True)
        folder, pom = JARS / name, POMS / name / "pom.xml"
        shutil.rmtree(folder, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
        done = subprocess.run([str(maven), "-q", "-B", "-f", str(pom), *goal], check=False)
        if done.returncode == 0:
            shutil.copy(pom, folder / "pom.xml")  # the last step: a copy that broke off is made again


def main(arguments: list[str]) -> int:
    if "--install" in arguments:
        jars = missing_jars()
        install([*missing(), *(["maven"] if jars and shutil.which("mvn") is None else [])])
        copy_jars(jars)
    lacking = [*missing(), *missing_jars()]
    if lacking:
        print(f"servers: {', '.join(lacking)} not found; tests that need them cannot run", file=sys.stderr)
        return 1
    print("servers: all there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
