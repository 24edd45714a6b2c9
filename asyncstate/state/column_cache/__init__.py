"""Column states in a worker's memory: rows as columns behind an index of hashes, kept between micro-batches.

``table`` finds the rows of one state, ``stored`` has their columns, ``cache`` bounds those of a partition, ``state`` is
the column state that is answered from there, ``expiring`` the one with a time to live.
"""

from asyncstate.state.column_cache.cache import ColumnCache, ColumnCacheStatistics
from asyncstate.state.column_cache.cached_column_state import CachedColumnState
from asyncstate.state.column_cache.ttl_column_cache import with_column_cache

__all__ = ["CachedColumnState", "ColumnCache", "ColumnCacheStatistics", "with_column_cache"]
