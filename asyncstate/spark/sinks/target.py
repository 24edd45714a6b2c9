"""What a table outside is to a sink.

Owns: ``Target``, ``Changes``, the rule by which a repeated micro-batch is told from a wrong one, and the refusals that
targets have in common.
Invariant: a target names the last micro-batch that it has of each writer, and has all of its changes.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa

from asyncstate.errors import ConfigurationError, JobError, SchemaError


class Changes(NamedTuple):
    """A micro-batch, at most one row a key: ``upserts`` have all columns, ``deletes`` those of the key, ``keys``."""

    upserts: pa.Table
    deletes: pa.Table
    keys: tuple[str, ...]

    def marked(self, name: str, came: object, went: object) -> pa.Table:
        """All rows, with nulls beside the key of what goes; the column ``name`` says which ``came``, which ``went``."""
        parts = [
            rows.append_column(name, pa.repeat(value, rows.num_rows))
            for rows, value in ((self.upserts, came), (self.deletes, went))
        ]
        return pa.concat_tables(parts, promote_options="default")


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
            "or started with a new checkpoint. Take back what the later ones have written and what the target keeps of "
            "the writer (docs/sinks.md), or give the sink another writer name; nothing was written"
        )
    return batch_id == last


def check_columns(place: str, schema: pa.Schema, keys: Sequence[str], known: Collection[str]) -> None:
    """Raise SchemaError unless ``place``, with the columns ``known``, has all of ``schema``, and this the ``keys``."""
    missing = [name for name in keys if name not in schema.names]
    if missing or not keys:
        raise SchemaError(
            f"{place}: key column '{', '.join(missing)}' is none of the rows' columns ({', '.join(schema.names)}); "
            "name those of its primary key"
        )
    for name in schema.names:
        if name not in known:
            raise SchemaError(
                f"{place} has no column '{name}'; its columns are {', '.join(known)}: drop or rename it before the "
                "sink, or add it to the table"
            )


def cast_to(place: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """``rows`` with the types that ``schema`` has for their columns.

    Raises SchemaError where a type does not become the other, or a value does not fit."""
    try:
        return rows.cast(pa.schema([schema.field(name).with_nullable(True) for name in rows.column_names]))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"{place} does not take rows of {_types(rows.schema)}: {error}; cast them before the sink; "
            "nothing was written"
        ) from error


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


@contextmanager
def extra(name: str, owner: str) -> Iterator[None]:
    """Around the imports of what ``asyncstate[name]`` brings; raises ConfigurationError without it."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"{owner} needs packages that are not there ({error}); install them: pip install 'asyncstate[{name}]'"
        ) from error
