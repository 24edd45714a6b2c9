"""Run the tests on each Spark and Python that a release runs on, and say what each of them showed.

    python .ci/matrix.py            all of it (`make test-matrix`)
    python .ci/matrix.py --brief    what `.ci/run` has time for
    python .ci/matrix.py 3.5 4.0    these Sparks only

Owns: the list of Sparks and Pythons, from which `make docs` writes the tables "runs on", and their virtual
environments below `build/matrix`. An environment for a Spark has that pyspark only, and all else from `.venv`; one for
a Python has all packages of `requirements.lock`. Uses the standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "matrix"
VENV = ROOT / ".venv"


class Spark(NamedTuple):
    """A Spark: ``release`` is what is tested. ``connect``: what its server is to jobs over Spark Connect: "with limits"
    once all tests of Spark Connect were right on this release, "experimental" before that, "" if it cannot run them."""

    line: str
    release: str
    py4j: str
    connect: str


SPARKS = (
    Spark("3.5", "3.5.9", "0.10.9.7", connect=""),
    Spark("4.0", "4.0.5", "0.10.9.9", connect="with limits"),
    Spark("4.1", "4.1.4", "0.10.9.9", connect="with limits"),
    Spark("4.2", "4.2.1", "0.10.9.9", connect="with limits"),
    Spark("4.3", "4.3.0", "0.10.9.9", connect="with limits"),
)
OLDEST, NEWEST = SPARKS[0], SPARKS[-1]
PYTHONS = ("3.11", "3.12", "3.13")
JAVAS = ("17", "25")
BRIEF = ("3.5",)
"""The Spark of `--brief`; the newest one is that of all other tests."""

README = ["-m", "pytest", "-q", "tests/docs/test_docs.py", "-k", "programs and README"]
SMOKE = ["-m", "pytest", "-q", "-m", "smoke"]
NEXMARK = ["-m", "bench", "nexmark", "--queries", "q4,q9,q18", "--events", "20000"]
EVERY = [
    "-m",
    "pytest",
    "-q",
    "-n",
    "2",
    "--dist",
    "loadfile",
    "--no-loadscope-reorder",
    "-m",
    "spark and not slow",
]
IN_DRIVER = [*EVERY[:-1], "spark and not slow and not executors"]
EXECUTOR = "ASYNCSTATE_TEST_EXECUTOR"
"""Where the operators of the tests run: by default on Spark's executors."""
CONNECT = ["-m", "pytest", "-q", "-m", "spark", "tests/connect"]
SMOKE_OVER_CONNECT = ["-m", "pytest", "-q", "-m", "smoke and spark and not classic"]
REMOTE = "ASYNCSTATE_TEST_REMOTE"
"""If it is set, the session of the tests is one of Spark Connect."""
STATEMENTS = ["-m", "pytest", "-q", "tests/sql/test_golden.py", "tests/sql/test_changed_statements.py"]
"""What each Spark compiles statements to."""
LAKES = [".ci/check_lakes.py"]
LAKES_ON = "4.0"
"""The newest Spark for which there are jars of both."""


class Cell(NamedTuple):
    """What ``command`` showed on ``where``."""

    where: str
    what: str
    passed: bool
    seconds: float


def main(arguments: Sequence[str]) -> int:
    """Run the cells; 0 if each of them passed."""
    brief = "--brief" in arguments
    chosen = [one for one in arguments if not one.startswith("--")] or ([*BRIEF] if brief else [])
    cells: list[Cell] = []
    for spark in SPARKS:
        if not chosen or spark.line in chosen:
            cells += _spark_cells(spark, brief)
    if not brief and not chosen:
        for line in PYTHONS:
            cells += _python_cells(line)
    print(f"\n{'on':<16}{'what':<32}{'showed':<10}seconds")
    for cell in cells:
        showed = "right" if cell.passed else "WRONG"
        print(f"{cell.where:<16}{cell.what:<32}{showed:<10}{cell.seconds:.0f}")
    return 0 if all(cell.passed for cell in cells) else 1


def _spark_cells(spark: Spark, brief: bool) -> list[Cell]:
    python, name = _spark_environment(spark), f"Spark {spark.release}"
    cells = [_run(python, name, "README's job", README)]
    if brief:
        return cells
    cells.append(_run(python, name, "smoke tests", SMOKE))
    cells.append(_run(python, name, "Nexmark q4, q9, q18", NEXMARK))
    if spark.connect:
        cells.append(_run(python, name, "Spark Connect", CONNECT))
        cells.append(_run(python, name, "smoke tests over Connect", SMOKE_OVER_CONNECT, {REMOTE: "1"}))
    if spark.line == LAKES_ON:
        cells.append(_run(python, name, "Delta and Iceberg, Connect too", LAKES))
    if spark in (OLDEST, NEWEST):
        cells.append(_run(python, name, "all tests with Spark", EVERY))
    else:
        cells.append(_run(python, name, "plans of statements", STATEMENTS))
    if spark is NEWEST:
        cells.append(_run(python, name, "the same in the driver", IN_DRIVER, {EXECUTOR: "local"}))
    return cells


def _python_cells(line: str) -> list[Cell]:
    command = _interpreter(line)
    if command is None:
        print(f"there is no python{line}; install it, so that it can be tested", file=sys.stderr)
        return [Cell(f"Python {line}", "not there", False, 0.0)]
    python = _python_environment(line, command)
    return [
        _run(python, f"Python {line}", "README's job", README),
        _run(python, f"Python {line}", "smoke tests", SMOKE),
    ]


def _interpreter(line: str) -> str | None:
    """A Python of this version that runs; what pyenv puts on the path may only say that it is not chosen."""
    found = [
        shutil.which(f"python{line}"),
        *map(str, Path.home().glob(f".pyenv/versions/{line}.*/bin/python")),
    ]
    for command in filter(None, found):
        if subprocess.run([command, "--version"], capture_output=True, check=False).returncode == 0:
            return command
    return None


def _run(
    python: Path, where: str, what: str, arguments: Sequence[str], variables: Mapping[str, str] | None = None
) -> Cell:
    print(f"\n--- {where}: {what}", flush=True)
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": search_path, "HYPOTHESIS_PROFILE": "brief"}
    environment |= variables or {}
    environment.pop("SPARK_HOME", None)
    started = time.monotonic()
    ran = subprocess.run([str(python), *arguments], cwd=ROOT, env=environment, check=False)
    return Cell(where, what, ran.returncode == 0, time.monotonic() - started)


def _spark_environment(spark: Spark) -> Path:
    """An interpreter that finds this pyspark first, and then the packages of ``.venv``."""
    if spark is NEWEST:
        return VENV / "bin" / "python"
    folder = FOLDER / f"spark-{spark.release}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing pyspark {spark.release} into {folder}", flush=True)
        subprocess.run([str(VENV / "bin" / "python"), "-m", "venv", "--clear", str(folder)], check=True)
        packages = [f"pyspark=={spark.release}", f"py4j=={spark.py4j}"]
        _pip(python, "--no-deps", *packages)
        (own,) = (folder / "lib").glob("python*/site-packages")
        (shared,) = (VENV / "lib").glob("python*/site-packages")
        (own / "zz-shared.pth").write_text(f"{shared}\n")
        (folder / "ready").touch()
    return python


def _python_environment(line: str, command: str) -> Path:
    folder = FOLDER / f"python-{line}"
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"installing the pinned packages for Python {line} into {folder}", flush=True)
        subprocess.run([command, "-m", "venv", "--clear", str(folder)], check=True)
        _pip(python, "-r", str(ROOT / "requirements.lock"))
        (folder / "ready").touch()
    return python


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *arguments]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
