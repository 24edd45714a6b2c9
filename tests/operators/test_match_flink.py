"""Match on the examples of Flink's page on pattern recognition and the cases of its tests: rows and what they give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate.errors import SchemaError
from asyncstate.functions.aggregate_functions import AggregateFunction
from asyncstate.testing import OperatorHarness
from operators import (
    Match,
    asc,
    avg,
    count,
    desc,
    first,
    last,
    skip_past_last,
    skip_to_first,
    skip_to_last,
    skip_to_next,
    sum_,
    udaf,
)

TICKER = pa.schema([("symbol", pa.string()), ("price", pa.int64()), ("rowtime", pa.timestamp("us"))])
EVENTS = pa.schema([("id", pa.int64()), ("name", pa.string()), ("price", pa.int64())])


def of_ticker(operator: Match, prices: list[int], step: int = 1) -> list[Any]:
    """What prices give that come one a ``step``, but symbol and ``match_time``, before the end of the input."""
    rows = [("ACME", price, at * step) for at, price in enumerate(prices)]
    with OperatorHarness(operator, TICKER, ["symbol"], event_time="rowtime") as harness:
        for row in rows:
            harness.push([row])
            harness.advance_watermark(row[-1])
            harness.end_batch()
        return [row[3:] for row in harness.output]


def of_events(operator: Match, rows: list[Any], schema: pa.Schema = EVENTS, key: Any = None) -> list[Any]:
    """What the rows give in processing time, a micro-batch each."""
    with OperatorHarness(operator, schema, key) as harness:
        for row in rows:
            harness.push([row])
            harness.end_batch()
        return [row[1:] for row in harness.output]


def named(*names: str) -> dict[str, pc.Expression]:
    return {name.upper(): pc.field("name") == name for name in names}


def test_a_falling_price() -> None:
    falls = Match(
        "START_ROW PRICE_DOWN+ PRICE_UP",
        {
            "PRICE_DOWN": lambda row, match: row.price < (match.last("PRICE_DOWN") or match[0]).price,
            "PRICE_UP": lambda row, match: row.price > match.last("PRICE_DOWN").price,
        },
        {
            "start": first("rowtime", "START_ROW"),
            "bottom": last("rowtime", "PRICE_DOWN"),
            "end": last("rowtime", "PRICE_UP"),
        },
        after_match=skip_to_last("PRICE_UP"),
    )
    assert of_ticker(falls, [12, 17, 19, 21, 25, 18, 15, 14, 24, 25, 19]) == [(4, 7, 8)]


def test_an_average_below_a_bound() -> None:
    def below(row: Any, match: Any) -> bool:
        prices = [row.price, *(one.price for one in match.rows("A"))]
        return bool(sum(prices) / len(prices) < 15)

    measures = {"start": first("rowtime", "A"), "end": last("rowtime", "A"), "mean": avg("price").where("A")}
    cheap = Match("A+ B", {"A": below}, measures)
    prices = [12, 17, 13, 16, 25, 2, 4, 10, 15, 25, 25, 30]
    assert of_ticker(cheap, prices) == [(0, 3, 14.5), (5, 10, 13.5)]


@pytest.mark.parametrize(("pattern", "expected"), [("A B* C", [(16,)]), ("A B*? C", [(13,), (16,)])])
def test_greedy_and_reluctant(pattern: str, expected: list[Any]) -> None:
    define = {"A": pc.field("price") > 10, "B": pc.field("price") < 15, "C": pc.field("price") > 12}
    found = Match(pattern, define, {"last": last("price", "C")})
    assert of_ticker(found, [10, 11, 12, 13, 14, 16]) == expected


@pytest.mark.parametrize(("minutes", "expected"), [(60, [(180, 14, 1)]), (61, [(180, 15, 1)])])
def test_within_is_less_than_the_time_between_first_and_last(minutes: int, expected: list[Any]) -> None:
    """Under WITHIN an hour Flink's page shows the match of exactly an hour; by its NFA that one has timed out."""
    drop = Match(
        "A B* C",
        {
            "B": lambda row, match: row.price > match[0].price - 10,
            "C": lambda row, match: row.price < match[0].price - 10,
        },
        {"dropped": last("rowtime", "C"), "from": last("price", "A"), "to": last("price", "C")},
        within=minutes,
    )
    prices = [20, 17, 18, 11, 14, 9, 15, 14, 24, 1, 19]
    assert of_ticker(drop, prices, step=20) == expected


def test_a_rise_and_what_ends_it() -> None:
    rise = Match(
        "A+ B",
        {
            "A": lambda row, match: match.last("A") is None or row.price > match.last("A").price,
            "B": lambda row, match: row.price < match.last("A").price,
        },
        {"start": first("price", "A"), "top": last("price", "A"), "last": last("price", "B")},
    )
    assert of_ticker(rise, [10, 12, 13, 11]) == [(10, 13, 11)]


def sum_below_30(after_match: Any) -> Match:
    def below(row: Any, match: Any) -> bool:
        return bool(row.price + sum(one.price for one in match.rows("A")) < 30)

    measures = {"sum": sum_("price").where("A"), "start": first("rowtime"), "end": last("rowtime")}
    return Match("A+ C", {"A": below}, measures, after_match=after_match)


@pytest.mark.parametrize(
    ("after_match", "expected"),
    [
        (skip_past_last(), [(26, 0, 3), (17, 4, 6)]),
        (skip_to_next(), [(26, 0, 3), (24, 1, 4), (25, 2, 5), (22, 3, 6), (17, 4, 6)]),
        (skip_to_last("A"), [(26, 0, 3), (25, 2, 5), (17, 4, 6)]),
    ],
)
def test_after_match(after_match: Any, expected: list[Any]) -> None:
    assert of_ticker(sum_below_30(after_match), [7, 9, 10, 5, 10, 7, 14]) == expected


def test_skipping_to_the_first_row_of_all_matches_is_refused() -> None:
    with pytest.raises(SchemaError, match="skip to first A: that is the first row of every match"):
        sum_below_30(skip_to_first("A"))


def test_conditions_over_all_rows_and_those_of_a_variable() -> None:
    """The fifth row would make the sum of all 111, and that of B 101."""

    def small(row: Any, match: Any) -> bool:
        everything = row.price + sum(one.price for one in match)
        return everything < 100 and row.price + sum(one.price for one in match.rows("B")) < 80

    sums = Match(
        "A B+ END",
        {"A": pc.field("price") >= 10, "B": [lambda row, match: row.price > match.last("A").price, small]},
        {"all": sum_("price"), "b": sum_("price").where("B"), "rows": count().where("B")},
    )
    assert of_ticker(sums, [10, 15, 20, 31, 35]) == [(111, 66, 3)]


def test_offsets_from_the_last_row() -> None:
    def grows(row: Any, match: Any) -> bool:
        one, two = match.last("B"), match.last("B", 1)
        return (one is None or row.price > one.price) and (two is None or row.price > 2 * two.price)

    found = Match("A B+ END", {"A": pc.field("price") >= 10, "B": grows}, {"rows": count().where("B")})
    assert of_ticker(found, [10, 15, 20, 31, 35]) == [(3,)]


@pytest.mark.parametrize(("prices", "expected"), [([10, 15, 20], [(15,)]), ([10, 20], [(10,)])])
def test_the_row_before_whatever_it_was_taken_as(prices: list[int], expected: list[Any]) -> None:
    found = Match(
        "A B? C",
        {"B": pc.field("price") < 20, "C": lambda row, match: match.prev().price < row.price},
        {"before": last("price", None, 1)},
    )
    assert of_ticker(found, prices) == expected


# -- the cases of Flink's tests ------------------------------------------------------------------------------


def test_rows_in_between_break_a_match() -> None:
    abc = Match("A B C", named(*"abc"), {name: last("id", name.upper()) for name in "abc"}, time="processing")
    rows = [(number, name, 0) for number, name in enumerate("azbcdabch", start=1)]
    assert of_events(abc, rows) == [(6, 7, 8)]


def test_nulls() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("nothing", pa.string())])
    define = named(*"abc") | {
        "B": [pc.field("name") == "b", lambda row, match: match.last("A").nothing is None]
    }
    define["A"] = pc.and_kleene(define["A"], pc.is_null(pc.field("nothing")))
    measures = {
        "a": last("id", "A"),
        "b": last("nothing", "B"),
        "c": last("id", "C"),
        "n": last("nothing", "A"),
    }
    rows = [
        (number, name, None) for number, name in enumerate(["a", "b", "c", "d", None, "a", "b", "c", None], 1)
    ]
    found = of_events(Match("A B C", define, measures, time="processing"), rows, schema)
    assert found == [(1, None, 3, None), (6, None, 8, None)]


def test_the_order_of_equal_times_counts() -> None:
    schema = pa.schema(
        [
            ("second", pa.int64()),
            ("third", pa.int64()),
            ("name", pa.string()),
            ("id", pa.int64()),
            ("t", pa.timestamp("us")),
        ]
    )
    abc = Match(
        "A B C", named(*"abc"), {n: last("id", n.upper()) for n in "abc"}, then=[desc("second"), asc("third")]
    )
    batches = [
        (3, [(12, 1, "a", 1, 2), (11, 2, "b", 2, 1), (10, 3, "c", 3, 3)]),
        (5, [(8, 4, "a", 4, 4), (9, 5, "b", 5, 4), (7, 6, "c", 6, 5)]),
        (8, [(6, 8, "a", 7, 6), (6, 7, "b", 8, 6), (4, 9, "c", 9, 8)]),
        (11, [(3, 10, "a", 10, 9), (2, 11, "b", 11, 10), (1, 12, "c", 12, 11)]),
    ]
    with OperatorHarness(abc, schema, None, event_time="t") as harness:
        for watermark, rows in batches:
            harness.push(rows)
            harness.advance_watermark(watermark)
            harness.end_batch()
        assert harness.output == [("+I", 11, 10, 11, 12)]


def down(row: Any, match: Any) -> bool:
    return match.last("DOWN") is None or row.price < match.last("DOWN").price


def test_counted_rows_and_offsets_in_conditions() -> None:
    """Flink finds the second match alone: its greedy quantifiers give no row back, those of the standard do."""
    found = Match(
        "DOWN{2,} UP",
        {"DOWN": down, "UP": lambda row, match: row.price < match.first("DOWN").price},
        {"start": first("id", "DOWN"), "bottom": last("id", "DOWN"), "end": last("id", "UP")},
        time="processing",
    )
    prices = [19, 17, 13, 20, 20, 26, 20, 25]
    assert of_events(found, [(number, "", price) for number, price in enumerate(prices, 1)]) == [
        (1, 2, 3),
        (6, 7, 8),
    ]


def test_offsets_over_all_rows_and_beyond_them() -> None:
    back = {f"last{offset}": last("id", None, offset) for offset in range(9)}
    forth = {f"first{offset}": first("id", None, offset) for offset in range(9)}

    def up(row: Any, match: Any) -> bool:
        prices = [one.price for one in [*match, row]]
        return len(match) > 6 and prices[0] == row.price == prices[-8] and row.price > prices[3]

    define = {"DOWN": lambda row, match: match.prev() is None or row.price < match.prev().price, "UP": up}
    found = Match("DOWN{2,} UP", define, forth | back, time="processing")
    rows = [(number, "", price) for number, price in enumerate([20, 19, 18, 17, 16, 15, 14, 20], 1)]
    assert of_events(found, rows) == [(*range(1, 9), None, *range(8, 0, -1), None)]


class WeightedMean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return [0, 0]

    def accumulate(self, accumulator: Any, value: int, weight: int) -> None:
        accumulator[0] += value * weight
        accumulator[1] += weight

    def get_value(self, accumulator: Any) -> Any:
        return accumulator[0] // accumulator[1] if accumulator[1] else None


def test_aggregates_of_variables_without_rows_and_functions_of_two_columns() -> None:
    """With D??, where Flink, which puts the first complete match out, has D?: greedy, D takes the row that E could."""
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.int64()),
            ("rate", pa.float64()),
            ("weight", pa.int64()),
            ("paid", pa.float64()),
        ]
    )
    plain = [
        (1, 1, 0.8, 1), (2, 2, 0.8, 3), (3, 1, 0.8, 2), (4, 1, 0.8, 5), (5, 4, 0.1, 5), (6, 2, 1.5, 2),
        (7, 2, 0.8, 3), (8, 1, 0.8, 2), (9, 4, 0.8, 3), (10, 4, 0.8, 3), (11, 2, 0.8, 3), (12, 2, 0.8, 3),
    ]  # fmt: skip

    def a(row: Any, match: Any) -> bool:
        return bool(row.price + sum(one.price for one in match.rows("A")) < 6)

    def b(row: Any, match: Any) -> bool:
        mine, all_rows = [*match.rows("B"), row], [*match, row]
        paid, prices = sum(one.paid for one in mine), [one.price for one in mine]
        mean = sum(one.price * one.weight for one in all_rows) // sum(one.weight for one in all_rows)
        return bool(
            0.2 < paid < sum(one.price for one in match.rows("A"))
            and sum(prices) >= 1
            and sum(prices) // len(prices) >= 1
            and mean > 1
        )

    weighted = udaf(
        WeightedMean(), result_type=pa.int64(), accumulator_type=pa.list_(pa.int64()), name="mean"
    )
    found = Match(
        "A+ B+ C D?? E",
        {"A": a, "B": b},
        {
            "start": first("id"),
            "a": sum_("price").where("A"),
            "count_d": count("price").where("D"),
            "sum_d": sum_("price").where("D"),
            "mean": weighted("price", "weight"),
            "mean_b": avg("price").where("B"),
            "paid_b": sum_("paid").where("B"),
            "end": last("id"),
        },
        time="processing",
    )
    rows = [(*row, row[1] * row[2]) for row in plain]
    one, two = of_events(found, rows, schema)
    assert (one[:5], one[6:]) == ((1, 5, 0, None, 2), (pytest.approx(3.4), 8))
    assert (two[:5], two[6:]) == ((9, 4, 0, None, 3), (pytest.approx(3.2), 12))
    assert (one[5], two[5]) == (3.0, 4.0)


def test_aggregates_over_nulls() -> None:
    def a(row: Any, match: Any) -> bool:
        return sum(one.price or 0 for one in [*match.rows("A"), row]) < 30

    measures: Mapping[str, Any] = {
        "sum": sum_("price").where("A"),
        "ids": count("id").where("A"),
        "prices": count("price").where("A"),
        "rows": count(),
        "all_prices": count("price"),
        "end": last("id"),
    }
    found = Match("A+ C", {"A": a, "C": pc.field("name") == "c"}, measures, time="processing")
    prices = [10, 10, None, None, 3, 3, 3, 3, 2]
    rows = [(number, *row) for number, row in enumerate(zip("azbcdcccc", prices, strict=True), 1)]
    assert of_events(found, rows) == [(29, 7, 5, 8, 6, 8)]


@pytest.mark.parametrize(
    ("after_match", "expected"),
    [(skip_to_first("B"), [(1, 4), (3, 6)]), (skip_to_last("B"), [(1, 4), (4, 7)])],
)
def test_skipping_into_a_counted_variable(after_match: Any, expected: list[Any]) -> None:
    """Every row can be both: the next match begins with a row that was the end of the one before."""
    both = Match(
        "A{2} B{2}",
        {"A": pc.match_substring(pc.field("name"), "a"), "B": pc.match_substring(pc.field("name"), "b")},
        {"start": first("id"), "end": last("id")},
        after_match=after_match,
        time="processing",
    )
    assert of_events(both, [(number, "ab", 0) for number in range(1, 8)]) == expected
