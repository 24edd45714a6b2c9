"""What an operator's stored state means, and whether a changed program may go on with it.

Owns: ``meaning_of``, ``stored_meaning`` and ``check_meaning``.
Invariant: a difference is refused before a row is read, unless the operator says that it is none for its state.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from asyncstate.errors import StateDeclarationError
from asyncstate.operator import InputSpec, Operator
from asyncstate.storage import OperatorManifest

_MIGRATE: Final = "python -m asyncstate state migrate"
_EVENT_TIME: Final = "event time of input"
_FILTER: Final = "filter of input"
_SEQUENCE: Final = "sequence of input"


def meaning_of(operator: Operator, inputs: Sequence[InputSpec]) -> dict[str, str]:
    """The texts that the manifest keeps: those of the operator, and of what every operator's inputs declare."""
    said = dict(operator.state_meaning(inputs))
    for index, spec in enumerate(inputs):
        if spec.event_time is not None:
            said[f"{_EVENT_TIME} {index}"] = spec.event_time
        if spec.sequence:
            said[f"{_SEQUENCE} {index}"] = ", ".join(spec.sequence)
        if (
            spec.changelog and spec.filters is not None
        ):  # rows may be taken back that another filter had let through
            said[f"{_FILTER} {index}"] = spec.filters
    return said


def stored_meaning(operator: Operator, stored: OperatorManifest | None) -> Mapping[str, str] | None:
    """The texts that ``operator`` has to agree with; None: there are none. One that is stateless by now may follow on
    one that has kept nothing, whatever that was."""
    if stored is None or (operator.stateless and not stored.has_state):
        return None
    return stored.meaning


def check_meaning(
    uid: str, operator: Operator, inputs: Sequence[InputSpec], stored: Mapping[str, str] | None
) -> None:
    """Raise StateDeclarationError that tells what has changed and how to go on; nothing is known where ``stored`` is
    empty."""
    changed = list(_changed(operator, inputs, stored)) if stored else []
    if changed:
        raise StateDeclarationError(
            f"operator '{uid}' ({type(operator).__name__}): its state was kept for another program: "
            f"{'; '.join(changed)}. Undo the change, or give the operator a new uid to start with empty state; or stop "
            f"the query and drop what is stored: {_MIGRATE} drop-operator CHECKPOINT {uid}; or, if the stored state is "
            f"right for the new program, too, say so: {_MIGRATE} accept-change CHECKPOINT {uid}"
        )


def _changed(operator: Operator, inputs: Sequence[InputSpec], before: Mapping[str, str]) -> Iterator[str]:
    now = meaning_of(operator, inputs)
    for name in sorted({*before, *now}):
        was, is_ = before.get(name), now.get(name)
        if was == is_ or (advice := operator.change_refusal(name, was, is_, inputs)) is None:
            continue
        if name.startswith((_EVENT_TIME, _FILTER)) and None in (was, is_):
            continue  # an operator that needs a time says so itself; no filter is told of, or no changelog
        if name.startswith(_SEQUENCE) and was is None and not inputs[int(name.split()[-1])].drop_seen:
            continue  # stored rows have the columns, and their order was that of arrival
        if was is None:
            said = f"{name} is new: {is_}"
        else:
            said = f"{name} was {was} and is {'gone' if is_ is None else is_}"
        yield f"{said} ({advice})" if advice else said
