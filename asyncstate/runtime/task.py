"""One operator on one partition for one micro-batch: the one place where configuration picks a controller and a store.

Owns: ``run_partition`` and its parts.
Invariant: nothing is visible to any other attempt or batch until the driver commits the CommitRecord that the run
ends with.
Must not import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace

from asyncstate.config import Config
from asyncstate.errors import StoreError
from asyncstate.execution import (
    AsyncExecutionController,
    AsyncLimits,
    CallLimits,
    ControllerStatistics,
    ExecutionController,
    OutsideCalls,
    SyncExecutionController,
)
from asyncstate.operator import BundleOperator, OutputSpec, RecordOperator
from asyncstate.runtime.broadcast_digest import broadcast_digest
from asyncstate.runtime.bundles import BundleRunner
from asyncstate.runtime.context import CachedColumns, TaskContext, closed_at_the_end
from asyncstate.runtime.records import RecordRunner
from asyncstate.runtime.runner import Runner
from asyncstate.runtime.spec import CommitRecord, InputBatch, OutBatch, TaskSpec
from asyncstate.runtime.statistics import LimitStatistics, TaskStatistics, WorkerStatistics, io_parallelism
from asyncstate.runtime.stores import PartitionStore, open_store
from asyncstate.runtime.transfers import Transfers
from asyncstate.runtime.worker_memory import WorkerMemory, worker_memory
from asyncstate.state import ColumnCache
from asyncstate.storage import (
    CacheLoan,
    KeyedStore,
    StateSpec,
    WriteOverlay,
    group_range,
)


def run_partition(
    spec: TaskSpec,
    partition: int,
    batches: Iterator[InputBatch],
    store_through: Callable[[KeyedStore], KeyedStore] | None = None,
    memory: WorkerMemory | None = None,
) -> Iterator[OutBatch | CommitRecord]:
    """Run ``spec.operator`` over the rows of ``partition``; gives output batches, then the CommitRecord.

    ``batches`` have the rows of all inputs in arrival order. Output batches have the columns of their output and
    ``row_kind``; those of side outputs are SideBatches. ``store_through`` makes what is read of the leased store, for
    tests. ``memory``: what is kept for the micro-batches to come, by default with this process. Raises OperatorError
    for failures of the operator's code and StoreError for those of the store.
    """
    started = time.perf_counter()
    memory = worker_memory() if memory is None else memory
    with (
        open_store(spec, partition, memory.stores, memory.columns_of(spec, partition)) as opened,
        memory.lend_entries(spec, partition, opened.lineage) as cache,
        memory.lend_columns(spec, partition, opened.lineage, opened.cached) as columns,
    ):
        store = opened.store if store_through is None else store_through(opened.store)
        overlay = WriteOverlay(store, cache.limit_bytes, cache.entries, opened.write_bound)
        with controller_of(spec, overlay, memory) as controller:
            transfers = Transfers()
            runner, states = yield from operated(
                spec,
                partition,
                controller,
                batches,
                opened.gathered_folder,
                transfers,
                memory,
                _cached_in(columns, opened),
            )
            ran_seconds = time.perf_counter() - started
            record = _commit(spec, partition, opened, runner, states, columns.entries, transfers, ran_seconds)
            # Named by what this attempt has made: if another one is committed, nobody asks for it.
            cache.keep(record.content.lineage, overlay.release())
            columns.keep(record.content.lineage, columns.entries)
            with controller.suspended():
                yield record


def operated(
    spec: TaskSpec,
    partition: int,
    controller: ExecutionController,
    batches: Iterator[InputBatch],
    scratch: str,
    transfers: Transfers,
    memory: WorkerMemory,
    columns: CachedColumns | None = None,
) -> Generator[OutBatch, None, tuple[Runner, list[StateSpec]]]:
    """Open ``spec.operator``, run it over ``batches`` and the watermark, close it; gives its output.

    Returns what has run and the states that it has declared. ``scratch``: a folder for rows beyond memory.
    ``columns``: where column states are cached.
    """
    with closed_at_the_end(spec.uid, spec.operator):
        runner, states = _open_operator(spec, partition, controller, scratch, memory, columns)
        with (
            controller.calls,
            closing(runner),
            closing(runner.run(transfers.awaited(batches))) as output,
        ):
            for out in output:
                with controller.suspended():
                    yield from transfers.taken(out)
    return runner, states


def _cached_in(loan: CacheLoan[ColumnCache], opened: PartitionStore) -> CachedColumns | None:
    """Where column states are cached; None if they are not."""
    loan.entries.begin(loan.limit_bytes)
    return CachedColumns(loan.entries, opened.is_empty) if loan.limit_bytes else None


def controller_of(spec: TaskSpec, overlay: WriteOverlay, memory: WorkerMemory) -> ExecutionController:
    """What runs the operator's requests over ``overlay``, by the configuration."""
    names = {state.id: state.name for state in spec.base.states} if spec.base is not None else {}
    calls = _calls(spec)
    if not spec.config.enabled:
        return SyncExecutionController(overlay, spec.uid, names, calls)
    return AsyncExecutionController(
        overlay, spec.uid, names, _limits(spec.config), memory.pacer, calls, memory.interests(spec)
    )


def _calls(spec: TaskSpec) -> OutsideCalls:
    operator, config = spec.operator, spec.config
    limits = CallLimits(config.call_limit, config.call_timeout_ms, config.watchdog_timeout_ms)
    return OutsideCalls(spec.uid, limits, operator.open_calls, operator.close_calls)


def _limits(config: Config) -> AsyncLimits:
    return AsyncLimits(
        in_flight=config.in_flight_limit,
        buffer_size=config.buffer_size,
        buffer_timeout_ms=config.buffer_timeout_ms,
        io_parallelism=io_parallelism(config),
        watchdog_timeout_ms=config.watchdog_timeout_ms,
        batch_hot_reads=config.batch_hot_reads,
        serial_epochs=config.epoch_mode == "serial",
    )


def _open_operator(
    spec: TaskSpec,
    partition: int,
    controller: ExecutionController,
    scratch: str,
    memory: WorkerMemory,
    columns: CachedColumns | None,
) -> tuple[Runner, list[StateSpec]]:
    operator = spec.operator
    first, end = group_range(partition, spec.parallelism, spec.max_parallelism)
    context = TaskContext(
        spec.uid,
        spec.inputs,
        OutputSpec.of(operator.bind(spec.inputs)),
        spec.config,
        controller,
        spec.base.states if spec.base is not None else (),
        range(first, end),
        spec.watermark,
        spec.processing_time,
        spec.previous_watermark,
        lambda state: memory.trial(spec, partition, state),
        columns,
    )
    operator.open(context)
    states = context.opened()
    controller.overlay.leave_out(frozenset() if columns is None else columns.cache.opened())
    controller.failures.state_names = {state.id: state.name for state in states}
    if isinstance(operator, RecordOperator):
        return RecordRunner(spec, context, controller, operator, scratch), states
    if isinstance(operator, BundleOperator):
        return BundleRunner(spec, context, controller, operator, scratch), states
    raise StoreError(
        f"operator '{spec.uid}': {type(operator).__name__} is neither a RecordOperator nor a BundleOperator; "
        "subclass one of them"
    )


def _commit(
    spec: TaskSpec,
    partition: int,
    opened: PartitionStore,
    runner: Runner,
    states: list[StateSpec],
    columns: ColumnCache,
    transfers: Transfers,
    run_seconds: float,
) -> CommitRecord:
    began = time.perf_counter()
    runner.controller.finish_states()
    changes = runner.controller.overlay.changes()
    content = opened.commit(changes)
    committed = time.perf_counter()
    opened.settle()
    settled = time.perf_counter()
    sums, peaks = TaskStatistics(
        rows=runner.statistics(),
        controller=_with_columns(runner.controller.statistics(), columns),
        columns=columns.statistics(),
        transfers=transfers.statistics(),
        partition=opened.statistics(content),
        limits=LimitStatistics.of(spec.config),
        worker=WorkerStatistics.of_this_process(),
        run_seconds=run_seconds,
        commit_seconds=committed - began,
        compaction_seconds=settled - committed,
    ).figures()
    return CommitRecord(
        partition=partition,
        content=content,
        states=states,
        max_event_times=runner.max_event_times,
        broadcast_digest=broadcast_digest(changes, states),
        missing_row=None if runner.context.missing is None else runner.context.missing.example,
        statistics=sums,
        peaks=peaks,
    )


def _with_columns(statistics: ControllerStatistics, columns: ColumnCache) -> ControllerStatistics:
    """With what bundles have read of ``columns``: it takes memory wherever it was read."""
    state = statistics.state
    read_bytes = state.bundle_read_bytes + columns.read_bytes
    return replace(statistics, state=replace(state, bundle_read_bytes=read_bytes))
