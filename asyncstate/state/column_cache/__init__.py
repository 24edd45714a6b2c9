"""Column states in a worker's memory: rows as columns with a hash index, cached between micro-batches.

``keyed_columns`` finds the rows of one state, ``vectors`` has their columns, ``cache`` bounds those of a partition,
``column_front`` is what a column state reads and writes.
"""

from asyncstate.state.column_cache.cache import ColumnCache, ColumnCacheStatistics

__all__ = ["ColumnCache", "ColumnCacheStatistics"]
