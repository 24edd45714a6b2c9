"""Is there a Java that Spark can start? ``python -m asyncstate.spark.java`` says which one, or what to do.

Owns: the check of the machine's JDK before a session is built.
Invariant: uses the standard library and ``asyncstate.errors`` only, so that it can report what is missing before
anything else is imported.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from asyncstate.errors import EnvironmentSetupError

OLDEST_MAJOR = 17
# Spark's launcher passes --add-modules=jdk.incubator.vector; a Java without it dies before Spark's first
# line.
NEEDED_MODULE = "jdk.incubator.vector"
_TIMEOUT_S = 60
_ADVICE = (
    "install a JDK 17 (Debian: openjdk-17-jdk-headless, Fedora: java-17-openjdk-devel, macOS: brew install "
    "openjdk@17) and point JAVA_HOME at it"
)


def check_java() -> str:
    """The path of the java that Spark will start. Raises EnvironmentSetupError with what to install."""
    java, where = _find_java()
    if java is None:
        raise EnvironmentSetupError(f"no java found ({where}); {_ADVICE}")
    major = _major_version(_output(java, "-version"))
    if major is None or major < OLDEST_MAJOR:
        found = "of an unknown version" if major is None else f"version {major}"
        raise EnvironmentSetupError(
            f"{java} ({where}) is {found}, Spark needs {OLDEST_MAJOR} or newer; {_ADVICE}"
        )
    if NEEDED_MODULE not in _output(java, "--list-modules"):
        raise EnvironmentSetupError(f"{java} ({where}) has no module {NEEDED_MODULE}; {_ADVICE}")
    return java


def _find_java() -> tuple[str | None, str]:
    """The java that Spark's launcher will start, and where it was found: JAVA_HOME wins over PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return (str(java) if os.access(java, os.X_OK) else None), f"JAVA_HOME={home}"
    return shutil.which("java"), "PATH"


def _major_version(text: str) -> int | None:
    """17 from ``openjdk version "17.0.15"``, 8 from ``java version "1.8.0_402"``, None from anything else."""
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if found is None:
        return None
    first = int(found.group(1))
    return int(found.group(2)) if first == 1 and found.group(2) else first


def _output(*command: str) -> str:
    """Both streams of a command: ``java -version`` writes to the second."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentSetupError(f"{command[0]} does not start: {error}; {_ADVICE}") from error
    return done.stdout


def main() -> int:
    """The check as a command: 0 and the path of java, or 1 and what to do."""
    try:
        print(check_java())
    except EnvironmentSetupError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
