"""The interface of an external table that a sink writes to.

Owns: ``Target``, ``TargetChanges``, and the checks that targets have in common.
Invariant: a target names the last micro-batch that it has of each writer, and has all of its changes.
Must not import pyspark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.driver.write_marks import UNKNOWN, Origin
from asyncstate.errors import ConfigurationError, OperatorError, SchemaError
from asyncstate.spark.sinks.column_checks import keeps


class TargetChanges(NamedTuple):
    """A micro-batch, at most one row per key: ``upserts`` have all columns, ``deletes`` those of the key, ``keys``.

    Without ``keys`` every row of ``upserts`` is appended, and ``deletes`` is empty.
    """

    upserts: pa.Table
    deletes: pa.Table
    keys: tuple[str, ...]

    @classmethod
    def appended(cls, rows: pa.Table) -> TargetChanges:
        """Rows that have no key and are all appended."""
        return cls(rows, rows.slice(0, 0).select([]), ())

    def marked(self, name: str, came: object, went: object) -> pa.Table:
        """All rows, with nulls outside the key of deleted ones; the column ``name`` is ``came`` for upserts, ``went``
        for deletes."""
        parts = [
            rows.append_column(name, pa.repeat(value, rows.num_rows))
            for rows, value in ((self.upserts, came), (self.deletes, went))
        ]
        return pa.concat_tables(parts, promote_options="default")


class AppendTarget(Protocol):
    """A table, folder or log that can append rows and the number of their micro-batch together."""

    def check_append(self, schema: pa.Schema) -> None:
        """Raise SchemaError unless rows of ``schema`` can be appended. Nothing is written."""

    def append(self, writer: str, batch_id: int, rows: pa.Table, origin: Origin = UNKNOWN) -> bool:
        """Append the rows, and that ``batch_id`` of ``origin`` is the last one of ``writer``, together; False if it has
        been written already. Raises JobError if this micro-batch does not follow the one that the target has."""


class Target(Protocol):
    """A table with a primary key that can write changes and the number of their micro-batch together."""

    def check(self, schema: pa.Schema, keys: tuple[str, ...]) -> None:
        """Raise SchemaError unless rows of ``schema`` can be written by ``keys``. Nothing is written."""

    def write(self, writer: str, batch_id: int, changes: TargetChanges, origin: Origin = UNKNOWN) -> bool:
        """Write the changes, and that ``batch_id`` of ``origin`` is the last one of ``writer``, together; False if it
        has been written already, as ``is_written`` decides.

        Raises JobError if this micro-batch does not follow the one that the target has.
        """


def check_keys(place: str, schema: pa.Schema, keys: Sequence[str]) -> None:
    """Raise SchemaError unless there are ``keys``, and ``schema`` has all of them."""
    missing = [name for name in keys if name not in schema.names]
    if missing or not keys:
        raise SchemaError(
            f"{place}: key column '{', '.join(missing)}' is not one of the rows' columns ({', '.join(schema.names)}); "
            "name the columns of its primary key"
        )


def check_columns(place: str, schema: pa.Schema, known: Collection[str]) -> None:
    """Raise SchemaError unless ``place``, with the columns ``known``, has all of ``schema``."""
    for name in schema.names:
        if name not in known:
            raise SchemaError(
                f"{place} has no column '{name}'; its columns are {', '.join(known)}: drop or rename it before the "
                "sink, or add it to the table"
            )


def check_types(place: str, schema: pa.Schema, known: pa.Schema) -> None:
    """Raise SchemaError unless each column of ``known`` preserves the values of the column of ``schema`` with its name,
    and ``known`` requires no other column."""
    for field in schema:
        column = known.field(field.name)
        if not keeps(field.type, column.type):
            raise SchemaError(
                f"{place}: column '{field.name}' of type {field.type} does not fit {column.type}, which cannot hold "
                "all of its values; cast it before the sink, or change the column"
            )
    lacking = [field.name for field in known if not field.nullable and field.name not in schema.names]
    if lacking:
        raise SchemaError(
            f"{place}: column '{lacking[0]}' is required, and the rows do not have it; add it before the sink"
        )


def cast_to(place: str, rows: pa.Table, known: pa.Schema, *, required: bool = False) -> pa.Table:
    """``rows`` with the types that ``known`` has for their columns; ``required``: also with its nullability.

    Raises OperatorError for a value that does not fit, and for a null that is not allowed.
    """
    fields = []
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        field = known.field(name)
        if not field.nullable and column.null_count:
            raise OperatorError(
                f"{place}: column '{name}' is required, but null in {column.null_count} rows; fill it or filter them "
                "out before the sink; nothing was written"
            )
        fields.append(field if required else field.with_nullable(True))
    try:
        return rows.cast(pa.schema(fields))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        shown = ", ".join(f"{field.name} {field.type}" for field in rows.schema)
        raise OperatorError(
            f"{place} does not accept rows of {shown}: {error}; cast them before the sink; nothing was written"
        ) from error


def with_all_columns(rows: pa.Table, known: pa.Schema) -> pa.Table:
    """``rows`` with all columns of ``known``, in their order; those that they lack are null."""
    columns = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in known
    ]
    return pa.table(columns, known.names)


def check_no_nan(place: str, changes: TargetChanges, *, is_finite: bool = False) -> None:
    """Raise OperatorError for a key that is NaN, which ``place`` finds equal to nothing; with ``is_finite`` also for
    infinities, which it has no text for."""
    for table in (changes.upserts, changes.deletes):
        for name in changes.keys:
            column = table.column(name)
            if not pa.types.is_floating(column.type):
                continue
            wrong = pc.invert(pc.is_finite(column)) if is_finite else pc.is_nan(column)
            if pc.any(wrong).as_py():
                raise OperatorError(
                    f"{place}: key column '{name}' is {column.filter(wrong)[0].as_py()}, which lookups by key would "
                    "never find; filter such rows out before the sink; nothing was written"
                )


def check_text(owner: str, what: str, given: object) -> str:
    """``given``, if it is valid as a name. Raises ConfigurationError if not."""
    if not isinstance(given, str) or not given.strip() or "\0" in given:
        raise ConfigurationError(f"{owner}: {what} {given!r} is not a name; give a string")
    return given


@contextmanager
def extra(name: str, owner: str) -> Iterator[None]:
    """Context manager for the imports of the extra ``asyncstate[name]``; raises ConfigurationError without it."""
    try:
        yield
    except ImportError as error:
        raise ConfigurationError(
            f"{owner} needs packages that are not installed ({error}); install them: pip install 'asyncstate[{name}]'"
        ) from error
