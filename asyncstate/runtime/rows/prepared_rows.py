"""Conversion between Arrow batches and what operators see: times, kinds, Python rows, output batches.

Owns: the conversion of input batches (``PreparedBatch``) and of output rows.
Invariant: timestamps are int64 microseconds on both sides, at any depth of a value; rows without an event time never
reach an operator.
Must not import Spark or storage.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from asyncstate.changelog import RETRACT, ROW_KIND_COLUMN, ROW_KIND_TEXTS, Changelog, ChangelogMode, RowKind
from asyncstate.codec.arrow_types import is_string_type
from asyncstate.codec.from_python import UnfitValueError, arrow_values
from asyncstate.codec.times import as_python, event_times, in_microseconds
from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec
from asyncstate.row_shape import RowShape
from asyncstate.runtime.task_spec import InputBatch

_KIND_TEXTS = pa.array(ROW_KIND_TEXTS, pa.string())
_KINDS = tuple(RowKind)


LATEST_EVENT_TIME: Final = 2**62
"""Microseconds: rows of a later event time (the year 148,000), such as placeholders for "forever", do not advance the
watermark, since it could never go back."""


@dataclass(frozen=True)
class PreparedBatch:
    """An input batch (n rows) with its kinds (n, int8) and event times (n, int64 microseconds; None if it has none)."""

    batch: pa.RecordBatch
    kinds: npt.NDArray[np.int8]
    times: npt.NDArray[np.int64] | None
    input_index: int
    null_event_times: int

    def highest_event_time(self) -> tuple[int | None, int]:
        """The highest event time that may advance a watermark, None if there is none; and how many times are above
        it."""
        if self.times is None or not len(self.times):
            return None, 0
        return _highest(self.times)

    def cut(self, rows_max: int) -> Iterator[PreparedBatch]:
        """The rows in order, in batches of ``rows_max``; the last one has the rest."""
        if self.batch.num_rows <= rows_max:
            yield self
            return
        for start in range(0, self.batch.num_rows, rows_max):
            part = slice(start, start + rows_max)
            times = None if self.times is None else self.times[part]
            batch = self.batch.slice(start, rows_max)
            yield PreparedBatch(batch, self.kinds[part], times, self.input_index, 0)

    def take(self, rows: npt.NDArray[np.int64]) -> PreparedBatch:
        """Some of the rows, or all in another order; ``rows``: their indices."""
        times = None if self.times is None else self.times[rows]
        return PreparedBatch(self.batch.take(pa.array(rows)), self.kinds[rows], times, self.input_index, 0)

    def filter(self, keep: npt.NDArray[np.bool_]) -> PreparedBatch:
        """The rows where ``keep`` (n) is true."""
        times = None if self.times is None else self.times[keep]
        batch = self.batch.filter(pa.array(keep))
        return PreparedBatch(batch, self.kinds[keep], times, self.input_index, self.null_event_times)


def highest_event_time(column: pa.Array) -> int | None:
    """The highest time of a timestamp column that may advance a watermark, microseconds; None if there is none."""
    times = event_times(column.drop_null())
    return _highest(times)[0] if len(times) else None


def _highest(times: npt.NDArray[np.int64]) -> tuple[int | None, int]:
    highest = int(times.max())
    if highest <= LATEST_EVENT_TIME:
        return highest, 0
    within = times[times <= LATEST_EVENT_TIME]
    return (int(within.max()) if len(within) else None), len(times) - len(within)


def joined(parts: Sequence[PreparedBatch]) -> PreparedBatch:
    """The rows of ``parts`` of one input (at least one part), in order."""
    if len(parts) == 1:
        return parts[0]
    times = [part.times for part in parts if part.times is not None]
    return PreparedBatch(
        pa.concat_batches([part.batch for part in parts]),
        np.concatenate([part.kinds for part in parts]),
        np.concatenate(times) if times else None,
        parts[0].input_index,
        0,
    )


def prepare(uid: str, spec: InputSpec, given: InputBatch) -> PreparedBatch:
    """Check texts and kinds, remove rows with a null event time, convert times."""
    batch = given.batch
    _check_texts(uid, spec.name, batch)
    kinds = given.kinds if given.kinds is not None else np.zeros(batch.num_rows, np.int8)
    if not spec.changelog and kinds.any():
        found = ROW_KIND_TEXTS[kinds[kinds != 0][0]]
        raise SchemaError(
            f"operator '{uid}': {spec.name} has rows of the kind {found}, but it was not declared as a changelog: "
            "declare it with changelog=True, or push only rows of kind +I"
        )
    if spec.event_time is None:
        return PreparedBatch(batch, kinds, None, given.input_index, 0)
    column = batch.column(spec.event_time)
    dropped = column.null_count
    if dropped:
        valid = pc.is_valid(column)
        batch, kinds = batch.filter(valid), kinds[valid.to_numpy(zero_copy_only=False)]
        column = batch.column(spec.event_time)
    return PreparedBatch(batch, kinds, event_times(column), given.input_index, dropped)


def _check_texts(uid: str, name: str, batch: pa.RecordBatch) -> None:
    """Raises SchemaError for a text that is not UTF-8: once stored, it could not be read again."""
    for column, field in zip(batch.columns, batch.schema, strict=True):
        if _has_text(field.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid as error:
                raise SchemaError(
                    f"operator '{uid}': {name}: column '{field.name}' has a text that is not valid UTF-8; upstream, "
                    f"repair it with make_valid_utf8({field.name}) of Spark 4, or keep it as BINARY ({error})"
                ) from error


@functools.lru_cache(maxsize=1024)
def _has_text(kind: pa.DataType) -> bool:
    parts = [kind.field(at).type for at in range(kind.num_fields)]
    return is_string_type(kind) or any(map(_has_text, parts))


def python_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The rows as tuples of Python values; timestamps, also inside lists, structs and maps, are int64 microseconds."""
    columns = list(map(python_values, batch.columns, batch.schema.names))
    return zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)


def python_values(column: pa.Array, name: str) -> list[Any]:
    """The column ``name`` as Python values; timestamps, also inside lists, structs and maps, are int64 microseconds.
    Raises SchemaError for a date that Python cannot represent."""
    wanted = in_microseconds(column.type)
    if wanted != column.type:
        column = column.cast(wanted, safe=False)  # truncates nanoseconds
    return as_python(column, name)


def key_values(types: Sequence[pa.DataType]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that converts a decoded key, with timestamps in their own units, to the key that operators see."""
    if all(in_microseconds(one) == one for one in types):
        return lambda values: values

    def convert(values: tuple[Any, ...]) -> tuple[Any, ...]:
        columns = [pa.array([value], one) for value, one in zip(values, types, strict=True)]
        return tuple(python_values(column, "key")[0] for column in columns)

    return convert


def output_batch(
    uid: str,
    schema: pa.Schema,
    columns: Sequence[Any],
    kinds: npt.NDArray[np.int8] | RowKind,
    num_rows: int,
    key_of: Callable[[int], Any] | None = None,
    changes: Changelog = RETRACT,
) -> pa.RecordBatch:
    """Rows of the output schema plus the ``row_kind`` column, checked against the schema and the declared
    ``changes``.

    Raises SchemaError that names the column, the value and, with ``key_of`` (row to key), the key of the invalid
    row."""
    if len(columns) != len(schema):
        raise SchemaError(
            f"operator '{uid}' emitted {len(columns)} columns, but its output has {len(schema)}: "
            f"{', '.join(schema.names)}"
        )
    arrays = [_output_column(uid, *each, key_of) for each in zip(schema, columns, strict=True)]
    arrays.append(_kind_column(kinds, num_rows))
    if changes.mode is not ChangelogMode.RETRACT:
        _check_kinds(uid, kinds, changes, key_of)
    return pa.RecordBatch.from_arrays(arrays, schema=output_schema(schema))


def output_schema(schema: pa.Schema) -> pa.Schema:
    """``schema`` with the changelog's ``row_kind`` column appended; all fields nullable."""
    return pa.schema(
        [*(field.with_nullable(True) for field in schema), pa.field(ROW_KIND_COLUMN, pa.string())]
    )


def rows_batch(
    uid: str,
    schema: pa.Schema,
    rows: Sequence[tuple[RowKind, tuple[Any, ...], bytes]],
    decode: Callable[[bytes], Any],
    changes: Changelog,
) -> pa.RecordBatch:
    """``output_batch`` of rows (at least one), each with its kind and encoded key; ``decode`` decodes keys for
    errors."""

    def key_of(row: int) -> Any:
        return decode(rows[row][2])

    kinds, values, _ = zip(*rows, strict=True)
    codes = np.fromiter(kinds, np.int8, len(rows))
    columns = [list(column) for column in zip(*values, strict=True)] if len(schema) else []
    shape = RowShape(schema, f"operator '{uid}'", emits=True)
    if not shape.nested_alone:
        try:
            return output_batch(uid, schema, columns, codes, len(rows), key_of, changes)
        except SchemaError:
            if len(schema) != 1:
                raise
    # The value of a single column may have been emitted as a tuple or dict that contains it. No flat column can hold
    # that, and a struct would read nothing from it.
    taken = [shape.emitted(row, {})[0] for row in values]
    return output_batch(uid, schema, [taken], codes, len(rows), key_of, changes)


def _output_column(uid: str, field: pa.Field, column: Any, key_of: Callable[[int], Any] | None) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array) and column.type.equals(field.type):
        return column
    try:
        return arrow_values(column, field.type)
    except UnfitValueError as error:
        advice = "convert it before you emit it, or declare another type"
        if inspect.isawaitable(error.value):
            advice = "it is not a value yet: await it, or emit in a callback that gets its value"
        where = "" if key_of is None else f", key {key_of(error.row)!r}"
        raise SchemaError(
            f"operator '{uid}'{where}: emit() got, for column '{field.name}', {error}; {advice}"
        ) from error


def kind_codes(texts: pa.Array) -> npt.NDArray[np.int8]:
    """The codes of a ``row_kind`` column."""
    codes: npt.NDArray[np.int8] = (
        pc.index_in(texts, value_set=_KIND_TEXTS).to_numpy(zero_copy_only=False).astype(np.int8)
    )
    return codes


def _check_kinds(uid: str, kinds: Any, changes: Changelog, key_of: Callable[[int], Any] | None) -> None:
    """Raise SchemaError for a row of a kind that the operator did not declare."""
    codes = np.asarray([kinds] if isinstance(kinds, RowKind) else kinds, np.int8)
    wrong = codes != RowKind.INSERT if changes.is_insert_only else codes == RowKind.UPDATE_BEFORE
    if not wrong.any():
        return
    at = int(np.flatnonzero(wrong)[0])
    of = f" for the key {key_of(at)!r}" if key_of is not None else ""
    kind = _KINDS[codes[at]].text
    if changes.is_insert_only:
        raise SchemaError(
            f"operator '{uid}' emitted a row {kind}{of}, but declares insertions only. Return from bind() "
            "OutputSpec(schema, changes=Changelog.retract()) if each old row is retracted (-U, -D), or "
            "changes=Changelog.upsert('key column') if rows replace each other by a key; a function operator takes "
            "such an OutputSpec as output"
        )
    raise SchemaError(
        f"operator '{uid}' emitted a row {kind}{of}, but declares {changes.text}, which has no row before a change. "
        "Leave it out, or return OutputSpec(schema, changes=Changelog.retract(...)) from bind()"
    )


def _kind_column(kinds: Any, num_rows: int) -> pa.Array:
    if isinstance(kinds, RowKind):
        return pa.repeat(pa.scalar(kinds.text, pa.string()), num_rows)
    if not isinstance(kinds, Sized):
        raise _wrong_kind(kinds)
    try:
        texts = _KIND_TEXTS.take(pa.array(kinds, pa.int8()))
    except (pa.ArrowException, TypeError, OverflowError):
        given: Any = (
            kinds.tolist() if isinstance(kinds, np.ndarray) else [kinds] if isinstance(kinds, str) else kinds
        )
        raise _wrong_kind(next((kind for kind in given if kind not in _KINDS), kinds)) from None
    if len(texts) != num_rows:
        raise SchemaError(
            f"emit() got {len(texts)} kinds for {num_rows} rows; give one for each, or one RowKind"
        )
    return texts


def _wrong_kind(kind: Any) -> SchemaError:
    return SchemaError(
        f"emit() got the kind {kind!r}; give one of RowKind.INSERT (+I), UPDATE_BEFORE (-U), UPDATE_AFTER (+U) and "
        "DELETE (-D), or an int8 array with one for each row"
    )


def kinds_of(codes: npt.NDArray[np.int8]) -> list[RowKind]:
    """RowKind members for int8 codes."""
    if not codes.any():
        return [RowKind.INSERT] * len(codes)
    return [_KINDS[code] for code in codes.tolist()]
