"""How the state of an operator grows: as the operator declares, or as derived from its declared states.

Owns: ``growth_of``.
Invariant: state is called bounded only if it is known to be.
Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from asyncstate.growth import NOTHING, WITH_KEYS, WITH_VALUES, StateGrowth, bounded_by, most, with_rows
from asyncstate.operator import BundleOperator, InputSpec, Operator, RecordOperator
from asyncstate.runtime.rows.sorted_inputs import ORDERED_KIND
from asyncstate.state.expiring.ttl import StateTtl
from asyncstate.storage import StateSpec

_LISTS = ("list", "list-column")
_MAPS = ("map", "column-map")
_TTL = bounded_by("ttl")
_BROADCAST = StateGrowth("grows with the entries of its broadcast state", 2)


def growth_of(operator: Operator, inputs: Sequence[InputSpec], states: Sequence[StateSpec]) -> StateGrowth:
    """How the stored state of ``operator`` over ``inputs`` grows; ``states``: its declared states."""
    if operator.stateless:
        return NOTHING
    own = operator.state_growth(inputs)
    declared = _of_states(operator, inputs, states) if own is None else own
    return most([declared, *_waiting(inputs), *(WITH_KEYS for spec in inputs if spec.drop_stale)])


def _waiting(inputs: Sequence[InputSpec]) -> Iterator[StateGrowth]:
    for spec in inputs:
        if spec.ordering is not None and spec.ordering.time == "end":
            yield with_rows(spec.changelog)
        elif spec.waits_for_watermark:
            yield bounded_by("watermark")


def _of_states(operator: Operator, inputs: Sequence[InputSpec], states: Sequence[StateSpec]) -> StateGrowth:
    if isinstance(getattr(operator, "ttl", None), StateTtl):
        return _TTL
    # Bundle operators store a changelog as the table that it describes.
    retracted = isinstance(operator, BundleOperator) and all(spec.changelog for spec in inputs)
    found = [_of_state(state, retracted) for state in states if state.kind != ORDERED_KIND]
    if isinstance(operator, RecordOperator) and operator.handles_timers:
        found.append(bounded_by("timers"))
    return most(found)


def _of_state(state: StateSpec, retracted: bool) -> StateGrowth:
    if "ttl" in state.types:
        return _TTL
    if state.kind in _LISTS:
        return with_rows(retracted)
    if state.kind in _MAPS:
        return WITH_VALUES
    return _BROADCAST if state.kind == "broadcast" else WITH_KEYS
