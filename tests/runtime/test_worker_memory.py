"""Several workers, each with its memory, in turn on the partitions of one operator: the rows and bytes of one alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncstate.errors import OperatorError
from asyncstate.operator import RecordOperator, Row
from asyncstate.runtime import WorkerMemory
from asyncstate.state import ValueStateDescriptor
from asyncstate.testing import OperatorHarness, Tuning
from operators import GroupAggregate, count, sum_

ROWS = pa.schema([("key", pa.string()), ("value", pa.int64())])
KEYS = "abcdefgh"


class Totals(RecordOperator):
    """Adds up; refuses a negative value, after others have been written."""

    def bind(self, inputs: Any) -> pa.Schema:
        return ROWS

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int))

    def process(self, row: Row, ctx: Any) -> Any:
        if row.value < 0:
            raise ValueError("negative")

        def add(total: int | None) -> Any:
            ctx.emit(row.key, (total or 0) + row.value)
            return self.total.async_update((total or 0) + row.value)

        return self.total.async_value().then_compose(add)


@pytest.mark.parametrize("grain", ["records", "bundles"])
@pytest.mark.parametrize("limit", [64 << 20, 0])
def test_workers_in_turn_give_what_one_gives(grain: str, limit: int, mode: dict[str, Any]) -> None:
    def harness() -> OperatorHarness:
        operator = Totals() if grain == "records" else GroupAggregate([count(), sum_("value")])
        options = {**mode.get("options", {}), "async-state.snapshot-interval": "3"}
        return OperatorHarness(
            operator,
            ROWS,
            "key",
            parallelism=2,
            max_parallelism=8,
            **{**mode, "options": options, "tuning": Tuning(open_stores_bytes=limit)},
        )

    pacer = mode["worker"].pacer if "worker" in mode else None
    workers = [WorkerMemory(pacer) for _ in range(3)]
    with harness() as alone, harness() as moving:
        for batch in range(9):
            moving.worker = workers[batch * batch % 3]
            rows = [(KEYS[(batch * n) % 8], batch + n) for n in range(20)]
            if (
                grain == "records" and batch % 4 == 3
            ):  # fails, and is tried again by another worker, or the same one
                moving.push([*rows, ("a", -1)])
                with pytest.raises(OperatorError):
                    moving.end_batch()
                moving._pending.clear()
                moving.worker = workers[batch % 2]
            for each in (alone, moving):
                each.push(rows)
            assert alone.end_batch() == moving.end_batch()
            assert alone.state_entries() == moving.state_entries()
        kept = [len(worker.stores) for worker in workers]
        assert sum(kept) == (2 if limit else 0)  # one opening a partition, wherever it is
    for worker in workers:
        worker.stores.close()
