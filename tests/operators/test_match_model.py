"""Match: what Python's regular expressions find, and what trying every way finds, whatever the cut and the mode."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import assume, example, given
from hypothesis import strategies as st

from asyncstate.errors import SchemaError
from asyncstate.testing import OperatorHarness
from operators import (
    Match,
    MatchSoFar,
    count,
    first,
    last,
    match_number,
    skip_past_last,
    skip_to_first,
    skip_to_last,
    skip_to_next,
)
from operators.match.automaton import Automaton
from operators.match.matcher import NEVER, FoundMatch, KeyRows, Matcher
from operators.match.pattern import Pattern, as_pattern
from operators.match.skips import Skip
from tests.operators.match_model import PATTERNS, Labels, has_empty_rounds, letters, matches

SIGNS = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us")), ("sign", pa.string()), ("v", pa.int64())])
TAKEN = st.fixed_dictionaries({name: st.sampled_from(["a", "b", "c", "ab", "bc", "abc"]) for name in "ABC"})


LETTERS = dict(zip("ABC", "abc", strict=True))


@given(
    PATTERNS,
    st.text("abc", max_size=12),
    TAKEN,
    st.sampled_from([skip_past_last(), skip_to_next(), skip_to_first("B"), skip_to_last("A")]),
    st.sampled_from([None, 3, 5]),
    st.lists(st.integers(0, 12), max_size=3),
)
@example(as_pattern("((A B)*?)* C"), "ababc", LETTERS, skip_past_last(), None, [])
@example(as_pattern("(A*?){2,} A"), "aaaa", LETTERS, skip_past_last(), None, [])
def test_what_it_finds_is_what_regular_expressions_and_every_way_find(
    pattern: Pattern, rows: str, taken: dict[str, str], skip: Skip, within: int | None, cuts: list[int]
) -> None:
    try:
        automaton = Automaton(pattern, "Match")
    except SchemaError:
        assume(False)  # it prefers to match nothing
    assume(skip.variable is None or skip.variable in automaton.variables)
    matcher = Matcher(automaton, skip, within, {}, 1, "Match")
    masks = [
        sum((sign in taken[name]) << bit for bit, name in enumerate(automaton.variables)) for sign in rows
    ]
    given = KeyRows(masks, range(len(rows)), ())
    found: list[FoundMatch] = []
    start = 0
    for cut in sorted(min(cut, len(rows)) for cut in cuts):  # rows before it, then that they are all
        for horizon in (-NEVER, cut):
            start = matcher.run(given, start, cut, horizon, found)
    assert matcher.run(given, start, len(rows), NEVER, found) == len(rows)
    named = [(one.first, tuple(automaton.variables[index] for index in one.variables)) for one in found]
    assert named == matches(
        pattern, range(len(rows)), lambda name, row, *_: rows[row] in taken[name], skip, within
    )
    if skip == skip_past_last() and within is None and not has_empty_rounds(pattern):
        assert [(one.first, len(one.variables)) for one in found] == letters(pattern, rows, taken)
    at_once: list[FoundMatch] = []
    matcher.run(given, 0, len(rows), NEVER, at_once)
    assert found == at_once, "when a match was certain depends on the cut"


ROW = st.tuples(st.integers(0, 1), st.integers(0, 12), st.sampled_from("abc"), st.integers(0, 3))


class Case(NamedTuple):
    """A declaration, rows in order of time, and where to cut them. ``looking``: variables with a condition that looks
    back, beside that of the row."""

    pattern: Pattern
    taken: dict[str, str]
    looking: set[str]
    skip: Skip
    within: int | None
    rows: list[Any]
    cuts: list[int]

    def operator(self) -> Match:
        """Raises SchemaError for a pattern that is refused."""
        define = {}
        for name in self.pattern.variables():
            of_row = pc.is_in(pc.field("sign"), pa.array([*self.taken[name]]))
            define[name] = [of_row, _rises] if name in self.looking else of_row
        measures = {"number": match_number(), "v": first("v"), "end": last("at"), "rows": count()}
        return Match(self.pattern, define, measures, within=self.within, after_match=self.skip)

    def meets(self, keyed: list[Any], name: str, row: int, start: int, labels: Labels) -> bool:
        if keyed[row][2] not in self.taken[name] or name not in self.looking or row == start:
            return keyed[row][2] in self.taken[name]
        of_first = [keyed[start + at][3] for at, label in enumerate(labels) if label == labels[0]]
        return bool(keyed[row][3] >= keyed[row - 1][3] or sum(of_first) > 3)

    def expected(self) -> list[Any]:
        """Key, number of the match, value of its first row, time of its last one, rows."""
        out = []
        for key in (0, 1):
            keyed = [row for row in self.rows if row[0] == key]
            times = [row[1] for row in keyed]
            found = matches(self.pattern, times, partial(self.meets, keyed), self.skip, self.within)
            for number, (start, labels) in enumerate(found, start=1):
                size = len(labels)
                out.append((key, number, keyed[start][3], times[start + size - 1], size))
        return out


def _rises(row: Any, match: MatchSoFar) -> bool:
    before = match.prev()
    return before is None or row.v >= before.v or sum(one.v for one in match.rows(match.variables[0])) > 3


@st.composite
def cases(draw: st.DrawFn) -> Case:
    pattern = draw(PATTERNS)
    names = st.sampled_from(sorted(set(pattern.variables())))
    skip = draw(
        st.one_of(
            st.sampled_from([skip_past_last(), skip_to_next()]),
            names.map(skip_to_first),
            names.map(skip_to_last),
        )
    )
    rows = sorted(
        draw(st.lists(ROW, min_size=draw(st.sampled_from([0, 8])), max_size=16)), key=lambda row: row[1]
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), min_size=min(len(rows), 2), max_size=4)))
    return Case(
        pattern, draw(TAKEN), draw(st.sets(names)), skip, draw(st.sampled_from([None, 2, 4, 8])), rows, cuts
    )


def run(case: Case, cuts: list[int], async_enabled: bool) -> list[Any]:
    """All that is put out; nothing is left behind but the numbers of matches, and no row would be late behind it."""
    rows, before = case.rows, -1
    with OperatorHarness(
        case.operator(), SIGNS, ["k"], event_time="at", async_enabled=async_enabled, max_parallelism=4
    ) as harness:
        for start, stop in pairwise([0, *cuts, len(rows)]):
            harness.push(rows[start:stop])
            watermark = max(before, rows[stop][1] - 1 if stop < len(rows) else 12)
            harness.advance_watermark(watermark)
            for _, _, match_time, *_ in harness.end_batch():
                assert before < match_time <= watermark + 1
            before = watermark
        harness.finish()
        assert len(harness.state_entries()) == len({row[1] for row in harness.output})
        return harness.output


@given(cases())
def test_neither_cut_nor_mode_matters_and_every_way_is_tried(case: Case) -> None:
    try:
        case.operator()
    except SchemaError:
        assume(False)
    expected = case.expected()
    at_once, *cut = run(case, [], False), run(case, case.cuts, False), run(case, case.cuts, True)
    assert cut[0] == cut[1]
    assert sorted((row[1], *row[3:]) for row in at_once) == sorted(expected)
    assert sorted(cut[0]) == sorted(at_once)
