"""The smallest micro-batches in which order, a cut or the size of a bundle could matter, each by itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness, net
from operators import GroupAggregate, Join, Rank, count, desc, max_, min_, sum_
from tests.local_aggregation import in_phases
from tests.properties.histories import Record, Table
from tests.properties.runs import push

Changes = Sequence[tuple[str, tuple[Any, ...]]]
Amounts = Sequence[tuple[str, int]]

PAYMENTS = pa.schema([("customer", pa.int64()), ("payment", pa.int64()), ("amount", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("country", pa.string())])
LOGGED = PAYMENTS.append(pa.field("lsn", pa.int64()))


def run(
    operator: Operator,
    inputs: Sequence[pa.Schema],
    key: Sequence[Sequence[str]],
    batches: Iterable[Sequence[Record]],
    async_enabled: bool,
    bundle_size: int = 500_000,
    **settings: Any,
) -> tuple[Table, Counter[str], int]:
    """The netted output, what was dropped, and how many entries are stored in the end."""
    options = {"async-state.bundle-size": str(bundle_size), **settings.pop("options", {})}
    dropped: Counter[str] = Counter()
    with OperatorHarness(
        operator, list(inputs), list(key), async_enabled=async_enabled, options=options, **settings
    ) as harness:
        for batch in batches:
            push(harness, batch)
            harness.end_batch()
            for name in ("retractions_without_state", "stale_rows_dropped"):
                if number := int(harness.statistics().get(f"counter.{name}", 0)):
                    dropped[name] += number
        return net(harness.output), dropped, len(harness.state_entries())


def records(changes: Changes, input: int = 0) -> list[Record]:
    return [Record(input, kind, row) for kind, row in changes]


CUSTOMERS_MAX = 24
ALL_CUSTOMERS = [Record(1, "+I", (number, "no")) for number in range(CUSTOMERS_MAX)]


def in_every_order(before: Amounts, changes: Amounts) -> list[Changes]:
    """Two micro-batches of changes of payment 7: each customer has those of the second one in another order."""
    orders = list(enumerate(itertools.permutations(changes)))
    return [
        [(kind, (customer, 7, amount)) for customer, _ in orders for kind, amount in before],
        [(kind, (customer, 7, amount)) for customer, order in orders for kind, amount in order],
    ]


def join_payments(
    join: Join,
    batches: Sequence[Changes],
    async_enabled: bool,
    payments: pa.Schema = PAYMENTS,
    **settings: Any,
) -> tuple[Table, Counter[str], int]:
    """The customers first, then micro-batches of payments."""
    pushed = [ALL_CUSTOMERS, *(records(changes) for changes in batches)]
    return run(join, [payments, CUSTOMERS], [["customer"], ["id"]], pushed, async_enabled, **settings)


NOTHING: tuple[Table, Counter[str], int] = (Counter(), Counter(), CUSTOMERS_MAX)
"""No output is left, nothing was dropped, and only the customers are stored."""


# -- a retraction may come before its row ------------------------------------------------------------------


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("unique", [None, ["payment"], "join_key"])
@pytest.mark.parametrize("kinds", [("-D", "+I"), ("-U", "+U"), ("-U", "+I"), ("+I", "-D")])
def test_a_row_that_comes_and_goes_in_one_micro_batch_leaves_nothing(
    unique: Any, kinds: tuple[str, str], bundle_size: int, async_enabled: bool
) -> None:
    changes = [(kind, (1, 7, 10)) for kind in kinds]
    join = Join("inner", left_unique=unique)
    assert join_payments(join, [changes], async_enabled, bundle_size=bundle_size) == NOTHING


@pytest.mark.parametrize("kind", ["left", "right", "full", "semi", "anti"])
def test_a_row_that_comes_and_goes_leaves_nothing_in_other_joins(kind: Any, async_enabled: bool) -> None:
    changes = [("-D", (1, 7, 10)), ("+I", (1, 7, 10))]
    alone = [(None, None, None, *customer.row) for customer in ALL_CUSTOMERS if kind in ("right", "full")]
    assert join_payments(Join(kind), [changes], async_enabled) == (Counter(alone), Counter(), CUSTOMERS_MAX)


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("unique", [None, ["payment"], "join_key"])
def test_updates_of_a_stored_row_give_the_last_one_in_any_order(
    unique: Any, bundle_size: int, async_enabled: bool
) -> None:
    found = join_payments(
        Join("inner", left_unique=unique),
        in_every_order([("+I", 10)], [("-U", 10), ("+U", 20), ("-U", 20), ("+U", 99)]),
        async_enabled,
        bundle_size=bundle_size,
    )
    assert found == (
        Counter({(customer, 7, 99, customer, "no"): 1 for customer in range(24)}),
        Counter(),
        CUSTOMERS_MAX + 24,
    )


def test_a_retraction_behind_the_row_that_replaced_its_own_takes_nothing_else(async_enabled: bool) -> None:
    batches = [[("+I", (7, 1, 10))], [("+U", (7, 1, 99)), ("-U", (7, 1, 10))]]
    found = join_payments(Join("inner", left_unique=["payment"]), batches, async_enabled)
    assert found == (Counter({(7, 1, 99, 7, "no"): 1}), Counter(), CUSTOMERS_MAX + 1)


def test_a_retraction_is_missed_only_if_its_row_does_not_come(async_enabled: bool) -> None:
    found = join_payments(Join("inner"), [[("-D", (1, 7, 10)), ("+I", (1, 7, 11))]], async_enabled)
    assert found == (
        Counter({(1, 7, 11, 1, "no"): 1}),
        Counter(retractions_without_state=1),
        CUSTOMERS_MAX + 1,
    )


AGGREGATES = [count().alias("n"), sum_("amount"), min_("amount"), max_("amount")]


@pytest.mark.parametrize("two_phases", ["false", "true"])
@pytest.mark.parametrize("bundle_size", [1, 2, 500_000])
def test_aggregates_of_rows_in_disorder_over_bundles(
    bundle_size: int, two_phases: str, async_enabled: bool
) -> None:
    aggregates = AGGREGATES[:2] if two_phases == "true" else AGGREGATES
    found = run(
        in_phases(GroupAggregate(aggregates), two_phases),
        [PAYMENTS],
        [["customer"]],
        map(records, in_every_order([("+I", 5)], [("-U", 5), ("+U", 9), ("-D", 9), ("+I", 7)])),
        async_enabled,
        bundle_size,
    )
    figures = [1, *[7] * (len(aggregates) - 1)]
    assert found[:2] == (Counter({(customer, *figures): 1 for customer in range(24)}), Counter())


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("unique", [None, ["payment"]])
def test_a_ranking_of_rows_in_disorder(unique: Any, bundle_size: int, async_enabled: bool) -> None:
    found = run(
        Rank(desc("amount"), 1, unique=unique),
        [PAYMENTS],
        [["customer"]],
        map(records, in_every_order([("+I", 5)], [("-U", 5), ("+U", 9), ("-U", 9), ("+U", 7)])),
        async_enabled,
        bundle_size,
    )
    assert found[:2] == (Counter({(customer, 7, 7): 1 for customer in range(24)}), Counter())


# -- upserts, in order -------------------------------------------------------------------------------------

UPSERTS = [
    pytest.param([[("+I", (1, 7, 10))], [("+U", (1, 7, 20)), ("-D", (1, 7, 20))]], id="replaced, deleted"),
    pytest.param(
        [[("+I", (1, 7, 10)), ("+U", (1, 7, 20)), ("-D", (1, 7, 20))]], id="inserted, replaced, deleted"
    ),
    pytest.param([[("+U", (1, 7, 10)), ("-D", (1, 7, 10))]], id="came as an update, deleted"),
    pytest.param([[("+U", (1, 7, 10))], [("-D", (1, 7, 10))]], id="deleted later"),
]


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("unique", [["payment"], "join_key"])
@pytest.mark.parametrize("batches", UPSERTS)
def test_an_upserted_row_that_is_deleted_is_gone(
    batches: Sequence[Changes], unique: Any, bundle_size: int, async_enabled: bool
) -> None:
    join = Join("inner", left_unique=unique)
    assert join_payments(join, batches, async_enabled, bundle_size=bundle_size) == NOTHING


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("batches", UPSERTS)
def test_an_upserted_row_that_is_deleted_is_ranked_no_more(
    batches: Sequence[Changes], bundle_size: int, async_enabled: bool
) -> None:
    found = run(
        Rank(desc("amount"), 1, unique=["payment"]),
        [PAYMENTS],
        [["customer"]],
        map(records, batches),
        async_enabled,
        bundle_size=bundle_size,
    )
    assert found == (Counter(), Counter(), 0)


# -- rows that move from key to key ------------------------------------------------------------------------


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("kind", ["+I", "+U"])
def test_a_row_that_moves_to_a_key_and_is_deleted_there_is_gone(
    kind: str, bundle_size: int, async_enabled: bool
) -> None:
    """At the key that it moves to, it comes as +U without a -U. Each payment has its rows in another order."""
    orders = list(enumerate(itertools.permutations([("-U", 2), (kind, 1), ("-D", 1)])))
    before = [("+I", (2, payment, 10)) for payment, _ in orders]
    moved = [(kind, (customer, payment, 10)) for payment, order in orders for kind, customer in order]
    join = Join("inner", left_unique=["payment"])
    assert join_payments(join, [before, moved], async_enabled, bundle_size=bundle_size) == NOTHING


# -- with a sequence ---------------------------------------------------------------------------------------

LOG = [("+I", (1, 7, 10, 1)), ("+U", (1, 7, 20, 2)), ("-D", (1, 7, 20, 3)), ("+I", (1, 7, 30, 4))]
"""The log sequence number is that of the change, also of a deletion, which else shows the row as it was."""


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("unique", [["payment"], "join_key"])
def test_changes_come_in_order_of_their_sequence(unique: Any, cut: int, async_enabled: bool) -> None:
    orders = list(enumerate(itertools.permutations(range(4))))
    for length in (3, 4):
        first, second = (
            [
                (LOG[at][0], (customer, *LOG[at][1][1:]))
                for customer, order in orders
                for at in order
                if at < length and (at < cut) == before
            ]
            for before in (True, False)
        )
        join = Join("inner", left_unique=unique)
        found = join_payments(join, [first, second], async_enabled, LOGGED, sequence=["lsn", None])
        left = [(customer, 7, 30, 4, customer, "no") for customer in range(24)] if length == 4 else []
        assert found == (Counter(left), Counter(), CUSTOMERS_MAX + len(left))


def test_rows_that_come_again_are_dropped(async_enabled: bool) -> None:
    batches = [LOG[:2], [*LOG[:1], *LOG[2:3], *LOG[1:2]], LOG[::-1]]
    found = join_payments(
        Join("inner", left_unique=["payment"]),
        batches,
        async_enabled,
        LOGGED,
        sequence=["lsn", None],
        drop_stale=[True, False],
    )
    assert found[:2] == (Counter({(1, 7, 30, 4, 1, "no"): 1}), Counter(stale_rows_dropped=2 + 3))


def test_both_halves_of_an_update_have_the_sequence_of_the_change(async_enabled: bool) -> None:
    batches = [[("+I", (1, 7, 10, 1))], [("+U", (1, 7, 20, 2)), ("-U", (1, 7, 10, 2))]]
    found = join_payments(
        Join("inner", left_unique=["payment"]),
        batches,
        async_enabled,
        LOGGED,
        sequence=["lsn", None],
        drop_stale=[True, False],
    )
    row_and_what_was_seen = 2
    left = Counter({(1, 7, 20, 2, 1, "no"): 1})
    assert found == (left, Counter(), CUSTOMERS_MAX + row_and_what_was_seen)
