"""Runs one operator on partitions of a task for one micro-batch; the only place where the configuration selects
controller and store.

Owns: ``run_partitions``; and runs that persist nothing: of stateless operators (``run_stateless``) and of any
operator over a bounded input (``run_to_the_end``).
Invariants: nothing is visible to any other attempt or batch until the driver commits the CommitRecords that the run
ends with. Several partitions in one run get the same state as in a run each, with the same bytes unless bundles are cut
elsewhere. A run that persists nothing has its state in this process's memory, and beyond its limit in a folder that is
deleted with the run: it opens no store of a job and no checkpoint. A run over a bounded input gives the same result as
a job whose first micro-batch has all rows, followed by ``finish()``.
Must not import Spark.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from asyncstate.durations import seconds
from asyncstate.errors import StoreError
from asyncstate.execution import (
    AsyncLimits,
    CallLimits,
    ControllerStatistics,
    ExecutionController,
    OutsideCalls,
)
from asyncstate.operator import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    BundleOperator,
    Operator,
    OutputSpec,
    RecordOperator,
)
from asyncstate.runtime.partition.broadcast_inputs import broadcast_digest
from asyncstate.runtime.partition.bundles import BundleRunner
from asyncstate.runtime.partition.records import RecordRunner
from asyncstate.runtime.partition.restore_plans import TaskStores, lineage_of, open_stores, rocksdb_options
from asyncstate.runtime.partition.runner import Runner
from asyncstate.runtime.partition.task_context import TaskContext, closed_at_the_end
from asyncstate.runtime.partition.worker_memory import (
    CachedColumns,
    CachedValues,
    WorkerMemory,
    partition_key,
    worker_memory,
)
from asyncstate.runtime.statistics import (
    LimitStatistics,
    PartitionStatistics,
    RowStatistics,
    TaskStatistics,
    sum_records,
    sums_and_peaks,
)
from asyncstate.runtime.task_spec import (
    CommitRecord,
    InputBatch,
    OutBatch,
    TaskSpec,
    sends_errors,
    with_own_outputs,
)
from asyncstate.storage import (
    EmptyStore,
    KeyedStore,
    MemTable,
    PartitionManifest,
    RocksDBStore,
    WriteBound,
    group_range,
)


def run_partitions(
    spec: TaskSpec,
    partitions: range,
    batches: Iterator[InputBatch],
    wrap_store: Callable[[KeyedStore], KeyedStore] | None = None,
    memory: WorkerMemory | None = None,
) -> Iterator[OutBatch | CommitRecord]:
    """Run ``spec.operator`` over the rows of ``partitions``; yields output batches, then a CommitRecord for each
    partition.

    ``batches`` have the rows of all inputs in arrival order. Output batches have the columns of their output and
    ``row_kind``; those of side outputs are SideBatches. ``wrap_store`` wraps what is leased, for
    tests. ``memory``: what is kept for the next micro-batches, by default that of this process. Raises OperatorError
    for failures of the operator's code and StoreError for those of the store.
    """
    started = time.perf_counter()
    memory = worker_memory() if memory is None else memory
    key, shares = partition_key(spec, partitions), spec.config.shares
    with (
        open_stores(spec, partitions, memory.stores, memory.columns_of(key)) as opened,
        memory.entries.lend(key, opened.lineage, shares.cache) as cache,
        CachedColumns(
            partial(memory.columns.lend, key, opened.lineage, shares.columns, opened.cached), opened.is_empty
        ) as columns,
    ):
        store = opened.store if wrap_store is None else wrap_store(opened.store)
        values = cache.entries
        values.limit_bytes = cache.limit_bytes
        overlay = MemTable(store, cache.limit_bytes, values.stored, opened.write_bound)
        with _controller(spec, overlay, memory) as controller:
            folder = opened.buffer_folder
            runner = yield from _operated(spec, partitions, controller, batches, folder, values, columns)
            run_seconds = time.perf_counter() - started
            records = _commit(opened, runner, values, columns, run_seconds)
            # Named by the content that this attempt has made: if another attempt is committed, nothing requests it.
            overlay.release()
            lineage = lineage_of([record.content.lineage for record in records])
            cache.keep(lineage, values)
            columns.keep(lineage)
            with controller.suspended():
                yield from records


def _operated(
    spec: TaskSpec,
    partitions: range,
    controller: ExecutionController,
    batches: Iterator[InputBatch],
    scratch: str,
    cache: CachedValues,
    columns: CachedColumns | None = None,
) -> Generator[OutBatch, None, Runner]:
    """Open ``spec.operator``, run it over ``batches`` and the watermark, close it; yields its output.

    Returns the runner. ``scratch``: a folder for rows that exceed memory. ``cache``: what is cached of the partitions'
    keys. ``columns``: the cache of column states.
    """
    with closed_at_the_end(spec.uid, spec.operator):
        context = _opened_context(spec, partitions, controller, cache, columns)
        runner = _runner(spec, partitions, context, controller, scratch)
        with (
            controller.calls,
            closing(runner),
            closing(runner.output(runner.transfers.awaited(batches))) as output,
        ):
            for out in output:
                with controller.suspended():
                    yield from runner.transfers.taken(out)
    return runner


def _controller(spec: TaskSpec, overlay: MemTable, memory: WorkerMemory) -> ExecutionController:
    """The controller that executes the operator's requests over ``overlay``, selected by the configuration."""
    config, operator = spec.config, spec.operator
    names = {state.id: state.name for state in spec.base.states} if spec.base is not None else {}
    timeout = seconds(operator.call_timeout, f"operator '{spec.uid}'", "call_timeout")
    bounds = CallLimits(operator.call_limit, round(timeout * 1000), config.tuning.watchdog_ms)
    calls = OutsideCalls(spec.uid, bounds, operator.open_calls, operator.close_calls)
    if not config.enabled:
        return ExecutionController(overlay, spec.uid, names, calls=calls)
    limits = AsyncLimits(
        in_flight=config.in_flight_limit,
        buffer_size=config.buffer_size,
        buffer_timeout_ms=config.buffer_timeout_ms,
        io_parallelism=config.tuning.io_threads,
        watchdog_timeout_ms=config.tuning.watchdog_ms,
        batch_hot_reads=config.tuning.batch_hot_reads,
    )
    return ExecutionController(
        overlay, spec.uid, names, limits, memory.pacer, calls, memory.access_patterns(spec)
    )


def _opened_context(
    spec: TaskSpec,
    partitions: range,
    controller: ExecutionController,
    cache: CachedValues,
    columns: CachedColumns | None,
) -> TaskContext:
    cache.begin()
    first, _ = group_range(partitions[0], spec.parallelism, spec.max_parallelism)
    _, end = group_range(partitions[-1], spec.parallelism, spec.max_parallelism)
    context = TaskContext(
        spec.uid,
        spec.inputs,
        with_own_outputs(spec.operator, spec.inputs, OutputSpec.of(spec.operator.bind(spec.inputs))),
        spec.config,
        controller,
        spec.base.states if spec.base is not None else (),
        range(first, end),
        spec.watermark,
        spec.processing_time,
        spec.previous_watermark,
        cache if cache.limit_bytes and spec.config.shares.decoded else None,
        columns,
        sends_errors(spec.operator),
    )
    spec.operator.open(context)
    states = context.opened()
    decoded = frozenset(known.state_id[0] for known in cache.decoded)
    own = decoded | (frozenset() if columns is None else columns.opened())
    timers = isinstance(spec.operator, RecordOperator) and spec.operator.handles_timers
    others = timers or any(state.id not in own for state in states)
    controller.overlay.leave_out(own, cache.share_out(spec.config.shares.decoded, others))
    controller.failures.state_names = {state.id: state.name for state in states}
    return context


def _runner(
    spec: TaskSpec, partitions: range, context: TaskContext, controller: ExecutionController, scratch: str
) -> Runner:
    operator = spec.operator
    if isinstance(operator, RecordOperator):
        return RecordRunner(spec, partitions, context, controller, operator, scratch)
    if isinstance(operator, BundleOperator):
        return BundleRunner(spec, partitions, context, controller, operator, scratch)
    raise StoreError(
        f"operator '{spec.uid}': {type(operator).__name__} is neither a RecordOperator nor a BundleOperator; "
        "subclass one of them"
    )


def _commit(
    opened: TaskStores,
    runner: Runner,
    values: CachedValues,
    columns: CachedColumns,
    run_seconds: float,
) -> list[CommitRecord]:
    """The report of each partition. What is measured of the whole run is in the first one."""
    began = time.perf_counter()
    runner.controller.finish_states()
    changes = runner.controller.overlay.changes()
    contents = opened.commit(changes)
    committed = time.perf_counter()
    opened.settle()
    settled = time.perf_counter()
    stored = opened.statistics(contents)
    whole = TaskStatistics(
        rows=runner.statistics(),
        controller=_with_caches(runner.controller.statistics(), values, columns),
        columns=columns.statistics(),
        transfers=runner.transfers.statistics(),
        partition=stored[0],
        limits=LimitStatistics.of(runner.spec.config),
        worker_rss_bytes_peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,  # KiB
        run_seconds=run_seconds,
        commit_seconds=committed - began,
        compaction_seconds=settled - committed,
    )
    operator, states = runner.spec.operator, runner.context.states
    digest = "" if operator.broadcast_input is None else broadcast_digest(changes, states)
    measured: list[TaskStatistics | PartitionStatistics] = [whole, *stored[1:]]
    records = []
    for content, statistics in zip(contents, measured, strict=True):
        sums, peaks = sums_and_peaks(statistics)
        if statistics is not whole:
            sums["rows_in"] = float(runner.rows_of[content.partition])
        records.append(
            CommitRecord(
                partition=content.partition,
                content=content,
                states=states,
                max_event_times=runner.max_event_times,
                broadcast_digest=digest,
                missing_row=runner.context.missing_row,
                statistics=sums,
                peaks=peaks,
            )
        )
    return records


def _with_caches(
    statistics: ControllerStatistics, values: CachedValues, columns: CachedColumns
) -> ControllerStatistics:
    """Add what is cached as decoded values, and what bundles have read from ``columns``: it takes memory wherever it
    was read from."""
    state, decoded = statistics.state, values.decoded
    state = replace(
        state,
        bundle_read_bytes=state.bundle_read_bytes + columns.read_bytes,
        cache_carried=state.cache_carried + sum(cache.carried for cache in decoded),
        cache_evictions=state.cache_evictions + sum(cache.evictions for cache in decoded),
        cache_bytes_peak=state.cache_bytes_peak + sum(cache.bytes_peak for cache in decoded),
        cache_bytes_limit=values.limit_bytes,
    )
    return replace(statistics, state=state)


def run_stateless(spec: TaskSpec, batches: Iterator[InputBatch]) -> Iterator[OutBatch | RowStatistics]:
    """Run ``spec.operator`` over some rows of its input; yields output batches, then the row metrics.

    Raises OperatorError for failures of the operator's code.
    """
    with _controller(spec, MemTable(EmptyStore()), worker_memory()) as controller:
        runner = yield from _operated(spec, range(1), controller, batches, "", CachedValues())
        with controller.suspended():
            yield runner.statistics()


def run_to_the_end(
    at_the_end: Operator, spec: TaskSpec, partitions: range, batches: Iterator[InputBatch]
) -> Iterator[OutBatch | CommitRecord]:
    """Like ``run_partitions``, for one partition, over all rows of a bounded input: a micro-batch without a watermark,
    then one without rows and with the last watermark. The CommitRecord names no files.

    ``at_the_end``: a second instance of ``spec.operator``, since an instance lives for one micro-batch. Raises
    OperatorError for failures of the operator's code and StoreError if the folder for what exceeds memory cannot be
    used.
    """
    with _overlay_of_memory(spec) as (overlay, folder):
        rows = replace(spec, watermark=MIN_WATERMARK)
        end = replace(
            rows,
            operator=at_the_end,
            batch_id=spec.batch_id + 1,
            watermark=MAX_WATERMARK,
            previous_processing_time=spec.processing_time,
            broadcast=None,
        )
        cache = CachedValues(spec.config.shares.cache)
        first = yield from _micro_batch(rows, partitions, overlay, cache, batches, folder)
        last = yield from _micro_batch(end, partitions, overlay, cache, iter(()), folder)
        changes = overlay.changes() if spec.operator.broadcast_input is not None else []
        yield msgspec.structs.replace(
            first,
            states=last.states,
            statistics=sum_records([first, last])[0],
            missing_row=first.missing_row or last.missing_row,
            broadcast_digest=broadcast_digest(changes, last.states),
        )


def _micro_batch(
    spec: TaskSpec,
    partitions: range,
    overlay: MemTable,
    cache: CachedValues,
    batches: Iterator[InputBatch],
    folder: Path,
) -> Generator[OutBatch, None, CommitRecord]:
    """Run one micro-batch over the content of ``overlay``; its writes stay there."""
    (partition,) = partitions
    with _controller(spec, overlay, worker_memory()) as controller:
        scratch = str(folder / "gathered")
        runner = yield from _operated(spec, partitions, controller, batches, scratch, cache)
        controller.write_back()  # the next micro-batch reads it
        controller.finish_states()
    return CommitRecord(
        partition=partition,
        content=PartitionManifest(partition),
        states=runner.context.states,
        max_event_times=runner.max_event_times,
        missing_row=runner.context.missing_row,
        statistics=sums_and_peaks(TaskStatistics(rows=runner.statistics()))[0],
    )


@contextmanager
def _overlay_of_memory(spec: TaskSpec) -> Iterator[tuple[MemTable, Path]]:
    """An empty store with a memtable over it, and a folder for what exceeds memory."""
    config = spec.config
    with ExitStack() as used:
        folder = Path(used.enter_context(_folder(spec)))

        def open_scratch() -> RocksDBStore:
            return used.enter_context(closing(RocksDBStore(folder / "db", rocksdb_options(config))))

        bound = WriteBound(config.shares.writes, open_scratch, str(folder))
        yield MemTable(EmptyStore(), config.shares.cache, bound=bound), folder


def _folder(spec: TaskSpec) -> tempfile.TemporaryDirectory[str]:
    try:
        if spec.local_dir is not None:
            Path(spec.local_dir).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(
            prefix="asyncstate-batch-", dir=spec.local_dir, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise StoreError(
            f"operator '{spec.uid}': cannot create a folder for spilled rows: {error}. Check the disk's space and "
            "permissions, or set async-state.local-dir to another folder"
        ) from error
