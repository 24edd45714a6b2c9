"""What the driver refuses of operators that are stateless.

Owns: ``check_stateless`` and ``check_keeps_nothing``.
Invariant: what passes keeps nothing and waits for nothing, so that its run may be repeated, or left out.
Must not import Spark or execution.

Source: the operators that Flink and Spark chain to their inputs: map, flat map, projection.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncstate.errors import JobError, StateDeclarationError
from asyncstate.operator import BundleOperator, InputSpec, Operator, RecordOperator
from asyncstate.storage import StateSpec

_NEXT = "the next operator that has state"


def check_stateless(
    uid: str, operator: Operator, inputs: Sequence[InputSpec], delays: Sequence[int | None]
) -> None:
    """Raise JobError for what needs state, or a report, and so cannot be declared of a stateless operator."""
    what = f"operator '{uid}' ({type(operator).__name__}) is stateless"
    if operator.num_inputs != 1 or operator.broadcast_input is not None:
        raise JobError(f"{what}, so it takes one input and no broadcast input; leave stateless out")
    (spec,) = inputs
    given = {
        "key": (spec.key, "its rows are not exchanged"),
        "watermark_delay": (delays[0] is not None, "it reports no event times that a watermark could follow"),
        "order_by": (spec.order_by, "no rows can wait for a watermark"),
        "sequence": (spec.sequence, "the rows of a key do not come together"),
        "drop_seen": (spec.drop_seen, "it does not know what came before"),
    }
    for name, (declared, reason) in given.items():
        if declared:
            raise JobError(f"{what}: {reason}; leave {name} out and declare it at {_NEXT}")
    for name in ("on_timer", "on_watermark"):
        if _overrides(operator, name):
            raise JobError(
                f"{what}, but it has {name}: what it puts out must depend on the row alone; leave one of them out"
            )


def check_keeps_nothing(
    uid: str, operator: Operator, declared: Sequence[StateSpec], stored: Sequence[StateSpec]
) -> None:
    """Raise StateDeclarationError if a stateless operator has ``declared`` state, or has ``stored`` some before."""
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
