"""Several streaming DataFrames as one, and the rows of a micro-batch by name again.

Owns: ``Packing``, for both forms of a job.
Invariant: what comes out under a name has the rows and the columns that went in under it, and no others.
Must not import storage.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from asyncstate.errors import JobError
from asyncstate.spark.columns import quoted

_SOURCE: Final = "asyncstate:source"
BATCH: Final = "batch"
"""The argument of a micro_batch function that has the MicroBatch."""


class Packing:
    """Streaming DataFrames by name, in the order in which they were given: the order by which Spark knows them."""

    def __init__(self) -> None:
        self.frames: dict[str, DataFrame] = {}

    def add(self, name: str, df: object) -> None:
        """One more. Raises JobError for what is no streaming DataFrame."""
        self.frames[name] = check_streaming(name, df)

    def packed(self) -> DataFrame:
        """The rows of all as one stream: a struct for each, null in the rows of the others. One alone is as it is."""
        frames = list(self.frames.values())
        if len(frames) == 1:
            return frames[0]
        return functools.reduce(DataFrame.union, [_part(frames, number) for number in range(len(frames))])

    def unpacked(self, df: DataFrame) -> dict[str, DataFrame]:
        """The rows of a micro-batch of ``packed`` by name."""
        if len(self.frames) == 1:
            return {name: df for name in self.frames}
        return {
            name: df.where(f"{quoted(_SOURCE)} = {number}").select(f"{quoted(_struct_name(number))}.*")
            for number, name in enumerate(self.frames)
        }


def check_streaming(name: str, df: object) -> DataFrame:
    """``df``; JobError for what is no streaming DataFrame."""
    if not isinstance(df, DataFrame) or not df.isStreaming:
        kind = "a DataFrame that is not streaming" if isinstance(df, DataFrame) else repr(df)
        raise JobError(f"source '{name}' was given {kind}; give what spark.readStream gives")
    return df


def with_inputs(function: Callable[..., object], packing: Packing) -> Callable[[DataFrame, Any], object]:
    """``function(**inputs, batch=...)`` as a function of the packed rows and the MicroBatch.

    Raises JobError for a function that cannot be called so.
    """
    check_takes(function, packing.frames)

    @functools.wraps(function)
    def unpacking(df: DataFrame, batch: Any) -> object:
        return function(**packing.unpacked(df), **{BATCH: batch})

    return unpacking


def check_takes(function: Callable[..., object], names: Mapping[str, object]) -> None:
    """Raise JobError unless ``function`` can be called with ``names`` and the micro-batch as keywords."""
    try:
        inspect.signature(function).bind(**dict.fromkeys((*names, BATCH)))
    except (TypeError, ValueError) as error:
        called = getattr(function, "__name__", repr(function))
        raise JobError(
            f"the micro_batch function {called} does not take the job's inputs ({error}): it is called by name, so "
            f"write def {called}({', '.join((*names, BATCH))})"
        ) from error


def _part(frames: list[DataFrame], number: int) -> DataFrame:
    columns = [sf.lit(number).alias(_SOURCE)]
    for other, df in enumerate(frames):
        rows = sf.struct(*map(quoted, df.columns)) if other == number else sf.lit(None).cast(df.schema)
        columns.append(rows.alias(_struct_name(other)))
    return frames[number].select(*columns)


def _struct_name(number: int) -> str:
    return f"asyncstate:{number}"
