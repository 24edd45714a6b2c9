"""Metrics as a PNG chart: lines or bars, in one or several panels.

Owns: ``Panel``, ``Series`` and ``draw``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.frame.report import short

COLORS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#b79a20",
    "#e45756",
    "#72b7b2",
    "#b279a2",
    "#9d755d",
    "#9ecae9",
    "#999999",
)


@dataclass(frozen=True)
class Series:
    """One line, or one color of bars: values over ``at`` (numbers, or names of places); ``ends`` are the whiskers."""

    label: str
    at: Sequence[Any]
    values: Sequence[float]
    ends: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Panel:
    """One set of axes. ``bars``: a horizontal bar a place, of which each series has its own; otherwise lines."""

    title: str
    series: Sequence[Series]
    x: str = ""
    y: str = ""
    bars: bool = False
    log: bool = False


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Panels one below the other."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    heights = [0.34 * len(_places(each)) * len(each.series) + 1.0 if each.bars else 4.0 for each in panels]
    figure, grid = plt.subplots(
        len(panels),
        1,
        figsize=(10, 0.8 + sum(heights)),
        layout="constrained",
        squeeze=False,
        height_ratios=heights,
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, wrap=True)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        (_bars if panel.bars else _lines)(axes, panel)
        axes.set_title(panel.title, loc="left", fontsize=9)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        if len(panel.series) > 1:
            axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _places(panel: Panel) -> list[Any]:
    return list(dict.fromkeys(at for series in panel.series for at in series.at))


def _bars(axes: Any, panel: Panel) -> None:
    places, height = _places(panel), 0.8 / len(panel.series)
    for number, series in enumerate(panel.series):
        rows = [places.index(at) + height * (number - (len(panel.series) - 1) / 2) for at in series.at]
        axes.barh(rows, series.values, height, color=COLORS[number % len(COLORS)], label=series.label)
        ends = series.ends or [(value, value) for value in series.values]
        for row, value, (low, high) in zip(rows, series.values, ends, strict=True):
            axes.plot([low, high], [row, row], color="#333333", lw=1)
            axes.annotate(
                short(value) if value >= 100 else f"{value:.3g}",
                (max(value, high), row),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set_yticks(range(len(places)), places, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: short(value) if value >= 100 else f"{value:g}")
    axes.grid(axis="x", alpha=0.3)


def _lines(axes: Any, panel: Panel) -> None:
    places = _places(panel)
    for number, series in enumerate(panel.series):
        axes.plot(
            [places.index(at) for at in series.at],
            series.values,
            marker="o",
            ms=5,
            lw=1.8,
            color=COLORS[number % len(COLORS)],
            label=series.label,
        )
    axes.set_xticks(range(len(places)), [at if isinstance(at, str) else f"{at:,}" for at in places])
    if panel.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(axis="y", which="both", alpha=0.25)
