"""Is there a Java that Spark can start? Exit 0 and say which one, or exit 1 and say what to install.

Owns: the check of the machine's JDK before anything is downloaded. Uses the standard library only, since it
runs before the virtual environment exists. With `--install` it installs the JDK itself where it can: as root,
where apt-get is the package manager.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST_MAJOR = 17
# Spark's launcher passes --add-modules=jdk.incubator.vector; a Java without it dies at once.
NEEDED_MODULE = "jdk.incubator.vector"
DEBIAN_PACKAGES = ("openjdk-17-jdk-headless", "openjdk-21-jdk-headless")


def find_java() -> tuple[str | None, str]:
    """The java that Spark's launcher will start, and where it was looked for: JAVA_HOME wins over PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return (str(java) if os.access(java, os.X_OK) else None), f"JAVA_HOME={home}"
    return shutil.which("java"), "PATH"


def major_version(text: str) -> int | None:
    """17 from `openjdk version "17.0.15"`, 8 from `java version "1.8.0_402"`, None from anything else."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first = int(found.group(1))
    return int(found.group(2)) if first == 1 and found.group(2) else first


def run(*command: str) -> str:
    """Standard output and error of a command, together: `java -version` writes to the second."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False
    )
    return done.stdout


def problem() -> str | None:
    """What is wrong with this machine's Java, in a sentence; None if Spark can use it."""
    java, where = find_java()
    if java is None:
        return f"no java found ({where})"
    try:
        version = run(java, "-version")
        modules = run(java, "--list-modules")
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} ({where}) does not start: {error}"
    major = major_version(version)
    if major is None:
        return f"{java} ({where}) does not say its version: {version.strip()!r}"
    if major < OLDEST_MAJOR:
        return f"{java} ({where}) is Java {major}; Spark 4 needs {OLDEST_MAJOR} or newer"
    if NEEDED_MODULE not in modules:
        return f"{java} ({where}) is Java {major} without the module {NEEDED_MODULE}; install a full JDK"
    return None


def advice() -> str:
    """The command that puts a JDK on this machine."""
    if os.environ.get("JAVA_HOME"):
        start = "Point JAVA_HOME at a JDK 17 or unset it. To install one:"
    else:
        start = "Install a JDK 17:"
    sudo = "" if os.geteuid() == 0 else "sudo "
    ways = {
        "apt-get": f"{sudo}apt-get update && {sudo}apt-get install -y {DEBIAN_PACKAGES[0]}",
        "dnf": f"{sudo}dnf install -y java-17-openjdk-devel",
        "apk": f"{sudo}apk add openjdk17-jdk",
        "brew": "brew install openjdk@17",
    }
    usable = [command for tool, command in ways.items() if shutil.which(tool)]
    return "\n".join([start, *(f"    {command}" for command in usable or ways.values())])


def install() -> None:
    """Install a JDK with apt-get; the first of the known packages that this Debian or Ubuntu has."""
    quiet = {"DEBIAN_FRONTEND": "noninteractive", **os.environ}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
    for package in DEBIAN_PACKAGES:
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        if subprocess.run(command, env=quiet, check=False).returncode == 0:
            return


def main(arguments: list[str]) -> int:
    wrong = problem()
    may_install = "--install" in arguments and os.geteuid() == 0 and shutil.which("apt-get")
    if wrong and may_install:
        print(f"JDK check: {wrong}; installing one with apt-get", flush=True)
        install()
        wrong = problem()
    if wrong:
        print(f"JDK check failed: {wrong}.\n{advice()}\nThen run the same command again.", file=sys.stderr)
        return 1
    print(f"JDK check: {find_java()[0]} is good")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
