"""The results of the slow-disk benchmark as a table and as a picture.

Owns: ``slow_disk_table`` and ``write_slow_disk_plot``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from bench.slowdisk.measure import SlowDiskResult

_HEADINGS = (
    "sync\nus",
    "CPU\nus",
    "async\nus",
    "CPU\nus",
    "sync /\nasync",
    "reads/\nrecord",
    "thr-\neads",
    "device\nus",
)


def slow_disk_table(results: Sequence[SlowDiskResult], title: str) -> Table:
    """A row a workload and device, within 80 characters; microseconds a record."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("\nworkload", overflow="fold")  # not the figures: they need their width
    table.add_column("\ndevice", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for index, result in enumerate(results):
        first = index == 0 or results[index - 1].workload != result.workload
        last = index + 1 == len(results) or results[index + 1].workload != result.workload
        table.add_row(result.title if first else "", result.device, *_figures(result), end_section=last)
    return table


def _figures(result: SlowDiskResult) -> tuple[str, ...]:
    measured, alone = result.asynchronous, result.device_us
    return (
        f"{result.sync.us_per_record:,.0f}",
        f"{result.sync.cpu_us_per_record:,.0f}",
        f"{measured.us_per_record:,.1f}",
        f"{measured.cpu_us_per_record:,.1f}",
        f"{result.speedup:.2f}x" if result.speedup < 10 else f"{result.speedup:.0f}x",
        "" if measured.reads_per_record is None else f"{measured.reads_per_record:.2f}",
        f"{measured.threads or ''}",
        "" if alone is None else f"{alone:.1f}",
    )


def write_slow_disk_plot(results: Sequence[SlowDiskResult], path: Path, title: str) -> None:
    """A PNG: how many times as fast async is, a line a workload over the devices."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    devices = list(dict.fromkeys(result.device for result in results))
    titles = list(dict.fromkeys(result.title for result in results))
    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    colors = mpl.colormaps["tab10" if len(titles) <= 10 else "tab20"]
    for number, workload in enumerate(titles):
        points = [(devices.index(r.device), r.speedup) for r in results if r.title == workload]
        places, speedups = zip(*points, strict=True)
        axes.plot(places, speedups, marker="o", ms=5, lw=1.8, color=colors(number), label=workload)
    axes.axhline(1, color="#333333", lw=1, ls="--")
    end = max(len(devices) - 1, 0), 1
    axes.annotate("as fast as sync", end, (0, -12), textcoords="offset points", ha="right", fontsize=9)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}x" if f"{value:g}"[0] in "235" else "")
    axes.set_xticks(range(len(devices)), devices)
    axes.set_xlabel("where a read goes; + is latency added to each read of the local disk")
    axes.set_ylabel("time of a record, sync / async")
    axes.set_title(title, loc="left", fontsize=12)
    axes.grid(axis="y", which="both", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
