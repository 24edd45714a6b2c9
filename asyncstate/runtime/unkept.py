"""Runs that leave nothing behind: of stateless operators, and of any operator over an input that ends.

Owns: ``run_stateless`` and ``run_to_the_end``.
Invariant: state lives in this process's memory, and beyond its bound in a folder that goes with the run; no store of a
job and no checkpoint is opened. A run over an input that ends gives what a job gives whose first micro-batch has all
rows and whose ``finish()`` follows.
Must not import Spark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from asyncstate.errors import StoreError
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK, Operator
from asyncstate.runtime.broadcast_digest import broadcast_digest
from asyncstate.runtime.driver import sum_records
from asyncstate.runtime.spec import CommitRecord, InputBatch, OutBatch, TaskSpec
from asyncstate.runtime.statistics import RowStatistics, TaskStatistics
from asyncstate.runtime.stores import rocksdb_options
from asyncstate.runtime.task import controller_of, operated
from asyncstate.runtime.transfers import Transfers
from asyncstate.runtime.worker_memory import worker_memory
from asyncstate.storage import (
    EmptyStore,
    PartitionManifest,
    RocksDBStore,
    WriteBound,
    WriteOverlay,
)


def run_stateless(spec: TaskSpec, batches: Iterator[InputBatch]) -> Iterator[OutBatch | RowStatistics]:
    """Run ``spec.operator`` over some rows of its input; gives output batches, then what was counted on the way.

    Raises OperatorError for failures of the operator's code.
    """
    memory = worker_memory()
    with controller_of(spec, WriteOverlay(EmptyStore()), memory) as controller:
        runner, _ = yield from operated(spec, 0, controller, batches, "", Transfers(), memory)
        with controller.suspended():
            yield runner.statistics()


def run_to_the_end(
    at_the_end: Operator, spec: TaskSpec, partition: int, batches: Iterator[InputBatch]
) -> Iterator[OutBatch | CommitRecord]:
    """As ``run_partition``, over all rows there are: a micro-batch without a watermark, then one without rows and with
    the last watermark. The CommitRecord names no files.

    ``at_the_end``: a second object of ``spec.operator``, since one lives for one micro-batch. Raises OperatorError for
    failures of the operator's code and StoreError if the folder for what exceeds memory cannot be used.
    """
    with _overlay(spec) as (overlay, folder):
        rows = replace(spec, watermark=MIN_WATERMARK)
        end = replace(
            rows,
            operator=at_the_end,
            batch_id=spec.batch_id + 1,
            watermark=MAX_WATERMARK,
            previous_processing_time=spec.processing_time,
            broadcast=None,
        )
        first = yield from _micro_batch(rows, partition, overlay, batches, folder)
        last = yield from _micro_batch(end, partition, overlay, iter(()), folder)
        changes = overlay.changes() if spec.operator.broadcast_input is not None else []
        yield _merged(first, last, broadcast_digest(changes, last.states))


def _micro_batch(
    spec: TaskSpec, partition: int, overlay: WriteOverlay, batches: Iterator[InputBatch], folder: Path
) -> Generator[OutBatch, None, CommitRecord]:
    """One micro-batch over what ``overlay`` holds; what it writes stays there."""
    memory = worker_memory()
    with controller_of(spec, overlay, memory) as controller:
        runner, states = yield from operated(
            spec, partition, controller, batches, str(folder / "gathered"), Transfers(), memory
        )
        controller.finish_states()
    return CommitRecord(
        partition=partition,
        content=PartitionManifest(partition),
        states=states,
        max_event_times=runner.max_event_times,
        missing_row=None if runner.context.missing is None else runner.context.missing.example,
        statistics=TaskStatistics(rows=runner.statistics()).figures()[0],
    )


def _merged(first: CommitRecord, last: CommitRecord, digest: str) -> CommitRecord:
    sums, _ = sum_records([first, last])
    missing_row = first.missing_row or last.missing_row
    return msgspec.structs.replace(
        first, states=last.states, statistics=sums, missing_row=missing_row, broadcast_digest=digest
    )


@contextmanager
def _overlay(spec: TaskSpec) -> Iterator[tuple[WriteOverlay, Path]]:
    """Nothing with room for writes over it, and a folder for what is more than memory may hold."""
    config = spec.config
    with ExitStack() as used:
        folder = Path(used.enter_context(_folder(spec)))

        def open_scratch() -> RocksDBStore:
            return used.enter_context(closing(RocksDBStore(folder / "db", rocksdb_options(config))))

        bound = WriteBound(config.write_cache_size_bytes, open_scratch, str(folder))
        yield WriteOverlay(EmptyStore(), config.cache_size_bytes, bound=bound), folder


def _folder(spec: TaskSpec) -> tempfile.TemporaryDirectory[str]:
    try:
        if spec.local_dir is not None:
            Path(spec.local_dir).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(
            prefix="asyncstate-batch-", dir=spec.local_dir, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise StoreError(
            f"operator '{spec.uid}': no folder for what exceeds memory: {error}. Check the disk's space and "
            "permissions, or set async-state.local-dir to another folder"
        ) from error
