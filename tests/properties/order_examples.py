"""Operators whose inputs come in order: TemporalJoin, TemporalSort and Sort."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from operators.core.sort_orders import desc
from operators.join.temporal_join import TemporalJoin
from operators.sort.sort_operators import Sort, TemporalSort
from tests.properties.examples import MICROSECOND, Entries, Example, nullable, small
from tests.properties.histories import (
    History,
    Row,
    Table,
    both,
    changelogs,
    insertions,
    keyed_changelogs,
    on_input,
)
from tests.properties.views import without_waiting_rows

SECOND = 1_000_000
K, AT, VALUE, SEQUENCE = range(4)
LEFT, RIGHT = (pa.schema([("k", pa.int64()), ("at", MICROSECOND), (name, pa.int64())]) for name in ("v", "w"))
_ROW = st.tuples(nullable(small(0, 1)), small(0, 20).map(lambda second: second * SECOND), nullable(small()))


def _one_version_a_time(history: History) -> History:
    """Which of two versions of a key and time is the last one would depend on their order."""
    seen: set[tuple[Any, int]] = set()
    kept = []
    for change in history.changes:
        row = change.records[0].row
        if (row[K], row[AT]) not in seen:
            seen.add((row[K], row[AT]))
            kept.append(change)
    return replace(history, changes=kept)


def with_versions(tables: list[Table], kind: str, conditional: bool, null_safe: bool) -> Table:
    """Each left row with the newest right row of its key that is not newer than itself."""
    out: Table = Counter()
    for left, times in tables[0].items():
        before = [
            right
            for right in tables[1]
            if right[K] == left[K] and right[AT] <= left[AT] and (null_safe or left[K] is not None)
        ]
        partner: Row | None = max(before, key=lambda right: right[AT], default=None)
        if partner is not None and conditional and not _condition(left, partner):
            partner = None
        if partner is not None or kind == "left":
            out[(*left, *(partner or (None,) * 3))] += times
    return out


def _condition(left: Row, right: Row) -> bool:
    return left[VALUE] is not None and right[VALUE] is not None and left[VALUE] <= right[VALUE]


@st.composite
def temporal_joins(draw: st.DrawFn, kind: Any) -> Example:
    """With and without a condition and keys of nulls that match."""
    conditional, null_safe = draw(st.booleans()), draw(st.booleans())
    versions = insertions(_ROW, 9).map(_one_version_a_time).map(lambda one: on_input(one, 1))
    return Example(
        make=lambda: TemporalJoin(
            kind, pc.field("v") <= pc.field("w") if conditional else None, null_safe=null_safe
        ),
        inputs=[LEFT, RIGHT],
        key=[["k"], ["k"]],
        history=draw(both(insertions(_ROW, 9), versions)),
        expected=lambda tables: with_versions(tables, kind, conditional, null_safe),
        settings={"event_time": ["at", "at"], "changelog": False},
        times=[AT, AT],
        view=without_waiting_rows,
    )


@st.composite
def temporal_sorts(draw: st.DrawFn) -> Example:
    """All rows come out; in which order is for tests of their own."""
    return Example(
        make=lambda: TemporalSort(desc("v")),
        inputs=[LEFT],
        key=[draw(st.sampled_from([["k"], None]))],
        history=draw(insertions(_ROW)),
        expected=lambda tables: tables[0],
        settings={"event_time": ["at"], "changelog": False},
        times=[AT],
        view=without_waiting_rows,
    )


@st.composite
def sorts(draw: st.DrawFn, in_sequence: bool = False) -> Example:
    """At the end comes what has not been taken back."""
    rows = st.tuples(nullable(small(0, 1)), _ROW.map(lambda row: row[AT]), nullable(small()), st.just(0))
    logged = keyed_changelogs(rows, lambda row: row[:AT], sequence_at=SEQUENCE)
    return Example(
        make=lambda: Sort([desc("v"), "at"]),
        inputs=[LEFT.append(pa.field("seq", pa.int64())) if in_sequence else LEFT],
        key=[draw(st.sampled_from([["k"], None]))],
        history=draw(logged if in_sequence else changelogs(_ROW)),
        expected=lambda tables: tables[0],
        settings={"event_time": ["at"], "changelog": True, "sequence": "seq" if in_sequence else None},
        times=[AT],
        view=without_waiting_rows,
    )


ORDERED: Entries = {
    "inner temporal join": temporal_joins("inner"),
    "left temporal join": temporal_joins("left"),
    "temporal sort": temporal_sorts(),
    "sort": sorts(),
    "sort in sequence": sorts(in_sequence=True),
}
