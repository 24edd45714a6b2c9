"""The comparison as tables and as pictures.

Owns: ``peers_table``, ``itself_table`` and ``write_plots``.
Must not import Spark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from bench.peers.parts import PARTS
from bench.peers.results import Comparison, Figure, Throughput, compare_all, is_ours, ways
from bench.report import short_count

_OURS_COLORS = ("#4c78a8", "#9ecae9", "#f58518", "#ffbf79")
_PEER_COLORS = ("#54a24b", "#88d27a", "#b79a20", "#e45756", "#72b7b2", "#b279a2", "#9d755d")


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    for heading in left:
        table.add_column(heading, overflow="fold")  # not the figures: they need their width
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def peers_table(results: Sequence[Throughput], title: str) -> Table:
    """A row a peer under each piece of work; the last columns say how many times its rows a second ours have."""
    table = _table(
        title,
        ("\nwork and peer",),
        (
            "rows a\nbatch",
            "\nrows/s",
            "\nspread",
            "CPU us\na row",
            "sync /\npeer",
            "async /\npeer",
            "\nspread",
            "\naim",
            "\nmet",
        ),
    )
    comparisons = compare_all(results)
    for work in dict.fromkeys(result.work for result in results):
        here = [result for result in results if result.work == work]
        for way, ours in ways(work):
            shown = [result for result in here if result.peer in ours or not is_ours(result)]
            if not shown:
                continue
            table.add_row(f"[bold]{work}: {here[0].title}{', ' + way if way else ''}[/bold]")
            for number, result in enumerate(shown):
                ratios = [
                    each
                    for name in ours
                    for each in comparisons
                    if (each.work, each.ours, each.peer) == (work, name, result.peer)
                ]
                table.add_row(*_cells(result, ratios, ours), end_section=number + 1 == len(shown))
    return table


def _cells(result: Throughput, ratios: Sequence[Comparison], ours: Sequence[str]) -> tuple[str, ...]:
    name = f"  {result.peer_title}"
    if result.skipped:
        return name, "", "left out"
    if result.failed:
        return name, "", "[red]failed[/red]"
    if not result.checked:
        return name, short_count(result.rows), "[red]WRONG[/red]"
    by_ours = {each.ours: each for each in ratios}
    shown = [f"{_ratio(by_ours[name].ratio)}x" if name in by_ours else "" for name in ours]
    aim = next((each.aim for each in ratios if each.aim is not None), None)
    spread = f"{_ratio(min(r.low for r in ratios))}-{_ratio(max(r.high for r in ratios))}" if ratios else ""
    return (
        name,
        short_count(result.rows),
        short_count(result.rate),
        f"{short_count(min(result.rates))}-{short_count(max(result.rates))}",
        "" if result.cpu_us is None else _ratio(result.cpu_us),
        *shown,
        spread,
        "" if aim is None else f"{aim:g}x",
        "" if aim is None else _met(all(each.met for each in ratios)),
    )


def _ratio(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 99.5 else f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}"


def _met(met: bool | None) -> str:
    if met is None:
        return ""
    return "yes" if met else "[red]no[/red]"


def itself_table(figures: Sequence[Figure], title: str) -> Table:
    """asyncstate beside itself and beside code by hand; microseconds in the order of ``Figure.points``."""
    table = _table(
        title, ("\nwhat",), ("\nus a row", "CPU us\na row", "\nratio", "\nspread", "\naim", "\nmet")
    )
    for number, figure in enumerate(figures):
        last = number + 1 == len(figures) or figures[number + 1].group != figure.group
        table.add_row(
            figure.name,
            _costs(figure.points),
            _costs(figure.cpu_points),
            f"{figure.ratio:.2f}",
            f"{figure.low:.2f}-{figure.high:.2f}",
            "" if figure.aim is None else f"{'<=' if figure.at_most else '>='} {figure.aim:g}",
            "even" if figure.even and not figure.met else _met(figure.met),
            end_section=last,
        )
    return table


def _costs(points: Mapping[str, float]) -> str:
    """One place, but two where it would say nothing: most costs are a few microseconds."""
    return " ".join(f"{cost:.1f}" if cost >= 1 else f"{cost:.2f}" for cost in points.values())


def write_plots(
    results: Sequence[Throughput], figures: Sequence[Figure], folder: Path, title: str
) -> list[Path]:
    """The pictures for which there are figures: throughput, growth of the state, parts of a micro-batch."""
    import matplotlib as mpl

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    measured = [result for result in results if result.checked and result.seconds]
    grown = [figure for figure in figures if figure.group == "growth"]
    with_parts = [result for result in measured if result.parts]
    written = []
    if measured:
        written.append(_draw_throughput(measured, folder / "peers-throughput.png", title))
    if grown:
        written.append(_draw_growth(grown, folder / "peers-growth.png", title))
    if with_parts:
        written.append(_draw_parts(with_parts, folder / "peers-parts.png", title))
    return written


def _figure(height: float, title: str) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, height), layout="constrained")
    _plain(axes)
    _entitle(figure, title)
    return figure, axes


def _plain(axes: Any) -> None:
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _entitle(figure: Any, title: str) -> None:
    """A title as wide as the picture, in as many lines as it takes."""
    figure.suptitle("\n".join(textwrap.wrap(title, 95)), x=0.01, ha="left", fontsize=12)


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _draw_throughput(results: Sequence[Throughput], path: Path, title: str) -> Path:
    """A bar a peer, an axis from 0 for each work; whiskers from the slowest to the quickest micro-batch."""
    import matplotlib.pyplot as plt

    works = list(dict.fromkeys(result.work for result in results))
    rows = [[result for result in results if result.work == work] for work in works]
    heights = [len(here) + 1.6 for here in rows]
    figure, grid = plt.subplots(
        len(works),
        1,
        figsize=(10, 0.8 + 0.3 * sum(heights)),
        layout="constrained",
        height_ratios=heights,
        squeeze=False,
    )
    colors = _colors(results)
    for axes, here in zip(grid[:, 0], rows, strict=True):
        _plain(axes)
        _bars_of(axes, here, colors)
    grid[-1, 0].set_xlabel("rows a second, median; whiskers: slowest and quickest micro-batch")
    _entitle(figure, f"Rows a second: {title}")
    return _save(figure, path)


def _bars_of(axes: Any, results: Sequence[Throughput], colors: Mapping[str, str]) -> None:
    longest = max(max(result.rates) for result in results)
    for place, result in enumerate(results):
        low, high = result.rate - min(result.rates), max(result.rates) - result.rate
        axes.barh(place, result.rate, 0.8, color=colors[result.peer])
        axes.errorbar(result.rate, place, xerr=[[low], [high]], fmt="none", ecolor="#333333", lw=1)
        cpu = "" if result.cpu_us is None else f", CPU {result.cpu_us:.3g} us a row"
        axes.annotate(
            f"{short_count(result.rate)}{cpu}",
            (max(result.rates), place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_title(f"{results[0].work}: {results[0].title}", loc="left", fontsize=9)
    axes.set_yticks(range(len(results)), [result.peer_title for result in results], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.35)
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)


def _colors(results: Sequence[Throughput]) -> dict[str, str]:
    names = list(dict.fromkeys(result.peer for result in results))
    ours = [result.peer for result in results if is_ours(result)]
    mine = [name for name in names if name in ours]
    others = [name for name in names if name not in ours]
    return {name: _OURS_COLORS[index % len(_OURS_COLORS)] for index, name in enumerate(mine)} | {
        name: _PEER_COLORS[index % len(_PEER_COLORS)] for index, name in enumerate(others)
    }


def _points(figure: Figure) -> list[tuple[int, float]]:
    """Keys in the state and microseconds a row, with the state growing."""
    return sorted((int(keys), cost) for keys, cost in figure.points.items())


def _draw_growth(figures: Sequence[Figure], path: Path, title: str) -> Path:
    """Microseconds a row over the keys in the state, a line for each setting."""
    figure, axes = _figure(5.0, f"Cost of a row as the state grows: {title}")
    for number, each in enumerate(figures):
        sizes, costs = zip(*_points(each), strict=True)
        label = each.name.rpartition(", ")[2]
        axes.plot(
            sizes,
            costs,
            marker="o",
            lw=1.8,
            color=_OURS_COLORS[number % len(_OURS_COLORS)],
            label=label,
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(lambda value, _: short_count(value))
    axes.set_xlabel("keys in the state")
    axes.set_ylabel("us a row, one core, without Spark")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return _save(figure, path)


def _draw_parts(results: Sequence[Throughput], path: Path, title: str) -> Path:
    """What a micro-batch of ours went into, a bar a piece of work and mode."""
    import matplotlib as mpl

    figure, axes = _figure(1.8 + 0.4 * len(results), f"Where the time of a micro-batch goes: {title}")
    colors = mpl.colormaps["tab10"]
    left = [0.0] * len(results)
    for number, part in enumerate(PARTS):
        widths = [result.parts[part] / result.rows * 1e6 for result in results]
        axes.barh(range(len(results)), widths, 0.75, left=left, color=colors(number), label=part)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    names = [f"{result.work}: {result.peer_title}" for result in results]
    axes.set_yticks(range(len(results)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("us a row, by the clock")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(frameon=False, ncols=4, fontsize=8, loc="outside lower left")
    return _save(figure, path)
