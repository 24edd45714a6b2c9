"""What a table outside is to a sink.

Owns: ``Target``, ``Changes`` and the rule by which a repeated micro-batch is told from a wrong one.
Invariant: a target names the last micro-batch that it has of each writer, and has all of its changes.
Must not import pyspark.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import pyarrow as pa

from asyncstate.errors import JobError


class Changes(NamedTuple):
    """A micro-batch, at most one row a key: ``upserts`` have all columns, ``deletes`` those of the key, ``keys``."""

    upserts: pa.Table
    deletes: pa.Table
    keys: tuple[str, ...]


class Target(Protocol):
    """A table with a primary key that lets changes and the number of their micro-batch be written together."""

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """Raise SchemaError unless rows of ``schema`` can be written by ``keys``. Nothing is written."""

    def write(self, writer: str, batch_id: int, changes: Changes) -> bool:
        """Write the changes, and that ``batch_id`` is the last one of ``writer``; False if it has been already.

        Raises JobError if a later micro-batch of the writer has been written.
        """


def is_written(place: str, writer: str, batch_id: int, last: int | None) -> bool:
    """Whether ``batch_id`` is the ``last`` micro-batch that ``place`` has of the writer.

    Spark repeats the last one only: raises JobError for an older one."""
    if last is not None and batch_id < last:
        raise JobError(
            f"{place} has micro-batch {last} of writer '{writer}', and now comes {batch_id}: the job was rolled back, "
            "or started with a new checkpoint. Take back what the later ones have written and delete the writer's row "
            "from asyncstate_batches, or give the sink another writer name; nothing was written"
        )
    return batch_id == last
