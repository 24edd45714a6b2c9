"""States of the current record's key (record grain): values, lists, maps, reductions, aggregates.

Owns: the kinds of record grain, their shared context (``state_context``), the order of pending operations
(``pending_ops``), and the cache of their decoded values (``decoded_cache``).
"""
