"""What a micro-batch did: the figures of its operators and where its time went.

Owns: ``BatchStatistics``, the summing of commit records into it, and ``progress_of``, its form for readers outside: in
Python's logging, for machines and for people (``ProgressFormatter``), and in a job's ``on_progress``.
Invariant: the names in a progress are stable and the same in both modes; a figure that a mode does not measure is None.
Nothing here can make a micro-batch fail.
Must not import pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from asyncstate.dataflow import NodeFigures
from asyncstate.figures import counters
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.runtime import CommitRecord, kind_of, sum_records

if TYPE_CHECKING:
    from asyncstate.driver.micro_batch import Applied

Progress = dict[str, Any]
"""What ``progress_of`` gives; see ``docs/metrics.md``."""

OnProgress = Callable[[Progress], object]

LOGGER: Final = "asyncstate.progress"
"""The name of the logger that gets one record a micro-batch, at level INFO."""

_log = logging.getLogger(LOGGER)


class Largest(msgspec.Struct, frozen=True):
    """The highest value of a partition, and which one has it."""

    value: float
    partition: int


class OperatorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One operator in one micro-batch: ``sums`` over its partitions, ``peaks`` the highest of them.

    ``largest``: of some of the sums the highest of a partition, which shows skew. ``plan_seconds`` is the driver's work
    before the stage starts, ``stage_seconds`` the stage with its exchange.
    """

    uid: str
    operator: str
    parallelism: int
    plan_seconds: float
    stage_seconds: float
    sums: dict[str, float]
    peaks: dict[str, float]
    largest: dict[str, Largest] = {}


class SourceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A source of the watermark: ``reached`` is how far it lets the watermark of the next micro-batch go, microseconds;
    one that is ``idle`` does not hold it."""

    name: str
    reached: int
    idle: bool


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch. Times of ``watermark`` and ``processing_time`` are microseconds since the epoch.

    ``seconds`` is the whole of it: finding the base version, the user's function with the stages inside it
    (``function_seconds``), and the commit (``commit_seconds``). ``watermark_waits_for``: the sources that hold the
    watermark of the next one where it is.
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
    sources: list[SourceStatistics] = []
    watermark_waits_for: list[str] = []

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
        largest={name: _largest(name, applied.records) for name in OF_PARTITIONS if name in sums},
    )


def _largest(name: str, records: Sequence[CommitRecord]) -> Largest:
    found = max(records, key=lambda record: record.statistics.get(name, 0.0))
    return Largest(found.statistics.get(name, 0.0), found.partition)


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


OF_PARTITIONS: Final = ("rows_in", "run_seconds", "state_bytes")
"""Figures of which a progress has the highest of a partition, too, and which partition that is."""

_OPERATOR_NAMES: Final = (
    *("rows_in", "local_rows_in", "rows_out", "keys"),
    *("reads", "cache_hits", "cache_misses", "level_one_hits", "column_cache_hits", "column_cache_evictions"),
    *("store_reads", "read_batches", "read_batch_keys", "scans", "changes", "spills"),
    *("read_ahead_keys", "read_ahead_unused", "warmed_positions", "calls", "call_timeouts"),
    *(
        "state_entries_estimate",
        "change_bytes",
        "spilled_bytes",
        "delta_bytes",
        "restore_bytes",
        "state_bytes",
    ),
    *("in_flight_peak", "blocked_keys_peak", "io_threads_peak", "calls_in_flight_peak"),
    *("cache_bytes_peak", "column_cache_bytes_peak", "write_cache_bytes_peak", "worker_rss_bytes_peak"),
    *(
        "in_flight_limit",
        "request_buffer_limit",
        "buffer_timeout_ms_limit",
        "io_parallelism_limit",
        "call_limit",
    ),
    *("io_wait_seconds", "call_wait_seconds", "restore_seconds", "input_seconds", "output_seconds"),
    *("read_batch_seconds", "run_seconds", "commit_seconds", "compaction_seconds"),
)
_REPORTED_AS: Final = {
    "cache_hits": "hits",
    "cache_misses": "misses",
    "read_batches": "list_gets",
    "read_batch_keys": "list_get_keys",
    "read_batch_seconds": "list_get_seconds",
}
"""What tasks call figures that a progress calls otherwise."""


def _source(name: str) -> str:
    return _REPORTED_AS.get(name, name)


FIGURES: Final = {name: kind_of(_source(name)) for name in _OPERATOR_NAMES}
"""An operator's figures in a progress that tasks measure, and their kinds."""


def progress_of(batch: BatchStatistics) -> Progress:
    """The figures of a micro-batch under their stable names, ready for JSON."""
    return {
        "job": batch.job,
        "batch_id": batch.batch_id,
        "started_at": datetime.fromtimestamp(batch.processing_time / 1e6, UTC).isoformat(),
        "final": batch.final,
        "watermark_us": _time(batch.watermark),
        "watermark_waits_for": batch.watermark_waits_for,
        "sources": [
            {"name": one.name, "watermark_us": _time(one.reached), "idle": one.idle} for one in batch.sources
        ],
        "total_seconds": batch.seconds,
        "function_seconds": batch.function_seconds,
        "commit_seconds": batch.commit_seconds,
        "operators": [_operator(operator) for operator in batch.operators.values()],
    }


def _time(time_us: int) -> int | None:
    return None if time_us in (MIN_WATERMARK, MAX_WATERMARK) else time_us


def _operator(operator: OperatorStatistics) -> Progress:
    measured = {**operator.sums, **operator.peaks}
    figures = {name: _number(name, measured.get(_source(name))) for name in FIGURES}
    return {
        "uid": operator.uid,
        "operator": operator.operator,
        "parallelism": operator.parallelism,
        **figures,
        **_of_partitions(operator.largest),
        "cache_hit_ratio": _ratio(figures["cache_hits"], figures["reads"]),
        "read_batch_keys_mean": _ratio(figures["read_batch_keys"], figures["read_batches"]),
        "plan_seconds": operator.plan_seconds,
        "stage_seconds": operator.stage_seconds,
        "counters": counters(operator.sums),
    }


def _of_partitions(largest: Mapping[str, Largest]) -> Progress:
    found: Progress = {}
    for name in OF_PARTITIONS:
        one = largest.get(name)
        found[f"{name}_max"] = None if one is None else _number(name, one.value)
        found[f"{name}_max_partition"] = None if one is None else one.partition
    return found


def _number(name: str, value: float | None) -> float | None:
    return value if value is None or name.endswith("_seconds") else int(value)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return (part or 0) / whole if whole else None


class ProgressFormatter(logging.Formatter):
    """Log records as one line of JSON each: ``time``, ``level``, ``logger``, ``message``, ``exception``, and for a
    micro-batch ``progress``.

    For a handler of any logger: ``handler.setFormatter(ProgressFormatter())``. Without it the message of a
    micro-batch's record is the progress itself, as JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        progress: Progress | None = getattr(record, "progress", None)
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage() if progress is None else _summary(progress),
        }
        if progress is not None:
            line["progress"] = progress
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class ProgressReports:
    """Logs each progress and gives it to ``on_progress``, whose failures are logged, the first of them in full."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._failed = False

    def report(self, progress: Progress) -> None:
        """Log ``progress`` (one record at INFO: its message is the progress as one line of JSON, its ``progress`` the
        same as a dict) and pass it on."""
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", msgspec.json.encode(progress).decode(), extra={"progress": progress})
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except (Exception, SystemExit) as error:
            if not self._failed:
                self._failed = True
                _log.warning(
                    "job '%s', batch %d: on_progress failed (%s: %s); the batch is committed all the same, and later "
                    "failures of on_progress are not logged",
                    progress["job"],
                    progress["batch_id"],
                    type(error).__name__,
                    error,
                    exc_info=True,
                )


def _summary(progress: Progress) -> str:
    rows = sum(operator["rows_in"] or 0 for operator in progress["operators"])
    return (
        f"job '{progress['job']}', batch {progress['batch_id']}: {rows} rows into "
        f"{len(progress['operators'])} operators in {progress['total_seconds']:.3f} s"
    )
