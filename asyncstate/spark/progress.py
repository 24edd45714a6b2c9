"""What a micro-batch did: the figures of its operators and where its time went.

Owns: ``BatchStatistics``, the summing of commit records into it, and ``progress_of``, its form for readers outside.
Invariant: the names in a progress are stable and the same in both modes; a figure that a mode does not measure is None.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from asyncstate.dataflow import NodeFigures
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.runtime import sum_records

if TYPE_CHECKING:
    from asyncstate.spark.batch import Applied

Progress = dict[str, Any]
"""What ``progress_of`` gives; see ``docs/metrics.md``."""

OnProgress = Callable[[Progress], object]


class OperatorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one micro-batch: ``sums`` over its partitions, ``peaks`` the highest of them.

    ``plan_seconds`` is the driver's work before the stage starts, ``stage_seconds`` the stage with its
    exchange.
    """

    uid: str
    operator: str
    parallelism: int
    plan_seconds: float
    stage_seconds: float
    sums: dict[str, float]
    peaks: dict[str, float]


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch. Times of ``watermark`` and ``processing_time`` are microseconds since the epoch.

    ``seconds`` is the whole of it: finding the base version, the user's function with the stages inside it
    (``function_seconds``), and the commit (``commit_seconds``).
    """

    job: str
    batch_id: int
    watermark: int
    final: bool
    seconds: float
    function_seconds: float
    commit_seconds: float
    operators: dict[str, OperatorStatistics]
    processing_time: int = 0

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


def operator_statistics(applied: Applied) -> OperatorStatistics:
    """The figures of an operator that has run."""
    sums, peaks = sum_records(applied.records)
    return OperatorStatistics(
        uid=applied.uid,
        operator=applied.operator,
        parallelism=applied.parallelism,
        plan_seconds=applied.plan_seconds,
        stage_seconds=applied.stage_seconds,
        sums=sums,
        peaks=peaks,
    )


def figures_of(operators: Mapping[str, OperatorStatistics]) -> dict[str, NodeFigures]:
    """Rows, seconds and state of each operator, for pictures. Of a stage with several operators the last one has what
    is left of its seconds."""
    figures, inside = {}, 0.0
    for uid, one in operators.items():
        whole = one.stage_seconds + one.plan_seconds
        own = whole - inside if whole else one.sums.get("run_seconds", 0.0) / one.parallelism
        inside = 0.0 if whole else inside + own
        rows_in, rows_out, stored = (
            int(one.sums.get(name, 0)) for name in ("rows_in", "rows_out", "state_bytes")
        )
        figures[uid] = NodeFigures(rows_in, rows_out, max(own, 0.0), stored)
    return figures


COUNTS: Final = {
    "rows_in": "rows_in",
    "local_rows_in": "local_rows_in",
    "rows_out": "rows_out",
    "keys": "keys",
    "reads": "reads",
    "cache_hits": "hits",
    "cache_misses": "misses",
    "level_one_hits": "level_one_hits",
    "column_cache_hits": "column_cache_hits",
    "column_cache_evictions": "column_cache_evictions",
    "store_reads": "store_reads",
    "read_batches": "list_gets",
    "read_batch_keys": "list_get_keys",
    "scans": "scans",
    "changes": "changes",
    "spills": "spills",
    "calls": "calls",
    "call_timeouts": "call_timeouts",
}
"""Whole numbers of a progress, summed over partitions, and what commit records call them."""

BYTES: Final = {
    "change_bytes": "change_bytes",
    "spilled_bytes": "spilled_bytes",
    "delta_bytes": "delta_bytes",
    "restore_bytes": "restore_bytes",
    "state_bytes": "state_bytes",
}
SECONDS: Final = {
    "io_wait_seconds": "io_wait_seconds",
    "call_wait_seconds": "call_wait_seconds",
    "restore_seconds": "restore_seconds",
    "input_seconds": "input_seconds",
    "output_seconds": "output_seconds",
    "read_batch_seconds": "list_get_seconds",
    "run_seconds": "run_seconds",
    "commit_seconds": "commit_seconds",
    "compaction_seconds": "compaction_seconds",
}
PEAKS: Final = {
    "in_flight_peak": "in_flight_peak",
    "blocked_keys_peak": "blocked_keys_peak",
    "io_threads_peak": "io_threads_peak",
    "calls_in_flight_peak": "calls_in_flight_peak",
    "cache_bytes_peak": "cache_bytes_peak",
    "column_cache_bytes_peak": "column_cache_bytes_peak",
    "write_cache_bytes_peak": "write_cache_bytes_peak",
    "worker_rss_bytes_peak": "worker_rss_bytes_peak",
}
LIMITS: Final = {
    "in_flight_limit": "in_flight_limit",
    "request_buffer_limit": "request_buffer_limit",
    "buffer_timeout_ms_limit": "buffer_timeout_ms_limit",
    "io_parallelism_limit": "io_parallelism_limit",
    "call_limit": "call_limit",
}
"""Bounds in force."""
_COUNTER: Final = "counter."


def progress_of(batch: BatchStatistics) -> Progress:
    """The figures of a micro-batch under their stable names, ready for JSON."""
    return {
        "job": batch.job,
        "batch_id": batch.batch_id,
        "started_at": datetime.fromtimestamp(batch.processing_time / 1e6, UTC).isoformat(),
        "final": batch.final,
        "watermark_us": None if batch.watermark in (MIN_WATERMARK, MAX_WATERMARK) else batch.watermark,
        "total_seconds": batch.seconds,
        "function_seconds": batch.function_seconds,
        "commit_seconds": batch.commit_seconds,
        "operators": [_operator(operator) for operator in batch.operators.values()],
    }


def _operator(operator: OperatorStatistics) -> Progress:
    sums, peaks = operator.sums, operator.peaks
    reads, batches = sums.get("reads"), sums.get("list_gets")
    return {
        "uid": operator.uid,
        "operator": operator.operator,
        "parallelism": operator.parallelism,
        **{name: _whole(sums.get(source)) for name, source in COUNTS.items()},
        "cache_hit_ratio": sums.get("hits", 0) / reads if reads else None,
        "read_batch_keys_mean": sums["list_get_keys"] / batches if batches else None,
        "state_entries_estimate": _whole(sums.get("state_entries_estimate")),
        **{name: _whole(sums.get(source)) for name, source in BYTES.items()},
        **{name: _whole(peaks.get(source)) for name, source in PEAKS.items()},
        **{name: _whole(peaks.get(source)) for name, source in LIMITS.items()},
        "plan_seconds": operator.plan_seconds,
        "stage_seconds": operator.stage_seconds,
        **{name: sums.get(source) for name, source in SECONDS.items()},
        "counters": {
            name.removeprefix(_COUNTER): _whole(value)
            for name, value in sums.items()
            if name.startswith(_COUNTER)
        },
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
