"""Two results of a benchmark side by side.

Owns: reading what ``--output`` has written, which figures of it can be compared, the verdict on each, and the table.
Invariant: across machines only ratios that were taken within one run are compared; a change counts if it is larger than
the threshold and the spreads of the two runs, where they are known, do not overlap.
Must not import Spark or asyncstate.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.table import Table


class Measured(msgspec.Struct, frozen=True):
    """One figure with its spread; ``rate`` says that more is better."""

    value: float
    low: float
    high: float
    rate: bool


class Verdict(enum.StrEnum):
    """What became of a figure."""

    BETTER = "better"
    WORSE = "worse"
    SAME = ""
    GONE = "gone"
    NEW = "new"


class Change(msgspec.Struct, frozen=True):
    """One figure before and after; ``gain`` is 1 if nothing changed and above 1 if it became better."""

    name: str
    before: Measured | None
    after: Measured | None
    gain: float
    verdict: Verdict


class ComparisonError(Exception):
    """A file that is no result, or two that have nothing in common."""


def read_figures(path: Path, same_machine: bool) -> dict[str, Measured]:
    """The figures in a file of ``--output``, by name. Raises ComparisonError."""
    try:
        document = msgspec.json.decode(path.read_bytes())
        return dict(_figures(document, same_machine))
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise ComparisonError(
            f"{path}: {type(error).__name__}: {error}; give a JSON file that a benchmark has written with --output"
        ) from None


def compare(before: Mapping[str, Measured], after: Mapping[str, Measured], threshold: float) -> list[Change]:
    """Each figure of either; ``threshold`` is the part by which one has to change to count, as 0.1."""
    return [
        _change(name, before.get(name), after.get(name), threshold)
        for name in dict.fromkeys([*before, *after])
    ]


def _change(name: str, before: Measured | None, after: Measured | None, threshold: float) -> Change:
    if before is None or after is None:
        return Change(name, before, after, 1.0, Verdict.GONE if after is None else Verdict.NEW)
    gain = after.value / before.value if after.rate else before.value / after.value
    apart = after.low > before.high or after.high < before.low
    verdict = Verdict.SAME
    if apart and not 1 / (1 + threshold) <= gain <= 1 + threshold:
        verdict = Verdict.BETTER if gain > 1 else Verdict.WORSE
    return Change(name, before, after, gain, verdict)


def _figures(document: Mapping[str, Any], same_machine: bool) -> Iterator[tuple[str, Measured]]:
    for each in document["results"]:
        if "ratio" in each:  # micro
            yield each["name"], Measured(each["ratio"], each["ratio_min"], each["ratio_max"], False)
        elif "speedup_min" in each:  # paradigms
            name = f"{each['number']} {each['name']}, async by sync"
            yield name, Measured(each["speedup"], each["speedup_min"], each["speedup_max"], True)
        elif "events_per_second" in each and same_machine:  # nexmark
            rate = each["events_per_second"]
            yield f"{each['query']} {each['mode']}, events/s", Measured(rate, rate, rate, True)
    for each in document.get("comparisons", ()):  # peers
        name = f"{each['work']}: {each['ours']} by {each['peer']}"
        yield name, Measured(each["ratio"], each["low"], each["high"], True)
    for each in document.get("itself", ()):
        yield each["name"], Measured(each["ratio"], each["low"], each["high"], not each["at_most"])


def changes_table(changes: list[Change], title: str) -> Table:
    """A row a figure."""
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("figure", overflow="fold")
    for heading in ("before", "spread", "after", "spread", "gain", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    colors = {Verdict.BETTER: "green", Verdict.WORSE: "red"}
    for each in changes:
        both = each.before is not None and each.after is not None
        table.add_row(
            each.name,
            *_cells(each.before),
            *_cells(each.after),
            f"{each.gain:.2f}x" if both else "",
            each.verdict,
            style=colors.get(each.verdict),
        )
    return table


def _cells(measured: Measured | None) -> tuple[str, str]:
    if measured is None:
        return "", ""
    return _shown(measured.value), f"{_shown(measured.low)}-{_shown(measured.high)}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"
