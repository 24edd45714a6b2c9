"""Results of benchmark runs as a table, as JSON and as a picture.

Owns: ``QueryResult`` and its three forms.
Invariant: a result that was not found right is shown as such in every form.
Must not import Spark or asyncstate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

MODES = ("sync", "async")
_COLORS = {"sync": "#4c78a8", "async": "#f58518"}
_MIB = 1 << 20


class QueryResult(msgspec.Struct, frozen=True, kw_only=True):
    """One query in one mode.

    ``seconds`` runs from the start of the streaming query to the end of the final flush; ``cpu_seconds`` are those of
    processors meanwhile, in driver, JVM and Python workers, None where the system does not tell. ``batch_ms_*`` are
    milliseconds of a micro-batch from its trigger to its commit. ``state_reads`` counts values asked for, of
    which ``cache_hits`` came from memory; ``store_reads`` counts keys read from the store, ``read_batches`` the
    list gets that read several at once. ``state_*`` and ``worker_peak_rss_bytes`` are 0 for a query without state.
    ``problems`` says what was wrong with the result.
    """

    query: str
    description: str
    mode: str
    events: int
    micro_batch_events: int
    seconds: float
    cpu_seconds: float | None = None
    events_per_second: float
    batch_ms_p50: float
    batch_ms_p95: float
    state_reads: int
    store_reads: int
    read_batches: int
    cache_hits: int
    state_bytes: int
    state_entries_estimate: int
    worker_peak_rss_bytes: int
    expected_rows: int
    changelog_rows: int
    checked: bool
    problems: tuple[str, ...] = ()


def short_count(value: float) -> str:
    """Three digits and a unit: 1,234,567 is 1.23M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}"


def _cpu_us(result: QueryResult) -> str:
    return "" if result.cpu_seconds is None else f"{result.cpu_seconds / result.events * 1e6:.3g}"


_COLUMNS: Sequence[tuple[str, Callable[[QueryResult], str]]] = (
    ("events\n/s", lambda r: short_count(r.events_per_second)),
    ("CPU\nus", _cpu_us),
    ("batch\np50", lambda r: f"{r.batch_ms_p50:,.0f}"),
    ("batch\np95", lambda r: f"{r.batch_ms_p95:,.0f}"),
    ("state\nreads", lambda r: short_count(r.state_reads)),
    ("list\ngets", lambda r: short_count(r.read_batches)),
    ("cache\nhits", lambda r: short_count(r.cache_hits)),
    ("state\nMiB", lambda r: f"{r.state_bytes / _MIB:,.1f}"),
    ("\nresult", lambda r: "right" if r.checked else "WRONG"),
)


def results_table(results: Sequence[QueryResult], title: str = "Nexmark") -> Table:
    """A row a query; in a cell of two modes, sync stands over async. Fits 80 characters."""
    units = "batch: ms of a micro-batch; CPU: us of processor time an event, all processes"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    table.caption, table.caption_justify = units, "left"
    table.add_column("\nquery", no_wrap=True)
    table.add_column("\nmode", no_wrap=True)
    for name, _ in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("async\n/sync", justify="right", no_wrap=True)
    for name, by_mode in _by_query(results).items():
        present = [mode for mode in MODES if mode in by_mode]
        cells = ["\n".join(show(by_mode[mode]) for mode in present) for _, show in _COLUMNS]
        table.add_row(name, "\n".join(present), *cells, _speedup(by_mode), end_section=True)
    return table


def write_json(results: Sequence[msgspec.Struct], path: Path, **facts: Any) -> None:
    """All figures and ``facts`` about the run, indented."""
    document = {**facts, "results": [msgspec.to_builtins(result) for result in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def read_json(path: Path) -> list[QueryResult]:
    """The results in a file of ``write_json``."""
    document = msgspec.json.decode(path.read_bytes())
    return msgspec.convert(document["results"], list[QueryResult])


def write_plot(results: Sequence[QueryResult], path: Path, title: str = "Nexmark") -> None:
    """A PNG: throughput and micro-batch time of each query, sync beside async."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    by_query = _by_query(results)
    width = max(8.0, 2.5 + 1.1 * len(by_query))
    figure, (rate, latency) = plt.subplots(2, 1, figsize=(width, 7.5), sharex=True, layout="constrained")
    for mode in MODES:
        _bars(rate, by_query, mode, lambda r: r.events_per_second)
        _bars(latency, by_query, mode, lambda r: r.batch_ms_p50, lambda r: r.batch_ms_p95)
    rate.set_title(title, loc="left", fontsize=13, pad=28)
    rate.set_ylabel("events a second")
    latency.set_ylabel("ms a micro-batch")
    latency.set_xlabel("bars: median; whiskers: up to the 95th percentile", fontsize=9)
    latency.set_xticks(range(len(by_query)), [_tick(name, by_query[name]) for name in by_query])
    for axes in (rate, latency):
        axes.margins(y=0.18)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter(lambda value, _: short_count(value))
    rate.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(
    axes: Any,
    by_query: dict[str, dict[str, QueryResult]],
    mode: str,
    height: Callable[[QueryResult], float],
    top: Callable[[QueryResult], float] | None = None,
) -> None:
    """The bars of one mode with their figures; with ``top`` also a whisker up to it and its figure above."""
    bar = 0.38
    shown = [(place, found[mode]) for place, found in enumerate(by_query.values()) if mode in found]
    if not shown:
        return
    places = [place + (-bar / 2 if mode == "sync" else bar / 2) for place, _ in shown]
    heights = [height(result) for _, result in shown]
    above = [max(top(result) - low, 0) if top else 0 for (_, result), low in zip(shown, heights, strict=True)]
    axes.bar(places, heights, bar, color=_COLORS[mode], label=mode)
    if top:
        none_below = [0] * len(above)
        axes.errorbar(places, heights, (none_below, above), fmt="none", ecolor="#333333", capsize=3, lw=1)
    label = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
    for place, low, high in zip(places, heights, above, strict=True):
        axes.annotate(short_count(low + high), (place, low + high), (0, 3), **label)
        if top:
            axes.annotate(short_count(low), (place, low), (0, -4), va="top", color="white", **label)


def _by_query(results: Sequence[QueryResult]) -> dict[str, dict[str, QueryResult]]:
    grouped: dict[str, dict[str, QueryResult]] = {}
    for result in results:
        grouped.setdefault(result.query, {})[result.mode] = result
    return grouped


def _speedup(by_mode: dict[str, QueryResult]) -> str:
    if len(by_mode) < len(MODES):
        return ""
    return f"{by_mode['async'].events_per_second / by_mode['sync'].events_per_second:.2f}x"


def _tick(name: str, by_mode: dict[str, QueryResult]) -> str:
    return name if all(result.checked for result in by_mode.values()) else f"{name}\nWRONG"
