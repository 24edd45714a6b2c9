"""Operator chaining: operators with the same key fused into one task.

Owns: ``Link`` and ``run_chain``, which pass an operator's rows to the next operator, which has the same partitions.
Invariant: an operator has finished, its store is released and its commit record is known before the next one starts;
rows keep the order in which they were emitted.
Must not import pyspark: workers import this module.

Source: the operator chains of Flink's job graphs.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from asyncstate.driver.sent_columns import payload_of
from asyncstate.errors import JobError, StoreError

if TYPE_CHECKING:
    from asyncstate.runtime.rows.output_pipeline import OutputPipeline
    from asyncstate.runtime.task_spec import CommitRecord, InputBatch, OutBatch, TaskSpec

RunPartitions = Callable[["TaskSpec", range, "Iterator[InputBatch]"], "Iterator[OutBatch | CommitRecord]"]
REPORT = "nothing was committed; restart the query, and report this if it happens again"


@dataclass(frozen=True)
class Link:
    """One operator of a chain; ``after`` turns its main output into the rows that leave it."""

    spec: TaskSpec
    after: OutputPipeline | None = None


def run_chain(
    links: Sequence[Link], partitions: range, rows: Iterator[InputBatch], run: RunPartitions
) -> Generator[OutBatch | CommitRecord, None, None]:
    """Run the operators of ``links`` over ``rows`` of ``partitions``; yields the output of the last one, then for each
    operator a commit record per partition. Operators before the last one have no side outputs."""
    records: list[CommitRecord] = []
    with ExitStack() as spools:
        for link, following in itertools.pairwise(links):
            spool = spools.enter_context(closing(Spool(following.spec)))
            for out in _output(link, partitions, rows, run, records):
                spool.add(out)
            rows = spool.rows()
        yield from _output(links[-1], partitions, rows, run, records)
    yield from records


def _output(
    link: Link,
    partitions: range,
    rows: Iterator[InputBatch],
    run: RunPartitions,
    records: list[CommitRecord],
) -> Iterator[OutBatch]:
    """Run one operator to its end; yields its output and appends its commit records to ``records``."""
    from asyncstate.runtime.task_spec import CommitRecord, SideBatch

    before = len(records)
    for out in run(link.spec, partitions, rows):
        if isinstance(out, CommitRecord):
            records.append(out)
        else:
            yield out if isinstance(out, SideBatch) or link.after is None else link.after(out)
    if len(records) - before != len(partitions):
        raise JobError(
            f"operator '{link.spec.uid}': {len(records) - before} commit records of the partitions "
            f"{partitions[0]} to {partitions[-1]}; {REPORT}"
        )


class Spool:
    """The input rows of the operator of ``spec``: in memory, and beyond the memory share of buffered rows in a
    temporary file without a name, which the system deletes when the process ends."""

    def __init__(self, spec: TaskSpec) -> None:
        self._spec = spec
        self._limit_bytes = spec.config.shares.gathered
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with suppress(OSError):  # on a full disk it writes what is left once more
                self._file.close()

    def add(self, out: OutBatch) -> None:
        """Append rows."""
        assert isinstance(out, pa.RecordBatch)  # operators with side outputs are not chained
        if out.num_rows:
            self._batches.append(out)
            self._bytes += out.nbytes
            if self._bytes > self._limit_bytes:
                self._write()

    def rows(self) -> Iterator[InputBatch]:
        """The rows in order; can be called once."""
        from asyncstate.runtime.task_spec import InputBatch

        spec = self._spec.inputs[0]
        yield from (InputBatch(*payload_of(spec, batch)) for batch in self._written())
        while self._batches:
            yield InputBatch(*payload_of(spec, self._batches.popleft()))

    def _write(self) -> None:
        if self._file is None:
            self._file = _open_file(self._spec)
        with self._spilling():
            if self._writer is None:
                self._writer = pa.ipc.new_stream(self._file, self._batches[0].schema)
            while self._batches:
                self._writer.write_batch(self._batches.popleft())
        self._bytes = 0

    def _spilling(self) -> AbstractContextManager[None]:
        from asyncstate.runtime.rows.input_buffer import spilling

        place = self._spec.local_dir or tempfile.gettempdir()
        return spilling(f"input rows of operator '{self._spec.uid}'", place)

    def _written(self) -> Iterator[pa.RecordBatch]:
        if self._file is None or self._writer is None:
            return
        with self._spilling():
            self._writer.close()
            self._file.flush()
        self._file.seek(0)
        yield from pa.ipc.open_stream(self._file)


def _open_file(spec: TaskSpec) -> IO[bytes]:
    try:
        if spec.local_dir is not None:
            Path(spec.local_dir).mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(prefix="asyncstate-chain-", dir=spec.local_dir)
    except OSError as error:
        raise StoreError(
            f"operator '{spec.uid}': cannot create a file for input rows that exceed memory: {error}. Check the "
            "disk's space and permissions, or set async-state.local-dir to another folder"
        ) from error
