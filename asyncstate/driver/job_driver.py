"""Runs micro-batches one after another: the base of each, its execution, its commit and its metrics.

Owns: ``JobDriver``.
Invariant: the manifest of a batch is written after the job's function has returned, and only then.
Must not import Spark.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Generic

from asyncstate.clock import Clock
from asyncstate.driver.commit_log import BATCH_SCHEMA, CommitLog
from asyncstate.driver.executor import R
from asyncstate.driver.micro_batch import JobFrame, MicroBatch, check_watermark
from asyncstate.driver.operator_manifests import left_out
from asyncstate.driver.progress import (
    DroppedRows,
    OnProgress,
    Progress,
    ProgressReports,
    SourceProgress,
    operator_progress,
    started_text,
    time_shown,
)
from asyncstate.errors import JobError
from asyncstate.runtime import (
    SourceTimes,
    WatermarkSource,
    advance_sources,
    check_claimed,
    input_sources,
    watermark_holders,
)
from asyncstate.storage import Manifest, OperatorManifest

HISTORY_BATCHES_MAX: Final = 100

_log = logging.getLogger(__name__)


class JobDriver(Generic[R]):
    """Runs the micro-batches of one job. ``make_batch`` creates a ``MicroBatch``, or the engine's equivalent."""

    def __init__(
        self,
        frame: JobFrame[R],
        ledger: CommitLog,
        clock: Clock,
        on_progress: OnProgress | None = None,
        make_batch: Callable[..., Any] = MicroBatch,
    ) -> None:
        self.history: deque[Progress] = deque(maxlen=HISTORY_BATCHES_MAX)
        """The progress of the last micro-batches, newest last."""
        self.last_error: BaseException | None = None
        """The error of the last micro-batch; None if it succeeded."""
        self.now: tuple[int, float] | None = None
        """The running micro-batch, and when it started (``time.perf_counter``)."""
        self.schema: str | None = None
        """The schema of the newest micro-batch's rows, in the engine's format."""
        self.committed: Manifest | None = None
        """The last manifest that this driver has committed."""
        self._inputs_with_delay: dict[str, dict[str, WatermarkSource]] = {}
        """The inputs that are sources of the watermark, for each operator (by uid) that this driver has applied."""
        self._all_claimed = False
        self._frame = frame
        self._ledger = ledger
        self._clock = clock
        self._reports = ProgressReports(on_progress)
        self._make_batch = make_batch

    @contextmanager
    def dry_run(self) -> Iterator[Any]:
        """The next micro-batch, for checks only: nothing runs in it."""
        base = self._ledger.latest()
        number = 0 if base is None else base.batch_id + 1
        batch = self._make_batch(self._frame, number, base, self._clock.now_us(), final=False)
        try:
            yield batch
        finally:
            batch.close()

    def run(self, function: Callable[[Any], object], batch_id: int, final: bool, schema: str) -> None:
        """Run ``function`` with micro-batch ``batch_id`` and commit it. ``schema``: the schema of its rows.

        Raises what the function raises, JobError and CheckpointError; nothing is committed then.
        """
        if self.now is not None:
            raise JobError(
                f"job '{self._frame.job_id}' already runs a micro-batch; a job serves one query, and its own function "
                "cannot call it"
            )
        self.now = batch_id, time.perf_counter()
        self.last_error = None
        try:
            self._run(function, batch_id, final, schema)
        except BaseException as error:
            error.add_note(
                f"in micro-batch {batch_id} of job '{self._frame.job_id}', which is replayed at the next start"
            )
            self.last_error = error
            raise
        finally:
            self.now = None

    def _run(self, function: Callable[[Any], object], batch_id: int, final: bool, schema: str) -> None:
        started = time.perf_counter()
        base = self._ledger.base_of(batch_id)
        self.schema = schema
        origin = self._ledger.origin_of(base)
        start = self._ledger.start_of(batch_id, self._clock.now_us(), final)
        batch = self._make_batch(self._frame, batch_id, base, start, final, origin)
        batch.before_writing = lambda: self._ledger.note_start(batch_id, batch.processing_time, final)
        batch.dropped_since = self._ledger.dropped
        try:
            called = time.perf_counter()
            with self._frame.executor.micro_batch(batch_id, batch.stateless):
                function(batch)
            returned = time.perf_counter()
            if batch.failed_uids:
                raise JobError(
                    f"batch {batch_id}: apply failed for {batch.failed_uids} but the function returned; do not catch "
                    "the error, so that the batch is not committed without this operator"
                )
            self._commit(batch, base)
        finally:
            batch.close()
        ended = time.perf_counter()
        self._report(batch, ended - started, returned - called, ended - returned)

    def _commit(self, batch: MicroBatch[R], base: Manifest | None) -> None:
        operators = _carried(base, batch.stateless.keys())
        dropped = self._dropped(batch, operators)
        operators = {uid: stored for uid, stored in operators.items() if uid not in dropped}
        idle = sorted(operators.keys() - batch.applied.keys())
        if idle:
            _log.warning(
                "job '%s', batch %d: operators %s have state but were not applied; their state is kept",
                self._frame.job_id,
                batch.batch_id,
                idle,
            )
        if base is not None:
            operators |= {uid: left_out(operators[uid], base) for uid in idle}
        for uid, applied in batch.applied.items():
            schemas = {**applied.declared.schemas, BATCH_SCHEMA: self.schema or ""}
            operators[uid] = applied.stored(batch.batch_id, applied.declared._replace(schemas=schemas))
        sources = self._sources(batch, base)
        check_watermark(batch.applied, sources.reached)
        graph = batch.graph if batch.graph is not None else batch.graph_before
        self.committed = self._ledger.commit(
            batch.batch_id,
            base,
            batch.watermark,
            batch.processing_time,
            sources,
            operators,
            batch.final,
            graph,
        )
        self._all_claimed = True

    def _dropped(self, batch: MicroBatch[R], stored: Mapping[str, OperatorManifest]) -> Collection[str]:
        """The operators to drop because the program no longer has them. Checked only in the first micro-batch, since a
        function may leave an operator out of a later one. Operators without state are dropped without a check."""
        if self._all_claimed:
            return ()
        superseded = set(batch.superseded) - batch.applied.keys()
        with_state = {uid for uid, one in stored.items() if one.has_state} - superseded
        dropped = check_claimed(with_state, batch.applied.keys(), self._frame.unclaimed_state)
        return dropped | (stored.keys() - with_state - batch.applied.keys())

    def _sources(self, batch: MicroBatch[R], base: Manifest | None) -> SourceTimes:
        """The event times that the sources of the watermark have reached: declared sources and inputs of operators.

        An operator may be left out of a micro-batch. Its inputs remain sources once this driver has applied it.
        """
        seen = dict(batch.event_times)
        for uid in batch.stateless:
            self._inputs_with_delay.pop(uid, None)
        for uid, applied in batch.applied.items():
            own = list(input_sources(uid, applied.delays, applied.records))
            self._inputs_with_delay[uid] = {name: source for name, source, _ in own}
            seen |= {name: time for name, _, time in own}
        declared = dict(batch.sources or {})
        for inputs in self._inputs_with_delay.values():
            declared |= inputs
        known = {} if base is None else base.sources
        if not batch.applied and not batch.stateless and batch.sources is None:
            # A function that has not applied anything yet gives no information about its inputs.
            declared |= {name: WatermarkSource(0) for name in known if name not in declared}
        gone = sorted(known.keys() - declared.keys())
        if gone:
            _log.warning(
                "job '%s', batch %d: the watermark no longer waits for %s, which no longer have a watermark_delay",
                self._frame.job_id,
                batch.batch_id,
                gone,
            )
        return advance_sources(base, declared, seen, batch.processing_time, self.committed is None)

    def on_progress(self, function: OnProgress) -> None:
        """Call ``function`` with the progress of each micro-batch from now on."""
        self._reports = ProgressReports(function)

    def record(self, progress: Progress) -> None:
        """Add the progress of a committed micro-batch to the history, and report it."""
        self.history.append(progress)
        self._reports.report(progress)

    def _report(
        self, batch: MicroBatch[R], seconds: float, function_seconds: float, commit_seconds: float
    ) -> None:
        assert self.committed is not None
        progress = Progress(
            job=self._frame.job_id,
            batch_id=batch.batch_id,
            started_at=started_text(batch.processing_time),
            final=batch.final,
            watermark_us=time_shown(batch.watermark),
            watermark_waits_for=list(watermark_holders(self.committed)),
            sources=[
                SourceProgress(name=name, watermark_us=time_shown(reached), idle=name in self.committed.idle)
                for name, reached in self.committed.sources.items()
            ],
            dropped={
                name: DroppedRows(rows=found.value or 0, example=found.example)
                for name, found in batch.dropped.items()
            },
            total_seconds=seconds,
            function_seconds=function_seconds,
            commit_seconds=commit_seconds,
            operators={uid: operator_progress(applied) for uid, applied in batch.applied.items()},
        )
        self.record(progress)


def _carried(base: Manifest | None, stateless: Collection[str]) -> dict[str, OperatorManifest]:
    """Operators of ``base``, except those that are stateless now."""
    known = {} if base is None else base.operators
    return {uid: stored for uid, stored in known.items() if uid not in stateless}
