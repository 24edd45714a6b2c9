"""Which column states are cached.

Owns: ``with_column_cache``.
Must not import storage, execution or operators.
"""

from __future__ import annotations

from typing import TypeVar, cast

from asyncstate.operator import OperatorContext, StateDescriptor
from asyncstate.state.column_cache.cache import ColumnCache
from asyncstate.state.column_cache.expiring import CachedTtlColumnState
from asyncstate.state.column_cache.state import CachedColumnState
from asyncstate.state.columnar.column_state import ColumnState
from asyncstate.state.expiring.ttl_columns import TtlColumnState

S = TypeVar("S")


def with_column_cache(
    state: S, descriptor: StateDescriptor[S], context: OperatorContext, cache: ColumnCache, is_new: bool
) -> S:
    """``state`` as ``cache`` answers it, if it can be cached: one row a key, without namespaces. Ranges are read of all
    others, by the store's order. ``is_new``: nothing is stored of it."""
    if getattr(descriptor, "time_first", True):
        return state
    given: object = state
    if type(given) is ColumnState:
        return cast(S, CachedColumnState.over(given, context, cache, is_new))
    if type(given) is TtlColumnState:
        return cast(S, CachedTtlColumnState.over(given, context, cache, is_new))
    return state
