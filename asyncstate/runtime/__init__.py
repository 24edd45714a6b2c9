"""Runs one operator on one partition for one micro-batch; also the driver's rules between micro-batches.

Owns: the choice of controller and store from the configuration. Must not import Spark.
"""

from asyncstate.runtime.declarations.checks import check_is_operator, check_stateless, checked_inputs
from asyncstate.runtime.declarations.claims import UnclaimedState, check_claimed, check_unclaimed_state
from asyncstate.runtime.declarations.declared_inputs import (
    Delay,
    Keys,
    OrderBy,
    SequenceBy,
    check_num_inputs,
    check_parallelism,
    delay_us,
    drop_stale_of_inputs,
    each_input,
    keys_of_inputs,
    sequences_of_inputs,
    sort_keys_of_inputs,
    times_of_inputs,
    watermark_wait_reason,
)
from asyncstate.runtime.declarations.initial_state import (
    FIRST_ARRIVAL,
    InitialValues,
    check_columns,
    check_keeps,
    check_values,
    report_of_both,
)
from asyncstate.runtime.declarations.meaning import stored_meaning
from asyncstate.runtime.declarations.state_growth import growth_of
from asyncstate.runtime.declarations.uids import FILE_NAME_RULE, check_uid, names_files
from asyncstate.runtime.declarations.watermark import (
    SourceTimes,
    WatermarkSource,
    advance_sources,
    input_sources,
    watermark_after,
    watermark_holders,
    watermark_source,
    why_watermark_waits,
)
from asyncstate.runtime.partition.broadcast_inputs import pack_broadcast
from asyncstate.runtime.partition.restore_plans import read_state, state_bytes, why_no_stores
from asyncstate.runtime.partition.task import run_partitions, run_stateless, run_to_the_end
from asyncstate.runtime.partition.unmatched_retractions import warn_of_missing_rows
from asyncstate.runtime.partition.worker_memory import WorkerMemory, worker_memory
from asyncstate.runtime.rows.output_pipeline import (
    FilterStep,
    OutputPipeline,
    PartialAggregate,
    PartialTopN,
    ProjectStep,
    Step,
    aggregated_before,
)
from asyncstate.runtime.rows.prepared_rows import LATEST_EVENT_TIME, highest_event_time
from asyncstate.runtime.statistics import TASK_METRICS, RowStatistics, TaskStatistics, sum_records
from asyncstate.runtime.task_spec import (
    CommitRecord,
    InputBatch,
    OutBatch,
    SideBatch,
    TaskSpec,
    pack_records,
    unpack_records,
)

__all__ = [
    "FILE_NAME_RULE",
    "FIRST_ARRIVAL",
    "LATEST_EVENT_TIME",
    "TASK_METRICS",
    "CommitRecord",
    "Delay",
    "FilterStep",
    "InitialValues",
    "InputBatch",
    "Keys",
    "OrderBy",
    "OutBatch",
    "OutputPipeline",
    "PartialAggregate",
    "PartialTopN",
    "ProjectStep",
    "RowStatistics",
    "SequenceBy",
    "SideBatch",
    "SourceTimes",
    "Step",
    "TaskSpec",
    "TaskStatistics",
    "UnclaimedState",
    "WatermarkSource",
    "WorkerMemory",
    "advance_sources",
    "aggregated_before",
    "check_claimed",
    "check_columns",
    "check_is_operator",
    "check_keeps",
    "check_num_inputs",
    "check_parallelism",
    "check_stateless",
    "check_uid",
    "check_unclaimed_state",
    "check_values",
    "checked_inputs",
    "delay_us",
    "drop_stale_of_inputs",
    "each_input",
    "growth_of",
    "highest_event_time",
    "input_sources",
    "keys_of_inputs",
    "names_files",
    "pack_broadcast",
    "pack_records",
    "read_state",
    "report_of_both",
    "run_partitions",
    "run_stateless",
    "run_to_the_end",
    "sequences_of_inputs",
    "sort_keys_of_inputs",
    "state_bytes",
    "stored_meaning",
    "sum_records",
    "times_of_inputs",
    "unpack_records",
    "warn_of_missing_rows",
    "watermark_after",
    "watermark_holders",
    "watermark_source",
    "watermark_wait_reason",
    "why_no_stores",
    "why_watermark_waits",
    "worker_memory",
]
