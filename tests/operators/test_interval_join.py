"""IntervalJoin by hand: random rows, late ones too, against a model of lists and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, InputSpec
from operators.join import matches
from operators.join.interval import interval_pairs
from operators.join.interval.interval_join import IntervalJoin
from tests.examples import at_most
from tests.operators.direct import DirectRunner
from tests.operators.interval_model import KINDS, LEFT, RIGHT, SECOND, IntervalModel, Push, Row

UNIT = SECOND // 2
"""Times are multiples of this, so that some lie in one cell of a second and some do not."""

rows = st.tuples(st.sampled_from([0, 0, 1, 2, None]), st.integers(0, 3), st.integers(-4, 24))
pushes = st.lists(st.tuples(st.integers(0, 1), st.lists(rows, min_size=1, max_size=8)), max_size=4)
batches = st.lists(st.tuples(pushes, st.integers(0, 9)), min_size=1, max_size=5)
bounds = st.tuples(st.integers(-6, 6), st.integers(0, 9)).map(lambda both: (both[0], both[0] + both[1]))


def specs(event_time: str | None = "at") -> list[InputSpec]:
    return [
        InputSpec(schema, ("k",), event_time, name=name)
        for schema, name in ((LEFT, "offers"), (RIGHT, "bids"))
    ]


def scaled(given_pushes: Sequence[tuple[int, list[Row]]]) -> list[Push]:
    return [(side, [(key, value, time * UNIT) for key, value, time in some]) for side, some in given_pushes]


def check(output: list[Row], expected: tuple[list[Row], list[Row]], kind: str, timed: bool) -> None:
    """Rows in their order; those of the end by side and, if ``timed``, time: those of one time stand in any order."""
    arrived, ended = expected
    assert [row[0] for row in output] == ["+I"] * len(output)
    found = [row[1:] for row in output]
    assert found[: len(arrived)] == arrived
    assert sorted(found[len(arrived) :], key=repr) == sorted(ended, key=repr)
    left_only = kind == "anti"
    order = [(row[:3] == (None,) * 3 and not left_only) for row in found[len(arrived) :]]
    assert order == sorted(order)
    if not timed:
        return
    for right in (False, True):
        times = [
            row[5 if right else 2]
            for row, at in zip(found[len(arrived) :], order, strict=True)
            if at is right
        ]
        assert times == sorted(times)


def run_both(
    kind: Any,
    bounds_given: tuple[int, int],
    micro_batches: Sequence[tuple[list[tuple[int, list[Row]]], int]],
    *,
    conditional: bool = False,
    null_safe: bool = False,
    lateness: int = 0,
    deferred: bool = False,
    processing: bool = False,
) -> None:
    """All micro-batches and the end of the input; in the end no state is left."""
    lower, upper = (bound * UNIT for bound in bounds_given)
    join = IntervalJoin(
        kind,
        lower=lower,
        upper=upper,
        condition=pc.field("v") <= pc.field("w") if conditional else None,
        time="processing" if processing else "event",
        null_safe=null_safe,
        allowed_lateness=lateness * UNIT,
    )
    model = IntervalModel(
        kind,
        lower,
        upper,
        lateness * UNIT,
        (lambda left, right: left[1] <= right[1]) if conditional else (lambda left, right: True),
        null_safe,
        processing,
    )
    runner = DirectRunner(join, *specs(None if processing else "at"), deferred=deferred)
    watermark, clock = MIN_WATERMARK, 5 * UNIT
    for given_pushes, step in micro_batches:
        some = scaled(given_pushes)
        if step and not processing:
            watermark = max(watermark, -5 * UNIT) + step * UNIT
        clock += step * UNIT
        bundles = [(side, push, ["+I"] * len(push)) for side, push in some]
        output = runner.run_bundles(bundles, watermark, clock)
        check(output, model.run(some, watermark, clock), kind, not processing)
    output = runner.run_bundles([], MAX_WATERMARK, clock)
    check(output, model.run([], MAX_WATERMARK, clock), kind, not processing)
    assert runner.sink.contents() == {}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(40), deadline=None)
@given(
    bounds,
    batches,
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 0, 3]),
    st.booleans(),
    st.sampled_from([2, 5, interval_pairs.REWRITE_ROWS]),
    st.sampled_from([3, matches.PAIRS]),
)
def test_agrees_with_a_model_row_by_row(
    kind: Any,
    bounds_given: tuple[int, int],
    micro_batches: Any,
    conditional: bool,
    null_safe: bool,
    lateness: int,
    deferred: bool,
    rewrite_rows: int,
    pairs: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interval_pairs, "REWRITE_ROWS", rewrite_rows)
        patch.setattr(matches, "PAIRS", pairs)
        run_both(
            kind,
            bounds_given,
            micro_batches,
            conditional=conditional,
            null_safe=null_safe,
            lateness=lateness,
            deferred=deferred,
        )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(20), deadline=None)
@given(bounds, batches, st.booleans())
def test_agrees_with_a_model_in_processing_time(
    kind: Any, bounds_given: tuple[int, int], micro_batches: Any, deferred: bool
) -> None:
    run_both(kind, bounds_given, micro_batches, deferred=deferred, processing=True)
