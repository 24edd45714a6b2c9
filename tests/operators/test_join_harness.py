"""Join through the runtime: both modes, restore and rescale, checked with SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncstate.testing import OperatorHarness, net
from operators.join.join_operator import Join

LEFT = pa.schema([("k", pa.string()), ("id", pa.int64()), ("v", pa.int64())])
RIGHT = pa.schema([("k", pa.string()), ("id", pa.int64()), ("w", pa.int64())])
KINDS: tuple[Any, ...] = ("inner", "left", "right", "full", "semi", "anti")

Row = tuple[Any, ...]
Pushes = list[tuple[int, list[str], list[Row]]]

SQL = {
    "inner": "select l.*, r.* from l join r on {on}",
    "left": "select l.*, r.* from l left join r on {on}",
    "right": "select l.*, r.* from l right join r on {on}",
    "full": "select l.*, r.* from l full join r on {on}",
    "semi": "select * from l where exists (select 1 from r where {on})",
    "anti": "select * from l where not exists (select 1 from r where {on})",
}


def micro_batches(seed: int, count: int) -> Iterator[tuple[Pushes, list[list[Row]]]]:
    """Pushes of each micro-batch and the two tables after it: skewed keys, nulls, duplicates, long lists."""
    random = np.random.default_rng(seed)
    tables: list[list[Row]] = [[], []]
    for _ in range(count):
        pushes: Pushes = []
        for side in (0, 1):
            kinds, rows = [], []
            for _ in range(120):
                table = tables[side]
                if table and random.random() < 0.35:
                    old = table.pop(int(random.integers(len(table))))
                    kinds.append("-U")
                    rows.append(old)
                    if random.random() < 0.6:
                        kinds.append("+U")
                        rows.append((old[0], old[1], int(random.integers(5))))
                        table.append(rows[-1])
                else:
                    key = None if random.random() < 0.05 else f"k{int(12 * random.random() ** 3)}"
                    kinds.append("+I")
                    rows.append((key, int(random.integers(40)), int(random.integers(5))))
                    table.append(rows[-1])
            pushes.append((side, kinds, rows))
        yield pushes, [list(table) for table in tables]


def joined_by_sql(kind: str, tables: list[list[Row]], conditional: bool) -> Counter[Row]:
    on = "l.k = r.k" + (" and l.v <= r.w" if conditional else "")
    with duckdb.connect() as connection:
        for name, rows, schema in zip("lr", tables, (LEFT, RIGHT), strict=True):
            columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
            connection.register(name, pa.Table.from_arrays(columns, schema=schema))
        return Counter(connection.execute(SQL[kind].format(on=on)).fetchall())


def make_join(kind: Any, conditional: bool) -> Join:
    return Join(kind, pc.field("v") <= pc.field("w") if conditional else None)


def push(harness: OperatorHarness, pushes: Pushes) -> list[Row]:
    for side, kinds, rows in pushes:
        harness.push(rows, input=side, kinds=kinds)
    return harness.end_batch()


@pytest.mark.parametrize(("kind", "conditional"), [*((kind, False) for kind in KINDS), ("full", True)])
def test_all_modes_agree_with_sql(kind: Any, conditional: bool) -> None:
    join = make_join(kind, conditional)
    options = {"async-state.bundle-size": "64"}
    with ExitStack() as stack:
        harnesses = [
            stack.enter_context(
                OperatorHarness(
                    join,
                    [LEFT, RIGHT],
                    [["k"], ["k"]],
                    async_enabled=enabled,
                    parallelism=2,
                    options=options,
                )
            )
            for enabled in (False, True)
        ]
        for pushes, tables in micro_batches(KINDS.index(kind), 3):
            outputs = [push(harness, pushes) for harness in harnesses]
            assert all(output == outputs[0] for output in outputs[1:])
            shown = net(harnesses[0].output, in_order=True)
            assert shown == joined_by_sql(kind, tables, conditional)
            assert harnesses[0].statistics()["counter.retractions_without_state"] == 0
        entries = [harness.state_entries() for harness in harnesses]
        assert all(each == entries[0] for each in entries[1:])


def test_goes_on_after_a_restore_at_another_parallelism_and_mode() -> None:
    batches = list(micro_batches(7, 4))
    output: list[Row] = []
    with OperatorHarness(make_join("full", False), [LEFT, RIGHT], [["k"], ["k"]]) as first:
        for pushes, _ in batches[:2]:
            output += push(first, pushes)
        with first.restore(first.snapshot(), parallelism=3, async_enabled=True) as second:
            assert second.state_entries() == first.state_entries()
            for pushes, tables in batches[2:]:
                output += push(second, pushes)
                assert net(output, in_order=True) == joined_by_sql("full", tables, False)


def test_retractions_without_state_are_counted() -> None:
    with OperatorHarness(make_join("left", False), [LEFT, RIGHT], [["k"], ["k"]]) as harness:
        harness.push([("a", 1, 1)])
        harness.push([("a", 1, 2), ("b", 1, 1)], kind="-D")
        harness.push([("a", 1, 1)], kind="-U", input=1)
        assert harness.end_batch() == [("+I", "a", 1, 1, None, None, None)]
        assert harness.statistics()["counter.retractions_without_state"] == 3
