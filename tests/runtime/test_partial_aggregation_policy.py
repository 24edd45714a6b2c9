"""When a micro-batch has a local phase: by the configuration, and for `auto` by the version it starts from."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncstate.changelog import INSERT_ONLY, RETRACT
from asyncstate.driver.partial_aggregation_policy import (
    REDUCTION_MIN,
    ROWS_MIN,
    TRIAL_BATCHES,
    choose_partial_aggregation,
)
from asyncstate.operator import InputSpec
from asyncstate.partial_aggregation import PartialAggregation
from asyncstate.storage import OperatorManifest, PartitionManifest
from operators import Aggregate, Deduplicate, GroupAggregate, count, max_, min_, sum_
from tests.local_aggregation import in_phases

SCHEMA = pa.schema(
    [("k", pa.string()), ("n", pa.int64()), ("s", pa.string()), ("d", pa.decimal128(20, 2)), ("at", pa.timestamp("us"))]
)  # fmt: skip
OFTEN = int(4 * REDUCTION_MIN)
"""Rows to a key with which a local phase surely pays."""


def chosen(
    mode: str = "auto",
    base: OperatorManifest | None = None,
    batch_id: int = 1,
    changelog: bool = False,
    aggregates: tuple[Aggregate, ...] = (count(),),
) -> PartialAggregation | None:
    spec = InputSpec(SCHEMA, ("k",), changes=RETRACT if changelog else INSERT_ONLY)
    return choose_partial_aggregation(in_phases(GroupAggregate(aggregates), mode), [spec], base, batch_id)


def after(**figures: float) -> OperatorManifest:
    """What the micro-batch before has left: its figures, from two partitions."""
    halves = {name: value / 2 for name, value in figures.items()}
    partitions = [PartitionManifest(number, statistics=halves) for number in range(2)]
    return OperatorManifest(uid="op", operator="GroupAggregate", parallelism=2, partitions=partitions)


def in_one_phase(rows: float, to_a_key: float) -> OperatorManifest:
    return after(rows_in=rows, reads=rows / to_a_key, keys=rows / to_a_key)


def in_two_phases(rows: float, to_a_key: float) -> OperatorManifest:
    return after(local_rows_in=rows, rows_in=rows / to_a_key, reads=rows / to_a_key)


@pytest.mark.parametrize("before", [in_one_phase, in_two_phases])
def test_auto_goes_by_how_many_rows_a_key_had(before: object) -> None:
    assert callable(before)
    assert chosen(base=before(2 * ROWS_MIN, OFTEN)) is not None
    assert chosen(base=before(2 * ROWS_MIN, REDUCTION_MIN / 2)) is None
    assert chosen(base=before(ROWS_MIN / 2, OFTEN)) is None
    assert chosen(base=before(0, 1)) is None


def test_auto_has_nothing_to_go_by_in_the_first_micro_batch() -> None:
    assert chosen(base=None, batch_id=0) is None
    assert chosen(base=None, batch_id=TRIAL_BATCHES) is None


def test_auto_tries_again_from_time_to_time() -> None:
    tried = [
        batch
        for batch in range(1, 3 * TRIAL_BATCHES)
        if chosen(base=in_one_phase(2 * ROWS_MIN, 1), batch_id=batch) is not None
    ]
    assert tried == [TRIAL_BATCHES, 2 * TRIAL_BATCHES]
    assert chosen(base=in_one_phase(ROWS_MIN / 2, 1), batch_id=TRIAL_BATCHES) is None
    # A trial that did not pay is over at once.
    assert chosen(base=in_two_phases(2 * ROWS_MIN, 1), batch_id=2 * TRIAL_BATCHES) is None


def test_auto_leaves_changelogs_and_what_spark_would_sort_alone() -> None:
    base = in_one_phase(2 * ROWS_MIN, OFTEN)
    assert chosen(base=base, changelog=True) is None
    for column, fixed in (("n", True), ("d", True), ("at", True), ("s", False)):
        for function in (min_, max_):
            assert (chosen(base=base, aggregates=(function(column),)) is not None) == fixed
    assert chosen(base=base, aggregates=(count("s"), sum_("n"))) is not None


def test_true_and_false_hold_whatever_was_before() -> None:
    for base in (None, in_one_phase(1, 1), in_two_phases(2 * ROWS_MIN, OFTEN)):
        for changelog in (False, True):
            assert chosen("false", base, changelog=changelog) is None
            assert chosen("true", base, changelog=changelog) is not None
    assert chosen("true", aggregates=(max_("s"),)) is not None
    assert chosen("true", aggregates=(max_("n"),), changelog=True) is None


def test_operators_that_aggregate_nothing_have_no_local_phase() -> None:
    operator = in_phases(Deduplicate(), True)
    assert choose_partial_aggregation(operator, [InputSpec(SCHEMA, ("k",), "at")], None, 1) is None
