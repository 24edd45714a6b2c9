"""The execution controller: how state requests are answered, sync or async.

Owns: records in flight, the single path to list gets and the reading threads; anyio is used here only.
Must not import runtime, Spark or operators.
"""

from asyncstate.execution.completions import Completion, Completions
from asyncstate.execution.controller import ExecutionController
from asyncstate.execution.failed_rows import (
    CHANGED_BY_BUNDLE_HINT,
    GuardedRecord,
    is_of_row,
    keeping_errors,
    note_changes,
)
from asyncstate.execution.operator_code import ControllerStatistics
from asyncstate.execution.outside_calls import CallLimits, OutsideCalls
from asyncstate.execution.pacer import AsyncLimits, Pacer
from asyncstate.execution.prefetch import BLOCK_ROWS, AccessPatterns
from asyncstate.execution.read_threads import ReadThreads
from asyncstate.execution.reads import ListGet
from asyncstate.execution.record import AnyRow, BatchFrame, BroadcastRecord, OutputRow, Record, SideRow

__all__ = [
    "BLOCK_ROWS",
    "CHANGED_BY_BUNDLE_HINT",
    "AccessPatterns",
    "AnyRow",
    "AsyncLimits",
    "BatchFrame",
    "BroadcastRecord",
    "CallLimits",
    "Completion",
    "Completions",
    "ControllerStatistics",
    "ExecutionController",
    "GuardedRecord",
    "ListGet",
    "OutputRow",
    "OutsideCalls",
    "Pacer",
    "ReadThreads",
    "Record",
    "SideRow",
    "is_of_row",
    "keeping_errors",
    "note_changes",
]
