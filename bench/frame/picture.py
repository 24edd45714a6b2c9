"""A table as a PNG: a panel for each of its columns that is drawn, a bar for each of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.frame.report import Column, Row

_WIDE = 50
"""From this ratio between the longest bar and the shortest on, the axis is logarithmic."""


def draw(path: Path, title: str, rows: Sequence[Row], columns: Sequence[Column]) -> bool:
    """Write the picture; False if no column is drawn. Rows of one name, such as a mode, have one color."""
    panels = [
        (column, bars)
        for column in columns
        if column.bars is not None and (bars := [row for row in rows if column.fact in row.facts])
    ]
    if not panels:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(row.name for row in rows))
    heights = [0.3 * len(bars) + 1.0 for _, bars in panels]
    size: dict[str, Any] = {"figsize": (10, 0.8 + sum(heights)), "height_ratios": heights}
    figure, grid = plt.subplots(len(panels), 1, layout="constrained", squeeze=False, **size)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, wrap=True)
    for axes, (column, bars) in zip(grid[:, 0], panels, strict=True):
        colors = [f"C{names.index(row.name) % 10}" if len(names) < len(rows) else "C0" for row in bars]
        _panel(axes, column, bars, colors)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return True


def _panel(axes: Any, column: Column, rows: Sequence[Row], colors: Sequence[str]) -> None:
    values = [row.facts[column.fact] for row in rows]
    axes.barh(range(len(rows)), values, 0.8, color=colors)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        low, high = (row.facts.get(name, value) for name in (column.bars or "").split() or (column.fact,) * 2)
        axes.plot([low, high], [place, place], color="#333333", lw=1)
        at = (max(value, high), place)
        axes.annotate(column.shown(value), at, (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    if min(values) > 0 and max(values) > _WIDE * min(values):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=min(0, *values))
    axes.set_xlabel(column.heading)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
