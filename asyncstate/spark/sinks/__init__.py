"""Sinks: the changes of a micro-batch written once into a table that has a primary key.

Owns: nothing; re-exports the public names.
Invariant: what a target has of a micro-batch and that it has it are written together, or not at all.
Must not import runtime, storage or execution.
"""

from asyncstate.spark.sinks.postgres import PostgresTarget
from asyncstate.spark.sinks.sqlite import SqliteTarget
from asyncstate.spark.sinks.target import Changes, Target
from asyncstate.spark.sinks.upserts import UpsertSink, write_upserts

__all__ = ["Changes", "PostgresTarget", "SqliteTarget", "Target", "UpsertSink", "write_upserts"]
