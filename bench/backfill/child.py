"""One backfill in a process of its own, whose highest memory is then that of the backfill.

Owns: ``Backfill``, ``Measured``, and the program ``python -m bench.backfill.child``: a Backfill as JSON in, Measured
out.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from asyncstate.config import Config, Tuning, resolve
from asyncstate.operator import Operator
from asyncstate.runtime import read_state
from asyncstate.spark.task import settle_worker
from bench.job import Job
from bench.micro import CountPerKey
from bench.rows import INPUT
from operators import GroupAggregate, count, sum_

GRAINS: dict[str, Callable[[], Operator]] = {
    "bundle": lambda: GroupAggregate([count().alias("n"), sum_("value").alias("total")]),
    "record": CountPerKey,
}
_USUAL = Config().shares
_TUNING = Tuning(
    columns_bytes=_USUAL.columns,
    blocks_bytes=_USUAL.blocks,
    open_stores_bytes=_USUAL.open_stores,
    gathered_bytes=_USUAL.gathered,
    bundle_bytes=_USUAL.bundle,
)
"""Everything but the writes has what it usually has."""
_BATCH_ROWS = 10_000  # what Spark sends at a time
_SCATTERED = 2_654_435_761  # prime, so that its multiples meet each key once, far from the one before


class Backfill(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure: ``keys`` new keys, a row each, with ``write_cache`` as the configuration has it."""

    grain: str
    enabled: bool
    keys: int
    write_cache: str


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """``memory_bytes`` is by how much the process has grown at most; ``content`` names all that was stored.

    ``cpu_seconds`` are those of all threads of the process, RocksDB's among them.
    """

    seconds: float
    cpu_seconds: float
    commit_seconds: float
    memory_bytes: int
    write_cache_bytes: int
    spills: int
    content: str


def measure(task: Backfill) -> Measured:
    """Run the backfill as the first micro-batch of a job."""
    settle_worker()
    options = {
        "async-state.enabled": task.enabled,
        "async-state.memory": "1024gb",
        "async-state.cache-size": "128mb",
        "async-state.read-cache-size": "4mb",
        "async-state.write-cache-size": task.write_cache,
    }
    config = resolve(options, {}, _TUNING)
    with tempfile.TemporaryDirectory(prefix="asyncstate-backfill-") as folder:
        job = Job(Path(folder), GRAINS[task.grain](), config, INPUT)
        memory, cpu = _memory(), time.process_time()
        seconds = job.run(_batches(task.keys))
        memory, cpu = _memory() - memory, time.process_time() - cpu
        found = job.statistics
        digest = xxhash.xxh3_128()
        for key, value in read_state(job.spec(), 1):
            digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    return Measured(
        seconds=seconds,
        cpu_seconds=cpu,
        commit_seconds=found["commit_seconds"],
        memory_bytes=memory,
        write_cache_bytes=int(found["write_cache_bytes_peak"]),
        spills=int(found["spills"]),
        content=digest.hexdigest(),
    )


def _batches(keys: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, keys, _BATCH_ROWS):
        numbers = np.arange(start, min(start + _BATCH_ROWS, keys), dtype=np.int64)
        key = numbers * _SCATTERED % keys
        yield pa.RecordBatch.from_arrays([pa.array(key), pa.array(numbers)], schema=INPUT.schema)


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure(msgspec.json.decode(sys.argv[1], type=Backfill))))
