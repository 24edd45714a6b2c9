"""The cases of ``python -m bench micro`` and its command line.

Owns: ``CASES``: by name what measures it, of keys in the state, unique keys (or rows) a micro-batch, rounds and seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
import typer

from asyncstate.operator import Operator
from asyncstate.spark.python_task import settle_worker
from bench.frame import Report, Row, isolated
from bench.frame.measure import Side
from bench.frame.report import Output, Rounds, Seed, Tiny
from bench.micro import iteration, state_path
from bench.micro.operators import (
    MATCHES,
    TIMED,
    CallAKey,
    CallARecord,
    CountBoth,
    CountPerKey,
    CountPerPair,
    both_inputs,
    calls_by_hand,
    in_order,
    packed_pairs,
    pair_rows,
)
from bench.micro.sides import COLUMNS, Floor, Place, compared
from bench.rows import INPUT, draws
from operators import Deduplicate, GroupAggregate, TemporalSort, count, sum_

BUNDLES: dict[str, Callable[[], Operator]] = {
    "GroupAggregate": lambda: GroupAggregate([count().alias("n"), sum_("value").alias("total")]),
    "Deduplicate": lambda: Deduplicate(keep="last", time="processing"),
}


def bundle_grain(state: int, unique: int, rounds: int, seed: int) -> list[Row]:
    """Count and sum a key, and deduplication, against list get, numpy and an SST file; everything from Arrow batch to
    delta file counts."""
    return [
        row
        for name, make in BUNDLES.items()
        for row in compared(
            name,
            2.0,
            lambda: draws(state, unique, seed),
            unique,
            rounds,
            lambda place: Floor(place.folder).fill(state).bundle,
            lambda place: state_path.timed_side(place, make(), state),  # noqa: B023
            path_aim=0.4,
        )
    ]


def distinct(state: int, unique: int, rounds: int, seed: int) -> list[Row]:
    """Count and sum a (key, value), four values a key, against the same list gets and writes by hand."""
    return compared(
        "ColumnMapState",
        2.0,
        lambda: draws(state, unique, seed),
        unique,
        rounds,
        lambda place: Floor(place.folder, packed_pairs).fill(state).bundle,
        lambda place: place.filled(CountPerPair(), state, pair_rows),
    )


def state_paths(state: int, rows: int, rounds: int, seed: int) -> list[Row]:
    """A micro-batch of the other built-in operators against their reads and writes by hand."""
    return [row for case in state_path.CASES for row in state_path.measured(case, rows, rounds, seed)]


def record_grain(state: int, records: int, rounds: int, seed: int) -> list[Row]:
    """A ValueState read-modify-write chain against a get and a put a record, on hot state."""

    def by_hand(place: Place) -> Side:
        floor = Floor(place.folder)
        floor.records(np.arange(state))
        return floor.records

    return compared(
        "ValueState chain",
        1.3,
        lambda: draws(state, records, seed),
        records,
        rounds,
        by_hand,
        lambda place: place.filled(CountPerKey(), state),
    )


def outside_calls(state: int, unique: int, rounds: int, seed: int) -> list[Row]:
    """Calls that return at once, one a record and one for each key of a bundle, against ``asyncio.gather`` by hand."""
    calls = max(unique // 10, 1)
    makes: dict[str, Callable[[], Operator]] = {"record": CallARecord, "bundle": CallAKey}
    return [
        row
        for grain, make in makes.items()
        for row in compared(
            f"ctx.call, {grain}",
            4.0,
            lambda: draws(10 * calls, calls, seed),
            calls,
            rounds,
            lambda place: lambda keys: calls_by_hand(keys, Operator.call_limit),
            lambda place: place.filled(make()),  # noqa: B023
        )
    ]


def first_input(state: int, rows: int, rounds: int, seed: int) -> list[Row]:
    """Rows of two inputs that come in turn: those of one first, against both as they arrive."""
    first, second = (
        lambda place, first=first: place.filled(CountBoth(first), 0, both_inputs, [INPUT, INPUT])
        for first in (None, 1)
    )
    return compared("first_input", 1.5, lambda: draws(state, rows, seed), rows, rounds, first, second)


def matching(state: int, rows: int, rounds: int, seed: int) -> list[Row]:
    """Rows that Match finds nothing in, or little, against the same rows in their order and nothing else."""
    return [
        row
        for name, make in MATCHES.items()
        for row in compared(
            name,
            1.5,
            lambda: draws(state, rows, seed),
            rows,
            rounds,
            lambda place: in_order(place.job(TemporalSort(), TIMED), seed),
            lambda place: in_order(place.job(make(), TIMED), seed),  # noqa: B023
        )
    ]


CASES: dict[str, Callable[[int, int, int, int], list[Row]]] = {
    "bundle grain": bundle_grain,
    "distinct values": distinct,
    "other operators": state_paths,
    "record grain": record_grain,
    "iterations": iteration.iterations,
    "calls": outside_calls,
    "first input": first_input,
    "matches": matching,
}


def micro(
    state_keys: Annotated[int, typer.Option(min=100, help="Keys in the state.")] = 1_000_000,
    unique_keys: Annotated[int, typer.Option(min=10, help="Unique keys (records) a micro-batch.")] = 100_000,
    rounds: Rounds = 9,
    tiny: Tiny = False,
    seed: Seed = 1,
    output: Output = None,
) -> None:
    """Compare bundle and record grain with hand-written rocksdict code, on one core."""
    if tiny:
        state_keys, unique_keys, rounds = 2_000, 500, 1
        settle_worker()
    with Report("micro", output, state_keys=state_keys, rounds=rounds, seed=seed) as report:
        title = f"us a key or row, {unique_keys:,} of {state_keys:,} keys, medians of {rounds} pairs"
        report.section(title, COLUMNS)
        for name, measure in CASES.items():
            size = state_keys, unique_keys, rounds, seed
            report.case(name, lambda: measure(*size) if tiny else isolated(settled, name, *size))  # noqa: B023


def settled(name: str, state: int, unique: int, rounds: int, seed: int) -> list[Row]:
    """A case with the garbage collector set as in Spark's workers."""
    settle_worker()
    return CASES[name](state, unique, rounds, seed)
