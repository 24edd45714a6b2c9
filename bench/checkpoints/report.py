"""The results of the checkpoint benchmark as tables and as a picture.

Owns: ``commits_table``, ``recovery_table``, ``sizes_table`` and ``write_sizes_plot``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from bench.checkpoints.commits import CommitResult
from bench.checkpoints.recovery import RecoveryResult
from bench.checkpoints.sizes import SizeResult

_KIB, _MIB = 1 << 10, 1 << 20
CHANGED, STATE, WHOLE = "changed keys", "state", "long run"
"""Series of sizes: what grows, or that the run is long enough for the whole state to be rewritten."""

_COMMITS_NOTE = (
    "without: the same micro-batch, its changes written to a sorted file and ingested by the local store; no file in "
    "the checkpoint, no checksums, no sync, no snapshot, no manifest. Medians; over: what a checkpoint adds: median of "
    "the pairs without a snapshot, of those with one, and the mean over a snapshot interval."
)
_RECOVERY_NOTE = (
    "replay, most favourable to it: the operator alone over all micro-batches that made the state, without reading "
    "the input, without Spark, without a checkpoint. Recovery: new process, no local store, files in the page cache; "
    "until a first read, and until a first micro-batch is done and the store given back."
)
_SIZES_NOTE = (
    "KiB a micro-batch. snapshots: what they upload, shared out over their interval; if whole: what they would take if "
    "each uploaded the whole state; rewrites: snapshots that had no table in common with the one before. At the start "
    "the state is one sorted run; in a long run each key is changed five times on average."
)


def _table(title: str, note: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        caption=note,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for name in names:
        table.add_column(name, no_wrap=True)
    for figure in figures:
        table.add_column(figure, justify="right", no_wrap=True)
    return table


def commits_table(results: Sequence[CommitResult]) -> Table:
    """A row a measurement, within 80 characters; milliseconds a micro-batch."""
    headings = (
        "changed\nkeys",
        "without\nms",
        "CPU\nms",
        "with\nms",
        "CPU\nms",
        "snap\nms",
        "over\nplain",
        "over\nsnap",
        "over\nmean",
        "\naim",
    )
    keys = f", {results[0].state_keys:,} keys a partition" if results else ""
    table = _table(f"Commits{keys}", _COMMITS_NOTE, ["\njob"], headings)
    for result in results:
        table.add_row(
            result.name,
            f"{result.changed_keys:,}",
            f"{result.without_ms:,.0f}",
            _milliseconds(result.without_cpu_ms),
            f"{result.plain_ms:,.0f}",
            _milliseconds(result.plain_cpu_ms),
            f"{result.snapshot_ms:,.0f}",
            *(f"{100 * over:.1f}%" for over in (result.plain, result.snapshot, result.every)),
            "" if result.aim is None else f"{result.aim:.0%}",
        )
    return table


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def recovery_table(results: Sequence[RecoveryResult]) -> Table:
    """A row a way of recovery, within 80 characters; seconds."""
    headings = (
        "\nMiB",
        "replay\ns",
        "CPU\ns",
        "read\ns",
        "CPU\ns",
        "replay\n/read",
        "batch\ns",
        "CPU\ns",
        "replay\n/batch",
        "\naim",
    )
    title = ""
    if results:
        some = results[0]
        title = (
            f"Recovery of {some.state_keys:,} keys: a snapshot of {some.snapshot_bytes / _MIB:,.1f} MiB and "
            f"{some.deltas} deltas of {some.changed_keys:,} keys"
        )
    table = _table(title, _RECOVERY_NOTE, ["\nway"], headings)
    for result in results:
        table.add_row(
            result.name,
            f"{(result.snapshot_bytes + result.delta_bytes) / _MIB:,.1f}",
            f"{result.replay_s:.1f}",
            f"{result.replay_cpu_s:.1f}",
            f"{result.open_s:.2f}",
            f"{result.open_cpu_s:.2f}",
            f"{result.open_ratio:,.0f}x",
            f"{result.first_batch_s:.2f}",
            f"{result.first_batch_cpu_s:.2f}",
            f"{result.first_batch_ratio:,.0f}x",
            f"{result.aim:.0f}x",
        )
    return table


def sizes_table(results: Sequence[SizeResult]) -> Table:
    """A row a measurement, within 80 characters; KiB a micro-batch."""
    headings = (
        "changed\nkeys",
        "state\nkeys",
        "state\nMiB",
        "\ndelta",
        "snap-\nshots",
        "if\nwhole",
        "\ndriver",
        "re-\nwrites",
    )
    table = _table("Bytes in the checkpoint", _SIZES_NOTE, ["\ngrowing"], headings)
    for index, result in enumerate(results):
        table.add_row(
            result.series if index == 0 or results[index - 1].series != result.series else "",
            f"{result.changed_keys:,}",
            f"{result.state_keys:,}",
            f"{result.state_bytes / _MIB:,.1f}",
            *map(_kib, (result.delta_bytes, result.snapshot_bytes, result.whole_bytes, result.driver_bytes)),
            f"{result.rewrites}/{result.snapshots}",
            end_section=index + 1 == len(results) or results[index + 1].series != result.series,
        )
    return table


def _kib(size_bytes: float) -> str:
    kib = size_bytes / _KIB
    return f"{kib:,.1f}" if kib < 100 else f"{kib:,.0f}"


def write_sizes_plot(results: Sequence[SizeResult], path: Path, title: str) -> None:
    """A PNG: bytes a micro-batch as changed keys grow, and as the state grows."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
    changing = [result for result in results if result.series == CHANGED]
    growing = [result for result in results if result.series == STATE]
    _curves(left, changing, [result.changed_keys for result in changing])
    _curves(right, growing, [result.state_keys for result in growing])
    left.set_xlabel(f"changed keys a micro-batch (state: {changing[0].state_keys:,} keys)")
    right.set_xlabel(f"keys in the state (changed: {growing[0].changed_keys:,} a micro-batch)")
    left.set_ylabel("KiB a micro-batch")
    left.set_title(title, loc="left", fontsize=12)
    left.legend(frameon=False, fontsize=9, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _curves(axes: Any, results: Sequence[SizeResult], places: Sequence[int]) -> None:
    curves = (
        ("delta", "#4c78a8", "-", [result.delta_bytes for result in results]),
        (
            "delta and snapshots",
            "#f58518",
            "-",
            [result.delta_bytes + result.snapshot_bytes for result in results],
        ),
        (
            "if snapshots were whole",
            "#999999",
            "--",
            [result.delta_bytes + result.whole_bytes for result in results],
        ),
    )
    for label, color, style, heights in curves:
        kib = [height / _KIB for height in heights]
        axes.plot(places, kib, marker="o", ms=5, lw=1.8, color=color, ls=style, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
