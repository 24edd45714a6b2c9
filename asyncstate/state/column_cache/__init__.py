"""Column states in a worker's memory: rows as columns with a hash index, cached between micro-batches.

``keyed_columns`` finds the rows of one state, ``vectors`` has their columns, ``cache`` bounds those of a partition,
``cached_column_state`` is the column state served from the cache, ``ttl_column_cache`` the one with a time to live.
"""

from asyncstate.state.column_cache.cache import ColumnCache, ColumnCacheStatistics
from asyncstate.state.column_cache.cached_column_state import CachedColumnState
from asyncstate.state.column_cache.ttl_column_cache import with_column_cache

__all__ = ["CachedColumnState", "ColumnCache", "ColumnCacheStatistics", "with_column_cache"]
