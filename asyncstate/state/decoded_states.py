"""Which states keep decoded values: the first level of the state cache, in front of each kind that has one.

Owns: ``with_decoded_values``. States that keep values are classes of their own, and turn into the plain ones while that
does not pay, so that resting costs nothing.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from asyncstate.state.aggregating import AggregatingState
from asyncstate.state.binding import KeyedState
from asyncstate.state.decoded import DecodedValues
from asyncstate.state.decoded_common import plain
from asyncstate.state.decoded_folds import DecodedAggregatingState, DecodedReducingState, plain_fold
from asyncstate.state.decoded_map import DecodedMapState
from asyncstate.state.decoded_value import DecodedValueState
from asyncstate.state.mapping import MapState
from asyncstate.state.reducing import ReducingState
from asyncstate.state.trials import Trial
from asyncstate.state.value import ValueState

S = TypeVar("S")

_KINDS: Final[dict[type, tuple[type, Callable[[Any], object]]]] = {
    ValueState: (DecodedValueState, plain),
    MapState: (DecodedMapState, plain),
    ReducingState: (DecodedReducingState, plain_fold),
    AggregatingState: (DecodedAggregatingState, plain_fold),
}


def with_decoded_values(state: S, limit_bytes: int, trial: Trial) -> S:
    """``state`` as it keeps decoded values, ``limit_bytes`` of them; as it is if it cannot, or should rest."""
    kind, stop = _KINDS.get(type(state), (None, plain))
    if kind is None or not limit_bytes:
        return state
    assert isinstance(state, KeyedState)
    binding = state._binding
    values = binding.plain
    if values is None or (kind is DecodedMapState and binding.plain_key is None) or not trial.begin():
        return state
    default = None if binding.default is None else binding.decode_value(binding.default)
    level = DecodedValues(
        binding.sink, values, binding.encode_value, binding.decode_value, default, limit_bytes, trial
    )
    decoded: Any = kind(replace(binding, decoded=level), state._suffix)
    level.begin(lambda: stop(decoded))
    return decoded  # type: ignore[no-any-return]
