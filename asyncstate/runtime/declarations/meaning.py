"""The meaning of an operator's stored state, and whether a changed program may continue with it.

Owns: ``meaning_of``, ``stored_meaning`` and ``check_meaning``; ``ACCEPTED``.
Invariant: a difference is refused before any row is read, unless the operator declares that its state is unaffected.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from asyncstate.errors import StateDeclarationError
from asyncstate.operator import InputSpec, Operator
from asyncstate.storage import OperatorManifest

_MIGRATE: Final = "python -m asyncstate state migrate"
_EVENT_TIME: Final = "event time of input"
_FILTER: Final = "filter of input"
_INSERTED: Final = "filter of insertions of input"
_OPERATOR: Final = "operator"
_STATE_OF: Final = "state of"
_TIMERS_OF: Final = "timers of"
ACCEPTED: Final = "accepted"
"""The stored meaning after ``accept-change``: any meaning is accepted, as long as the states are those stored."""
_SEQUENCE: Final = "sequence of input"


def meaning_of(operator: Operator, inputs: Sequence[InputSpec]) -> dict[str, str]:
    """The texts that the manifest stores: those of the operator, and those that its inputs declare."""
    said = dict(operator.state_meaning(inputs))
    for index, spec in enumerate(inputs):
        if spec.event_time is not None:
            said[f"{_EVENT_TIME} {index}"] = spec.event_time
        if spec.sequence:
            said[f"{_SEQUENCE} {index}"] = ", ".join(spec.sequence)
        if spec.filters is not None:  # rows that passed another filter may be retracted
            said[f"{_FILTER if spec.changelog else _INSERTED} {index}"] = spec.filters
    return said


def stored_meaning(operator: Operator, stored: OperatorManifest | None) -> Mapping[str, str] | None:
    """The texts that ``operator`` must agree with; None if there are none. An operator that is stateless now may follow
    any operator that stored nothing."""
    if stored is None or (operator.stateless and not stored.has_state):
        return None
    if not stored.operator:
        return {ACCEPTED: ""}
    if stored.has_state and not stored.states:
        return {**stored.meaning, _TIMERS_OF: stored.operator}
    return stored.meaning if _OPERATOR in stored.meaning else {**stored.meaning, _STATE_OF: stored.operator}


def check_meaning(
    uid: str,
    operator: Operator,
    inputs: Sequence[InputSpec],
    stored: Mapping[str, str] | None,
    serves: Callable[[], bool],
) -> None:
    """Raise StateDeclarationError with what has changed and how to continue; an empty ``stored`` means that nothing is
    known. ``serves``: whether all states of the operator are among those stored."""
    what = f"operator '{uid}' ({type(operator).__name__})"
    out = (
        "Undo the change, or give the operator a new uid to start with empty state; or stop the query and drop the "
        f"stored state: {_MIGRATE} drop-operator CHECKPOINT {uid}"
    )
    if stored is not None and ACCEPTED in stored:
        if _OPERATOR in meaning_of(operator, inputs) and not serves():
            raise StateDeclarationError(
                f"{what}: its state was accepted for the changed program, but the changed operator keeps other "
                f"states, which would start empty. {out}"
            )
        return
    changed = list(_changed(operator, inputs, stored)) if stored else []
    if changed:
        accept = (
            f"; or, if the stored state is also correct for the new program, accept it: {_MIGRATE} accept-change "
            f"CHECKPOINT {uid}"
        )
        raise StateDeclarationError(
            f"{what}: another program wrote its state: {'; '.join(changed)}. {out}{accept if serves() else ''}"
        )


def _of_another(operator: Operator, now: Mapping[str, str], before: Mapping[str, str]) -> Iterator[str]:
    """Whether another operator stored the state, if only its class identifies it."""
    is_ = type(operator).__name__
    was = before.get(_TIMERS_OF, is_)
    if was != is_:
        yield f"its timers are those of {was}"
    was = before.get(_STATE_OF, is_)
    if was != is_ and _OPERATOR in now:
        yield f"its state is that of {was}"


def _changed(operator: Operator, inputs: Sequence[InputSpec], before: Mapping[str, str]) -> Iterator[str]:
    now = meaning_of(operator, inputs)
    other = list(_of_another(operator, now, before))
    if other or before.keys() <= {
        _TIMERS_OF,
        _STATE_OF,
    }:  # of a manifest without texts only the class is known
        yield from other
        return
    for name in sorted({*before, *now} - {_TIMERS_OF, _STATE_OF}):
        if name.startswith(_INSERTED):
            continue  # counts only if the rows are or were changes
        inserted = name.replace(_FILTER, _INSERTED)
        was, is_ = before.get(name, before.get(inserted)), now.get(name, now.get(inserted))
        if was == is_ or (advice := operator.change_refusal(name, was, is_, inputs)) is None:
            continue
        if name.startswith((_EVENT_TIME, _FILTER)) and None in (was, is_):
            continue  # the operator checks a time it needs; no filter is known
        if name.startswith(_SEQUENCE) and was is None and not inputs[int(name.split()[-1])].drop_stale:
            continue  # stored rows have the columns and are in order of arrival
        if was is None:
            said = f"{name} is new: {is_}"
        else:
            said = f"{name} was {was} and is {'gone' if is_ is None else is_}"
        yield f"{said} ({advice})" if advice else said
