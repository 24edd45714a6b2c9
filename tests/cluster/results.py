"""What a story left behind, and how it differs from the undisturbed run.

Owns: ``Results`` and ``Difference``. Invariant: everything is compared: all state entries byte by byte, all rows of
all micro-batches in the sink, as multisets.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.cluster.driver import SINKS
from tests.spark.stored import Stored, stored_state

Rows = Counter[tuple[Any, ...]]


@dataclass(frozen=True)
class Results:
    """``rows``: per sink and micro-batch its rows, each as the tuple of its columns."""

    state: Stored
    rows: dict[tuple[str, str], Rows]

    @staticmethod
    def read(story: Path) -> Results:
        folders = {
            (sink, folder.name): folder for sink in SINKS for folder in (story / "sink" / sink).iterdir()
        }
        return Results(
            stored_state(story / "checkpoint"), {name: _rows(path) for name, path in folders.items()}
        )


@dataclass(frozen=True)
class Difference:
    """Counts of rows and state entries that are missing, too many, or of another value."""

    lost_rows: int
    doubled_rows: int
    wrong_entries: int

    def __bool__(self) -> bool:
        return bool(self.lost_rows or self.doubled_rows or self.wrong_entries)


def difference(expected: Results, found: Results) -> Difference:
    """A row that has changed counts as one lost and one doubled."""
    lost = doubled = 0
    for name in expected.rows.keys() | found.rows.keys():
        wanted, got = expected.rows.get(name, Counter()), found.rows.get(name, Counter())
        lost += (wanted - got).total()
        doubled += (got - wanted).total()
    wrong = 0
    for uid in expected.state.keys() | found.state.keys():
        before, after = expected.state.get(uid, {}), found.state.get(uid, {})
        wrong += sum(before.get(key) != after.get(key) for key in before.keys() | after.keys())
    return Difference(lost, doubled, wrong)


def _rows(folder: Path) -> Rows:
    """Rows of a folder's finished files; what an interrupted write left behind starts with "_" or "."."""
    rows: Rows = Counter()
    for path in folder.glob("*.parquet"):
        rows.update(tuple(row.values()) for row in pq.read_table(path).to_pylist())
    return rows
