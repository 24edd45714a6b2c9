"""The arguments of ``apply``: an operator and the declaration of its inputs.

Owns: ``Call``, with what runs upstream and downstream of it in the same task (``FusedTask``), the conversion of
declarations to ``InputSpec``s, and the rules for names and options.
Invariant: nothing runs here; an invalid declaration is an error before any row is read.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from asyncstate.changelog import ROW_KIND_COLUMN, Changelog
from asyncstate.driver.executor import Executor, R
from asyncstate.errors import ConfigurationError, JobError, SchemaError
from asyncstate.operator import InputSpec, Operator
from asyncstate.partial_aggregation import PartialAggregation
from asyncstate.runtime import (
    FILE_NAME_RULE,
    Delay,
    Keys,
    OrderBy,
    OutputPipeline,
    SequenceBy,
    drop_stale_of_inputs,
    each_input,
    keys_of_inputs,
    names_files,
    sequences_of_inputs,
    sort_keys_of_inputs,
    times_of_inputs,
)
from asyncstate.storage import OperatorManifest

JOB_OPTIONS = ("checkpoint-dir", "retained-versions", "max-parallelism", "memory")
"""Settings that apply to the whole job; an operator's own options cannot change them."""


@dataclass(frozen=True)
class Call:
    """An operator and its declaration: the arguments of ``MicroBatch.apply``."""

    operator: Operator
    uid: str
    key: Keys = None
    event_time: str | Sequence[str | None] | None = None
    watermark_delay: Delay | Sequence[Delay] = None
    order_by: OrderBy = None
    sequence: SequenceBy = None
    drop_stale: bool | Sequence[bool] = False
    options: Mapping[str, object] | None = None
    changes: Changelog | Sequence[Changelog | None] | None = None
    filters: Sequence[str] = ()
    """For each input, the filters that its rows have passed, if a graph knows them."""


class Upstream(NamedTuple):
    """What was done to an input in the upstream task: its columns were those of ``rows``, which is empty; ``local`` is
    the partial aggregation that was applied."""

    rows: Any
    local: PartialAggregation | None


class Downstream(NamedTuple):
    """An operator that runs in the task of the previous one. ``rows`` is empty and has the columns of its input rows;
    ``after`` is applied to its output in the task. ``route``: the key columns that route it; empty means all."""

    call: Call
    rows: Any
    after: OutputPipeline | None
    route: tuple[str, ...] = ()


class FusedTask(NamedTuple):
    """The operators of a task. ``after`` is applied to the output of ``call`` there; ``before`` was applied to the rows
    of its only input in the upstream task; ``then`` run after it."""

    call: Call
    after: OutputPipeline | None = None
    before: Upstream | None = None
    then: Sequence[Downstream] = ()


@dataclass(frozen=True)
class Inputs:
    """The inputs of an operator, and for each the watermark delay in microseconds (None: it does not advance it)."""

    inputs: tuple[InputSpec, ...]
    delays: Sequence[int | None]


def input_specs(call: Call, inputs: Sequence[R], executor: Executor[R]) -> Inputs:
    """The inputs as declared. Raises SchemaError and other errors for invalid declarations."""
    uid, count, broadcast = call.uid, len(inputs), call.operator.broadcast_input
    if broadcast not in range(count):
        broadcast = None  # check_broadcast reports the problem
    names = _names(uid, count, broadcast)
    keys = keys_of_inputs(uid, call.key, count, broadcast)
    times, delays = times_of_inputs(uid, call.event_time, call.watermark_delay, count)
    orders = sort_keys_of_inputs(uid, call.order_by, count)
    sequences = sequences_of_inputs(uid, call.sequence, count)
    drops = drop_stale_of_inputs(uid, call.drop_stale, sequences)
    given = each_input("changes", uid, call.changes, count)
    said = [one if isinstance(one, Changelog) else None for one in given]
    specs = [
        replace(
            executor.input_spec(df, keys[i], times[i], names[i], i == broadcast, said[i]),
            order_by=orders[i],
            sequence=sequences[i],
            drop_stale=drops[i],
            filters=call.filters[i] if call.filters else None,
        )
        for i, df in enumerate(inputs)
    ]
    specs = [
        spec if one is None else _with_changes(spec, one, executor.columns(df))
        for spec, one, df in zip(specs, given, inputs, strict=True)
    ]
    return Inputs(tuple(specs), delays)


def _with_changes(spec: InputSpec, changes: object, columns: Sequence[str]) -> InputSpec:
    """The input with the declaration of ``apply(changes=)``. Raises SchemaError if it is invalid."""
    if not isinstance(changes, Changelog):
        raise SchemaError(
            f"{spec.name}: changes is {changes!r}; give Changelog.insert_only(), Changelog.retract() or "
            "Changelog.upsert('key column'), for several inputs one entry for each"
        )
    for name in (name for key in changes.unique_keys for name in key):
        spec.column(name)
    if not changes.is_insert_only and ROW_KIND_COLUMN not in columns:
        raise SchemaError(
            f"{spec.name}: changes says {changes.text}, but it has no column '{ROW_KIND_COLUMN}' (+I, -U, +U, -D)"
        )
    return replace(spec, changes=changes)


def routed(specs: Inputs, route: tuple[str, ...], stored: OperatorManifest | None) -> Inputs:
    """The inputs, with the first one routed by ``route``, or by the stored route."""
    first = specs.inputs[0]
    if stored is not None:
        route = tuple(first.key[at] for at in stored.route if at < len(first.key))
    return replace(specs, inputs=(replace(first, route_by=route), *specs.inputs[1:])) if route else specs


def _names(uid: str, count: int, broadcast: int | None) -> list[str]:
    """The names of the inputs in error messages."""
    regular = count if broadcast is None else count - 1
    numbered = [f"{number}. " for number in range(1, regular + 1)]
    sides = {1: [""], 2: ["left ", "right "]}.get(regular, numbered)
    if broadcast is not None:
        sides.insert(broadcast, "broadcast ")
    return [f"the {side}input of operator '{uid}'" for side in sides]


def check_job_name(name: object) -> None:
    """Raise JobError if ``name`` cannot name a folder."""
    if not names_files(name):
        raise JobError(
            f"job name {name!r} cannot be used: it is part of the names of local folders; {FILE_NAME_RULE}"
        )


def check_not_taken(uid: str, taken: Sequence[str]) -> None:
    """Raise JobError if ``uid`` is in ``taken``."""
    if uid in taken:
        raise JobError(f"uid '{uid}' is applied twice in one micro-batch; give each operator its own uid")


def check_operator_options(uid: str, options: Mapping[str, object]) -> None:
    """Raise ConfigurationError for an option that belongs to the job."""
    for name in JOB_OPTIONS:
        if f"async-state.{name}" in options:
            raise ConfigurationError(
                f"operator '{uid}': async-state.{name} applies to the whole job; give it to StreamingJob(options=...)"
            )
