"""One operator on one partition without Spark, and its rows: what the benchmarks that compare state access run.

The rows of most of these benchmarks, ``INPUT``, have an int64 key and an int64 value. Invariant: a Job runs exactly
what a Spark task runs, from the open store to the uploaded delta and the end of compaction. Must not import Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from asyncstate.config import Config, Tuning, resolve
from asyncstate.driver.operator_manifests import Fingerprint, operator_after
from asyncstate.operator import MIN_WATERMARK, BundleOperator, InputSpec, Operator
from asyncstate.runtime import CommitRecord, InputBatch, TaskSpec, WorkerMemory, run_partitions, worker_memory
from asyncstate.runtime.declarations.checks import ordered_by
from asyncstate.runtime.partition.worker_memory import partition_key
from asyncstate.spark.python_task import settle_worker
from asyncstate.storage import KeyedStore, OperatorManifest, StorePool
from bench.processor_time import Spent
from operators import Deduplicate, GroupAggregate, count, sum_

JOB, UID = "bench", "op"
MODES = ("sync", "async")
INPUT = InputSpec(pa.schema([("key", pa.int64()), ("value", pa.int64())]), ("key",))
_BASE = "base.json"


def sliced(schema: pa.Schema, *columns: Any, rows: int = 100_000) -> list[pa.RecordBatch]:
    """The rows of these columns, ``rows`` in an Arrow batch."""
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return [whole.slice(start, rows) for start in range(0, len(whole), rows)]


def batches(keys: np.ndarray, rows: int = 100_000) -> list[pa.RecordBatch]:
    """A row a key, ``rows`` in an Arrow batch."""
    # Other values each time: an operator that finds nothing changed writes nothing.
    value = np.random.default_rng(int(keys[0])).integers(0, 1_000_000, len(keys))
    return sliced(INPUT.schema, keys, value, rows=rows)


def draws(state_keys: int, unique: int, seed: int) -> Iterator[np.ndarray]:
    """Again and again ``unique`` different keys of those below ``state_keys``."""
    random = np.random.default_rng(seed)
    while True:
        yield random.choice(state_keys, unique, replace=False).astype(np.int64)


def count_and_sum(value: str = "value") -> Operator:
    """What most of them run: the number of rows of a key and the sum of a column, at bundle grain."""
    return GroupAggregate([count().alias("n"), sum_(value).alias("total")])


def last_row() -> Operator:
    return Deduplicate(keep="last", time="processing")


def config_of(mode: str, options: Mapping[str, object] | None = None, tuning: Tuning | None = None) -> Config:
    """No snapshots, which are no part of what most of them measure; ``options`` of ``async-state``."""
    own: dict[str, object] = {"async-state.enabled": mode == "async", "async-state.snapshot-interval": 1000}
    own |= {f"async-state.{name}": value for name, value in (options or {}).items()}
    return resolve(own, {}, tuning or Tuning())


class _Base(msgspec.Struct, frozen=True):
    manifest: OperatorManifest
    batch_id: int


class Job:
    """Runs micro-batches through the real runtime, store and delta. ``resumed``: goes on where a Job in ``folder`` was
    when it stopped after ``leave``. ``config``, ``watermark`` and ``on_output``, which is given the output, may be
    replaced between micro-batches. The store is kept in ``local``, by default in ``folder``, next to the checkpoint;
    ``wrap_store`` and ``memory`` are as in ``run_partitions``."""

    def __init__(
        self,
        folder: Path,
        operator: Operator,
        config: Config,
        spec: InputSpec | Sequence[InputSpec] = INPUT,
        *,
        resumed: bool = False,
        local: Path | None = None,
        wrap_store: Callable[[KeyedStore], KeyedStore] | None = None,
        memory: WorkerMemory | None = None,
    ) -> None:
        settle_worker()
        self.config = config
        self.base: OperatorManifest | None = None
        self.batch_id = 0
        if resumed:
            left = msgspec.json.decode((folder / _BASE).read_bytes(), type=_Base)
            self.base, self.batch_id = left.manifest, left.batch_id
        self.statistics: dict[str, float] = {}
        """Statistics and peaks of the last micro-batch."""
        self.on_output: Callable[[pa.RecordBatch], object] = lambda _: None
        self._folder, self._local, self._operator = folder, local or folder / "local", operator
        inputs = (spec,) if isinstance(spec, InputSpec) else tuple(spec)
        self._inputs = ordered_by(UID, operator, inputs) if isinstance(operator, BundleOperator) else inputs
        self._wrap_store = wrap_store
        self._memory = worker_memory() if memory is None else memory
        self.watermark = self._previous_watermark = MIN_WATERMARK

    @property
    def stores(self) -> StorePool:
        """The stores that stay open between micro-batches; who reads state by them leaves what is cached of it."""
        return self._memory.stores

    def run(self, batches: Iterable[pa.RecordBatch | InputBatch]) -> float:
        """Run and commit one micro-batch; the seconds it took, from the open store to the last compaction's end."""
        record = None
        given = (each if isinstance(each, InputBatch) else InputBatch(each) for each in batches)
        for out in run_partitions(self.spec(), range(1), given, self._wrap_store, self._memory):
            if isinstance(out, CommitRecord):
                record = out
            else:
                self.on_output(out)
        assert record is not None
        self.base = operator_after(UID, "Operator", self.batch_id, 1, [record], Fingerprint({}, {}))
        self.batch_id += 1
        self._previous_watermark = self.watermark
        self.statistics = record.statistics | record.peaks
        return sum(self.statistics[name] for name in ("run_seconds", "commit_seconds", "compaction_seconds"))

    def timed(self, batches: Iterable[pa.RecordBatch | InputBatch]) -> Spent:
        began = time.process_time()
        return Spent(self.run(batches), time.process_time() - began)

    def close(self) -> None:
        """Close the store, which stays open between micro-batches, and forget what is cached of it, which has its share
        of the room for as long as the process lives. The next micro-batch opens and reads it again."""
        self._memory.stores.close(self._local)
        for cache in (self._memory.entries, self._memory.columns):
            cache.export_cache(partition_key(self.spec(), range(1)))

    def leave(self) -> None:
        """Write down where a resumed Job goes on."""
        assert self.base is not None
        (self._folder / _BASE).write_bytes(msgspec.json.encode(_Base(self.base, self.batch_id)))

    def spec(self) -> TaskSpec:
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
