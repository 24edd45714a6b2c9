"""How a benchmark measures: sides in turns, medians of pairs, and a case in a process of its own.

Owns: ``turns``, ``medians``, ``ratio``, ``isolated``, ``CaseError`` and ``WrongResult``.
Invariant: a ratio is a median over rounds, of two runs
that followed each other.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_type_hints

import msgspec

from bench.processor_time import Clocks, Spent, TreeClocks

ROOT = Path(__file__).resolve().parents[2]
LAST_WORDS = 2_000
_TIMEOUT_S = 4 * 3_600
_CHILD = "import sys; from bench.frame.measure import main; main(*sys.argv[1:])"
T = TypeVar("T")
P = ParamSpec("P")

Side = Callable[[Any], Spent | None]
"""Does one round's work; may say itself what it took, where not all of the call counts."""


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
    clocks: type[Clocks] | type[TreeClocks] = Clocks,
) -> dict[str, list[Spent]]:
    """What each side takes in ``rounds`` rounds, after ``warm_up`` ones that do not count.

    All sides of a round get the same of ``given``. The order turns round each time unless ``turned`` is False, and
    garbage is collected before each run, so that no side pays for another.
    """
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    for number in range(warm_up + rounds):
        this = None if given is None else next(given)
        for name in list(sides)[:: -1 if turned and number % 2 else 1]:
            gc.collect()
            started = clocks()
            said = sides[name](this)
            spent[name].append(said or started.spent())
    return {name: found[warm_up:] for name, found in spent.items()}


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


def isolated(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """``function`` of a module in a process of its own, so that heap, caches and highest memory are its alone.

    Arguments and result travel as JSON by their annotated types. Raises CaseError if the process fails or takes hours.
    """
    return isolated_in(None, function, *arguments, **named)


def isolated_in(
    environment: Mapping[str, str] | None, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """As ``isolated``, with these variables instead of this process's."""
    assert not named, "by position"
    what = f"{function.__module__}:{function.__qualname__}"
    with tempfile.TemporaryDirectory(prefix="asyncstate-case-") as name:
        folder = Path(name)
        (folder / "given").write_bytes(msgspec.json.encode(arguments))
        command = [sys.executable, "-c", _CHILD, what, name]
        with (folder / "log").open("wb") as log:
            try:
                code = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    stdout=log,
                    stderr=log,
                    timeout=_TIMEOUT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise CaseError(
                    f"no result after {_TIMEOUT_S / 3_600:g} hours; the process was ended"
                ) from None
        if code or not (folder / "found").exists():
            said = (folder / "log").read_text(errors="replace")[-LAST_WORDS:].strip()
            raise CaseError(f"its process ended with {code}; the end of its output:\n{said}")
        found: T = msgspec.json.decode(
            (folder / "found").read_bytes(), type=get_type_hints(function)["return"]
        )
        return found


def main(what: str, name: str) -> None:
    """Call the function that ``what`` names with what is in the folder; leave the result there."""
    module, _, function_name = what.partition(":")
    function = getattr(importlib.import_module(module), function_name)
    hints = get_type_hints(function)
    hints.pop("return")
    given = msgspec.json.decode((Path(name) / "given").read_bytes())
    arguments = [msgspec.convert(value, kind) for value, kind in zip(given, hints.values(), strict=False)]
    (Path(name) / "found").write_bytes(msgspec.json.encode(function(*arguments)))
