"""What the driver refuses of an operator with a broadcast input, before any data is touched.

Owns: ``check_broadcast``.
Must not import Spark, storage or execution.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncstate.errors import SchemaError
from asyncstate.operator import InputSpec, Operator, RecordOperator


def check_broadcast(uid: str, operator: Operator, inputs: Sequence[InputSpec]) -> None:
    """Raise SchemaError unless the operator can have the broadcast input it declares, and the inputs agree."""
    label = f"operator '{uid}' ({type(operator).__name__})"
    index = operator.broadcast_input
    if index is not None:
        _check_operator(label, operator, index)
        _check_input(label, inputs[index])
    elif isinstance(operator, RecordOperator) and operator.notify_stateful_sets:
        raise SchemaError(
            f"{label} sets notify_stateful_sets but has no broadcast input; set broadcast_input on the class too"
        )
    wrong = [spec.name for number, spec in enumerate(inputs) if spec.broadcast and number != index]
    if wrong:
        raise SchemaError(f"{label}: {wrong[0]} is broadcast, but broadcast_input is {index}; let them agree")


def _check_operator(label: str, operator: Operator, index: int) -> None:
    if not isinstance(operator, RecordOperator):
        raise SchemaError(
            f"{label} has a broadcast input, but broadcast inputs are of the record grain only; write it as a "
            "RecordOperator, or join the rows as an ordinary input"
        )
    if operator.num_inputs < 2 or not 0 <= index < operator.num_inputs:
        raise SchemaError(
            f"{label}: broadcast_input is {index} with num_inputs {operator.num_inputs}; it is the index of one "
            "input beside at least one other, so set num_inputs to 2 or more"
        )
    for method, wanted in (
        ("process_broadcast", True),
        ("process_notification", operator.notify_stateful_sets),
    ):
        if wanted and getattr(type(operator), method) is getattr(RecordOperator, method):
            raise SchemaError(f"{label} has a broadcast input but no {method} method; write one")


def _check_input(label: str, spec: InputSpec) -> None:
    if not spec.broadcast:
        raise SchemaError(f"{label}: {spec.name} is the broadcast input but was not declared as broadcast")
    if spec.key:
        raise SchemaError(
            f"{label}: {spec.name} is broadcast and has no key, but ({', '.join(spec.key)}) was given; leave it out"
        )
    if spec.order_by:
        raise SchemaError(
            f"{label}: {spec.name} is broadcast and cannot have order_by; sort the DataFrame, its order is kept"
        )
