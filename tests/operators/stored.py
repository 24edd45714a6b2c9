"""Checkpoints that were written once and must open for ever: what wrote them.

Owns: ``CASES``, ``begin`` and ``go_on``; ``python -m tests.operators.stored FOLDER`` writes them anew, which only a
change of the stored form may ask for.
Invariant: nothing here depends on where a module of the operators lies.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import (
    Deduplicate,
    GroupAggregate,
    IntervalJoin,
    Join,
    KeyedReduce,
    Rank,
    WindowAggregate,
    WindowApply,
    asc,
    count,
    desc,
    hop,
    max_,
    min_,
    session,
    sum_,
)

ROWS: Final = pa.schema(
    [("k", pa.int64()), ("v", pa.int64()), ("s", pa.string()), ("time", pa.timestamp("us"))]
)
OTHERS: Final = pa.schema([("k", pa.int64()), ("w", pa.int64()), ("at", pa.timestamp("us"))])
SECOND: Final = 1_000_000

Change = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """An operator and how it is run."""

    make: Callable[[], Operator]
    inputs: int = 1
    changelog: bool = False
    timed: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def _window_rows(key: tuple[Any, ...], window: Any, rows: Any) -> Any:
    return [(*key, window.end, len(rows))]


CASES: Final[dict[str, Case]] = {
    "group-aggregate": Case(
        lambda: GroupAggregate([count(), sum_("v"), min_("v"), max_("s")]), changelog=True
    ),
    "deduplicate-last": Case(lambda: Deduplicate("last", "event"), timed=True),
    "deduplicate-first": Case(lambda: Deduplicate("first", "processing")),
    "join-lists": Case(lambda: Join("full"), inputs=2, changelog=True),
    "join-unique": Case(
        lambda: Join("left", left_unique=["s"], right_unique="join_key"), inputs=2, changelog=True
    ),
    "interval-join": Case(
        lambda: IntervalJoin("full", lower="-2 seconds", upper="2 seconds"), inputs=2, timed=True
    ),
    "rank-best": Case(lambda: Rank([desc("v"), asc("s")], 2, rank_column="place")),
    "rank-all": Case(lambda: Rank([desc("v"), asc("s")], 2, rank_column="place"), changelog=True),
    "window-hop": Case(
        lambda: WindowAggregate(hop("4 seconds", "2 seconds"), [count(), sum_("v")]), timed=True
    ),
    "window-session": Case(lambda: WindowAggregate(session("2 seconds"), [count(), max_("v")]), timed=True),
    "reduce": Case(lambda: KeyedReduce(lambda a, b: (a.k, a.v + b.v, a.s, b.time))),
    "window-apply": Case(
        lambda: WindowApply(
            _window_rows,
            session("2 seconds"),
            pa.schema([("k", pa.int64()), ("end", pa.timestamp("us")), ("rows", pa.int64())]),
        ),
        timed=True,
    ),
}


def harness(case: Case, folder: Path, **more: Any) -> OperatorHarness:
    """The case's operator over the checkpoint in ``folder``."""
    schemas, times = [ROWS, OTHERS][: case.inputs], ["time", "at"][: case.inputs]
    return OperatorHarness(
        case.make(),
        schemas if case.inputs > 1 else ROWS,
        [["k"]] * case.inputs if case.inputs > 1 else ["k"],
        event_time=(times if case.inputs > 1 else times[0]) if case.timed else None,
        changelog=case.changelog,
        max_parallelism=4,
        folder=str(folder),
        **case.settings,
        **more,
    )


def _row(number: int) -> tuple[Any, ...]:
    return number % 3, number * 7 % 11, "abcde"[number % 5], number * SECOND // 2


def _other(number: int) -> tuple[Any, ...]:
    return number % 4, number, number * SECOND // 2


def begin(case: Case, running: OperatorHarness) -> None:
    """The first two micro-batches."""
    for start in (0, 12):
        running.push([_row(number) for number in range(start, start + 12)])
        if case.inputs > 1:
            running.push([_other(number) for number in range(start, start + 6)], input=1)
        if case.timed:
            running.advance_watermark(start * SECOND // 2)
        running.end_batch()


def go_on(case: Case, running: OperatorHarness) -> list[tuple[Any, ...]]:
    """What comes after: rows that are taken back, or later ones; then time passes."""
    if case.changelog:
        running.push([_row(4), _row(14), _row(25)], kinds=["-D", "-D", "+I"])
    else:
        running.push([_row(number) for number in range(24, 30)])
    if case.inputs > 1:
        running.push([_other(number) for number in range(26, 30)], input=1)
    if case.timed:
        running.advance_watermark(9 * SECOND)
    return running.end_batch()


def main(folder: Path) -> None:
    """Write the checkpoints."""
    for name, case in CASES.items():
        place = folder / name
        shutil.rmtree(place, ignore_errors=True)
        with harness(case, place) as running:
            begin(case, running)
        for extra in place.iterdir():
            if extra.name != "checkpoint":
                shutil.rmtree(extra) if extra.is_dir() else extra.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
