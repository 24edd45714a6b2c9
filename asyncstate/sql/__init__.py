"""Streaming SQL over the declared graph: a statement becomes streams and operators that keep its result up to date.

Owns: nothing; re-exports the public names.
Invariant: after every micro-batch the net of what a statement's stream has emitted is what Spark's batch engine answers
to the statement over the rows so far.

``catalyst`` drives Spark's analyzer and optimizer, ``plans`` (with ``aggregates``, ``over``, ``join_conditions``,
``parts`` and ``expressions``) reads what they return into the nodes of ``ir``, ``rules`` simplifies these, and
``build`` makes streams of them. ``statements`` has the tables and views by name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncstate.sql.job import sql_pipeline
    from asyncstate.sql.statements import Compiled, SqlContext

__all__ = ["Compiled", "SqlContext", "sql_pipeline"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'asyncstate.sql' has no attribute '{name}'")
    return getattr(importlib.import_module("asyncstate.sql.job"), name)
