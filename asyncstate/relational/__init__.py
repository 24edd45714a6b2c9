"""The relational methods of a stream: grouping, windows, OVER, distinct rows, the top rows, joins by column names.

Owns: ``Grouped`` and ``Over``, which ``Stream.group_by`` and ``Stream.over`` return; the operators that SQL's functions
are.
Invariant: a method adds only what a program could add with ``with_columns``, ``apply`` and ``select``.
Must not import Spark.
"""

from asyncstate.relational.chain import Grouped, Over

__all__ = ["Grouped", "Over"]
