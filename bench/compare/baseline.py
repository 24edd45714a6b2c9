"""The figures that a change is held against: kept in ``baseline``, a file a benchmark, and measured anew.

Owns: ``Baseline``, ``MEASURED``, and how results become a baseline.
Invariant: only ratios taken within one run are kept, so that another machine can be held against them.
Must not import Spark or asyncstate: what is measured runs in processes of its own.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from bench.compare.figures import ComparisonError, Measured, read_figures

FOLDER = Path(__file__).with_name("baseline")
MEASURED: Mapping[str, tuple[str, ...]] = {
    "micro": ("--rounds", "5"),
    "paradigms": ("--no-slow", "--rounds", "5"),
    "peers": ("--work", "a", "--keys", "1000000", "--peers", "ours-sync,ours-async,spark-changelog"),
}
"""Benchmarks that the baseline is made of, and their options: a few minutes in all."""
_ROOT = Path(__file__).parents[2]
_LAST_WORDS = 2_000


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one benchmark by name; of which commit, when, and where they were measured."""

    commit: str
    date: str
    machine: str
    figures: dict[str, Measured]


def read_baseline(benchmark: str, folder: Path) -> Baseline:
    """What is kept of a benchmark. Raises ComparisonError."""
    path = folder / f"{benchmark}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        raise ComparisonError(f"{path}: there is no baseline of {benchmark}; --update writes it") from None
    except msgspec.MsgspecError as error:
        raise ComparisonError(
            f"{path}: {error}; take it from version control again, or write it with --update"
        ) from None


def write_baseline(benchmark: str, figures: Mapping[str, Measured], folder: Path) -> Path:
    """Keep figures of this commit and machine; the path of the file, which no longer has those of before."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rounded = {name: _rounded(figure) for name, figure in figures.items()}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}.json"
    path.write_text(_text(Baseline(_commit(), today, machine, rounded)))
    return path


def _text(kept: Baseline) -> str:
    """JSON with a line a figure, so that a difference of two versions shows which ones have changed."""

    def encoded(value: object) -> str:
        return msgspec.json.encode(value).decode()

    figures = ",\n".join(f"  {encoded(name)}: {encoded(figure)}" for name, figure in kept.figures.items())
    head = "\n".join(f' "{name}": {encoded(getattr(kept, name))},' for name in ("commit", "date", "machine"))
    return f'{{\n{head}\n "figures": {{\n{figures}\n }}\n}}\n'


def _rounded(figure: Measured) -> Measured:
    """With four digits: more were never measured."""
    value, low, high = (float(f"{each:.4g}") for each in (figure.value, figure.low, figure.high))
    return Measured(value, low, high, figure.rate)


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def results_in(folder: Path) -> dict[str, dict[str, Measured]]:
    """The figures of each benchmark of ``MEASURED`` that has left its results in ``folder``. Raises ComparisonError."""
    found = {name: folder / f"{name}.json" for name in MEASURED}
    figures = {name: read_figures(path, False) for name, path in found.items() if path.exists()}
    if not figures:
        names = ", ".join(path.name for path in found.values())
        raise ComparisonError(f"{folder}: none of {names} is there; give a folder that was an --output")
    return figures


def measure(folder: Path, tell: Callable[[str], None]) -> None:
    """Run each benchmark of ``MEASURED`` with its output in ``folder``. Raises ComparisonError if one fails."""
    for name, options in MEASURED.items():
        command = [sys.executable, "-m", "bench", name, *options, "--output", str(folder)]
        tell(" ".join(["python", *command[1:-2]]))
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stdout + done.stderr)[-_LAST_WORDS:]
            raise ComparisonError(
                f"bench {name} has ended with {done.returncode}; the end of what it said:\n{said}"
            )
