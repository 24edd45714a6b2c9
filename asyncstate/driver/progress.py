"""The progress of a micro-batch: the metrics of its operators and where its time went.

Owns: ``Progress``, the only form of these metrics: in a job's ``history``, in ``on_progress``, and in Python's logging,
for machines and for people (``ProgressFormatter``).
Invariant: the names in a progress are stable and the same in both modes; a metric that a mode does not measure is None.
Nothing here can make a micro-batch fail.
Must not import pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict

import msgspec

from asyncstate.dataflow import NodeMetrics
from asyncstate.metrics import counters
from asyncstate.operator import MAX_WATERMARK, MIN_WATERMARK
from asyncstate.runtime import TASK_METRICS, CommitRecord, sum_records

if TYPE_CHECKING:
    from asyncstate.driver.micro_batch import Applied

OperatorProgress = dict[str, Any]
"""The metrics of an operator in a micro-batch by name, described in ``docs/metrics.md``. None: not measured."""


class SourceProgress(TypedDict):
    """A source of the watermark. ``watermark_us``: the event time up to which it lets the next micro-batch's watermark
    advance, microseconds since the epoch, None before its first event. An ``idle`` source does not hold it back."""

    name: str
    watermark_us: int | None
    idle: bool


class DroppedRows(TypedDict):
    """What the reader of a source has dropped: the number of ``rows``, and the place of one of them and the reason."""

    rows: int
    example: str | None


class Progress(TypedDict):
    """The metrics of a committed micro-batch under stable names, ready for ``json.dumps``; see ``docs/metrics.md``.

    ``watermark_us`` is None before any event time and at the end of the input. ``total_seconds`` covers all of it:
    finding the base version, the user's function with the stages inside it (``function_seconds``), and the commit
    (``commit_seconds``). ``dropped``: by name, the sources whose readers drop what they cannot read. ``operators``: by
    uid, in the order in which they ran.
    """

    job: str
    batch_id: int
    started_at: str
    final: bool
    watermark_us: int | None
    watermark_waits_for: list[str]
    sources: list[SourceProgress]
    dropped: dict[str, DroppedRows]
    total_seconds: float
    function_seconds: float
    commit_seconds: float
    operators: dict[str, OperatorProgress]


OnProgress = Callable[[Progress], object]
"""Called on the driver with the progress of each micro-batch after its commit; its result is ignored."""

LOGGER: Final = "asyncstate.progress"
"""The name of the logger that gets one record per micro-batch, at level INFO."""

_SPENT_ON: Final = {
    "input": ("input_seconds",),
    "output": ("output_seconds",),
    "reads": ("read_batch_seconds", "io_wait_seconds"),
    "calls": ("call_wait_seconds",),
}
"""Parts of ``run_seconds`` by the name that ``explain()`` gives them; the rest is the operator's own computation."""
_SHARE_SHOWN: Final = 0.1
_SKEW_SHOWN: Final = 2.0  # times the mean of the partitions
_SKEW_ROWS_MIN: Final = 1_000  # a few rows are never spread evenly

OF_PARTITIONS: Final = ("rows_in", "run_seconds", "state_bytes")
"""Metrics for which a progress also has the highest value of a partition, and the number of that partition."""

_log = logging.getLogger(LOGGER)


def operator_progress(applied: Applied) -> OperatorProgress:
    """The metrics of an operator that has run: sums over its partitions; for some, the maximum of a partition.

    ``plan_seconds`` is the driver's work before the stage starts, ``stage_seconds`` the stage with its exchange.
    """
    sums, peaks = sum_records(applied.records)
    measured = {**sums, **peaks}
    metrics = {name: _number(name, measured.get(name)) for name in TASK_METRICS}
    return {
        "uid": applied.uid,
        "operator": applied.operator,
        "parallelism": applied.parallelism,
        "in_driver": applied.in_driver,
        **metrics,
        **_of_partitions(applied.records, sums),
        "cache_hit_ratio": _ratio(metrics["cache_hits"], metrics["reads"]),
        "read_batch_keys_mean": _ratio(metrics["read_batch_keys"], metrics["read_batches"]),
        "plan_seconds": applied.plan_seconds,
        "stage_seconds": applied.stage_seconds,
        "counters": counters(sums),
    }


def _of_partitions(records: Sequence[CommitRecord], sums: Mapping[str, float]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in OF_PARTITIONS:
        # Partitions that ran together have the seconds of all of them in the first record.
        known = name in sums and all(name in one.statistics for one in records)
        highest = max(records, key=lambda one: one.statistics[name]) if known else None
        value = None if highest is None else highest.statistics[name]
        found[f"{name}_max"] = _number(name, value)
        found[f"{name}_max_partition"] = None if highest is None else highest.partition
    return found


def _number(name: str, value: float | None) -> float | None:
    return value if value is None or name.endswith("_seconds") else int(value)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return (part or 0) / whole if whole else None


def time_shown(time_us: int) -> int | None:
    """An event time as a progress shows it: None for the lowest and the highest watermark."""
    return None if time_us in (MIN_WATERMARK, MAX_WATERMARK) else time_us


def watermark_of(progress: Progress) -> int:
    """The watermark of a progress, including the lowest and the highest one."""
    shown = progress["watermark_us"]
    if shown is None:
        return MAX_WATERMARK if progress["final"] else MIN_WATERMARK
    return shown


def started_text(time_us: int) -> str:
    """The processing time of a micro-batch as a progress shows it."""
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat()


def sum_of(progress: Progress, name: str) -> int:
    """The sum of a metric over all operators."""
    return sum(int(one[name] or 0) for one in progress["operators"].values())


def metrics_of(operators: Mapping[str, OperatorProgress]) -> dict[str, NodeMetrics]:
    """Rows, seconds and state size of each operator, for pictures. In a stage with several operators, the last one gets
    the remaining seconds."""
    metrics, inside = {}, 0.0
    for uid, one in operators.items():
        whole = one["stage_seconds"] + one["plan_seconds"]
        own = whole - inside if whole else (one["run_seconds"] or 0.0) / one["parallelism"]
        inside = 0.0 if whole else inside + own
        rows_in, rows_out, stored = (one[name] or 0 for name in ("rows_in", "rows_out", "state_bytes"))
        spent, in_driver = _spent_on(one), bool(one["in_driver"])
        metrics[uid] = NodeMetrics(rows_in, rows_out, max(own, 0.0), stored, spent, in_driver)
    return metrics


def _spent_on(one: OperatorProgress) -> str:
    """Parts of the time in tasks that are a tenth or more, and the partition that has at least twice the mean of rows
    or of seconds; both with their shares of the sum over all partitions."""
    run = one["run_seconds"] or 0.0
    shares = {part: sum(one[name] or 0.0 for name in names) for part, names in _SPENT_ON.items()}
    said = [
        f"{part} {share / run:.0%}" for part, share in shares.items() if run and share >= _SHARE_SHOWN * run
    ]
    skewed = [
        f"{share:.0%} of {what} in partition {one[f'{name}_max_partition']} of {one['parallelism']}"
        for name, what in (("rows_in", "rows"), ("run_seconds", "seconds"))
        if (one["rows_in"] or 0) >= _SKEW_ROWS_MIN
        and (share := _ratio(one[f"{name}_max"], one[name]) or 0.0) * one["parallelism"] >= _SKEW_SHOWN
    ]
    return "; ".join([*([f"time: {', '.join(said)}"] if said else []), *skewed])


class ProgressFormatter(logging.Formatter):
    """Log records as one line of JSON each: ``time``, ``level``, ``logger``, ``message``, ``exception``, and for a
    micro-batch ``progress``.

    For a handler of any logger: ``handler.setFormatter(ProgressFormatter())``. Without it the message of a
    micro-batch's record is the progress itself, as JSON.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
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
    """Logs each progress and passes it to ``on_progress``; logs its failures, the first one in full."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._failed = False

    def report(self, progress: Progress) -> None:
        """Log ``progress`` and pass it on. The record is at INFO; its message is the progress as one line of JSON, and
        its attribute ``progress`` is the same as a dict."""
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s", msgspec.json.encode(progress).decode(), extra={"progress": progress})
        for source, dropped in progress["dropped"].items():
            _warn_of_dropped_rows(progress, source, dropped)
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except (Exception, SystemExit) as error:
            if not self._failed:
                self._failed = True
                _log.warning(
                    "job '%s', batch %d: on_progress failed (%s: %s); the batch is committed nevertheless, and "
                    "later failures of on_progress are not logged",
                    progress["job"],
                    progress["batch_id"],
                    type(error).__name__,
                    error,
                    exc_info=True,
                )


def _warn_of_dropped_rows(progress: Progress, source: str, dropped: DroppedRows) -> None:
    if dropped["rows"]:
        _log.warning(
            "job '%s', batch %d: source '%s' dropped %s that it cannot read, for example %s. malformed='output' of "
            "job.kafka, or malformed='only' of a reader, keeps them.",
            progress["job"],
            progress["batch_id"],
            source,
            "a message" if dropped["rows"] == 1 else f"{dropped['rows']:,} messages",
            dropped["example"],
        )


def _summary(progress: Progress) -> str:
    return (
        f"job '{progress['job']}', batch {progress['batch_id']}: {sum_of(progress, 'rows_in')} rows into "
        f"{len(progress['operators'])} operators in {progress['total_seconds']:.3f} s"
    )
