"""The job's side of the checkpoint: the manifest that a micro-batch starts from, and its commit.

Owns: ``CommitLog``; the only module of this package that reads or writes manifests; ``StartedBatch``.
Invariant: batch N starts from the manifest of batch N-1 and from no other, and once a sink may have its rows always at
the same time.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from asyncstate.config import Config
from asyncstate.driver.operator_manifests import (
    check_key_groups,
    is_changed_by_command,
    without_dropped,
)
from asyncstate.driver.write_marks import Origin
from asyncstate.errors import CheckpointCorruptionError, CheckpointError, JobError
from asyncstate.runtime import SourceTimes
from asyncstate.storage import Checkpoint, GraphManifest, Manifest, OperatorManifest, checkpoint_files

BATCH_SCHEMA = "batch"
"""The key in an operator's schema texts for the JSON of the micro-batch's schema; ``finish`` needs it after a
restart."""

_REPLAYABLE_VERSIONS = 2
_WRITING: Final = "writing/"


class StartedBatch(msgspec.Struct, frozen=True):
    """A micro-batch whose rows a sink may have, when it started (microseconds), and whether ``finish`` started it."""

    batch_id: int
    processing_time: int
    final: bool = False


class CommitLog:
    """Reads and writes the manifests of one job.

    Raises CheckpointError for a checkpoint of another job, ConfigurationError for a different number of key
    groups.
    """

    def __init__(self, config: Config, job_id: str, first_batch_id: int) -> None:
        assert config.checkpoint_dir is not None
        files = checkpoint_files(config.checkpoint_dir)
        self.job_id = job_id
        self.files = files
        """The files of the checkpoint."""
        self.place = files.place
        """The location with which tasks open the checkpoint; it may contain credentials."""
        self.folder = files.shown
        self._config = config
        self._first_batch_id = first_batch_id
        self._checkpoint = Checkpoint(files)
        self._claimed = False
        self._started: StartedBatch | None = None
        self._older_starts: list[str] = []
        self.dropped: frozenset[str] = frozenset()
        """The operators that the base of a repeated batch had, and the version of that batch no longer has."""
        self._check_is_ours(self.latest())

    def _check_is_ours(self, latest: Manifest | None) -> None:
        if latest is None:
            return
        if latest.job_id != self.job_id:
            raise CheckpointError(
                f"checkpoint {self.folder} belongs to job '{latest.job_id}', not to '{self.job_id}'; give "
                f"StreamingJob(name='{latest.job_id}') to continue it, or another checkpoint folder"
            )
        check_key_groups(self.folder, latest, self._config)

    def latest(self) -> Manifest | None:
        """The newest committed manifest."""
        return self._checkpoint.latest()

    def base_of(self, batch_id: int) -> Manifest | None:
        """The manifest that ``batch_id`` starts from, None for the first batch.

        Raises JobError for a batch out of order, or to be repeated although a command has changed its version;
        CheckpointError if the job has been finished, or the checkpoint is another job's by now. The first call
        claims the checkpoint: from then on no earlier driver can commit.
        """
        if not self._claimed:
            # First: a batch that cannot run must not fence off a driver.
            self._check_follows(batch_id, self.latest())
            self._checkpoint.claim(self.job_id)
            self._checkpoint.files.sweep()  # files of killed writers; running ones have an hour
            self._find_started()
            self._claimed = True
        self.dropped = frozenset()
        latest = self.latest()
        self._check_follows(batch_id, latest)
        if latest is None or batch_id == latest.batch_id + 1:
            return latest
        # Spark replays a batch if Spark's own commit of it failed; we commit it again over the same base.
        if latest.base < 0:
            return None
        base = self._checkpoint.read(latest.base)
        if is_changed_by_command(latest, base):
            raise JobError(
                f"job '{self.job_id}': Spark repeats batch {batch_id}, but `asyncstate state migrate` has changed "
                f"version {batch_id}, and the batch would start from version {base.batch_id} without the change. "
                f"Run `python -m asyncstate state rollback CHECKPOINT {base.batch_id}`, then the same command "
                "again, and start the query"
            )
        base, self.dropped = without_dropped(base, latest)
        return base

    def _check_follows(self, batch_id: int, latest: Manifest | None) -> None:
        """Raise the errors of ``base_of`` for a batch that neither follows nor repeats ``latest``."""
        if latest is None:
            if batch_id != self._first_batch_id:
                raise JobError(
                    f"job '{self.job_id}': Spark runs batch {batch_id}, but the checkpoint {self.folder} is empty. "
                    "Was it deleted? Restore it, start the query with a new Spark checkpoint, or give "
                    f"StreamingJob(first_batch_id={batch_id}) to start with empty state here"
                )
            return
        self._check_is_ours(latest)
        if latest.final:
            raise CheckpointError(
                f"job '{self.job_id}' was finished at batch {latest.batch_id}: its timers and windows have "
                "fired; start a new job with a new checkpoint folder"
            )
        if batch_id not in (latest.batch_id, latest.batch_id + 1):
            raise JobError(
                f"job '{self.job_id}': Spark runs batch {batch_id}, but the checkpoint {self.folder} is at batch "
                f"{latest.batch_id}; {_way_out(batch_id, latest.batch_id)}"
            )

    def start_of(self, batch_id: int, now_us: int, final: bool = False) -> int:
        """When ``batch_id`` starts, microseconds: now; but if a sink may have its rows from an earlier attempt, when
        that one started. At another time the batch could have other rows, and the sink, which has it, takes none. Call
        ``base_of`` first. Raises JobError if the earlier attempt was of the query, and this one is of ``finish``, or
        the reverse.
        """
        started = self._started
        if started is None or started.batch_id != batch_id:
            return now_us
        if started.final != final:
            who, way_out = (
                ("the query", "start the query, which repeats it, and call finish() when it has ended")
                if final
                else ("finish()", "call finish() again, and start a new job for new rows")
            )
            raise JobError(
                f"job '{self.job_id}': {who} did not commit batch {batch_id}, whose rows a sink may have: it would "
                f"take no others with this number; {way_out}. If no sink has rows of it, delete {_WRITING} in "
                f"{self.folder} and start the program again instead"
            )
        return started.processing_time

    def note_start(self, batch_id: int, processing_time: int, final: bool = False) -> None:
        """Remember when ``batch_id`` started, before a sink gets its rows. Raises CheckpointError; ConcurrentJobError
        if another driver has claimed the checkpoint.

        A claimant lists the notes after its claim, and here the claims are listed after the note: of two drivers at
        least one sees the other. Otherwise the later one would repeat the batch at another time.
        """
        started = StartedBatch(batch_id, processing_time, final)
        if started == self._started:
            return
        name = f"{_WRITING}{self._checkpoint.epoch:010d}.json"
        self.files.put_bytes(name, msgspec.json.encode(started))
        self._checkpoint.check_owner()
        self._started = started
        with suppress(CheckpointError):  # the next driver tries again
            older, self._older_starts = self._older_starts, []
            self.files.delete_files(older)

    def _find_started(self) -> None:
        """Read what the last driver has noted. A driver that was fenced off may still note something, under its own
        epoch."""
        names = self.files.list(_WRITING)
        if not names:
            return
        self._older_starts = names
        try:
            self._started = msgspec.json.decode(self.files.get_bytes(names[-1]), type=StartedBatch)
        except msgspec.MsgspecError as error:
            raise CheckpointCorruptionError(
                f"checkpoint file {names[-1]} cannot be read: {error}. It has the time of the micro-batch that a sink "
                "may have; delete it to repeat that micro-batch at the present time"
            ) from error

    def origin_of(self, base: Manifest | None) -> Origin:
        """The origin of the micro-batch over ``base``, by which a sink distinguishes writes; call ``base_of`` first."""
        start = self._checkpoint.start
        return Origin(self.job_id, start.checkpoint_id, start.driver, start.earlier, base is None)

    def commit(
        self,
        batch_id: int,
        base: Manifest | None,
        watermark: int,
        processing_time: int,
        sources: SourceTimes,
        operators: Mapping[str, OperatorManifest],
        final: bool,
        graph: GraphManifest | None = None,
    ) -> Manifest:
        """Commit a batch as the newest version; returns its manifest. Raises ConcurrentJobError after a takeover by
        another driver."""
        manifest = Manifest(
            job_id=self.job_id,
            batch_id=batch_id,
            base=base.batch_id if base is not None else -1,
            max_parallelism=self._config.max_parallelism,
            operators=dict(operators),
            watermark=watermark,
            processing_time=processing_time,
            sources=sources.reached,
            heard=sources.heard,
            idle=sources.idle,
            final=final,
            graph=graph,
        )
        self._checkpoint.commit(manifest)
        # The newest batch can be replayed only while its base version exists.
        self._checkpoint.retain(max(self._config.retained_versions, _REPLAYABLE_VERSIONS))
        return manifest


def batch_schema(manifest: Manifest | None) -> str | None:
    """JSON of the schema of the micro-batch that ``manifest`` committed; None if it had no operator."""
    operators = manifest.operators.values() if manifest is not None else ()
    return next((op.schema[BATCH_SCHEMA] for op in operators if BATCH_SCHEMA in op.schema), None)


def _way_out(batch_id: int, newest: int) -> str:
    if batch_id > newest:
        return (
            "the batches in between are missing here; use the checkpoint folder that belongs to this query's Spark "
            "checkpoint"
        )
    return (
        "only the newest batch can be run again; use the Spark checkpoint that belongs to this checkpoint folder, or "
        "start both from new ones"
    )
