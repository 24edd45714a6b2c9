"""How a benchmark measures: sides in turns, medians of pairs, and a case in a process of its own.

Invariant: a ratio is a median over rounds, of two runs that followed each other.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pkgutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from bench.processor_time import Clocks, Spent

ROOT = Path(__file__).resolve().parents[2]
LAST_WORDS = 2_000
_TIMEOUT_S = 4 * 3_600
_CHILD = "import sys; from bench.frame.measure import main; main(*sys.argv[1:])"
T = TypeVar("T")

Side = Callable[[Any], object]
"""Does one round's work; may return what it has ``Spent``, where not all of the call counts."""


class CaseError(Exception):
    """A case has no result; the text says why."""


class WrongResult(CaseError):  # noqa: N818 - it is no error of the benchmark
    """A case has a result, and that is not right."""


class Ratio(NamedTuple):
    """A median over rounds with the lowest and the highest of them."""

    value: float
    low: float
    high: float


def turns(
    sides: Mapping[str, Side],
    rounds: int,
    given: Iterator[Any] | None = None,
    *,
    warm_up: int = 1,
    turned: bool = True,
    clocks: type[Clocks] = Clocks,
) -> dict[str, list[Spent]]:
    """What each side takes in ``rounds`` rounds, after ``warm_up`` ones that do not count. All sides of a round get the
    same of ``given``. The order turns round each time unless ``turned`` is False, and garbage is collected before each
    run, so that no side pays for another."""
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        this = None if given is None else next(given)
        for name in list(sides)[:: -1 if turned and number % 2 else 1]:
            gc.collect()
            started = clocks()
            said = sides[name](this)
            spent[name].append(said if isinstance(said, Spent) else started.spent())
    return {name: found[warm_up:] for name, found in spent.items()}


def in_turns(
    names: Sequence[str], rounds: int, work: Callable[[str, int], None], turned: bool = True
) -> dict[str, str]:
    """``work(name, number)`` for each name, round by round, whose order turns unless ``turned`` is False. Who fails is
    out, and returned with the reason; the others go on."""
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name in names[:: -1 if turned and number % 2 else 1]:
            if name not in failed:
                try:
                    work(name, number)
                except Exception as error:
                    failed[name] = reason(error)
    return failed


def reason(error: BaseException) -> str:
    """What something failed with, for a reader."""
    return str(error) if isinstance(error, CaseError) else f"{type(error).__name__}: {error}"[:2_000]


def medians(spent: Sequence[Spent], units: float = 1, scale: float = 1e6) -> tuple[float, float | None]:
    """Microseconds a unit (or what ``scale`` makes of seconds), by the clock and of processors; None: not known."""
    cpu = [each.cpu_seconds for each in spent if each.cpu_seconds is not None]
    wall = statistics.median(each.seconds for each in spent) / units * scale
    return wall, statistics.median(cpu) / units * scale if cpu else None


def ratio(mine: Sequence[Spent], others: Sequence[Spent], cpu: bool = False) -> Ratio | None:
    """The time of ``mine`` by that of ``others``, round by round; with ``cpu`` of processors, None where not known."""
    pairs = zip([each[cpu] for each in mine], [each[cpu] for each in others], strict=True)
    found = [one / other for one, other in pairs if one is not None and other]
    return Ratio(statistics.median(found), min(found), max(found)) if found else None


def isolated(function: Callable[..., T], *arguments: Any, environment: Mapping[str, str] | None = None) -> T:
    """``function`` of a module in a process of its own, so that heap, caches and highest memory are its alone.
    Arguments and result travel as JSON by their annotated types; ``environment`` replaces this process's variables.
    Raises CaseError if the process fails or takes hours."""
    what = f"{function.__module__}:{function.__qualname__}"
    with tempfile.TemporaryDirectory(prefix="asyncstate-case-") as name:
        given, found, log = (Path(name, part) for part in ("given", "found", "log"))
        given.write_bytes(msgspec.json.encode(arguments))
        command = [sys.executable, "-c", _CHILD, what, name]
        how: dict[str, Any] = {"cwd": ROOT, "env": environment, "timeout": _TIMEOUT_S}
        with log.open("wb") as out:
            try:
                code = subprocess.run(command, check=False, stdout=out, stderr=out, **how).returncode
            except subprocess.TimeoutExpired:
                raise CaseError(f"no result after {_TIMEOUT_S} s; the process was ended") from None
        if code or not found.exists():
            said = log.read_text(errors="replace")[-LAST_WORDS:].strip()
            raise CaseError(f"its process ended with {code}; the end of its output:\n{said}")
        result: T = msgspec.json.decode(found.read_bytes(), type=get_type_hints(function)["return"])
        return result


def output_of(name: str, *command: str) -> str:
    """The output of a command. Raises CaseError with the end of what it said if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-LAST_WORDS:].strip()
        raise CaseError(f"{name} ended with {done.returncode}; the end of its output:\n{said}")
    return done.stdout


def stamp(path: Path, number: int) -> None:
    """Make ``path`` file ``number`` for a file stream, which orders by modification time; in steps of a second, since
    some file systems keep no less."""
    moment = 1_577_836_800 + number
    os.utime(path, (moment, moment))


@contextmanager
def serving(serve: Callable[..., None], *arguments: Any, patience: float = 0) -> Iterator[Connection]:
    """``serve(line, *arguments)`` of a module in a process of its own; the other end of its line. At the end that is
    closed, and the process has ``patience`` seconds to end by itself."""
    processes = multiprocessing.get_context("spawn")
    line, there = processes.Pipe()
    process = processes.Process(target=serve, args=(there, *arguments), daemon=True)
    process.start()
    there.close()  # so that the line ends with the process
    try:
        yield line
    finally:
        line.close()
        process.join(patience)
        process.kill()
        process.join()


def main(what: str, name: str) -> None:
    """Call the function that ``what`` names with what is in the folder; leave the result there."""
    function, folder = pkgutil.resolve_name(what), Path(name)
    *kinds, _ = get_type_hints(function).values()  # the last one is of the result
    given = msgspec.json.decode((folder / "given").read_bytes())
    (folder / "found").write_bytes(msgspec.json.encode(function(*map(msgspec.convert, given, kinds))))
