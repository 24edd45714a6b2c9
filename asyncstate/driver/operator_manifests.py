"""The rules between micro-batches that every driver follows, both the Spark job and the harness.

Owns: how CommitRecords become the next Manifest, and which changes of the stored schemas a restart may make.
Invariants: the manifest of a batch depends only on the previous manifest and the batch's CommitRecords; stored keys
are read with the key that they were written with.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from asyncstate.codec import TypeChange, refusals, schema_from_text, schema_to_text
from asyncstate.config import Config
from asyncstate.errors import ConfigurationError, JobError, SchemaError
from asyncstate.operator import MIN_WATERMARK, InputSpec, Operator, OutputSpec
from asyncstate.runtime.declarations.meaning import meaning_of
from asyncstate.runtime.partition.broadcast_inputs import check_digests
from asyncstate.runtime.task_spec import CommitRecord
from asyncstate.storage import AppliedTimes, Manifest, OperatorManifest, SinkManifest, StateSpec
from asyncstate.storage.manifest import is_of_operator


class Fingerprint(NamedTuple):
    """What the manifest stores of an operator's declaration: its schemas and the meaning of its states."""

    schemas: Mapping[str, str]
    meaning: Mapping[str, str]


_OUT: Final = "restore it, or give the operator a new uid to start with empty state"


def previous_watermark(base: Manifest | None, uid: str | None = None) -> int:
    """The watermark of the batch that ``base`` committed, microseconds.

    With ``uid``, that of the last batch that applied the operator: what has become due since then is still to be done.
    """
    times = _times(base, uid)
    return MIN_WATERMARK if times is None or times.watermark is None else times.watermark


def previous_processing_time(base: Manifest | None, uid: str | None = None) -> int:
    """When that batch started, microseconds; MIN_WATERMARK before the first batch."""
    times = _times(base, uid)
    return MIN_WATERMARK if times is None or times.processing_time is None else times.processing_time


def _times(base: Manifest | None, uid: str | None) -> Manifest | AppliedTimes | None:
    stored = None if base is None or uid is None else base.operators.get(uid)
    return base if stored is None or stored.applied is None else stored.applied


def left_out(stored: OperatorManifest, base: Manifest) -> OperatorManifest:
    """The entry of an operator that the micro-batch after ``base`` has not applied."""
    if stored.applied is not None:
        return stored
    return msgspec.structs.replace(stored, applied=AppliedTimes(base.watermark, base.processing_time))


def is_changed_by_command(newest: Manifest, base: Manifest) -> bool:
    """Whether `state migrate` has changed ``newest`` since the job committed it over ``base``.

    Of an operator that it has applied, the job records the class and the columns, and files of this uid; another one is
    as in ``base``. Of a sink it records what its rows are. A dropped operator is not noticed, since a program can do
    it, too: see ``without_dropped``.
    """
    before = {} if base.graph is None else base.graph.sinks
    sinks = {} if newest.graph is None else newest.graph.sinks
    accepted = any(SinkManifest(one.changes) == one != before.get(name) for name, one in sinks.items())
    return accepted or any(_is_changed(one, base) for one in newest.operators.values())


def _is_changed(operator: OperatorManifest, base: Manifest) -> bool:
    before = base.operators.get(operator.uid)
    if before is None:
        names = {file.name for one in operator.partitions for file in one.files()}
        return bool(names & {file.name for file in base.files()}) or not all(
            is_of_operator(name, operator.uid) for name in names
        )
    applied = operator.operator and any(what.startswith("input") for what in operator.schema)
    return not applied and msgspec.structs.replace(before, applied=None) != msgspec.structs.replace(
        operator, applied=None
    )


def without_dropped(base: Manifest, newest: Manifest) -> tuple[Manifest, frozenset[str]]:
    """``base`` without the state that was dropped since, in the version ``newest`` over it: by a command, or by the
    program that committed it. What was dropped does not come back because a batch is repeated."""
    gone = frozenset(
        uid for uid, one in base.operators.items() if one.has_state and uid not in newest.operators
    )
    kept = {uid: one for uid, one in base.operators.items() if uid not in gone}
    return msgspec.structs.replace(base, operators=kept), gone


def check_key_groups(place: str, latest: Manifest | None, config: Config) -> None:
    """Raise ConfigurationError if ``config`` has other key groups than ``latest``, which was read from ``place``.

    Otherwise keys would be looked up in the wrong groups.
    """
    if latest is not None and latest.max_parallelism != config.max_parallelism:
        raise ConfigurationError(
            f"checkpoint {place} has {latest.max_parallelism} key groups, but async-state.max-parallelism is "
            f"{config.max_parallelism}; set it to {latest.max_parallelism}: the job's first batch fixes it"
        )


def operator_after(
    uid: str,
    operator: str,
    batch_id: int,
    parallelism: int,
    records: Sequence[CommitRecord],
    declared: Fingerprint,
    route: Sequence[int] = (),
) -> OperatorManifest:
    """The operator's entry in the manifest of ``batch_id``. Raises JobError unless each partition
    reported once and all reports agree about broadcast state."""
    reported = sorted(record.partition for record in records)
    if reported != list(range(parallelism)):
        raise JobError(
            f"operator '{uid}': batch {batch_id} was reported by partitions {reported}, expected each of "
            f"0..{parallelism - 1} once; nothing was committed, restart the query"
        )
    check_digests(uid, records)
    return OperatorManifest(
        uid=uid,
        operator=operator,
        parallelism=parallelism,
        schema=dict(declared.schemas),
        meaning=dict(declared.meaning),
        states=_agreed_states(uid, records),
        route=list(route),
        partitions=[
            msgspec.structs.replace(record.content, statistics=record.statistics)
            for record in sorted(records, key=lambda record: record.partition)
        ],
    )


def _agreed_states(uid: str, records: Sequence[CommitRecord]) -> list[StateSpec]:
    states = records[0].states
    for record in records[1:]:
        if record.states != states:
            raise JobError(
                f"operator '{uid}': partitions {records[0].partition} and {record.partition} declared different "
                "states; declare the same states in open() for all data"
            )
    return states


def fingerprint(operator: Operator, inputs: Sequence[InputSpec], output: OutputSpec) -> Fingerprint:
    """The schemas of an operator and the meaning of its state, as the manifest stores them."""
    return Fingerprint(_schemas(inputs, output), meaning_of(operator, inputs))


def _schemas(inputs: Sequence[InputSpec], output: OutputSpec) -> dict[str, str]:
    texts = {"output": _text("output", output.schema)}
    for name, schema in output.side_outputs.items():
        texts[f"output {name}"] = _text(f"side output '{name}'", schema)
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
    """Raise SchemaError for another key, another number of inputs, or a column with an incompatible type.

    Columns may be added, removed and widened; the types of each state decide, field by field, whether the state
    supports that. The output is not stored. After a migration, columns may have any type.
    """
    stored = {what: text for what, text in stored.items() if what.startswith(("input", "key"))}
    now = {what: text for what, text in now.items() if what.startswith(("input", "key"))}
    for what in sorted({*stored, *now}, reverse=True):  # the keys first
        if what.startswith("input") and what not in stored and _count(stored) == _count(now):
            continue  # a migration has adapted the states to other columns
        if what not in stored or what not in now:
            raise SchemaError(
                f"operator '{uid}' had {_count(stored)} in its checkpoint and now has {_count(now)}; {_OUT}"
            )
        before, after = schema_from_text(stored[what]), schema_from_text(now[what])
        if not what.startswith("key"):
            _check_columns(uid, what, before, after)
        elif not before.equals(after):
            raise SchemaError(
                f"operator '{uid}': the key ({what}) was ({_fields(before)}) and is now ({_fields(after)}); stored "
                f"keys and their partitions depend on it; {_OUT}"
            )


def _check_columns(uid: str, what: str, before: pa.Schema, after: pa.Schema) -> None:
    for field in before:
        index = after.get_field_index(field.name)
        if index < 0:
            continue
        for refusal in refusals(pa.schema([field]), pa.schema([after.field(index)])):
            if refusal.change is TypeChange.RETYPED:
                # Also if no state has the column: pickled or computed values that depend on it would mix two meanings.
                raise SchemaError(
                    f"operator '{uid}', {what}: column '{refusal.field}' was {refusal.was} and is {refusal.now}; cast "
                    "it back, give the column a new name, or migrate the states that hold it"
                )


def _count(texts: Mapping[str, str]) -> str:
    return f"{sum(name.startswith('key') for name in texts)} inputs"


def _fields(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "none"
