"""Match: the language of patterns, what is refused, when rows come, what is kept, restarts, bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given

from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.testing import OperatorHarness, PipelineHarness, PipelineSource
from operators import (
    Match,
    WindowAggregate,
    avg,
    count,
    first,
    last,
    match_number,
    skip_past_last,
    skip_to_first,
    skip_to_last,
    skip_to_next,
    string_agg,
    sum_,
    tumble,
    variable,
)
from operators.core.condition import RowCondition
from operators.match.automaton import Automaton
from operators.match.matcher import NEVER, FoundMatch, KeyRows, Matcher
from operators.match.pattern import as_pattern, parse_pattern
from operators.match.skips import Skip
from tests.operators.match_model import PATTERNS

SIGNS = pa.schema([("k", pa.int64()), ("sign", pa.string()), ("at", pa.timestamp("us"))])
MODES = pytest.mark.parametrize("async_enabled", [False, True], ids=["sync", "async"])
A, B, C = map(variable, "ABC")


def of_signs(names: str = "ABC") -> dict[str, pc.Expression]:
    return {name: pc.field("sign") == name.lower() for name in names}


def match(pattern: Any, measures: Any = None, **settings: Any) -> Match:
    measures = {"signs": string_agg("sign", "")} if measures is None else measures
    define = of_signs("".join(sorted(set(str(pattern)) & set("ABC"))))
    return Match(pattern, settings.pop("define", define), measures, **settings)


def harness(operator: Match, **settings: Any) -> OperatorHarness:
    given = {"event_time": "at", "max_parallelism": 8, **settings}
    return OperatorHarness(operator, SIGNS, given.pop("key", ["k"]), **given)


def rows(signs: str, start: int = 1, key: int = 1) -> list[Any]:
    """A row a sign and microsecond; a space is a microsecond without one."""
    return [(key, sign, start + at) for at, sign in enumerate(signs) if sign != " "]


def run(operator: Match, signs: str, watermark: int | None = None, **settings: Any) -> list[Any]:
    """What comes of the signs when the watermark has passed them, but no more."""
    with harness(operator, **settings) as one:
        one.push(rows(signs))
        one.advance_watermark(len(signs) if watermark is None else watermark)
        return [row[1:] for row in one.end_batch()]


# -- the language --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        ("A", A),
        ("A B|C", A + B | C),
        ("A (B | C)", A + (B | C)),
        ("A B{2,5}? C+ (A | B)", A + B.times(2, 5, reluctant=True) + C.one_or_more() + (A | B)),
        ("(A B)*  C??", (A + B).zero_or_more() + C.optional(reluctant=True)),
        ("A{3} B{2,} C{,4}", A.times(3) + B.times_or_more(2) + C.times(0, 4)),
        ("(A*)?{2}", None),
        ("A{ 1 , 2 }+", None),
        ("(((A)))", A),
        ("A+? B*? C??", "A+?" + B.zero_or_more(reluctant=True) + "C??"),
    ],
)
def test_patterns_as_text_and_as_objects(text: str, objects: Any) -> None:
    if objects is None:
        with pytest.raises(SchemaError, match="at character"):
            parse_pattern(text)
    else:
        assert parse_pattern(text) == objects
        assert parse_pattern(str(objects)) == objects


@given(PATTERNS)
def test_the_text_of_a_pattern_says_it(pattern: Any) -> None:
    # what is in a group of the same kind says the same without it
    assert parse_pattern(pattern.text).text == pattern.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"pattern '': expected a name or '\(' at character 1"),
        ("A (B", r"pattern 'A \(B': expected '\)' at character 5"),
        ("A B)", r"expected the end, a name or '\(' at character 4, before '\)'"),
        ("A | | B", r"expected a name or '\(' at character 5"),
        ("A $ B", r"expected a name, .* at character 3, before '\$ B'"),
        ("A{,}", r"expected a number between \{ and \} at character 2"),
        ("A{3,2}", "never matches a row"),
        ("A{0}", "never matches a row"),
        ("(" * 60 + "A" + ")" * 60, "more than 50 nested groups"),
        ("A{" + "9" * 5_000 + "}", "a number beyond 1,000,000,000 at character 2"),
        ("A B " * 100_000, r"the text has 400,000 characters, but at most 10,000 are allowed"),
    ],
)
def test_what_is_wrong_in_a_text(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_pattern(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: parse_pattern("A B " * 100_000),
        lambda: parse_pattern("A " * 4_000 + "$"),
        lambda: match("A " * 4_000, define={}),
        lambda: match("A" * 9_000, define={"B": pc.field("sign") == "b"}),
        lambda: variable("1" * 400_000),
        lambda: A.times(10**5_000),
        lambda: match(b"A" * 400_000),
    ],
)
def test_errors_show_the_beginning_of_a_long_pattern(make: Callable[[], Any]) -> None:
    with pytest.raises(SchemaError) as raised:
        make()
    assert len(str(raised.value)) < 1_000


# -- refusals ------------------------------------------------------------------------------------------------

_REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Match(5), "pattern 5: give a string"),  # type: ignore[arg-type]
    (lambda: variable("1"), "pattern variable '1': give a name"),
    (lambda: A.times(-1), "not a number of times"),
    (lambda: match("A B", define=of_signs("ABX")), "define has a condition of 'X'.*its variables are: A, B"),
    (lambda: match("A B C", define={"A": "a"}), "the condition of 'A' is 'a'; give a pyarrow expression"),
    (lambda: match("A", define={"A": lambda: True}), "the condition of 'A' is <function"),
    (lambda: match("A", define=[]), "define is .*; give a dict"),
    (lambda: match("A B*", define={}), r"ends with a greedy quantifier without bound \('B'\)"),
    (lambda: match("A (B C)+", define={}), r"without bound \('C'\)"),
    (lambda: match("A | B+", define={}), r"without bound \('B'\)"),
    (lambda: match("A*?", define={}), "prefers to match no row at all"),
    (lambda: match("A{1001}", define={}), "more than 1000 places"),
    (
        lambda: match(" ".join(f"V{number}" for number in range(63)), define={}),
        "63 variables, but at most 62 are allowed",
    ),
    (lambda: match("A B C", within="0 seconds"), "within is 0 microseconds; give a duration above 0"),
    (lambda: match("A B C", within="soon"), "within is 'soon', which is not a duration"),
    (lambda: match("A B C", after_match="B"), "after_match is 'B'; give skip_past_last"),
    (
        lambda: match("A B C", after_match=skip_to_last("X")),
        "skip to last X: pattern 'A B C' has no such variable",
    ),
    (lambda: match("A B C", after_match=skip_to_first("A")), "the first row of every match"),
    (lambda: match("A B C", after_match=skip_to_last("A")), "the first row of every match"),
    (lambda: match("A B C", budget=0), "budget is 0; give a number of at least 1"),
    (lambda: match("A B C", time="row"), "time is 'row'"),
    (lambda: match("A B C", late_output="late", time="processing"), "late_output has no effect"),
    (lambda: match("A B C", ["sign"]), "measures is .*; give a dict"),
    (lambda: match("A B C", {"x": "sign"}), "measure 'x' is 'sign'; give first"),
]


@pytest.mark.parametrize(("make", "message"), _REFUSED)
def test_wrong_declarations(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        make()


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (last("price"), "measure 'x': input 0 has no column 'price'"),
        (last("sign", "X"), "measure 'x': pattern 'A B C' has no variable 'X'; its variables are: A, B, C"),
        (last("sign", "A", -1), "measure 'x': offset is -1"),
        (
            count().where("X"),
            r"where\('X'\): there is no such boolean column, and pattern 'A B C' has no variable 'X'",
        ),
        (avg("sign"), "needs an integer, float or decimal"),
    ],
)
def test_wrong_measures(measure: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        harness(match("A B C", {"x": measure}))


def test_what_does_not_fit_the_input() -> None:
    with pytest.raises(SchemaError, match="define of 'A': the condition .* does not fit the columns"):
        harness(Match("A", {"A": pc.field("price") > 0}))
    with pytest.raises(SchemaError, match="two output columns have the name 'k'"):
        harness(match("A B C", {"k": match_number()}))
    with pytest.raises(SchemaError, match="two output columns have the name 'match_time'"):
        harness(match("A B C", {"match_time": match_number()}))
    with pytest.raises(SchemaError, match="time='event' needs an event time"):
        harness(match("A B C"), event_time=None)
    with pytest.raises(SchemaError, match="changelog"):
        harness(match("A B C"), changelog=True)
    with pytest.raises(SchemaError, match=r"where\('k'\) is ambiguous"):
        harness(Match("k A", {}, {"x": count().where("k")}))


# -- when a match comes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "signs", "expected"),
    [
        ("A B", "ab", [(2, "ab")]),  # at once
        ("A B+ C", "abbc", [(4, "abbc")]),
        ("A B{1,3}", "abb", []),  # one more could come
        ("A B{1,3}", "abbb", [(4, "abbb")]),
        ("A B{1,3}", "abbcab", [(4, "abb")]),  # the row that ends it makes it certain
        ("A B{1,3}?", "abb", [(2, "ab")]),
        ("A B C | A", "ab", []),  # a preferred one could come
        ("A B C | A", "abbabc", [(3, "a"), (6, "abc")]),
        ("A | A B", "ab", [(1, "a")]),
        ("A? B?", "cabc", [(3, "ab")]),  # what is empty gives nothing
        ("(A | B){2} C", "bac", [(3, "bac")]),
        ("A (B C)* A", "abca", [(4, "abca")]),
    ],
)
def test_a_match_comes_once_it_is_certain(pattern: str, signs: str, expected: list[Any]) -> None:
    assert run(match(pattern), signs) == [(1, *row) for row in expected]


def test_the_end_of_the_input_makes_every_match_certain() -> None:
    with harness(match("A B{1,3} | C C C | C")) as one:
        one.push(rows("abb") + rows("cc", key=2))
        assert one.finish() == [("+I", 1, 3, "abb"), ("+I", 2, 2, "c"), ("+I", 2, 2, "c")]
        assert not one.state_entries()


@MODES
def test_within_ends_what_waits_and_frees_its_rows(async_enabled: bool) -> None:
    operator = match("A B*", within=10)
    with harness(operator, async_enabled=async_enabled) as one:
        one.push(rows("ab") + rows("a", key=2))
        one.advance_watermark(9)
        assert one.end_batch() == []
        one.advance_watermark(10)  # the row of time 11 is none of it
        assert sorted(one.end_batch()) == [("+I", 1, 11, "ab"), ("+I", 2, 11, "a")]
        assert not one.state_entries()


def test_within_is_less_than_the_time_between_first_and_last() -> None:
    assert run(match("A B", within=3), "a  b") == []
    assert run(match("A B", within=4), "a  b") == [(1, 4, "ab")]
    assert run(match("A B", within=3), "a  bab") == [(1, 6, "ab")]
    # the third A comes too early for the B of the first one's match, not for that of the second's
    assert run(match("A+ B", within=3), "aaab") == [(1, 4, "aab")]


def test_what_timed_out_lets_the_matches_go_that_it_held_back() -> None:
    """The first A waits for a C until time 21; then B B, which begins behind it, is a match of long ago."""
    operator = match("A B* C | B B", within=20)
    with harness(operator) as one:
        one.push(rows("abb"))
        one.advance_watermark(19)
        assert one.end_batch() == []
        one.advance_watermark(20)
        assert one.end_batch() == [("+I", 1, 21, "bb")]
        assert not one.state_entries()


def test_match_time_has_the_unit_of_the_event_time() -> None:
    for unit, expected in (("s", 1), ("ms", 1_500), ("us", 1_500_001), ("ns", 1_500_001_000)):
        schema = pa.schema([("sign", pa.string()), ("at", pa.timestamp(unit, "UTC"))])
        with OperatorHarness(match("A B*", within=500_001), schema, None, event_time="at") as one:
            column = pa.array([1_000_000]).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp(unit, "UTC"))
            one.push(pa.record_batch([pa.array(["a"]), column], schema=schema))
            assert one.finish() == [("+I", expected, "a")]


# -- what is kept --------------------------------------------------------------------------------------------


@MODES
def test_only_keys_with_a_live_start_keep_anything(async_enabled: bool) -> None:
    with harness(match("A B C"), async_enabled=async_enabled, parallelism=2) as one:
        for number, signs in enumerate(["bcb", "cca", "b"]):
            one.push([row for key in range(20) for row in rows(signs, 1 + 3 * number, key)])
            one.advance_watermark(min(3 + 3 * number, 7))
            assert one.end_batch() == []
            # rows and when they are out of time
            assert len(one.state_entries()) == (0 if number == 0 else 40)
        one.push([row for key in range(20) for row in rows("b" if key else "c", 8, key)])
        one.advance_watermark(8)
        assert one.end_batch() == [("+I", 0, 8, "abc")]
        assert not one.state_entries()


@MODES
def test_matches_are_numbered_over_micro_batches(async_enabled: bool) -> None:
    measures = {"number": match_number(), "end": last("at")}
    with harness(match("A B", measures), async_enabled=async_enabled) as one:
        for start, expected in ((1, [1, 2]), (5, [3, 4])):
            one.push(rows("abab", start) + rows("ab", start, 2))
            one.advance_watermark(start + 3)
            assert [row[3] for row in one.end_batch() if row[1] == 1] == expected
        assert len(one.state_entries()) == 2


@MODES
def test_restarts_and_rescales_between_all_micro_batches(async_enabled: bool) -> None:
    """Fifty keys, a match across four micro-batches, each on another number of partitions and in the other mode."""
    operator = match("A B{2,} C", {"signs": string_agg("sign", ""), "rows": count().where("B")}, within=100)
    one = harness(operator, parallelism=1, async_enabled=async_enabled)
    for number, signs in enumerate(["ba", "b", "bb", "c"]):
        one.push([row for key in range(50) for row in rows(signs, 1 + 2 * number, key)])
        one.advance_watermark(2 + 2 * number)
        done = one.end_batch()
        snapshot = one.snapshot()
        after = one.restore(snapshot, parallelism=number + 2, async_enabled=async_enabled == bool(number % 2))
        one.close()
        one = after
    assert sorted(done) == [("+I", key, 7, "abbbc", 3) for key in range(50)]
    assert not one.state_entries()
    one.close()


@pytest.mark.parametrize(
    "other", [match("A B+ C"), match("A B C", within=10), match("A B C", time="processing")]
)
def test_rows_kept_for_another_pattern_are_refused(other: Match) -> None:
    with harness(match("A B C")) as one:
        one.push(rows("ab"))
        one.end_batch()
        with pytest.raises(
            StateDeclarationError,
            match="another program wrote its state: (pattern|within|time) was |input 0 was ordered by at",
        ):
            one.restore(one.snapshot(), operator=other)


# -- order ---------------------------------------------------------------------------------------------------


def test_rows_come_in_order_of_time_and_late_ones_go_to_their_output() -> None:
    operator = match("A B C", late_output="late")
    with harness(operator) as one:
        one.push(rows("abc")[::-1])
        one.advance_watermark(2)
        assert one.end_batch() == []
        one.push([(1, "c", 2)])
        one.advance_watermark(3)
        assert one.end_batch() == [("+I", 1, 3, "abc")]
        assert one.side_output("late") == [("+I", 1, "c", 2)]
        assert one.statistics()["counter.late_rows_dropped"] == 1


def test_rows_of_one_time_come_in_the_order_asked_for() -> None:
    signs = [(1, "c", 1), (1, "a", 1), (1, "b", 1)]
    for then, expected in (("sign", ["abc"]), (None, [])):
        with harness(match("A B C", then=then)) as one:
            one.push(signs)
            assert [row[3] for row in one.finish()] == expected


@MODES
def test_processing_time(async_enabled: bool) -> None:
    """Rows have the time of their micro-batch; within counts from there, and ends while nothing comes."""
    operator = match("A B{1,3}", time="processing", within=10)
    with harness(operator, event_time=None, async_enabled=async_enabled) as one:
        one.push(rows("ab"))
        assert one.end_batch() == []
        one.advance_processing_time(9)
        one.push([(1, "b", 0)])
        assert one.end_batch() == []
        one.advance_processing_time(1)
        assert one.end_batch() == [("+I", 1, "abb")]
        assert not one.state_entries()


def test_without_a_key_all_rows_are_one_sequence() -> None:
    assert run(match("A B C"), "abcabc", key=None) == [(3, "abc"), (6, "abc")]


# -- skipping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after_match", "expected"),
    [
        (skip_past_last(), ["123", "456"]),
        (skip_to_next(), ["123", "234", "345", "456"]),
        (skip_to_first("Y"), ["123", "234", "345", "456"]),
        (skip_to_last("Y"), ["123", "345"]),
    ],
)
def test_where_the_next_match_begins(after_match: Any, expected: list[str]) -> None:
    found = run(match("X Y Y", define={}, after_match=after_match), "123456")
    assert [row[2] for row in found] == expected


@pytest.mark.parametrize(
    ("pattern", "skip", "signs", "expected"),
    [
        ("A? B", skip_to_first("B"), "babab", ["ab", "ab"]),
        ("A+ B", skip_to_last("A"), "aabab", ["aab"]),
        ("A B? C", skip_to_last("B"), "acabc", ["abc"]),
    ],
)
def test_a_match_without_a_row_to_skip_to_is_dropped_and_counted(
    pattern: str, skip: Skip, signs: str, expected: list[str], async_enabled: bool
) -> None:
    """It has no such row, or has it first: it would be found for ever."""
    with harness(match(pattern, after_match=skip), async_enabled=async_enabled) as one:
        one.push(rows(signs))
        found = one.finish()
        assert [row[-1] for row in found] == expected
        assert one.statistics()["counter.matches_dropped"] > 0


# -- bounds --------------------------------------------------------------------------------------------------


def test_work_is_bounded_where_conditions_look_back() -> None:
    """Every row can be A or B, so 2**40 ways lead to a C that is never met."""
    define = {
        "A": pc.field("sign") == "a",
        "B": pc.field("sign") == "a",
        "C": lambda row, match: len(match) > 99,
    }
    operator = match("(A | B)+ C", define=define, budget=10_000)
    with harness(operator) as one:
        one.push(rows("a" * 40 + "x"))
        with pytest.raises(
            OperatorError, match=r"pattern '\(A \| B\)\+ C' has tried rows as variables 10000 times"
        ):
            one.finish()


def test_what_has_failed_is_remembered_where_nothing_looks_back() -> None:
    """The same with conditions of rows alone: as many steps as rows and places, not 2**2000."""
    define = {"A": pc.field("sign") == "a", "B": pc.field("sign") == "a", "C": pc.field("sign") == "c"}
    began = time.process_time()
    assert run(match("(A | B)+ C", define=define, budget=1), "a" * 2_000 + "x") == []
    assert time.process_time() - began < 30  # or years
    assert run(match("(A | B)+ C", {"n": count()}, define=define), "a" * 50 + "c") == [(1, 51, 51)]


class _Counted(Matcher):
    """Counts how often a way is followed from one row to the next."""

    steps = 0

    def next_places(self, place: int, mask: int) -> tuple[int, ...]:
        self.steps += 1
        return super().next_places(place, mask)


@pytest.mark.parametrize("pattern", ["A+ C", "((A | B)+)+ C", "A (B | A)* (A B)+ C"])
@pytest.mark.parametrize("within", [10**6, 0.5, 0.03])
def test_starts_that_find_no_end_share_what_they_have_seen(pattern: str, within: float) -> None:
    """Twice the rows cost twice the steps, also where each start ends later than the one before."""
    automaton = Automaton(as_pattern(pattern), "Match")
    every_row = (1 << len(automaton.variables)) - 1 - (1 << automaton.variables.index("C"))
    steps = []
    for number in (2_000, 4_000):
        width = int(within * number) if within < 1 else int(within)
        matcher = _Counted(automaton, skip_past_last(), width, {}, 1, "Match")
        found: list[FoundMatch] = []
        given = KeyRows([every_row] * number, range(number), ())
        assert matcher.run(given, 0, number, NEVER, found) == number
        assert not found
        steps.append(matcher.steps)
    assert steps[1] < 2.5 * steps[0]
    assert steps[1] < 8 * 4_000 * len(automaton.follow)


def test_an_expression_over_columns_that_are_not_aligned_writes_no_lines(capfd: Any) -> None:
    """As columns of a message are, behind its header."""
    raw = pa.py_buffer(b"x" + np.arange(4, dtype=np.int64).tobytes()).slice(1)
    column = pa.Array.from_buffers(pa.int64(), 4, [None, raw])
    condition = RowCondition(pc.field("v") > 1, pa.schema([("v", pa.int64())]), "test")
    assert condition.mask([column]).tolist() == [False, False, True, True]
    assert capfd.readouterr() == ("", "")


def test_what_has_failed_on_one_way_may_be_right_on_another() -> None:
    define = {"D": pc.field("sign") == "d", "C": lambda row, match: match.last("B") is not None}
    assert run(match("(A | B) D C", define=define), "xdc") == [(1, 3, "xdc")]


def test_a_condition_that_asks_for_another_variable() -> None:
    with harness(match("A B", define={"B": lambda row, match: match.last("X") is None})) as one:
        one.push(rows("ab"))
        with pytest.raises(
            OperatorError, match="a condition asks for the rows of 'X'.*its variables are: A, B"
        ):
            one.finish()


def test_a_condition_that_asks_for_a_row_below_the_first() -> None:
    with harness(match("A B", define={"B": lambda row, match: match.last("A", -1) is None})) as one:
        one.push(rows("ab"))
        with pytest.raises(OperatorError, match="the offset -1 of a row is below 0"):
            one.finish()


# -- conditions and measures ---------------------------------------------------------------------------------


def test_what_a_condition_sees_of_the_match_so_far() -> None:
    seen: list[Any] = []

    def look(row: Any, match: Any) -> bool:
        if row.sign == "c":
            seen.append(
                (len(match), [one.sign for one in match], match[-1].at, match[1:3][0].at, match.variables)
            )
            seen.append((match.first().at, match.first("B", 1).at, match.last("B", 1).at, match.first("C")))
            seen.append((match.prev().at, match.prev(4), [one.at for one in match.rows("B")]))
        return bool(row.sign == "c")

    operator = match("A B{2} C", define={**of_signs("AB"), "C": look})
    assert run(operator, "abbc") == [(1, 4, "abbc")]
    assert seen == [
        (3, ["a", "b", "b"], 3, 2, ["A", "B", "B"]),
        (1, 3, 2, None),
        (3, None, [2, 3]),
    ]


def test_conditions_of_columns_and_several_for_one_variable() -> None:
    define = {
        "A": lambda batch: pc.equal(batch.column("sign"), "a"),
        "B": [
            pc.field("sign") != "a",
            lambda batch: pc.is_valid(batch["sign"]),
            lambda row, match: row.at < 4,
        ],
    }
    assert run(match("A B", define=define), "ab ac") == [(1, 2, "ab")]


def test_a_null_condition_is_not_met() -> None:
    with harness(match("A B")) as one:
        one.push([(1, "a", 1), (1, None, 2), (1, "a", 3), (1, "b", 4)])
        assert [row[3] for row in one.finish()] == ["ab"]


def test_measures_without_any_column_and_of_key_and_distinct_values() -> None:
    assert run(match("A B", {}), "ab") == [(1, 2)]
    measures = {
        "key": first("k", "B"),
        "n": count("sign").distinct(),
        "a": count("sign").distinct().where("A"),
        "third": first("sign", None, 2),
        "none": last("sign", "C"),
    }
    assert run(match("A{2} B | C", measures), "aab") == [(1, 3, 1, 2, 1, "b", None)]


# -- in a graph ----------------------------------------------------------------------------------------------


@MODES
def test_no_match_is_late_for_a_window_behind_it(async_enabled: bool) -> None:
    """Each B ends a run of A that began long before; the windows count the matches by when they were certain."""

    def graph(signs: Any) -> None:
        define = {"A": pc.field("sign") == "a"}
        runs = signs.apply(
            Match("A{1,9}", define, {"rows": count()}, within="50 milliseconds"),
            key="k",
            event_time="at",
            watermark_delay=0,
            uid="runs",
        )
        counted = WindowAggregate(
            tumble("10 milliseconds"), [count().alias("runs"), sum_("rows").alias("rows")]
        )
        runs.apply(counted, key="k", event_time="match_time", uid="windows").to(print, name="windows")

    with PipelineHarness(graph, {"signs": PipelineSource(SIGNS)}, async_enabled=async_enabled) as one:
        for signs, start in (("aaa", 1), ("b", 35), ("a", 36), ("b", 99), ("b", 200)):
            one.push("signs", [(key, sign, at * 1_000) for key, sign, at in rows(signs, start)])
            one.end_batch()
            assert not one.operator("windows").statistics().get("counter.late_rows")
        one.finish()
        windows = [(row[2] // 1_000, *row[-2:]) for row in one.rows("windows")]
    # certain with the B of 35, and when the 50 ms from 36 on are over
    assert sorted(windows) == [(30, 1, 3), (80, 1, 1)]
