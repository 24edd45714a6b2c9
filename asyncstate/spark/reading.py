"""State as a DataFrame: a task for each partition restores it and decodes its entries.

Owns: ``read_state`` and the function that its tasks run.
Invariant: reading claims nothing and touches no store of the job, so the job may run meanwhile; each entry of the
version is returned once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from asyncstate.config import resolve
from asyncstate.errors import AsyncStateError, SchemaError
from asyncstate.offline import StateDecoder
from asyncstate.offline.inspection import Inspection, StatePartition, decoders, read_partition
from asyncstate.offline.json_text import json_texts
from asyncstate.spark.compatibility import arrow_schema, check_session, session_settings
from asyncstate.spark.exchange import spark_schema
from asyncstate.spark.task_errors import marking, own_mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_HEAD: Final = (
    pa.field("operator", pa.string()),
    pa.field("state", pa.string()),
    pa.field("kind", pa.string()),
    pa.field("version", pa.int64()),
    pa.field("partition", pa.int32()),
)
_MANY: Final = pa.schema(
    [
        *_HEAD,
        pa.field("key", pa.string()),
        pa.field("namespace", pa.int64()),
        pa.field("user_key", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("value", pa.string()),
        pa.field("ttl_stamp", pa.int64()),
    ]
)
_TEXTS: Final = ("key", "user_key", "value")

Columns = Callable[[StateDecoder, pa.RecordBatch], dict[str, pa.Array]]


def read_state(
    spark: SparkSession,
    checkpoint: str,
    uid: str | None = None,
    state: str | None = None,
    version: int | None = None,
    *,
    unpickle: bool = False,
) -> DataFrame:
    """The state in ``checkpoint`` (a folder or URI) at ``version``, by default the newest one: a row per entry.

    ``uid`` and ``state`` select; without them all operators' states and timers are read (the state ``@timers``).
    Columns: ``operator``, ``state``, ``kind``, ``version``, ``partition``; ``key``, a struct of the key columns;
    ``namespace``; ``user_key`` of a map, ``position`` of a list; ``value``; ``ttl_stamp``. Times that the framework
    adds are int64 microseconds. If only one state of one operator is read, its types are the declared ones; otherwise
    ``key``, ``user_key`` and ``value`` are JSON texts, and all columns are there.

    Pickled values are the stored bytes; with ``unpickle`` their ``repr``, which runs code chosen by anyone with write
    access to the checkpoint. Reading changes nothing; a task restores its partition into a separate folder below
    ``async-state.local-dir``, or the temporary folder. If the job deletes the version while it is read, reading fails.

    Raises CheckpointError and StateDeclarationError for what does not exist.
    """
    check_session(spark, "read_state")
    inspection = Inspection(checkpoint, resolve({}, session_settings(spark)))
    manifest = inspection.manifest(version)
    pieces = tuple(inspection.partitions(manifest, uid, state, unpickle=unpickle))
    chosen = {(piece.uid, spec.name) for piece in pieces for spec in piece.states}
    single = len(chosen) == 1
    schema = _typed_schema(decoders(pieces[0])[0]) if single else spark_schema(_MANY)
    task = ReadTask(pieces, single, arrow_schema(schema))
    numbers = spark.range(0, len(pieces), 1, max(1, len(pieces)))
    return numbers.mapInArrow(task, schema)


@dataclass(frozen=True)
class ReadTask:
    """``mapInArrow``'s function: rows are numbers of ``pieces``; ``wire`` is the schema Spark expects back."""

    pieces: tuple[StatePartition, ...]
    single: bool
    wire: pa.Schema
    mark: str = field(default_factory=own_mark)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the pieces. Raises AsyncStateError marked for the driver."""
        with marking(self.mark):
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from self._read(self.pieces[number])

    def _read(self, piece: StatePartition) -> Iterator[pa.RecordBatch]:
        for decoder, rows in read_partition(piece, piece.config.local_dir):
            count = rows.num_rows
            given: dict[str, Any] = dict(zip(rows.schema.names, rows.columns, strict=True))
            if not self.single:
                given |= {name: json_texts(given[name]) for name in _TEXTS if name in given}
            given |= {
                "operator": pa.repeat(piece.uid, count),
                "state": pa.repeat(decoder.state.name, count),
                "kind": pa.repeat(decoder.state.kind, count),
                "version": pa.repeat(pa.scalar(piece.version, pa.int64()), count),
                "partition": pa.repeat(pa.scalar(piece.partition, pa.int32()), count),
            }
            columns = [
                pa.nulls(count, field.type)
                if field.name not in given
                else _cast(given[field.name], field.type)
                for field in self.wire
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.wire)


def _typed_schema(decoder: StateDecoder) -> StructType:
    try:
        return spark_schema(pa.schema([*_HEAD, *decoder.schema]))
    except AsyncStateError:
        raise
    except Exception as error:
        raise SchemaError(
            f"{decoder.owner}: Spark has no counterpart of its types ({', '.join(map(str, decoder.schema))}): {error}; "
            "read it together with other states, as JSON texts, or with python -m asyncstate state show"
        ) from error


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """``column`` as ``wanted``; Spark's times have microseconds, so finer times are truncated."""
    return column if column.type.equals(wanted) else column.cast(wanted, safe=False)
