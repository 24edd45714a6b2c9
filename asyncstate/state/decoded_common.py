"""What the states that keep decoded values share.

Owns: ``plain``, which turns one into a plain state, and ``own_key``.
Invariant: the two classes of a kind have the same slots, so that a state turns in place.
Must not import storage, execution or operators.

The hot methods of these states repeat the lookup: a call in between costs as much as it does. What they call besides
are functions: whoever has got hold of a method calls it on a state that may have turned into a plain one meanwhile.
"""

from __future__ import annotations

from typing import Any, TypeVar

from asyncstate.state.binding import Binding, KeyedState
from asyncstate.state.decoded import DecodedValues

S = TypeVar("S", bound=KeyedState)


def plain(state: S) -> S:
    """``state``, turned into what ``_plain_kind`` of its class says; a plain one stays as it is."""
    kind: Any = getattr(type(state), "_plain_kind", None)
    if kind is not None:
        state.__class__ = kind
    return state


def level_of(binding: Binding) -> DecodedValues:
    """The decoded values of a binding that has them."""
    assert binding.decoded is not None
    return binding.decoded


def own_key(state: KeyedState) -> bytes:
    """What stands for the record's key and the namespace in the keys of ``DecodedValues``."""
    context: Any = state._sink.current
    try:
        return context.encoded_key + state._suffix  # type: ignore[no-any-return]
    except (AttributeError, TypeError):
        raise state._misuse() from None
