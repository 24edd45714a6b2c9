"""The driver's check of an operator before any data is read: a dry run of ``bind`` and ``open``.

Owns: ``checked_inputs``, over the inputs as declared and as tasks receive them (in the order that the operator asks
for, with the columns that it needs); ``bound``; what broadcast inputs and stateless operators must
not do.
Invariants: output and states do not depend on columns that are left out. An operator that passes as stateless stores
nothing and waits for nothing, so that its run may be repeated, or omitted.
Must not import Spark.

Source: the side outputs of Flink's DataStream API; the operators that Flink and Spark chain to their inputs; the
projection push-down of Flink's planner and Spark's ``ColumnPruning``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Final, NoReturn, cast

import msgspec
import pyarrow as pa

from asyncstate.changelog import ROW_KIND_COLUMN, has_kinds, upserts_way_out
from asyncstate.codec import check_key_type
from asyncstate.config import Config
from asyncstate.durations import seconds
from asyncstate.errors import AsyncStateError, JobError, SchemaError, StateAccessError, StateDeclarationError
from asyncstate.operator import BundleOperator, InputSpec, Operator, OutputSpec, RecordOperator
from asyncstate.runtime.declarations.meaning import check_meaning
from asyncstate.runtime.partition.task_context import TaskContext, closed_at_the_end
from asyncstate.runtime.rows.sequence_filter import check_sequences
from asyncstate.runtime.rows.sorted_inputs import check_ordered
from asyncstate.runtime.task_spec import sends_errors, with_own_outputs
from asyncstate.state.versions import without_meaning
from asyncstate.state_backend import StateBackend, WriteBackCache
from asyncstate.storage import OperatorManifest, StateSpec

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_CALLS_MAX: Final = 10_000
_CALL_SECONDS_MAX: Final = 86_400
_LOCAL_AGGREGATION: Final = ("auto", "always", "never")
_NEXT: Final = "the next stateful operator"


def check_is_operator(uid: str, operator: object) -> None:
    """Raise JobError unless ``operator`` is an Operator object."""
    if isinstance(operator, type) and issubclass(operator, Operator):
        raise JobError(
            f"operator '{uid}': {operator.__name__} is a class; give an instance: {operator.__name__}(...)"
        )
    if not isinstance(operator, Operator):
        raise JobError(f"operator '{uid}': {operator!r} is not an Operator; give an instance of one")
    _check_settings(f"operator '{uid}'", operator)


def _check_settings(label: str, operator: Operator) -> None:
    """The attributes that users set instead of configuration keys."""
    limit: object = operator.call_limit
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= _CALLS_MAX:
        raise JobError(f"{label}: call_limit is {limit!r}; give a number from 1 to {_CALLS_MAX}")
    if seconds(operator.call_timeout, label, "call_timeout", JobError, above_zero=True) > _CALL_SECONDS_MAX:
        raise JobError(f"{label}: call_timeout is {operator.call_timeout!r}; give a day at most")
    if isinstance(operator, BundleOperator) and operator.local_aggregation not in _LOCAL_AGGREGATION:
        raise JobError(
            f"{label}: local_aggregation is {operator.local_aggregation!r}; give one of "
            f"{', '.join(map(repr, _LOCAL_AGGREGATION))}"
        )


def checked_inputs(
    uid: str,
    operator: Operator,
    inputs: tuple[InputSpec, ...],
    config: Config,
    stored: Sequence[StateSpec],
    copied: Callable[[Operator], Operator],
    meaning: Mapping[str, str] | None = None,
) -> tuple[OutputSpec, tuple[InputSpec, ...], list[StateSpec]]:
    """The operator's outputs, ``inputs`` with the columns that its tasks need, and its states.

    The operator itself is not modified, since it is pickled for the tasks: a copy made by ``copied``, in the way that
    tasks get theirs, is bound and opened.
    Raises SchemaError for invalid inputs, or if the operator uses columns that it does not declare;
    StateDeclarationError if the states disagree with ``stored``, or their meaning with the stored ``meaning``.
    """
    if isinstance(operator, BundleOperator) and _asks_for_order(operator):
        bound(uid, copied(operator), inputs)
        inputs = ordered_by(uid, operator, inputs)
    output, states = _checked(uid, operator, inputs, config, stored, copied, meaning)
    pruned = _pruned(uid, operator, inputs)
    if pruned != inputs:
        found = _checked(uid, operator, pruned, config, stored, copied)
        if found != (output, states):
            raise SchemaError(
                f"operator '{uid}' ({type(operator).__name__}): its output or states change without the columns that "
                "required_columns() omits; include all columns that bind() and open() use"
            )
    return output, pruned, states


def ordered_by(uid: str, operator: BundleOperator, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    """``inputs`` with the order that the operator asks for. Raises SchemaError unless it has one entry per input."""
    orders = operator.ordered_inputs(inputs)
    _check_each(uid, operator, "ordered_inputs", orders, inputs, ", None for inputs without an order")
    return tuple(replace(spec, order=order) for spec, order in zip(inputs, orders, strict=True))


def _check_each(
    uid: str, operator: Operator, method: str, found: Sized, inputs: Sized, none: str = ""
) -> None:
    """Raise SchemaError unless ``found``, which ``method`` has returned, has one entry per input. ``none``: what None
    means, if it may be one."""
    if len(found) != len(inputs):
        raise SchemaError(
            f"operator '{uid}' ({type(operator).__name__}): {method}() has {len(found)} entries for {len(inputs)} "
            f"inputs; return one for each{none}"
        )


def _asks_for_order(operator: BundleOperator) -> bool:
    return type(operator).ordered_inputs is not BundleOperator.ordered_inputs


def _pruned(uid: str, operator: Operator, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    required = operator.required_columns(inputs)
    _check_each(uid, operator, "required_columns", required, inputs, ", None where all columns are needed")
    if sends_errors(operator):  # with all of the row's columns
        return inputs
    return tuple(
        spec if columns is None else _with_columns(spec, columns)
        for spec, columns in zip(inputs, required, strict=True)
    )


def _with_columns(spec: InputSpec, columns: Collection[str]) -> InputSpec:
    # These rows are compared or stored with all columns.
    if spec.broadcast or spec.ordering is not None or spec.drop_stale:
        return spec
    for name in columns:
        spec.column(name)
    needed = {*spec.key, *columns, *spec.sequence, *([spec.event_time] if spec.event_time else [])}
    fields = [field for field in spec.schema if field.name in needed]
    # Rows without columns cannot be counted.
    return replace(spec, schema=pa.schema(fields or list(spec.schema)[:1]))


def _checked(
    uid: str,
    operator: Operator,
    inputs: Sequence[InputSpec],
    config: Config,
    stored: Sequence[StateSpec],
    copied: Callable[[Operator], Operator],
    meaning: Mapping[str, str] | None = None,
) -> tuple[OutputSpec, list[StateSpec]]:
    """The outputs and the states of a copy of ``operator`` for these inputs."""
    original, operator = operator, copied(operator)
    _check_broadcast(uid, operator, inputs)
    _check_keys(uid, [spec for spec in inputs if not spec.broadcast])
    check_ordered(uid, operator, inputs)
    check_sequences(uid, inputs)
    _check_takes_back(uid, operator, inputs)
    output = bound(uid, operator, inputs)
    _check_upserts(uid, operator, inputs)
    _check_upsert_output(uid, operator, inputs, output)
    _check_late_outputs(uid, operator, inputs, output)
    check_meaning(
        uid,
        original,
        inputs,
        meaning,
        lambda: _serves(uid, copied(original), inputs, output, config, stored),
    )
    context = TaskContext(uid, inputs, output, config, cast(StateBackend, _NoState()), stored)
    with closed_at_the_end(uid, operator):
        operator.open(context)
    states = context.opened()
    _check_keeps_nothing(uid, operator, states, stored)
    return output, states


def _serves(
    uid: str,
    operator: Operator,
    inputs: Sequence[InputSpec],
    output: OutputSpec,
    config: Config,
    stored: Sequence[StateSpec],
) -> bool:
    """Whether all states of ``operator`` are among those ``stored``, ignoring the stored meaning."""
    kept = [msgspec.structs.replace(spec, types=without_meaning(spec.types)) for spec in stored]
    context = TaskContext(uid, inputs, output, config, cast(StateBackend, _NoState()), kept)
    try:
        with closed_at_the_end(uid, operator):
            operator.bind(inputs)
            operator.open(context)
    except AsyncStateError:
        return False
    return {spec.name for spec in context.opened()} == {spec.name for spec in kept}


def _check_takes_back(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError if a changelog goes to an operator that does not accept retractions."""
    if operator.accepts_changelog:
        return
    for spec in inputs:
        if spec.changelog:
            raise SchemaError(
                f"operator '{uid}' ({type(operator).__name__}) does not accept retractions, but {spec.name} is a "
                f"changelog ({changes_text(spec)}). Apply it to rows before they become a changelog, or use an "
                "operator that accepts changelogs; declare a source of insertions only with mode='insert-only'"
            )


def _check_upserts(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError if upserts go to an operator that needs the row before each change."""
    takes = operator.takes_upserts(inputs)
    _check_each(uid, operator, "takes_upserts", takes, inputs)
    for taken, spec in zip(takes, inputs, strict=True):
        if spec.changes.is_upsert and not taken:
            raise SchemaError(
                f"operator '{uid}' ({type(operator).__name__}) needs the row before each change, but {spec.name} does "
                f"not have it ({changes_text(spec)}); {upserts_way_out(spec.changes)}"
            )


def changes_text(spec: InputSpec) -> str:
    """The changelog properties of an input, and the node they come from."""
    return f"{spec.changes.text}, of {spec.changes.origin}" if spec.changes.origin else spec.changes.text


def _check_upsert_output(
    uid: str, operator: Operator, inputs: Sequence[InputSpec], output: OutputSpec
) -> None:
    """Raise SchemaError for an upsert key whose rows may come from several partitions, which have no common order."""
    what = f"operator '{uid}' ({type(operator).__name__})"
    late = operator.late_outputs(inputs)
    for name, changes in output.side_changes.items():
        if changes.is_upsert and name not in late:
            raise SchemaError(
                f"{what}: side output '{name}' is declared as {changes.text}, which only the main output can be; "
                "declare Changelog.retract()"
            )
    key = output.changes.upsert_key
    if key is None:
        return
    if operator.stateless:
        raise SchemaError(
            f"{what}: bind() declares {output.changes.text}, but the operator is stateless, so the order of a row's "
            "changes would be lost; leave stateless = True out"
        )
    for name in key:
        check_key_type(name, output.schema.field(name).type)
    keyed = next(spec for spec in inputs if not spec.broadcast)
    kept = [*operator.keyed_output(inputs), keyed.key]
    if not any(set(columns) <= set(key) for columns in kept):
        raise SchemaError(
            f"{what}: bind() declares upserts by ({', '.join(key)}), which does not have the key "
            f"({', '.join(keyed.key)}) of {keyed.name}: changes of one row would come from several partitions, in no "
            "order. Include the key's columns in the upsert key, or map them with keyed_output()"
        )


def _check_keys(uid: str, inputs: Sequence[InputSpec]) -> None:
    for spec in inputs:
        for field in spec.key_schema:
            try:
                check_key_type(field.name, field.type)
            except SchemaError as error:
                raise SchemaError(f"operator '{uid}', {spec.name}: {error}") from error
    types = [[field.type for field in spec.key_schema] for spec in inputs]
    for spec, own in zip(inputs[1:], types[1:], strict=True):
        if own != types[0]:
            raise SchemaError(
                f"operator '{uid}': the keys of its inputs differ in type: {inputs[0].name} "
                f"({', '.join(map(str, types[0]))}) and {spec.name} ({', '.join(map(str, own))}); cast one side"
            )


class _NoState:
    """The state backend of the driver's dry run: any access is an error."""

    current = None

    def attach(self, cache: WriteBackCache) -> None:
        """Ignore the write-back cache that a state object attaches."""

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        return _refuse


def _refuse(*_: object) -> NoReturn:
    raise StateAccessError(
        "state was accessed inside open(); open() only declares state, use it in process()"
    )


def bound(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> OutputSpec:
    """The outputs that the operator's ``bind`` declares; errors name the operator of this job."""
    try:
        returned = operator.bind(inputs)
        output = OutputSpec.of(returned)
        _check_outputs(operator, output, returned)
        return with_own_outputs(operator, inputs, output)
    except SchemaError as error:
        if f"'{uid}'" in str(error):
            raise
        raise SchemaError(f"operator '{uid}': {error}") from error


def _check_outputs(operator: Operator, output: OutputSpec, returned: object) -> None:
    what = f"bind() of {type(operator).__name__} returned"
    if not isinstance(output.schema, pa.Schema):
        raise SchemaError(
            f"{what} {returned!r}; return the output's columns as a pyarrow schema, such as pa.schema([('n', "
            "pa.int64())]), or as a string such as 'n long'"
        )
    _check_columns(what, output.schema)
    _check_names(what, output.side_outputs)
    for name, schema in output.side_outputs.items():
        if not isinstance(schema, pa.Schema):
            raise SchemaError(
                f"{what} {schema!r} for side output '{name}'; give its columns as a pyarrow schema or a "
                "string such as 'n long'"
            )
        _check_columns(f"{what}, for side output '{name}',", schema)
    if operator.stateless and output.side_outputs:
        raise SchemaError(
            f"{what} side outputs, but the operator is stateless: it would run once per output; leave stateless = "
            "True out, or emit all rows to one output with a column that distinguishes them"
        )


def _check_columns(what: str, schema: pa.Schema) -> None:
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise SchemaError(f"{what} a schema with column '{twice[0]}' twice; rename all but one")
    if has_kinds(schema.names, f"{what} such a schema"):
        raise SchemaError(
            f"{what} a schema with a column '{ROW_KIND_COLUMN}', which is reserved; leave it out, and pass kinds to "
            "emit()"
        )


def _check_names(what: str, names: Collection[object]) -> None:
    wrong = [name for name in names if not isinstance(name, str) or not _NAME.fullmatch(name)]
    if wrong:
        raise SchemaError(
            f"{what} a side output named {wrong[0]!r}; use at most 100 letters, digits and '_', starting with a "
            "letter"
        )
    lower = [str(name).lower() for name in names]
    alike = [str(name) for name in names if lower.count(str(name).lower()) > 1]
    if alike:
        raise SchemaError(
            f"{what} side outputs {' and '.join(map(repr, alike))}, which differ only in case; rename all but one"
        )


def _check_late_outputs(
    uid: str, operator: Operator, inputs: Sequence[InputSpec], output: OutputSpec
) -> None:
    """Raise SchemaError for a side output for late rows that is not declared with the input's columns, and for an
    input that never drops late rows."""
    names = tuple(operator.late_outputs(inputs))
    what = f"operator '{uid}' ({type(operator).__name__})"
    _check_each(uid, operator, "late_outputs", names, inputs, ", None where late rows are dropped")
    for name, spec in zip(names, inputs, strict=True):
        if name is not None:
            _check_late(what, name, spec, output)


def _check_late(what: str, name: str, spec: InputSpec, output: OutputSpec) -> None:
    order = spec.ordering
    if order is None or order.time != "event" or order.late != "drop":
        raise SchemaError(
            f"{what}: late rows of {spec.name} should go to side output '{name}', but the input drops none, because "
            "it is not ordered by event time. Give it order_by (or an order of the operator), or leave the output "
            "out"
        )
    if not output.side(name).equals(spec.schema):
        raise SchemaError(
            f"{what}: side output '{name}' has the columns ({', '.join(map(str, output.side(name)))}), but gets the "
            f"late rows of {spec.name}: declare it with the input's schema"
        )


def _check_broadcast(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError if the operator cannot have the broadcast input it declares, or the inputs do not agree."""
    label = f"operator '{uid}' ({type(operator).__name__})"
    index = operator.broadcast_input
    if index is not None:
        _check_broadcasts(label, operator, index)
        _check_broadcast_input(label, inputs[index])
    elif isinstance(operator, RecordOperator) and operator.notify_stateful_sets:
        raise SchemaError(
            f"{label} sets notify_stateful_sets but has no broadcast input; set broadcast_input on the class, too"
        )
    wrong = [spec.name for number, spec in enumerate(inputs) if spec.broadcast and number != index]
    if wrong:
        raise SchemaError(
            f"{label}: {wrong[0]} is broadcast, but broadcast_input is {index}; make them agree"
        )


def _check_broadcasts(label: str, operator: Operator, index: int) -> None:
    if operator.num_inputs < 2:
        raise SchemaError(
            f"{label}: broadcast_input is {index} with num_inputs {operator.num_inputs}; a broadcast input needs at "
            "least one other input, so set num_inputs to 2 or more"
        )
    notifies = isinstance(operator, RecordOperator) and operator.notify_stateful_sets
    base = RecordOperator if isinstance(operator, RecordOperator) else BundleOperator
    for method in ("process_broadcast", *(["process_notification"] if notifies else [])):
        if getattr(type(operator), method) is getattr(base, method):
            raise SchemaError(f"{label} has a broadcast input but no {method} method; write one")


def _check_broadcast_input(label: str, spec: InputSpec) -> None:
    if not spec.broadcast:
        raise SchemaError(f"{label}: {spec.name} is the broadcast input but was not declared as broadcast")
    if spec.key:
        raise SchemaError(
            f"{label}: {spec.name} is broadcast and has no key, but ({', '.join(spec.key)}) was given; leave it out"
        )


def check_stateless(
    uid: str,
    operator: Operator,
    inputs: Sequence[InputSpec],
    delays: Sequence[int | None],
    stored: OperatorManifest | None = None,
) -> None:
    """Raise JobError for declarations that need state or a report, which a stateless operator does not have.
    ``stored``: the checkpoint's entry for this uid."""
    what = f"operator '{uid}' ({type(operator).__name__}) is stateless"
    if stored is not None and stored.has_state and not stored.states:
        raise JobError(f"{what}, but the checkpoint has timers of this uid; give the operator a new uid")
    if operator.num_inputs != 1 or operator.broadcast_input is not None:
        raise JobError(f"{what}, so it takes one input and no broadcast input; leave stateless out")
    (spec,) = inputs
    given = {
        "key": (spec.key, "its rows are not exchanged"),
        "watermark_delay": (delays[0] is not None, "it reports no event times for the watermark"),
        "order_by": (spec.order_by, "no rows can wait for a watermark"),
        "sequence": (spec.sequence, "the rows of a key are not brought together"),
        "drop_stale": (spec.drop_stale, "it does not know earlier rows"),
    }
    for name, (declared, reason) in given.items():
        if declared:
            raise JobError(f"{what}: {reason}; leave {name} out and declare it at {_NEXT}")
    for name in ("on_timer", "on_watermark"):
        if _overrides(operator, name):
            raise JobError(
                f"{what}, but it has {name}: its output must depend on the row alone; leave one of them out"
            )


def _check_keeps_nothing(
    uid: str, operator: Operator, declared: Sequence[StateSpec], stored: Sequence[StateSpec]
) -> None:
    """Raise StateDeclarationError if a stateless operator has ``declared`` state, or has ``stored`` state from
    before."""
    if not operator.stateless:
        return
    what = f"operator '{uid}' ({type(operator).__name__}) is stateless"
    if stored:
        raise StateDeclarationError(
            f"{what}, but the checkpoint has state of this uid ({_names(stored)}); give the operator a new uid"
        )
    if declared:
        raise StateDeclarationError(
            f"{what}, but open() declares state ({_names(declared)}); leave stateless = True out, or the state"
        )


def _names(states: Sequence[StateSpec]) -> str:
    return ", ".join(f"'{state.name}'" for state in states)


def _overrides(operator: Operator, name: str) -> bool:
    own = getattr(type(operator), name, None)
    return own is not None and all(
        own is not getattr(base, name, None) for base in (BundleOperator, RecordOperator)
    )
