"""Any cut into micro-batches, any order within one, any bundles, parts, partitions and mode: the same output and state.

The tables name every operator and its main configurations. How many examples an entry gets follows from the profile:
`--hypothesis-profile=thorough` has 2,000 for each operator.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from asyncstate.testing import net
from tests.examples import share
from tests.properties.aggregate_examples import AGGREGATES, DEDUPLICATIONS, OVERS
from tests.properties.examples import Entries, Example
from tests.properties.function_examples import FUNCTIONS
from tests.properties.histories import Table
from tests.properties.join_examples import FILTERS, JOINS
from tests.properties.match_examples import MATCHES
from tests.properties.normalize_examples import NORMALIZATIONS
from tests.properties.order_examples import ORDERED
from tests.properties.parts import small_parts
from tests.properties.rank_examples import RANKS
from tests.properties.runs import OutputRow, Run, one_nan, run
from tests.properties.schedules import Schedule, schedules
from tests.properties.time_examples import INTERVAL_JOINS, WINDOWS
from tests.properties.window_join_examples import WINDOW_JOINS
from tests.properties.window_rank_examples import WINDOW_RANKS

OPERATORS: dict[str, Entries] = {
    "GroupAggregate": AGGREGATES,
    "Deduplicate": DEDUPLICATIONS,
    "OverAggregate": OVERS,
    "Join": JOINS,
    "DynamicFilter": FILTERS,
    "Rank": RANKS,
    "WindowAggregate": WINDOWS,
    "IntervalJoin": INTERVAL_JOINS,
    "WindowJoin": WINDOW_JOINS,
    "WindowRank": WINDOW_RANKS,
    "ChangelogNormalize": NORMALIZATIONS,
    "ordered inputs": ORDERED,
    "Match": MATCHES,
    "functions": FUNCTIONS,
}
_HARMLESS = ("counter.timers_fired", "counter.keys_notified", "counter.view_")


def examples_of(operator: str) -> int:
    """For an entry: 20 an operator in the quick profile, 2,000 in the thorough one; some for each entry."""
    most = settings.default.max_examples
    together = most if most >= 2_000 else most * 2 // 5
    least = min(3, share(10))
    return max(least, -(-together // len(OPERATORS[operator])))


@pytest.mark.parametrize(
    ("operator", "entry"), [(operator, entry) for operator, entries in OPERATORS.items() for entry in entries]
)
def test_neither_cut_nor_order_nor_mode_matters(operator: str, entry: str) -> None:
    examples = OPERATORS[operator][entry]

    @settings(settings.default, max_examples=examples_of(operator))
    @given(data=st.data())
    def hold(data: st.DataObject) -> None:
        example = data.draw(examples)
        plain, schedule = data.draw(
            schedules(
                example.history, example.shuffle, example.times, example.come_again, example.whole_updates
            )
        )
        check(example, plain, schedule, data.draw(st.booleans()), data.draw(st.sampled_from([2, 16])))

    hold()


def check(
    example: Example, plain: Schedule, schedule: Schedule, small: bool = False, together: int = 2
) -> None:
    """The two schedules of the example give the same; so do the modes, to the byte, and tasks for ``together``
    partitions each. ``small``: the second one with all work cut into parts of a few rows, as else only that of many
    is."""
    with small_parts() if small else nullcontext():
        sync, asynchronous = (_run(example, schedule, mode) for mode in (False, True))
        shared = _run(example, schedule, small, together) if schedule.parallelism > 1 else None
        if shared is not None:
            assert [net(rows) for rows in shared.outputs] == [net(rows) for rows in sync.outputs]
            _check_counters(schedule, shared)
    assert asynchronous.outputs == sync.outputs
    assert asynchronous.stored == sync.stored
    reference = _run(example, plain, False)
    note(f"put out: {sync.outputs}")
    _check_output(example, plain, reference)
    _check_output(example, schedule, sync)
    assert sync.netted() == reference.netted()
    watermark = schedule.last_watermark or 0
    if shared is not None:
        assert example.view(shared.states, watermark) == example.view(sync.states, watermark)
        # Bundles of a few rows are cut elsewhere, and lists keep how they came about.
        assert small or not schedule.whole_keys or shared.stored == sync.stored
    assert example.view(sync.states, watermark) == example.view(reference.states, watermark)
    _check_counters(plain, reference)
    _check_counters(schedule, sync)


def _run(example: Example, schedule: Schedule, async_enabled: bool, together: int = 1) -> Run:
    given = {**dict(example.settings), "partitions_per_task": together}
    with example.around():
        return run(example.make, example.inputs, example.key, schedule, async_enabled, **given)


def _check_counters(schedule: Schedule, done: Run) -> None:
    """Nothing was dropped, late or missing but the rows that came again."""
    stale = sum(batch.stale for batch in schedule.batches)
    counted = {
        name: number for name, number in done.counters.items() if number and not name.startswith(_HARMLESS)
    }
    assert counted == ({"counter.stale_rows_dropped": stale} if stale else {})


def _check_output(example: Example, schedule: Schedule, done: Run) -> None:
    records = example.history.records
    if example.expected is None or example.times is not None:
        tables = example.history.tables(records)
        assert done.netted() == (
            _with_one_nan(example.expected(tables)) if example.expected else example.output
        )
    else:
        for number, batch in enumerate(schedule.batches):
            expected = _with_one_nan(example.expected(example.history.tables(records[: batch.seen])))
            assert done.netted(number + 1) == expected
    if example.output_key is not None and schedule.whole_keys:
        for rows in done.outputs:
            _check_kinds(rows, example.output_key, len(example.inputs))


def _with_one_nan(table: Table) -> Table:
    return Table({one_nan(row): times for row, times in table.items()})


def _check_kinds(rows: list[OutputRow], key: Any, bundles: int) -> None:
    """Of each key a bundle takes rows back before it adds any; a micro-batch has a bundle an input."""
    kinds: dict[Any, list[bool]] = defaultdict(list)
    for kind, *row in rows:
        kinds[key(tuple(row))].append(kind in ("+I", "+U"))
    for added in kinds.values():
        turns = sum(1 for before, after in pairwise(added) if before and not after)
        assert turns < bundles
