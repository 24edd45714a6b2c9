"""Match: patterns whose end is a row, so that ``match_time`` is the time of the last one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from operators import Match, count, last, match_number, skip_past_last, skip_to_next, sum_
from operators.match.pattern import parse_pattern
from tests.operators.match_model import matches
from tests.properties.examples import MICROSECOND, Entries, Example, nullable, small
from tests.properties.histories import Row, Table, insertions
from tests.properties.views import without_waiting_rows

SECOND = 1_000_000
K, AT, V = range(3)
ROWS = pa.schema([("k", pa.int64()), ("at", MICROSECOND), ("v", pa.int64())])
_ROW = st.tuples(nullable(small(0, 1)), small(0, 20).map(lambda second: second * SECOND), small())
_MET = {"A": {0, 1}, "B": {1, 2}, "C": {3}}


@st.composite
def matching(draw: st.DrawFn, text: str, looks_back: bool) -> Example:
    """With and without a time in which it must end; rows of one time in the order of their values."""
    pattern = parse_pattern(text)
    within = draw(st.sampled_from([None, 3 * SECOND, 9 * SECOND]))
    skip = draw(st.sampled_from([skip_past_last(), skip_to_next()]))

    def expected(tables: list[Table]) -> Table:
        out: Table = Table()
        for key in {row[K] for row in tables[0]}:
            keyed = sorted((row for row in tables[0].elements() if row[K] == key), key=lambda row: row[AT:])

            def meets(name: str, row: int, start: int, labels: Any, keyed: list[Row] = keyed) -> bool:
                looks = looks_back and name == "B" and row > start
                return keyed[row][V] in _MET[name] and (not looks or keyed[row - 1][V] < 2)

            found = matches(pattern, [row[AT] for row in keyed], meets, skip, within)
            for number, (start, labels) in enumerate(found, start=1):
                rows = keyed[start : start + len(labels)]
                in_b = [row[V] for row, label in zip(rows, labels, strict=True) if label == "B"]
                out[(key, rows[-1][AT], number, sum(in_b) if in_b else None, len(rows), rows[-1][V])] += 1
        return out

    def make() -> Match:
        define: dict[str, Any] = {
            name: pc.is_in(pc.field("v"), pa.array(sorted(values))) for name, values in _MET.items()
        }
        if looks_back:
            define["B"] = [define["B"], lambda row, match: match.prev() is None or match.prev().v < 2]
        measures = {
            "number": match_number(),
            "sum": sum_("v").where("B"),
            "rows": count(),
            "last": last("v"),
        }
        return Match(pattern, define, measures, within=within, after_match=skip, then="v")

    return Example(
        make=make,
        inputs=[ROWS],
        key=[["k"]],
        history=draw(insertions(_ROW)),
        expected=expected,
        settings={"event_time": ["at"], "changelog": False},
        times=[AT],
        view=without_waiting_rows,
    )


MATCHES: Entries = {
    f"match of {text}{' that looks back' if looks_back else ''}": matching(text, looks_back)
    for text in ("A B C", "A B*? C", "(A | B) B? C")
    for looks_back in (False, True)
}
