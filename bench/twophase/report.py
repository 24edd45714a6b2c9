"""The results of the two-phase benchmark as a table.

Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from bench.report import short_count
from bench.twophase.measure import TwoPhaseResult

_HEADINGS = (
    "moved\nrows",
    "left\nrows",
    "one\nms",
    "CPU\nms",
    "two\nms",
    "CPU\nms",
    "two\ntime",
    "two\nCPU",
    "auto\ntime",
    "auto\nCPU",
    "auto\non",
)


def two_phase_table(results: Sequence[TwoPhaseResult], title: str) -> Table:
    """A row a case, within 80 characters: rows in Spark's exchange and at the operator, milliseconds, then what one
    phase costs by what the others do; ``on``: how often ``auto`` chose two phases.
    """
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    table.add_column("\ncase", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.case,
            short_count(result.rows_exchanged),
            short_count(result.rows_operator),
            f"{1_000 * result.one_seconds:,.0f}",
            _milliseconds(result.one_cpu_seconds),
            f"{1_000 * result.two_seconds:,.0f}",
            _milliseconds(result.two_cpu_seconds),
            _times(result.two_ratio),
            _times(result.two_cpu),
            _times(result.auto_ratio),
            _times(result.auto_cpu),
            f"{result.auto_local:.0%}",
        )
    return table


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1_000 * seconds:,.0f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"
