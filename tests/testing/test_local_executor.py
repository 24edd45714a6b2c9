"""A job's driver over ``LocalExecutor``: what it carries from one program to the next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncstate.clock import ManualClock
from asyncstate.config import resolve
from asyncstate.dataflow.nodes import Times
from asyncstate.driver.commit_log import CommitLog
from asyncstate.driver.job_driver import JobDriver
from asyncstate.driver.job_graph import JobGraph
from asyncstate.driver.micro_batch import JobFrame
from asyncstate.errors import JobError, StateDeclarationError
from asyncstate.functions import KeyedProcessFunction
from asyncstate.lookups import TableLookup
from asyncstate.offline.migration import RenameState, migrate
from asyncstate.offline.operator_changes import (
    AcceptChange,
    AcceptSink,
    DropOperator,
    OperatorChange,
    RenameOperator,
    change_operator,
)
from asyncstate.operator import InputSpec, OperatorContext, RecordContext, RecordOperator, Row
from asyncstate.operators import (
    GroupAggregate,
    KeyedMap,
    KeyedProcess,
    LookupJoin,
    StatelessLookupJoin,
    count,
)
from asyncstate.state import ValueState, ValueStateDescriptor
from asyncstate.storage import Checkpoint, LocalFiles
from asyncstate.testing.local_executor import LocalExecutor, LocalRows

SALES = pa.RecordBatch.from_pylist([{"shop": "ann"}], schema=pa.schema([("shop", pa.string())]))


def micro_batch(
    folder: Path, number: int, operator: Any, uid: str, enabled: bool, key: str | None = "shop", more: int = 0
) -> tuple[JobDriver[Any], Any]:
    """A driver that runs a micro-batch of ``SALES``, and ``more`` of them; and what the sink got."""
    options = {
        "async-state.checkpoint-dir": str(folder / "state"),
        "async-state.local-dir": str(folder / "local"),
        "async-state.parallelism": 1,
        "async-state.enabled": enabled,
    }
    config, executor, found = resolve(options, {}), LocalExecutor(), list[Any]()
    ledger = CommitLog(config, "job", 0)
    frame = JobFrame(
        ledger.job_id, ledger.place, config, lambda own: resolve({**options, **own}, {}), executor
    )
    graph: JobGraph[LocalRows] = JobGraph(executor)
    sales = graph.source("sales", LocalRows.of(SALES), Times(), None)
    out = sales.apply(operator, key=key, uid=uid)
    out.to(lambda rows, batch: found.extend(rows.table.to_pylist()), name="out")
    driver = JobDriver(frame, ledger, ManualClock())
    with driver.dry_run() as batch:
        graph.check(batch)
    for at in range(number, number + 1 + more):
        driver.run(lambda batch: graph.run({"sales": LocalRows.of(SALES)}, batch), at, False, "{}")
    return driver, found


def test_an_operator_that_keeps_nothing_may_go(tmp_path: Path, async_enabled: bool) -> None:
    names = KeyedMap(lambda row: (row["shop"],), "shop string")
    micro_batch(tmp_path, 0, names, "names", async_enabled)
    driver, found = micro_batch(tmp_path, 1, names, "others", async_enabled)
    assert found == [{"shop": "ann", "row_kind": "+I"}]
    assert driver.committed is not None
    assert list(driver.committed.operators) == ["others"]


LOOKUP = TableLookup(pa.table({"shop": ["ann"], "city": ["Bonn"]}), ["shop"], ["city"])


def test_a_lookup_may_become_one_without_state(tmp_path: Path, async_enabled: bool) -> None:
    """Over insertions it has kept nothing."""
    row = {"shop": "ann", "city": "Bonn", "row_kind": "+I"}
    _, found = micro_batch(tmp_path, 0, LookupJoin(LOOKUP, "city string"), "cities", async_enabled)
    assert found == [row]
    join = StatelessLookupJoin(LOOKUP, "city string", on=["shop"])
    driver, found = micro_batch(tmp_path, 1, join, "cities", async_enabled, key=None)
    assert found == [row]
    assert driver.committed is not None
    assert not driver.committed.operators


class Alarm(KeyedProcessFunction):
    """Keeps nothing but a timer."""

    def process(self, row: Any, ctx: Any) -> None:
        ctx.timers.register_processing_time(10**18)

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.emit(*ctx.key)


def test_timers_do_not_go_with_an_operator_that_becomes_stateless(
    tmp_path: Path, async_enabled: bool
) -> None:
    micro_batch(tmp_path, 0, KeyedProcess(Alarm(), "shop string"), "shops", async_enabled)
    join = StatelessLookupJoin(LOOKUP, "city string", on=["shop"])
    with pytest.raises(JobError, match="has timers of this uid"):
        micro_batch(tmp_path, 1, join, "shops", async_enabled, key=None)


def test_columns_that_are_never_null_come_as_the_others(tmp_path: Path, async_enabled: bool) -> None:
    totals = GroupAggregate([count().alias("n")])
    _, found = micro_batch(tmp_path, 0, totals, "totals", async_enabled)
    assert found == [{"shop": "ann", "n": 1, "row_kind": "+I"}]


class Opened(GroupAggregate):
    """Counts how often it is opened."""

    times = 0

    def open(self, context: Any) -> None:
        Opened.times += 1
        super().open(context)


def test_an_operator_that_has_not_changed_is_checked_once(tmp_path: Path, async_enabled: bool) -> None:
    """Once without stored state and once over it; in each micro-batch its task opens it, too."""
    counted = Opened([count().alias("n")])
    opened = []
    for more in (2, 7):
        Opened.times = 0
        _, found = micro_batch(tmp_path / str(more), 0, counted, "totals", async_enabled, more=more)
        assert found[-1] == {"shop": "ann", "n": 1 + more, "row_kind": "+U"}
        opened.append(Opened.times)
    assert opened[1] - opened[0] == 5


def test_another_operator_of_the_same_uid_is_checked(tmp_path: Path, async_enabled: bool) -> None:
    """As a function of micro-batches may make one for each."""
    driver, _ = micro_batch(tmp_path, 0, GroupAggregate([count().alias("n")]), "totals", async_enabled)
    changed = GroupAggregate([count().alias("n"), count("shop").alias("shops")])

    def applied(batch: Any) -> None:
        batch.apply(changed, LocalRows.of(SALES), uid="totals", key="shop")

    with pytest.raises(StateDeclarationError, match=r"count\('shop'\) is new"):
        driver.run(applied, 1, False, "{}")


def test_an_operator_with_another_attribute_is_checked(tmp_path: Path, async_enabled: bool) -> None:
    """Its output may differ, though its state does not."""
    counted = Opened([count().alias("n")])
    driver, _ = micro_batch(tmp_path, 0, counted, "totals", async_enabled)
    opened = []
    for number in range(1, 5):
        counted.emit_update_before = number < 4
        Opened.times = 0
        driver.run(
            lambda batch: batch.apply(counted, LocalRows.of(SALES), uid="totals", key="shop"),
            number,
            False,
            "{}",
        )
        opened.append(Opened.times)
    assert opened[2] == 1  # by its task alone
    assert opened[3] > 1


class Visits(RecordOperator):
    """Counts the rows of a shop, in the state ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def bind(self, inputs: Sequence[InputSpec]) -> pa.Schema:
        return pa.schema([("shop", pa.string()), ("visits", pa.int64())])

    def open(self, context: OperatorContext) -> None:
        self.visits: ValueState[int] = context.get_state(ValueStateDescriptor(self.name, pa.int64()))

    def process(self, row: Row, ctx: RecordContext) -> Any:
        def add(before: int | None) -> Any:
            ctx.emit(row["shop"], (before or 0) + 1)
            return self.visits.async_update((before or 0) + 1)

        return self.visits.async_value().then_compose(add)


def test_a_micro_batch_over_the_version_before_a_migration_is_refused(
    tmp_path: Path, async_enabled: bool
) -> None:
    """It would begin with a state that is not there yet, so with an empty one. What the error says helps."""
    place = str(tmp_path / "state")
    micro_batch(tmp_path, 0, Visits("old"), "visits", async_enabled, more=1)
    migrate(place, "visits", "old", RenameState("new"))
    with pytest.raises(
        JobError, match="repeats batch 1, but .* has changed version 1.*rollback CHECKPOINT 0"
    ):
        micro_batch(tmp_path, 1, Visits("new"), "visits", async_enabled)
    checkpoint = Checkpoint(LocalFiles(tmp_path / "state"))
    checkpoint.claim("job")
    checkpoint.rollback(0)
    migrate(place, "visits", "old", RenameState("new"))
    _, found = micro_batch(tmp_path, 1, Visits("new"), "visits", async_enabled, more=1)
    assert [row["visits"] for row in found] == [2, 3]


@pytest.mark.parametrize(
    ("uid", "change", "now"),
    [
        ("visits", AcceptChange(), "visits"),
        ("visits", RenameOperator("others"), "others"),
        ("out", AcceptSink(), "visits"),
    ],
    ids=["accept-change", "rename-operator", "accept-sink"],
)
def test_what_a_command_has_changed_is_not_repeated_over_the_version_before_it(
    tmp_path: Path, async_enabled: bool, uid: str, change: OperatorChange, now: str
) -> None:
    micro_batch(tmp_path, 0, Visits("own"), "visits", async_enabled, more=1)
    micro_batch(tmp_path, 1, Visits("own"), "visits", async_enabled)  # without a command it is repeated
    change_operator(str(tmp_path / "state"), uid, change)
    with pytest.raises(JobError, match="repeats batch 1, but .* has changed version 1"):
        micro_batch(tmp_path, 1, Visits("own"), now, async_enabled)
    _, found = micro_batch(tmp_path, 2, Visits("own"), now, async_enabled)
    assert [row["visits"] for row in found] == [3]
    micro_batch(tmp_path, 2, Visits("own"), now, async_enabled)  # the change is in its base


def test_a_dropped_operator_does_not_return_because_a_micro_batch_is_repeated(
    tmp_path: Path, async_enabled: bool
) -> None:
    """The program no longer has it."""
    place = str(tmp_path / "state")
    micro_batch(tmp_path, 0, Visits("own"), "visits", async_enabled, more=1)
    change_operator(place, "visits", DropOperator())
    driver, found = micro_batch(tmp_path, 1, Visits("own"), "others", async_enabled)
    assert [row["visits"] for row in found] == [1]
    assert driver.committed is not None
    assert list(driver.committed.operators) == ["others"]


def test_a_dropped_operator_begins_anew_where_a_micro_batch_is_repeated(
    tmp_path: Path, async_enabled: bool
) -> None:
    """As the error says: the repeated micro-batch would begin with the state that it had before."""
    place = str(tmp_path / "state")
    micro_batch(tmp_path, 0, Visits("own"), "visits", async_enabled, more=1)
    change_operator(place, "visits", DropOperator())
    with pytest.raises(
        JobError, match="repeats batch 1, .*rollback CHECKPOINT 0.*drop-operator CHECKPOINT visits"
    ):
        micro_batch(tmp_path, 1, Visits("own"), "visits", async_enabled)
    checkpoint = Checkpoint(LocalFiles(tmp_path / "state"))
    checkpoint.claim("job")
    checkpoint.rollback(0)
    change_operator(place, "visits", DropOperator())
    _, found = micro_batch(tmp_path, 1, Visits("own"), "visits", async_enabled, more=1)
    assert [row["visits"] for row in found] == [1, 2]
