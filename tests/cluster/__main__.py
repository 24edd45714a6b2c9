"""The long fault test: ``python -m tests.cluster --rounds 500 --seed 1 --output DIR``.

Owns: options, progress display, JSON and plot; exit codes: 0 good, 1 something was lost, doubled, wrong or hung.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.cluster.cluster import Cluster
from tests.cluster.rounds import Campaign, Draw, Figures
from tests.cluster.story import RECOVERY_SECONDS_MAX

WRONG = 1
console = Console()


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Faults to inject.")] = 500,
    seed: Annotated[int, typer.Option(help="Says which faults happen where; a run can be repeated.")] = 1,
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds from a fault to the next commit; more is a hang.")
    ] = RECOVERY_SECONDS_MAX,
    output: Annotated[Path | None, typer.Option(help="Folder for the JSON file and the plot.")] = None,
) -> None:
    """Kill, fail and damage a query on a real cluster, and compare with the undisturbed run."""
    folder = Path(tempfile.mkdtemp(prefix="asyncstate-cluster-"))
    console.print(f"seed {seed}, {rounds} rounds, files below {folder}")
    with Cluster(folder / "cluster") as cluster, _progress() as progress:
        line = progress.add_task("the undisturbed run", total=rounds)
        campaign = Campaign(cluster, folder, seed, deadline)

        def told(drawn: Draw) -> None:
            figures = campaign.figures
            bad = len(figures.bad_stories)
            text = f"lost {figures.lost_rows}, doubled {figures.doubled_rows}, hangs {figures.hangs}, bad stories {bad}"
            progress.update(line, advance=len(drawn.faults), description=text)
            if output is not None:  # after each story, so that an interrupted run leaves its figures
                _write(output, seed, figures)

        with closing(campaign):
            figures = campaign.run(rounds, seed, told)
    console.print(_table(figures))
    if not figures.good:
        console.print(f"[red]wrong or hung, see[/red] {', '.join(figures.bad_stories)}")
        raise typer.Exit(WRONG)


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def _table(figures: Figures) -> Table:
    table = Table("kind of fault", "happened", "recovered", "p50 s", "p95 s", "max s")
    found: dict[str, Any] = figures.to_dict()
    for kind, happened in sorted(figures.happened.items()):
        seconds = found["recovery_s_by_kind"].get(kind, {})
        cells = [seconds.get(name, "") for name in ("count", "p50", "p95", "max")]
        table.add_row(kind, str(happened), *map(str, cells))
    total = found["recovery_s"]
    table.add_section()
    cells = [total.get(name, "") for name in ("count", "p50", "p95", "max")]
    table.add_row("all", str(sum(figures.happened.values())), *map(str, cells))
    table.caption = (
        f"lost {figures.lost_rows}, doubled {figures.doubled_rows}, wrong entries {figures.wrong_entries}, "
        f"hangs {figures.hangs}, never reached {figures.missed}, rollbacks {figures.rollbacks}"
    )
    return table


def _write(output: Path, seed: int, figures: Figures) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "cluster.json").write_text(json.dumps({"seed": seed, **figures.to_dict()}, indent=2) + "\n")
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    kinds = sorted(figures.recovery_s)
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(kinds) + 1.5))
    axes.boxplot([figures.recovery_s[kind] for kind in kinds], orientation="horizontal", tick_labels=kinds)
    axes.set_xlabel("seconds from the fault to the next commit")
    figure.tight_layout()
    figure.savefig(output / "cluster.png", dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    typer.run(main)
