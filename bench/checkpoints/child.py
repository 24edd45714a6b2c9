"""One recovery in a process of its own, as on a worker that has just been started: no local store, no cached blocks.

Owns: ``Recovery``, ``Recovered``, and the program ``python -m bench.checkpoints.child``: a Recovery as JSON in,
Recovered out. Starting the interpreter and its imports are not counted.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import xxhash

from asyncstate.runtime import stores as task_stores
from asyncstate.spark.task import settle_worker
from asyncstate.storage import LocalFiles, Retries
from bench.checkpoints.driven import BATCH_ROWS, NEVER, aggregate, settings
from bench.job import Job, JobBase
from bench.processor_time import Clocks
from bench.rows import INPUT, batches, draws

BASE = "base.json"


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What to recover from ``folder``. ``micro_batch``: and run a first micro-batch, else read one key.

    ``copied``: copy files out of the checkpoint as from another disk, where otherwise they are linked.
    """

    folder: str
    state_keys: int
    changed_keys: int
    seed: int
    copied: bool
    micro_batch: bool


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """``digest`` is of the output of the micro-batch, if there was one; ``cpu_seconds`` of all threads."""

    seconds: float
    cpu_seconds: float
    digest: str


class CopiedFiles(LocalFiles):
    """A folder whose files are copied out."""

    def get_file(self, name: str, local: str | Path) -> None:
        """Copy a file, reading and writing its bytes."""
        # Not shutil.copyfile, which lets some file systems share the blocks.
        with open(self.root / name, "rb") as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def copied_files(place: str, retries: Retries | None = None) -> CopiedFiles:
    """In place of ``checkpoint_files``."""
    return CopiedFiles(place)


def recover(task: Recovery) -> Recovered:
    """Do what ``task`` says, in a folder for local stores that did not exist."""
    settle_worker()
    source = Path(task.folder)
    base = msgspec.json.decode((source / BASE).read_bytes(), type=JobBase)
    files = (
        patch.object(task_stores, "checkpoint_files", copied_files)
        if task.copied
        else contextlib.nullcontext()
    )
    with tempfile.TemporaryDirectory(prefix="recovered-", dir=source.parent) as local, files:
        output = Digest()
        job = Job(
            source,
            aggregate(),
            settings(source, snapshot_interval=NEVER),
            INPUT,
            base.manifest,
            base.batch_id,
            local=Path(local),
            on_output=output.add,
        )
        return _micro_batch(task, job, output) if task.micro_batch else _first_read(job)


def _first_read(job: Job) -> Recovered:
    clocks = Clocks()
    with task_stores.open_store(job.spec(), 0) as opened:
        if not opened.store.scan(b"", None, 1):
            raise AssertionError("the recovered state is empty")
        return Recovered(**clocks.spent()._asdict(), digest="")


def _micro_batch(task: Recovery, job: Job, output: Digest) -> Recovered:
    rows = next_rows(task.state_keys, task.changed_keys, task.seed)
    clocks = Clocks()
    job.run(rows)
    return Recovered(**clocks.spent()._asdict(), digest=output.hexdigest())


def next_rows(state_keys: int, changed_keys: int, seed: int) -> list[pa.RecordBatch]:
    """The rows of the micro-batch after the last one that is stored."""
    return batches(next(draws(state_keys, changed_keys, seed + 1)), BATCH_ROWS)


class Digest:
    """A checksum over output."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in a batch of output."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self._digest.update(sink.getvalue())

    def hexdigest(self) -> str:
        """Of all output so far."""
        return self._digest.hexdigest()


def main() -> None:
    """Read a Recovery from the first argument; print what was recovered as JSON."""
    print(msgspec.json.encode(recover(msgspec.json.decode(sys.argv[1], type=Recovery))).decode())


if __name__ == "__main__":
    main()
