"""The report of a task about one micro-batch of one partition: the metrics of its components combined.

Owns: ``TaskStatistics`` and the components that belong to the task as a whole; ``Transfers``, which measures one.
Invariant: a record's two dicts, of metrics to sum and of metrics whose maximum counts, are built only here; the
kind of a metric decides how it is aggregated.
Must not import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from asyncstate.config import Config
from asyncstate.execution import ControllerStatistics
from asyncstate.metrics import (
    Bytes,
    Count,
    Counters,
    Elapsed,
    Gauge,
    Limit,
    MaxGauge,
    MetricKind,
    Metrics,
    from_dict,
    kinds,
    max_metrics,
    sum_metrics,
    to_dict,
)
from asyncstate.runtime.task_spec import CommitRecord, InputBatch, OutBatch
from asyncstate.state import ColumnCacheStatistics
from asyncstate.storage import OperatorManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """``rows_in``, ``rows_out``: rows; the latter includes side outputs. ``keys``: the unique keys of each bundle
    (of each Arrow batch at record grain), summed. ``local_rows_in``: rows that a partial aggregation reduced to
    ``rows_in``; None if none ran. ``counters``: the operator's own counters."""

    rows_in: Count
    rows_out: Count
    keys: Count
    local_rows_in: Count | None
    counters: Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """Metrics of the partition's store and its part of the checkpoint.

    ``restore_seconds``, ``restore_bytes``: time to bring the store to the base version, and bytes fetched
    for it. ``delta_bytes``: size of the uploaded delta file. ``state_bytes``: stored size of the store and that delta;
    ``state_entries_estimate``: its entries, including overwritten ones that are not compacted yet.
    ``block_cache_bytes_peak``: blocks in RocksDB's cache; ``block_cache_bytes_limit``: their limit, which is what
    filters and indexes leave; ``table_reader_bytes_peak``: the size of filters and indexes.
    """

    restore_seconds: Elapsed
    restore_bytes: Bytes
    delta_bytes: Bytes
    state_bytes: Gauge
    state_entries_estimate: Gauge
    block_cache_bytes_peak: MaxGauge
    block_cache_bytes_limit: Limit
    table_reader_bytes_peak: MaxGauge


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatistics:
    """The limits in force, in both modes: in sync mode one record is in flight and each read is sent alone.

    ``in_flight_limit``: records. ``request_buffer_limit``: keys that wait for a list get, for at most
    ``buffer_timeout_ms_limit`` milliseconds. ``io_parallelism_limit``: threads that read.
    """

    in_flight_limit: Limit
    request_buffer_limit: Limit
    buffer_timeout_ms_limit: Limit
    io_parallelism_limit: Limit

    @classmethod
    def of(cls, config: Config) -> LimitStatistics:
        """The limits from the configuration."""
        many = config.enabled
        return cls(
            in_flight_limit=config.in_flight_limit if many else 1,
            request_buffer_limit=config.buffer_size if many else 1,
            buffer_timeout_ms_limit=config.buffer_timeout_ms if many else 0,
            io_parallelism_limit=config.tuning.io_threads if many else 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStatistics:
    """During a task's run: ``input_seconds`` waiting for rows, ``output_seconds`` until emitted rows were consumed."""

    input_seconds: Elapsed
    output_seconds: Elapsed


class Transfers:
    """How long a task waits for input rows and for its output to be consumed: Spark's exchange and the Arrow streams.

    The clock is read twice per batch, never per row.
    """

    def __init__(self) -> None:
        self._input_seconds = self._output_seconds = 0.0

    def awaited(self, batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
        """The same batches; measures the time spent waiting for them."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self._input_seconds += time.perf_counter() - started
            if batch is None:
                return
            yield batch

    def taken(self, out: OutBatch) -> Iterator[OutBatch]:
        """The batch; measures the time until the next one is requested."""
        started = time.perf_counter()
        yield out
        self._output_seconds += time.perf_counter() - started

    def statistics(self) -> TransferStatistics:
        """The times so far."""
        return TransferStatistics(input_seconds=self._input_seconds, output_seconds=self._output_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatistics:
    """One micro-batch of a task's partitions; a run that stores nothing has only ``rows``. If there are several, this
    is about all of them, with the ``partition`` metrics of the first one.

    ``run_seconds``: from opening the store to the last row. ``commit_seconds``: then writing and uploading the delta.
    ``compaction_seconds``: then waiting for the store's compaction. ``worker_rss_bytes_peak``: peak memory of the
    Python worker process so far.
    """

    rows: RowStatistics
    controller: ControllerStatistics | None = None
    columns: ColumnCacheStatistics | None = None
    transfers: TransferStatistics | None = None
    partition: PartitionStatistics | None = None
    limits: LimitStatistics | None = None
    worker_rss_bytes_peak: MaxGauge | None = None
    run_seconds: Elapsed | None = None
    commit_seconds: Elapsed | None = None
    compaction_seconds: Elapsed | None = None


def sums_and_peaks(part: TaskStatistics | PartitionStatistics) -> tuple[Metrics, Metrics]:
    """By name, the metrics to sum over partitions, and those whose maximum counts."""
    sums: Metrics = {}
    peaks: Metrics = {}
    for name, value in to_dict(part).items():  # the operator's own counters have no declared kind: sums
        (peaks if name in _PEAKS else sums)[name] = value
    return sums, peaks


_PEAKS: Final = frozenset(name for name, kind in kinds(TaskStatistics).items() if kind.is_highest)

TASK_METRICS: Final[Mapping[str, MetricKind]] = {
    name: kind for name, kind in kinds(TaskStatistics).items() if name != "counters"
}
"""The metrics that tasks report and their kinds, except operators' own counters."""


def statistics_before(base: OperatorManifest | None) -> TaskStatistics:
    """The summed metrics, over all partitions, of the micro-batch that committed ``base``; 0 without a base."""
    return from_dict(TaskStatistics, {} if base is None else base.summed_statistics())


def sums_of_both(first: Mapping[str, float], then: Mapping[str, float]) -> Metrics:
    """Sums of the metrics of a partition that ran twice in a micro-batch; for gauges the later values."""
    levels = [name for name, kind in kinds(TaskStatistics).items() if kind is MetricKind.GAUGE]
    return sum_metrics([{name: value for name, value in first.items() if name not in levels}, then])


def sum_records(records: Sequence[CommitRecord]) -> tuple[Metrics, Metrics]:
    """Sums of ``statistics`` and maxima of ``peaks`` over the partitions."""
    return sum_metrics(record.statistics for record in records), max_metrics(
        record.peaks for record in records
    )
