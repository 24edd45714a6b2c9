"""A job's driver over ``LocalExecutor``: what it carries from one program to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from asyncstate.clock import ManualClock
from asyncstate.config import resolve
from asyncstate.dataflow.nodes import Times
from asyncstate.driver.job_driver import JobDriver
from asyncstate.driver.job_graph import JobGraph
from asyncstate.driver.ledger import Ledger
from asyncstate.driver.micro_batch import JobFrame
from asyncstate.operators import GroupAggregate, KeyedMap, count
from asyncstate.testing.local_executor import LocalExecutor, LocalRows

SALES = pa.RecordBatch.from_pylist([{"shop": "ann"}], schema=pa.schema([("shop", pa.string())]))


def micro_batch(
    folder: Path, number: int, operator: Any, uid: str, enabled: bool
) -> tuple[JobDriver[Any], Any]:
    """A driver that runs one micro-batch of ``SALES``; and what the sink got."""
    options = {
        "async-state.checkpoint-dir": str(folder / "state"),
        "async-state.local-dir": str(folder / "local"),
        "async-state.parallelism": 1,
        "async-state.enabled": enabled,
    }
    config, executor, found = resolve(options, {}), LocalExecutor(), list[Any]()
    ledger = Ledger(config, "job", 0)
    frame = JobFrame(
        ledger.job_id, ledger.place, config, lambda own: resolve({**options, **own}, {}), executor
    )
    graph: JobGraph[LocalRows] = JobGraph(executor)
    sales = graph.source("sales", LocalRows.of(SALES), Times(), None)
    out = sales.apply(operator, key="shop", uid=uid)
    out.to(lambda rows, batch: found.extend(rows.table.to_pylist()), name="out")
    driver = JobDriver(frame, ledger, ManualClock())
    with driver.trial() as batch:
        graph.check(batch)
    driver.run(lambda batch: graph.run({"sales": LocalRows.of(SALES)}, batch), number, False, "{}")
    return driver, found


def test_an_operator_that_keeps_nothing_may_go(tmp_path: Path, async_enabled: bool) -> None:
    names = KeyedMap(lambda row: (row["shop"],), "shop string")
    micro_batch(tmp_path, 0, names, "names", async_enabled)
    driver, found = micro_batch(tmp_path, 1, names, "others", async_enabled)
    assert found == [{"shop": "ann", "row_kind": "+I"}]
    assert driver.committed is not None
    assert list(driver.committed.operators) == ["others"]


def test_columns_that_are_never_null_come_as_the_others(tmp_path: Path, async_enabled: bool) -> None:
    totals = GroupAggregate([count().alias("n")])
    _, found = micro_batch(tmp_path, 0, totals, "totals", async_enabled)
    assert found == [{"shop": "ann", "n": 1, "row_kind": "+I"}]
