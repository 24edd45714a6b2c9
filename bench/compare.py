"""What has become worse: two results of a benchmark, or one and the baseline kept in ``baseline``, a file a benchmark.

Owns: ``python -m bench compare``; ``Baseline`` and ``MEASURED``; the verdict on each figure. Invariant: across machines
only ratios taken within one run are compared; a change counts if it is larger than the threshold and the spreads of the
two runs do not overlap. Must not import Spark or asyncstate: what is measured runs in processes of its own.
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from bench.frame import CaseError, Figure, Report, Row, columns, output_of

WORSE = 1
FOLDER = Path(__file__).with_name("baseline")
MEASURED: Mapping[str, tuple[str, ...]] = {
    "micro": ("--rounds", "5"),
    "paradigms": ("--no-slow", "--rounds", "5"),
    "peers": ("--work", "a", "--keys", "1000000", "--peers", "ours-sync,ours-async,spark-changelog"),
}
"""Benchmarks that the baseline is made of, and their options: a few minutes in all."""
COLUMNS = columns("""
    before ratio: before; spread: low_before high_before; after ratio: after; spread: low_after high_after
    gain: gain as times; verdict: verdict
""")
Figures = dict[str, Figure]


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metrics of one benchmark by name, with their commit, date and machine."""

    commit: str
    date: str
    machine: str
    figures: Figures


class _Result(msgspec.Struct):
    results: list[Row]


def compare(
    before: Annotated[Path | None, typer.Argument(help="A file of --output, such as micro.json.")] = None,
    after: Annotated[Path | None, typer.Argument(help="The same file of a later run.")] = None,
    threshold: Annotated[float, typer.Option(min=0, help="Ignore changes up to this fraction.")] = 0.1,
    same_machine: Annotated[bool, typer.Option("--same-machine", help="Of two files: rates, too.")] = False,
    results: Annotated[Path | None, typer.Option(help="An --output to hold against the baseline.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Store the results as the baseline.")] = False,
) -> None:
    """Show what has become worse; exit code 1 if a figure has. With two files the second is held against the first.
    Without any, the benchmarks of the baseline run, some minutes on an idle machine, and are held against it."""
    if (before is None) != (after is None) or (before is not None and (results is not None or update)):
        raise typer.BadParameter("give two files, or none; --results FOLDER takes in a run")
    with Report("compare") as report:
        if before is not None and after is not None:
            old, new = (read_figures(path, same_machine) for path in (before, after))
            if not set(old) & set(new):
                hint = "give two files of the same benchmark (of Nexmark, which has rates only, with --same-machine)"
                raise CaseError(f"{before} and {after} have no metric in common; {hint}")
            _held_against(report, f"{after} against {before}", old, new, threshold)
        else:
            _against_baseline(report, results, threshold, update)
    verdicts = [row.facts["verdict"] for row in report.rows]
    if verdicts:
        better, worse = verdicts.count("better"), verdicts.count("worse")
        report.say(f"{len(verdicts)} figures: {worse} worse, {better} better")
    if "worse" in verdicts:
        raise typer.Exit(WORSE)


def _against_baseline(report: Report, results: Path | None, threshold: float, update: bool) -> None:
    if results is None and not update:  # before minutes of measuring
        for name in MEASURED:
            read_baseline(name)
    for name, now in (_measured(report) if results is None else results_in(results)).items():
        if update:
            report.say(f"written: {write_baseline(name, now)}")
            continue
        kept = read_baseline(name)
        title = f"bench {name} against the baseline of {kept.commit}, {kept.date}, {kept.machine}"
        _held_against(report, title, kept.figures, now, threshold)


def _held_against(report: Report, title: str, before: Figures, after: Figures, threshold: float) -> None:
    """``gain`` is 1 if nothing changed and above 1 if the figure became better."""
    report.section(title, COLUMNS)
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        facts: dict[str, object] = {"verdict": "gone" if new is None else "new" if old is None else ""}
        for when, figure in (("before", old), ("after", new)):
            if figure is not None:
                facts |= {when: figure.value, f"low_{when}": figure.low, f"high_{when}": figure.high}
        if old is not None and new is not None:
            gain = new.value / old.value if new.rate else old.value / new.value
            disjoint = new.low > old.high or new.high < old.low
            if disjoint and not 1 / (1 + threshold) <= gain <= 1 + threshold:
                facts["verdict"] = "better" if gain > 1 else "worse"
            facts["gain"] = gain
        report.add(Row(name=name, facts=facts))


def read_figures(path: Path, same_machine: bool = False) -> Figures:
    """The metrics in a file of ``--output``, by name. Raises CaseError."""
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Result)
    except (OSError, msgspec.MsgspecError) as error:
        why = f"{type(error).__name__}: {error}; give a JSON file that a benchmark wrote with --output"
        raise CaseError(f"{path}: {why}") from None
    found = [pair for row in document.results for pair in row.figures.items()]
    return {name: figure for name, figure in found if same_machine or not figure.absolute}


def read_baseline(benchmark: str) -> Baseline:
    """What is kept of a benchmark. Raises CaseError."""
    path = FOLDER / f"{benchmark}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        raise CaseError(f"{path}: there is no baseline of {benchmark}; --update writes it") from None
    except msgspec.MsgspecError as error:
        hint = "restore it from version control, or write it with --update"
        raise CaseError(f"{path}: {error}; {hint}") from None


def write_baseline(benchmark: str, figures: Figures) -> Path:
    """Keep metrics of this commit and machine, and none of before; a line a figure, so that a difference of versions
    shows what has changed. Four digits: more were never measured. The path of the file."""

    def lines(indent: str, named: Mapping[str, object]) -> str:
        encode = msgspec.json.encode
        pairs = ((encode(name).decode(), encode(value).decode()) for name, value in named.items())
        return ",\n".join(f"{indent}{name}: {value}" for name, value in pairs)

    try:
        commit = output_of("git", "git", "describe", "--always", "--dirty", "--exclude", "*").strip()
    except (OSError, CaseError):
        commit = "unknown"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    kept = {}
    for name, figure in figures.items():
        value, low, high = (float(f"{each:.4g}") for each in (figure.value, figure.low, figure.high))
        kept[name] = Figure(value, low, high, figure.rate)
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{benchmark}.json"
    head = lines(" ", {"commit": commit, "date": today, "machine": machine})
    path.write_text(f'{{\n{head},\n "figures": {{\n{lines("  ", kept)}\n }}\n}}\n')
    return path


def results_in(folder: Path) -> dict[str, Figures]:
    """The metrics of each benchmark of ``MEASURED`` that wrote its results to ``folder``. Raises CaseError."""
    found = {name: folder / f"{name}.json" for name in MEASURED}
    figures = {name: read_figures(path) for name, path in found.items() if path.exists()}
    if not figures:
        names = ", ".join(path.name for path in found.values())
        raise CaseError(f"{folder}: none of {names} exists; give a folder that was an --output")
    return figures


def _measured(report: Report) -> dict[str, Figures]:
    """Run each benchmark of ``MEASURED``. Raises CaseError if one fails."""
    for name, options in MEASURED.items():
        report.tell(" ".join(["python -m bench", name, *options]))
        arguments = "-m", "bench", name, *options, "--output", str(report.folder)
        output_of(f"bench {name}", sys.executable, *arguments)
    return results_in(report.folder)
