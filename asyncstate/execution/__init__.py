"""Execution controllers: how state requests are answered, sync or async.

Owns: the mailbox, the single path to list gets and the reading threads; anyio is used here only.
Must not import runtime, Spark or operators.
"""

from asyncstate.execution.asynchronous import AsyncExecutionController, AsyncLimits
from asyncstate.execution.completions import Completion, Completions
from asyncstate.execution.controller import ControllerStatistics, ExecutionController
from asyncstate.execution.failed_rows import (
    CHANGED_BY_BUNDLE_HINT,
    GuardedRecord,
    is_of_row,
    keeping_errors,
    note_changes,
)
from asyncstate.execution.io_policy import AdaptiveReads
from asyncstate.execution.outside_calls import CallLimits, OutsideCalls
from asyncstate.execution.prefetch import BLOCK_ROWS, ComingRows, Interests
from asyncstate.execution.read_threads import ReadThreads
from asyncstate.execution.reads import ListGet
from asyncstate.execution.record import AnyRow, BatchFrame, BroadcastRecord, OutputRow, Record, SideRow
from asyncstate.execution.sync import SyncExecutionController

__all__ = [
    "BLOCK_ROWS",
    "CHANGED_BY_BUNDLE_HINT",
    "AdaptiveReads",
    "AnyRow",
    "AsyncExecutionController",
    "AsyncLimits",
    "BatchFrame",
    "BroadcastRecord",
    "CallLimits",
    "ComingRows",
    "Completion",
    "Completions",
    "ControllerStatistics",
    "ExecutionController",
    "GuardedRecord",
    "Interests",
    "ListGet",
    "OutputRow",
    "OutsideCalls",
    "ReadThreads",
    "Record",
    "SideRow",
    "SyncExecutionController",
    "is_of_row",
    "keeping_errors",
    "note_changes",
]
