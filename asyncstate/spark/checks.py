"""What the driver refuses before any row is read.

Owns: the shape of ``apply``'s arguments, and the comparison of an operator's schemas with those in the
manifest. Must not import pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pyarrow as pa

from asyncstate.codec import Change, refusals, schema_from_text, schema_to_text
from asyncstate.errors import ConfigurationError, JobError, SchemaError
from asyncstate.operator import InputSpec
from asyncstate.spark.durations import delay_us

Key = str | Sequence[str] | None
Keys = Key | Sequence[Key]
Delay = str | timedelta | None

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_FILE_NAME_RULE = "use letters, digits, '_', '-' and '.', at most 100, starting with a letter or digit"

JOB_OPTIONS = ("checkpoint-dir", "retained-versions", "max-parallelism")
"""Settings that the whole job shares: an operator's own options cannot change them."""


def check_job_name(name: object) -> None:
    """Raise JobError unless ``name`` can name a folder."""
    if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
        raise JobError(
            f"job name {name!r} cannot be used: local folders are named after it; {_FILE_NAME_RULE}"
        )


def check_uid(uid: object, taken: Sequence[str]) -> None:
    """Raise JobError unless ``uid`` can name files and is not in ``taken``."""
    if not isinstance(uid, str) or not _FILE_NAME.fullmatch(uid):
        raise JobError(f"uid {uid!r} cannot be used: its state's files are named after it; {_FILE_NAME_RULE}")
    if uid in taken:
        raise JobError(f"uid '{uid}' is applied twice in one micro-batch; give each operator its own uid")


def check_operator_options(uid: str, options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for an option that belongs to the job."""
    for name in JOB_OPTIONS:
        if f"async-state.{name}" in options:
            raise ConfigurationError(
                f"operator '{uid}': async-state.{name} holds for the whole job; give it to "
                "StreamingJob(options=...)"
            )


def keys_of_inputs(
    uid: str, key: Keys, num_inputs: int, broadcast: int | None = None
) -> list[tuple[str, ...]]:
    """The key columns of each input; with several inputs ``key`` has one entry an input.

    The input ``broadcast`` has no key: its entry is None or left out, and a single name is the key of the only
    other input. Raises JobError for any other shape.
    """
    if num_inputs == 1:
        return [_key(uid, key)]
    if key is None:
        return [()] * num_inputs
    if broadcast is not None:
        key = _with_broadcast(uid, key, num_inputs, broadcast)
    if isinstance(key, str) or len(key) != num_inputs:
        raise JobError(
            f"operator '{uid}' has {num_inputs} inputs, so key needs one entry for each, like "
            f"key=('id', 'seller') or key=(['a', 'b'], ['c', 'd']); it is {key!r}"
        )
    return [_key(uid, entry) for entry in key]


def _with_broadcast(uid: str, key: Keys, num_inputs: int, broadcast: int) -> Sequence[Key]:
    """``key`` with an entry for each input, None for the broadcast one."""
    given: list[object] = list(key) if isinstance(key, (list, tuple)) else [key]
    if len(given) == num_inputs - 1:
        given.insert(broadcast, None)
    if len(given) != num_inputs or given[broadcast] is not None:
        example = [None if index == broadcast else "id" for index in range(num_inputs)]
        raise JobError(
            f"operator '{uid}': input {broadcast} is broadcast and has no key, every partition gets its rows; write "
            f"None in its place, like key={tuple(example)!r}, with a list where a key has several columns; key is "
            f"{key!r}"
        )
    return given  # type: ignore[return-value]  # what the entries are is for _key to say


def _key(uid: str, key: object) -> tuple[str, ...]:
    if key is None:
        return ()
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, (list, tuple)) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise JobError(
            f"operator '{uid}': key {key!r} is neither a column name, nor a list of them, nor None"
        )
    if len(set(names)) != len(names):
        raise JobError(f"operator '{uid}': key {key!r} names a column twice; name each once")
    return tuple(str(name) for name in names)


def times_of_inputs(
    uid: str,
    event_time: str | Sequence[str | None] | None,
    watermark_delay: Delay | Sequence[Delay],
    num_inputs: int,
) -> tuple[list[str | None], list[int | None]]:
    """Event time column and watermark delay (microseconds) of each input; one value holds for all inputs."""
    columns = _each("event_time", uid, event_time, num_inputs)
    delays = [
        None if delay is None else delay_us(delay)
        for delay in _each("watermark_delay", uid, watermark_delay, num_inputs)
    ]
    for column, delay in zip(columns, delays, strict=True):
        if delay is not None and column is None:
            raise JobError(
                f"operator '{uid}': watermark_delay without event_time; name the timestamp column too"
            )
    return columns, delays


def _each(what: str, uid: str, given: object, num_inputs: int) -> list:  # type: ignore[type-arg]
    if not isinstance(given, (list, tuple)):
        return [given] * num_inputs
    if len(given) != num_inputs:
        raise JobError(
            f"operator '{uid}' has {num_inputs} inputs but {what} has {len(given)} entries; give one value "
            "for all or one for each"
        )
    return list(given)


def fingerprint(inputs: Sequence[InputSpec], output: pa.Schema) -> dict[str, str]:
    """The schemas of an operator as the manifest keeps them."""
    texts = {"output": _text("output", output)}
    for index, spec in enumerate(inputs):
        texts[f"input{index}"] = _text(spec.name, spec.schema)
        texts[f"key{index}"] = _text(spec.name, spec.key_schema)
    return texts


def _text(what: str, schema: pa.Schema) -> str:
    for field in schema:
        try:
            schema_to_text(pa.schema([field]))
        except SchemaError as error:
            raise SchemaError(f"{what}: column '{field.name}': {error}") from error
    return schema_to_text(schema)


def check_fingerprint(uid: str, stored: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise SchemaError for another key, another number of inputs, or a column that became something else.

    Columns may come and go and be widened: whether the state can live with that is for the state's own types to say,
    field by field. Of the output nothing is stored. Behind a migration columns may have become anything.
    """
    stored = {what: text for what, text in stored.items() if what.startswith(("input", "key"))}
    now = {what: text for what, text in now.items() if what.startswith(("input", "key"))}
    for what in sorted({*stored, *now}, reverse=True):  # the keys first
        if what.startswith("input") and what not in stored and _count(stored) == _count(now):
            continue  # a migration has changed states for other columns
        if what not in stored or what not in now:
            raise SchemaError(
                f"operator '{uid}' had {_count(stored)} in its checkpoint and now has {_count(now)}; {_OUT}"
            )
        before, after = schema_from_text(stored[what]), schema_from_text(now[what])
        if not what.startswith("key"):
            _check_columns(uid, what, before, after)
        elif not before.equals(after):
            raise SchemaError(
                f"operator '{uid}': the key ({what}) was ({_fields(before)}) and is ({_fields(after)}); "
                f"stored keys and their partitions depend on it; {_OUT}"
            )


def _check_columns(uid: str, what: str, before: pa.Schema, after: pa.Schema) -> None:
    for field in before:
        index = after.get_field_index(field.name)
        if index < 0:
            continue
        for refusal in refusals(pa.schema([field]), pa.schema([after.field(index)])):
            if refusal.change is Change.RETYPED:
                # Also where no state has the column: what is pickled or computed from it would mix two meanings.
                raise SchemaError(
                    f"operator '{uid}', {what}: column '{refusal.field}' was {refusal.was} and is {refusal.now}; cast "
                    "it back, give the column a new name, or migrate the states that hold it"
                )


_OUT = "restore it, or give the operator a new uid to start with empty state"


def _count(texts: Mapping[str, str]) -> str:
    return f"{sum(name.startswith('key') for name in texts)} inputs"


def _fields(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "none"
