"""The figures as tables.

Owns: ``fixed_table`` and ``latency_table``.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from bench.latency.fixed import FixedCost
    from bench.latency.steady import Latency


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("\nwork and engine", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def fixed_table(costs: Sequence[FixedCost]) -> Table:
    """A row an engine under each work; by size, milliseconds with the quickest and slowest, and the processor's."""
    sizes = list(dict.fromkeys(cost.rows for cost in costs))
    headings = [f"{size:,} rows\n{unit}" for size in sizes for unit in ("ms", "spread", "CPU ms")]
    table = _table("A micro-batch of few rows, trigger to commit; medians", headings)
    for work, title in dict.fromkeys((cost.work, cost.title) for cost in costs):
        table.add_row(f"[bold]{work}: {title}[/bold]")
        here = {(cost.engine, cost.rows): cost for cost in costs if cost.work == work}
        names = dict.fromkeys((cost.engine, cost.engine_title) for cost in here.values())
        for number, (engine, name) in enumerate(names):
            cells = [cell for size in sizes for cell in _cost_cells(here[engine, size])]
            table.add_row(f"  {name}", *cells, end_section=number + 1 == len(names))
    return table


def _cost_cells(cost: FixedCost) -> tuple[str, str, str]:
    low, high = min(cost.seconds) * 1e3, max(cost.seconds) * 1e3
    cpu = "" if cost.cpu_ms is None else f"{cost.cpu_ms:,.0f}"
    return f"{cost.ms:,.0f}", f"{low:,.0f}-{high:,.0f}", cpu


def latency_table(late: Sequence[Latency]) -> Table:
    """A row an engine under each work."""
    headings = ("events\n/s", "p50\nms", "p95\nms", "max\nms", "events\na batch", "cores\nbusy", "\nresult")
    table = _table("From event to output, default trigger, at a steady rate", headings)
    for work, title in dict.fromkeys((each.work, each.title) for each in late):
        here = [each for each in late if each.work == work]
        table.add_row(f"[bold]{work}: {title}[/bold]")
        for number, each in enumerate(here):
            table.add_row(
                f"  {each.engine_title}",
                f"{each.rate:,}",
                *(f"{value:,.0f}" for value in (each.p50_ms, each.p95_ms, each.max_ms, each.batch_events)),
                "" if each.cpu_share is None else f"{each.cpu_share:.2f}",
                "[red]WRONG[/red]" if each.problems else "right",
                end_section=number + 1 == len(here),
            )
    return table
