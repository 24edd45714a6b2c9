"""The cases of ``python -m bench micro`` and its command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

import numpy as np
import typer

from asyncstate.operator import Operator
from bench.frame import Report, Rounds, Row, Seed, Side, benchmark
from bench.job import INPUT, count_and_sum, last_row
from bench.micro import iteration, state_path
from bench.micro import operators as made
from bench.micro.sides import COLUMNS, Case, Floor, Place, Size
from operators import TemporalSort

Make = Callable[[], Operator]


def _chain(place: Place, size: Size) -> Side:
    return place.filled(made.CountPerKey(), size.state)


def _hot_state(place: Place, size: Size) -> Side:
    floor = Floor(place.folder)
    floor.records(np.arange(size.state))
    return floor.records


def _bundles(name: str, make: Make) -> Case:
    """Against list get, numpy and an SST file; everything from Arrow batch to delta file counts."""
    return Case(
        name,
        2.0,
        lambda place, size: Floor(place.folder).fill(size.state).bundle,
        lambda place, size: state_path.timed_side(place, make(), size.state),
        path_aim=0.4,
    )


def _calls(grain: str, make: Make) -> Case:
    """Calls that return at once, one a record or for each key of a bundle, against ``asyncio.gather`` by hand."""

    def calls(size: Size) -> int:
        return max(size.unique // 10, 1)

    return Case(
        f"ctx.call, {grain}",
        4.0,
        lambda place, _: lambda keys: made.calls_by_hand(keys, Operator.call_limit),
        lambda place, _: place.filled(make()),
        given=lambda size: Size(10 * calls(size), calls(size), size.seed).drawn(),
        units=calls,
    )


def _both(first: int | None, place: Place, _: Size) -> Side:
    return place.filled(made.CountBoth(first), 0, made.both_inputs, [INPUT, INPUT])


def _matches(name: str, make: Make) -> Case:
    """Rows that Match finds nothing in, or little, against the same rows in their order and nothing else."""
    return Case(name, 1.5, partial(made.in_order, TemporalSort), partial(made.in_order, make))


CASES: Mapping[str, Sequence[Case]] = {
    "bundle grain": [_bundles("GroupAggregate", count_and_sum), _bundles("Deduplicate", last_row)],
    # Count and sum a (key, value), four values a key, against the same list gets and writes by hand.
    "distinct values": [
        Case(
            "ColumnMapState",
            2.0,
            lambda place, size: Floor(place.folder, made.pair_keys).fill(size.state).bundle,
            lambda place, size: place.filled(made.CountPerPair(), size.state, made.pair_rows),
        )
    ],
    "other operators": state_path.CASES,
    # Against a get and a put a record, on hot state.
    "record grain": [Case("ValueState chain", 1.3, _hot_state, _chain)],
    "iterations": iteration.CASES,
    "calls": [_calls("record", made.CallARecord), _calls("bundle", made.CallAKey)],
    # Rows of two inputs that come in turn: those of one first, against both as they arrive.
    "first input": [Case("first_input", 1.5, partial(_both, None), partial(_both, 1))],
    "matches": [_matches(*case) for case in made.MATCHES.items()],
}
"""By what runs in a process of its own."""


@benchmark(state_keys=2_000, unique_keys=500, rounds=1)
def micro(
    report: Report,
    state_keys: Annotated[int, typer.Option(min=100, help="Keys in the state.")] = 1_000_000,
    unique_keys: Annotated[int, typer.Option(min=10, help="Unique keys (records) a micro-batch.")] = 100_000,
    rounds: Rounds = 9,
    seed: Seed = 1,
) -> None:
    """Compare bundle and record grain with hand-written rocksdict code, on one core."""
    title = f"us a key or row, {unique_keys:,} of {state_keys:,} keys, medians of {rounds} pairs"
    report.section(title, COLUMNS)
    for name in CASES:
        report.case(name, measured, name, Size(state_keys, unique_keys, seed), rounds, alone=True)


def measured(name: str, size: Size, rounds: int) -> list[Row]:
    return [row for case in CASES[name] for row in case.rows(size, rounds)]
