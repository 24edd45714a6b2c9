"""The output of one operator as the input of another with another key: its rows arrive in any order.

Between the two lies an exchange, which keeps the rows of a micro-batch together and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness, net
from operators import GroupAggregate, Join, Rank, asc, count, desc, max_, sum_
from tests.properties.histories import History, Record, Table, both, changelogs, keyed_changelogs
from tests.properties.models import aggregate, grouped, joined, ranked
from tests.properties.runs import KEY_GROUPS, OutputRow, push
from tests.properties.schedules import Schedule, schedules

AUCTIONS = pa.schema([("auction", pa.int64()), ("bids", pa.int64())])
NAMES = pa.schema([("auction", pa.int64()), ("name", pa.string())])
PAYMENTS = pa.schema([("payment", pa.int64()), ("customer", pa.int64()), ("amount", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("country", pa.string())])
TAXES = pa.schema([("land", pa.string()), ("tax", pa.int64())])


@dataclass(frozen=True)
class Link:
    """An operator of a chain: its inputs are the output of the one before (with the job's own inputs from ``own`` on,
    if it is the first), then the job's input ``other``. ``columns`` of its output go on."""

    make: Callable[[], Operator]
    inputs: Sequence[pa.Schema]
    key: Sequence[Sequence[str]]
    own: Sequence[int]


@contextmanager
def chain(
    links: Sequence[Link], schedule: Schedule, seed: int, async_enabled: bool
) -> Iterator[Callable[[Sequence[Record]], list[OutputRow]]]:
    """Runs micro-batches through all operators, each on its own partitions; what comes out of the last one."""
    random = Random(seed)
    with ExitStack() as stack:
        harnesses = [
            stack.enter_context(
                OperatorHarness(
                    link.make(),
                    list(link.inputs),
                    list(link.key),
                    async_enabled=async_enabled,
                    parallelism=1 + (schedule.parallelism + number) % 3,
                    max_parallelism=KEY_GROUPS,
                    options=schedule.options,
                    tuning=schedule.tuning,
                )
            )
            for number, link in enumerate(links)
        ]

        def end_batch(records: Sequence[Record]) -> list[OutputRow]:
            rows: list[OutputRow] = []
            for number, (link, harness) in enumerate(zip(links, harnesses, strict=True)):
                pushed = [Record(0, row[0], tuple(row[1:])) for row in rows]
                places = {own: at for at, own in enumerate(link.own, 0 if number == 0 else 1)}
                pushed += [
                    record._replace(input=places[record.input])
                    for record in records
                    if record.input in places
                ]
                if number:
                    random.shuffle(pushed)
                push(harness, pushed)
                rows = harness.end_batch()
                assert harness.statistics().get("counter.retractions_without_state", 0) == 0
            return rows

        yield end_batch


TOP_AUCTIONS = Link(
    lambda: Rank(desc("bids"), 3, rank_column="place", unique=["auction"]), [AUCTIONS], [[]], [0]
)
RANKED = AUCTIONS.append(pa.field("place", pa.int64(), nullable=False))
NAMED = Link(
    lambda: Join("inner", left_unique="join_key", right_unique="join_key"),
    [RANKED, NAMES],
    [["auction"], ["auction"]],
    [1],
)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bundle_size", [1, 500_000])
def test_auctions_that_change_places_keep_their_names(
    seed: int, bundle_size: int, async_enabled: bool
) -> None:
    """Each place's row is taken back and comes with another auction; the join is by auction."""
    names = [Record(1, "+I", (1, "lamp")), Record(1, "+I", (2, "desk"))]
    batches = [
        [*names, Record(0, "+I", (1, 5)), Record(0, "+I", (2, 3))],
        [Record(0, "-U", (2, 3)), Record(0, "+U", (2, 9))],
    ]
    with chain([TOP_AUCTIONS, NAMED], Schedule((), bundle_size), seed, async_enabled) as end_batch:
        output = [row for batch in batches for row in end_batch(batch)]
    assert net(output) == Counter({(2, 9, 1, 2, "desk"): 1, (1, 5, 2, 1, "lamp"): 1})


@pytest.mark.parametrize("seed", range(4))
def test_auctions_upserted_into_a_ranking_keep_their_names(seed: int, async_enabled: bool) -> None:
    batches = [
        [Record(1, "+I", (1, "lamp")), Record(1, "+I", (2, "desk"))],
        [Record(0, "+I", (1, 5)), Record(0, "+I", (2, 3))],
        [Record(0, "+U", (2, 9))],
    ]
    with chain([TOP_AUCTIONS, NAMED], Schedule(()), seed, async_enabled) as end_batch:
        output = [row for batch in batches for row in end_batch(batch)]
    assert net(output) == Counter({(2, 9, 1, 2, "desk"): 1, (1, 5, 2, 1, "lamp"): 1})


def _number(high: int) -> st.SearchStrategy[int]:
    return st.integers(0, high)


_PAYMENT = st.tuples(_number(9), _number(3), _number(5))
_COUNTRIES = st.sampled_from(["no", "se"])
_BIDS = keyed_changelogs(st.tuples(_number(5), _number(9)), lambda row: row[0])
_LABELS = keyed_changelogs(
    st.tuples(_number(5), st.sampled_from(["ink", "pen"])), lambda row: row[0], input=1
)
_PAID = st.one_of(changelogs(_PAYMENT, 9), keyed_changelogs(_PAYMENT, lambda row: row[0], size=9))
_HOMES = keyed_changelogs(st.tuples(_number(3), _COUNTRIES), lambda row: row[0], input=1, size=6)
_RATES = keyed_changelogs(st.tuples(_COUNTRIES, _number(3)), lambda row: row[0], input=2, size=4)


def _three(one: History, other: History) -> History:
    """The changes of a third input among those of the first two."""
    turns = Random(len(one.changes)).sample(
        [0] * len(one.changes) + [1] * len(other.changes), len(one.changes) + len(other.changes)
    )
    waiting = [iter(one.changes), iter(other.changes)]
    return History([next(waiting[turn]) for turn in turns], 3, [None] * 3)


WITH_COUNTRY = Link(
    lambda: Join("left", right_unique="join_key"), [PAYMENTS, CUSTOMERS], [["customer"], ["id"]], [0, 1]
)
PAID_FROM = pa.schema([*PAYMENTS, *CUSTOMERS])
BY_COUNTRY = Link(
    lambda: GroupAggregate([count().alias("n"), sum_("amount"), max_("amount")]),
    [PAID_FROM],
    [["country"]],
    [],
)
WITH_TAX = Link(
    lambda: Join("full", right_unique="join_key"), [PAID_FROM, TAXES], [["country"], ["land"]], [2]
)
BY_CUSTOMER = Link(lambda: GroupAggregate([sum_("amount")]), [PAYMENTS], [["customer"]], [0])
BIGGEST = Link(
    lambda: Rank([desc("sum_amount"), asc("customer")], 2, rank_column="place", unique=["customer"]),
    [pa.schema([("customer", pa.int64()), ("sum_amount", pa.int64())])],
    [[]],
    [],
)


def _named(tables: list[Table]) -> Table:
    places = ranked(
        tables[0], lambda row: (), lambda row: (-row[1], row[0]), lambda row: (0, 3), "row_number", True
    )
    return joined("inner", [places, tables[1]], [lambda row: row[:1]] * 2, (3, 2))


def _with_country(tables: list[Table]) -> Table:
    return joined("left", tables, [lambda row: row[1:2], lambda row: row[:1]], (3, 2))


def _by_country(tables: list[Table]) -> Table:
    figures = [aggregate("count", None), aggregate("sum", 2), aggregate("max", 2)]
    return grouped(_with_country(tables), [4], figures)


def _with_tax(tables: list[Table]) -> Table:
    both_sides = [_with_country(tables), tables[2]]
    return joined("full", both_sides, [lambda row: row[4:5], lambda row: row[:1]], (5, 2))


def _biggest(tables: list[Table]) -> Table:
    totals = grouped(tables[0], [1], [aggregate("sum", 2)])
    return ranked(
        totals, lambda row: (), lambda row: (-row[1], row[0]), lambda row: (0, 2), "row_number", True
    )


@dataclass(frozen=True)
class Chain:
    """Operators, histories of the job's inputs, and what the tables come to."""

    links: Sequence[Link]
    histories: st.SearchStrategy[History]
    expected: Callable[[list[Table]], Table]


CHAINS = {
    "a ranking joined by what it ranks": Chain(
        [
            Link(
                lambda: Rank([desc("bids"), "auction"], 3, rank_column="place", unique=["auction"]),
                [AUCTIONS],
                [[]],
                [0],
            ),
            NAMED,
        ],
        both(_BIDS, _LABELS),
        _named,
    ),
    "a join summed by another column": Chain([WITH_COUNTRY, BY_COUNTRY], both(_PAID, _HOMES), _by_country),
    "a join joined by another column": Chain(
        [WITH_COUNTRY, WITH_TAX], st.builds(_three, both(_PAID, _HOMES), _RATES), _with_tax
    ),
    "sums ranked over all keys": Chain([BY_CUSTOMER, BIGGEST], _PAID, _biggest),
}
EXAMPLES = max(6, settings.default.max_examples * 2 // 5 // len(CHAINS))


@pytest.mark.long
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_gives_what_its_tables_give(name: str) -> None:
    one = CHAINS[name]

    @settings(settings.default, max_examples=EXAMPLES)
    @given(data=st.data(), seed=st.integers(0, 2**16))
    def hold(data: st.DataObject, seed: int) -> None:
        history = data.draw(one.histories)
        _, schedule = data.draw(schedules(history))
        outputs = []
        for async_enabled in (False, True):
            outputs.append([])
            with chain(one.links, schedule, seed, async_enabled) as end_batch:
                for batch in schedule.batches:
                    outputs[-1].extend(end_batch(batch.records))
                    tables = history.tables(history.records[: batch.seen])
                    assert net(outputs[-1]) == one.expected(tables)
        assert outputs[0] == outputs[1]

    hold()
