"""``python -m bench compare``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.compare import baseline
from bench.compare.figures import (
    Change,
    ComparisonError,
    Measured,
    Verdict,
    changes_table,
    compare,
    read_figures,
)

WORSE, CANNOT_RUN = 1, 2
_FILE_WIDTH = 120


def compare_command(
    before: Annotated[
        Path | None,
        typer.Argument(help="A file of --output: micro.json, paradigms.json, nexmark.json, peers.json."),
    ] = None,
    after: Annotated[Path | None, typer.Argument(help="The same file of a later run.")] = None,
    threshold: Annotated[float, typer.Option(min=0, help="Changes up to this part are none.")] = 0.1,
    same_machine: Annotated[
        bool, typer.Option("--same-machine", help="Of two files: compare rates, too, not ratios alone.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(help="Folder of --output to hold against the baseline, instead of measuring."),
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Make the results the baseline.")] = False,
) -> None:
    """Show what has become worse; exit code 1 if a figure has.

    With two files the second is held against the first. Without any, the benchmarks of the baseline run, some minutes
    on an idle machine, and are held against it.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, _FILE_WIDTH))
    try:
        if before is None:
            changes = _against_baseline(console, results, threshold, update)
        elif after is None or results is not None or update:
            raise ComparisonError(
                "give two files, or none and, if the benchmarks have run already, --results FOLDER"
            )
        else:
            changes = _of_two_files(console, before, after, threshold, same_machine)
    except ComparisonError as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(CANNOT_RUN) from None
    if changes and _verdict(console, changes):
        raise typer.Exit(WORSE)


def _of_two_files(
    console: Console, before: Path, after: Path, threshold: float, same_machine: bool
) -> list[Change]:
    found = [read_figures(path, same_machine) for path in (before, after)]
    if not set(found[0]) & set(found[1]):
        raise ComparisonError(
            f"{before} and {after} have no figure in common; give two files of the same benchmark (of Nexmark, "
            "which has rates only, with --same-machine)"
        )
    changes = compare(found[0], found[1], threshold)
    console.print(changes_table(changes, f"{after} against {before}"))
    return changes


def _against_baseline(console: Console, results: Path | None, threshold: float, update: bool) -> list[Change]:
    """The changes of all benchmarks; none if they have become the baseline."""
    if not update and results is None:  # before minutes of measuring
        for name in baseline.MEASURED:
            baseline.read_baseline(name, baseline.FOLDER)
    figures = _measured(console) if results is None else baseline.results_in(results)
    changes: list[Change] = []
    for name, now in figures.items():
        if update:
            written = baseline.write_baseline(name, now, baseline.FOLDER)
            console.print(f"written: {written}", highlight=False, soft_wrap=True)
            continue
        kept = baseline.read_baseline(name, baseline.FOLDER)
        here = compare(kept.figures, now, threshold)
        title = f"bench {name} against the baseline of {kept.commit}, {kept.date}, {kept.machine}"
        console.print(changes_table(here, title))
        changes += here
    return changes


def _measured(console: Console) -> dict[str, dict[str, Measured]]:
    with tempfile.TemporaryDirectory(prefix="asyncstate-compare-") as folder:
        baseline.measure(Path(folder), lambda text: console.print(f"[dim]{text}[/dim]", highlight=False))
        return baseline.results_in(Path(folder))


def _verdict(console: Console, changes: list[Change]) -> int:
    """Says how many figures have become worse, which it returns, and how many better."""
    worse = sum(each.verdict is Verdict.WORSE for each in changes)
    better = sum(each.verdict is Verdict.BETTER for each in changes)
    console.print(f"{len(changes)} figures: {worse} worse, {better} better", highlight=False)
    return worse
