"""DataFrames that a job is given: what it reads, and what it or an operator starts from.

Owns: ``Packing``: several streaming DataFrames packed into one, and the rows of a micro-batch unpacked by name; the
checks of the argument ``initial_state``.
Invariant: unpacking a name returns the rows and the columns that were packed under it, and no others. Initial rows have
the columns and types of the input they precede, so that they are routed as its rows are.
Must not import storage.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from asyncstate.changelog import ROW_KIND_COLUMN
from asyncstate.driver.executor import InitialRows
from asyncstate.errors import JobError
from asyncstate.runtime import check_columns
from asyncstate.spark.column_types import quoted
from asyncstate.spark.exchange import nullable_type
from asyncstate.spark.local_frame import LocalFrame, members

_SOURCE: Final = "asyncstate:source"

InitialState = DataFrame | Sequence[DataFrame | None] | Mapping[str, DataFrame]
"""Rows that precede all others: a DataFrame; for several inputs, one each or None; or initial values by name of
state."""


class Packing:
    """Streaming DataFrames by name, in the order in which they were given: Spark identifies them by this order."""

    def __init__(self) -> None:
        self.frames: dict[str, DataFrame] = {}
        self.shapes: dict[str, DataFrame] = {}
        """For each source a DataFrame with its columns."""
        self.tables: dict[str, DataFrame] = {}
        """For each table that does not stream an empty DataFrame: all of its rows are initial rows."""

    def add(self, name: str, df: object, both: DataFrame | None = None) -> None:
        """Add a source; ``both``: its rows and those that its reader drops. Raises JobError for anything but a
        streaming DataFrame."""
        shape = check_streaming(name, df)
        self.frames[name] = shape if both is None else both
        self.shapes[name] = shape

    def add_table(self, name: str, df: object) -> DataFrame:
        """Add a table; returns an empty DataFrame with its columns. Raises JobError for anything but a bounded
        DataFrame."""
        given = static(name, df)
        self.tables[name] = given.sparkSession.createDataFrame([], given.schema)
        return self.tables[name]

    def shape_of(self, name: str) -> DataFrame:
        """A DataFrame with the columns of a source or table."""
        return self.shapes[name] if name in self.shapes else self.tables[name]

    def packed(self) -> DataFrame:
        """The rows of all as one stream: a struct for each, null in the rows of the others. A single one is
        unchanged. Raises JobError without a stream."""
        frames = list(self.frames.values())
        if not frames:
            raise JobError(
                f"nothing streams: there are tables only ({', '.join(self.tables)}); add a source, or process them "
                "with spark.read and apply_batch"
            )
        if len(frames) == 1:
            return frames[0]
        return functools.reduce(DataFrame.union, [_part(frames, number) for number in range(len(frames))])

    def narrowed(self, df: DataFrame, read: Mapping[str, Sequence[str]]) -> DataFrame | None:
        """The rows of ``packed`` with only those sources and columns that are ``read``; None if Spark may not
        distinguish their names."""
        if any(len({name.lower() for name in names}) < len(names) for names in read.values()):
            return None
        if len(self.frames) == 1:
            ((_, names),) = read.items()
            return df.select(*map(quoted, names))
        numbers = {name: number for number, name in enumerate(self.frames) if read.get(name)}
        texts = [quoted(_SOURCE)]
        for name, number in numbers.items():
            struct = quoted(_struct_name(number))
            chosen = (f"{struct}.{quoted(one)} as {quoted(one)}" for one in read[name])
            texts.append(f"struct({', '.join(chosen)}) as {struct}")
        listed = ", ".join(map(str, numbers.values()))
        return df.where(f"{quoted(_SOURCE)} in ({listed})").selectExpr(*texts)

    def unpacked(self, df: DataFrame) -> dict[str, DataFrame]:
        """The rows of a micro-batch of ``packed``, by name."""
        numbers = {name: number for number, name in enumerate(self.frames)}
        if isinstance(df, LocalFrame):
            nothing_here: dict[str, DataFrame] = {
                name: self._nothing(name, df) for name in (*self.tables, *self.frames)
            }
            there = {name: _struct_name(number) for name, number in numbers.items()}
            return nothing_here | {
                name: df if len(numbers) == 1 else members(df, _SOURCE, numbers[name], struct)
                for name, struct in there.items()
                if len(numbers) == 1 or struct in df.schema.names
            }
        if len(numbers) == 1:
            return self.tables | {name: df for name in numbers}
        return self.tables | {
            name: df.where(f"{quoted(_SOURCE)} = {number}").select(f"{quoted(_struct_name(number))}.*")
            for name, number in numbers.items()
        }

    def _nothing(self, name: str, like: LocalFrame) -> LocalFrame:
        return LocalFrame([], self.shape_of(name).schema, like.sparkSession)


def check_streaming(name: str, df: object) -> DataFrame:
    """``df``; raises JobError for anything but a streaming DataFrame."""
    if not isinstance(df, DataFrame) or not df.isStreaming:
        kind = "a DataFrame that is not streaming" if isinstance(df, DataFrame) else repr(df)
        raise JobError(f"source '{name}' got {kind}; give a DataFrame from spark.readStream")
    return df


def _part(frames: list[DataFrame], number: int) -> DataFrame:
    columns = [sf.lit(number).alias(_SOURCE)]
    for other, df in enumerate(frames):
        rows = sf.struct(*map(quoted, df.columns)) if other == number else sf.lit(None).cast(df.schema)
        columns.append(rows.alias(_struct_name(other)))
    return frames[number].select(*columns)


def _struct_name(number: int) -> str:
    return f"asyncstate:{number}"


def initial_of(uid: str, given: InitialState, inputs: Sequence[DataFrame]) -> InitialRows:
    """The initial state, checked against the inputs. Raises JobError for another form, SchemaError for other
    columns."""
    if isinstance(given, Mapping):
        return InitialRows(values={str(name): static(uid, df) for name, df in given.items()})
    each = [given] if isinstance(given, DataFrame) else list(given) if isinstance(given, list | tuple) else []
    if len(each) != len(inputs) or not any(one is not None for one in each):
        raise JobError(
            f"operator '{uid}' has {len(inputs)} inputs, and initial_state is {given!r}; give for each of them a "
            "DataFrame of rows or None, or {name of a state: DataFrame of its values}"
        )
    rows = [
        nothing(df) if one is None else before(f"operator '{uid}'", static(uid, one), df)
        for one, df in zip(each, inputs, strict=True)
    ]
    return InitialRows(rows=rows)


def nothing(df: DataFrame) -> DataFrame:
    """An empty DataFrame with the columns of ``df``."""
    return df.where("false")


def before(what: str, rows: DataFrame, df: DataFrame) -> DataFrame:
    """``rows`` with the columns of ``df`` in their order; they become insertions where ``df`` has kinds and they have
    none."""
    if ROW_KIND_COLUMN in df.columns and ROW_KIND_COLUMN not in rows.columns:
        rows = rows.withColumn(ROW_KIND_COLUMN, sf.lit("+I"))
    check_columns(what, _types(rows.schema), _types(df.schema))
    return rows.select(*map(quoted, df.columns))


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: nullable_type(field.dataType).simpleString() for field in schema}


def static(name: str, df: object) -> DataFrame:
    """``df``, the initial rows of an operator or a source, or a table. Raises JobError unless it is bounded."""
    if not isinstance(df, DataFrame) or df.isStreaming:
        kind = "a streaming DataFrame" if isinstance(df, DataFrame) else repr(df)
        raise JobError(f"'{name}' would start from {kind}; give a batch DataFrame, such as from spark.read")
    return df
