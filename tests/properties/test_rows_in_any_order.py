"""The smallest micro-batches in which order, a cut or the size of a bundle could matter, each by itself."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.operator import Operator
from asyncstate.testing import OperatorHarness
from operators import GroupAggregate, Join, Rank, count, desc, max_, min_, sum_
from tests.properties.histories import Record, Table
from tests.properties.runs import netted, push

Changes = Sequence[tuple[str, tuple[Any, ...]]]

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
    options = {"async-state.bundle-size": str(bundle_size)}
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
        return netted(harness.output), dropped, len(harness.state_entries())


def records(changes: Changes, input: int = 0) -> list[Record]:
    return [Record(input, kind, row) for kind, row in changes]


ANN = Record(1, "+I", (1, "no"))


def join_payments(
    join: Join,
    batches: Sequence[Changes],
    async_enabled: bool,
    payments: pa.Schema = PAYMENTS,
    **settings: Any,
) -> tuple[Table, Counter[str], int]:
    """The customer first, then micro-batches of payments."""
    pushed = [[ANN], *(records(changes) for changes in batches)]
    return run(join, [payments, CUSTOMERS], [["customer"], ["id"]], pushed, async_enabled, **settings)


ONLY_THE_CUSTOMER: tuple[Table, Counter[str], int] = (Counter(), Counter(), 1)
"""No output is left, nothing was dropped, and one row is stored."""


# -- a retraction may come before its row ------------------------------------------------------------------


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("unique", [None, ["payment"], "join_key"])
@pytest.mark.parametrize("kinds", [("-D", "+I"), ("-U", "+U"), ("-U", "+I"), ("+I", "-D")])
def test_a_row_that_comes_and_goes_in_one_micro_batch_leaves_nothing(
    unique: Any, kinds: tuple[str, str], bundle_size: int, async_enabled: bool
) -> None:
    changes = [(kind, (1, 7, 10)) for kind in kinds]
    join = Join("inner", left_unique=unique)
    assert join_payments(join, [changes], async_enabled, bundle_size=bundle_size) == ONLY_THE_CUSTOMER


@pytest.mark.parametrize("kind", ["left", "right", "full", "semi", "anti"])
def test_a_row_that_comes_and_goes_leaves_nothing_in_other_joins(kind: Any, async_enabled: bool) -> None:
    changes = [("-D", (1, 7, 10)), ("+I", (1, 7, 10))]
    alone = Counter({(None, None, None, 1, "no"): 1}) if kind in ("right", "full") else Counter()
    assert join_payments(Join(kind), [changes], async_enabled) == (alone, Counter(), 1)


@pytest.mark.parametrize("unique", [None, ["payment"], "join_key"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_updates_of_a_stored_row_give_the_last_one_in_any_order(
    unique: Any, order: tuple[int, ...], async_enabled: bool
) -> None:
    updates = [("-U", (1, 7, 10)), ("+U", (1, 7, 20)), ("-U", (1, 7, 20)), ("+U", (1, 7, 99))]
    batches = [[("+I", (1, 7, 10))], [updates[at] for at in order]]
    found = join_payments(Join("inner", left_unique=unique), batches, async_enabled)
    assert found == (Counter({(1, 7, 99, 1, "no"): 1}), Counter(), 2)


def test_a_retraction_behind_the_row_that_replaced_its_own_takes_nothing_else(async_enabled: bool) -> None:
    batches = [[("+I", (7, 1, 10))], [("+U", (7, 1, 99)), ("-U", (7, 1, 10))]]
    found = run(
        Join("inner", left_unique=["payment"]),
        [PAYMENTS, CUSTOMERS],
        [["customer"], ["id"]],
        [[Record(1, "+I", (7, "no"))], *map(records, batches)],
        async_enabled,
    )
    assert found == (Counter({(7, 1, 99, 7, "no"): 1}), Counter(), 2)


def test_a_retraction_is_missed_only_if_its_row_does_not_come(async_enabled: bool) -> None:
    found = join_payments(Join("inner"), [[("-D", (1, 7, 10)), ("+I", (1, 7, 11))]], async_enabled)
    assert found == (Counter({(1, 7, 11, 1, "no"): 1}), Counter(retractions_without_state=1), 2)


AGGREGATES = [count().alias("n"), sum_("amount"), min_("amount"), max_("amount")]


@pytest.mark.parametrize("two_phases", ["false", "true"])
@pytest.mark.parametrize("bundle_size", [1, 2, 500_000])
@pytest.mark.parametrize(
    "changes", list(itertools.permutations([("-U", 5), ("+U", 9), ("-D", 9), ("+I", 7)]))
)
def test_aggregates_of_rows_in_disorder_over_bundles(
    changes: Sequence[tuple[str, int]], bundle_size: int, two_phases: str, async_enabled: bool
) -> None:
    aggregates = AGGREGATES[:2] if two_phases == "true" else AGGREGATES
    options = {"async-state.bundle-size": str(bundle_size), "async-state.local-aggregation": two_phases}
    with OperatorHarness(
        GroupAggregate(aggregates), PAYMENTS, ["customer"], async_enabled=async_enabled, options=options
    ) as harness:
        harness.push([(1, 1, 5)])
        harness.end_batch()
        for kind, amount in changes:
            harness.push([(1, 1, amount)], kind=kind)
        harness.end_batch()
        assert harness.statistics()["counter.retractions_without_state"] == 0
        assert netted(harness.output) == Counter({(1, 1, *[7] * (len(aggregates) - 1)): 1})


@pytest.mark.parametrize("bundle_size", [1, 500_000])
@pytest.mark.parametrize("unique", [None, ["payment"]])
def test_a_ranking_of_rows_in_disorder(unique: Any, bundle_size: int, async_enabled: bool) -> None:
    rank = Rank(desc("amount"), 1, unique=unique)
    for order in itertools.permutations([("-U", 5), ("+U", 9), ("-U", 9), ("+U", 7)]):
        batches = [[("+I", (1, 1, 5))], [(kind, (1, 1, amount)) for kind, amount in order]]
        found = run(
            rank, [PAYMENTS], [["customer"]], map(records, batches), async_enabled, bundle_size=bundle_size
        )
        assert found[:2] == (Counter({(1, 1, 7): 1}), Counter())


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
    assert join_payments(join, batches, async_enabled, bundle_size=bundle_size) == ONLY_THE_CUSTOMER


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

MOVED = [("-U", (2, 7, 10)), ("+U", (1, 7, 10)), ("-D", (1, 7, 10))]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("bundle_size", [1, 500_000])
def test_a_row_that_moves_to_a_key_and_is_deleted_there_is_gone(
    order: tuple[int, ...], bundle_size: int, async_enabled: bool
) -> None:
    """At the key that it moves to, it comes as +U without a -U."""
    batches = [[("+I", (2, 7, 10))], [MOVED[at] for at in order]]
    join = Join("inner", left_unique=["payment"])
    assert join_payments(join, batches, async_enabled, bundle_size=bundle_size) == ONLY_THE_CUSTOMER


# -- with a sequence ---------------------------------------------------------------------------------------

LOG = [("+I", (1, 7, 10, 1)), ("+U", (1, 7, 20, 2)), ("-D", (1, 7, 20, 3)), ("+I", (1, 7, 30, 4))]
"""The log sequence number is that of the change, also of a deletion, which else shows the row as it was."""


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("unique", [["payment"], "join_key"])
def test_changes_come_in_order_of_their_sequence(unique: Any, cut: int, async_enabled: bool) -> None:
    for length in (3, 4):
        for order in itertools.permutations(range(length)):
            chosen = [[at for at in order if (at < cut) == first] for first in (True, False)]
            found = join_payments(
                Join("inner", left_unique=unique),
                [[LOG[at] for at in places] for places in chosen],
                async_enabled,
                LOGGED,
                sequence=["lsn", None],
            )
            left = Counter({(1, 7, 30, 4, 1, "no"): 1}) if length == 4 else Counter()
            assert found == (left, Counter(), 1 + len(left))


def test_rows_that_come_again_are_dropped(async_enabled: bool) -> None:
    batches = [LOG[:2], [*LOG[:1], *LOG[2:3], *LOG[1:2]], LOG[::-1]]
    found = join_payments(
        Join("inner", left_unique=["payment"]),
        batches,
        async_enabled,
        LOGGED,
        sequence=["lsn", None],
        drop_seen=[True, False],
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
        drop_seen=[True, False],
    )
    assert found == (
        Counter({(1, 7, 20, 2, 1, "no"): 1}),
        Counter(),
        3,
    )  # the row, the customer, what was seen
