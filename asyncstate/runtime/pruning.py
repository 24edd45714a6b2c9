"""The inputs as tasks get them: in the order that the operator asks for, with the columns that it needs.

Owns: ``checked_inputs``, the check of an operator on the driver, over its inputs as declared and as tasks get them.
Invariant: output and states do not depend on what is left out.
Must not import Spark.

Source: the projection push-down of Flink's planner and Spark's ``ColumnPruning``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from asyncstate.config import Config
from asyncstate.errors import SchemaError
from asyncstate.operator import BundleOperator, InputSpec, Operator, OutputSpec
from asyncstate.runtime.context import check_operator
from asyncstate.runtime.outputs import bound
from asyncstate.storage import StateSpec


def checked_inputs(
    uid: str,
    operator: Operator,
    inputs: tuple[InputSpec, ...],
    config: Config,
    stored: Sequence[StateSpec],
    copied: Callable[[Operator], Operator],
) -> tuple[OutputSpec, tuple[InputSpec, ...], list[StateSpec]]:
    """The operator's outputs, ``inputs`` with the columns that its tasks need, and its states. ``copied``: see
    ``check_operator``.

    Raises SchemaError for the inputs, or if the operator needs more than it says, StateDeclarationError where states
    disagree with ``stored``.
    """
    if isinstance(operator, BundleOperator) and _asks_for_order(operator):
        bound(uid, copied(operator), inputs)
        inputs = ordered_by(uid, operator, inputs)
    output, states = check_operator(uid, operator, inputs, config, config.max_parallelism, stored, copied)
    pruned = _pruned(uid, operator, inputs)
    if pruned != inputs:
        found = check_operator(uid, operator, pruned, config, config.max_parallelism, stored, copied)
        if found != (output, states):
            raise SchemaError(
                f"operator '{uid}' ({type(operator).__name__}): its output or its states are other ones without the "
                "columns that required_columns() leaves out; name there all columns that bind() and open() look at"
            )
    return output, pruned, states


def ordered_by(uid: str, operator: BundleOperator, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    """``inputs`` with the order that the operator asks for. Raises SchemaError unless it has an entry for each."""
    orders = operator.ordered_inputs(inputs)
    if len(orders) != len(inputs):
        raise SchemaError(
            f"operator '{uid}' ({type(operator).__name__}): ordered_inputs() has {len(orders)} entries for "
            f"{len(inputs)} inputs; return one for each, None where rows come as they arrive"
        )
    return tuple(replace(spec, order=order) for spec, order in zip(inputs, orders, strict=True))


def _asks_for_order(operator: BundleOperator) -> bool:
    return type(operator).ordered_inputs is not BundleOperator.ordered_inputs


def _pruned(uid: str, operator: Operator, inputs: tuple[InputSpec, ...]) -> tuple[InputSpec, ...]:
    required = operator.required_columns(inputs)
    if len(required) != len(inputs):
        raise SchemaError(
            f"operator '{uid}' ({type(operator).__name__}): required_columns() has {len(required)} entries for "
            f"{len(inputs)} inputs; return one for each, None where all columns are needed"
        )
    return tuple(
        spec if columns is None else _with_columns(spec, columns)
        for spec, columns in zip(inputs, required, strict=True)
    )


def _with_columns(spec: InputSpec, columns: Collection[str]) -> InputSpec:
    if spec.broadcast or spec.ordering is not None:  # these rows are compared, or stored, whole
        return spec
    for name in columns:
        spec.column(name)
    needed = {*spec.key, *columns, *spec.sequence, *([spec.event_time] if spec.event_time else [])}
    fields = [field for field in spec.schema if field.name in needed]
    # Rows without columns could not be counted.
    return replace(spec, schema=pa.schema(fields or list(spec.schema)[:1]))
