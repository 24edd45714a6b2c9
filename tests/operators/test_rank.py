"""Rank on the harness: what it puts out and keeps, that modes and stores agree, and that DuckDB ranks alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from asyncstate.changelog import RETRACT
from asyncstate.errors import OperatorError, SchemaError, StateDeclarationError
from asyncstate.operator import InputSpec, SortKey
from asyncstate.testing import OperatorHarness, net
from operators import GroupAggregate, Rank, asc, count, desc
from operators.rank.retractable import all_rows
from operators.rank.retractable.blocks import BlockSizes, Bounds, blocks_to_read
from tests.operators.direct import DirectRunner

SCHEMA = pa.schema([("id", pa.int64()), ("k", pa.string()), ("price", pa.int64())])
Row = tuple[Any, ...]


@pytest.fixture
def open_harness(async_enabled: bool) -> Iterator[Any]:
    opened: list[OperatorHarness] = []

    def open_one(operator: Rank, schema: pa.Schema = SCHEMA, **options: Any) -> OperatorHarness:
        settings: dict[str, Any] = {"key": ["k"], **options}
        harness = OperatorHarness(operator, schema, async_enabled=async_enabled, **settings)
        opened.append(harness)
        return harness

    yield open_one
    for harness in opened:
        harness.close()


# -- what is put out ------------------------------------------------------------------------------------


def test_with_numbers_the_row_at_each_number_is_updated(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 2, rank_column="place"), changelog=False)
    harness.push([(1, "a", 10), (2, "b", 7), (3, "a", 12), (4, "a", 9)])
    assert harness.end_batch() == [("+I", 3, "a", 12, 1), ("+I", 1, "a", 10, 2), ("+I", 2, "b", 7, 1)]
    harness.push([(5, "b", 7), (6, "a", 11), (7, "a", 10)])
    assert harness.end_batch() == [
        ("+I", 5, "b", 7, 2),
        ("-U", 1, "a", 10, 2),
        ("+U", 6, "a", 11, 2),
    ]
    harness.push([(8, "a", 1)])
    assert harness.end_batch() == []
    assert harness.statistics()["delta_bytes"] == 0


def test_without_numbers_rows_leave_and_enter(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 2), changelog=False)
    harness.push([(1, "a", 10), (2, "a", 12)])
    assert harness.end_batch() == [("+I", 2, "a", 12), ("+I", 1, "a", 10)]
    harness.push([(3, "a", 13), (4, "a", 14)])
    assert harness.end_batch() == [
        ("-D", 2, "a", 12),
        ("-D", 1, "a", 10),
        ("+I", 4, "a", 14),
        ("+I", 3, "a", 13),
    ]


def test_update_before_can_be_left_out(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 2, rank_column="place", emit_update_before=False))
    harness.push([(1, "a", 10), (2, "a", 9)])
    harness.end_batch()
    harness.push([(3, "a", 11)])
    assert harness.end_batch() == [("+U", 3, "a", 11, 1), ("+U", 1, "a", 10, 2)]


def test_offset_shows_the_rows_behind_it(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 2, offset=1, rank_column="place"), changelog=False)
    harness.push([(1, "a", 10)])
    assert harness.end_batch() == []
    harness.push([(2, "a", 11), (3, "a", 12), (4, "a", 8)])
    assert harness.end_batch() == [("+I", 2, "a", 11, 2), ("+I", 1, "a", 10, 3)]


@pytest.mark.parametrize(
    ("function", "shown"),
    [
        ("row_number", [(1, 1), (2, 2), (3, 3)]),
        ("rank", [(1, 1), (2, 1), (3, 3), (4, 3)]),
        ("dense_rank", [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)]),
    ],
)
def test_functions_number_ties_as_sql_does(open_harness: Any, function: Any, shown: list[Row]) -> None:
    harness = open_harness(Rank(desc("price"), 3, function=function, rank_column="place"))
    harness.push([(1, "a", 9), (2, "a", 9), (3, "a", 8), (4, "a", 8), (5, "a", 7)])
    assert [(row[1], row[4]) for row in harness.end_batch()] == shown


def test_ties_that_change_their_rank_are_taken_back_without_unique_columns(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 3, function="rank", rank_column="place"))
    harness.push([(1, "a", 9), (2, "a", 8)])
    harness.end_batch()
    harness.push([(3, "a", 10)])
    assert harness.end_batch() == [
        ("-D", 1, "a", 9, 1),
        ("-D", 2, "a", 8, 2),
        ("+I", 3, "a", 10, 1),
        ("+I", 1, "a", 9, 2),
        ("+I", 2, "a", 8, 3),
    ]


def test_a_row_with_a_unique_key_is_updated(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 2, unique=["id"]))
    harness.push([(1, "a", 10), (2, "a", 9), (3, "a", 8)])
    assert harness.end_batch() == [("+I", 1, "a", 10), ("+I", 2, "a", 9)]
    harness.push([(2, "a", 11)], kind="+U")
    assert harness.end_batch() == [("-U", 2, "a", 9), ("+U", 2, "a", 11)]
    harness.push([(1, "a", 7)], kind="+U")  # worse: the third comes in
    assert harness.end_batch() == [("-D", 1, "a", 10), ("+I", 3, "a", 8)]
    harness.push([(2, "a", 0)], kind="-D")  # another row than the stored one
    assert harness.end_batch() == []
    assert harness.statistics()["counter.retractions_without_state"] == 1
    harness.push([(2, "a", 11)], kind="-D")
    assert harness.end_batch() == [("-D", 2, "a", 11), ("+I", 1, "a", 7)]


def test_the_oldest_of_equal_rows_is_taken_back(open_harness: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("price", pa.int64()), ("items", pa.list_(pa.int64()))])
    harness = open_harness(Rank("price", 3, rank_column="place"), schema)
    harness.push([("a", 1, [1]), ("a", 1, None), ("a", 1, [1])])
    harness.end_batch()
    harness.push([("a", 1, [1])], kind="-D")
    assert harness.end_batch() == [
        ("-U", "a", 1, [1], 1),
        ("-U", "a", 1, None, 2),
        ("-D", "a", 1, [1], 3),
        ("+U", "a", 1, None, 1),
        ("+U", "a", 1, [1], 2),
    ]
    harness.push([("a", 1, [2]), ("a", 1, [1]), ("a", 1, [1])], kind="-U")
    assert harness.end_batch() == [("-D", "a", 1, [1], 2)]
    assert harness.statistics()["counter.retractions_without_state"] == 2
    harness.push([("a", 1, None)], kind="-D")
    assert harness.end_batch() == [("-D", "a", 1, None, 1)]
    assert harness.state_entries() == {}


def test_a_row_that_goes_and_comes_in_a_bundle_is_no_change(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 2, rank_column="place"))
    harness.push([(1, "a", 10), (2, "a", 9)])
    harness.end_batch()
    harness.push([(1, "a", 10), (1, "a", 10)], kinds=["-U", "+U"])
    assert harness.end_batch() == []


def test_each_key_has_the_limit_that_its_first_row_names(open_harness: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("price", pa.int64()), ("n", pa.int32())])
    harness = open_harness(Rank(desc("price"), "n"), schema)
    harness.push([("a", 1, 2), ("a", 2, 1), ("a", 3, 2), ("b", 1, 1), ("b", 2, None), ("c", 1, 0)])
    assert harness.end_batch() == [("+I", "a", 3, 2), ("+I", "a", 2, 1), ("+I", "b", 1, 1)]
    counters = harness.statistics()
    assert counters["counter.rows_with_another_limit"] == 1
    assert counters["counter.rows_without_limit"] == 1
    harness.push([("b", 5, 3)])
    assert harness.end_batch() == [("-D", "b", 1, 1), ("+I", "b", 5, 3)]
    harness.push([("b", 5, 3), ("b", 1, 1)], kind="-D")
    assert harness.end_batch() == [("-D", "b", 5, 3)]
    harness.push([("b", 1, 2), ("b", 2, 2)])  # the key had no rows left: a new limit
    assert harness.end_batch() == [("+I", "b", 2, 2), ("+I", "b", 1, 2)]


@pytest.mark.parametrize("kinds", [("+I", "-D"), ("-D", "+I")])
def test_a_row_that_comes_and_goes_in_a_micro_batch_sets_no_limit(
    open_harness: Any, kinds: tuple[str, str]
) -> None:
    schema = pa.schema([("k", pa.string()), ("price", pa.int64()), ("n", pa.int32())])
    harness = open_harness(Rank(desc("price"), "n"), schema)
    harness.push([("a", 9, 1), ("a", 9, 1), ("a", 1, 2), ("a", 2, 2)], kinds=[*kinds, "+I", "+I"])
    assert harness.end_batch() == [("+I", "a", 2, 2), ("+I", "a", 1, 2)]
    assert harness.statistics().get("counter.rows_with_another_limit", 0) == 0
    harness.push([("a", 3, 2)])
    assert harness.end_batch() == [("-D", "a", 1, 2), ("+I", "a", 3, 2)]


def test_a_limit_in_the_key_needs_no_state(open_harness: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("price", pa.int64()), ("n", pa.int32())])
    harness = open_harness(Rank(desc("price"), "n"), schema, key=["k", "n"], changelog=False)
    harness.push([("a", 1, 1), ("a", 2, 1), ("a", 3, 2), ("a", 4, 2), ("a", 5, None)])
    assert harness.end_batch() == [("+I", "a", 2, 1), ("+I", "a", 4, 2), ("+I", "a", 3, 2)]
    assert len(harness.state_entries()) == 2


def test_without_a_key_there_is_one_ranking(open_harness: Any) -> None:
    harness = open_harness(Rank(asc("price"), 1), key=[])
    harness.push([(1, "a", 3), (2, "b", 2), (3, "c", 4)])
    assert harness.end_batch() == [("+I", 2, "b", 2)]
    harness.push([(2, "b", 2)], kind="-D")
    assert harness.end_batch() == [("-D", 2, "b", 2), ("+I", 1, "a", 3)]


@pytest.mark.parametrize("changelog", [False, True])
def test_rows_that_are_all_key_are_ranked_by_arrival(open_harness: Any, changelog: bool) -> None:
    schema = pa.schema([("k", pa.string())])
    harness = open_harness(Rank("k", 2, rank_column="place"), schema, changelog=changelog)
    harness.push([("a",), ("a",), ("b",), ("a",)])
    assert harness.end_batch() == [("+I", "a", 1), ("+I", "a", 2), ("+I", "b", 1)]


def test_a_changelog_of_counts_is_ranked_with_a_promise() -> None:
    """Best rows alone are kept, although GroupAggregate takes rows back."""
    counted = pa.schema([("seller", pa.int64()), ("count", pa.int64())])
    random = Random(7)
    sold: Counter[int] = Counter()
    sales = pa.schema([("seller", pa.int64())])
    with (
        OperatorHarness(GroupAggregate([count()]), sales, ["seller"]) as counts,
        OperatorHarness(Rank(desc("count"), 3, unique=["seller"], monotonic=True), counted, []) as best,
    ):
        for _ in range(6):
            rows = [(random.randrange(30),) for _ in range(40)]
            sold.update(row[0] for row in rows)
            counts.push(rows)
            changes = counts.end_batch()
            best.push([row[1:] for row in changes], kinds=[row[0] for row in changes])
            best.end_batch()
            assert sorted(times for _, times in net(best.output).elements()) == sorted(
                sorted(sold.values(), reverse=True)[:3]
            )
            assert len(best.state_entries()) == 1


# -- order ------------------------------------------------------------------------------------------------

ORDERED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, -1, 0, 1, 127]),
    "int64": (pa.int64(), [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
    "float32": (pa.float32(), [-np.inf, -1.5, 0.0, 1.5, np.inf, np.nan]),
    "float64": (pa.float64(), [-np.inf, -1e300, 0.0, 5e-324, np.inf, np.nan]),
    "string": (pa.string(), ["", "A", "a", "aa", "é", "𝄞"]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"a", b"\xff"]),
    "boolean": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [-5, 0, 7]),
    "timestamp": (pa.timestamp("us", "UTC"), [-(10**15), 0, 1, 10**15]),
    "decimal": (
        pa.decimal128(38, 2),
        [Decimal(text) for text in (f"-{'9' * 36}.99", "-0.01", "0.00", "0.10", "1e30")],
    ),
}


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("descending", [False, True], ids=["asc", "desc"])
@pytest.mark.parametrize("nulls", ["first", "last"])
def test_values_of_every_type_are_in_order(name: str, descending: bool, nulls: Any) -> None:
    data_type, values = ORDERED[name]
    schema = pa.schema([("k", pa.int64()), ("place", pa.int64()), ("v", data_type)])
    order = (desc if descending else asc)("v", nulls=nulls)
    runner = DirectRunner(Rank(order, 100, rank_column="number"), InputSpec(schema, ("k",)))
    rows = list(enumerate([*values, None]))
    Random(3).shuffle(rows)
    found: dict[int, int] = {}
    for part in (rows[::2], rows[1::2]):  # against stored values, too
        for kind, _, place, _, number in runner.run([(0, *row) for row in part], ["+I"] * len(part), 0):
            if kind != "-U":
                found[number] = place
    places = sorted(range(len(values)), reverse=descending)
    expected = [len(values), *places] if nulls == "first" else [*places, len(values)]
    assert [found[number + 1] for number in range(len(rows))] == expected


# -- modes, stores, restarts ------------------------------------------------------------------------------

KINDS = {
    "append": Rank([desc("price"), "id"], 3, rank_column="place"),
    "retract": Rank([desc("price"), "id"], 3, offset=1, function="rank", rank_column="place"),
    "unique": Rank(desc("price"), 4, unique=["id"]),
}
SMALL = BlockSizes(spare_least=2, spare_most=4, block_rows=4, growth=2, spare_events=4)


def batches(kind: str) -> Iterator[tuple[list[Row], list[str]]]:
    """Micro-batches whose retractions are of rows that are there, and all rows that are left at the end."""
    random, rows = Random(11), dict[int, Row]()
    for batch in range(6):
        changes: list[tuple[str, Row]] = []
        for number in range(60):
            if kind != "append" and batch > 1 and rows and random.random() < 0.55:
                identity = random.choice(list(rows))
                if kind == "unique" and random.random() < 0.5:
                    rows[identity] = (identity, rows[identity][1], random.randrange(50))
                    changes.append(("+U", rows[identity]))
                else:
                    changes.append(("-D", rows.pop(identity)))
                continue
            row = (100 * batch + number, random.choice("ab"), random.randrange(50))
            rows[row[0]] = row
            changes.append(("+I", row))
        yield [row for _, row in changes], [kind for kind, _ in changes]


def table_of(kind: str) -> pa.Table:
    """The rows that are left, in order of arrival."""
    left: dict[int, Row] = {}
    for rows, kinds in batches(kind):
        for row, row_kind in zip(rows, kinds, strict=True):
            before = left.pop(row[0], None)
            if row_kind != "-D":
                assert before is None or kind == "unique"
                left[row[0]] = row
    return pa.table(dict(zip(SCHEMA.names, map(list, zip(*left.values(), strict=True)), strict=True)))


@pytest.mark.parametrize("kind", KINDS)
def test_modes_agree_byte_by_byte_and_with_duckdb(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rows, "SIZES", SMALL)
    results = []
    for enabled in (False, True):
        with OperatorHarness(
            KINDS[kind], SCHEMA, ["k"], async_enabled=enabled, changelog=kind != "append"
        ) as harness:
            for rows, kinds in batches(kind):
                harness.push(rows, kinds=kinds)
                harness.end_batch()
            results.append((harness.output, harness.state_entries()))
    assert all(result == results[0] for result in results)
    shown = net(results[0][0], in_order=True)
    table = table_of(kind)  # noqa: F841 - DuckDB finds it by its name
    sql = {
        "append": "SELECT *, row_number() OVER (PARTITION BY k ORDER BY price DESC, id) AS place FROM table "
        "QUALIFY place <= 3",
        "retract": "SELECT *, rank() OVER (PARTITION BY k ORDER BY price DESC, id) AS place FROM table "
        "QUALIFY place BETWEEN 2 AND 4",
        "unique": "SELECT * FROM table QUALIFY row_number() OVER (PARTITION BY k ORDER BY price DESC) <= 4",
    }[kind].replace("FROM table", 'FROM "table"')
    found = duckdb.sql(sql)
    assert found is not None
    expected = found.fetchall()
    if kind == "unique":  # ties are by arrival, which the table does not have
        prices = Counter((row[1], row[2]) for row in expected)
        assert Counter((row[1], row[2]) for row in shown.elements()) == prices
    else:
        assert shown == Counter(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_restarts_and_other_parallelism_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rows, "SIZES", SMALL)
    changelog = kind != "append"
    whole = OperatorHarness(KINDS[kind], SCHEMA, ["k"], changelog=changelog)
    parts = OperatorHarness(
        KINDS[kind], SCHEMA, ["k"], changelog=changelog, async_enabled=True, parallelism=2
    )
    for number, (rows, kinds) in enumerate(batches(kind)):
        if number:
            restored = parts.restore(
                parts.snapshot(), parallelism=1 + number % 3, async_enabled=number % 2 == 0
            )
            parts.close()
            parts = restored
        for harness in (whole, parts):
            harness.push(rows, kinds=kinds)
        assert sorted(whole.end_batch()) == sorted(parts.end_batch())
    assert whole.state_entries() == parts.state_entries()
    whole.close()
    parts.close()


# -- cost -----------------------------------------------------------------------------------------------


def test_an_insert_only_input_keeps_no_more_than_is_shown(open_harness: Any) -> None:
    harness = open_harness(Rank(desc("price"), 3, offset=1), changelog=False)
    sizes = []
    for batch in range(3):
        harness.push([(batch, "a", 1000 + number + batch) for number in range(200)])
        harness.end_batch()
        sizes.append([len(value) for value in harness.state_entries().values()])
    assert sizes[0] == sizes[1] == sizes[2]
    assert len(sizes[0]) == 1
    assert sizes[0][0] < 4 * 40


@pytest.mark.parametrize("unique", [None, ["id"]])
def test_a_change_behind_the_best_reads_a_few_values_of_many(unique: list[str] | None) -> None:
    runner = DirectRunner(Rank(desc("price"), 10, unique=unique), InputSpec(SCHEMA, ("k",), changes=RETRACT))
    rows = [(number, "a", number) for number in range(4_000)]
    runner.run(rows, ["+I"] * len(rows), 0)
    runner.sink.reads = 0
    assert runner.run([(5, "a", 5), (4_001, "a", 3)], ["-D", "+I"], 0) == []
    assert runner.sink.reads <= 4
    most = 0
    for price in range(3_999, 3_900, -1):
        runner.sink.reads = 0
        output = runner.run([(price, "a", price)], ["-D"], 0)
        assert output == [("-D", price, "a", price), ("+I", price - 10, "a", price - 10)]
        most = max(most, runner.sink.reads)
    assert 20 < most < 250  # the log of 4,000 rows, and a read for each row that comes up


def test_a_new_payload_behind_the_best_leaves_the_order_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rows, "SIZES", SMALL)
    schema = pa.schema([("id", pa.int64()), ("price", pa.int64()), ("note", pa.string())])
    runner = DirectRunner(Rank(desc("price"), 1, unique=["id"]), InputSpec(schema, (), changes=RETRACT))
    runner.run([(number, number // 2, "old") for number in range(40)], ["+I"] * 40, 0)
    before = runner.sink.contents()
    assert runner.run([(3, 1, "new")], ["+U"], 0) == []
    after = runner.sink.contents()
    assert before.keys() == after.keys()
    assert len([key for key in before if before[key] != after[key]]) == 1


@pytest.mark.parametrize("function", ["rank", "dense_rank"])
def test_ties_behind_the_best_come_up_together(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_rows, "SIZES", SMALL)
    runner = DirectRunner(
        Rank(desc("price"), 1, function=function), InputSpec(SCHEMA, ("k",), changes=RETRACT)
    )
    ties = [(number, "a", 5) for number in range(30)]
    runner.run([(99, "a", 6), *ties], ["+I"] * 31, 0)
    kept = [(number, "a", 5) for number in range(SMALL.spare_least - 1, 30)]
    assert runner.run(ties[: SMALL.spare_least - 1], ["-D"] * (SMALL.spare_least - 1), 0) == []
    assert runner.run([(99, "a", 6)], ["-D"], 0) == [("-D", 99, "a", 6), *[("+I", *row) for row in kept]]


def test_blocks_are_read_up_to_the_first_that_is_larger_than_those_before() -> None:
    zero = np.zeros(6, np.int64)
    key, rows = np.array([0, 0, 0, 0, 1, 2]), np.array([4, 3, 8, 5, 9, 1])
    bounds = Bounds([], key, zero, zero, rows)
    short = np.array([True, False, True])
    assert blocks_to_read(bounds, short).tolist() == [True, True, False, False, False, True]


# -- what is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([(1, "a", 9)], "+U", "a row is worse than the previous one with the same unique key"),
        ([(1, "a", 10)], "-D", "a row is deleted .-D., but monotonic=True promises"),
    ],
)
def test_a_broken_promise_is_an_error(open_harness: Any, rows: list[Row], kind: str, message: str) -> None:
    harness = open_harness(Rank(desc("price"), 2, unique=["id"], monotonic=True))
    harness.push([(1, "a", 10), (2, "a", 8)])
    harness.end_batch()
    harness.push([(2, "a", 8), (2, "a", 9)], kinds=["-U", "+U"])
    assert harness.end_batch() == [("-U", 2, "a", 8), ("+U", 2, "a", 9)]
    harness.push(rows, kind=kind)
    with pytest.raises(OperatorError, match=message):
        harness.end_batch()


@pytest.mark.parametrize(
    "other",
    [
        Rank(desc("price"), 3),
        Rank(desc("price"), 2, offset=1),
        Rank(asc("price"), 2),
        Rank(desc("price"), 2, function="rank"),
        Rank(desc("price"), 2, unique=["id"]),
    ],
)
def test_the_state_of_another_ranking_is_refused(other: Rank) -> None:
    with OperatorHarness(Rank(desc("price"), 2), SCHEMA, ["k"]) as harness:
        harness.push([(1, "a", 10)])
        harness.end_batch()
        snapshot = harness.snapshot()
        with pytest.raises(
            StateDeclarationError,
            match="another program wrote its state: ranking was row_number 2 from 1 by price desc.* and is ",
        ):
            harness.restore(snapshot, operator=other)


def test_wrong_declarations() -> None:
    spec = InputSpec(SCHEMA, ("k",), changes=RETRACT)
    wrong: dict[str, dict[str, Any]] = {
        "function is 'ntile'; choose 'row_number', 'rank' or 'dense_rank'": {"function": "ntile"},
        "n is 0; give a number of at least 1": {"n": 0},
        "n is True; give": {"n": True},
        "offset is -1; give a number of at least 0": {"offset": -1},
        "unique is 'id'; give a list of columns": {"unique": "id"},
        "unique is \\[\\]; give": {"unique": []},
        "name its columns with unique": {"monotonic": True},
        "a row that gets better can let others in": {
            "monotonic": True,
            "unique": ["id"],
            "function": "dense_rank",
        },
        "order_by is empty": {"order_by": []},
        "names a column twice": {"order_by": ["price", desc("price")]},
        "order_by has 7, which is not a column": {"order_by": [7]},
        "order_by has 8, which is not a column": {"order_by": 8},
    }
    for match, make in wrong.items():
        arguments: dict[str, Any] = {"order_by": "price", "n": 1, **make}
        with pytest.raises(SchemaError, match=match):
            Rank(arguments.pop("order_by"), arguments.pop("n"), **arguments)
    with pytest.raises(SchemaError, match="nulls is 'middle'; choose 'first' or 'last'"):
        desc("price", nulls="middle")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="has no column 'cost'"):
        Rank("cost", 1).bind([spec])
    with pytest.raises(SchemaError, match="has no column 'cost'"):
        Rank("price", 1, unique=["cost"]).bind([spec])
    with pytest.raises(SchemaError, match="n is column 'k' of type string; give an integer column"):
        Rank("price", "k").bind([spec])
    with pytest.raises(SchemaError, match="already has a column 'id'; give another rank_column"):
        Rank("price", 1, rank_column="id").bind([spec])
    nested = pa.schema([("k", pa.string()), ("v", pa.list_(pa.int64()))])
    with pytest.raises(SchemaError, match="Rank: order_by"):
        Rank("v", 1).bind([InputSpec(nested, ("k",))])
    assert Rank(SortKey("price", True), 1).settings.order == (desc("price"),)
    assert Rank(["price", SortKey("id")], 1).settings.order == (asc("price"), asc("id"))
