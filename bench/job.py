"""One operator on one partition without Spark: what the benchmarks that compare state access run.

Owns: ``Job`` and ``JobBase``.
Invariant: a Job runs exactly what a Spark task runs, from the open store to the uploaded delta and the end of
compaction.
Must not import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from asyncstate.config import Config
from asyncstate.driver.operator_manifests import Fingerprint, operator_after
from asyncstate.operator import MIN_WATERMARK, BundleOperator, InputSpec, Operator
from asyncstate.runtime import (
    CommitRecord,
    InputBatch,
    TaskSpec,
    WorkerMemory,
    ordered_by,
    run_partition,
    worker_memory,
)
from asyncstate.runtime.partition.worker_memory import partition_key
from asyncstate.storage import KeyedStore, OperatorManifest, StorePool
from bench.processor_time import Spent

JOB, UID = "bench", "op"


class JobBase(msgspec.Struct, frozen=True):
    """Where another process can go on: what a Job left, and the batch id that comes next."""

    manifest: OperatorManifest
    batch_id: int


class Job:
    """Runs micro-batches through the real runtime, store and delta.

    ``base`` is the ``base`` of another Job over a copy of the folder, None for empty state.
    ``config`` and ``watermark`` may be replaced between micro-batches. The store is kept in ``local``, by default in
    ``folder``, next to the checkpoint; ``on_output`` gets the output; ``wrap_store`` and ``memory`` are as in
    ``run_partition``.
    """

    def __init__(
        self,
        folder: Path,
        operator: Operator,
        config: Config,
        spec: InputSpec | Sequence[InputSpec],
        base: OperatorManifest | None = None,
        batch_id: int = 0,
        local: Path | None = None,
        on_output: Callable[[pa.RecordBatch], object] | None = None,
        wrap_store: Callable[[KeyedStore], KeyedStore] | None = None,
        memory: WorkerMemory | None = None,
    ) -> None:
        self.config = config
        self.base = base
        self.batch_id = batch_id
        self.statistics: dict[str, float] = {}
        """Statistics and peaks of the last micro-batch."""
        self._folder = folder
        self._local = local or folder / "local"
        self.on_output = on_output
        self._operator = operator
        inputs = (spec,) if isinstance(spec, InputSpec) else tuple(spec)
        self._inputs = ordered_by(UID, operator, inputs) if isinstance(operator, BundleOperator) else inputs
        self._store_through = wrap_store
        self._memory = worker_memory() if memory is None else memory
        self.watermark = self._previous_watermark = MIN_WATERMARK

    @property
    def stores(self) -> StorePool:
        """The stores that stay open between micro-batches; who reads state by them leaves what is cached of it."""
        return self._memory.stores

    def run(self, batches: Iterable[pa.RecordBatch | InputBatch]) -> float:
        """Run and commit one micro-batch; the seconds it took, from the open store to the last compaction's end."""
        record = None
        for out in run_partition(
            self.spec(), 0, map(_input_batch, batches), self._store_through, self._memory
        ):
            if isinstance(out, CommitRecord):
                record = out
            elif self.on_output is not None:
                self.on_output(out)
        assert record is not None
        self.base = operator_after(UID, "Operator", self.batch_id, 1, [record], Fingerprint({}, {}))
        self.batch_id += 1
        self._previous_watermark = self.watermark
        self.statistics = record.statistics | record.peaks
        return sum(self.statistics[name] for name in ("run_seconds", "commit_seconds", "compaction_seconds"))

    def timed(self, batches: Iterable[pa.RecordBatch | InputBatch]) -> Spent:
        """As ``run``, with the processor time of this process."""
        began = time.process_time()
        return Spent(self.run(batches), time.process_time() - began)

    def close(self) -> None:
        """Close the store, which stays open between micro-batches, and forget what is cached of it, which has its share
        of the room for as long as the process lives. The next micro-batch opens and reads it again."""
        self._memory.stores.close(self._local)
        for cache in (self._memory.entries, self._memory.columns):
            cache.export_cache(partition_key(self.spec(), 0))

    def spec(self) -> TaskSpec:
        """What the next micro-batch runs."""
        return TaskSpec(
            job_id=JOB,
            uid=UID,
            operator=self._operator,
            inputs=self._inputs,
            config=self.config,
            parallelism=1,
            max_parallelism=self.config.max_parallelism,
            batch_id=self.batch_id,
            base_version=self.batch_id - 1,
            base=self.base,
            watermark=self.watermark,
            previous_watermark=self._previous_watermark,
            processing_time=0,
            checkpoint=str(self._folder / "checkpoint"),
            local_dir=str(self._local),
        )


def _input_batch(batch: pa.RecordBatch | InputBatch) -> InputBatch:
    return batch if isinstance(batch, InputBatch) else InputBatch(batch)
